//! Code points for tokenizers: lenient UTF-8 decoding and character classes.

use std::borrow::Cow;
use std::sync::LazyLock;

use crate::unicode::{self, Category};

/// General category N.
pub const NUMBER: u8 = 1;
/// General category L.
pub const LETTER: u8 = 2;
/// General category M.
pub const MARK: u8 = 4;
/// General category P.
pub const PUNCTUATION: u8 = 8;
/// General category S.
pub const SYMBOL: u8 = 16;
/// General category C, without unassigned code points.
pub const CONTROL: u8 = 32;
/// White space as in `\s` (property `White_Space`).
pub const SPACE: u8 = 64;

/// The code point for a byte that is not UTF-8.
pub const REPLACEMENT: u32 = 0xFFFD;

/// A character of a text, or the end of the text. At the end `len` is 0, `class` is 0 and `cp` is
/// not a code point.
#[derive(Clone, Copy, Debug)]
pub struct Char {
    pub cp: u32,
    pub class: u8,
    pub len: usize,
}

impl Char {
    const END: Char = Char { cp: u32::MAX, class: 0, len: 0 };

    /// Whether the character has one of the classes.
    pub fn is(self, classes: u8) -> bool {
        self.class & classes != 0
    }

    /// Whether this is a character (not the end) that has none of the classes.
    pub fn is_none_of(self, classes: u8) -> bool {
        self.len > 0 && self.class & classes == 0
    }

    /// Carriage return or line feed.
    pub fn is_newline(self) -> bool {
        self.cp == 10 || self.cp == 13
    }
}

/// The character at a byte offset of a text from [`normalize`].
pub fn char_at(text: &[u8], pos: usize) -> Char {
    match text.get(pos) {
        None => Char::END,
        Some(&b) if b < 0x80 => {
            // The table has 128 entries, so the entry exists.
            let class = ASCII.get(usize::from(b)).copied().unwrap_or(SYMBOL);
            Char { cp: u32::from(b), class, len: 1 }
        }
        Some(_) => match decode(text.get(pos..).unwrap_or_default()) {
            Some((cp, len)) => Char { cp, class: class(cp), len },
            None => Char { cp: REPLACEMENT, class: SYMBOL, len: 1 },
        },
    }
}

/// A table classifies the code points below this (the whole BMP and the planes in use). Others are
/// classified one by one.
const TABLE_END: u32 = 0x3_2400;

static TABLE: LazyLock<Vec<u8>> = LazyLock::new(|| (0..TABLE_END).map(class_of).collect());

#[expect(clippy::indexing_slicing, reason = "evaluated at compile time")]
const ASCII: [u8; 128] = {
    let mut table = [0; 128];
    let mut i = 0;
    while i < 128 {
        table[i] = match i as u8 {
            9..=13 => CONTROL | SPACE,
            b' ' => SPACE,
            0..=31 | 127 => CONTROL,
            b'0'..=b'9' => NUMBER,
            b'a'..=b'z' | b'A'..=b'Z' => LETTER,
            b'$' | b'+' | b'<'..=b'>' | b'^' | b'`' | b'|' | b'~' => SYMBOL,
            _ => PUNCTUATION,
        };
        i += 1;
    }
    table
};

/// The classes of a code point; 0 if unassigned.
pub fn class(cp: u32) -> u8 {
    match TABLE.get(cp as usize) {
        Some(&class) => class,
        None => class_of(cp),
    }
}

fn class_of(cp: u32) -> u8 {
    let Some(c) = char::from_u32(cp) else {
        return if cp <= 0x10_FFFF { CONTROL } else { 0 }; // surrogates are category Cs
    };
    let category = match unicode::category(cp) {
        category if category.is_number() => NUMBER,
        category if category.is_letter() => LETTER,
        category if category.is_mark() => MARK,
        category if category.is_punctuation() => PUNCTUATION,
        category if category.is_symbol() => SYMBOL,
        category if category.is_separator() || category == Category::Unassigned => 0,
        _ => CONTROL,
    };
    category | if c.is_whitespace() { SPACE } else { 0 }
}

