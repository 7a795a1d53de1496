//! Packs: many entries in one file, read in place.
//!
//! ```text
//! magic "kjpack\n\0" · u32 format · u32 signed (0 or 1) · u64 length of the index
//! index: map meta · u64 count · count × { u32 kind · source key 32 · build key 32 · u64 length · checksum 32 }
//! public key 32 · signature 64 (zeros when not signed)   — Ed25519 over the SHA-256 of all before
//! SHA-256 of all before
//! the entries, as they lie in a cache, one after another in the order of the index
//! ```
//! The checksum of an entry in the index equals the checksum at the end of the entry. So the
//! signature covers every byte of every entry, and one read is enough to verify an entry. Packs are
//! read with `pread` instead of being mapped, so that reading a truncated pack gives an error
//! instead of a SIGBUS.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};

use crate::entry::{Entry, FORMAT, decode_record};
use crate::key::{BadDigest, Digest, Key};
use crate::safe_dir::{Fault, check_file, open_untrusted, regular_file_len};
use crate::store::{Kind, unique_name};
use crate::wire::{Reader, WireError, put_map};

pub(crate) const MAGIC: [u8; 8] = *b"kjpack\n\0";
const HEADER_LEN: usize = 24;
const SEAL_LEN: usize = 32 + 64 + 32;
const ITEM_LEN: usize = 4 + 32 + 32 + 8 + 32;
/// Maximum length of an index: half a million entries.
const INDEX_LIMIT: u64 = 64 << 20;

/// An Ed25519 public key: 64 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublicKey(pub [u8; 32]);

impl FromStr for PublicKey {
    type Err = BadDigest;

    fn from_str(text: &str) -> Result<Self, BadDigest> {
        text.trim().parse::<Digest>().map(|digest| Self(digest.0))
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Digest(self.0).fmt(f)
    }
}

/// An Ed25519 secret key: 32 random bytes, stored in a file as 64 hexadecimal digits. It is never
/// printed.
#[derive(Clone)]
pub struct SecretKey([u8; 32]);

impl SecretKey {
    /// Creates a key from 32 random bytes of a secure source (`/dev/urandom`).
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The public key that verifies signatures of this key.
    pub fn public(&self) -> PublicKey {
        PublicKey(SigningKey::from_bytes(&self.0).verifying_key().to_bytes())
    }
}

impl FromStr for SecretKey {
    type Err = BadDigest;

    fn from_str(text: &str) -> Result<Self, BadDigest> {
        text.trim().parse::<Digest>().map(|digest| Self(digest.0))
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretKey(of {})", self.public())
    }
}

/// The reasons why a pack is not used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PackError {
    /// The pack cannot be read or written.
    #[error("{path}: {error}")]
    Io {
        /// Path of the pack.
        path: PathBuf,
        /// The error of the system.
        error: io::Error,
    },
    /// The pack is not trusted.
    #[error("{path}: {reason}")]
    Refused {
        /// Path of the pack.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The pack cannot be parsed, or its checksum is wrong.
    #[error("{path} is not a valid pack: {reason}")]
    Malformed {
        /// Path of the pack.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The cache accepts no more entries of the pack.
    #[error("{path}: {taken} of {of} entries were imported, then the import failed: {why}")]
    NotKept {
        /// Path of the pack.
        path: PathBuf,
        /// Number of entries and records that were imported.
        taken: u64,
        /// Number of entries and records in the pack.
        of: u64,
        /// The reason.
        why: String,
    },
    /// The caller stopped the export.
    #[error("{path} is not written: interrupted")]
    Stopped {
        /// Path of the pack.
        path: PathBuf,
    },
}

/// An item of the index.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Item {
    pub(crate) kind: Kind,
    pub(crate) source: Digest,
    pub(crate) build: Digest,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    checksum: Digest,
}

