//! The tests (`value is name`): all tests of jinja2.

use std::rc::Rc;

use super::ast::Comparison as C;
use super::bind::Arguments;
use super::fault::{Fault, wrong};
use super::filters::FILTERS;
use super::meter::Meter;
use super::value::Value;
use super::{chars, ops, text};

/// The names of all tests.
pub const TESTS: [&str; 41] = [
    "!=",
    "<",
    "<=",
    "==",
    ">",
    ">=",
    "boolean",
    "callable",
    "defined",
    "divisibleby",
    "endingwith",
    "eq",
    "equalto",
    "escaped",
    "even",
    "false",
    "filter",
    "float",
    "ge",
    "greaterthan",
    "gt",
    "in",
    "integer",
    "iterable",
    "le",
    "lessthan",
    "lower",
    "lt",
    "mapping",
    "ne",
    "none",
    "number",
    "odd",
    "sameas",
    "sequence",
    "startingwith",
    "string",
    "test",
    "true",
    "undefined",
    "upper",
];

/// `value is name`
pub fn test(
    name: &str,
    value: &Value,
    arguments: &Arguments,
    meter: &Rc<Meter>,
) -> Result<bool, Fault> {
    meter.work(1)?;
    let operand = |parameter: &'static str| {
        Ok::<_, Fault>(arguments.bind(name, [parameter], 1)?[0].unwrap_or(&Value::Undefined))
    };
    let compared = |comparison| ops::compare(comparison, value, operand("other")?, meter);
    if let Some(comparison) = comparison(name) {
        return compared(comparison);
    }
    match name {
        "in" => return ops::compare(C::In, value, operand("seq")?, meter),
        "sameas" => return Ok(same(value, operand("other")?)),
        "divisibleby" => {
            return Ok(
                !ops::operate(super::ast::Operator::Rem, value, operand("num")?, meter)?.is_true()
            );
        }
        // jinja2 does not have these tests, but some templates use them.
        "startingwith" | "endingwith" => {
            let both = value.as_text().zip(operand("part")?.as_text());
            return Ok(both.is_some_and(|(this, part)| match name {
                "startingwith" => this.starts_with(part),
                _ => this.ends_with(part),
            }));
        }
        _ => drop(arguments.bind(name, [], 0)?),
    }
    Ok(match name {
        "defined" => !matches!(value, Value::Undefined),
        "undefined" => matches!(value, Value::Undefined),
        "none" => matches!(value, Value::None),
        "boolean" => matches!(value, Value::Bool(_)),
        "true" => matches!(value, Value::Bool(true)),
        "false" => matches!(value, Value::Bool(false)),
        "integer" => matches!(value, Value::Int(_)),
        "float" => matches!(value, Value::Float(_)),
        "number" => matches!(value, Value::Int(_) | Value::Float(_) | Value::Bool(_)),
        "string" => matches!(value, Value::Text(_)),
        "escaped" => matches!(value, Value::Text(text) if text.safe),
        "mapping" => matches!(value, Value::Map(_)),
        "sequence" => match value {
            Value::List(list) => list.kind.is_indexed(),
            other => matches!(other, Value::Text(_) | Value::Map(_) | Value::Undefined),
        },
        "iterable" => matches!(
            value,
            Value::List(_)
                | Value::Text(_)
                | Value::Map(_)
                | Value::Undefined
                | Value::Generator(_)
                | Value::Loop(_)
                | Value::Cycler(_)
        ),
        "callable" => matches!(
            value,
            Value::Macro(..)
                | Value::Function(_)
                | Value::Method(_)
                | Value::Loop(_)
                | Value::Joiner(_)
                | Value::Undefined
        ),
        "odd" | "even" => {
            let rest = ops::operate(super::ast::Operator::Rem, value, &Value::Int(2), meter)?;
            ops::equal(&rest, &Value::Int(i128::from(name == "odd")), meter)?
        }
        "lower" => cased(value, chars::is_lower_case, meter)?,
        "upper" => cased(value, chars::is_upper_case, meter)?,
        "filter" => value.as_text().is_some_and(|name| FILTERS.contains(&name)),
        "test" => value.as_text().is_some_and(|name| TESTS.contains(&name)),
        _ => return wrong(format!("unknown test '{name:.40}'")),
    })
}

fn comparison(name: &str) -> Option<C> {
    Some(match name {
        "eq" | "equalto" | "==" => C::Eq,
        "ne" | "!=" => C::Ne,
        "lt" | "lessthan" | "<" => C::Lt,
        "le" | "<=" => C::Le,
        "gt" | "greaterthan" | ">" => C::Gt,
        "ge" | ">=" => C::Ge,
        _ => return None,
    })
}

fn cased(value: &Value, is: fn(&str) -> bool, meter: &Rc<Meter>) -> Result<bool, Fault> {
    let text = text::to_string(value, meter)?;
    meter.bytes(text.len())?;
    Ok(is(&text))
}

/// Whether both are the same object. Two equal numbers of one type are the same object, and so are
/// two equal strings.
fn same(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::None, Value::None) | (Value::Undefined, Value::Undefined) => true,
        (Value::Bool(a), Value::Bool(b)) => a == b,
        (Value::Int(a), Value::Int(b)) => a == b,
        (Value::Float(a), Value::Float(b)) => a == b,
        (Value::Text(a), Value::Text(b)) => a.is(b) || **a == **b,
        (Value::List(a), Value::List(b)) => Rc::ptr_eq(a, b),
        (Value::Map(a), Value::Map(b)) => Rc::ptr_eq(a, b),
        (Value::Namespace(a), Value::Namespace(b)) => Rc::ptr_eq(a, b),
        (Value::Loop(a), Value::Loop(b)) => Rc::ptr_eq(a, b),
        (Value::Generator(a), Value::Generator(b)) => Rc::ptr_eq(a, b),
        (Value::Function(a), Value::Function(b)) => a == b,
        _ => false,
    }
}
