//! A cache on disk for artefacts that are expensive to make, for any Rust program on Unix.
//!
//! It knows bytes and keys, and has never heard of GPUs. What it promises:
//!
//! * **A wrong artefact is never returned.** Every entry is verified (SHA-256 over all of it, both
//!   keys re-derived from the fields in clear) from the one read that is then returned.
//! * **It never fails its caller.** [`Cache::open`] returns a cache, always; a home that is full,
//!   read-only, absent, hostile or on a bad network file system costs speed, and says so in a
//!   [`Warning`].
//! * **One maker per key**, among the threads of a process and among processes, with a deadline
//!   after which the work is done anyway. Readers never lock.
//! * **Nothing half-written is ever seen**, whenever the process is killed.
//!
//! An entry has two keys. The *source key* says what was asked for, the *build key* adds who made
//! it. So a new compiler gives new artefacts ([`Cache::get_or_make`]), and a machine without one
//! takes the newest that it can use ([`Cache::find`]).
//!
//! ```
//! use std::time::Duration;
//! use kjit_cache::{Artefact, BuildKey, Cache, Config, Key, Origin};
//!
//! # let home = tempfile::tempdir().unwrap();
//! let cache = Cache::open(Config::for_app("demo").dir(home.path().join("cache")));
//! let source = Key::builder("demo thumbnail").content("image", b"... pixels ...").field("width", "128").finish();
//! let key = BuildKey::new(&source, |key| key.field("scaler", "lanczos 3, version 7"));
//!
//! let scale = || Ok::<_, String>(Artefact::new("expensive bytes").meta("width", "128"));
//! let first = cache.get_or_make(&key, Duration::from_secs(30), scale)?;
//! assert_eq!(first.origin, Origin::Made);
//! let second = cache.get_or_make(&key, Duration::from_secs(30), || Err("never asked".to_string()))?;
//! assert_eq!(second.origin, Origin::Home);
//! assert_eq!(second.entry.payload(), b"expensive bytes");
//! # Ok::<(), String>(())
//! ```
//!
//! | to … | there is |
//! |---|---|
//! | open one | [`Cache::open`] with a [`Config`] |
//! | say what is wanted, and who makes it | [`Key`], [`BuildKey`] |
//! | take it or make it | [`Cache::get_or_make`] |
//! | take what there is | [`Cache::get`], [`Cache::find`] |
//! | keep a small value | [`Cache::put_record`], [`Cache::record`] |
//! | carry entries elsewhere | [`Cache::export_until`], [`Cache::import`], [`Pack`] |
//! | look and clear | [`Cache::list`], [`Cache::stat`], [`Cache::verify`], [`Cache::clear`] |
//! | hear of what went wrong | [`Warning`], [`Config::on_warning`] |
//!
//! # Layers
//!
//! The home directory ([`Config::dir`], else `$APP_CACHE_DIR`, else the user's cache folder); then
//! memory, which holds what no directory would take; then read-only layers: [`Pack`] files, folders
//! of them, other caches (`$APP_PACK_PATH`, [`Config::read_only`]). A local build goes before a
//! pack's.
//!
//! # Trust
//!
//! Directories are made 0700 and reached by handle, step by step, following no link; each handle is
//! asked who owns it and who may write. What belongs to another user (root excepted) or is writable
//! for others is refused with a reason. In a setuid program the cache is off. A checksum keeps out
//! accidents; it is ownership, or a pack's signature, that keeps out people.
//!
//! # Beside entries
//!
//! [`Cache::put_record`] keeps small values (measured timings) by key; [`Cache::file_digest`]
//! remembers the digest of large files. [`Cache::list`], [`Cache::stat`], [`Cache::verify`],
//! [`Cache::clear`], [`Cache::export`] and [`Cache::import`] are for the owner.
//!
//! Not for Windows: nothing here has been tried there, and the crate does not build for it.

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
#![forbid(unsafe_code)]

mod admin;
mod cache;
mod config;
mod entry;
mod evict;
mod export;
mod flight;
mod journal;
mod key;
mod layer;
mod lock;
mod lookup;
mod memory;
mod pack;
mod record;
mod safe_dir;
mod store;
mod verify;
mod warning;
mod wire;

pub use admin::{Cleared, EntryInfo, LayerStat, Stat};
pub use cache::{Cache, Counters, Found, Origin, Scope};
pub use config::Config;
pub use entry::{Artefact, Entry, EntryError, FORMAT};
pub use export::{Export, Exported, Imported};
pub use key::{BadDigest, BuildKey, Digest, Field, FieldValue, Key, KeyBuilder};
pub use pack::{Pack, PackError, PublicKey, SecretKey};
pub use verify::Verification;
pub use warning::{OnWarning, Warning};

/// The README's example, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
