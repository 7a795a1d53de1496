//! Operators, comparisons, elements and slices.

use std::cmp::Ordering;
use std::rc::Rc;

use super::ast::{Comparison, Operator};
use super::fault::{Fault, wrong};
use super::meter::{Meter, MeteredString};
use super::value::{ListKind, Value};
use super::{format, html, text};

/// A number with Python's arithmetic.
enum Number {
    Int(i128),
    Float(f64),
}

fn number(value: &Value) -> Option<Number> {
    match value {
        Value::Bool(b) => Some(Number::Int(i128::from(*b))),
        Value::Int(n) => Some(Number::Int(*n)),
        Value::Float(x) => Some(Number::Float(*x)),
        _ => None,
    }
}

fn float(number: &Number) -> f64 {
    match number {
        Number::Int(n) => *n as f64,
        Number::Float(x) => *x,
    }
}

pub fn operate(
    operator: Operator,
    left: &Value,
    right: &Value,
    meter: &Rc<Meter>,
) -> Result<Value, Fault> {
    meter.work(1)?;
    if operator == Operator::Join {
        let mut out = MeteredString::new(meter);
        text::write(left, &mut out, meter)?;
        text::write(right, &mut out, meter)?;
        return Value::grown(out, meter);
    }
    if let (Some(l), Some(r)) = (number(left), number(right)) {
        return arithmetic(operator, &l, &r);
    }
    match (operator, left, right) {
        (Operator::Add, Value::Text(l), Value::Text(r)) => {
            let safe = l.safe || r.safe;
            let mut out = MeteredString::new(meter);
            for part in [l, r] {
                if safe && !part.safe { html::escape(part, &mut out)? } else { out.push(part)? }
            }
            Ok(Value::grown(out, meter)?.marked_safe(safe))
        }
        (Operator::Add, Value::List(l), Value::List(r))
            if added(l.kind).is_some() && added(l.kind) == added(r.kind) =>
        {
            Value::check_length(l.items.len() + r.items.len(), meter)?;
            let kind = added(l.kind).unwrap_or(ListKind::List);
            Value::sequence(l.items.iter().chain(&r.items).cloned().collect(), kind, meter)
        }
        (Operator::Mul, Value::Text(text), n) | (Operator::Mul, n, Value::Text(text)) => {
            let mut out = MeteredString::new(meter);
            out.repeat(text, times(n)?)?;
            Value::grown(out, meter)
        }
        (Operator::Mul, Value::List(list), n) | (Operator::Mul, n, Value::List(list))
            if added(list.kind).is_some() =>
        {
            let times = times(n)?;
            let count = list.items.len().saturating_mul(times);
            Value::check_length(count, meter)?;
            Value::sequence(
                list.items.iter().cycle().take(count).cloned().collect(),
                added(list.kind).unwrap_or(list.kind),
                meter,
            )
        }
        (Operator::Rem, Value::Text(pattern), _) => {
            let values = match right {
                Value::List(list) if list.kind.is_tuple() => &list.items,
                single => std::slice::from_ref(single),
            };
            Ok(format::percent(pattern, pattern.safe, values, right, meter)?
                .marked_safe(pattern.safe))
        }
        _ => wrong(format!(
            "'{}' is not supported between {} and {}",
            sign(operator),
            left.kind(),
            right.kind()
        )),
    }
}

/// The kind of the sum of two lists of this kind; `None` if they cannot be added.
pub(super) fn added(kind: ListKind) -> Option<ListKind> {
    match kind {
        ListKind::List => Some(ListKind::List),
        ListKind::Tuple | ListKind::Group => Some(ListKind::Tuple),
        _ => None,
    }
}

fn sign(operator: Operator) -> &'static str {
    match operator {
        Operator::Add => "+",
        Operator::Sub => "-",
        Operator::Join => "~",
        Operator::Mul => "*",
        Operator::Div => "/",
        Operator::FloorDiv => "//",
        Operator::Rem => "%",
        Operator::Pow => "**",
    }
}

fn times(value: &Value) -> Result<usize, Fault> {
    match value {
        Value::Int(n) => Ok(usize::try_from((*n).max(0)).unwrap_or(usize::MAX)),
        Value::Bool(b) => Ok(usize::from(*b)),
        other => wrong(format!("'*' needs an integer as the repeat count, not {}", other.kind())),
    }
}

