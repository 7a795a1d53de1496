//! The file format of an entry: self-describing, and verified from one read.
//!
//! ```text
//! magic "kjcache\n" · u32 format · u32 kind · u64 length of the whole · u64 created (ms since 1970)
//! field: source key · field: build key (empty in a record) · map: needs · map: meta · field: payload
//! SHA-256 of all before it
//! ```
//! Numbers are little-endian; a field is a u64 length and its bytes; a map is a u32 count and pairs
//! of fields in ascending order. The digests of both keys are derived from their fields, so an
//! entry cannot claim another identity.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use crate::key::{BuildKey, Digest, Key};
use crate::wire::{Reader, WireError, put_bytes, put_map};

/// The first bytes of every entry.
pub(crate) const MAGIC: [u8; 8] = *b"kjcache\n";
/// The entry format that this crate reads and writes. It is also part of the directory's name, so
/// that different program versions do not remove each other's entries in a shared home directory.
pub const FORMAT: u32 = 1;
/// Bytes from the start up to and including `created`.
pub(crate) const HEADER_LEN: usize = 32;
const HASH_LEN: usize = 32;
const KIND_ENTRY: u32 = 1;
const KIND_RECORD: u32 = 2;

/// The reasons why bytes are not a usable entry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EntryError {
    /// The magic bytes at the start are missing.
    #[error("no entry: the magic bytes are missing")]
    Magic,
    /// The format of the entry is newer or older.
    #[error("format {found}, this program reads {FORMAT}")]
    Format {
        /// The format number in the entry.
        found: u32,
    },
    /// The length of the file differs from the length in its header.
    #[error("{found} bytes, but the header states {stated}")]
    Length {
        /// Actual bytes.
        found: u64,
        /// Bytes according to the header.
        stated: u64,
    },
    /// The SHA-256 at the end does not match.
    #[error("checksum mismatch")]
    Checksum,
    /// A field cannot be parsed.
    #[error("malformed: {0}")]
    Malformed(String),
    /// The entry is valid, but belongs to another key.
    #[error("this is the entry of another key ({found})")]
    OtherKey {
        /// The digest of the key in the entry.
        found: Digest,
    },
}

impl From<WireError> for EntryError {
    fn from(error: WireError) -> Self {
        Self::Malformed(error.to_string())
    }
}

/// An artefact to store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Artefact {
    /// The bytes to cache.
    pub payload: Vec<u8>,
    /// Metadata for listings and filters.
    pub meta: BTreeMap<String, String>,
    /// Requirements of the artefact. The predicate of [`crate::Cache::find`] checks them.
    pub needs: BTreeMap<String, String>,
}

impl Artefact {
    /// An artefact without metadata and requirements.
    pub fn new(payload: impl Into<Vec<u8>>) -> Self {
        Self { payload: payload.into(), ..Self::default() }
    }

    /// Adds metadata.
    #[must_use]
    pub fn meta(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.meta.insert(key.into(), value.into());
        self
    }

    /// Adds a requirement.
    #[must_use]
    pub fn need(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.needs.insert(key.into(), value.into());
        self
    }
}

/// A verified entry in memory. Clones share the bytes.
#[derive(Debug, Clone)]
pub struct Entry {
    bytes: Arc<Vec<u8>>,
    key: BuildKey,
    created_ms: u64,
    needs: Arc<BTreeMap<String, String>>,
    meta: Arc<BTreeMap<String, String>>,
    payload: Range<usize>,
}

impl Entry {
    /// Encodes an artefact. `created_ms`, in milliseconds since 1970, only orders the builds of a
    /// source.
    pub fn encode(key: &BuildKey, artefact: &Artefact, created_ms: u64) -> Vec<u8> {
        encode(KIND_ENTRY, key.source().encoded(), key.build().encoded(), artefact, created_ms)
    }

    /// Verifies and parses the bytes of a file.
    ///
    /// # Errors
    /// The reason. No part of a faulty entry is returned.
    pub fn decode(bytes: Vec<u8>) -> Result<Self, EntryError> {
        let raw = Raw::parse(&bytes, KIND_ENTRY)?;
        let key =
            BuildKey::join(Key::decode(raw.source)?, Key::decode(raw.build)?).ok_or_else(|| {
                EntryError::Malformed("the build key is not one of the source key".into())
            })?;
        let (created_ms, payload) = (raw.created_ms, raw.payload.clone());
        let (needs, meta) = (Arc::new(raw.needs), Arc::new(raw.meta));
        Ok(Self { bytes: Arc::new(bytes), key, created_ms, needs, meta, payload })
    }

    /// The entry that `bytes`, encoded from these parts, would decode to.
    pub(crate) fn of_encoded(
        key: &BuildKey,
        artefact: &Artefact,
        created_ms: u64,
        bytes: Vec<u8>,
    ) -> Self {
        let end = bytes.len().saturating_sub(HASH_LEN);
        Self {
            payload: end.saturating_sub(artefact.payload.len())..end,
            bytes: Arc::new(bytes),
            key: key.clone(),
            created_ms,
            needs: Arc::new(artefact.needs.clone()),
            meta: Arc::new(artefact.meta.clone()),
        }
    }

