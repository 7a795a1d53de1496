//! Fetches GGUF files from the Hugging Face hub by name, and stores them in the cache folder of
//! Python's `huggingface_hub`.
//!
//! ```no_run
//! use kjit_hub::{Hub, Reference, Settings};
//!
//! let hub = Hub::new(Settings::from_env()?);
//! let model: Reference = "hf:bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M".parse()?;
//! let local = hub.get(&model, &|_| {})?;
//! println!("{}", local.path().display());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | task | call |
//! |---|---|
//! | get a model, fetched if it is missing | [`Hub::get`] |
//! | list local models, without a request | [`Hub::here`], [`Hub::list`] |
//! | update a model to the hub's version | [`Hub::pull`] |
//! | remove a model | [`Hub::remove`] |
//! | set the hub's address and the cache folder | [`Settings`] |
//!
//! This crate handles names, bytes and digests, and does not parse models. A file with its final
//! name is complete and has the SHA-256 of the hub. Partial downloads are kept and resumed. The
//! token is only sent to the host of the endpoint, also on redirects.

#![cfg_attr(not(test), forbid(unsafe_code))]
#![cfg_attr(
    not(test),
    warn(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::unreachable,
        clippy::indexing_slicing
    )
)]

mod api;
mod error;
mod event;
mod fetch;
mod folder;
mod http;
mod hub;
mod names;
mod non_exhaustive;
mod open_dir;
mod rate_meter;
mod reference;
pub mod registry;
pub mod remote;
mod remove;
mod settings;

pub use error::Error;
pub use hub::{Hub, Local, Pulled};
pub use names::{DEFAULT_QUANTIZATION, ModelFiles, models};
#[doc(hidden)]
pub use non_exhaustive::NonExhaustive;
pub use reference::{BadReference, MAIN, Pick, Reference, SCHEME, is_address};
pub use remove::Removed;
pub use settings::{ENDPOINT, MIN_RATE, Settings, Token};

pub use event::{Event, Watch};

/// The README's example, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

// Unit and integration tests are one program. Integration tests use only the public API of the
// crate.
#[cfg(test)]
extern crate self as kjit_hub;
#[cfg(test)]
#[path = "../tests/it/main.rs"]
mod it;
