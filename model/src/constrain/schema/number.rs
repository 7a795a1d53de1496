//! Number constraints of a schema: exact decimals, and regular expressions for numbers in a range.
//! The number of digits is limited, so that every number has an end.

mod ranges;

use ranges::{decimals, whole};
use serde_json::Number;
use std::cmp::Ordering;

/// Digits of an integer without a bound: the number of digits of a 64-bit integer.
const INTEGER_DIGITS: usize = 19;
/// Maximum digits of a bound before its point. A bound with more digits is outside the numbers that
/// an answer can contain.
const MAX_BOUND_DIGITS: usize = 40;
/// From this magnitude, every f64 is an integer.
const INTEGERS: f64 = 9_007_199_254_740_992.0;
/// Significant digits of a number with a fraction: the number of digits of an f64.
const SIGNIFICANT: usize = 17;
/// Any number. It has at most 17 digits before the exponent, so it does not exceed the range of an
/// f64.
const ANY_NUMBER: &str =
    r"-?(0|[1-9][0-9]{0,16})(\.[0-9]{1,33})?([eE][+-]?([0-9]{1,2}|1[0-9]{2}|2[0-8][0-9]))?";
/// Numbers of at most 17 significant digits.
const SHORT_NUMBER: &str = r"-?(0(\.0{0,16}[0-9]{0,17})?|[1-9][0-9.]{0,17})([eE][+-]?[0-9]{1,3})?";

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
        let far = |b: &&Bound| b.at.whole.len() > MAX_BOUND_DIGITS;
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
            return Some(format!("(/{ANY_NUMBER}/ & /{SHORT_NUMBER}/)"));
        }
        let plain = decimals(self.least.as_ref(), self.most.as_ref(), places)?;
        let short = |b: &Bound| b.at.whole.len() + b.at.fraction.len() < SIGNIFICANT;
        match self.least.iter().chain(&self.most).all(short) {
            true => Some(format!("(/{plain}/ & /{SHORT_NUMBER}/)")),
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

#[cfg(test)]
mod tests;
