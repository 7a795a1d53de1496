//! The stages of DeepSeek's pre-tokenizers.

use super::runs::{match_or_gap, run_end};
use crate::chars::{Char, LETTER, MARK, PUNCTUATION, SPACE, SYMBOL, char_at};

/// `[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳ …]`: cased letters as the model lists them, as ranges of code
/// points.
const CASED: &[(u32, u32)] = &include!("deepseek_cased.in");

/// `!-/:-~！-／：-～‘-‟　-。`, without U+3000, which counts as white space.
const MARKS: &[(u32, u32)] = &[
    (0x21, 0x2F),
    (0x3A, 0x7E),
    (0x2018, 0x201F),
    (0x3001, 0x3002),
    (0xFF01, 0xFF0F),
    (0xFF1A, 0xFF5E),
];

/// `一-龥ࠀ-一가-퟿`
const CJK: &[(u32, u32)] = &[(0x0800, 0x9FA5), (0xAC00, 0xD7FF)];

fn within(ranges: &[(u32, u32)], c: Char) -> bool {
    let after = ranges.partition_point(|&(first, _)| first <= c.cp);
    after.checked_sub(1).and_then(|i| ranges.get(i)).is_some_and(|&(_, last)| c.cp <= last)
}

/// `\s?[is]+`, and the text between matches. White space outside ASCII never counts as `is`.
fn space_then(text: &[u8], pos: usize, is: impl Fn(Char) -> bool) -> usize {
    let is = |c: Char| is(c) && !c.is(SPACE);
    match_or_gap(text, pos, |text, pos| {
        let c = char_at(text, pos);
        let start = if c.is(SPACE) { pos + c.len } else { pos };
        let end = run_end(text, start, is);
        if end > start { end } else { pos }
    })
}

/// `\s?[A-Za-zµÀ-Ö…]+`
pub fn letters(text: &[u8], pos: usize) -> usize {
    space_then(text, pos, |c| within(CASED, c))
}

/// `\s?[!-/:-~！-／：-～‘-‟　-。]+`
pub fn punctuation(text: &[u8], pos: usize) -> usize {
    space_then(text, pos, |c| within(MARKS, c))
}

/// `\s?\p{L}+`
pub fn space_letters(text: &[u8], pos: usize) -> usize {
    space_then(text, pos, |c| c.is(LETTER))
}

/// `\s?\p{P}+`
pub fn space_punctuation(text: &[u8], pos: usize) -> usize {
    space_then(text, pos, |c| c.is(PUNCTUATION))
}

/// `[一-龥ࠀ-一가-퟿]+`
pub fn cjk(text: &[u8], pos: usize) -> usize {
    let is = |c: Char| within(CJK, c) && !c.is(SPACE);
    let wanted = is(char_at(text, pos));
    run_end(text, pos, |c| is(c) == wanted)
}

/// `[一-龥぀-ゟ゠-ヿ]+`
pub fn han_kana(text: &[u8], pos: usize) -> usize {
    let is = |c: Char| matches!(c.cp, 0x4E00..=0x9FA5 | 0x3040..=0x30FF);
    let wanted = is(char_at(text, pos));
    run_end(text, pos, |c| is(c) == wanted)
}

/// ``[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|
/// ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+| \s+(?!\S)|\s+``
pub fn v3(text: &[u8], pos: usize) -> usize {
    words(text, pos, true)
}

/// Like [`v3`], with single line ends: ` ?[\p{P}\p{S}]+|[\r
/// ]|\s+(?!\S)|\s+`.
pub fn spark(text: &[u8], pos: usize) -> usize {
    words(text, pos, false)
}

fn words(text: &[u8], pos: usize, lines: bool) -> usize {
    // White space always matches, so a gap ends at it, and the look-ahead over a run of white space
    // happens once.
    match_or_gap(text, pos, |text, pos| {
        let c = char_at(text, pos);
        let next = pos + c.len;
        let word = |c: Char| c.is(LETTER | MARK);
        if c.cp < 128 && c.is(PUNCTUATION | SYMBOL) {
            let end = run_end(text, next, |c| c.cp < 128 && c.is(LETTER));
            if end > next {
                return end;
            }
        }
        if word(c) {
            return run_end(text, pos, word);
        }
        if !c.is_newline() && c.is_none_of(PUNCTUATION | SYMBOL) {
            let end = run_end(text, next, word);
            if end > next {
                return end;
            }
        }
        let start = if c.cp == 32 { next } else { pos };
        let end = run_end(text, start, |c| c.is(PUNCTUATION | SYMBOL));
        if end > start {
            return if lines { run_end(text, end, Char::is_newline) } else { end };
        }
        if !lines && c.is_newline() {
            return next;
        }
        if !lines && c.is(SPACE) {
            return super::words::white_space(text, pos).max(next);
        }
        if c.is(SPACE) { super::words::lines_or_space(text, pos) } else { pos }
    })
}
