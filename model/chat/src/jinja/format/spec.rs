//! Format specifications of `str.format`:
//! `[[fill]align][sign][z][#][0][width][grouping][.precision][type]`.

use std::rc::Rc;

use super::super::meter::{Meter, MeteredString};
use super::super::text;
use super::super::value::Value;
use super::{float, general, precision, width};
use crate::jinja::fault::{Fault, wrong};

#[derive(Default)]
struct Spec {
    fill: Option<char>,
    align: Option<char>,
    sign: Option<char>,
    positive_zero: bool,
    other: bool,
    zero: bool,
    width: usize,
    grouping: Option<char>,
    precision: Option<usize>,
    kind: Option<char>,
}

impl Spec {
    fn read(source: &str) -> Result<Spec, Fault> {
        let mut spec = Spec::default();
        let is_align = |c: &char| matches!(c, '<' | '>' | '=' | '^');
        let mut chars = source.chars().peekable();
        match (source.chars().next(), source.chars().nth(1).filter(is_align)) {
            (Some(fill), Some(align)) => {
                (spec.fill, spec.align) = (Some(fill), Some(align));
                chars.nth(1);
            }
            _ => spec.align = chars.next_if(is_align),
        }
        spec.sign = chars.next_if(|c| matches!(c, '+' | '-' | ' '));
        spec.positive_zero = chars.next_if_eq(&'z').is_some();
        spec.other = chars.next_if_eq(&'#').is_some();
        spec.zero = chars.next_if_eq(&'0').is_some();
        let number = |chars: &mut std::iter::Peekable<std::str::Chars>| {
            let mut n = None;
            while let Some(digit) = chars.next_if(char::is_ascii_digit) {
                let digit = digit.to_digit(10).unwrap_or(0) as usize;
                n = Some(n.unwrap_or(0usize).saturating_mul(10).saturating_add(digit));
            }
            n
        };
        spec.width = width(number(&mut chars).unwrap_or(0))?;
        spec.grouping = chars.next_if(|c| matches!(c, ',' | '_'));
        if chars.next_if_eq(&'.').is_some() {
            match number(&mut chars) {
                Some(digits) => spec.precision = Some(precision(digits)?),
                None => return wrong("format: a precision is missing after '.'"),
            }
        }
        spec.kind = chars.next();
        match chars.next() {
            None => Ok(spec),
            Some(_) => wrong(format!("format: invalid specification '{source:.40}'")),
        }
    }
}

/// Appends `format(value, spec)`.
pub fn write(
    value: &Value,
    source: &str,
    out: &mut MeteredString,
    meter: &Rc<Meter>,
) -> Result<(), Fault> {
    if source.is_empty() {
        return text::write(value, out, meter);
    }
    let spec = Spec::read(source)?;
    match value {
        Value::Text(text) => of_text(text, &spec, out),
        Value::Int(n) => of_int(*n, &spec, out),
        Value::Bool(b) => of_int(i128::from(*b), &spec, out),
        Value::Float(x) => of_float(*x, &spec, out),
        other => wrong(format!(
            "format: {} does not support a specification ('{source:.40}')",
            other.kind()
        )),
    }
}

fn unknown(kind: char, what: &str) -> Result<(), Fault> {
    wrong(format!("format: the type '{kind}' cannot format {what}"))
}

fn of_text(this: &str, spec: &Spec, out: &mut MeteredString) -> Result<(), Fault> {
    match spec.kind {
        None | Some('s') => {}
        Some(kind) => return unknown(kind, "a string"),
    }
    let align = spec.align.unwrap_or('<');
    if spec.sign.is_some()
        || spec.other
        || spec.positive_zero
        || spec.grouping.is_some()
        || align == '='
    {
        return wrong("format: a string does not support a sign, grouping or '='");
    }
    let cut: String = this.chars().take(spec.precision.unwrap_or(usize::MAX)).collect();
    let fill = spec.fill.unwrap_or(if spec.zero { '0' } else { ' ' });
    aligned("", &cut, align, fill, spec.width, out)
}

fn of_int(n: i128, spec: &Spec, out: &mut MeteredString) -> Result<(), Fault> {
    let kind = spec.kind.unwrap_or('d');
    if matches!(kind, 'e' | 'E' | 'f' | 'F' | 'g' | 'G' | '%') {
        return of_float(n as f64, spec, out);
    }
    if spec.precision.is_some() || spec.positive_zero {
        return wrong("format: an integer does not support a precision");
    }
    let digits = n.unsigned_abs();
    let (prefix, digits, every) = match kind {
        'd' | 'n' => ("", digits.to_string(), 3),
        'x' => ("0x", format!("{digits:x}"), 4),
        'X' => ("0X", format!("{digits:X}"), 4),
        'o' => ("0o", format!("{digits:o}"), 4),
        'b' => ("0b", format!("{digits:b}"), 4),
        'c' => match u32::try_from(n).ok().and_then(char::from_u32) {
            Some(c) if spec.sign.is_none() && !spec.other && spec.grouping.is_none() => {
                let fill = spec.fill.unwrap_or(if spec.zero { '0' } else { ' ' });
                return aligned(
                    "",
                    &c.to_string(),
                    spec.align.unwrap_or('>'),
                    fill,
                    spec.width,
                    out,
                );
            }
            _ => {
                return wrong("format: the type 'c' needs a code point, without a sign");
            }
        },
        other => return unknown(other, "an integer"),
    };
    if spec.grouping.is_some_and(|mark| kind == 'n' || (mark == ',' && every == 4)) {
        return wrong(format!("format: the type '{kind}' does not support grouping"));
    }
    let prefix = if spec.other { prefix } else { "" };
    let sign = sign(n < 0, spec);
    number(&format!("{sign}{prefix}"), &digits, "", every, spec, out)
}

