//! `'%s' % x`, `|format` and `str.format`. Widths and precisions come from the template, so they are bounded.

use std::rc::Rc;

use super::meter::{Growing, Meter};
use super::value::Value;
use super::{Fault, limit, text, wrong};

/// The largest width and precision.
const WIDEST: usize = 1000;

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

/// `pattern % values`, with `%(name)s` from the named ones.
pub fn percent(pattern: &str, values: &[Value], named: &[(String, Value)], meter: &Rc<Meter>) -> Result<Value, Fault> {
    let mut out = Growing::new(meter);
    let mut values = values.iter();
    let mut chars = pattern.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push_char(c)?;
            continue;
        }
        meter.work(1)?;
        let mut by_name = None;
        if chars.next_if_eq(&'(').is_some() {
            let name: String = chars.by_ref().take_while(|&c| c != ')').take(100).collect();
            let found = named.iter().find(|(n, _)| *n == name).map(|(_, value)| value);
            let found = found.or_else(|| match values.as_slice() {
                [Value::Map(map)] => map.get_text(&name),
                _ => None,
            });
            match found {
                Some(value) => by_name = Some(value),
                None => return wrong(format!("format: there is no {name:.40}")),
            }
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
        let number = |chars: &mut std::iter::Peekable<std::str::Chars>| {
            let mut n = 0usize;
            while let Some(digit) = chars.next_if(char::is_ascii_digit) {
                n = n.saturating_mul(10).saturating_add(digit.to_digit(10).unwrap_or(0) as usize);
            }
            if n > WIDEST { limit(format!("format: a width of {n} is more than {WIDEST}")) } else { Ok(n) }
        };
        spec.width = number(&mut chars)?;
        if chars.next_if_eq(&'.').is_some() {
            spec.precision = Some(number(&mut chars)?);
        }
        let Some(kind) = chars.next() else { return wrong("format: the pattern ends within '%'") };
        if kind == '%' {
            out.push("%")?;
            continue;
        }
        let Some(value) = by_name.or_else(|| values.next()) else { return wrong("format: there are too few values") };
        convert(kind, &spec, value, &mut out, meter)?;
    }
    Value::grown(out, meter)
}

fn convert(kind: char, spec: &Spec, value: &Value, out: &mut Growing, meter: &Rc<Meter>) -> Result<(), Fault> {
    let float = match value {
        Value::Int(n) => Some(*n as f64),
        Value::Float(x) => Some(*x),
        Value::Bool(b) => Some(f64::from(u8::from(*b))),
        _ => None,
    };
    let int = match value {
        Value::Int(n) => Some(*n),
        Value::Bool(b) => Some(i128::from(*b)),
        Value::Float(x) if kind == 'd' || kind == 'i' => Some(*x as i128),
        _ => None,
    };
    let no_number = || wrong(format!("format: %{kind} takes a number, not {}", value.kind()));
    let (negative, body) = match kind {
        's' | 'r' | 'a' => {
            let mut whole = Growing::new(meter);
            if kind == 's' {
                text::write(value, &mut whole, meter)?
            } else {
                text::repr(value, &mut whole, meter)?
            }
            let (whole, taken) = whole.finish();
            meter.give_back(taken);
            (
                false,
                match spec.precision {
                    Some(most) => whole.chars().take(most).collect(),
                    None => whole,
                },
            )
        }
        'c' => match (value, int.and_then(|n| u32::try_from(n).ok()).and_then(char::from_u32)) {
            (_, Some(c)) => (false, c.to_string()),
            (Value::Text(text), _) if text.chars().count() == 1 => (false, text.to_string()),
            _ => return wrong("format: %c takes a character"),
        },
        'd' | 'i' | 'u' | 'x' | 'X' | 'o' => {
            let Some(n) = int else { return no_number() };
            let digits = n.unsigned_abs();
            let digits = match kind {
                'x' => format!("{}{digits:x}", if spec.other { "0x" } else { "" }),
                'X' => format!("{}{digits:X}", if spec.other { "0X" } else { "" }),
                'o' => format!("{}{digits:o}", if spec.other { "0o" } else { "" }),
                _ => digits.to_string(),
            };
            (n < 0, format!("{digits:0>width$}", width = spec.precision.unwrap_or(0)))
        }
        'f' | 'F' => {
            let Some(x) = float else { return no_number() };
            (x < 0.0, format!("{:.*}", spec.precision.unwrap_or(6), x.abs()))
        }
        'e' | 'E' | 'g' | 'G' => {
            let Some(x) = float else { return no_number() };
            (x < 0.0, exponent(kind, spec.precision.unwrap_or(6), x.abs()))
        }
        _ => return wrong(format!("format: %{kind} is not known")),
    };
    let sign = match (negative, kind) {
        (true, _) => "-",
        (false, 's' | 'r' | 'a' | 'c') => "",
        (false, _) if spec.plus => "+",
        (false, _) if spec.space => " ",
        _ => "",
    };
    let fill = spec.width.saturating_sub(sign.len() + body.chars().count());
    let zeros = spec.zero && !spec.left && !matches!(kind, 's' | 'r' | 'a' | 'c');
    out.repeat(" ", if spec.left || zeros { 0 } else { fill })?;
    out.push(sign)?;
    out.repeat("0", if zeros { fill } else { 0 })?;
    out.push(&body)?;
    out.repeat(" ", if spec.left { fill } else { 0 })
}

/// `%e` and `%g` of a number that is not negative.
fn exponent(kind: char, precision: usize, x: f64) -> String {
    let short = kind == 'g' || kind == 'G';
    let digits = if short { precision.max(1) - 1 } else { precision };
    let text = format!("{x:.digits$e}");
    let (mantissa, power) = text.split_once('e').unwrap_or((&text, "0"));
    let power: i32 = power.parse().unwrap_or(0);
    let trim = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if short && power >= -4 && power <= digits as i32 {
        return trim(&format!("{:.*}", (digits as i32 - power).max(0) as usize, x));
    }
    let mantissa = if short { trim(mantissa) } else { mantissa.to_owned() };
    let sign = if power < 0 { '-' } else { '+' };
    let text = format!("{mantissa}e{sign}{:02}", power.unsigned_abs());
    if kind.is_uppercase() { text.to_uppercase() } else { text }
}

/// `pattern.format(…)`: `{}`, `{0}`, `{name}`; no formats within.
pub fn braces(pattern: &str, values: &[Value], named: &[(String, Value)], meter: &Rc<Meter>) -> Result<Value, Fault> {
    let mut out = Growing::new(meter);
    let mut next = 0;
    let mut chars = pattern.chars().peekable();
    while let Some(c) = chars.next() {
        if !matches!(c, '{' | '}') || chars.next_if_eq(&c).is_some() {
            out.push_char(c)?;
            continue;
        }
        meter.work(1)?;
        let field: String = chars.by_ref().take_while(|&c| c != '}').take(100).collect();
        let value = if field.is_empty() {
            next += 1;
            values.get(next - 1)
        } else if let Ok(at) = field.parse::<usize>() {
            values.get(at)
        } else {
            named.iter().find(|(name, _)| *name == field).map(|(_, value)| value)
        };
        match value {
            Some(value) => text::write(value, &mut out, meter)?,
            None => return wrong(format!("format: there is nothing for {{{field:.40}}}")),
        }
    }
    Value::grown(out, meter)
}
