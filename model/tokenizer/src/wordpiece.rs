//! BERT's WordPiece. It splits words at white space, punctuation and ideographs, then covers each
//! word greedily with the longest tokens.

use unicode_normalization::char::decompose_canonical;

use super::chars::{self, CONTROL, MARK, PUNCTUATION, REPLACEMENT, SPACE, SYMBOL, push_utf8};
use super::table::TokenTable;

/// How text is prepared, and the limits of the vocabulary.
#[derive(Debug, Clone, Copy)]
pub struct WordPiece {
    pub lowercase: bool,
    pub strip_accents: bool,
    /// Length in bytes of the longest token.
    pub max_token_len: usize,
    /// The token of a word that cannot be covered.
    pub unknown: u32,
}

/// Marks the start of a word in the vocabulary.
const WORD_START: &[u8] = "\u{2581}".as_bytes();

impl WordPiece {
    /// Appends the ids of a text.
    pub fn encode(&self, table: &TokenTable, text: &[u8], out: &mut Vec<u32>) {
        let text = chars::normalize(text);
        let mut word = WORD_START.to_vec();
        let mut pos = 0;
        loop {
            let c = chars::char_at(&text, pos);
            if c.len == 0 {
                return self.finish(table, &mut word, out);
            }
            pos += c.len;
            let cp = if self.strip_accents { base(c.cp) } else { c.cp };
            let class = chars::class(cp);
            if class & SPACE != 0 {
                self.finish(table, &mut word, out);
                continue;
            }
            let dropped = cp == 0 || cp == REPLACEMENT || class & CONTROL != 0;
            if dropped || (self.strip_accents && class & MARK != 0) {
                continue;
            }
            let letter = if self.lowercase { lower(cp) } else { cp };
            if class & PUNCTUATION != 0 || (cp < 0x7F && class & SYMBOL != 0) || is_ideograph(cp) {
                self.finish(table, &mut word, out);
                push_utf8(&mut word, letter);
                self.finish(table, &mut word, out);
            } else {
                push_utf8(&mut word, letter);
            }
        }
    }

    /// Covers the current word and starts a new one.
    fn finish(&self, table: &TokenTable, word: &mut Vec<u8>, out: &mut Vec<u32>) {
        if word.len() > WORD_START.len() {
            let before = out.len();
            let mut start = 0;
            while start < word.len() {
                let longest = word.len().min(start + self.max_token_len);
                let token = (start + 1..=longest)
                    .rev()
                    .find_map(|end| Some((table.get(word.get(start..end)?)?, end)));
                let Some((id, end)) = token else {
                    out.truncate(before);
                    break;
                };
                out.push(id);
                start = end;
            }
            if out.len() == before {
                out.push(self.unknown);
            }
        }
        word.truncate(WORD_START.len());
    }
}

/// The first code point of the canonical decomposition: the letter without its accents.
fn base(cp: u32) -> u32 {
    let mut first = None;
    if let Some(c) = char::from_u32(cp) {
        decompose_canonical(c, |part| {
            first.get_or_insert(part);
        });
    }
    first.map_or(cp, u32::from)
}

/// Converts a text from [`chars::normalize`] to lower case, character by character.
pub fn lowercase(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut pos = 0;
    while pos < text.len() {
        let c = chars::char_at(text, pos);
        push_utf8(&mut out, lower(c.cp));
        pos += c.len.max(1);
    }
    out
}

fn lower(cp: u32) -> u32 {
    char::from_u32(cp).and_then(|c| c.to_lowercase().next()).map_or(cp, u32::from)
}

/// The blocks that BERT's tokenizer treats as Chinese. The end U+2B920 is as in that tokenizer.
fn is_ideograph(cp: u32) -> bool {
    matches!(
        cp,
        0x4E00..=0x9FFF
            | 0x3400..=0x4DBF
            | 0x20000..=0x2A6DF
            | 0x2A700..=0x2B73F
            | 0x2B740..=0x2B81F
            | 0x2B920..=0x2CEAF
            | 0xF900..=0xFAFF
            | 0x2F800..=0x2FA1F
    )
}
