//! The filters: all filters of jinja2 except `random`.

mod lists;
mod names;
mod numbers;
mod orders;
mod texts;
mod wrap;

use super::bind::{Arguments, flag};
use super::fault::{Fault, wrong};
use super::levels::Levels;
use super::meter::Meter;
use super::tests;
use super::value::Value;
use super::{html, methods, text};
use lists::path;
pub use names::FILTERS;
use std::rc::Rc;

/// `value|name(arguments)`
pub fn filter(
    name: &str,
    value: &Value,
    arguments: Arguments,
    meter: &Rc<Meter>,
    levels: &mut Levels,
) -> Result<Value, Fault> {
    meter.work(1)?;
    match name {
        "default" | "d" => {
            let [default, loose] = arguments.bind(name, ["default_value", "boolean"], 0)?;
            let missing =
                matches!(value, Value::Undefined) || (flag(loose, false) && !value.is_true());
            match (missing, default) {
                (false, _) => Ok(value.clone()),
                (true, Some(default)) => Ok(default.clone()),
                (true, None) => Value::text("", meter),
            }
        }
        "attr" => {
            let [attribute] = arguments.bind(name, ["name"], 1)?;
            let attribute = text::to_string(attribute.unwrap_or(&Value::Undefined), meter)?;
            Ok(methods::own_attribute(value, &attribute, meter)?.unwrap_or(Value::Undefined))
        }
        "abs" | "filesizeformat" | "float" | "int" | "round" => {
            numbers::filter(name, value, &arguments, meter)
        }
        "capitalize" | "center" | "format" | "indent" | "lower" | "pprint" | "replace"
        | "split" | "string" | "title" | "tojson" | "trim" | "truncate" | "upper" | "wordcount"
        | "wordwrap" => texts::filter(name, value, &arguments, meter),
        "e" | "escape" | "forceescape" | "safe" | "striptags" | "urlencode" | "urlize"
        | "xmlattr" => html::filter(name, value, &arguments, meter),
        "dictsort" | "groupby" | "max" | "min" | "sort" | "unique" => {
            orders::filter(name, value, &arguments, meter)
        }
        "batch" | "count" | "first" | "items" | "join" | "last" | "length" | "list" | "reverse"
        | "slice" | "sum" => lists::filter(name, value, &arguments, meter),
        "map" => map(value, arguments, meter, levels),
        "reject" | "rejectattr" | "select" | "selectattr" => select(name, value, arguments, meter),
        "random" => {
            wrong("the filter 'random' is not supported: prompts must not depend on random numbers")
        }
        _ => wrong(format!("unknown filter '{name:.40}'")),
    }
}

fn map(
    value: &Value,
    mut arguments: Arguments,
    meter: &Rc<Meter>,
    levels: &mut Levels,
) -> Result<Value, Fault> {
    let items = crate::jinja::items::items(value, meter)?;
    let mut out = Vec::new();
    let by_attribute = arguments.named.iter().any(|(name, _)| name == "attribute");
    if arguments.positional.is_empty() && by_attribute {
        let [attribute, default] = arguments.bind("map", ["attribute", "default"], 1)?;
        let default = default.filter(|default| !matches!(default, Value::None));
        for item in items {
            out.push(path(&item, attribute.unwrap_or(&Value::Undefined), default, meter)?);
        }
    } else {
        if arguments.positional.is_empty() {
            return wrong("map needs the name of a filter, or attribute=NAME");
        }
        let name = text::to_string(&arguments.positional.remove(0), meter)?;
        // A filter of filters (`map('map', …)`) recurses once for each name. `levels` limits the
        // recursion.
        for item in items {
            let arguments = Arguments {
                positional: arguments.positional.clone(),
                named: arguments.named.clone(),
            };
            meter.work(1 + arguments.positional.len() + arguments.named.len())?;
            levels.enter()?;
            let result = filter(&name, &item, arguments, meter, levels);
            levels.leave();
            out.push(result?);
        }
    }
    Value::generator(out, meter)
}

fn select(
    name: &str,
    value: &Value,
    mut arguments: Arguments,
    meter: &Rc<Meter>,
) -> Result<Value, Fault> {
    let items = crate::jinja::items::items(value, meter)?;
    let mut positional = std::mem::take(&mut arguments.positional).into_iter();
    let attribute = if name.ends_with("attr") { positional.next() } else { None };
    if name.ends_with("attr") && attribute.is_none() {
        return wrong(format!("{name} needs the name of an attribute"));
    }
    let test = positional.next().map(|name| text::to_string(&name, meter)).transpose()?;
    arguments.positional = positional.collect();
    let mut out = Vec::new();
    for item in items {
        let value = match &attribute {
            Some(attribute) => path(&item, attribute, None, meter)?,
            None => item.clone(),
        };
        let passes = match &test {
            Some(test) => tests::test(test, &value, &arguments, meter)?,
            None => value.is_true(),
        };
        if passes == name.starts_with("select") {
            out.push(item);
        }
    }
    Value::generator(out, meter)
}