fn of_float(x: f64, spec: &Spec, out: &mut MeteredString) -> Result<(), Fault> {
    let size = x.abs();
    let digits = match (spec.kind, spec.precision) {
        (None, None) => match text::float(size).split_once('e') {
            Some((digits, power)) if spec.other && !digits.contains('.') => {
                format!("{digits}.e{power}")
            }
            _ => text::float(size),
        },
        (None, Some(precision)) if size.is_finite() => {
            general(size, precision.max(1), spec.other, true)
        }
        (None, Some(_)) => text::float(size),
        (Some('n'), _) if spec.grouping.is_some() => {
            return wrong("format: the type 'n' does not support grouping");
        }
        (Some('n'), precision) => float('g', precision.unwrap_or(6), size, spec.other),
        (Some('%'), precision) => {
            float('f', precision.unwrap_or(6), size * 100.0, spec.other) + "%"
        }
        (Some(kind @ ('e' | 'E' | 'f' | 'F' | 'g' | 'G')), precision) => {
            float(kind, precision.unwrap_or(6), size, spec.other)
        }
        (Some(kind), _) => return unknown(kind, "a number"),
    };
    let zero =
        digits.chars().take_while(|c| !c.is_ascii_alphabetic()).all(|c| !matches!(c, '1'..='9'));
    let negative =
        x.is_sign_negative() && !x.is_nan() && !(spec.positive_zero && zero && x.is_finite());
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    let (whole, rest) = digits.split_at_checked(end).unwrap_or((&digits, ""));
    number(sign(negative, spec), whole, rest, 3, spec, out)
}

fn sign(negative: bool, spec: &Spec) -> &'static str {
    match (negative, spec.sign) {
        (true, _) => "-",
        (false, Some('+')) => "+",
        (false, Some(' ')) => " ",
        _ => "",
    }
}

/// Appends a number from its parts, with grouped integer digits.
fn number(
    before: &str,
    digits: &str,
    rest: &str,
    every: usize,
    spec: &Spec,
    out: &mut MeteredString,
) -> Result<(), Fault> {
    let zeros = spec.zero && spec.align.is_none();
    let fill = spec.fill.unwrap_or(if spec.zero { '0' } else { ' ' });
    let align = spec.align.unwrap_or(if zeros { '=' } else { '>' });
    let Some(mark) = spec.grouping.filter(|_| !digits.is_empty()) else {
        return aligned(before, &format!("{digits}{rest}"), align, fill, spec.width, out);
    };
    // Zeros that pad to the width are grouped as well. The result never starts with a separator.
    let room = spec.width.saturating_sub(before.len() + rest.len());
    let grouped = |count: usize| count + count.saturating_sub(1) / every;
    let mut count = digits.len();
    if align == '=' && fill == '0' {
        count = count.max(room.saturating_sub(room / (every + 1)).saturating_sub(1));
        while grouped(count) < room {
            count += 1;
        }
    }
    let mut body = out.another();
    let mut digits = std::iter::repeat_n('0', count - digits.len()).chain(digits.chars());
    for left in (1..=count).rev() {
        digits.next().map_or(Ok(()), |digit| body.push_char(digit))?;
        if left > 1 && (left - 1) % every == 0 {
            body.push_char(mark)?;
        }
    }
    body.push(rest)?;
    aligned(before, &body.finish_uncounted(), align, fill, spec.width, out)
}

fn aligned(
    before: &str,
    body: &str,
    align: char,
    fill: char,
    width: usize,
    out: &mut MeteredString,
) -> Result<(), Fault> {
    let missing = width.saturating_sub(before.chars().count() + body.chars().count());
    let (left, within, right) = match align {
        '<' => (0, 0, missing),
        '^' => (missing / 2, 0, missing - missing / 2),
        '=' => (0, missing, 0),
        _ => (missing, 0, 0),
    };
    let mut buffer = [0; 4];
    let fill = fill.encode_utf8(&mut buffer);
    out.repeat(fill, left)?;
    out.push(before)?;
    out.repeat(fill, within)?;
    out.push(body)?;
    out.repeat(fill, right)
}
