//! A cache on disk for artefacts that are expensive to create, for any Rust program on Unix.
//!
//! It stores bytes under keys and does not depend on GPUs. It guarantees:
//!
//! * **A wrong artefact is never returned.** Every entry is verified in memory before it is
//!   returned: its SHA-256, and both keys, recomputed from the key fields stored in the entry.
//! * **The cache never fails its caller.** [`Cache::open`] always returns a cache. If the home
//!   directory is full, read-only, missing, unsafe or on a bad network file system, the cache is
//!   only slower and gives a [`Warning`].
//! * **One maker per key**, among the threads of a process and among processes. After a deadline a
//!   waiting caller creates the artefact itself. Readers never lock.
//! * **A partly written entry is never visible**, even if the writing process is killed.
//!
//! An entry has two keys. The *source key* identifies the request; the *build key* adds the
//! identity of the maker. So a new compiler creates new artefacts ([`Cache::get_or_make`]), and a
//! machine without a compiler uses the newest artefact that it supports ([`Cache::find`]).
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
//! | Purpose | Items |
//! |---|---|
//! | Open a cache | [`Cache::open`] with a [`Config`] |
//! | Identify a request and its maker | [`Key`], [`BuildKey`] |
//! | Get an entry, or make it | [`Cache::get_or_make`] |
//! | Get an existing entry | [`Cache::get`], [`Cache::find`] |
//! | Store a small value | [`Cache::put_record`], [`Cache::record`] |
//! | Digest a large file once | [`Cache::file_digest`] |
//! | Move entries to another cache | [`Cache::export_until`], [`Cache::import`], [`Pack`] |
//! | Inspect and clear | [`Cache::list`], [`Cache::stat`], [`Cache::verify`], [`Cache::clear`] |
//! | Receive warnings | [`Warning`], [`Config::on_warning`] |
//!
//! # Layers
//!
//! A lookup searches, in this order:
//!
//! 1. the home directory: [`Config::dir`], else `$APP_CACHE_DIR`, else the user's cache folder;
//! 2. memory, which stores entries that could not be written to a directory;
//! 3. read-only layers ([`Config::read_only`], `$APP_PACK_PATH`): [`Pack`] files, folders of packs
//!    and other caches;
//! 4. a server, if there is one ([`Config::remote`]). It has a signed pack for each source key.
//!
//! # Trust
//!
//! Directories are created with mode 0700. The path of a cache directory may contain links, except
//! as its last component; everything below it is opened one component at a time, without following
//! links. Each open directory is checked for its owner and its write permissions: a directory that
//! belongs to another user (except root), or that others may write to, is refused with a reason. In
//! a setuid program the cache uses no files, only memory. A checksum detects accidental damage.
//! Ownership, or the signature of a pack, protects against changes by other people.
//!
//! Windows is not supported: the crate does not build there.

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
#![cfg_attr(not(test), forbid(unsafe_code))]

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
mod layered;
mod lock;
mod lookup;
mod memory;
mod pack;
mod record;
mod remote;
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
pub use remote::RemotePacks;
pub use verify::Verification;
pub use warning::{OnWarning, Warning};

/// Compiles the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

// Unit and integration tests are one program. Integration tests use only the public API of the
// crate.
#[cfg(test)]
extern crate self as kjit_cache;
#[cfg(test)]
#[path = "../tests/it/main.rs"]
mod it;
