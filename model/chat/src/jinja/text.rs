//! Prints values as Python does, and as `json.dumps` does.

use std::rc::Rc;

use super::chars;
use super::fault::{Fault, wrong};
use super::meter::{Meter, MeteredString};
use super::value::{ListKind, Value};

/// Appends `str(value)`.
pub fn write(value: &Value, out: &mut MeteredString, meter: &Rc<Meter>) -> Result<(), Fault> {
    match value {
        Value::Undefined => Ok(()),
        Value::Text(text) => out.push(text),
        other => repr(other, out, meter),
    }
}

/// `str(value)`
pub fn to_string(value: &Value, meter: &Rc<Meter>) -> Result<String, Fault> {
    let mut out = MeteredString::new(meter);
    write(value, &mut out, meter)?;
    Ok(out.finish_uncounted())
}

/// A string unchanged, or `str` of any other value.
pub fn as_text(value: &Value, meter: &Rc<Meter>) -> Result<Value, Fault> {
    match value {
        Value::Text(_) => Ok(value.clone()),
        other => {
            let mut out = MeteredString::new(meter);
            write(other, &mut out, meter)?;
            Value::grown(out, meter)
        }
    }
}

/// Appends `repr(value)`. Recursion is limited by the depth of values.
pub fn repr(value: &Value, out: &mut MeteredString, meter: &Rc<Meter>) -> Result<(), Fault> {
    meter.work(1)?;
    match value {
        Value::Undefined => out.push("Undefined"),
        Value::None => out.push("None"),
        Value::Bool(true) => out.push("True"),
        Value::Bool(false) => out.push("False"),
        Value::Int(n) => out.push(&n.to_string()),
        Value::Float(x) => out.push(&float(*x)),
        Value::Text(text) => quoted(text, out),
        Value::List(list) => {
            let (open, close) = match list.kind {
                ListKind::List => ("[", "]"),
                ListKind::Tuple | ListKind::Group if list.items.len() == 1 => ("(", ",)"),
                ListKind::Tuple | ListKind::Group => ("(", ")"),
                ListKind::Keys => ("dict_keys([", "])"),
                ListKind::Values => ("dict_values([", "])"),
                ListKind::Items => ("dict_items([", "])"),
                ListKind::Range([from, to, 1]) => return out.push(&format!("range({from}, {to})")),
                ListKind::Range([from, to, step]) => {
                    return out.push(&format!("range({from}, {to}, {step})"));
                }
            };
            out.push(open)?;
            for (i, item) in list.items.iter().enumerate() {
                out.push(if i > 0 { ", " } else { "" })?;
                repr(item, out, meter)?;
            }
            out.push(close)
        }
        Value::Map(map) => {
            out.push("{")?;
            for (i, (key, value)) in map.entries.iter().enumerate() {
                out.push(if i > 0 { ", " } else { "" })?;
                repr(key, out, meter)?;
                out.push(": ")?;
                repr(value, out, meter)?;
            }
            out.push("}")
        }
        Value::Macro(code, _) => out.push(&format!("<Macro '{}'>", code.name)),
        Value::Loop(state) => {
            out.push(&format!("<LoopContext {}/{}>", state.at.get() + 1, state.items.items.len()))
        }
        other => wrong(format!("{} cannot be printed", other.kind())),
    }
}

/// `pprint.pformat(value)`: sorted keys, and one element per line if a line would exceed 80
/// characters. Long strings are not split.
pub fn pretty(value: &Value, out: &mut MeteredString, meter: &Rc<Meter>) -> Result<(), Fault> {
    pretty_at(&sorted(value, meter)?, 0, 0, out, meter)
}

