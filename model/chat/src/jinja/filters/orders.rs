//! Filters that compare elements or an attribute of the elements.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::rc::Rc;

use super::super::bind::{Arguments, flag, text};
use super::super::meter::Meter;
use super::super::ops;
use super::super::value::{Key, ListKind, Value};
use super::lists::path;
use crate::jinja::fault::{Fault, wrong};

pub fn filter(
    name: &str,
    value: &Value,
    arguments: &Arguments,
    meter: &Rc<Meter>,
) -> Result<Value, Fault> {
    match name {
        "sort" => {
            let [reverse, case, attribute] =
                arguments.bind(name, ["reverse", "case_sensitive", "attribute"], 0)?;
            let attributes = attributes(attribute, meter)?;
            let key = |item: &Value| {
                let keys = attributes
                    .iter()
                    .map(|attribute| by(item, attribute.as_ref(), None, flag(case, false), meter));
                Value::list(keys.collect::<Result<_, _>>()?, meter)
            };
            let all = keyed(crate::jinja::items::items(value, meter)?, key)?;
            Value::list(items(sorted(all, flag(reverse, false), meter)?), meter)
        }
        "dictsort" => {
            let [case, by_what, reverse] =
                arguments.bind(name, ["case_sensitive", "by", "reverse"], 0)?;
            let at = match text(by_what, "by")?.unwrap_or("key") {
                "key" => 0,
                "value" => 1,
                _ => return wrong("dictsort: 'by' must be key or value"),
            };
            let Value::Map(map) = value else {
                return wrong(format!("dictsort: {} is not an object", value.kind()));
            };
            Value::check_length(map.entries.len().saturating_mul(3), meter)?;
            let pair = |(key, value): &(Value, Value)| {
                Value::tuple(vec![key.clone(), value.clone()], meter)
            };
            let pairs = map.entries.iter().map(pair).collect::<Result<_, _>>()?;
            let all = keyed(pairs, |pair| {
                by(pair, Some(&Value::Int(at)), None, flag(case, false), meter)
            })?;
            Value::list(items(sorted(all, flag(reverse, false), meter)?), meter)
        }
        "groupby" => {
            let [attribute, default, case] =
                arguments.bind(name, ["attribute", "default", "case_sensitive"], 1)?;
            let default = default.filter(|default| !matches!(default, Value::None));
            let all = keyed(crate::jinja::items::items(value, meter)?, |item| {
                by(item, attribute, default, flag(case, false), meter)
            })?;
            let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
            for (key, item) in sorted(all, false, meter)? {
                match groups.last_mut() {
                    Some((last, group)) if ops::equal(last, &key, meter)? => group.push(item),
                    _ => groups.push((key, vec![item])),
                }
            }
            let group = |(_, items): (Value, Vec<Value>)| {
                // The key of a group is the key of its first element, with its original case.
                let key = by(
                    items.first().unwrap_or(&Value::Undefined),
                    attribute,
                    default,
                    true,
                    meter,
                )?;
                Value::sequence(vec![key, Value::list(items, meter)?], ListKind::Group, meter)
            };
            Value::list(groups.into_iter().map(group).collect::<Result<_, _>>()?, meter)
        }
        "unique" => {
            let [case, attribute] = arguments.bind(name, ["case_sensitive", "attribute"], 0)?;
            let all = keyed(crate::jinja::items::items(value, meter)?, |item| {
                by(item, attribute, None, flag(case, false), meter)
            })?;
            let mut seen = HashSet::new();
            let mut kept = Vec::new();
            for (key, item) in all {
                meter.bytes(key.as_text().map_or(0, str::len))?;
                if seen.insert(Key::of(&key)?) {
                    kept.push(item);
                }
            }
            Value::generator(kept, meter)
        }
        _ => {
            let [case, attribute] = arguments.bind(name, ["case_sensitive", "attribute"], 0)?;
            let all = keyed(crate::jinja::items::items(value, meter)?, |item| {
                by(item, attribute, None, flag(case, false), meter)
            })?;
            let wanted = if name == "min" { Ordering::Less } else { Ordering::Greater };
            let mut best: Option<(Value, Value)> = None;
            for (key, item) in all {
                let better = match &best {
                    Some((best, _)) => ops::order(&key, best, meter)? == Some(wanted),
                    None => true,
                };
                if better {
                    best = Some((key, item));
                }
            }
            Ok(best.map_or(Value::Undefined, |(_, item)| item))
        }
    }
}

/// An element or its attribute, in lower case unless the comparison is case-sensitive.
fn by(
    item: &Value,
    attribute: Option<&Value>,
    default: Option<&Value>,
    case: bool,
    meter: &Rc<Meter>,
) -> Result<Value, Fault> {
    let key = match attribute.filter(|attribute| !matches!(attribute, Value::None)) {
        Some(attribute) => path(item, attribute, default, meter)?,
        None => item.clone(),
    };
    match &key {
        Value::Text(text) if !case => {
            meter.bytes(text.len())?;
            Value::text(&text.to_lowercase(), meter)
        }
        _ => Ok(key),
    }
}

/// The attributes of `a,b`; a single `None` if no attribute is given.
fn attributes(attribute: Option<&Value>, meter: &Rc<Meter>) -> Result<Vec<Option<Value>>, Fault> {
    match attribute {
        Some(Value::Text(names)) => {
            names.split(',').map(|name| Value::text(name, meter).map(Some)).collect()
        }
        other => Ok(vec![other.cloned()]),
    }
}

fn keyed(
    items: Vec<Value>,
    key: impl Fn(&Value) -> Result<Value, Fault>,
) -> Result<Vec<(Value, Value)>, Fault> {
    items.into_iter().map(|item| Ok((key(&item)?, item))).collect()
}

fn items(keyed: Vec<(Value, Value)>) -> Vec<Value> {
    keyed.into_iter().map(|(_, item)| item).collect()
}

/// Sorts stably by ascending or descending keys.
fn sorted(
    mut keyed: Vec<(Value, Value)>,
    reverse: bool,
    meter: &Rc<Meter>,
) -> Result<Vec<(Value, Value)>, Fault> {
    sort(&mut keyed, |(a, _), (b, _)| {
        let order = ops::order(a, b, meter)?.unwrap_or(Ordering::Equal);
        Ok(if reverse { order.reverse() } else { order })
    })?;
    Ok(keyed)
}

/// A stable merge sort. Comparisons may fail, and they may be inconsistent (NaN, integers that a
/// float cannot represent exactly). The standard library's sort may panic in these cases.
fn sort<T: Clone>(
    all: &mut Vec<T>,
    compare: impl Fn(&T, &T) -> Result<Ordering, Fault>,
) -> Result<(), Fault> {
    let mut width = 1;
    while width < all.len() {
        let mut merged = Vec::with_capacity(all.len());
        for pair in all.chunks(2 * width) {
            let (mut left, mut right) = pair.split_at(width.min(pair.len()));
            while let ([l, left_rest @ ..], [r, right_rest @ ..]) = (left, right) {
                if compare(l, r)? == Ordering::Greater {
                    merged.push(r.clone());
                    right = right_rest;
                } else {
                    merged.push(l.clone());
                    left = left_rest;
                }
            }
            merged.extend_from_slice(left);
            merged.extend_from_slice(right);
        }
        *all = merged;
        width *= 2;
    }
    Ok(())
}
