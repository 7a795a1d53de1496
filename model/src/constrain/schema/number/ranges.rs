//! Regular expressions for the decimals of a range.

use super::{
    Bound, Decimal, INTEGER_DIGITS, MAX_BOUND_DIGITS, SIGNIFICANT, decremented, incremented,
};
use std::cmp::Ordering;
use std::fmt::Write;

/// Joins expressions to one that matches any of them.
fn either(mut all: Vec<String>) -> Option<String> {
    match all.len() {
        0 | 1 => all.pop(),
        _ => Some(format!("({})", all.join("|"))),
    }
}

/// The expression that matches integers in a range.
pub(super) fn whole(least: Option<&Bound>, most: Option<&Bound>) -> Option<String> {
    let end = |bound: Option<&Bound>, up: bool| {
        bound.map(|b| {
            let at = b.at.rounded(up);
            if b.open && b.at.is_whole() { at.step(up) } else { at }
        })
    };
    let (least, most) = (end(least, true), end(most, false));
    let mut all = vec![];
    // Zero and above.
    let from = least.clone().filter(|at| !at.negative).unwrap_or_else(Decimal::zero);
    if most.as_ref().is_none_or(|most| from <= *most) {
        all.push(digits(&from.whole, most.as_ref().map(|at| at.whole.as_str())));
    }
    // Below zero.
    let from = most.filter(|at| at.negative).map_or_else(|| "1".to_owned(), |at| at.whole);
    let to = least.as_ref().map(|at| if at.negative { at.whole.clone() } else { "0".to_owned() });
    if to.as_ref().is_none_or(|to| (from.len(), &from) <= (to.len(), to)) {
        all.push(format!("-{}", digits(&from, to.as_deref())));
    }
    either(all)
}

/// Matches strings of digits between two strings. Without an upper end, longer strings match as
/// well.
fn digits(from: &str, to: Option<&str>) -> String {
    let most = INTEGER_DIGITS.max(from.len() + 1);
    match to {
        Some(to) if to.len() == from.len() => same(from, to),
        Some(to) if to.len() <= most.max(MAX_BOUND_DIGITS) => {
            let mut all = vec![same(from, &"9".repeat(from.len()))];
            if to.len() > from.len() + 1 {
                all.push(format!("[1-9][0-9]{{{},{}}}", from.len(), to.len() - 2));
            }
            all.push(same(&format!("1{}", "0".repeat(to.len() - 1)), to));
            either(all).unwrap_or_default()
        }
        _ => {
            let near = same(from, &"9".repeat(from.len()));
            format!("({near}|[1-9][0-9]{{{},{}}})", from.len(), most - 1)
        }
    }
}

/// A character class of digits.
fn class(from: u8, to: u8) -> Option<String> {
    match from.cmp(&to) {
        Ordering::Less => Some(format!("[{}-{}]", char::from(from), char::from(to))),
        Ordering::Equal => Some(char::from(from).to_string()),
        Ordering::Greater => None,
    }
}

/// Matches strings of digits of equal length between two strings.
fn same(from: &str, to: &str) -> String {
    fn any(n: usize) -> String {
        if n == 0 { String::new() } else { format!("[0-9]{{{n}}}") }
    }
    /// With `low`, matches from these digits up, otherwise up to these digits.
    fn one_sided(digits: &[u8], low: bool) -> String {
        let Some((first, rest)) = digits.split_first() else { return String::new() };
        if digits.iter().all(|d| *d == if low { b'0' } else { b'9' }) {
            return any(digits.len());
        }
        let mut all = vec![format!("{}{}", char::from(*first), one_sided(rest, low))];
        let others = if low { class(first + 1, b'9') } else { class(b'0', first.wrapping_sub(1)) };
        // There is no digit below 0.
        if let Some(others) = others.filter(|_| low || *first > b'0') {
            all.push(format!("{others}{}", any(rest.len())));
        }
        either(all).unwrap_or_default()
    }
    let mut made = String::new();
    let (mut from, mut to) = (from.as_bytes(), to.as_bytes());
    while let (Some((a, from_rest)), Some((b, to_rest))) = (from.split_first(), to.split_first()) {
        if a == b {
            made.push(char::from(*a));
            (from, to) = (from_rest, to_rest);
            continue;
        }
        let mut all = vec![format!("{}{}", char::from(*a), one_sided(from_rest, true))];
        if let Some(between) = class(a + 1, b.wrapping_sub(1)) {
            all.push(format!("{between}{}", any(from_rest.len())));
        }
        all.push(format!("{}{}", char::from(*b), one_sided(to_rest, false)));
        let _ = write!(made, "{}", either(all).unwrap_or_default());
        break;
    }
    made
}

/// The expression that matches numbers in a range, with or without a fraction, without an exponent.
pub(super) fn decimals(
    least: Option<&Bound>,
    most: Option<&Bound>,
    places: Option<usize>,
) -> Option<String> {
    let mut all = vec![];
    let zero = Bound { at: Decimal::zero(), open: false };
    let size = |b: &Bound| Bound { at: b.at.size(), open: b.open };
    // Zero and above.
    let from = least.filter(|b| !b.at.negative).unwrap_or(&zero);
    if most.is_none_or(|b| !b.at.negative) {
        all.extend(sizes(from, most, places));
    }
    // Below zero. Zero has no sign.
    let to = least.map(size);
    if least.is_none_or(|b| b.at.negative) {
        let open = Bound { at: Decimal::zero(), open: true };
        let from = most.filter(|b| b.at.negative).map_or(open, size);
        all.extend(sizes(&from, to.as_ref(), places).map(|e| format!("-{e}")));
    }
    either(all)
}

