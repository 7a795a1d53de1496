//! Number constraints of a schema: exact decimals, and regular expressions for numbers in a range.
//! The number of digits is limited, so that every number has an end.

use serde_json::Number;
use std::cmp::Ordering;
use std::fmt::Write;

/// Digits of an integer without a bound: the number of digits of a 64-bit integer.
const WHOLE: usize = 19;
/// Maximum digits of a bound before its point. A bound with more digits is outside the numbers that
/// an answer can contain.
const BOUND: usize = 40;
/// From this magnitude, every f64 is an integer.
const INTEGERS: f64 = 9_007_199_254_740_992.0;
/// Significant digits of a number with a fraction: the number of digits of an f64.
const SIGNIFICANT: usize = 17;
/// Any number. It has at most 17 digits before the exponent, so it does not exceed the range of an
/// f64.
const ANY: &str =
    r"-?(0|[1-9][0-9]{0,16})(\.[0-9]{1,33})?([eE][+-]?([0-9]{1,2}|1[0-9]{2}|2[0-8][0-9]))?";
/// Numbers of at most 17 significant digits.
const SHORT: &str = r"-?(0(\.0{0,16}[0-9]{0,17})?|[1-9][0-9.]{0,17})([eE][+-]?[0-9]{1,3})?";

/// An exact decimal of any size, without leading or trailing zeros. Zero has no sign.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decimal {
    negative: bool,
    whole: String,
    fraction: String,
}

impl Decimal {
    /// The exact value of a JSON number.
    pub fn of(number: &Number) -> Option<Decimal> {
        let mut text = number.to_string();
        // Integers beyond 64 bits arrive as f64. The shortest text of many of them is a different
        // integer: 18446744073709552000 for 2^64. Short texts are exact: 1e23.
        let mantissa = text.split(['e', 'E']).next().unwrap_or_default();
        let long = mantissa.bytes().filter(u8::is_ascii_digit).count() > 15;
        if let Some(n) = number.as_f64().filter(|n| number.is_f64() && long && n.abs() >= INTEGERS)
        {
            text = format!("{n:.0}");
        }
        let (negative, rest) =
            text.strip_prefix('-').map_or((false, text.as_str()), |rest| (true, rest));
        let (mantissa, exponent) = rest.split_once(['e', 'E']).unwrap_or((rest, "0"));
        let exponent: i32 = exponent.parse().ok().filter(|e: &i32| e.abs() <= 400)?;
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let digits = format!("{whole}{fraction}");
        let point = i32::try_from(whole.len()).ok()? + exponent;
        let zeros = |n: i32| "0".repeat(usize::try_from(n).unwrap_or_default());
        let places = usize::try_from(point).unwrap_or_default();
        let (whole, fraction) = match digits.split_at_checked(places) {
            Some((whole, fraction)) => (whole.to_owned(), format!("{}{fraction}", zeros(-point))),
            None => (format!("{digits}{}", "0".repeat(places - digits.len())), String::new()),
        };
        let of = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
        (of(&whole) && of(&fraction)).then(|| Decimal::new(negative, &whole, &fraction))
    }

    fn new(negative: bool, whole: &str, fraction: &str) -> Decimal {
        let whole = whole.trim_start_matches('0');
        let fraction = fraction.trim_end_matches('0').to_owned();
        let negative = negative && !(whole.is_empty() && fraction.is_empty());
        Decimal { negative, whole: if whole.is_empty() { "0" } else { whole }.to_owned(), fraction }
    }

    /// Whether the value is an integer.
    pub fn is_whole(&self) -> bool {
        self.fraction.is_empty()
    }

    /// Number of decimal places, if the value is a power of ten and at most one.
    pub fn places(&self) -> Option<usize> {
        match (self.whole.as_str(), self.fraction.as_str()) {
            ("1", "") => Some(0),
            ("0", f) if f.ends_with('1') && f.trim_end_matches('1').len() + 1 == f.len() => {
                f.trim_end_matches('1').bytes().all(|b| b == b'0').then_some(f.len())
            }
            _ => None,
        }
    }

    fn size(&self) -> Decimal {
        Decimal { negative: false, ..self.clone() }
    }

    fn zero() -> Decimal {
        Decimal::new(false, "", "")
    }

    /// The next integer if `up`, otherwise the previous one.
    fn step(&self, up: bool) -> Decimal {
        // The magnitude grows in the direction away from zero.
        if up != self.negative {
            return Decimal::new(self.negative, &incremented(&self.whole), "");
        }
        match self.whole.as_str() {
            "0" => Decimal::new(!up, "1", ""),
            whole => Decimal::new(self.negative, &decremented(whole), ""),
        }
    }

