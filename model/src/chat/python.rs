//! Values as Python writes them, which is what templates were tested with.

use std::fmt::Write;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Output, State, Value};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

/// `{{ value }}`: Python's `str`.
pub fn write_value(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    match value.kind() {
        ValueKind::Bool | ValueKind::None | ValueKind::Seq | ValueKind::Map => {
            let mut text = String::new();
            repr(value, &mut text, 0)?;
            out.write_str(&text).map_err(|_| Error::new(ErrorKind::WriteFailure, "cannot write"))
        }
        _ => minijinja::escape_formatter(out, state, value),
    }
}

/// Python's `repr`.
fn repr(value: &Value, out: &mut String, depth: usize) -> Result<(), Error> {
    if depth > 64 {
        return Err(Error::new(ErrorKind::InvalidOperation, "values are nested more than 64 deep"));
    }
    match value.kind() {
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::String => {
            let text = value.as_str().unwrap_or_default();
            let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
            out.push(quote);
            for c in text.chars() {
                match c {
                    '\\' => out.push_str("\\\\"),
                    '\n' => out.push_str("\\n"),
                    '\r' => out.push_str("\\r"),
                    '\t' => out.push_str("\\t"),
                    c if c == quote => {
                        out.push('\\');
                        out.push(c);
                    }
                    c if c.is_control() && (c as u32) < 0x100 => {
                        let _ = write!(out, "\\x{:02x}", c as u32);
                    }
                    c => out.push(c),
                }
            }
            out.push(quote);
        }
        ValueKind::Seq => {
            out.push('[');
            for (i, item) in value.try_iter()?.enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                repr(&item, out, depth + 1)?;
            }
            out.push(']');
        }
        ValueKind::Map => {
            out.push('{');
            for (i, key) in value.try_iter()?.enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                repr(&key, out, depth + 1)?;
                out.push_str(": ");
                repr(&value.get_item(&key)?, out, depth + 1)?;
            }
            out.push('}');
        }
        _ => {
            let _ = write!(out, "{value}");
        }
    }
    Ok(())
}

/// `tojson`: `json.dumps(value, ensure_ascii=False, indent=…)`.
pub fn to_json(value: &Value, indent: Option<&Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let by_name: Option<Value> = kwargs.get("indent")?;
    for ignored in ["ensure_ascii", "separators", "sort_keys"] {
        if kwargs.has(ignored) {
            let default: Value = kwargs.get(ignored)?;
            if default.is_true() {
                let problem = format!("tojson: {ignored} is not supported");
                return Err(Error::new(ErrorKind::InvalidOperation, problem));
            }
        }
    }
    kwargs.assert_all_used()?;
    let indent = by_name.as_ref().or(indent).filter(|indent| !indent.is_none());
    let text = match indent {
        None => dump(value, Spaced)?,
        Some(indent) => {
            let width = indent.as_usize().filter(|width| *width <= 64).ok_or_else(|| {
                Error::new(ErrorKind::InvalidOperation, format!("tojson: indent {indent} is not a number up to 64"))
            })?;
            dump(value, PrettyFormatter::with_indent(" ".repeat(width).as_bytes()))?
        }
    };
    Ok(Value::from_safe_string(text))
}

fn dump(value: &Value, formatter: impl Formatter) -> Result<String, Error> {
    let mut out = Vec::new();
    value
        .serialize(&mut Serializer::with_formatter(&mut out, formatter))
        .map_err(|error| Error::new(ErrorKind::BadSerialization, format!("tojson: {error}")))?;
    Ok(String::from_utf8_lossy(&out).into_owned())
}

/// One line with `, ` and `: `.
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + std::io::Write>(&mut self, out: &mut W, first: bool) -> std::io::Result<()> {
        out.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(&mut self, out: &mut W, first: bool) -> std::io::Result<()> {
        out.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(&mut self, out: &mut W) -> std::io::Result<()> {
        out.write_all(b": ")
    }
}
