//! Reads little-endian numbers and strings, and checks the end of the file.

use super::error::ErrorKind;

/// A position in a file's bytes that only moves forward.
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// The file ended too early.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UnexpectedEnd {
    at: u64,
    need: u64,
    len: u64,
}

impl UnexpectedEnd {
    /// The error, which names the item that was being read.
    pub(crate) fn inside(self, what: impl FnOnce() -> String) -> ErrorKind {
        ErrorKind::Truncated { inside: what(), at: self.at, need: self.need, len: self.len }
    }
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Cursor { bytes, at: 0 }
    }

    /// Offset of the next byte from the start of the file.
    pub(crate) fn at(&self) -> u64 {
        self.at as u64
    }

    /// Number of remaining bytes.
    pub(crate) fn left(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    /// The remaining bytes.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    /// The next `n` bytes.
    pub(crate) fn take(&mut self, n: u64) -> Result<&'a [u8], UnexpectedEnd> {
        let short = UnexpectedEnd { at: self.at(), need: n, len: self.bytes.len() as u64 };
        let end = usize::try_from(n).ok().and_then(|n| self.at.checked_add(n)).ok_or(short)?;
        let found = self.bytes.get(self.at..end).ok_or(short)?;
        self.at = end;
        Ok(found)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], UnexpectedEnd> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N as u64)?);
        Ok(out)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, UnexpectedEnd> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, UnexpectedEnd> {
        self.array().map(u64::from_le_bytes)
    }

    /// A string: its length as 64 bits, then its bytes.
    pub(crate) fn string(&mut self) -> Result<&'a [u8], UnexpectedEnd> {
        let n = self.u64()?;
        self.take(n)
    }
}