/// A pack with a verified index.
#[derive(Debug)]
pub struct Pack {
    path: PathBuf,
    file: File,
    meta: BTreeMap<String, String>,
    signer: Option<PublicKey>,
    pub(crate) items: Vec<Item>,
    by_build: HashMap<Digest, usize>,
    by_source: HashMap<Digest, Vec<usize>>,
}

impl Pack {
    /// Opens a pack and verifies its index and its signature, if it has one.
    ///
    /// If `signers` is not empty, one of them must have signed the pack. If it is empty, the file
    /// must belong to the user or root, and others must not have write permission.
    ///
    /// # Errors
    /// The pack cannot be read, is not trusted, or is faulty.
    pub fn open(path: impl AsRef<Path>, signers: &[PublicKey]) -> Result<Self, PackError> {
        let path = path.as_ref();
        let fail = |fault| match fault {
            Fault::Io(error) => PackError::Io { path: path.to_owned(), error },
            Fault::Refused(reason) => {
                PackError::Refused { path: path.to_owned(), reason: reason.to_owned() }
            }
        };
        let file = open_untrusted(path).map_err(fail)?;
        if file.metadata().is_ok_and(|found| found.is_dir()) {
            let reason = "it is a directory; give the pack's file".to_owned();
            return Err(PackError::Refused { path: path.to_owned(), reason });
        }
        // With a signature by a trusted key the owner of the file does not matter.
        let len = if signers.is_empty() {
            check_file(&file).map_err(fail)?
        } else {
            regular_file_len(&file).map_err(fail)?
        };
        Self::of_file(path, file, len, signers)
    }

    /// A pack with these bytes, for instance from a server. One of the signers must have signed it.
    pub(crate) fn of_bytes(
        path: &Path,
        bytes: &[u8],
        signers: &[PublicKey],
    ) -> Result<Self, PackError> {
        let io = |error| PackError::Io { path: path.to_owned(), error };
        // A file without a name: packs are read in place.
        let named = std::env::temp_dir().join(unique_name("kjit-remote-"));
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&named)
            .map_err(io)?;
        std::fs::remove_file(&named).map_err(io)?;
        file.write_all(bytes).map_err(io)?;
        Self::of_file(path, file, bytes.len() as u64, signers)
    }

    fn of_file(
        path: &Path,
        file: File,
        len: u64,
        signers: &[PublicKey],
    ) -> Result<Self, PackError> {
        let mut header = [0; HEADER_LEN];
        let io = |error| PackError::Io { path: path.to_owned(), error };
        let malformed = |reason: String| PackError::Malformed { path: path.to_owned(), reason };
        if len < HEADER_LEN as u64 {
            return Err(malformed(format!("it has {len} bytes")));
        }
        file.read_exact_at(&mut header, 0).map_err(io)?;
        let index_len = index_len(&header).map_err(malformed)?;
        let head_len =
            usize::try_from(index_len).ok().and_then(|len| len.checked_add(HEADER_LEN + SEAL_LEN));
        let head_len = head_len
            .filter(|head| *head as u64 <= len)
            .ok_or_else(|| malformed("cut off".into()))?;
        let mut head = vec![0; head_len];
        file.read_exact_at(&mut head, 0).map_err(io)?;
        let parsed = parse_head(&head, len).map_err(malformed)?;
        if !signers.is_empty() && !parsed.signer.is_some_and(|signer| signers.contains(&signer)) {
            let reason = match parsed.signer {
                Some(signer) => {
                    format!("signed by {signer}, which is not one of the trusted keys")
                }
                None => "it is not signed, but a signature is required".to_owned(),
            };
            return Err(PackError::Refused { path: path.to_owned(), reason });
        }
        let mut pack = Self {
            path: path.to_owned(),
            file,
            meta: parsed.meta,
            signer: parsed.signer,
            by_build: HashMap::with_capacity(parsed.items.len()),
            by_source: HashMap::new(),
            items: parsed.items,
        };
        for (at, item) in pack.items.iter().enumerate() {
            if item.kind == Kind::Entry {
                pack.by_build.insert(item.build, at);
                pack.by_source.entry(item.source).or_default().push(at);
            } else {
                pack.by_build.insert(item.source, at);
            }
        }
        Ok(pack)
    }

    /// Path of the pack.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Metadata that the maker of the pack stored.
    pub fn meta(&self) -> &BTreeMap<String, String> {
        &self.meta
    }

    /// The public key that signed the pack, verified. `None` if it is not signed.
    pub fn signer(&self) -> Option<PublicKey> {
        self.signer
    }

    /// Number of entries and records.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether the pack is empty.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub(crate) fn item(&self, name: Digest, kind: Kind) -> Option<&Item> {
        self.items.get(*self.by_build.get(&name)?).filter(|item| item.kind == kind)
    }

    pub(crate) fn builds(&self, source: Digest) -> Vec<Digest> {
        let items = self.by_source.get(&source).map(Vec::as_slice).unwrap_or_default();
        items.iter().filter_map(|at| Some(self.items.get(*at)?.build)).collect()
    }

    /// The bytes of an item. They are not verified yet: decoding verifies them by the checksum.
    fn read(&self, item: &Item, limit: u64) -> Result<Vec<u8>, String> {
        let len = usize::try_from(item.len)
            .ok()
            .filter(|len| *len as u64 <= limit)
            .ok_or("it is too large")?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len).map_err(|_| "it does not fit in memory")?;
        bytes.resize(len, 0);
        self.file.read_exact_at(&mut bytes, item.offset).map_err(|error| error.to_string())?;
        if !bytes.ends_with(&item.checksum.0) {
            return Err("its checksum is not the one in the index".to_owned());
        }
        Ok(bytes)
    }

    pub(crate) fn entry(&self, item: &Item, limit: u64) -> Result<Entry, String> {
        let entry = Entry::decode_for(self.read(item, limit)?, item.build)
            .map_err(|error| error.to_string())?;
        match entry.key().source().digest() == item.source {
            true => Ok(entry),
            false => Err("its source key is not the one in the index".to_owned()),
        }
    }

    pub(crate) fn record(&self, item: &Item, limit: u64) -> Result<(Key, Vec<u8>), String> {
        decode_record(&self.read(item, limit)?, Some(item.source))
            .map_err(|error| error.to_string())
    }
}