/// The value with the keys of its objects sorted, if they can be ordered.
fn sorted(value: &Value, meter: &Rc<Meter>) -> Result<Value, Fault> {
    meter.work(1)?;
    match value {
        Value::List(list)
            if matches!(list.kind, ListKind::List | ListKind::Tuple | ListKind::Group) =>
        {
            Value::check_length(list.items.len(), meter)?;
            let items =
                list.items.iter().map(|item| sorted(item, meter)).collect::<Result<_, _>>()?;
            Value::sequence(items, list.kind, meter)
        }
        Value::Map(map) => {
            Value::check_length(map.entries.len().saturating_mul(2), meter)?;
            let mut entries = Vec::new();
            for (key, value) in &map.entries {
                entries.push((key.clone(), sorted(value, meter)?));
            }
            if entries.iter().all(|(key, _)| key.as_text().is_some()) {
                entries.sort_by(|a, b| a.0.as_text().cmp(&b.0.as_text()));
            }
            Value::map(entries, meter)
        }
        other => Ok(other.clone()),
    }
}

fn pretty_at(
    value: &Value,
    indent: usize,
    behind: usize,
    out: &mut MeteredString,
    meter: &Rc<Meter>,
) -> Result<(), Fault> {
    let whole = represented(value, meter)?;
    let fits = whole.chars().count() <= 80usize.saturating_sub(indent + behind);
    match value {
        Value::List(list) if !fits && list.kind.is_indexed() && !list.items.is_empty() => {
            let tuple = list.kind.is_tuple();
            out.push(if tuple { "(" } else { "[" })?;
            for (i, item) in list.items.iter().enumerate() {
                next_line(i, indent + 1, out)?;
                let last = i + 1 == list.items.len();
                pretty_at(item, indent + 1, if last { behind + 1 } else { 1 }, out, meter)?;
            }
            out.push(match (tuple, list.items.len()) {
                (true, 1) => ",)",
                (true, _) => ")",
                (false, _) => "]",
            })
        }
        Value::Map(map) if !fits && !map.entries.is_empty() => {
            out.push("{")?;
            for (i, (key, value)) in map.entries.iter().enumerate() {
                next_line(i, indent + 1, out)?;
                let key = represented(key, meter)?;
                out.push(&key)?;
                out.push(": ")?;
                let last = i + 1 == map.entries.len();
                let at = indent + 3 + key.chars().count();
                pretty_at(value, at, if last { behind + 1 } else { 1 }, out, meter)?;
            }
            out.push("}")
        }
        _ => out.push(&whole),
    }
}

fn next_line(i: usize, indent: usize, out: &mut MeteredString) -> Result<(), Fault> {
    if i > 0 {
        out.push(",\n")?;
        out.repeat(" ", indent)?;
    }
    Ok(())
}

/// `repr(value)`
pub fn represented(value: &Value, meter: &Rc<Meter>) -> Result<String, Fault> {
    let mut out = MeteredString::new(meter);
    repr(value, &mut out, meter)?;
    Ok(out.finish_uncounted())
}

/// `ascii(value)`
pub fn ascii(value: &Value, meter: &Rc<Meter>) -> Result<String, Fault> {
    let mut out = MeteredString::new(meter);
    for c in represented(value, meter)?.chars() {
        if c.is_ascii() { out.push_char(c)? } else { escaped(c, &mut out)? }
    }
    Ok(out.finish_uncounted())
}

/// A character as an escape sequence.
fn escaped(c: char, out: &mut MeteredString) -> Result<(), Fault> {
    out.push(&match u32::from(c) {
        n @ 0..0x100 => format!("\\x{n:02x}"),
        n @ 0x100..0x1_0000 => format!("\\u{n:04x}"),
        n => format!("\\U{n:08x}"),
    })
}

fn quoted(text: &str, out: &mut MeteredString) -> Result<(), Fault> {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push_char(quote)?;
    for c in text.chars() {
        match c {
            '\\' => out.push("\\\\")?,
            '\n' => out.push("\\n")?,
            '\r' => out.push("\\r")?,
            '\t' => out.push("\\t")?,
            c if c == quote => {
                out.push("\\")?;
                out.push_char(c)?;
            }
            c if c.is_ascii_graphic() || chars::is_printable(c) => out.push_char(c)?,
            c => escaped(c, out)?,
        }
    }
    out.push_char(quote)
}

