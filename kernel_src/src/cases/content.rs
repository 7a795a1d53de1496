//! What is in a buffer before a launch.

use std::ops::Deref;
use std::sync::OnceLock;

/// Bytes, or a few of them again and again: a matrix of a real model whose rows repeat takes no more of the
/// host's memory and time than the rows that differ, as long as nobody asks for all of it.
#[derive(Debug, Clone, Default)]
pub struct Content {
    part: Vec<u8>,
    len: usize,
    /// All of them, once somebody asked.
    whole: OnceLock<Vec<u8>>,
}

impl Content {
    /// `len` bytes: `part` again and again.
    #[must_use]
    pub fn repeated(part: Vec<u8>, len: usize) -> Content {
        Content { part, len, whole: OnceLock::new() }
    }

    /// `len` times that byte.
    #[must_use]
    pub fn filled(byte: u8, len: usize) -> Content {
        Content::repeated(vec![byte], len)
    }

    /// How many bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What repeats: all of them, where nothing does.
    #[must_use]
    pub fn part(&self) -> &[u8] {
        self.part.get(..self.len).unwrap_or(&self.part)
    }

    /// The byte that all of them are, where they were filled with one.
    #[must_use]
    pub fn uniform(&self) -> Option<u8> {
        if let [byte] = *self.part { Some(byte) } else { None }
    }

    /// Makes it longer by that byte.
    pub(crate) fn grow(&mut self, len: usize, byte: u8) {
        if self.uniform() != Some(byte) {
            let mut whole = self.to_vec();
            whole.resize(len, byte);
            self.part = whole;
        }
        (self.len, self.whole) = (len, OnceLock::new());
    }
}

impl From<Vec<u8>> for Content {
    fn from(part: Vec<u8>) -> Content {
        Content { len: part.len(), part, whole: OnceLock::new() }
    }
}

/// All bytes.
impl Deref for Content {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        if self.part.len() >= self.len {
            return self.part();
        }
        self.whole.get_or_init(|| self.part.iter().copied().cycle().take(self.len).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_repeats_is_all_of_it_to_whoever_asks() {
        let mut content = Content::repeated(vec![1, 2, 3], 7);
        assert_eq!((content.len(), content.part(), &*content), (7, &[1, 2, 3][..], &[1, 2, 3, 1, 2, 3, 1][..]));
        content.grow(9, 5);
        assert_eq!(&*content, [1, 2, 3, 1, 2, 3, 1, 5, 5]);
        assert_eq!(&*Content::repeated(vec![1, 2, 3], 2), [1, 2]);
        let mut filled = Content::filled(7, 2);
        filled.grow(3, 7);
        assert_eq!((filled.uniform(), filled.part().len(), &*filled), (Some(7), 1, &[7, 7, 7][..]));
        assert!(Content::from(vec![]).is_empty());
    }
}
