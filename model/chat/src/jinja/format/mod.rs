//! String formatting: `'%s' % x`, `|format` and `str.format`. Widths are checked before padding; a
//! precision is at most [`MAX_DIGITS`].

mod braces;
mod percent;
mod spec;

pub use braces::braces;
pub use percent::percent;

use super::MAX_MEMORY;
use super::fault::{Fault, limit};

/// The maximum precision.
const MAX_DIGITS: usize = 1000;

fn precision(digits: usize) -> Result<usize, Fault> {
    match digits {
        digits if digits <= MAX_DIGITS => Ok(digits),
        digits => limit(format!("format: the precision {digits} is more than {MAX_DIGITS}")),
    }
}

fn width(columns: usize) -> Result<usize, Fault> {
    match columns {
        columns if columns <= MAX_MEMORY => Ok(columns),
        columns => limit(format!("format: the width {columns} exceeds the memory limit of values")),
    }
}

/// `%e`, `%f` and `%g` of a non-negative number. `whole` keeps trailing zeros and the decimal
/// point.
fn float(kind: char, precision: usize, x: f64, whole: bool) -> String {
    let text = match kind.to_ascii_lowercase() {
        _ if x.is_nan() => "nan".to_owned(),
        _ if x.is_infinite() => "inf".to_owned(),
        'f' => format!("{x:.precision$}{}", if whole && precision == 0 { "." } else { "" }),
        'e' => exponent(x, precision, whole),
        _ => general(x, precision.max(1), whole, false),
    };
    if kind.is_ascii_uppercase() { text.to_uppercase() } else { text }
}

fn exponent(x: f64, precision: usize, whole: bool) -> String {
    let text = format!("{x:.precision$e}");
    let (mantissa, power) = text.split_once('e').unwrap_or((&text, "0"));
    let point = if whole && !mantissa.contains('.') { "." } else { "" };
    format!("{mantissa}{point}{}", power_of_ten(power))
}

fn power_of_ten(power: &str) -> String {
    let sign = if power.starts_with('-') { '-' } else { '+' };
    format!("e{sign}{:0>2}", power.trim_start_matches('-'))
}

/// Formats with `precision` significant digits. Trailing zeros are removed unless `whole`. With
/// `is_float` one digit remains after the point.
fn general(x: f64, precision: usize, whole: bool, is_float: bool) -> String {
    let digits = precision - 1;
    let text = format!("{x:.digits$e}");
    let (mantissa, power) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = power.parse().unwrap_or(0);
    let trimmed = |text: &str| match text.contains('.') {
        true if !whole => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        true => text.to_owned(),
        false => format!("{text}{}", if whole { "." } else { "" }),
    };
    if exponent < -4 || exponent > digits as i32 - i32::from(is_float) {
        return format!("{}{}", trimmed(mantissa), power_of_ten(power));
    }
    let behind = usize::try_from(digits as i32 - exponent).unwrap_or(0);
    let text = trimmed(&format!("{x:.behind$}"));
    if is_float && !text.contains('.') { format!("{text}.0") } else { text }
}
