//! The elements of values.

use super::fault::{Fault, wrong};
use super::meter::Meter;
use super::value::Value;
use std::rc::Rc;

/// The elements of a list, the characters of a string, the keys of an object, or the rest of a
/// generator. Empty for an undefined value.
pub fn items(value: &Value, meter: &Rc<Meter>) -> Result<Vec<Value>, Fault> {
    match value {
        Value::List(list) => {
            Value::check_length(list.items.len(), meter)?;
            Ok(list.items.clone())
        }
        Value::Map(map) => {
            Value::check_length(map.entries.len(), meter)?;
            Ok(map.entries.iter().map(|(key, _)| key.clone()).collect())
        }
        Value::Text(text) => {
            text.chars().map(|c| Value::text(c.encode_utf8(&mut [0; 4]), meter)).collect()
        }
        Value::Generator(generator) => {
            Value::check_length(
                generator.items.items.len().saturating_sub(generator.at.get()),
                meter,
            )?;
            Ok(std::iter::from_fn(|| generator.next()).collect())
        }
        Value::Undefined => Ok(Vec::new()),
        other => wrong(format!("{} has no elements", other.kind())),
    }
}

/// The index range between two bounds; an absent bound is `None`.
pub fn bounds(len: usize, ends: [Option<i128>; 2]) -> std::ops::Range<usize> {
    let place = |at: i128| {
        (if at < 0 { at.saturating_add(len as i128) } else { at }).clamp(0, len as i128) as usize
    };
    let [from, to] = ends;
    from.map_or(0, place)..to.map_or(len, place)
}
