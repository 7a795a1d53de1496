//! The contents of a buffer before a launch.

use std::ops::Deref;
use std::sync::{Arc, OnceLock};

/// Bytes, or a part that repeats. A matrix of a real model with repeating rows needs memory and
/// time only for its distinct rows, until all bytes are requested.
#[derive(Debug, Clone, Default)]
pub struct Content {
    part: Arc<Vec<u8>>,
    /// Offset of the first byte in the part; the bytes before it follow the end of the part.
    from: usize,
    len: usize,
    /// All bytes, after they were requested.
    whole: OnceLock<Vec<u8>>,
}

impl Content {
    /// `len` bytes: `part` repeated.
    #[must_use]
    pub fn repeated(part: Vec<u8>, len: usize) -> Content {
        Content::turned(Arc::new(part), 0, len)
    }

    /// `len` bytes: `part` repeated, from the byte at `from` on.
    pub(crate) fn turned(part: Arc<Vec<u8>>, from: usize, len: usize) -> Content {
        Content { part, from, len, whole: OnceLock::new() }
    }

    /// `len` bytes with this value.
    #[must_use]
    pub fn filled(byte: u8, len: usize) -> Content {
        Content::repeated(vec![byte], len)
    }

    /// The number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the content is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The period, as two slices in order; all bytes if nothing repeats.
    #[must_use]
    pub fn pieces(&self) -> [&[u8]; 2] {
        let (before, part) = self.part.split_at_checked(self.from).unwrap_or((&[], &self.part));
        let part = part.get(..self.len).unwrap_or(part);
        [part, before.get(..self.len - part.len()).unwrap_or(before)]
    }

    /// The shared part, and the offset of these bytes in it.
    #[must_use]
    pub fn source(&self) -> (&Arc<Vec<u8>>, usize) {
        (&self.part, self.from)
    }

    /// The byte that fills the whole buffer, if it was filled with one.
    #[must_use]
    pub fn uniform(&self) -> Option<u8> {
        if let [byte] = **self.part { Some(byte) } else { None }
    }

    /// All bytes, copied range by range: results of a prompt have millions, and copying single
    /// bytes took 10 ns each.
    fn all(&self) -> Vec<u8> {
        if let Some(byte) = self.uniform() {
            return vec![byte; self.len];
        }
        let mut all = Vec::with_capacity(self.len);
        let [first, second] = self.pieces();
        all.extend_from_slice(first);
        all.extend_from_slice(second);
        while all.len() < self.len && !all.is_empty() {
            all.extend_from_within(..all.len().min(self.len - all.len()));
        }
        all
    }

    /// Extends it to `len` bytes with this byte.
    pub(crate) fn grow(&mut self, len: usize, byte: u8) {
        if self.uniform() != Some(byte) {
            let mut whole = self.to_vec();
            whole.resize(len, byte);
            (self.part, self.from) = (Arc::new(whole), 0);
        }
        (self.len, self.whole) = (len, OnceLock::new());
    }
}

impl From<Vec<u8>> for Content {
    fn from(part: Vec<u8>) -> Content {
        let len = part.len();
        Content::repeated(part, len)
    }
}

/// All bytes.
impl Deref for Content {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self.pieces() {
            [all, []] if all.len() == self.len => all,
            _ => self.whole.get_or_init(|| self.all()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_content_expands_and_grows() {
        let mut content = Content::repeated(vec![1, 2, 3], 7);
        assert_eq!((content.len(), &*content), (7, &[1, 2, 3, 1, 2, 3, 1][..]));
        assert_eq!(content.pieces(), [&[1, 2, 3][..], &[]]);
        content.grow(9, 5);
        assert_eq!(&*content, [1, 2, 3, 1, 2, 3, 1, 5, 5]);
        assert_eq!(&*Content::repeated(vec![1, 2, 3], 2), [1, 2]);
        let mut filled = Content::filled(7, 2);
        filled.grow(3, 7);
        assert_eq!((filled.uniform(), &*filled), (Some(7), &[7, 7, 7][..]));
        // From another offset on.
        let part = Arc::new(vec![1, 2, 3, 4]);
        for (from, len, pieces, all) in [
            (3, 6, [&[4][..], &[1, 2, 3]], &[4, 1, 2, 3, 4, 1][..]),
            (3, 2, [&[4], &[1]], &[4, 1]),
            (1, 2, [&[2, 3], &[]], &[2, 3]),
            (0, 4, [&[1, 2, 3, 4], &[]], &[1, 2, 3, 4]),
        ] {
            let turned = Content::turned(Arc::clone(&part), from, len);
            assert_eq!((turned.pieces(), &*turned), (pieces, all));
        }
        assert!(Content::from(vec![]).is_empty());
    }
}
