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

#![forbid(unsafe_code)]
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

use std::io;
use std::path::Path;
use std::time::Duration;

/// Progress of a fetch.
#[derive(Debug)]
pub enum Event<'a> {
    /// A file begins.
    File {
        /// Its path inside the repository.
        file: &'a str,
        /// Its length.
        bytes: u64,
        /// Bytes that an earlier fetch left.
        have: u64,
    },
    /// Bytes of the file that are here.
    At(u64),
    /// Another try follows.
    Again {
        /// What went wrong.
        why: &'a str,
        /// The pause before it.
        pause: Duration,
    },
    /// A part of the cache is unusable and is skipped.
    Skipped {
        /// Where it is.
        path: &'a Path,
        /// The system's error.
        why: &'a io::Error,
    },
    /// A file that is not ours stood in the place of a partial download. It was removed.
    Removed {
        /// Where it was.
        path: &'a Path,
        /// A description: `is a symbolic link`.
        why: &'a str,
    },
    /// Another process fetches this file. This process waits for it.
    Waiting {
        /// Its path inside the repository.
        file: &'a str,
    },
}

/// Receives the progress.
pub type Watch<'a> = &'a dyn Fn(Event<'_>);

/// The README's example, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
