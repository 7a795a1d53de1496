//! The built-in functions: `range`, `dict`, `namespace` and others.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use super::bind::{Arguments, whole};
use super::fault::{Fault, Kind, wrong};
use super::meter::Meter;
use super::range::range;
use super::text;
use super::value::{Cycler, Function, ListKind, Value};
use crate::clock;

/// The functions by name.
pub const FUNCTIONS: [(&str, Function); 8] = [
    ("range", Function::Range),
    ("namespace", Function::Namespace),
    ("dict", Function::Dict),
    ("raise_exception", Function::Raise),
    ("strftime_now", Function::Now),
    ("cycler", Function::Cycler),
    ("joiner", Function::Joiner),
    ("lipsum", Function::Lipsum),
];

/// Calls a function.
pub fn call(function: Function, arguments: Arguments, meter: &Rc<Meter>) -> Result<Value, Fault> {
    match function {
        Function::Range => {
            let bounds =
                arguments.positional.iter().map(|value| whole(Some(value), "a bound of range()"));
            let bounds = bounds.collect::<Result<Vec<_>, _>>()?;
            let [from, to, step] = match *bounds.as_slice() {
                [Some(to)] => [0, to, 1],
                [Some(from), Some(to)] => [from, to, 1],
                [Some(from), Some(to), Some(step)] if step != 0 => [from, to, step],
                _ => {
                    return wrong(
                        "range() needs a stop, \
                         a start and a stop, or a start, a stop and a step that is not 0",
                    );
                }
            };
            range([from, to, step], meter)
        }
        Function::Dict => Value::map(entries(arguments, meter)?, meter),
        Function::Namespace => {
            let mut all = HashMap::new();
            for (key, value) in entries(arguments, meter)? {
                if value.inside().namespace {
                    return wrong("a namespace cannot contain a namespace");
                }
                let Some(name) = key.as_text() else {
                    return wrong("the name of an attribute is not a string");
                };
                all.insert(name.to_owned(), value);
            }
            Ok(Value::Namespace(Rc::new(RefCell::new(all))))
        }
        Function::Raise => {
            let [words] = arguments.bind("raise_exception", ["message"], 1)?;
            let words = text::to_string(words.unwrap_or(&Value::Undefined), meter)?;
            Err(Fault { line: 0, kind: Kind::Raised(words) })
        }
        Function::Now => match arguments.positional.first().and_then(Value::as_text) {
            Some(format) if format.len() <= 1000 => {
                Value::text(&clock::strftime_now(format), meter)
            }
            _ => wrong("strftime_now needs a format of at most 1000 characters"),
        },
        Function::Cycler => {
            if arguments.positional.is_empty() {
                return wrong("cycler() needs at least one value");
            }
            let items = Value::metered_list(arguments.positional, ListKind::List, meter)?;
            Ok(Value::Cycler(Rc::new(Cycler { items, at: Cell::new(0) })))
        }
        Function::Joiner => {
            let [between] = arguments.bind("joiner", ["sep"], 0)?;
            let between =
                between.map_or_else(|| Value::text(", ", meter), |between| Ok(between.clone()))?;
            Ok(Value::Joiner(Rc::new((between, Cell::new(false)))))
        }
        Function::Lipsum => {
            wrong("lipsum() is not supported: prompts must not depend on random numbers")
        }
    }
}

/// The entries of `dict()`: from an object or a list of pairs, and from named arguments.
fn entries(arguments: Arguments, meter: &Rc<Meter>) -> Result<Vec<(Value, Value)>, Fault> {
    let mut entries = Vec::new();
    match arguments.positional.as_slice() {
        [] => {}
        [Value::Map(map)] => {
            Value::check_length(map.entries.len().saturating_mul(2), meter)?;
            entries.extend(map.entries.iter().cloned());
        }
        [pairs] => {
            for pair in super::items::items(pairs, meter)? {
                match super::items::items(&pair, meter)?.as_slice() {
                    [key, value] => entries.push((key.clone(), value.clone())),
                    _ => return wrong("dict(): an element is not a pair"),
                }
            }
        }
        _ => return wrong("dict() needs at most one object or list, and named values"),
    }
    for (name, value) in arguments.named {
        entries.push((Value::text(&name, meter)?, value));
    }
    Ok(entries)
}
