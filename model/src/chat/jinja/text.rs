//! Values as Python writes them, and as `json.dumps` does.

use std::rc::Rc;

use super::meter::{Growing, Meter};
use super::value::Value;
use super::{Fault, wrong};

/// `str(value)`, at the end of a text.
pub fn write(value: &Value, out: &mut Growing, meter: &Rc<Meter>) -> Result<(), Fault> {
    match value {
        Value::Undefined => Ok(()),
        Value::Text(text) => out.push(text),
        other => repr(other, out, meter),
    }
}

/// `str(value)`
pub fn to_string(value: &Value, meter: &Rc<Meter>) -> Result<String, Fault> {
    let mut out = Growing::new(meter);
    write(value, &mut out, meter)?;
    let (text, taken) = out.finish();
    meter.give_back(taken);
    Ok(text)
}

/// `repr(value)`, at the end of a text. Depth is bounded by what values may have.
pub fn repr(value: &Value, out: &mut Growing, meter: &Rc<Meter>) -> Result<(), Fault> {
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
            out.push(if list.tuple { "(" } else { "[" })?;
            for (i, item) in list.items.iter().enumerate() {
                out.push(if i > 0 { ", " } else { "" })?;
                repr(item, out, meter)?;
            }
            out.push(if list.tuple && list.items.len() == 1 { "," } else { "" })?;
            out.push(if list.tuple { ")" } else { "]" })
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
        other => wrong(format!("{} cannot be written", other.kind())),
    }
}

fn quoted(text: &str, out: &mut Growing) -> Result<(), Fault> {
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
            c if c.is_control() && (c as u32) < 0x100 => out.push(&format!("\\x{:02x}", c as u32))?,
            c => out.push_char(c)?,
        }
    }
    out.push_char(quote)
}

/// A float as Python writes it: the shortest digits that read back, with an exponent below 1e-4 and from
/// 1e16.
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

/// How JSON is written.
pub struct Json {
    pub indent: Option<usize>,
    pub item: String,
    pub key: String,
    pub ascii: bool,
    pub sorted: bool,
}

impl Json {
    pub fn write(&self, value: &Value, depth: usize, out: &mut Growing, meter: &Rc<Meter>) -> Result<(), Fault> {
        meter.work(1)?;
        match value {
            Value::None => out.push("null"),
            Value::Bool(b) => out.push(if *b { "true" } else { "false" }),
            Value::Int(n) => out.push(&n.to_string()),
            Value::Float(x) if x.is_nan() => out.push("NaN"),
            Value::Float(x) if x.is_infinite() => out.push(if *x > 0.0 { "Infinity" } else { "-Infinity" }),
            Value::Float(x) => out.push(&float(*x)),
            Value::Text(text) => self.text(text, out),
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
            other => wrong(format!("tojson: {} is no JSON", other.kind())),
        }
    }

    fn between(&self, comma: bool, depth: usize, out: &mut Growing) -> Result<(), Fault> {
        if comma {
            out.push(&self.item)?;
        }
        self.line(depth, out)
    }

    fn line(&self, depth: usize, out: &mut Growing) -> Result<(), Fault> {
        match self.indent {
            Some(width) => {
                out.push("\n")?;
                out.repeat(" ", width * depth)
            }
            None => Ok(()),
        }
    }

    fn text(&self, text: &str, out: &mut Growing) -> Result<(), Fault> {
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
                c if (c as u32) < 0x20 || (self.ascii && !c.is_ascii()) => {
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