/// A float as Python prints it: the shortest digits that parse back, with an exponent below 1e-4
/// and from 1e16.
pub fn float(x: f64) -> String {
    if x.is_nan() {
        return "nan".to_owned();
    }
    if x.is_infinite() {
        return if x > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let short = format!("{x:e}");
    let (digits, exponent) = short.split_once('e').unwrap_or((&short, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if x != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.unsigned_abs());
    }
    let plain = format!("{x}");
    if plain.contains('.') { plain } else { format!("{plain}.0") }
}

/// Options of JSON output.
pub struct Json {
    pub indent: Option<String>,
    pub item: String,
    pub key: String,
    pub ascii: bool,
    pub sorted: bool,
}

impl Json {
    pub fn write(
        &self,
        value: &Value,
        depth: usize,
        out: &mut MeteredString,
        meter: &Rc<Meter>,
    ) -> Result<(), Fault> {
        meter.work(1)?;
        match value {
            Value::None => out.push("null"),
            Value::Bool(b) => out.push(if *b { "true" } else { "false" }),
            Value::Int(n) => out.push(&n.to_string()),
            Value::Float(x) if x.is_nan() => out.push("NaN"),
            Value::Float(x) if x.is_infinite() => {
                out.push(if *x > 0.0 { "Infinity" } else { "-Infinity" })
            }
            Value::Float(x) => out.push(&float(*x)),
            Value::Text(text) => self.text(text, out),
            Value::List(list)
                if !matches!(list.kind, ListKind::List | ListKind::Tuple | ListKind::Group) =>
            {
                wrong(format!("tojson: {} is not JSON", value.kind()))
            }
            Value::List(list) if list.items.is_empty() => out.push("[]"),
            Value::List(list) => {
                out.push("[")?;
                for (i, item) in list.items.iter().enumerate() {
                    self.between(i > 0, depth + 1, out)?;
                    self.write(item, depth + 1, out, meter)?;
                }
                self.line(depth, out)?;
                out.push("]")
            }
            Value::Map(map) if map.entries.is_empty() => out.push("{}"),
            Value::Map(map) => {
                let mut entries: Vec<_> = map.entries.iter().collect();
                meter.work(entries.len())?;
                if self.sorted {
                    if entries.iter().any(|(key, _)| key.as_text().is_none()) {
                        return wrong("tojson: sort_keys needs keys that are strings");
                    }
                    entries.sort_by(|a, b| a.0.as_text().cmp(&b.0.as_text()));
                }
                out.push("{")?;
                for (i, (key, value)) in entries.into_iter().enumerate() {
                    self.between(i > 0, depth + 1, out)?;
                    match key {
                        Value::Text(text) => self.text(text, out)?,
                        other => {
                            out.push("\"")?;
                            self.write(other, depth, out, meter)?;
                            out.push("\"")?;
                        }
                    }
                    out.push(&self.key)?;
                    self.write(value, depth + 1, out, meter)?;
                }
                self.line(depth, out)?;
                out.push("}")
            }
            other => wrong(format!("tojson: {} is not JSON", other.kind())),
        }
    }

    fn between(&self, comma: bool, depth: usize, out: &mut MeteredString) -> Result<(), Fault> {
        if comma {
            out.push(&self.item)?;
        }
        self.line(depth, out)
    }

    fn line(&self, depth: usize, out: &mut MeteredString) -> Result<(), Fault> {
        match &self.indent {
            Some(indent) => {
                out.push("\n")?;
                out.repeat(indent, depth)
            }
            None => Ok(()),
        }
    }

    fn text(&self, text: &str, out: &mut MeteredString) -> Result<(), Fault> {
        out.push("\"")?;
        for c in text.chars() {
            match c {
                '"' => out.push("\\\"")?,
                '\\' => out.push("\\\\")?,
                '\n' => out.push("\\n")?,
                '\r' => out.push("\\r")?,
                '\t' => out.push("\\t")?,
                '\x08' => out.push("\\b")?,
                '\x0C' => out.push("\\f")?,
                c if (c as u32) < 0x20 || (self.ascii && !(' '..='~').contains(&c)) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        out.push(&format!("\\u{unit:04x}"))?;
                    }
                }
                c => out.push_char(c)?,
            }
        }
        out.push("\"")
    }
}
