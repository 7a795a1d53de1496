//! GGUF files of Hugging Face's hub by name, kept in the cache folder that Python's
//! `huggingface_hub` has.
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
//! This crate knows names, bytes and digests; it opens no model. A file in its place is whole and
//! has the sha256 that the hub announced. Partial downloads are kept and resumed. The token goes to
//! the endpoint's host only, redirects included.

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
mod more;
mod names;
mod pace;
mod place;
mod reference;
mod remove;
mod settings;

pub use error::Error;
pub use hub::{Hub, Local, Pulled};
#[doc(hidden)]
pub use more::NonExhaustive;
pub use names::{Named, USUAL, models};
pub use reference::{BadReference, MAIN, Pick, Reference, SCHEME, is_address};
pub use remove::Removed;
pub use settings::{ENDPOINT, MIN_RATE, Settings, Token};

pub use event::{Event, Watch};

/// The README's example, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

// Unit and integration tests are one program. The latter see the crate as its users do.
#[cfg(test)]
extern crate self as kjit_hub;
#[cfg(test)]
#[path = "../tests/it/main.rs"]
mod it;
