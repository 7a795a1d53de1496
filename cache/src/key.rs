//! Keys: SHA-256 over labelled, length-prefixed fields, stored with the clear-text fields.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use crate::wire::{Reader, WireError, put_bytes};

/// First field of every key, so that keys of another encoding are never equal.
const ENCODING: &str = "kjit-cache key 1";
const CLEAR: u8 = 0;
const CONTENT: u8 = 1;

/// A SHA-256 digest, printed and parsed as 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// The digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// The digest as 64 lower-case hexadecimal digits.
    pub fn hex(&self) -> String {
        let nibbles = self.0.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        nibbles.filter_map(|nibble| char::from_digit(u32::from(nibble), 16)).collect()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.hex())
    }
}

/// The error for a string that is not 64 lower-case hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a digest is 64 lower-case hexadecimal digits")]
pub struct BadDigest;

impl FromStr for Digest {
    type Err = BadDigest;

    fn from_str(text: &str) -> Result<Self, BadDigest> {
        let digits = text.as_bytes();
        if digits.len() != 64 {
            return Err(BadDigest);
        }
        let value = |digit: u8| match digit {
            b'0'..=b'9' => Ok(digit - b'0'),
            b'a'..=b'f' => Ok(digit - b'a' + 10),
            _ => Err(BadDigest),
        };
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = match pair {
                [high, low] => value(*high)? << 4 | value(*low)?,
                _ => return Err(BadDigest),
            };
        }
        Ok(Self(bytes))
    }
}

/// The value of a field, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FieldValue {
    /// The bytes of the value.
    Clear(Vec<u8>),
    /// Digest and length of a text that is too long to store in every entry.
    Content {
        /// SHA-256 of the text.
        digest: Digest,
        /// Length of the text in bytes.
        len: u64,
    },
}

impl fmt::Display for FieldValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Clear(bytes) => write!(f, "{}", String::from_utf8_lossy(bytes).escape_debug()),
            Self::Content { digest, len } => write!(f, "sha256:{digest} ({len} bytes)"),
        }
    }
}

/// A labelled field of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// Label of the field.
    pub label: String,
    /// Value of the field.
    pub value: FieldValue,
}

/// A key: a digest and the fields that it covers. Clones share the bytes.
#[derive(Clone)]
pub struct Key {
    digest: Digest,
    /// The hashed bytes, which an entry stores. Their digest is the digest of the key.
    encoded: Arc<[u8]>,
}

impl Key {
    /// Starts a key. `domain` separates keys of different meaning ("kernel source", "tuning").
    pub fn builder(domain: &str) -> KeyBuilder {
        let mut encoded = Vec::with_capacity(256);
        put_bytes(&mut encoded, ENCODING.as_bytes());
        put_bytes(&mut encoded, domain.as_bytes());
        KeyBuilder { encoded }
    }

    /// The digest. It is the name of the key on disk.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    pub(crate) fn encoded(&self) -> &[u8] {
        &self.encoded
    }

    pub(crate) fn decode(encoded: &[u8]) -> Result<Self, WireError> {
        let key = Self { digest: Digest::of(encoded), encoded: encoded.into() };
        key.parse()?;
        Ok(key)
    }

    fn parse(&self) -> Result<(String, Vec<Field>), WireError> {
        let mut reader = Reader::new(&self.encoded);
        if reader.text("the key's encoding")? != ENCODING {
            return Err(WireError::Order { what: "the key's encoding" });
        }
        let domain = reader.text("the key's domain")?.to_owned();
        let mut fields = Vec::new();
        while !reader.is_at_end() {
            let kind = reader.u8("a key field")?;
            let label = reader.text("a key field's label")?.to_owned();
            let value = match kind {
                CLEAR => FieldValue::Clear(reader.bytes("a key field")?.to_vec()),
                CONTENT => FieldValue::Content {
                    digest: Digest(reader.array("a key field")?),
                    len: reader.u64("a key field")?,
                },
                _ => return Err(WireError::Order { what: "a key field's kind" }),
            };
            fields.push(Field { label, value });
        }
        Ok((domain, fields))
    }

    /// The `domain` of the builder.
    pub fn domain(&self) -> String {
        self.parse().map(|(domain, _)| domain).unwrap_or_default()
    }

    /// The fields in the order of their addition.
    pub fn fields(&self) -> Vec<Field> {
        self.parse().map(|(_, fields)| fields).unwrap_or_default()
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

impl Eq for Key {}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({} {})", self.domain(), self.digest)
    }
}

