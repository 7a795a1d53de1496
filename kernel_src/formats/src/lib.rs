//! Block formats of GGML: ids, sizes, codes and scales, and the layout of a row on a GPU.
//!
//! The crate consists of data and arithmetic. It opens no file and depends on no other crate of
//! kjit, so a program that only reads GGUF files does not need a compiler.
//! | task | item |
//! |---|---|
//! | decode a block | [`format::Format`], [`format::ALL`] |
//! | get the size of any tensor type of ggml | [`ggml::GgmlType`] |
//! | convert weights to the layout of the kernels | [`layout::Layout`] |

#![cfg_attr(not(test), forbid(unsafe_code))]
#![cfg_attr(
    not(test),
    warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable)
)]

pub mod format;
pub mod ggml;
pub mod layout;

/// The README's example, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

// Unit and integration tests are one program. Integration tests use only the public API.
#[cfg(test)]
extern crate self as kjit_formats;
#[cfg(test)]
#[path = "../tests/it/main.rs"]
mod it;
