//! A fast hash for tables inside the process: a multiplication for each word. A collision only
//! takes time, and keys are the program's own expressions.

use std::hash::{BuildHasherDefault, Hasher};

/// The hash state.
#[derive(Default)]
pub(crate) struct Fast(u64);

/// Collects what is hashed, word by word: an exact key of anything that can be hashed.
#[derive(Default)]
pub(crate) struct Words(pub Vec<u64>);

impl Hasher for Words {
    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word.iter_mut().zip(part).for_each(|(to, from)| *to = *from);
            self.0.push(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, v: u8) {
        self.0.push(u64::from(v));
    }

    fn write_u64(&mut self, v: u64) {
        self.0.push(v);
    }

    fn write_usize(&mut self, v: usize) {
        self.0.push(v as u64);
    }

    fn write_isize(&mut self, v: isize) {
        self.0.push(v as u64);
    }

    /// Nothing: the words are the key.
    fn finish(&self) -> u64 {
        0
    }
}

/// Makes [`Fast`] for a table.
pub(crate) type BuildFast = BuildHasherDefault<Fast>;

impl Fast {
    fn word(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

impl Hasher for Fast {
    fn write(&mut self, bytes: &[u8]) {
        let mut words = bytes.chunks_exact(8);
        for word in &mut words {
            self.word(u64::from_le_bytes(word.try_into().unwrap_or_default()));
        }
        let mut last = [0; 8];
        last.iter_mut().zip(words.remainder()).for_each(|(l, b)| *l = *b);
        if !words.remainder().is_empty() {
            self.word(u64::from_le_bytes(last));
        }
    }

    fn write_u8(&mut self, v: u8) {
        self.word(u64::from(v));
    }

    fn write_u32(&mut self, v: u32) {
        self.word(u64::from(v));
    }

    fn write_u64(&mut self, v: u64) {
        self.word(v);
    }

    fn write_i64(&mut self, v: i64) {
        self.word(v as u64);
    }

    fn write_usize(&mut self, v: usize) {
        self.word(v as u64);
    }

    fn write_isize(&mut self, v: isize) {
        self.word(v as u64);
    }

    /// The high bits depend on all words, the low ones do not; tables use both.
    fn finish(&self) -> u64 {
        let mixed = (self.0 ^ (self.0 >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        mixed ^ (mixed >> 32)
    }
}