    /// The least integer not below the value if `up`, otherwise the greatest integer not above it.
    fn rounded(&self, up: bool) -> Decimal {
        let cut = Decimal::new(self.negative, &self.whole, "");
        match self.is_whole() || self.negative == up {
            true => cut,
            false => Decimal::new(self.negative, &incremented(&self.whole), ""),
        }
    }
}

/// A string of digits plus one.
fn incremented(digits: &str) -> String {
    let kept = digits.trim_end_matches('9');
    let nines = "0".repeat(digits.len() - kept.len());
    match kept.char_indices().next_back() {
        Some((at, digit)) => {
            let next =
                char::from_digit(digit.to_digit(10).unwrap_or_default() + 1, 10).unwrap_or('9');
            format!("{}{next}{nines}", kept.get(..at).unwrap_or_default())
        }
        None => format!("1{nines}"),
    }
}

/// A string of digits minus one. It is not zero.
fn decremented(digits: &str) -> String {
    let kept = digits.trim_end_matches('0');
    let zeros = "9".repeat(digits.len() - kept.len());
    let (at, digit) = kept.char_indices().next_back().unwrap_or((0, '1'));
    let before =
        char::from_digit(digit.to_digit(10).unwrap_or(1).saturating_sub(1), 10).unwrap_or('0');
    let made = format!("{}{before}{zeros}", kept.get(..at).unwrap_or_default());
    match made.trim_start_matches('0') {
        "" => "0".to_owned(),
        made => made.to_owned(),
    }
}

impl Ord for Decimal {
    fn cmp(&self, other: &Decimal) -> Ordering {
        let size = |a: &Decimal, b: &Decimal| {
            (a.whole.len(), &a.whole, &a.fraction).cmp(&(b.whole.len(), &b.whole, &b.fraction))
        };
        match (self.negative, other.negative) {
            (false, false) => size(self, other),
            (true, true) => size(other, self),
            (true, false) => Ordering::Less,
            (false, true) => Ordering::Greater,
        }
    }
}

impl PartialOrd for Decimal {
    fn partial_cmp(&self, other: &Decimal) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A bound of a range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bound {
    /// Value of the bound.
    pub at: Decimal,
    /// Whether the value itself is excluded.
    pub open: bool,
}

/// A set of numbers.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Numbers {
    /// Whether only integers are allowed.
    pub whole: bool,
    /// Lower bound.
    pub least: Option<Bound>,
    /// Upper bound.
    pub most: Option<Bound>,
    /// The numbers are multiples of these. Powers of ten up to one are enforced here, others by the
    /// library.
    pub multiples: Vec<Number>,
}

impl Numbers {
    /// The intersection with another set.
    pub fn meet(mut self, other: Numbers) -> Numbers {
        self.whole |= other.whole;
        self.least = tighter(self.least, other.least, Ordering::Greater);
        self.most = tighter(self.most, other.most, Ordering::Less);
        for multiple in other.multiples {
            if !self.multiples.contains(&multiple) {
                self.multiples.push(multiple);
            }
        }
        self
    }

    /// Whether the set contains a number. Multiples are ignored.
    pub fn has(&self, number: &Number) -> bool {
        let Some(n) = Decimal::of(number) else { return false };
        let above = self.least.as_ref().is_none_or(|b| n > b.at || (n == b.at && !b.open));
        let below = self.most.as_ref().is_none_or(|b| n < b.at || (n == b.at && !b.open));
        above && below && (!self.whole || n.is_whole())
    }

    /// The numbers as Lark terminals; `None` if there is no such number.
    pub fn terminal(&self) -> Option<String> {
        let far = |b: &&Bound| b.at.whole.len() > BOUND;
        if self.least.iter().find(far).is_some_and(|b| !b.at.negative)
            || self.most.iter().find(far).is_some_and(|b| b.at.negative)
        {
            return None;
        }
        if self.least.iter().chain(&self.most).any(|b| far(&b)) {
            // Every number of an answer is within these bounds, so the bounds are omitted.
            let near = |b: &Option<Bound>| b.clone().filter(|b| !far(&b));
            let (least, most) = (near(&self.least), near(&self.most));
            return Numbers { least, most, ..self.clone() }.terminal();
        }
        let places = self.multiples.iter().filter_map(|m| Decimal::of(m)?.places()).min();
        if self.whole || places == Some(0) {
            return whole(self.least.as_ref(), self.most.as_ref()).map(|e| format!("/{e}/"));
        }
        if (&self.least, &self.most, places) == (&None, &None, None) {
            return Some(format!("(/{ANY}/ & /{SHORT}/)"));
        }
        let plain = decimals(self.least.as_ref(), self.most.as_ref(), places)?;
        let short = |b: &Bound| b.at.whole.len() + b.at.fraction.len() < SIGNIFICANT;
        match self.least.iter().chain(&self.most).all(short) {
            true => Some(format!("(/{plain}/ & /{SHORT}/)")),
            false => Some(format!("/{plain}/")),
        }
    }

