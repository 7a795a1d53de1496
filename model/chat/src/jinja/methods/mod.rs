//! Attributes and methods of values, as in a sandbox that does not change existing values.

mod texts;

use std::rc::Rc;

pub use texts::{fill_up, in_case, join, replace, split, strip};

use super::bind::{Arguments, whole};
use super::fault::{Fault, wrong};
use super::meter::Meter;
use super::ops;
use super::value::Loop;
use super::value::{ListKind, Map, Value};

const OF_OBJECTS: [&str; 6] = ["copy", "fromkeys", "get", "items", "keys", "values"];
const OF_LISTS: [&str; 3] = ["copy", "count", "index"];
const OF_TUPLES: [&str; 2] = ["count", "index"];
const OF_LOOPS: [&str; 2] = ["changed", "cycle"];
const OF_CYCLERS: [&str; 2] = ["next", "reset"];
const OF_INTS: [&str; 2] = ["bit_count", "bit_length"];
const OF_FLOATS: [&str; 1] = ["is_integer"];

/// `value.name`: a method, or otherwise a key of an object. `None` if neither exists.
pub fn attribute(value: &Value, name: &str, meter: &Rc<Meter>) -> Result<Option<Value>, Fault> {
    if let Some(own) = own_attribute(value, name, meter)? {
        return Ok(Some(own));
    }
    match value {
        Value::Map(map) => {
            meter.bytes(name.len())?;
            Ok(map.get_text(name).cloned())
        }
        _ => Ok(None),
    }
}

/// `value.name` without the keys of objects.
pub fn own_attribute(value: &Value, name: &str, meter: &Rc<Meter>) -> Result<Option<Value>, Fault> {
    let methods: &[&str] = match value {
        Value::Undefined => {
            return wrong(format!("an undefined value has no attribute {name:.40}"));
        }
        Value::Namespace(namespace) => return Ok(namespace.borrow().get(name).cloned()),
        Value::Text(_) => &texts::METHODS,
        Value::Map(_) => &OF_OBJECTS,
        Value::List(list) => match (list.kind, name) {
            (ListKind::Group, "grouper") => return Ok(list.items.first().cloned()),
            (ListKind::Group, "list") => return Ok(list.items.get(1).cloned()),
            (ListKind::List, _) => &OF_LISTS,
            (ListKind::Range([from, ..]), "start") => return Ok(Some(Value::Int(from))),
            (ListKind::Range([_, to, _]), "stop") => return Ok(Some(Value::Int(to))),
            (ListKind::Range([.., step]), "step") => return Ok(Some(Value::Int(step))),
            (kind, _) if kind.is_indexed() => &OF_TUPLES,
            _ => &[],
        },
        Value::Loop(state) => match of_loop(state, name) {
            None => &OF_LOOPS,
            found => return Ok(found),
        },
        Value::Cycler(cycler) => match name {
            "current" => return Ok(cycler.items.items.get(cycler.at.get()).cloned()),
            "pos" => return Ok(Some(Value::Int(cycler.at.get() as i128))),
            _ => &OF_CYCLERS,
        },
        Value::Macro(code, _) => {
            return Ok(Some(match name {
                "name" => Value::text(&code.name, meter)?,
                "arguments" => {
                    let names = code.parameters.iter().map(|(name, _)| Value::text(name, meter));
                    Value::tuple(names.collect::<Result<_, _>>()?, meter)?
                }
                "caller" => Value::Bool(code.uses.caller),
                "catch_varargs" => Value::Bool(code.uses.varargs),
                "catch_kwargs" => Value::Bool(code.uses.kwargs),
                _ => return Ok(None),
            }));
        }
        Value::Int(_) | Value::Bool(_) => &OF_INTS,
        Value::Float(_) => &OF_FLOATS,
        _ => &[],
    };
    Ok(methods.contains(&name).then(|| Value::Method(Rc::new((value.clone(), name.to_owned())))))
}

fn of_loop(state: &Loop, name: &str) -> Option<Value> {
    let (at, count) = (state.at.get(), state.items.items.len());
    let int = |n: usize| Some(Value::Int(n as i128));
    let item = |at: Option<usize>| {
        Some(at.and_then(|at| state.items.items.get(at)).cloned().unwrap_or(Value::Undefined))
    };
    match name {
        "index" => int(at + 1),
        "index0" => int(at),
        "revindex" => int(count - at),
        "revindex0" => int(count - at - 1),
        "first" => Some(Value::Bool(at == 0)),
        "last" => Some(Value::Bool(at + 1 == count)),
        "length" => int(count),
        "depth" => int(state.depth + 1),
        "depth0" => int(state.depth),
        "previtem" => item(at.checked_sub(1)),
        "nextitem" => item(Some(at + 1)),
        _ => None,
    }
}

