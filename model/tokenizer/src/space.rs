//! Vocabularies that write a space as U+2581, and the positions at which their texts can be split.

use std::collections::HashSet;

use super::chars::utf8_len;

/// U+2581, the mark of a space.
pub const SPACE_MARK: &[u8] = "\u{2581}".as_bytes();

/// Replaces spaces by U+2581, with one more at the start if requested.
pub fn escape(text: &[u8], space_in_front: bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() + text.len() / 2 + 3);
    if space_in_front {
        out.extend_from_slice(SPACE_MARK);
    }
    for &b in text {
        match b {
            b' ' => out.extend_from_slice(SPACE_MARK),
            _ => out.push(b),
        }
    }
    out
}

/// Replaces U+2581 by spaces.
pub fn unescape(text: &[u8], out: &mut Vec<u8>) {
    let mut rest = text;
    while let [first, tail @ ..] = rest {
        if let Some(tail) = rest.strip_prefix(SPACE_MARK) {
            out.push(b' ');
            rest = tail;
        } else {
            out.push(*first);
            rest = tail;
        }
    }
}

/// The character at an offset, by its first byte only: invalid UTF-8 is not repaired.
pub fn character(text: &[u8], start: usize) -> &[u8] {
    let first = text.get(start).copied().unwrap_or_default();
    let end = (start + utf8_len(first)).min(text.len());
    text.get(start..end).unwrap_or_default()
}

/// The positions before a space at which a text can be split without a change of its ids. Such a
/// position follows a character that never precedes U+2581 inside a text that a join can produce.
/// No join crosses such a position, so both sides have the same ids as in the whole text. These
/// algorithms work on whole texts. The splits give words, and words can be cached.
#[derive(Debug, Default)]
pub struct SpaceCuts {
    before: HashSet<Box<[u8]>>,
}

impl SpaceCuts {
    /// Registers a text that a join can produce.
    pub fn observe(&mut self, text: &[u8]) {
        let mut previous: &[u8] = &[];
        let mut start = 0;
        while start < text.len() {
            let c = character(text, start);
            if c == SPACE_MARK && !previous.is_empty() && !self.before.contains(previous) {
                self.before.insert(previous.into());
            }
            start += c.len();
            previous = c;
        }
    }

    /// Calls `emit` with the parts of a text in order.
    pub fn split<'t>(&self, text: &'t [u8], mut emit: impl FnMut(&'t [u8])) {
        let (mut part, mut start) = (0, 0);
        let mut previous: &[u8] = &[];
        while start < text.len() {
            let c = character(text, start);
            if c == SPACE_MARK && start > part && !self.before.contains(previous) {
                emit(text.get(part..start).unwrap_or_default());
                part = start;
            }
            start += c.len();
            previous = c;
        }
        if part < text.len() {
            emit(text.get(part..).unwrap_or_default());
        }
    }
}
