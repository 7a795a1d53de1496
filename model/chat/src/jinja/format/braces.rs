//! `str.format`: fields in braces with a path to a value, a conversion and a specification.

use std::rc::Rc;

use super::super::meter::{Meter, MeteredString};
use super::super::value::Value;
use super::super::{methods, text};
use super::spec;
use crate::jinja::fault::{Fault, wrong};

/// `pattern.format(…)`
pub fn braces(
    pattern: &str,
    values: &[Value],
    named: &[(String, Value)],
    meter: &Rc<Meter>,
) -> Result<Value, Fault> {
    let mut out = MeteredString::new(meter);
    Fields { values, named, next: 0, numbered: false, meter }.write(pattern, 2, &mut out)?;
    Value::grown(out, meter)
}

struct Fields<'v> {
    values: &'v [Value],
    named: &'v [(String, Value)],
    /// The value of the next `{}`.
    next: usize,
    /// Whether a field had an explicit number. All fields or none must have one.
    numbered: bool,
    meter: &'v Rc<Meter>,
}

impl Fields<'_> {
    /// Writes a pattern with its values. A specification may contain fields, up to this depth.
    fn write(
        &mut self,
        pattern: &str,
        levels: usize,
        out: &mut MeteredString,
    ) -> Result<(), Fault> {
        let mut rest = pattern;
        while let Some(at) = rest.find(['{', '}']) {
            out.push(rest.get(..at).unwrap_or_default())?;
            rest = rest.get(at..).unwrap_or_default();
            self.meter.work(1)?;
            if rest.starts_with("{{") || rest.starts_with("}}") {
                out.push(rest.get(..1).unwrap_or_default())?;
                rest = rest.get(2..).unwrap_or_default();
                continue;
            }
            let Some(end) = field_end(rest) else {
                return wrong("format: '{' without '}', or '}' without '{'");
            };
            self.field(rest.get(1..end).unwrap_or_default(), levels, out)?;
            rest = rest.get(end + 1..).unwrap_or_default();
        }
        out.push(rest)
    }

    fn field(&mut self, field: &str, levels: usize, out: &mut MeteredString) -> Result<(), Fault> {
        if levels == 0 {
            return wrong("format: fields are nested more than two deep");
        }
        // A name ends at '!' or ':' outside brackets.
        let mut bracket = false;
        let name_ends = |c: char| {
            bracket = (bracket || c == '[') && c != ']';
            !bracket && matches!(c, '!' | ':')
        };
        let at = field.find(name_ends).unwrap_or(field.len());
        let (name, rest) = field.split_at_checked(at).unwrap_or((field, ""));
        let (conversion, spec) = match rest.strip_prefix('!') {
            Some(rest) => match rest.split_once(':') {
                Some((conversion, spec)) => (conversion, spec),
                None => (rest, ""),
            },
            None => ("-", rest.strip_prefix(':').unwrap_or_default()),
        };
        let value = self.value(name)?;
        let value = match conversion {
            "-" => value,
            "s" => text::as_text(&value, self.meter)?,
            "r" => Value::text(&text::represented(&value, self.meter)?, self.meter)?,
            "a" => Value::text(&text::ascii(&value, self.meter)?, self.meter)?,
            other => return wrong(format!("format: unknown conversion '{other:.40}'")),
        };
        let mut inner = MeteredString::new(self.meter);
        self.write(spec, levels - 1, &mut inner)?;
        spec::write(&value, &inner.finish_uncounted(), out, self.meter)
    }

    /// The value at a path: `0`, `name`, `name.attribute[item]`.
    fn value(&mut self, path: &str) -> Result<Value, Fault> {
        let end = path.find(['.', '[']).unwrap_or(path.len());
        let (first, mut rest) = path.split_at_checked(end).unwrap_or((path, ""));
        let found = if path.is_empty() {
            if self.numbered {
                return wrong("format: all fields or none must have a number");
            }
            self.next += 1;
            self.values.get(self.next - 1)
        } else if let Ok(at) = first.parse::<usize>() {
            if self.next > 0 {
                return wrong("format: all fields or none must have a number");
            }
            self.numbered = true;
            self.values.get(at)
        } else {
            self.named.iter().find(|(name, _)| name == first).map(|(_, value)| value)
        };
        let Some(mut value) = found.cloned() else {
            return wrong(format!("format: there is no value for {{{path:.40}}}"));
        };
        while !rest.is_empty() {
            self.meter.work(1)?;
            if let Some(item) = rest.strip_prefix('[') {
                let Some((item, more)) = item.split_once(']') else {
                    return wrong("format: '[' without ']'");
                };
                let key = match item.parse() {
                    Ok(at) => Value::Int(at),
                    Err(_) => Value::text(item, self.meter)?,
                };
                (value, rest) = (crate::jinja::index::item(&value, &key, self.meter)?, more);
            } else {
                let name = rest.trim_start_matches('.');
                let end = name.find(['.', '[']).unwrap_or(name.len());
                let (name, more) = name.split_at_checked(end).unwrap_or((name, ""));
                if name.is_empty() {
                    return wrong("format: a name is missing after '.'");
                }
                value = methods::attribute(&value, name, self.meter)?.unwrap_or(Value::Undefined);
                rest = more;
            }
        }
        Ok(value)
    }
}

/// The end of the field that starts here, including nested fields.
fn field_end(text: &str) -> Option<usize> {
    let mut depth = 0usize;
    for (at, c) in text.bytes().enumerate() {
        match c {
            b'{' => depth += 1,
            b'}' => depth = depth.checked_sub(1)?,
            _ => continue,
        }
        if depth == 0 {
            return Some(at);
        }
    }
    None
}
