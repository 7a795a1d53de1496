//! Stages that cut text into words, numbers, punctuation and white space: the families of GPT-2, Llama 3 and GPT-4o.

use super::runs::run_end;
use crate::tokenizer::unicode::{Char, LETTER, MARK, NUMBER, SPACE, char_at};

/// The end of `'s|'t|'re|'ve|'m|'ll|'d` at an offset, or that offset.
fn contraction(text: &[u8], pos: usize, any_case: bool) -> usize {
    let at = |i: usize| {
        let b = text.get(pos + i).copied().unwrap_or(0);
        if any_case { b.to_ascii_lowercase() } else { b }
    };
    if at(0) != b'\'' {
        return pos;
    }
    match (at(1), at(2)) {
        (b's' | b't' | b'm' | b'd', _) => pos + 2,
        (b'r' | b'v', b'e') | (b'l', b'l') => pos + 3,
        _ => pos,
    }
}

/// `\s+(?!\S)|\s+`: white space, of which a last one before a word is left to the word.
fn white_space(text: &[u8], pos: usize) -> usize {
    let (mut end, mut last) = (pos, pos);
    loop {
        let c = char_at(text, end);
        if !c.is(SPACE) {
            let before_word = c.len > 0 && last > pos;
            return if before_word { last } else { end };
        }
        last = end;
        end += c.len;
    }
}

/// `\s*[\r\n]+`: the end, or `pos` where white space begins that holds no line end.
fn lines(text: &[u8], pos: usize) -> usize {
    let (mut at, mut end) = (pos, pos);
    loop {
        let c = char_at(text, at);
        if !c.is(SPACE) {
            return end;
        }
        at += c.len;
        if c.is_newline() {
            end = at;
        }
    }
}

/// One character if nothing else matched, so that every stage moves on.
fn one(text: &[u8], pos: usize) -> usize {
    pos + char_at(text, pos).len.max(1)
}

/// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
pub fn gpt2(text: &[u8], pos: usize) -> usize {
    let end = contraction(text, pos, false);
    if end > pos {
        return end;
    }
    let (start, c) = after_space(text, pos);
    if c.is(LETTER) {
        return run_end(text, start, |c| c.is(LETTER));
    }
    if c.is(NUMBER) {
        return run_end(text, start, |c| c.is(NUMBER));
    }
    if c.is_none_of(SPACE | LETTER | NUMBER) {
        return run_end(text, start, |c| c.is_none_of(SPACE | LETTER | NUMBER));
    }
    white_space(text, pos).max(one(text, pos))
}

/// The character at an offset, or the one after it if that is a space.
fn after_space(text: &[u8], pos: usize) -> (usize, Char) {
    let c = char_at(text, pos);
    if c.cp == 32 { (pos + 1, char_at(text, pos + 1)) } else { (pos, c) }
}

/// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
pub fn llama3(text: &[u8], pos: usize) -> usize {
    let end = contraction(text, pos, true);
    if end > pos { end } else { letters(text, pos, LETTER).unwrap_or_else(|| rest(text, pos, LETTER, 3, b"\r\n")) }
}

/// As [`llama3`], with numbers one by one: `\p{N}`.
pub fn qwen2(text: &[u8], pos: usize) -> usize {
    let end = contraction(text, pos, true);
    if end > pos { end } else { letters(text, pos, LETTER).unwrap_or_else(|| rest(text, pos, LETTER, 1, b"\r\n")) }
}

/// As [`qwen2`], with marks taken for letters: `[\p{L}\p{M}]`.
pub fn qwen35(text: &[u8], pos: usize) -> usize {
    let end = contraction(text, pos, true);
    let word = LETTER | MARK;
    if end > pos { end } else { letters(text, pos, word).unwrap_or_else(|| rest(text, pos, word, 1, b"\r\n")) }
}

/// `[^\r\n\p{L}\p{N}]?((?=\p{L})[^a-z])*((?=\p{L})[^A-Z])+|[^\r\n\p{L}\p{N}]?((?=\p{L})[^a-z])+((?=\p{L})[^A-Z])*|\p{N}|
/// ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
pub fn tekken(text: &[u8], pos: usize) -> usize {
    cased_letters(text, pos).unwrap_or_else(|| rest(text, pos, LETTER, 1, b"\r\n/"))
}

/// As [`tekken`], with `(?i:'s|'t|'re|'ve|'m|'ll|'d)?` after the letters, and numbers in threes: `\p{N}{1,3}`.
pub fn gpt4o(text: &[u8], pos: usize) -> usize {
    match cased_letters(text, pos) {
        Some(end) => contraction(text, end, true),
        None => rest(text, pos, LETTER, 3, b"\r\n/"),
    }
}

/// `[^\r\n\p{L}\p{N}]?[word]+`
fn letters(text: &[u8], pos: usize, word: u8) -> Option<usize> {
    let c = char_at(text, pos);
    if c.is_newline() || c.is(NUMBER) {
        return None;
    }
    let next = pos + c.len;
    (c.is(word) || char_at(text, next).is(word)).then(|| run_end(text, next, |c| c.is(word)))
}

/// The two alternatives of [`tekken`] that match letters: a word ends before an ASCII capital that follows a small
/// letter. Letters beyond ASCII count as both.
fn cased_letters(text: &[u8], pos: usize) -> Option<usize> {
    let c = char_at(text, pos);
    if c.is_newline() || c.is(NUMBER) {
        return None;
    }
    let start = if c.is(LETTER) { pos } else { pos + c.len };
    if !char_at(text, start).is(LETTER) {
        return None;
    }
    let is_small = |c: Char| (97..=122).contains(&c.cp);
    let is_capital = |c: Char| (65..=90).contains(&c.cp);
    // Capitals as far as they go; then small letters. With no small letter after the capitals, the last letter that
    // counts as both ends the word; without one the capitals alone are it.
    let (mut capitals, mut both) = (start, None);
    loop {
        let c = char_at(text, capitals);
        if !c.is(LETTER) || is_small(c) {
            break;
        }
        capitals += c.len;
        if !is_capital(c) {
            both = Some(capitals);
        }
    }
    let end = run_end(text, capitals, |c| c.is(LETTER) && !is_capital(c));
    Some(if end > capitals { end } else { both.unwrap_or(capitals) })
}

/// ` \p{N}{1,digits}| ?[^\s\p{N}word]+[tail]*|\s*[\r\n]+|\s+(?!\S)|\s+`
fn rest(text: &[u8], pos: usize, word: u8, digits: usize, tail: &[u8]) -> usize {
    let c = char_at(text, pos);
    if c.is(NUMBER) {
        let mut end = pos;
        for _ in 0..digits {
            let c = char_at(text, end);
            if c.is(NUMBER) {
                end += c.len;
            }
        }
        return end;
    }
    let (start, first) = after_space(text, pos);
    if first.is_none_of(SPACE | NUMBER | word) {
        let end = run_end(text, start, |c| c.is_none_of(SPACE | NUMBER | word));
        return run_end(text, end, |c| c.cp < 128 && tail.contains(&(c.cp as u8)));
    }
    lines_or_space(text, pos)
}

/// `\s*[\r\n]+|\s+(?!\S)|\s+`
pub fn lines_or_space(text: &[u8], pos: usize) -> usize {
    let end = lines(text, pos);
    if end > pos { end } else { white_space(text, pos).max(one(text, pos)) }
}
