//! Quantises language models.
//!
//! | to … | there is |
//! |---|---|
//! | quantise rows of f32 | [`quantize_rows`] |

#![cfg_attr(
    not(test),
    warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable)
)]

mod rows;

pub use rows::{RowError, is_writable, quantize_rows};

// Unit and integration tests are one program. Integration tests use only the public API.
#[cfg(test)]
extern crate self as kjit_quantize;
#[cfg(test)]
#[path = "../tests/it/main.rs"]
mod it;
