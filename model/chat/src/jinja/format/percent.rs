//! The operator `'%s' % x` and the filter `|format`.

use std::iter::Peekable;
use std::rc::Rc;
use std::str::Chars;

use super::super::meter::{Meter, MeteredString};
use super::super::value::Value;
use super::super::{html, text};
use super::{float, precision, width};
use crate::jinja::fault::{Fault, wrong};

#[derive(Default)]
struct Spec {
    left: bool,
    zero: bool,
    plus: bool,
    space: bool,
    other: bool,
    width: usize,
    precision: Option<usize>,
}

/// `pattern % values`, with `%(name)s` from an object. If the pattern is HTML, strings are escaped.
pub fn percent(
    pattern: &str,
    safe: bool,
    values: &[Value],
    named: &Value,
    meter: &Rc<Meter>,
) -> Result<Value, Fault> {
    let mut out = MeteredString::new(meter);
    let mut rest = values.iter();
    let mut chars = pattern.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push_char(c)?;
            continue;
        }
        meter.work(1)?;
        let mut by_name = None;
        if chars.next_if_eq(&'(').is_some() {
            let name: String = chars.by_ref().take_while(|&c| c != ')').collect();
            let found = match named {
                Value::Map(map) => map.get_text(&name),
                _ => None,
            };
            by_name = match found {
                Some(value) => Some(value),
                None => return wrong(format!("format: there is no {name:.40}")),
            };
        }
        let mut spec = Spec::default();
        while let Some(flag) = chars.next_if(|c| "-0+ #".contains(*c)) {
            match flag {
                '-' => spec.left = true,
                '0' => spec.zero = true,
                '+' => spec.plus = true,
                ' ' => spec.space = true,
                _ => spec.other = true,
            }
        }
        let columns = number(&mut chars, &mut rest)?;
        spec.left |= columns < 0;
        spec.width = width(usize::try_from(columns.unsigned_abs()).unwrap_or(usize::MAX))?;
        if chars.next_if_eq(&'.').is_some() {
            let digits =
                usize::try_from(number(&mut chars, &mut rest)?.max(0)).unwrap_or(usize::MAX);
            spec.precision = Some(precision(digits)?);
        }
        let Some(kind) = chars.next() else { return wrong("format: the pattern ends within '%'") };
        if kind == '%' {
            out.push("%")?;
            continue;
        }
        let Some(value) = by_name.or_else(|| rest.next()) else {
            return wrong("format: there are fewer values than fields in the pattern");
        };
        convert(kind, &spec, value, safe, &mut out, meter)?;
    }
    match values {
        [Value::Map(_) | Value::List(_)] => {}
        _ if rest.len() > 0 => {
            return wrong("format: there are more values than fields in the pattern");
        }
        _ => {}
    }
    Value::grown(out, meter)
}

/// A number in the pattern, or the next value for `*`.
fn number<'v>(
    chars: &mut Peekable<Chars>,
    values: &mut impl Iterator<Item = &'v Value>,
) -> Result<i128, Fault> {
    if chars.next_if_eq(&'*').is_some() {
        return match values.next() {
            Some(Value::Int(n)) => Ok(*n),
            _ => wrong("format: '*' needs an integer"),
        };
    }
    let mut n = 0i128;
    while let Some(digit) = chars.next_if(char::is_ascii_digit) {
        n = n.saturating_mul(10).saturating_add(digit.to_digit(10).unwrap_or(0).into());
    }
    Ok(n)
}

fn convert(
    kind: char,
    spec: &Spec,
    value: &Value,
    safe: bool,
    out: &mut MeteredString,
    meter: &Rc<Meter>,
) -> Result<(), Fault> {
    let as_float = match value {
        Value::Int(n) => Some(*n as f64),
        Value::Float(x) => Some(*x),
        Value::Bool(b) => Some(f64::from(u8::from(*b))),
        _ => None,
    };
    let int = match value {
        Value::Int(n) => Some(*n),
        Value::Bool(b) => Some(i128::from(*b)),
        Value::Float(x) if matches!(kind, 'd' | 'i' | 'u') && x.abs() < 1e38 => Some(*x as i128),
        _ => None,
    };
    let no_number = || wrong(format!("format: %{kind} needs a number, not {}", value.kind()));
    let (negative, body) = match kind {
        's' | 'r' | 'a' => {
            let whole = match kind {
                's' if safe => html::escaped(value, meter)?,
                's' => text::to_string(value, meter)?,
                'r' => text::represented(value, meter)?,
                _ => text::ascii(value, meter)?,
            };
            let body = match spec.precision {
                Some(most) => whole.chars().take(most).collect(),
                None => whole,
            };
            (false, body)
        }
        'c' => match (value, int.and_then(|n| u32::try_from(n).ok()).and_then(char::from_u32)) {
            (_, Some(c)) => (false, c.to_string()),
            (Value::Text(text), _) if text.chars().count() == 1 => (false, text.to_string()),
            _ => return wrong("format: %c needs one character"),
        },
        'd' | 'i' | 'u' | 'x' | 'X' | 'o' => {
            let Some(n) = int else { return no_number() };
            let digits = n.unsigned_abs();
            let (prefix, digits) = match kind {
                'x' => ("0x", format!("{digits:x}")),
                'X' => ("0X", format!("{digits:X}")),
                'o' => ("0o", format!("{digits:o}")),
                _ => ("", digits.to_string()),
            };
            let prefix = if spec.other { prefix } else { "" };
            (n < 0, format!("{prefix}{digits:0>width$}", width = spec.precision.unwrap_or(0)))
        }
        'f' | 'F' | 'e' | 'E' | 'g' | 'G' => {
            let Some(x) = as_float else { return no_number() };
            (
                x.is_sign_negative() && !x.is_nan(),
                float(kind, spec.precision.unwrap_or(6), x.abs(), spec.other),
            )
        }
        _ => return wrong(format!("format: unknown conversion %{kind}")),
    };
    let is_text = matches!(kind, 's' | 'r' | 'a' | 'c');
    let sign = match negative {
        true => "-",
        false if is_text => "",
        false if spec.plus => "+",
        false if spec.space => " ",
        false => "",
    };
    let fill = spec.width.saturating_sub(sign.len() + body.chars().count());
    let zeros = spec.zero && !spec.left && !is_text;
    out.repeat(" ", if spec.left || zeros { 0 } else { fill })?;
    out.push(sign)?;
    out.repeat("0", if zeros { fill } else { 0 })?;
    out.push(&body)?;
    out.repeat(" ", if spec.left { fill } else { 0 })
}
