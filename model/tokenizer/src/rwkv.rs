//! RWKV's vocabulary: the longest token at each position. Tokens are bytes, written with escapes.

use super::error::TokenizerError;
use super::limit::Limit;
use super::table::TokenTable;
use super::trie::Trie;

#[derive(Debug)]
pub struct Rwkv {
    tokens: Trie,
    /// The token for a byte with which no token starts, if the file names one.
    unknown: Option<u32>,
}

impl Rwkv {
    pub fn new(table: &TokenTable, unknown: Option<u32>) -> Result<Rwkv, TokenizerError> {
        let texts: Vec<Vec<u8>> = (0..table.len() as u32)
            .map(|id| unescape(table.text(id).unwrap_or_default()))
            .collect();
        let tokens =
            Trie::new(texts.iter().zip(0..).map(|(text, id)| (text.as_slice(), id)).collect());
        let too_many =
            || TokenizerError::vocabulary("tokenizer.ggml.tokens", "too many bytes for a trie");
        Ok(Rwkv { tokens: tokens.ok_or_else(too_many)?, unknown })
    }

    /// Bytes that may produce no token.
    pub fn droppable_bytes(&self) -> [bool; 256] {
        let mut out = [false; 256];
        for (b, out) in (0..=255u8).zip(&mut out) {
            let mut found = self.unknown.is_some();
            self.tokens.prefixes(&[b], |_, _| found = true);
            *out = !found;
        }
        out
    }

    /// Appends the ids of a text, up to the limit.
    pub fn encode(&self, text: &[u8], limit: &Limit, out: &mut Vec<u32>) {
        let mut at = 0;
        while at < text.len() && !limit.is_over(out.len()) {
            let mut longest = (1, self.unknown);
            self.tokens
                .prefixes(text.get(at..).unwrap_or_default(), |len, id| longest = (len, Some(id)));
            out.extend(longest.1);
            at += longest.0;
        }
    }
}

/// The bytes of a token. `\t`, `
/// `, `\r` and `\xNN` are escapes; any other character after a backslash is that character.
pub fn unescape(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.iter().copied();
    while let Some(b) = bytes.next() {
        if b != b'\\' {
            out.push(b);
            continue;
        }
        match bytes.next() {
            Some(b't') => out.push(b'\t'),
            Some(b'n') => out.push(b'\n'),
            Some(b'r') => out.push(b'\r'),
            Some(b'x') => {
                let digit = |b: Option<u8>| char::from(b?).to_digit(16);
                if let (Some(high), Some(low)) = (digit(bytes.next()), digit(bytes.next())) {
                    out.push((high << 4 | low) as u8);
                }
            }
            Some(other) => out.push(other),
            None => {}
        }
    }
    out
}
