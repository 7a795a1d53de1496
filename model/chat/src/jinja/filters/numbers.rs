//! Filters on numbers.

use std::rc::Rc;

use super::super::bind::{Arguments, flag, text, whole};
use super::super::chars;
use super::super::meter::Meter;
use super::super::value::Value;
use crate::jinja::fault::{Fault, wrong};

pub fn filter(
    name: &str,
    value: &Value,
    arguments: &Arguments,
    meter: &Rc<Meter>,
) -> Result<Value, Fault> {
    match name {
        "abs" => {
            arguments.bind(name, [], 0)?;
            match value {
                Value::Int(n) => n
                    .checked_abs()
                    .map_or_else(|| wrong("a number is too large"), |n| Ok(Value::Int(n))),
                Value::Bool(b) => Ok(Value::Int(i128::from(*b))),
                Value::Float(x) => Ok(Value::Float(x.abs())),
                other => wrong(format!("abs: {} is not a number", other.kind())),
            }
        }
        "int" => {
            let [default, base] = arguments.bind(name, ["default", "base"], 0)?;
            let base = whole(base, "base")?.unwrap_or(10);
            int(value, default.cloned().unwrap_or(Value::Int(0)), base)
        }
        "float" => {
            let [default] = arguments.bind(name, ["default"], 0)?;
            Ok(float(value)
                .map_or_else(|| default.cloned().unwrap_or(Value::Float(0.0)), Value::Float))
        }
        "round" => {
            let [precision, method] = arguments.bind(name, ["precision", "method"], 0)?;
            let precision = whole(precision, "precision")?.unwrap_or(0).clamp(-400, 400) as i32;
            round(value, precision, text(method, "method")?.unwrap_or("common"))
        }
        _ => {
            let [binary] = arguments.bind(name, ["binary"], 0)?;
            match float(value) {
                Some(bytes) => Value::text(&file_size(bytes, flag(binary, false)), meter),
                None => wrong(format!("filesizeformat: {} is not a number", value.kind())),
            }
        }
    }
}

/// Removes the `_` between two digits, which Python's syntax allows.
fn without_marks(text: &str) -> Option<String> {
    let fits = !text.starts_with('_') && !text.ends_with('_') && !text.contains("__");
    fits.then(|| text.replace('_', ""))
}

fn float(value: &Value) -> Option<f64> {
    match value {
        Value::Int(n) => Some(*n as f64),
        Value::Bool(b) => Some(f64::from(u8::from(*b))),
        Value::Float(x) => Some(*x),
        Value::Text(text) => without_marks(text.trim_matches(chars::is_space))?.parse().ok(),
        _ => None,
    }
}

fn int(value: &Value, default: Value, base: i128) -> Result<Value, Fault> {
    let cut =
        |x: f64| if x.is_finite() && x.abs() < 1e38 { Some(Value::Int(x as i128)) } else { None };
    match value {
        Value::Int(_) => Ok(value.clone()),
        Value::Bool(b) => Ok(Value::Int(i128::from(*b))),
        Value::Float(x) if x.is_infinite() => wrong("int: infinity is not an integer"),
        Value::Text(text) => match digits(text.trim_matches(chars::is_space), base) {
            Some(n) => Ok(Value::Int(n)),
            None => Ok(float(value).and_then(cut).unwrap_or(default)),
        },
        _ => Ok(float(value).and_then(cut).unwrap_or(default)),
    }
}

/// `int(text, base)`
fn digits(text: &str, base: i128) -> Option<i128> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let sign = if text.starts_with('-') { "-" } else { "" };
    let prefix = unsigned.get(..2).map(str::to_ascii_lowercase);
    let (of_prefix, rest) = match prefix.as_deref() {
        Some("0x") => (16, unsigned.get(2..)?),
        Some("0o") => (8, unsigned.get(2..)?),
        Some("0b") => (2, unsigned.get(2..)?),
        _ => (0, unsigned),
    };
    let (radix, rest) = match base {
        0 if of_prefix > 0 => (of_prefix, rest),
        0 => (10, unsigned),
        base if base == i128::from(of_prefix) => (of_prefix, rest),
        base if (2..=36).contains(&base) => (base as u32, unsigned),
        _ => return None,
    };
    let rest = without_marks(rest).filter(|rest| !rest.starts_with(['+', '-']))?;
    i128::from_str_radix(&format!("{sign}{rest}"), radix).ok()
}

fn round(value: &Value, precision: i32, method: &str) -> Result<Value, Fault> {
    let Some(x) = (match value {
        Value::Text(_) => None,
        other => float(other),
    }) else {
        return wrong(format!("round: {} is not a number", value.kind()));
    };
    let scaled = |whole: fn(f64) -> f64| {
        let power = 10f64.powi(precision);
        // Adding 0.0 removes the sign of a negative zero.
        Ok(Value::Float((whole(x * power) + 0.0) / power))
    };
    match (method, value) {
        ("ceil", _) => scaled(f64::ceil),
        ("floor", _) => scaled(f64::floor),
        ("common", Value::Int(n)) => Ok(Value::Int(round_int(*n, precision))),
        ("common", Value::Bool(b)) => Ok(Value::Int(round_int(i128::from(*b), precision))),
        ("common", _) if precision >= 0 => {
            Ok(Value::Float(format!("{x:.*}", precision as usize).parse().unwrap_or(x)))
        }
        ("common", _) if x.abs() < 1e30 && precision > -30 => {
            // A number is a tie only if its fraction is exactly one half.
            let (n, behind) = (x.trunc() as i128, x.fract() != 0.0);
            let rounded = round_int(
                if behind { n.saturating_mul(10) + n.signum() } else { n * 10 },
                precision - 1,
            );
            Ok(Value::Float(((rounded / 10) as f64).copysign(x)))
        }
        ("common", _) => Ok(Value::Float(if x.abs() < 1e30 { 0f64.copysign(x) } else { x })),
        _ => wrong("round: the method is common, ceil or floor"),
    }
}

/// Rounds to tens, hundreds and so on. Ties round to even.
fn round_int(n: i128, precision: i32) -> i128 {
    let Some(unit) = u32::try_from(-precision).ok().filter(|p| *p > 0) else { return n };
    let Some(unit) = 10i128.checked_pow(unit) else { return 0 };
    let (quotient, rest) = (n.div_euclid(unit), n.rem_euclid(unit));
    let up = rest > unit - rest || (rest == unit - rest && quotient % 2 != 0);
    (quotient + i128::from(up)).saturating_mul(unit)
}

fn file_size(bytes: f64, binary: bool) -> String {
    let base: f64 = if binary { 1024.0 } else { 1000.0 };
    if bytes == 1.0 {
        return "1 Byte".to_owned();
    }
    if bytes < base {
        return format!("{} Bytes", bytes.trunc() + 0.0);
    }
    let prefixes = if binary {
        ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"]
    } else {
        ["kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"]
    };
    let mut unit = base;
    for (i, prefix) in prefixes.iter().enumerate() {
        unit *= base;
        if bytes < unit || i + 1 == prefixes.len() {
            return format!("{:.1} {prefix}", base * bytes / unit);
        }
    }
    String::new()
}
