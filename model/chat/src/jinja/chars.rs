//! Character classes and letter case as in Python's `str`.

use kjit_tokenizer::unicode::{Category, category};

fn kind(c: char) -> Category {
    category(c.into())
}

pub fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

pub fn is_letter(c: char) -> bool {
    kind(c).is_letter()
}

pub fn is_decimal(c: char) -> bool {
    kind(c) == Category::DecimalNumber
}

/// Digits that are not decimals: superscripts, subscripts, circled digits, and digits of scripts
/// without positional notation.
const OTHER_DIGITS: [(u32, u32); 20] = [
    (0xB2, 0xB3),
    (0xB9, 0xB9),
    (0x1369, 0x1371),
    (0x19DA, 0x19DA),
    (0x2070, 0x2070),
    (0x2074, 0x2079),
    (0x2080, 0x2089),
    (0x2460, 0x2468),
    (0x2474, 0x247C),
    (0x2488, 0x2490),
    (0x24EA, 0x24EA),
    (0x24F5, 0x24FD),
    (0x24FF, 0x24FF),
    (0x2776, 0x277E),
    (0x2780, 0x2788),
    (0x278A, 0x2792),
    (0x10A40, 0x10A43),
    (0x10E60, 0x10E68),
    (0x11052, 0x1105A),
    (0x1F100, 0x1F10A),
];

pub fn is_digit(c: char) -> bool {
    is_decimal(c) || OTHER_DIGITS.iter().any(|(from, to)| (*from..=*to).contains(&(c as u32)))
}

/// Ideographs with a numeric value.
const NUMBERS: &str = "一七万三两丿九二五亖亿什仟仨伍佰億兆兩八六十千卄卅卌叁参參叄四壱壹幺廾廿弌弍弎弐拾捌柒漆玖百肆萬貮貳贰\
    阡陆陌陸零京㐅㒃㠪㭍㸪䀹";

pub fn is_numeric(c: char) -> bool {
    kind(c).is_number() || NUMBERS.contains(c)
}

/// A letter or a number.
pub fn is_alphanumeric(c: char) -> bool {
    is_letter(c) || kind(c).is_number()
}

/// A word character, as in `\w`.
pub fn is_word(c: char) -> bool {
    c == '_' || is_alphanumeric(c)
}

/// Whether `repr` prints the character unescaped.
pub fn is_printable(c: char) -> bool {
    let kind = kind(c);
    let hidden = [
        Category::Control,
        Category::Format,
        Category::Surrogate,
        Category::PrivateUse,
        Category::Unassigned,
    ];
    c == ' ' || !(hidden.contains(&kind) || kind.is_separator())
}

fn is_upper(c: char) -> bool {
    c.is_uppercase() || kind(c) == Category::TitlecaseLetter
}

fn is_cased(c: char) -> bool {
    is_upper(c) || c.is_lowercase()
}

/// `str.isupper`
pub fn is_upper_case(text: &str) -> bool {
    let title = |c| kind(c) == Category::TitlecaseLetter;
    text.chars().any(char::is_uppercase) && !text.chars().any(|c| c.is_lowercase() || title(c))
}

/// `str.islower`
pub fn is_lower_case(text: &str) -> bool {
    text.chars().any(char::is_lowercase) && !text.chars().any(is_upper)
}

/// `str.istitle`
pub fn is_title_case(text: &str) -> bool {
    let (mut within, mut any) = (false, false);
    for c in text.chars() {
        if (is_upper(c) && within) || (c.is_lowercase() && !within) {
            return false;
        }
        within = is_cased(c);
        any |= within;
    }
    any
}

/// Title case of a letter. Some ligatures have a special title case.
fn push_title(c: char, out: &mut String) {
    match c {
        'Ǆ'..='ǆ' => out.push('ǅ'),
        'Ǉ'..='ǉ' => out.push('ǈ'),
        'Ǌ'..='ǌ' => out.push('ǋ'),
        'Ǳ'..='ǳ' => out.push('ǲ'),
        'ß' => out.push_str("Ss"),
        'ﬀ' => out.push_str("Ff"),
        'ﬁ' => out.push_str("Fi"),
        'ﬂ' => out.push_str("Fl"),
        // Georgian has a second upper case. Title case does not use it.
        'ა'..='ჺ' | 'ჽ'..='ჿ' => out.push(c),
        c => out.extend(c.to_uppercase()),
    }
}

/// `str.title`: a letter after an uncased character starts a word.
pub fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut within = false;
    let mut letters = text.chars();
    while let Some(c) = letters.next() {
        match within {
            true => push_lower(c, letters.as_str(), &mut out),
            false => push_title(c, &mut out),
        }
        within = is_cased(c);
    }
    out
}

/// Lower case of a letter within a word. A sigma at the end of a word has its own form.
fn push_lower(c: char, behind: &str, out: &mut String) {
    match c {
        'Σ' if !behind.starts_with(is_cased) => out.push('ς'),
        c => out.extend(c.to_lowercase()),
    }
}

/// `str.capitalize`
pub fn capitalize(text: &str) -> String {
    let mut chars = text.chars();
    let mut out = String::with_capacity(text.len());
    if let Some(first) = chars.next() {
        push_title(first, &mut out);
    }
    out.push_str(&chars.as_str().to_lowercase());
    out
}

/// `str.swapcase`
pub fn swap_case(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut letters = text.chars();
    let mut within = false;
    while let Some(c) = letters.next() {
        match c {
            'Σ' if !within => out.push('σ'),
            c if c.is_uppercase() => push_lower(c, letters.as_str(), &mut out),
            c => out.extend(c.to_uppercase()),
        }
        within = is_cased(c);
    }
    out
}

/// `str.casefold`
pub fn fold_case(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            'ı' => out.push(c),
            'ẞ' => out.push_str("ss"),
            // Cherokee letters fold to upper case.
            'Ꭰ'..='Ᏽ' => out.push(c),
            'ᏸ'..='ᏽ' | 'ꭰ'..='ꮿ' => out.extend(c.to_uppercase()),
            c => out.extend(c.to_uppercase().flat_map(char::to_lowercase)),
        }
    }
    out
}

/// Whether `splitlines` ends a line here.
pub fn is_line_end(c: char) -> bool {
    matches!(
        c,
        '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}'
    )
}

/// `str.splitlines`
pub fn lines(text: &str, keep_ends: bool) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let Some((at, end)) = rest.match_indices(is_line_end).next() else {
            return Some(std::mem::take(&mut rest)).filter(|last| !last.is_empty());
        };
        let end =
            if rest.get(at..).is_some_and(|rest| rest.starts_with("\r\n")) { 2 } else { end.len() };
        let line = rest.get(..at + if keep_ends { end } else { 0 }).unwrap_or_default();
        rest = rest.get(at + end..).unwrap_or_default();
        Some(line)
    })
}