struct Head {
    meta: BTreeMap<String, String>,
    signer: Option<PublicKey>,
    items: Vec<Item>,
}

fn index_len(header: &[u8]) -> Result<u64, String> {
    let mut reader = Reader::new(header);
    let text = |error: WireError| error.to_string();
    if reader.array::<8>("the magic").map_err(text)? != MAGIC {
        return Err("the magic bytes are missing".into());
    }
    let format = reader.u32("the format").map_err(text)?;
    if format != FORMAT {
        return Err(format!("it is of format {format}, this program reads format {FORMAT}"));
    }
    reader.u32("the flags").map_err(text)?;
    match reader.u64("the index").map_err(text)? {
        len if len <= INDEX_LIMIT => Ok(len),
        len => Err(format!("an index of {len} bytes is above the limit of {INDEX_LIMIT}")),
    }
}

/// Parses the checksum, then the signature, then the index. The entries must exactly fill the rest
/// of the file.
fn parse_head(head: &[u8], file_len: u64) -> Result<Head, String> {
    let (sealed, checksum) =
        head.split_at_checked(head.len().saturating_sub(32)).ok_or("cut off")?;
    if Digest::of(sealed).0 != checksum {
        return Err("checksum mismatch in the index".into());
    }
    let (signed, seal) =
        sealed.split_at_checked(sealed.len().saturating_sub(96)).ok_or("cut off")?;
    let text = |error: WireError| error.to_string();
    let mut reader = Reader::new(signed);
    reader.take(12, "the header").map_err(text)?;
    let signer = match reader.u32("the flags").map_err(text)? {
        0 => None,
        1 => Some(verify_signature(signed, seal)?),
        flags => return Err(format!("unknown flags {flags:#x}")),
    };
    reader.u64("the index").map_err(text)?;
    let meta = reader.map("the pack's metadata").map_err(text)?;
    let count = reader.u64("the count").map_err(text)?;
    // The count is checked before memory is allocated for it: it must fit the remaining bytes of
    // the file.
    let left = signed.len().saturating_sub(reader.position());
    if usize::try_from(count).ok().and_then(|count| count.checked_mul(ITEM_LEN)) != Some(left) {
        return Err(format!("{count} entries do not fill an index of {left} bytes"));
    }
    let mut items = Vec::with_capacity(left / ITEM_LEN);
    let mut offset = head.len() as u64;
    while !reader.is_at_end() {
        let kind = match reader.u32("a kind").map_err(text)? {
            1 => Kind::Entry,
            2 => Kind::Record,
            kind => return Err(format!("unknown kind {kind}")),
        };
        let source = Digest(reader.array("a source key").map_err(text)?);
        let build = Digest(reader.array("a build key").map_err(text)?);
        let len = reader.u64("a length").map_err(text)?;
        let checksum = Digest(reader.array("a checksum").map_err(text)?);
        items.push(Item { kind, source, build, offset, len, checksum });
        offset = offset.checked_add(len).ok_or("the lengths overflow")?;
    }
    if offset != file_len {
        return Err(format!("the file has {file_len} bytes, but the index needs {offset}"));
    }
    Ok(Head { meta, signer, items })
}

