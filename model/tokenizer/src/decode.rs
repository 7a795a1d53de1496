//! Converts ids to text.

use super::bpe;
use super::error::TokenizerError;
use super::rwkv;
use super::space::unescape;
use super::special::attr;
use super::{Algorithm, NonExhaustive, Tokenizer};

/// Options of decoding for special tokens. By default both are off.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DecodeOptions {
    /// Removes a BOS at the start and an EOS at the end if the model adds them.
    pub remove_special: bool,
    /// Writes control and unknown tokens as text (`<|im_end|>`). By default they are dropped.
    pub unparse_special: bool,
    #[doc(hidden)]
    pub _more: NonExhaustive,
}

impl Tokenizer {
    /// The bytes of some ids, with special tokens written as text: `decode_with(ids,
    /// remove_special: false, unparse_special: true)`.
    ///
    /// The bytes may not be UTF-8. Some vocabularies (of BERT, GPT-2, Llama 3) remove spaces before
    /// `?!.,` and in contractions. [`Detokenizer`] does not.
    ///
    /// # Errors
    /// An id is outside the vocabulary.
    pub fn decode(&self, ids: &[u32]) -> Result<Vec<u8>, TokenizerError> {
        self.decode_with(ids, DecodeOptions { unparse_special: true, ..DecodeOptions::default() })
    }

    /// The bytes of some ids.
    ///
    /// # Errors
    /// An id is outside the vocabulary.
    pub fn decode_with(
        &self,
        ids: &[u32],
        options: DecodeOptions,
    ) -> Result<Vec<u8>, TokenizerError> {
        let mut ids = ids;
        // SentencePiece adds a space before the text. It is removed here, unless a removed BOS came
        // before it.
        let mut drop_space = self.add_space_prefix;
        if options.remove_special {
            if let ([first, rest @ ..], true) = (ids, self.add_bos)
                && Some(*first) == self.special.bos
            {
                drop_space = false;
                ids = rest;
            }
            if let ([rest @ .., last], true) = (ids, self.add_eos)
                && Some(*last) == self.special.eos
            {
                ids = rest;
            }
        }
        let mut out = Vec::new();
        for &id in ids {
            let start = out.len();
            self.push_piece(id, options.unparse_special, &mut out)?;
            if drop_space && out.get(start) == Some(&b' ') {
                out.remove(start);
            }
            drop_space = false;
        }
        Ok(if self.clean_spaces { clean_spaces(&out) } else { out })
    }

    /// The tokens whose bytes contain one of these texts, in ascending order. Reads the whole
    /// vocabulary. An empty text is in every token.
    #[must_use]
    pub fn ids_with_any(&self, texts: &[String]) -> Vec<u32> {
        let mut bytes = vec![];
        let has = |bytes: &[u8], text: &[u8]| {
            text.is_empty() || bytes.windows(text.len()).any(|part| part == text)
        };
        let with_any = |id: &u32| {
            bytes.clear();
            // Every id of the vocabulary has a piece.
            let _ = self.push_piece(*id, false, &mut bytes);
            texts.iter().any(|text| has(&bytes, text.as_bytes()))
        };
        (0..u32::try_from(self.n_vocab()).unwrap_or(u32::MAX)).filter(with_any).collect()
    }

    /// Appends the bytes of one token. Control and unknown tokens have no bytes unless `special` is
    /// set.
    ///
    /// # Errors
    /// The id is outside the vocabulary.
    pub fn push_piece(
        &self,
        id: u32,
        special: bool,
        out: &mut Vec<u8>,
    ) -> Result<(), TokenizerError> {
        let attrs = self.attrs(id)?;
        let text = self.table.text(id).unwrap_or_default();
        if attrs & (attr::CONTROL | attr::UNKNOWN) != 0 {
            if special {
                out.extend_from_slice(text);
            }
        } else if attrs & attr::USER_DEFINED != 0 {
            out.extend_from_slice(text);
        } else if attrs & attr::NORMAL != 0 {
            match &self.algorithm {
                Algorithm::Bpe(_) if !self.raw_utf8 => bpe::decode_letters(text, out),
                Algorithm::Rwkv(_) => out.extend(rwkv::unescape(text)),
                Algorithm::Plamo2(_) => out.extend_from_slice(text),
                _ => unescape(text, out),
            }
        } else if attrs & attr::BYTE != 0 {
            let hex = text.get(3..5).and_then(|hex| std::str::from_utf8(hex).ok());
            match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
                Some(byte) => out.push(byte),
                None => out.extend_from_slice(text),
            }
        }
        Ok(())
    }
}