/// The length of a UTF-8 sequence by its first byte only. A byte that cannot be first is a sequence
/// of one byte.
pub fn utf8_len(first: u8) -> usize {
    match first >> 4 {
        0..=11 => 1,
        12 | 13 => 2,
        14 => 3,
        _ => 4,
    }
}

/// Decodes the first code point of a text. Lead and continuation bytes must match, but overlong
/// encodings and surrogates are accepted, as in llama.cpp.
fn decode(bytes: &[u8]) -> Option<(u32, usize)> {
    let tail = |i: usize| bytes.get(i).filter(|&b| b & 0xC0 == 0x80).map(|&b| u32::from(b & 0x3F));
    let first = *bytes.first()?;
    let lead = u32::from(first);
    match first {
        0..=0x7F => Some((lead, 1)),
        0xC0..=0xDF => Some(((lead & 0x1F) << 6 | tail(1)?, 2)),
        0xE0..=0xEF => Some(((lead & 0x0F) << 12 | tail(1)? << 6 | tail(2)?, 3)),
        0xF0..=0xF7 => {
            let cp = (lead & 0x07) << 18 | tail(1)? << 12 | tail(2)? << 6 | tail(3)?;
            (cp <= 0x10_FFFF).then_some((cp, 4))
        }
        _ => None,
    }
}

/// Appends a code point (also a surrogate) as UTF-8 in its shortest encoding.
pub fn push_utf8(out: &mut Vec<u8>, cp: u32) {
    let tail = |shift: u32| 0x80 | (cp >> shift & 0x3F) as u8;
    match cp {
        0..0x80 => out.push(cp as u8),
        0x80..0x800 => out.extend([0xC0 | (cp >> 6) as u8, tail(0)]),
        0x800..0x1_0000 => out.extend([0xE0 | (cp >> 12) as u8, tail(6), tail(0)]),
        _ => out.extend([0xF0 | (cp >> 18 & 7) as u8, tail(12), tail(6), tail(0)]),
    }
}

/// Replaces every undecodable byte by U+FFFD and every overlong encoding by its character. Valid
/// UTF-8 is unchanged.
pub fn normalize(text: &[u8]) -> Cow<'_, [u8]> {
    if std::str::from_utf8(text).is_ok() {
        return Cow::Borrowed(text);
    }
    let mut out = Vec::with_capacity(text.len() + 16);
    let mut rest = text;
    while !rest.is_empty() {
        let (cp, len) = decode(rest).unwrap_or((REPLACEMENT, 1));
        push_utf8(&mut out, cp);
        rest = rest.get(len..).unwrap_or_default();
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ascii_table_matches_general_categories() {
        for cp in 0..128u32 {
            assert_eq!(ASCII[cp as usize], class_of(cp), "code point {cp}");
        }
    }

    #[test]
    fn invalid_utf8_bytes_become_replacement_characters() {
        assert_eq!(&*normalize(b"a\xC3"), "a\u{FFFD}".as_bytes());
        assert_eq!(&*normalize(b"\xF0\x9F\x98"), "\u{FFFD}\u{FFFD}\u{FFFD}".as_bytes());
        assert_eq!(&*normalize(b"\xC0\xAFx"), b"/x", "overlong slash");
        assert_eq!(&*normalize(b"\xED\xA0\x80"), b"\xED\xA0\x80", "a surrogate stays");
        assert_eq!(&*normalize(b"\xF7\xBF\xBF\xBF"), "\u{FFFD}\u{FFFD}\u{FFFD}\u{FFFD}".as_bytes());
    }

    #[test]
    fn every_code_point_survives_encoding_and_decoding() {
        let mut buffer = Vec::new();
        for cp in 0..=0x10_FFFFu32 {
            buffer.clear();
            push_utf8(&mut buffer, cp);
            assert_eq!(decode(&buffer), Some((cp, buffer.len())));
        }
    }
}