fn arithmetic(operator: Operator, left: &Number, right: &Number) -> Result<Value, Fault> {
    let too_large = || wrong("a number is too large");
    if let (Number::Int(l), Number::Int(r)) = (left, right) {
        let (l, r) = (*l, *r);
        let by_zero =
            r == 0 && matches!(operator, Operator::Div | Operator::FloorDiv | Operator::Rem);
        if by_zero {
            return wrong("division by zero");
        }
        // Python rounds down, Rust rounds towards zero.
        let down = |(quotient, rest): (i128, i128)| {
            if rest != 0 && (rest < 0) != (r < 0) {
                (quotient - 1, rest + r)
            } else {
                (quotient, rest)
            }
        };
        let both = || Some(down((l.checked_div(r)?, l.checked_rem(r)?)));
        let result = match operator {
            Operator::Add => l.checked_add(r),
            Operator::Sub => l.checked_sub(r),
            Operator::Mul => l.checked_mul(r),
            Operator::FloorDiv => both().map(|(quotient, _)| quotient),
            Operator::Rem => both().map(|(_, rest)| rest),
            Operator::Pow if r >= 0 => u32::try_from(r).ok().and_then(|r| l.checked_pow(r)),
            Operator::Pow if l == 0 => return wrong("0 cannot have a negative exponent"),
            _ => {
                return Ok(Value::Float(if operator == Operator::Div {
                    l as f64 / r as f64
                } else {
                    (l as f64).powf(r as f64)
                }));
            }
        };
        return result.map_or_else(too_large, |n| Ok(Value::Int(n)));
    }
    let (l, r) = (float(left), float(right));
    if r == 0.0 && matches!(operator, Operator::Div | Operator::FloorDiv | Operator::Rem) {
        return wrong("division by zero");
    }
    // The remainder has the sign of the divisor.
    let rest = l % r;
    let rest = match rest {
        0.0 => 0f64.copysign(r),
        rest if (rest < 0.0) != (r < 0.0) => rest + r,
        rest => rest,
    };
    Ok(Value::Float(match operator {
        Operator::Add => l + r,
        Operator::Sub => l - r,
        Operator::Mul => l * r,
        Operator::Div => l / r,
        Operator::FloorDiv => ((l - rest) / r).round_ties_even().copysign(l / r),
        Operator::Rem => rest,
        _ => match l.powf(r) {
            power if !power.is_finite() && l.is_finite() && r.is_finite() => {
                return wrong("a power is too large or not a real number");
            }
            power => power,
        },
    }))
}

pub fn negative(value: &Value) -> Result<Value, Fault> {
    match number(value) {
        Some(Number::Int(n)) => {
            n.checked_neg().map_or_else(|| wrong("a number is too large"), |n| Ok(Value::Int(n)))
        }
        Some(Number::Float(x)) => Ok(Value::Float(-x)),
        None => wrong(format!("'-' is not supported for {}", value.kind())),
    }
}

/// The exact order of two numbers, also for integers that a float cannot represent exactly.
fn compare_numbers(l: &Number, r: &Number) -> Option<Ordering> {
    match (l, r) {
        (Number::Int(l), Number::Float(r)) if r.abs() < 1e38 => {
            Some(l.cmp(&(r.trunc() as i128)).then(0.0.partial_cmp(&r.fract())?))
        }
        (Number::Float(_), Number::Int(_)) => compare_numbers(r, l).map(Ordering::reverse),
        _ => float(l).partial_cmp(&float(r)),
    }
}

