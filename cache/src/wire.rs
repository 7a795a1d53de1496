//! Length-prefixed little-endian fields: the encoding of all files of this crate.
//!
//! The reader does not trust lengths: it compares each with the number of remaining bytes before
//! use.

use std::collections::BTreeMap;

/// The errors of reading fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WireError {
    #[error("{what} ends early at byte {at}")]
    Short { what: &'static str, at: usize },
    #[error("{what} is not valid UTF-8")]
    Utf8 { what: &'static str },
    #[error("{what} is not in canonical order")]
    Order { what: &'static str },
}

/// A cursor over untrusted bytes.
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub(crate) fn position(&self) -> usize {
        self.at
    }

    pub(crate) fn is_at_end(&self) -> bool {
        self.at == self.bytes.len()
    }

    pub(crate) fn take(&mut self, len: u64, what: &'static str) -> Result<&'a [u8], WireError> {
        let short = WireError::Short { what, at: self.at };
        let len = usize::try_from(len).map_err(|_| short)?;
        let end = self.at.checked_add(len).ok_or(short)?;
        let slice = self.bytes.get(self.at..end).ok_or(short)?;
        self.at = end;
        Ok(slice)
    }

    pub(crate) fn array<const N: usize>(
        &mut self,
        what: &'static str,
    ) -> Result<[u8; N], WireError> {
        let short = WireError::Short { what, at: self.at };
        self.take(N as u64, what)?.try_into().map_err(|_| short)
    }

    pub(crate) fn u8(&mut self, what: &'static str) -> Result<u8, WireError> {
        Ok(u8::from_le_bytes(self.array(what)?))
    }

    pub(crate) fn u32(&mut self, what: &'static str) -> Result<u32, WireError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub(crate) fn u64(&mut self, what: &'static str) -> Result<u64, WireError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// A field: its length as u64, then its bytes.
    pub(crate) fn bytes(&mut self, what: &'static str) -> Result<&'a [u8], WireError> {
        let len = self.u64(what)?;
        self.take(len, what)
    }

    pub(crate) fn text(&mut self, what: &'static str) -> Result<&'a str, WireError> {
        std::str::from_utf8(self.bytes(what)?).map_err(|_| WireError::Utf8 { what })
    }

    /// A map of strings. Its keys must be strictly ascending, so that a map has one encoding.
    pub(crate) fn map(
        &mut self,
        what: &'static str,
    ) -> Result<BTreeMap<String, String>, WireError> {
        let count = self.u32(what)?;
        let mut map = BTreeMap::new();
        let mut last: Option<&str> = None;
        for _ in 0..count {
            let key = self.text(what)?;
            let value = self.text(what)?;
            if last.is_some_and(|last| last >= key) {
                return Err(WireError::Order { what });
            }
            last = Some(key);
            map.insert(key.to_owned(), value.to_owned());
        }
        Ok(map)
    }
}

/// Appends a length-prefixed field.
pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    out.extend_from_slice(bytes);
}

/// Appends a map of strings in canonical order. The count is a u32: a map of four billion pairs
/// does not fit in memory, so it never saturates.
pub(crate) fn put_map(out: &mut Vec<u8>, map: &BTreeMap<String, String>) {
    out.extend_from_slice(&u32::try_from(map.len()).unwrap_or(u32::MAX).to_le_bytes());
    for (key, value) in map {
        put_bytes(out, key.as_bytes());
        put_bytes(out, value.as_bytes());
    }
}