/// Numbers without a sign.
fn sizes(from: &Bound, to: Option<&Bound>, places: Option<usize>) -> Option<String> {
    if to.is_some_and(|to| from.at > to.at || (from.at == to.at && (from.open || to.open))) {
        return None;
    }
    let long = |b: &Bound| b.at.fraction.len() + 1;
    let room = places.unwrap_or_else(|| SIGNIFICANT.max(long(from)).max(to.map_or(0, long)));
    let enough = SIGNIFICANT.max(from.at.whole.len() + 1);
    let to = to.filter(|to| to.at.whole.len() <= enough);
    let with = |whole: &str, fraction: Fraction| -> Option<String> {
        let whole = if whole.contains('|') { format!("({whole})") } else { whole.to_owned() };
        match (fraction.some, fraction.none) {
            (Some(some), true) => Some(format!(r"{whole}(\.{some})?")),
            (Some(some), false) => Some(format!(r"{whole}\.{some}")),
            (None, true) => Some(whole),
            (None, false) => None,
        }
    };
    let mut all = vec![];
    match to {
        Some(to) if to.at.whole == from.at.whole => {
            let fraction = between(
                from.at.fraction.as_bytes(),
                from.open,
                to.at.fraction.as_bytes(),
                to.open,
                room,
            );
            all.extend(with(&from.at.whole, fraction));
        }
        to => {
            all.extend(with(&from.at.whole, above(from.at.fraction.as_bytes(), from.open, room)));
            let next = incremented(&from.at.whole);
            let last = match to {
                Some(to) => Some(decremented(&to.at.whole)),
                None => Some("9".repeat(enough)),
            };
            let last = last.filter(|last| (next.len(), &next) <= (last.len(), last));
            if let Some(last) = last {
                all.extend(with(&digits(&next, Some(&last)), above(b"", false, room)));
            }
            if let Some(to) = to {
                all.extend(with(&to.at.whole, below(to.at.fraction.as_bytes(), to.open, room)));
            }
        }
    }
    either(all)
}

/// The digits allowed after the decimal point, and whether they may be absent.
struct Fraction {
    some: Option<String>,
    none: bool,
}

impl Fraction {
    /// Prepends a digit.
    fn behind(self, digit: u8) -> Option<String> {
        let digit = char::from(digit);
        match (self.some, self.none) {
            (Some(some), true) => Some(format!("{digit}({some})?")),
            (Some(some), false) => Some(format!("{digit}{some}")),
            (None, true) => Some(digit.to_string()),
            (None, false) => None,
        }
    }
}

fn up_to(n: usize) -> String {
    if n == 0 { String::new() } else { format!("[0-9]{{0,{n}}}") }
}

fn zeros(digits: &[u8]) -> bool {
    digits.iter().all(|d| *d == b'0')
}

fn above(digits: &[u8], open: bool, room: usize) -> Fraction {
    let none = !open && zeros(digits);
    let Some(rest_room) = room.checked_sub(1) else { return Fraction { some: None, none } };
    if none {
        return Fraction { some: Some(format!("[0-9]{{1,{room}}}")), none };
    }
    let Some((first, rest)) = digits.split_first() else {
        // Greater than the bound: a nonzero digit must follow.
        return Fraction {
            some: Some(format!("0{{0,{rest_room}}}[1-9]{}", up_to(rest_room))),
            none,
        };
    };
    let mut all: Vec<String> =
        class(first + 1, b'9').map(|c| format!("{c}{}", up_to(rest_room))).into_iter().collect();
    all.extend(above(rest, open, rest_room).behind(*first));
    Fraction { some: either(all), none }
}

fn below(digits: &[u8], open: bool, room: usize) -> Fraction {
    let none = !open || !zeros(digits);
    let Some(rest_room) = room.checked_sub(1) else { return Fraction { some: None, none } };
    let Some((first, rest)) = digits.split_first().filter(|_| !zeros(digits)) else {
        return Fraction { some: (!open).then(|| format!("0{{1,{room}}}")), none };
    };
    let others = if *first > b'0' { class(b'0', first - 1) } else { None };
    let mut all: Vec<String> =
        others.map(|c| format!("{c}{}", up_to(rest_room))).into_iter().collect();
    all.extend(below(rest, open, rest_room).behind(*first));
    Fraction { some: either(all), none }
}

fn between(from: &[u8], from_open: bool, to: &[u8], to_open: bool, room: usize) -> Fraction {
    let none = !from_open && zeros(from) && (!to_open || !zeros(to));
    let Some(rest_room) = room.checked_sub(1) else { return Fraction { some: None, none } };
    if from.is_empty() && to.is_empty() {
        return Fraction { some: none.then(|| format!("0{{1,{room}}}")), none };
    }
    // Missing digits are zero.
    let split = |digits: &'_ [u8]| -> (u8, Vec<u8>) {
        digits.split_first().map_or((b'0', vec![]), |(first, rest)| (*first, rest.to_vec()))
    };
    let ((a, from_rest), (b, to_rest)) = (split(from), split(to));
    let mut all = vec![];
    if a == b {
        all.extend(between(&from_rest, from_open, &to_rest, to_open, rest_room).behind(a));
    } else {
        all.extend(above(&from_rest, from_open, rest_room).behind(a));
        let middle = if b > a { class(a + 1, b - 1) } else { None };
        all.extend(middle.map(|c| format!("{c}{}", up_to(rest_room))));
        all.extend(below(&to_rest, to_open, rest_room).behind(b));
    }
    Fraction { some: either(all), none }
}