/// Calls a method that [`attribute`] found.
pub fn call(
    value: &Value,
    name: &str,
    arguments: Arguments,
    meter: &Rc<Meter>,
) -> Result<Value, Fault> {
    meter.work(1)?;
    match value {
        Value::Text(this) => texts::call(this, name, &arguments, meter),
        Value::Map(map) => of_object(value, map, name, &arguments, meter),
        Value::List(list) => {
            if name == "copy" {
                return Ok(value.clone());
            }
            let [wanted, from, to] = arguments.bind(name, ["value", "start", "stop"], 1)?;
            let wanted = wanted.unwrap_or(&Value::Undefined);
            let places =
                super::items::bounds(list.items.len(), [whole(from, "start")?, whole(to, "stop")?]);
            let mut count = 0;
            for (at, item) in list.items.iter().enumerate().filter(|(at, _)| places.contains(at)) {
                if ops::equal(item, wanted, meter)? {
                    if name == "index" {
                        return Ok(Value::Int(at as i128));
                    }
                    count += 1;
                }
            }
            if name == "index" {
                wrong("index(): the list does not contain the value")
            } else {
                Ok(Value::Int(count))
            }
        }
        Value::Loop(state) => of_running_loop(state, name, arguments, meter),
        Value::Cycler(cycler) => {
            let at = cycler.at.get();
            let next = if name == "reset" { 0 } else { (at + 1) % cycler.items.items.len().max(1) };
            cycler.at.set(next);
            Ok(if name == "reset" { None } else { cycler.items.items.get(at).cloned() }
                .unwrap_or(Value::None))
        }
        Value::Int(n) => Ok(Value::Int(i128::from(match name {
            "bit_length" => 128 - n.unsigned_abs().leading_zeros(),
            _ => n.unsigned_abs().count_ones(),
        }))),
        Value::Bool(b) => Ok(Value::Int(i128::from(*b))),
        Value::Float(x) => Ok(Value::Bool(x.fract() == 0.0)),
        _ => unknown(value, name),
    }
}

fn of_object(
    value: &Value,
    map: &Map,
    name: &str,
    arguments: &Arguments,
    meter: &Rc<Meter>,
) -> Result<Value, Fault> {
    let count = map.entries.len();
    match name {
        "items" => {
            arguments.bind(name, [], 0)?;
            Value::check_length(count.saturating_mul(3), meter)?;
            let pair = |(key, value): &(Value, Value)| {
                Value::tuple(vec![key.clone(), value.clone()], meter)
            };
            let pairs = map.entries.iter().map(pair).collect::<Result<_, _>>()?;
            Value::sequence(pairs, ListKind::Items, meter)
        }
        "keys" => Value::sequence(super::items::items(value, meter)?, ListKind::Keys, meter),
        "values" => {
            Value::check_length(count, meter)?;
            Value::sequence(
                map.entries.iter().map(|(_, value)| value.clone()).collect(),
                ListKind::Values,
                meter,
            )
        }
        "get" => {
            let [key, default] = arguments.bind(name, ["key", "default"], 1)?;
            let key = key.unwrap_or(&Value::None);
            meter.bytes(key.as_text().map_or(0, str::len))?;
            Ok(map.get(key).or(default).cloned().unwrap_or(Value::None))
        }
        "fromkeys" => {
            let [keys, of_all] = arguments.bind(name, ["iterable", "value"], 1)?;
            let keys = super::items::items(keys.unwrap_or(&Value::Undefined), meter)?;
            Value::check_length(keys.len().saturating_mul(2), meter)?;
            let of_all = of_all.cloned().unwrap_or(Value::None);
            Value::map(keys.into_iter().map(|key| (key, of_all.clone())).collect(), meter)
        }
        _ => Ok(value.clone()),
    }
}

fn of_running_loop(
    state: &Loop,
    name: &str,
    arguments: Arguments,
    meter: &Rc<Meter>,
) -> Result<Value, Fault> {
    if name == "cycle" {
        return match arguments.positional.len() {
            0 => wrong("cycle() needs at least one value"),
            n => Ok(arguments
                .positional
                .get(state.at.get() % n)
                .cloned()
                .unwrap_or(Value::Undefined)),
        };
    }
    // A loop that contains itself would never be freed.
    if arguments.positional.iter().any(|value| value.inside().namespace) {
        return wrong("changed() does not accept loops or namespaces");
    }
    let mut last = state.last.borrow_mut();
    let same = match &*last {
        Some(last) if last.len() == arguments.positional.len() => {
            let mut same = true;
            for (a, b) in last.iter().zip(&arguments.positional) {
                same = same && ops::equal(a, b, meter)?;
            }
            same
        }
        _ => false,
    };
    *last = Some(arguments.positional);
    Ok(Value::Bool(!same))
}

/// The error for a method that does not exist, or that would change the value.
pub fn unknown<T>(value: &Value, name: &str) -> Result<T, Fault> {
    let changes = match value {
        Value::List(_) => {
            ["append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"]
                .contains(&name)
        }
        Value::Map(_) => ["clear", "pop", "popitem", "setdefault", "update"].contains(&name),
        _ => false,
    };
    if changes {
        return wrong(format!(
            "{name}(): a template cannot change an existing value; \
             create a new one ('set x = x + [y]', 'dict(x, a=1)')"
        ));
    }
    wrong(format!("{} has no method {name:.40}()", value.kind()))
}