/// Removes the space before `?`, `!`, `.` and `,`; then the spaces around a single apostrophe; then
/// the space before `'s`, `'m`, `'re` and `'ve`.
fn clean_spaces(text: &[u8]) -> Vec<u8> {
    let at = |text: &[u8], i: usize| text.get(i).copied().unwrap_or(0);
    let mut first = Vec::with_capacity(text.len());
    for (i, &b) in text.iter().enumerate() {
        if i > 0 && at(text, i - 1) == b' ' && matches!(b, b'?' | b'!' | b'.' | b',') {
            first.pop();
        }
        first.push(b);
    }
    let mut second = Vec::with_capacity(first.len());
    // A space that was removed with an apostrophe does not count as the character before the next
    // apostrophe.
    let (mut i, mut previous) = (0, 0);
    while let Some(&b) = first.get(i) {
        let lone = b == b'\'' && previous == b' ' && at(&first, i + 1) == b' ';
        if lone {
            second.pop();
            i += 1;
        }
        second.push(b);
        previous = if lone { 0 } else { b };
        i += 1;
    }
    let mut third = Vec::with_capacity(second.len());
    for (i, &b) in second.iter().enumerate() {
        if i > 0 && at(&second, i - 1) == b' ' && b == b'\'' {
            let after = (at(&second, i + 1), at(&second, i + 2));
            if matches!(after, (b's' | b'm', _) | (b'r' | b'v', b'e')) {
                third.pop();
            }
        }
        third.push(b);
    }
    third
}

/// Converts ids to text one by one while they are generated. It never returns an incomplete
/// character.
///
/// Bytes that cannot become a character are returned as U+FFFD.
#[derive(Debug)]
pub struct Detokenizer<'t> {
    tokenizer: &'t Tokenizer,
    special: bool,
    /// Control tokens that are written even if other control tokens are dropped.
    shown: Vec<u32>,
    /// An incomplete character: at most 3 bytes between calls.
    pending: Vec<u8>,
}

impl<'t> Detokenizer<'t> {
    /// With `special`, control tokens are written as text; otherwise they are dropped.
    pub fn new(tokenizer: &'t Tokenizer, special: bool) -> Self {
        Detokenizer { tokenizer, special, shown: Vec::new(), pending: Vec::new() }
    }

    /// Writes these control tokens as text even if others are dropped.
    #[must_use]
    pub fn showing(mut self, ids: Vec<u32>) -> Self {
        self.shown = ids;
        self
    }

    /// Adds an id. Returns the text that is now complete, or `None`.
    ///
    /// # Errors
    /// The id is outside the vocabulary.
    pub fn push(&mut self, id: u32) -> Result<Option<String>, TokenizerError> {
        let special = self.special || self.shown.contains(&id);
        self.tokenizer.push_piece(id, special, &mut self.pending)?;
        let mut text = String::new();
        let mut rest = self.pending.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    rest = &[];
                    break;
                }
                Err(error) => {
                    let (valid, tail) =
                        rest.split_at_checked(error.valid_up_to()).unwrap_or_default();
                    text.push_str(std::str::from_utf8(valid).unwrap_or_default());
                    rest = tail;
                    let Some(bad) = error.error_len() else { break };
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = rest.get(bad..).unwrap_or_default();
                }
            }
        }
        self.pending = rest.to_vec();
        Ok((!text.is_empty()).then_some(text))
    }

    /// Ends the text: returns the replacement character if a character is incomplete.
    pub fn finish(&mut self) -> Option<String> {
        let pending = std::mem::take(&mut self.pending);
        (!pending.is_empty()).then(|| String::from_utf8_lossy(&pending).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spaces_before_punctuation_and_in_contractions_are_dropped() {
        let clean = |text: &str| String::from_utf8(clean_spaces(text.as_bytes())).unwrap();
        assert_eq!(clean("a ? b ! c . d , e ;"), "a? b! c. d, e ;");
        assert_eq!(clean("x  ."), "x .");
        assert_eq!(clean(" ' "), "'");
        assert_eq!(clean("a ' ' b"), "a'' b");
        assert_eq!(
            clean("it 's I 'm we 've you 're he 'll can 't I 'd"),
            "it's I'm we've you're he 'll can 't I 'd"
        );
        assert_eq!(clean(" 's"), "'s");
        assert_eq!(clean(""), "");
    }
}
