//! What is kept on disk: entries, keys, layers, locks, eviction, packs. It knows bytes and keys, and has never heard of GPUs.
#![forbid(unsafe_code)]

mod cache;
mod config;
mod entry;
mod evict;
mod flight;
mod journal;
mod key;
mod lock;
mod lookup;
mod memory;
mod record;
mod safe_dir;
mod store;
mod warning;
mod wire;

pub use cache::{Cache, Counters, Found, Origin, Scope};
pub use config::Config;
pub use entry::{Artefact, Entry, EntryError, FORMAT};
pub use key::{BadDigest, BuildKey, Digest, Field, FieldValue, Key, KeyBuilder};
pub use warning::{OnWarning, Warning};