/// Builds a key. Labels and lengths are hashed too, so different lists of fields have different
/// bytes. The order of the fields matters, except in [`KeyBuilder::sorted`].
#[derive(Debug, Clone)]
pub struct KeyBuilder {
    encoded: Vec<u8>,
}

impl KeyBuilder {
    fn label(&mut self, kind: u8, label: &str) {
        self.encoded.push(kind);
        put_bytes(&mut self.encoded, label.as_bytes());
    }

    /// Adds a field that every entry stores in clear text.
    #[must_use]
    pub fn field(mut self, label: &str, value: impl AsRef<[u8]>) -> Self {
        self.label(CLEAR, label);
        put_bytes(&mut self.encoded, value.as_ref());
        self
    }

    /// Adds a long text (a source file). All of it is hashed; only its digest and length are
    /// stored.
    #[must_use]
    pub fn content(self, label: &str, text: impl AsRef<[u8]>) -> Self {
        let text = text.as_ref();
        self.content_digest(label, Digest::of(text), text.len() as u64)
    }

    /// Like [`KeyBuilder::content`], for a text with a known digest.
    #[must_use]
    pub fn content_digest(mut self, label: &str, digest: Digest, len: u64) -> Self {
        self.label(CONTENT, label);
        self.encoded.extend_from_slice(&digest.0);
        self.encoded.extend_from_slice(&len.to_le_bytes());
        self
    }

    /// Adds named values sorted by name. Each becomes the field `label.name`.
    #[must_use]
    pub fn sorted<N: AsRef<str>, V: AsRef<[u8]>>(
        self,
        label: &str,
        values: impl IntoIterator<Item = (N, V)>,
    ) -> Self {
        let mut values: Vec<(N, V)> = values.into_iter().collect();
        values.sort_by(|a, b| (a.0.as_ref(), a.1.as_ref()).cmp(&(b.0.as_ref(), b.1.as_ref())));
        values.iter().fold(self, |key, (name, value)| {
            key.field(&format!("{label}.{}", name.as_ref()), value.as_ref())
        })
    }

    /// The finished key.
    pub fn finish(self) -> Key {
        Key { digest: Digest::of(&self.encoded), encoded: self.encoded.into() }
    }
}

/// The two keys of an entry: the request (`source`) and the exact build (`build`).
///
/// Two compilers create two builds of one source key. Clones share the bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildKey {
    source: Key,
    build: Key,
}

impl BuildKey {
    /// Joins the source key with fields that `maker` adds: the identity and the flags of the
    /// artefact's maker.
    ///
    /// ```
    /// use kjit_cache::{BuildKey, Key};
    /// let source = Key::builder("demo source").content("main.c", "int main() {}").field("target", "riscv64").finish();
    /// let gcc = BuildKey::new(&source, |k| k.field("compiler", "gcc, sha256 12ab…").field("flags", "-O2"));
    /// let clang = BuildKey::new(&source, |k| k.field("compiler", "clang, sha256 77fe…").field("flags", "-O2"));
    /// assert_eq!(gcc.source(), clang.source());
    /// assert_ne!(gcc.digest(), clang.digest());
    /// ```
    pub fn new(source: &Key, maker: impl FnOnce(KeyBuilder) -> KeyBuilder) -> Self {
        let builder = Key::builder("build").field("source", source.digest().0);
        Self { source: source.clone(), build: maker(builder).finish() }
    }

    /// The source key.
    pub fn source(&self) -> &Key {
        &self.source
    }

    /// The build key. Its first field is the digest of the source key.
    pub fn build(&self) -> &Key {
        &self.build
    }

    /// The digest of the build key. It is the name of the entry on disk.
    pub fn digest(&self) -> Digest {
        self.build.digest()
    }

    /// Joins two keys that were read from a file; `None` if the build does not belong to the
    /// source.
    pub(crate) fn join(source: Key, build: Key) -> Option<Self> {
        let first = build.fields().into_iter().next()?;
        let of_source =
            first.label == "source" && first.value == FieldValue::Clear(source.digest().0.to_vec());
        (of_source && build.domain() == "build").then_some(Self { source, build })
    }
}