/// `==`. A shared element is compared and counted each time it occurs.
pub fn equal(left: &Value, right: &Value, meter: &Rc<Meter>) -> Result<bool, Fault> {
    meter.work(1)?;
    if let (Some(l), Some(r)) = (number(left), number(right)) {
        return Ok(match (&l, &r) {
            (Number::Int(l), Number::Int(r)) => l == r,
            _ => compare_numbers(&l, &r) == Some(Ordering::Equal),
        });
    }
    Ok(match (left, right) {
        (Value::Undefined, Value::Undefined) | (Value::None, Value::None) => true,
        (Value::Text(l), Value::Text(r)) => {
            meter.bytes(l.len().min(r.len()))?;
            **l == **r
        }
        (Value::List(l), Value::List(r)) => {
            let alike = match (l.kind, r.kind) {
                (ListKind::Range(_), ListKind::Range(_)) => true,
                (ListKind::Values, ListKind::Values) => Rc::ptr_eq(l, r),
                (l, r) => added(l) == added(r) && (added(l).is_some() || l == r),
            };
            if !alike || l.items.len() != r.items.len() {
                return Ok(false);
            }
            for (l, r) in l.items.iter().zip(&r.items) {
                if !equal(l, r, meter)? {
                    return Ok(false);
                }
            }
            true
        }
        (Value::Map(l), Value::Map(r)) => {
            if l.entries.len() != r.entries.len() {
                return Ok(false);
            }
            for (key, l) in &l.entries {
                meter.bytes(key.as_text().map_or(0, str::len))?;
                match r.get(key) {
                    Some(r) if equal(l, r, meter)? => {}
                    _ => return Ok(false),
                }
            }
            true
        }
        (Value::Namespace(l), Value::Namespace(r)) => Rc::ptr_eq(l, r),
        _ => false,
    })
}

/// The order of two numbers (`None` if one is NaN), strings or lists.
pub fn order(left: &Value, right: &Value, meter: &Rc<Meter>) -> Result<Option<Ordering>, Fault> {
    meter.work(1)?;
    if let (Some(l), Some(r)) = (number(left), number(right)) {
        return Ok(match (&l, &r) {
            (Number::Int(l), Number::Int(r)) => Some(l.cmp(r)),
            _ => compare_numbers(&l, &r),
        });
    }
    match (left, right) {
        (Value::Text(l), Value::Text(r)) => {
            meter.bytes(l.len().min(r.len()))?;
            Ok(Some((**l).cmp(&**r)))
        }
        (Value::List(l), Value::List(r))
            if added(l.kind).is_some() && added(l.kind) == added(r.kind) =>
        {
            for (a, b) in l.items.iter().zip(&r.items) {
                if !equal(a, b, meter)? {
                    return order(a, b, meter);
                }
            }
            Ok(Some(l.items.len().cmp(&r.items.len())))
        }
        _ => wrong(format!("{} and {} cannot be ordered", left.kind(), right.kind())),
    }
}

/// `value in all`
pub fn contains(all: &Value, value: &Value, meter: &Rc<Meter>) -> Result<bool, Fault> {
    meter.work(1)?;
    match all {
        Value::Text(text) => match value {
            Value::Text(part) => {
                meter.bytes(text.len() + part.len())?;
                Ok(text.contains(&**part))
            }
            other => wrong(format!("'in' a string needs a string, not {}", other.kind())),
        },
        Value::Map(map) => {
            meter.bytes(value.as_text().map_or(0, str::len))?;
            Ok(map.get(value).is_some())
        }
        Value::List(list) => {
            for item in &list.items {
                if equal(item, value, meter)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        Value::Generator(generator) => {
            while let Some(item) = generator.next() {
                if equal(&item, value, meter)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        Value::Undefined => Ok(false),
        other => wrong(format!("'in' is not supported for {}", other.kind())),
    }
}

/// Compares two values.
pub fn compare(
    comparison: Comparison,
    left: &Value,
    right: &Value,
    meter: &Rc<Meter>,
) -> Result<bool, Fault> {
    use std::cmp::Ordering::{Equal, Greater, Less};
    let order = || order(left, right, meter);
    Ok(match comparison {
        Comparison::Eq => equal(left, right, meter)?,
        Comparison::Ne => !equal(left, right, meter)?,
        Comparison::Lt => order()? == Some(Less),
        Comparison::Le => matches!(order()?, Some(Less | Equal)),
        Comparison::Gt => order()? == Some(Greater),
        Comparison::Ge => matches!(order()?, Some(Greater | Equal)),
        Comparison::In => contains(right, left, meter)?,
        Comparison::NotIn => !contains(right, left, meter)?,
    })
}
