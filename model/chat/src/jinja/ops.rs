//! Operators, comparisons, elements and slices.

use std::cmp::Ordering;
use std::rc::Rc;

use super::ast::Operator;
use super::meter::{Meter, MeteredString};
use super::value::{ListKind, Value};
use super::{Fault, format, globals, html, methods, text, wrong};

/// A number, as Python computes with it.
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
            Value::room_for(l.items.len() + r.items.len(), meter)?;
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
            Value::room_for(count, meter)?;
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
            "'{}' does not go with {} and {}",
            sign(operator),
            left.kind(),
            right.kind()
        )),
    }
}

/// The kind of the sum of two lists of this kind; `None` if they cannot be added.
fn added(kind: ListKind) -> Option<ListKind> {
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
        other => wrong(format!("'*' repeats by whole numbers, not by {}", other.kind())),
    }
}

fn arithmetic(operator: Operator, left: &Number, right: &Number) -> Result<Value, Fault> {
    let too_large = || wrong("a number is too large");
    if let (Number::Int(l), Number::Int(r)) = (left, right) {
        let (l, r) = (*l, *r);
        let by_zero =
            r == 0 && matches!(operator, Operator::Div | Operator::FloorDiv | Operator::Rem);
        if by_zero {
            return wrong("a division by zero");
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
            Operator::Pow if l == 0 => return wrong("0 has no negative power"),
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
        return wrong("a division by zero");
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
                return wrong("a power is too large, or of a negative number and no number");
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
        None => wrong(format!("'-' does not go with {}", value.kind())),
    }
}

/// The exact order of two numbers, also for integers beyond a float's precision.
fn compare(l: &Number, r: &Number) -> Option<Ordering> {
    match (l, r) {
        (Number::Int(l), Number::Float(r)) if r.abs() < 1e38 => {
            Some(l.cmp(&(r.trunc() as i128)).then(0.0.partial_cmp(&r.fract())?))
        }
        (Number::Float(_), Number::Int(_)) => compare(r, l).map(Ordering::reverse),
        _ => float(l).partial_cmp(&float(r)),
    }
}

/// `==`. A shared element is compared and counted wherever it occurs.
pub fn equal(left: &Value, right: &Value, meter: &Rc<Meter>) -> Result<bool, Fault> {
    meter.work(1)?;
    if let (Some(l), Some(r)) = (number(left), number(right)) {
        return Ok(match (&l, &r) {
            (Number::Int(l), Number::Int(r)) => l == r,
            _ => compare(&l, &r) == Some(Ordering::Equal),
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
            _ => compare(&l, &r),
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
        _ => wrong(format!("{} and {} have no order", left.kind(), right.kind())),
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
            other => wrong(format!("{} cannot be in a text", other.kind())),
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
        other => wrong(format!("nothing is in {}", other.kind())),
    }
}

/// The elements of a list, the characters of a string, the keys of an object, or the rest of a
/// generator. Empty for an undefined value.
pub fn items(value: &Value, meter: &Rc<Meter>) -> Result<Vec<Value>, Fault> {
    match value {
        Value::List(list) => {
            Value::room_for(list.items.len(), meter)?;
            Ok(list.items.clone())
        }
        Value::Map(map) => {
            Value::room_for(map.entries.len(), meter)?;
            Ok(map.entries.iter().map(|(key, _)| key.clone()).collect())
        }
        Value::Text(text) => {
            text.chars().map(|c| Value::text(c.encode_utf8(&mut [0; 4]), meter)).collect()
        }
        Value::Generator(generator) => {
            Value::room_for(generator.items.items.len().saturating_sub(generator.at.get()), meter)?;
            Ok(std::iter::from_fn(|| generator.next()).collect())
        }
        Value::Undefined => Ok(Vec::new()),
        other => wrong(format!("{} has no elements", other.kind())),
    }
}

/// `value[item]`
pub fn item(value: &Value, item: &Value, meter: &Rc<Meter>) -> Result<Value, Fault> {
    let place = |len: usize, at: i128| {
        let at = if at < 0 { at.checked_add(len as i128)? } else { at };
        usize::try_from(at).ok().filter(|&at| at < len)
    };
    let at = match item {
        Value::Int(at) => Some(*at),
        Value::Bool(b) => Some(i128::from(*b)),
        _ => None,
    };
    Ok(match (value, at) {
        (Value::Map(map), _) => {
            meter.bytes(item.as_text().map_or(0, str::len))?;
            match (map.get(item), item.as_text()) {
                (Some(value), _) => value.clone(),
                (None, Some(name)) => {
                    methods::attribute(value, name, meter)?.unwrap_or(Value::Undefined)
                }
                (None, None) => Value::Undefined,
            }
        }
        (Value::List(list), Some(at)) if list.kind.is_indexed() => place(list.items.len(), at)
            .and_then(|at| list.items.get(at))
            .cloned()
            .unwrap_or(Value::Undefined),
        (Value::Text(text), Some(at)) => {
            meter.bytes(text.len())?;
            let c = place(text.chars().count(), at).and_then(|at| text.chars().nth(at));
            c.map_or(Ok(Value::Undefined), |c| Value::text(c.encode_utf8(&mut [0; 4]), meter))?
        }
        (Value::Undefined, _) => return wrong("an undefined value has no elements"),
        (value, _) => match item.as_text() {
            Some(name) => methods::attribute(value, name, meter)?.unwrap_or(Value::Undefined),
            None => Value::Undefined,
        },
    })
}

/// The index range between two bounds; an absent bound is `None`.
pub fn bounds(len: usize, ends: [Option<i128>; 2]) -> std::ops::Range<usize> {
    let place = |at: i128| {
        (if at < 0 { at.saturating_add(len as i128) } else { at }).clamp(0, len as i128) as usize
    };
    let [from, to] = ends;
    from.map_or(0, place)..to.map_or(len, place)
}

/// `value[from:to:step]`; an absent bound is none.
pub fn slice(value: &Value, bounds: &[Value; 3], meter: &Rc<Meter>) -> Result<Value, Fault> {
    let mut given = [None; 3];
    for (given, bound) in given.iter_mut().zip(bounds) {
        *given = match bound {
            Value::None => None,
            Value::Int(n) => Some(*n),
            Value::Bool(b) => Some(i128::from(*b)),
            other => return wrong(format!("a bound of a slice is {}", other.kind())),
        };
    }
    let [from, to, step] = given;
    let step = step.unwrap_or(1);
    if step == 0 {
        return wrong("the step of a slice is 0");
    }
    let ends = |len: usize| {
        let len = len as i128;
        let (low, high) = if step > 0 { (0, len) } else { (-1, len - 1) };
        let clamp = |bound: i128| {
            (if bound < 0 { bound.saturating_add(len) } else { bound }).clamp(low, high)
        };
        match step > 0 {
            true => (from.map_or(0, clamp), to.map_or(len, clamp)),
            false => (from.map_or(len - 1, clamp), to.map_or(-1, clamp)),
        }
    };
    let places = |len: usize| {
        let (from, to) = ends(len);
        let mut all = Vec::new();
        let mut at = from;
        while (step > 0 && at < to) || (step < 0 && at > to) {
            all.push(at as usize);
            at = at.saturating_add(step);
        }
        all
    };
    match value {
        Value::List(list) if list.kind.is_indexed() => {
            if let ListKind::Range([first, _, by]) = list.kind {
                let (from, to) = ends(list.items.len());
                let at = |place: i128| first.saturating_add(place.saturating_mul(by));
                return globals::range([at(from), at(to), by.saturating_mul(step)], meter);
            }
            Value::room_for(list.items.len(), meter)?;
            let items = places(list.items.len())
                .into_iter()
                .filter_map(|at| list.items.get(at).cloned())
                .collect();
            Value::sequence(items, added(list.kind).unwrap_or(list.kind), meter)
        }
        Value::Text(text) => {
            meter.bytes(text.len())?;
            Value::room_for(text.len(), meter)?;
            let chars: Vec<char> = text.chars().collect();
            let part: String =
                places(chars.len()).into_iter().filter_map(|at| chars.get(at)).collect();
            Ok(Value::text(&part, meter)?.marked_safe(text.safe))
        }
        other => wrong(format!("{} has no slices", other.kind())),
    }
}
