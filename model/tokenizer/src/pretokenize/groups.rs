//! Stages of newer models: groups of three digits from the right, and stages of BLOOM, Chameleon,
//! YouTu and Kimi.

use super::runs::{match_or_gap, run_end};
use crate::chars::{Char, NUMBER, PUNCTUATION, SPACE, char_at};

fn within(ranges: &[(u32, u32)], c: Char) -> bool {
    c.len > 0 && ranges.iter().any(|&(first, last)| (first..=last).contains(&c.cp))
}

/// Runs of characters of one of several kinds, and the text between them.
fn kinds(text: &[u8], pos: usize, kind: impl Fn(Char) -> usize) -> usize {
    let wanted = kind(char_at(text, pos));
    run_end(text, pos, |c| kind(c) == wanted)
}

/// Text without numbers, and the numbers after it: `\P{N}*\p{N}*`. It runs before [`threes`], which
/// needs one such piece at a time.
pub fn up_to_numbers(text: &[u8], pos: usize) -> usize {
    run_end(text, run_end(text, pos, |c| !c.is(NUMBER)), |c| c.is(NUMBER))
}

/// Groups of three numbers from the right. The text before them stays with the first group.
/// (`\d{1,3}(?=(?:\d{3})*\b)`, as llama.cpp implements it.)
pub fn threes(text: &[u8], pos: usize) -> usize {
    let start = if pos == 0 { run_end(text, 0, |c| !c.is(NUMBER)) } else { pos };
    // After the first group, the rest is a multiple of three.
    let mut take = 3;
    if pos == 0 {
        let (mut at, mut count) = (start, 0);
        while char_at(text, at).is(NUMBER) {
            at += char_at(text, at).len;
            count += 1;
        }
        take = if count % 3 == 0 { 3 } else { count % 3 };
    }
    (0..take).fold(start, |at, _| at + char_at(text, at).len)
}

/// `(?=(\d{3})+(?!\d))`: splits before each third digit of a run, counted from its end.
pub fn before_threes(text: &[u8], pos: usize) -> usize {
    let is_digit = |at: usize| text.get(at).is_some_and(u8::is_ascii_digit);
    let mut at = pos;
    // Inside a run, only a split precedes a digit, so a multiple of three follows.
    if pos > 0 && is_digit(pos) {
        at = pos + 3;
        if is_digit(at) {
            return at;
        }
    }
    while at < text.len() {
        if !is_digit(at) {
            at += 1;
            continue;
        }
        let digits =
            text.get(at..).unwrap_or_default().iter().take_while(|b| b.is_ascii_digit()).count();
        let cut = match digits % 3 {
            0 if at == pos => 3,
            rest => rest,
        };
        if cut < digits {
            return at + cut;
        }
        at += digits;
    }
    text.len()
}

/// ` ?[^(\s|.,!?…。，、।۔،)]+`
pub fn bloom(text: &[u8], pos: usize) -> usize {
    let is = |c: Char| {
        c.len > 0
            && !c.is(SPACE)
            && !"(|.,!?…。，、।۔،)".chars().any(|other| u32::from(other) == c.cp)
    };
    match_or_gap(text, pos, |text, pos| {
        let start = if char_at(text, pos).cp == 32 { pos + 1 } else { pos };
        let end = run_end(text, start, is);
        if end > start { end } else { pos }
    })
}

/// `[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+`
pub fn youtu(text: &[u8], pos: usize) -> usize {
    let kind = |c: Char| match c.cp {
        _ if c.len == 0 || c.is(SPACE) => 0,
        0xAC00..=0xD7A3 | 0x3131..=0x318E => 1,
        0xFF01
        | 0x2026
        | 0x201C
        | 0x201D
        | 0x2018
        | 0x2019
        | 0x2014
        | 0xFF1A
        | 0xFF1B
        | 0xFF0C
        | 0x3001..=0x303F => 2,
        0xFE30..=0xFE4F => 2,
        0x3105..=0x312F => 3,
        0x4E00..=0x9FA5 | 0x3040..=0x30FF => 4,
        _ => 0,
    };
    kinds(text, pos, kind)
}

/// `[一-鿿㐀-䶿豈-﫿぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]+`
pub fn asian(text: &[u8], pos: usize) -> usize {
    const ASIAN: &[(u32, u32)] = &[
        (0x4E00, 0x9FFF),
        (0x3400, 0x4DBF),
        (0x8C48, 0xFAFF),
        (0x3040, 0x30FF),
        (0xFF65, 0xFF9F),
        (0x2F00, 0x2FDF),
        (0x0E40, 0x0EFF),
        (0x1780, 0x17FF),
        (0x1000, 0x109F),
        (0xAA60, 0xAA7F),
        (0xA9E0, 0xA9FF),
        (0xAC00, 0xD7AF),
        (0x1100, 0x11FF),
    ];
    kinds(text, pos, |c| usize::from(within(ASIAN, c)))
}

/// `<sentinel:[0-9]+>`
pub fn sentinel(text: &[u8], pos: usize) -> usize {
    match_or_gap(text, pos, |text, pos| {
        let Some(rest) = text.get(pos..).and_then(|rest| rest.strip_prefix(b"<sentinel:")) else {
            return pos;
        };
        let digits = rest.iter().take_while(|b| b.is_ascii_digit()).count();
        if digits > 0 && rest.get(digits) == Some(&b'>') { pos + 10 + digits + 1 } else { pos }
    })
}

/// `(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z`
pub fn image(text: &[u8], pos: usize) -> usize {
    match_or_gap(text, pos, |text, pos| {
        let Some(rest) = text.get(pos..).and_then(|rest| rest.strip_prefix(b"IMGIMG")) else {
            return pos;
        };
        let letters = rest.iter().take(4).take_while(|b| matches!(b, b'A'..=b'I')).count();
        if letters > 0 && rest.get(letters) == Some(&b'Z') { pos + 6 + letters + 1 } else { pos }
    })
}

/// `([\t\n]|    |  )`
pub fn indents(text: &[u8], pos: usize) -> usize {
    match_or_gap(text, pos, |text, pos| {
        let rest = text.get(pos..).unwrap_or_default();
        match rest {
            [b'\t' | b'\n', ..] => pos + 1,
            [b' ', b' ', b' ', b' ', ..] => pos + 4,
            [b' ', b' ', ..] => pos + 2,
            _ => pos,
        }
    })
}

/// ``[\p{P}!-/:-@\[-`{-~]``
pub fn each_punctuation(text: &[u8], pos: usize) -> usize {
    let is = |c: Char| c.is(PUNCTUATION) || (c.cp < 128 && (c.cp as u8).is_ascii_punctuation());
    let c = char_at(text, pos);
    if is(c) { pos + c.len } else { run_end(text, pos, |c| !is(c)) }
}

/// `\S+`
pub fn words(text: &[u8], pos: usize) -> usize {
    kinds(text, pos, |c| usize::from(c.is(SPACE)))
}

/// Whether a character is Han, for [`super::words::kimi`].
pub fn is_han(c: Char) -> bool {
    const HAN: &[(u32, u32)] = &[
        (0x4E00, 0x9FFF),
        (0x3400, 0x4DBF),
        (0x20000, 0x2A6DF),
        (0x2A700, 0x2B73F),
        (0x2B740, 0x2B81F),
        (0x2B820, 0x2CEAF),
        (0x2CEB0, 0x2EBEF),
        (0xF900, 0xFAFF),
        (0x2F800, 0x2FA1F),
    ];
    within(HAN, c)
}
