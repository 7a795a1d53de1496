//! Tokenizes text from users and tools inside a rendered prompt without control tokens.
//!
//! A chat template combines messages and the markup of the model in one text. If a message
//! contained the text of a control token (`<|im_end|>`), it would become that token. Then a user,
//! or the result of a tool, could start a system turn. [`Tokenizer::literal`] encloses such texts
//! in two noncharacters before the template runs. [`Tokenizer::encode_literal_chat_within`] does
//! not recognise control tokens between the noncharacters, and removes the noncharacters.

use std::borrow::Cow;
use std::ops::Range;

use super::partition::{Fragment, Partition};
use super::special::attr;
use super::table::TokenTable;
use super::{CHAT, Limit, Stopped, Tokenizer};

const OPEN: char = '\u{FDD0}';
const CLOSE: char = '\u{FDD1}';

impl Tokenizer {
    /// Encloses the text of each control token in noncharacters. The end of the text is also
    /// enclosed if the next text could complete it to a control token. The two noncharacters U+FDD0
    /// and U+FDD1 in the text become U+FFFD.
    pub fn literal<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let mut text = Cow::Borrowed(text);
        if text.contains([OPEN, CLOSE]) {
            text = Cow::Owned(text.replace([OPEN, CLOSE], "\u{FFFD}"));
        }
        let enclosed = enclosed(&self.partition, &self.table, &self.attrs, &text);
        if enclosed.is_empty() {
            return text;
        }
        let mut out = String::with_capacity(text.len() + 6 * enclosed.len());
        let mut at = 0;
        for Range { start, end } in enclosed {
            out += &text[at..start];
            out.push(OPEN);
            out += &text[start..end];
            out.push(CLOSE);
            at = end;
        }
        out += &text[at..];
        Cow::Owned(out)
    }

    /// A rendered prompt without the marks that [`Self::literal`] put into its messages.
    pub fn unmarked(prompt: &str) -> Cow<'_, str> {
        unmarked(prompt).0
    }

    /// Like [`Self::encode_chat_within`], for a prompt rendered from messages that were prepared by
    /// [`Self::literal`].
    ///
    /// # Errors
    /// See [`Self::encode_within`].
    pub fn encode_literal_chat_within(
        &self,
        prompt: &str,
        limit: &Limit,
    ) -> Result<Vec<u32>, Stopped> {
        self.encode_literal_chat_rest_within(prompt, limit).map(|ids| self.with_bos(ids))
    }

    /// Like [`Self::encode_literal_chat_within`], for a later part of the prompt: without BOS.
    ///
    /// # Errors
    /// See [`Self::encode_within`].
    pub fn encode_literal_chat_rest_within(
        &self,
        prompt: &str,
        limit: &Limit,
    ) -> Result<Vec<u32>, Stopped> {
        let (text, literal) = unmarked(prompt);
        self.encode_parts_within(text.as_bytes(), &literal, CHAT, limit)
    }
}

/// Byte ranges of control and unknown tokens in a text, and of an incomplete token at its end. They
/// are in ascending order, do not overlap, and begin and end between characters.
fn enclosed(
    partition: &Partition,
    table: &TokenTable,
    attrs: &[u8],
    text: &str,
) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = vec![];
    let mut at = 0;
    // `split` returns fragments in the order of the text. A token's fragment does not include the
    // white space that belongs to it, so the offset is searched.
    for fragment in partition.split(table, text.as_bytes(), &[], true) {
        match fragment {
            Fragment::Text { end, .. } => at = end,
            Fragment::Token(id) => {
                let Ok(spelling) = std::str::from_utf8(table.text(id).unwrap_or_default()) else {
                    continue;
                };
                let Some(found) = text.get(at..).and_then(|rest| rest.find(spelling)) else {
                    continue;
                };
                let (start, end) = (at + found, at + found + spelling.len());
                let control = attrs
                    .get(id as usize)
                    .is_some_and(|attrs| attrs & (attr::CONTROL | attr::UNKNOWN) != 0);
                if control {
                    ranges.push(start..end);
                }
                at = end;
            }
        }
    }
    let begun = partition.begun_at_end(text.as_bytes());
    let end = ranges.last().map_or(0, |range| range.end);
    if let Some(start) = begun.filter(|&start| text.is_char_boundary(start)) {
        match ranges.last_mut().filter(|_| start < end) {
            Some(last) => last.end = text.len(),
            None => ranges.push(start..text.len()),
        }
    }
    ranges
}

/// The text without marks, and the byte ranges that the marks enclosed. If a template lost or moved
/// a mark, the range extends to the next mark or to the end.
fn unmarked(prompt: &str) -> (Cow<'_, str>, Vec<Range<usize>>) {
    if !prompt.contains([OPEN, CLOSE]) {
        return (Cow::Borrowed(prompt), vec![]);
    }
    let (mut text, mut ranges) = (String::with_capacity(prompt.len()), vec![]);
    let mut open = None;
    for c in prompt.chars() {
        match c {
            OPEN => {
                open.get_or_insert(text.len());
            }
            CLOSE => ranges.extend(open.take().map(|start| start..text.len())),
            c => text.push(c),
        }
    }
    ranges.extend(open.map(|start| start..text.len()));
    (Cow::Owned(text), ranges)
}