    /// The set as a schema for the library, which enforces multiples. The schema has bounds, so
    /// that numbers have an end. `None` if the library cannot represent the bounds exactly.
    pub fn schema(&self) -> Option<serde_json::Value> {
        const EXACT: i64 = 1 << 53;
        const LARGEST: i64 = 999_999_999_999_999;
        let end = |bound: &Option<Bound>, up: bool| -> Option<Number> {
            let Some(bound) = bound else {
                return Some(if up { -LARGEST } else { LARGEST }.into());
            };
            let mut at = bound.at.rounded(up);
            if bound.open && bound.at.is_whole() {
                at = at.step(up);
            }
            let at: i64 =
                format!("{}{}", if at.negative { "-" } else { "" }, at.whole).parse().ok()?;
            (-EXACT..=EXACT).contains(&at).then(|| at.into())
        };
        let kind = if self.whole { "integer" } else { "number" };
        let fits =
            |b: &Option<Bound>| self.whole || b.as_ref().is_none_or(|b| b.at.is_whole() && !b.open);
        if !fits(&self.least) || !fits(&self.most) {
            return None;
        }
        let ([one], Some(least), Some(most)) =
            (self.multiples.as_slice(), end(&self.least, true), end(&self.most, false))
        else {
            return None;
        };
        Some(
            serde_json::json!({ "type": kind, "minimum": least, "maximum": most, "multipleOf": one }),
        )
    }
}

fn tighter(a: Option<Bound>, b: Option<Bound>, wins: Ordering) -> Option<Bound> {
    match (a, b) {
        (Some(a), Some(b)) => Some(match a.at.cmp(&b.at) {
            Ordering::Equal => Bound { open: a.open || b.open, at: a.at },
            order if order == wins => a,
            _ => b,
        }),
        (a, b) => a.or(b),
    }
}

/// Joins expressions to one that matches any of them.
fn either(mut all: Vec<String>) -> Option<String> {
    match all.len() {
        0 | 1 => all.pop(),
        _ => Some(format!("({})", all.join("|"))),
    }
}

