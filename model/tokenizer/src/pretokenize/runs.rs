//! Stages that split off runs of one kind of character.

use crate::chars::{Char, NUMBER, PUNCTUATION, SPACE, char_at};

/// The end of the run of characters that satisfy the predicate.
pub fn run_end(text: &[u8], mut pos: usize, is: impl Fn(Char) -> bool) -> usize {
    loop {
        let c = char_at(text, pos);
        if c.len == 0 || !is(c) {
            return pos;
        }
        pos += c.len;
    }
}

/// The end of the match at `pos`, or the start of the next match. `matches` returns the end of the
/// match at an offset, or that offset if there is no match. If there is no match, it may look only
/// a limited distance ahead.
pub fn match_or_gap(text: &[u8], pos: usize, matches: impl Fn(&[u8], usize) -> usize) -> usize {
    let end = matches(text, pos);
    if end > pos {
        return end;
    }
    let mut next = pos;
    loop {
        next += char_at(text, next).len.max(1);
        if next >= text.len() || matches(text, next) > next {
            return next;
        }
    }
}

fn runs_of(text: &[u8], pos: usize, is: impl Fn(Char) -> bool) -> usize {
    let wanted = is(char_at(text, pos));
    run_end(text, pos, |c| is(c) == wanted)
}

/// `[\p{P}$+<=>^~|]+`
pub fn punctuation(text: &[u8], pos: usize) -> usize {
    runs_of(text, pos, |c| c.is(PUNCTUATION) || (c.cp < 128 && b"$+<=>^~|".contains(&(c.cp as u8))))
}

/// ``[\p{P}$+<=>^~|`]+``
pub fn punctuation_and_backtick(text: &[u8], pos: usize) -> usize {
    runs_of(text, pos, |c| {
        c.is(PUNCTUATION) || (c.cp < 128 && b"$+<=>^~|`".contains(&(c.cp as u8)))
    })
}

/// `\p{N}+`
pub fn numbers(text: &[u8], pos: usize) -> usize {
    runs_of(text, pos, |c| c.is(NUMBER))
}

/// `\p{N}`
pub fn number(text: &[u8], pos: usize) -> usize {
    let c = char_at(text, pos);
    if c.is(NUMBER) { pos + c.len } else { run_end(text, pos, |c| !c.is(NUMBER)) }
}

/// `\p{N}{1,3}`
pub fn up_to_three_numbers(text: &[u8], pos: usize) -> usize {
    let mut end = pos;
    for _ in 0..3 {
        let c = char_at(text, end);
        if c.is(NUMBER) {
            end += c.len;
        }
    }
    if end > pos { end } else { run_end(text, pos, |c| !c.is(NUMBER)) }
}

/// `[0-9][0-9][0-9]`
pub fn three_digits(text: &[u8], pos: usize) -> usize {
    match_or_gap(text, pos, |text, pos| match text.get(pos..pos + 3) {
        Some(three) if three.iter().all(u8::is_ascii_digit) => pos + 3,
        _ => pos,
    })
}

/// `[\r\n]`
pub fn newline(text: &[u8], pos: usize) -> usize {
    if char_at(text, pos).is_newline() { pos + 1 } else { run_end(text, pos, |c| !c.is_newline()) }
}

/// `[^\n]+|[\n]+`
pub fn lines(text: &[u8], pos: usize) -> usize {
    runs_of(text, pos, |c| c.cp == 10)
}

/// `\s+$`
pub fn trailing_space(text: &[u8], pos: usize) -> usize {
    let mut end = pos;
    while end < text.len() {
        let space = run_end(text, end, |c| c.is(SPACE));
        if space > end && space == text.len() {
            return if end == pos { space } else { end };
        }
        end = run_end(text, space, |c| !c.is(SPACE));
    }
    end
}
