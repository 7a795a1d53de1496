//! The filters: all of jinja2's except `random`.

mod lists;
mod numbers;
mod orders;
mod texts;
mod wrap;

use super::bind::{Arguments, flag};
use super::run::Run;
use super::value::Value;
use super::{Fault, html, methods, text, wrong};

/// The names of all filters.
pub const FILTERS: [&str; 55] = [
    "abs",
    "attr",
    "batch",
    "capitalize",
    "center",
    "count",
    "d",
    "default",
    "dictsort",
    "e",
    "escape",
    "filesizeformat",
    "first",
    "float",
    "forceescape",
    "format",
    "groupby",
    "indent",
    "int",
    "items",
    "join",
    "last",
    "length",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "pprint",
    "random",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "round",
    "safe",
    "select",
    "selectattr",
    "slice",
    "sort",
    "split",
    "string",
    "striptags",
    "sum",
    "title",
    "tojson",
    "trim",
    "truncate",
    "unique",
    "upper",
    "urlencode",
    "urlize",
    "wordcount",
    "wordwrap",
    "xmlattr",
];

/// `value|name(arguments)`
pub fn filter(
    run: &mut Run,
    name: &str,
    value: &Value,
    arguments: Arguments,
) -> Result<Value, Fault> {
    let meter = &run.meter.clone();
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
        "map" => lists::map(run, value, arguments),
        "reject" | "rejectattr" | "select" | "selectattr" => {
            lists::select(run, name, value, arguments)
        }
        "random" => wrong("random chooses by chance, which a prompt does not do"),
        _ => wrong(format!("there is no filter '{name:.40}'")),
    }
}