/// The expression that matches integers in a range.
fn whole(least: Option<&Bound>, most: Option<&Bound>) -> Option<String> {
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
    let most = WHOLE.max(from.len() + 1);
    match to {
        Some(to) if to.len() == from.len() => same(from, to),
        Some(to) if to.len() <= most.max(BOUND) => {
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
fn decimals(least: Option<&Bound>, most: Option<&Bound>, places: Option<usize>) -> Option<String> {
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

#[cfg(test)]
mod tests {
    use super::{Bound, Decimal, Numbers};
    use llguidance::derivre::{Regex, RegexAst, RegexBuilder};
    use serde_json::Number;

    fn bound(text: &str, open: bool) -> Option<Bound> {
        let number: Number = serde_json::from_str(text).unwrap();
        Some(Bound { at: Decimal::of(&number).unwrap(), open })
    }

    /// The terminal as an automaton; `None` if there is no number.
    fn made(numbers: &Numbers) -> Option<Regex> {
        let terminal = numbers.terminal()?;
        let inner =
            terminal.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')).unwrap_or(&terminal);
        let parts =
            inner.split(" & ").map(|part| RegexAst::Regex(part.trim_matches('/').to_owned()));
        let mut builder = RegexBuilder::new();
        let made = builder
            .mk(&RegexAst::And(parts.collect()))
            .unwrap_or_else(|e| panic!("{e}: {terminal}"));
        Some(builder.to_regex(made))
    }

    fn matches(numbers: &Numbers, text: &str) -> bool {
        made(numbers).is_some_and(|mut made| made.is_match(text))
    }

    #[test]
    fn integer_ranges_match_arithmetic() {
        let ends = [-1000i64, -101, -100, -99, -10, -1, 0, 1, 9, 10, 11, 99, 100, 105, 999, 1000];
        for least in ends {
            for most in ends {
                for open in [false, true] {
                    let numbers = Numbers {
                        whole: true,
                        least: bound(&least.to_string(), open),
                        most: bound(&most.to_string(), false),
                        multiples: vec![],
                    };
                    let Some(mut made) = made(&numbers) else {
                        assert!(least + i64::from(open) > most, "{least} {most}");
                        continue;
                    };
                    for n in [
                        -1001, -1000, -555, -101, -100, -99, -10, -9, -1, 0, 1, 5, 9, 10, 100, 104,
                        998, 1000, 1001,
                    ] {
                        let want = n >= least + i64::from(open) && n <= most;
                        assert_eq!(
                            made.is_match(&n.to_string()),
                            want,
                            "{n} in {least}..={most}, {open}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn integer_bounds_above_53_bits_are_exact() {
        let numbers = Numbers {
            whole: true,
            least: bound("9007199254740993", false),
            most: bound("18446744073709551615", false),
            multiples: vec![],
        };
        for (text, want) in [
            ("9007199254740992", false),
            ("9007199254740993", true),
            ("18446744073709551615", true),
            ("18446744073709551616", false),
        ] {
            assert_eq!(matches(&numbers, text), want, "{text}");
        }
        // 2^64 does not fit in 64 bits, and its shortest text as f64 is a different number.
        let numbers = Numbers { most: bound("18446744073709551616", false), ..numbers };
        for (text, want) in [
            ("18446744073709551616", true),
            ("18446744073709551617", false),
            ("18446744073709552000", false),
        ] {
            assert_eq!(matches(&numbers, text), want, "{text}");
        }
        // Bounds that are outside the numbers of an answer.
        for whole in [false, true] {
            let far = |least, most| Numbers { whole, least, most, ..Numbers::default() };
            assert_eq!(far(bound("1e300", false), None).terminal(), None);
            assert_eq!(far(None, bound("-1e300", false)).terminal(), None);
            let all = far(bound("-1e300", false), bound("1e300", false));
            assert!(matches(&all, "-5") && matches(&all, "12"));
        }
        let free = Numbers { whole: true, ..Numbers::default() };
        assert!(matches(&free, &"1".repeat(19)) && !matches(&free, &"1".repeat(20)));
        let open = Numbers { whole: true, least: bound("0", false), ..Numbers::default() };
        assert!(matches(&open, "0") && !matches(&open, "-1") && !matches(&open, &"1".repeat(20)));
        let any = Numbers::default();
        for (text, want) in [
            ("0", true),
            ("-0.5", true),
            ("1.5e-3", true),
            ("1e300", false),
            ("1e289", true),
            ("12345678901234567", true),
            ("123456789012345678", false),
            ("1234567890.1234567", true),
            ("1234567890.12345678", false),
            ("0.12345678901234567", true),
            ("0.00000000000000000000000000000000001", false),
            ("01", false),
            ("1.", false),
        ] {
            assert_eq!(matches(&any, text), want, "{text}");
        }
    }

    #[test]
    fn fraction_ranges_match_arithmetic() {
        let ends = [
            "-12.5", "-1.25", "-1", "-0.1", "0", "0.05", "0.5", "0.75", "1", "1.2", "9.99", "10",
            "100.001",
        ];
        let mut tried: Vec<String> = ends.iter().map(|text| (*text).to_owned()).collect();
        for text in ends {
            tried.extend(
                ["01", "5", "9"].map(|more| {
                    format!("{text}{}{more}", if text.contains('.') { "" } else { "." })
                }),
            );
        }
        tried.extend(
            ["2", "3.7", "11", "55.5", "-3", "-0.05", "0.6", "0.0501", "1.0", "0.50"]
                .map(String::from),
        );
        for least in ends.iter().map(Some).chain([None]) {
            for most in ends.iter().map(Some).chain([None]) {
                for open in [false, true] {
                    let numbers = Numbers {
                        least: least.and_then(|text| bound(text, open)),
                        most: most.and_then(|text| bound(text, open)),
                        ..Numbers::default()
                    };
                    if least.is_none() && most.is_none() {
                        continue;
                    }
                    let mut made = made(&numbers);
                    for text in &tried {
                        let n: f64 = text.parse().unwrap();
                        let end = |text: &&str| text.parse::<f64>().unwrap();
                        let above =
                            least.map(end).is_none_or(|least| n > least || (!open && n == least));
                        let below =
                            most.map(end).is_none_or(|most| n < most || (!open && n == most));
                        let is = made.as_mut().is_some_and(|made| made.is_match(text));
                        assert_eq!(is, above && below, "{text} in {least:?}..{most:?}, {open}");
                    }
                }
            }
        }
        let cents = Numbers {
            least: bound("0", false),
            multiples: vec![serde_json::from_str("0.01").unwrap()],
            ..Numbers::default()
        };
        assert!(matches(&cents, "3.25") && matches(&cents, "4") && !matches(&cents, "3.255"));
    }
}
