//! Stages that split text into words, numbers, punctuation and white space: the families of GPT-2,
//! Llama 3 and GPT-4o.

use super::groups::is_han;
use super::runs::run_end;
use crate::chars::{Char, LETTER, MARK, NUMBER, SPACE, char_at};

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

/// `\s+(?!\S)|\s+`: white space, except a last character before a word.
pub fn white_space(text: &[u8], pos: usize) -> usize {
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

/// `\s*[\r\n]+`: the end, or `pos` if the white space has no line end.
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

/// Consumes one character if nothing else matched, so that every stage advances.
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

/// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|
/// ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
pub fn llama3(text: &[u8], pos: usize) -> usize {
    let end = contraction(text, pos, true);
    if end > pos {
        end
    } else {
        letters(text, pos, LETTER).unwrap_or_else(|| rest(text, pos, LETTER, 3, b"\r\n"))
    }
}

/// Like [`llama3`], with single numbers: `\p{N}`.
pub fn qwen2(text: &[u8], pos: usize) -> usize {
    let end = contraction(text, pos, true);
    if end > pos {
        end
    } else {
        letters(text, pos, LETTER).unwrap_or_else(|| rest(text, pos, LETTER, 1, b"\r\n"))
    }
}

/// Like [`qwen2`], with marks as letters: `[\p{L}\p{M}]`.
pub fn qwen35(text: &[u8], pos: usize) -> usize {
    let end = contraction(text, pos, true);
    let word = LETTER | MARK;
    if end > pos {
        end
    } else {
        letters(text, pos, word).unwrap_or_else(|| rest(text, pos, word, 1, b"\r\n"))
    }
}

/// `[^\r\n\p{L}\p{N}]?((?=\p{L})[^a-z])*((?=\p{L})[^A-Z])+|[^\r\n\p{L}\p{N}]?((?=\p{L})[^a-z])+((?=\p{L})[^A-Z])*|\p{N}|
/// ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
pub fn tekken(text: &[u8], pos: usize) -> usize {
    cased_letters(text, pos).unwrap_or_else(|| rest(text, pos, LETTER, 1, b"\r\n/"))
}

/// Like [`tekken`], with `(?i:'s|'t|'re|'ve|'m|'ll|'d)?` after the letters, and numbers of up to
/// three digits: `\p{N}{1,3}`.
pub fn gpt4o(text: &[u8], pos: usize) -> usize {
    match cased_letters(text, pos) {
        Some(end) => contraction(text, end, true),
        None => rest(text, pos, LETTER, 3, b"\r\n/"),
    }
}

/// Like [`qwen2`], without contractions: `'s` stays with the text before it.
pub fn ufakzeka(text: &[u8], pos: usize) -> usize {
    letters(text, pos, LETTER).unwrap_or_else(|| rest(text, pos, LETTER, 1, b"\r\n"))
}

/// Like [`qwen2`], without line ends after punctuation: ` ?[^\s\p{L}\p{N}\r
/// ]+`.
pub fn seed_coder(text: &[u8], pos: usize) -> usize {
    let end = contraction(text, pos, true);
    if end > pos {
        end
    } else {
        letters(text, pos, LETTER).unwrap_or_else(|| rest(text, pos, LETTER, 1, b""))
    }
}

/// [`llama3`] with white space in powers of two:
/// `\s{512}(?!\S)|…|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}`
pub fn jais2(text: &[u8], pos: usize) -> usize {
    let c = char_at(text, pos);
    let before_space = |pos| {
        after_space(text, pos).1.is_none_of(SPACE | LETTER | NUMBER)
            || char_at(text, pos + c.len).is(LETTER)
    };
    if !c.is(SPACE) || before_space(pos) {
        return llama3(text, pos);
    }
    // White space that continues an earlier piece contains no line end, because a line end would
    // have ended that piece.
    let within = (1..=4)
        .filter_map(|len| pos.checked_sub(len))
        .find(|at| text.get(*at).is_some_and(|b| b & 0xC0 != 0x80));
    let within = within.map(|at| char_at(text, at)).is_some_and(|c| c.is(SPACE) && !c.is_newline());
    let end = if within { pos } else { lines(text, pos) };
    if end > pos {
        return end;
    }
    // The ends of the first 513 characters of white space.
    let mut ends = Vec::with_capacity(16);
    let mut at = pos;
    while ends.len() <= 512 && char_at(text, at).is(SPACE) {
        at += char_at(text, at).len;
        ends.push(at);
    }
    let open = |len: &usize| *len < ends.len() || (*len == ends.len() && at == text.len());
    let len = [512, 256, 128, 64, 32, 16, 8, 4, 2, 1].into_iter().find(open).unwrap_or(1);
    ends.get(len - 1).copied().unwrap_or(pos + c.len)
}

/// `(?i:'s|…)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}|
/// ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+`: words with single spaces stay together.
pub fn exaone_moe(text: &[u8], pos: usize) -> usize {
    let end = contraction(text, pos, true);
    if end > pos {
        return end;
    }
    let c = char_at(text, pos);
    let start = if c.is(LETTER) { pos } else { pos + c.len };
    if !c.is_newline() && !c.is(NUMBER) && char_at(text, start).is(LETTER) {
        let mut end = start;
        loop {
            let (after, next) = after_space(text, end);
            if !next.is(LETTER) {
                return end;
            }
            end = run_end(text, after + next.len, |c| c.is(MARK));
        }
    }
    let (start, first) = after_space(text, pos);
    if first.is_none_of(SPACE | NUMBER | LETTER) {
        let end = run_end(text, start, |c| c.is_none_of(SPACE | NUMBER | LETTER));
        return end + usize::from(matches!(text.get(end), Some(b'\r' | b'\n' | b'/')));
    }
    rest(text, pos, LETTER, 1, b"")
}

/// `[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+(?i:'s|…)?|\p{N}{1,digits}|
/// ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
fn any_case(text: &[u8], pos: usize, digits: usize) -> usize {
    match letters(text, pos, LETTER | MARK) {
        Some(end) => contraction(text, end, true),
        None => rest(text, pos, LETTER, digits, b"\r\n/"),
    }
}

/// Like [`gpt4o`], with letters of any case and their marks in one run, and single numbers.
pub fn youtu(text: &[u8], pos: usize) -> usize {
    any_case(text, pos, 1)
}

/// Like [`youtu`], with numbers of up to three digits.
pub fn tiny_aya(text: &[u8], pos: usize) -> usize {
    any_case(text, pos, 3)
}

/// Like [`gpt4o`], with marks as letters.
pub fn granite_embed(text: &[u8], pos: usize) -> usize {
    match cased(text, pos, LETTER | MARK) {
        Some(end) => contraction(text, end, true),
        None => rest(text, pos, LETTER, 3, b"\r\n/"),
    }
}

/// `\p{Han}+|[^\r\n\p{L}\p{N}]?[\p{L}&&[^\p{Han}]]+(?i:'s|…)?|\p{N}{1,3}|
/// ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
pub fn kimi(text: &[u8], pos: usize) -> usize {
    let is_word = |c: Char| c.is(LETTER) && !is_han(c);
    let c = char_at(text, pos);
    if is_han(c) {
        return run_end(text, pos, is_han);
    }
    let start = if c.is(LETTER) { pos } else { pos + c.len };
    if !c.is_newline() && !c.is(NUMBER) && is_word(char_at(text, start)) {
        return contraction(text, run_end(text, start, is_word), true);
    }
    rest(text, pos, LETTER, 3, b"\r\n")
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

/// The two alternatives of [`tekken`] that match letters. A word ends before an ASCII capital that
/// follows a small letter. A letter outside ASCII counts as a capital and as a small letter.
fn cased_letters(text: &[u8], pos: usize) -> Option<usize> {
    cased(text, pos, LETTER)
}

/// Like [`cased_letters`], with other classes as letters.
fn cased(text: &[u8], pos: usize, word: u8) -> Option<usize> {
    let c = char_at(text, pos);
    if c.is_newline() || c.is(NUMBER) {
        return None;
    }
    // A mark may precede the word or start it. It precedes the word if the word continues with a
    // small letter or with a letter outside ASCII.
    let starts = if c.is(LETTER) { [pos, pos] } else { [pos + c.len, pos] };
    let word_at =
        |start: usize| cased_from(text, start, word).filter(|_| char_at(text, start).is(word));
    let first = word_at(starts[0]);
    match first {
        Some((end, false)) if c.is(word) && !c.is(LETTER) => {
            Some(word_at(starts[1]).map_or(end, |(end, _)| end))
        }
        Some((end, _)) => Some(end),
        None if c.is(word) => word_at(starts[1]).map(|(end, _)| end),
        None => None,
    }
}

/// The end of a cased word, and whether it has other letters than capitals.
fn cased_from(text: &[u8], start: usize, word: u8) -> Option<(usize, bool)> {
    let is_small = |c: Char| (97..=122).contains(&c.cp);
    let is_capital = |c: Char| (65..=90).contains(&c.cp);
    // Capitals, then small letters. Without small letters, the last letter outside ASCII ends the
    // word. Without such a letter, the word is the capitals.
    let (mut capitals, mut both) = (start, None);
    loop {
        let c = char_at(text, capitals);
        if !c.is(word) || is_small(c) {
            break;
        }
        capitals += c.len;
        if !is_capital(c) {
            both = Some(capitals);
        }
    }
    let end = run_end(text, capitals, |c| c.is(word) && !is_capital(c));
    let mixed = if end > capitals { Some(end) } else { both };
    Some(mixed.map_or((capitals, false), |end| (end, true)))
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