fn verify_signature(signed: &[u8], seal: &[u8]) -> Result<PublicKey, String> {
    let mut reader = Reader::new(seal);
    let text = |error: WireError| error.to_string();
    let public: [u8; 32] = reader.array("the public key").map_err(text)?;
    let signature: [u8; 64] = reader.array("the signature").map_err(text)?;
    let key = VerifyingKey::from_bytes(&public).map_err(|_| "its public key is invalid")?;
    key.verify_strict(&Digest::of(signed).0, &Signature::from_bytes(&signature))
        .map_err(|_| "its signature is wrong")?;
    Ok(PublicKey(public))
}

/// An index entry of a pack: kind, both digests, and the length and checksum of the encoded bytes.
pub(crate) fn index_line(kind: Kind, source: Digest, build: Digest, bytes: &[u8]) -> Vec<u8> {
    let mut line = Vec::with_capacity(ITEM_LEN);
    line.extend_from_slice(&(if kind == Kind::Entry { 1u32 } else { 2 }).to_le_bytes());
    line.extend_from_slice(&source.0);
    line.extend_from_slice(&build.0);
    line.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    line.extend_from_slice(bytes.last_chunk::<32>().unwrap_or(&[0; 32]));
    line
}

/// Encodes everything before the entries.
pub(crate) fn encode_head(
    meta: &BTreeMap<String, String>,
    lines: &[Vec<u8>],
    secret: Option<&SecretKey>,
) -> Vec<u8> {
    let mut index = Vec::new();
    put_map(&mut index, meta);
    index.extend_from_slice(&(lines.len() as u64).to_le_bytes());
    index.extend(lines.iter().flatten());
    let mut head = MAGIC.to_vec();
    head.extend_from_slice(&FORMAT.to_le_bytes());
    head.extend_from_slice(&u32::from(secret.is_some()).to_le_bytes());
    head.extend_from_slice(&(index.len() as u64).to_le_bytes());
    head.extend_from_slice(&index);
    let mut seal = [0; 96];
    if let Some(secret) = secret {
        let key = SigningKey::from_bytes(&secret.0);
        let signature = key.sign(&Digest::of(&head).0);
        let both = key.verifying_key().to_bytes().into_iter().chain(signature.to_bytes());
        for (to, from) in seal.iter_mut().zip(both) {
            *to = from;
        }
    }
    head.extend_from_slice(&seal);
    let checksum = Digest::of(&head);
    head.extend_from_slice(&checksum.0);
    head
}
