//! One element of a value, and slices.

use super::fault::{Fault, wrong};
use super::meter::Meter;
use super::methods;
use super::ops::added;
use super::value::{ListKind, Value};
use std::rc::Rc;

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

/// `value[from:to:step]`. A missing bound is `Value::None`.
pub fn slice(value: &Value, bounds: &[Value; 3], meter: &Rc<Meter>) -> Result<Value, Fault> {
    let mut given = [None; 3];
    for (given, bound) in given.iter_mut().zip(bounds) {
        *given = match bound {
            Value::None => None,
            Value::Int(n) => Some(*n),
            Value::Bool(b) => Some(i128::from(*b)),
            other => {
                return wrong(format!("a bound of a slice is {}, not an integer", other.kind()));
            }
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
                return super::range::range([at(from), at(to), by.saturating_mul(step)], meter);
            }
            Value::check_length(list.items.len(), meter)?;
            let items = places(list.items.len())
                .into_iter()
                .filter_map(|at| list.items.get(at).cloned())
                .collect();
            Value::sequence(items, added(list.kind).unwrap_or(list.kind), meter)
        }
        Value::Text(text) => {
            meter.bytes(text.len())?;
            Value::check_length(text.len(), meter)?;
            let chars: Vec<char> = text.chars().collect();
            let part: String =
                places(chars.len()).into_iter().filter_map(|at| chars.get(at)).collect();
            Ok(Value::text(&part, meter)?.marked_safe(text.safe))
        }
        other => wrong(format!("{} does not support slices", other.kind())),
    }
}