    /// [`Entry::decode`] of an entry that must belong to `build`.
    ///
    /// # Errors
    /// The errors of `decode`, and [`EntryError::OtherKey`].
    pub fn decode_for(bytes: Vec<u8>, build: Digest) -> Result<Self, EntryError> {
        let entry = Self::decode(bytes)?;
        match entry.key.digest() {
            found if found == build => Ok(entry),
            found => Err(EntryError::OtherKey { found }),
        }
    }

    /// Both keys with their clear-text fields.
    pub fn key(&self) -> &BuildKey {
        &self.key
    }

    /// The verified bytes of the artefact.
    pub fn payload(&self) -> &[u8] {
        self.bytes.get(self.payload.clone()).unwrap_or_default()
    }

    /// Metadata from the maker.
    pub fn meta(&self) -> &BTreeMap<String, String> {
        &self.meta
    }

    /// The requirements of the artefact.
    pub fn needs(&self) -> &BTreeMap<String, String> {
        &self.needs
    }

    /// Milliseconds since 1970 by the clock of its maker, adjusted so that it increases among the
    /// builds of a source.
    pub fn created_ms(&self) -> u64 {
        self.created_ms
    }

    /// The bytes of the file.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Encodes a small value in the same format: one key, a payload, and no build key.
pub(crate) fn encode_record(key: &Key, payload: &[u8], created_ms: u64) -> Vec<u8> {
    encode(KIND_RECORD, key.encoded(), &[], &Artefact::new(payload), created_ms)
}

/// The key and payload of a record. If an expected digest is given, the key must have that digest.
pub(crate) fn decode_record(
    bytes: &[u8],
    wanted: Option<Digest>,
) -> Result<(Key, Vec<u8>), EntryError> {
    let raw = Raw::parse(bytes, KIND_RECORD)?;
    let key = Key::decode(raw.source)?;
    if !raw.build.is_empty() {
        return Err(EntryError::Malformed("a record has no build key".into()));
    }
    match wanted {
        Some(wanted) if wanted != key.digest() => Err(EntryError::OtherKey { found: key.digest() }),
        _ => Ok((key, bytes.get(raw.payload).unwrap_or_default().to_vec())),
    }
}

/// `created` from the first [`HEADER_LEN`] bytes. It is not verified, so it is only used for
/// ordering.
pub(crate) fn peek_created(header: &[u8]) -> Option<u64> {
    let bytes = header.get(24..32)?.try_into().ok()?;
    header.starts_with(&MAGIC).then(|| u64::from_le_bytes(bytes))
}

fn encode(kind: u32, source: &[u8], build: &[u8], artefact: &Artefact, created_ms: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(artefact.payload.len() + source.len() + build.len() + 512);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&FORMAT.to_le_bytes());
    out.extend_from_slice(&kind.to_le_bytes());
    out.extend_from_slice(&[0; 8]);
    out.extend_from_slice(&created_ms.to_le_bytes());
    put_bytes(&mut out, source);
    put_bytes(&mut out, build);
    put_map(&mut out, &artefact.needs);
    put_map(&mut out, &artefact.meta);
    put_bytes(&mut out, &artefact.payload);
    let total = (out.len() + HASH_LEN) as u64;
    if let Some(length) = out.get_mut(16..24) {
        length.copy_from_slice(&total.to_le_bytes()); // replaces the eight zeros above
    }
    let hash = Digest::of(&out);
    out.extend_from_slice(&hash.0);
    out
}

/// The sections of a verified file.
struct Raw<'a> {
    created_ms: u64,
    source: &'a [u8],
    build: &'a [u8],
    needs: BTreeMap<String, String>,
    meta: BTreeMap<String, String>,
    payload: Range<usize>,
}

impl<'a> Raw<'a> {
    /// Checks magic and format first (so that a different format is reported as such), then length
    /// and checksum, then the fields.
    fn parse(bytes: &'a [u8], kind: u32) -> Result<Self, EntryError> {
        let mut reader = Reader::new(bytes);
        if reader.array::<8>("the magic").map_err(|_| EntryError::Magic)? != MAGIC {
            return Err(EntryError::Magic);
        }
        match reader.u32("the format")? {
            FORMAT => {}
            found => return Err(EntryError::Format { found }),
        }
        let found_kind = reader.u32("the kind")?;
        let stated = reader.u64("the length")?;
        let created_ms = reader.u64("the creation time")?;
        let found = bytes.len() as u64;
        if stated != found {
            return Err(EntryError::Length { found, stated });
        }
        let split = bytes.len().checked_sub(HASH_LEN).ok_or(EntryError::Checksum)?;
        let (body, hash) = bytes.split_at(split);
        if Digest::of(body).0 != hash {
            return Err(EntryError::Checksum);
        }
        if found_kind != kind {
            return Err(EntryError::Malformed(format!("kind {found_kind}, expected kind {kind}")));
        }
        let mut reader = Reader::new(body);
        reader.take(HEADER_LEN as u64, "the header")?;
        let source = reader.bytes("the source key")?;
        let build = reader.bytes("the build key")?;
        let needs = reader.map("the needs")?;
        let meta = reader.map("the metadata")?;
        let len = reader.bytes("the payload")?.len();
        let end = reader.position();
        if !reader.is_at_end() {
            return Err(EntryError::Malformed("bytes after the payload".into()));
        }
        Ok(Self { created_ms, source, build, needs, meta, payload: end - len..end })
    }
}
