//! Filters on lists.

use std::rc::Rc;

use super::super::ast::Operator;
use super::super::bind::{Arguments, size};
use super::super::meter::Meter;
use super::super::value::Value;
use super::super::{methods, ops, text};
use crate::jinja::fault::{Fault, wrong};

pub fn filter(
    name: &str,
    value: &Value,
    arguments: &Arguments,
    meter: &Rc<Meter>,
) -> Result<Value, Fault> {
    match name {
        "length" | "count" => {
            arguments.bind(name, [], 0)?;
            Ok(Value::Int(match value {
                Value::Text(text) => {
                    meter.bytes(text.len())?;
                    text.chars().count()
                }
                Value::List(list) => list.items.len(),
                Value::Map(map) => map.entries.len(),
                Value::Loop(state) => state.items.items.len(),
                Value::Undefined => 0,
                other => return wrong(format!("{} has no length", other.kind())),
            } as i128))
        }
        "list" => Value::list(crate::jinja::items::items(value, meter)?, meter),
        "items" => match value {
            Value::Undefined => Value::generator(Vec::new(), meter),
            Value::Map(map) => {
                Value::check_length(map.entries.len().saturating_mul(3), meter)?;
                let pair = |(key, value): &(Value, Value)| {
                    Value::tuple(vec![key.clone(), value.clone()], meter)
                };
                Value::generator(map.entries.iter().map(pair).collect::<Result<_, _>>()?, meter)
            }
            other => wrong(format!("items: {} is not an object", other.kind())),
        },
        "first" => Ok(match value {
            Value::Generator(generator) => generator.next(),
            Value::List(list) => list.items.first().cloned(),
            other => crate::jinja::items::items(other, meter)?.into_iter().next(),
        }
        .unwrap_or(Value::Undefined)),
        "last" => match value {
            Value::Generator(_) => wrong(format!("last: {} has no known end", value.kind())),
            Value::List(list) => Ok(list.items.last().cloned().unwrap_or(Value::Undefined)),
            other => {
                Ok(crate::jinja::items::items(other, meter)?.pop().unwrap_or(Value::Undefined))
            }
        },
        "reverse" => match value {
            Value::Text(text) => {
                meter.bytes(text.len())?;
                Value::check_length(text.len() / 16, meter)?;
                Ok(Value::text(&text.chars().rev().collect::<String>(), meter)?
                    .marked_safe(text.safe))
            }
            _ => {
                let mut items = crate::jinja::items::items(value, meter)?;
                items.reverse();
                match value {
                    Value::Generator(_) => Value::list(items, meter),
                    _ => Value::generator(items, meter),
                }
            }
        },
        "join" => {
            let [between, attribute] = arguments.bind(name, ["d", "attribute"], 0)?;
            let between = between
                .map_or_else(|| Ok(String::new()), |between| text::to_string(between, meter))?;
            let mut items = crate::jinja::items::items(value, meter)?;
            if let Some(attribute) = attribute.filter(|attribute| !matches!(attribute, Value::None))
            {
                items = items
                    .iter()
                    .map(|item| path(item, attribute, None, meter))
                    .collect::<Result<_, _>>()?;
            }
            methods::join(&between, &items, meter)
        }
        "sum" => {
            let [attribute, start] = arguments.bind(name, ["attribute", "start"], 0)?;
            let mut sum = start.cloned().unwrap_or(Value::Int(0));
            for item in crate::jinja::items::items(value, meter)? {
                let item = match attribute.filter(|attribute| !matches!(attribute, Value::None)) {
                    Some(attribute) => path(&item, attribute, None, meter)?,
                    None => item,
                };
                sum = ops::operate(Operator::Add, &sum, &item, meter)?;
            }
            Ok(sum)
        }
        "batch" => {
            let [count, fill] = arguments.bind(name, ["linecount", "fill_with"], 1)?;
            let items = crate::jinja::items::items(value, meter)?;
            let count = match size(count, "linecount", 0)? {
                0 => return wrong("batch: a row needs at least one element"),
                count => count,
            };
            let mut rows: Vec<Vec<Value>> = items.chunks(count).map(<[Value]>::to_vec).collect();
            if let (Some(fill), Some(last)) = (filling(fill), rows.last_mut()) {
                Value::check_length(count, meter)?;
                last.resize(count, fill.clone());
            }
            let rows =
                rows.into_iter().map(|row| Value::list(row, meter)).collect::<Result<_, _>>()?;
            Value::generator(rows, meter)
        }
        _ => {
            let [count, fill] = arguments.bind(name, ["slices", "fill_with"], 1)?;
            let items = crate::jinja::items::items(value, meter)?;
            let count = match size(count, "slices", 0)? {
                0 => return wrong("slice: the number of slices must be at least 1"),
                count => count,
            };
            Value::check_length(count.saturating_mul(2), meter)?;
            let (each, longer) = (items.len() / count, items.len() % count);
            let mut rows = Vec::new();
            for i in 0..count {
                let from = i * each + i.min(longer);
                let to = from + each + usize::from(i < longer);
                let mut row = items.get(from..to).unwrap_or_default().to_vec();
                row.extend(filling(fill).filter(|_| i >= longer).cloned());
                rows.push(Value::list(row, meter)?);
            }
            Value::generator(rows, meter)
        }
    }
}

fn filling(fill: Option<&Value>) -> Option<&Value> {
    fill.filter(|fill| !matches!(fill, Value::None))
}

/// The value at a path such as `a.b.0`. If an element of the path does not exist: the default, if
/// one is given.
pub fn path(
    value: &Value,
    attribute: &Value,
    default: Option<&Value>,
    meter: &Rc<Meter>,
) -> Result<Value, Fault> {
    let part = |value: &Value, part: &Value| {
        meter.work(1)?;
        let found = crate::jinja::index::item(value, part, meter)?;
        Ok(match (found, default) {
            (Value::Undefined, Some(default)) => default.clone(),
            (found, _) => found,
        })
    };
    let Some(names) = attribute.as_text() else { return part(value, attribute) };
    let mut value = value.clone();
    for name in names.split('.') {
        value = match name.parse() {
            Ok(at) => part(&value, &Value::Int(at))?,
            Err(_) => part(&value, &Value::text(name, meter)?)?,
        };
    }
    Ok(value)
}
