//! Reads the fields of a JSON request. Each field is taken by its name; fields that remain at the
//! end are unknown.

use crate::refusal::Refusal;
use serde_json::{Map, Value};
use std::cell::RefCell;
use std::future::Future;
use std::ops::RangeInclusive;

/// The fields of a JSON object. `null` counts as absent.
#[derive(Debug)]
pub struct Fields {
    map: Map<String, Value>,
    /// Path of the object in the request, as a prefix of field names: empty, or for example
    /// `options.`
    within: String,
}

impl Fields {
    /// Parses a body and returns its fields.
    pub fn parse(body: &[u8]) -> Result<Fields, Refusal> {
        match serde_json::from_slice(body) {
            Ok(Value::Object(map)) => Ok(Fields { map, within: String::new() }),
            Ok(_) => Err(Refusal::bad("the request's body is not a JSON object")),
            Err(error) => Err(no_json(body, &error)),
        }
    }

    /// The fields of a nested object.
    pub fn of(value: Value, name: &str) -> Result<Fields, Refusal> {
        match value {
            Value::Object(map) => Ok(Fields { map, within: format!("{name}.") }),
            _ => Err(Refusal::field(name, "give an object")),
        }
    }

    /// Full name of a field, with the path of its object.
    pub fn name(&self, name: &str) -> String {
        format!("{}{name}", self.within)
    }

    /// A refusal because of this field.
    pub fn wrong(&self, name: &str, why: impl std::fmt::Display) -> Refusal {
        Refusal::field(&self.name(name), why)
    }

    /// Takes a field without checks.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        self.map.remove(name).filter(|value| !value.is_null())
    }

    /// Reads a field without taking it.
    pub fn peek(&self, name: &str) -> Option<&Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }
    /// Takes an object.
    pub fn object(&mut self, name: &str) -> Result<Option<Fields>, Refusal> {
        let whole = self.name(name);
        self.take(name).map(|value| Fields::of(value, &whole)).transpose()
    }

    /// Takes a string.
    pub fn text(&mut self, name: &str) -> Result<Option<String>, Refusal> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.wrong(name, "give a string")),
        }
    }

    /// Takes a string. The field is required.
    pub fn needed_text(&mut self, name: &str) -> Result<String, Refusal> {
        self.text(name)?.ok_or_else(|| self.wrong(name, "is missing"))
    }

    /// Takes a boolean.
    pub fn flag(&mut self, name: &str) -> Result<Option<bool>, Refusal> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            Some(_) => Err(self.wrong(name, "give true or false")),
        }
    }

    /// Takes an integer.
    pub fn whole(
        &mut self,
        name: &str,
        range: RangeInclusive<i64>,
    ) -> Result<Option<i64>, Refusal> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let whole = value.as_i64().or_else(|| {
            // Some clients write integers as 100.0.
            value.as_f64().filter(|x| x.fract() == 0.0 && x.abs() < 9e15).map(|x| x as i64)
        });
        whole.filter(|n| range.contains(n)).map(Some).ok_or_else(|| {
            let (from, to) = (range.start(), range.end());
            let upper =
                if *to >= i64::from(u32::MAX) { "up".to_owned() } else { format!("to {to}") };
            self.wrong(name, format_args!("give a whole number from {from} {upper}"))
        })
    }

    /// Takes a non-negative integer.
    pub fn count(
        &mut self,
        name: &str,
        range: RangeInclusive<i64>,
    ) -> Result<Option<usize>, Refusal> {
        Ok(self.whole(name, range)?.and_then(|n| usize::try_from(n).ok()))
    }

    /// Takes a number.
    pub fn number(
        &mut self,
        name: &str,
        range: RangeInclusive<f64>,
    ) -> Result<Option<f32>, Refusal> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let number = value.as_f64().filter(|x| range.contains(x)).map(|x| x as f32);
        number.map(Some).ok_or_else(|| {
            self.wrong(
                name,
                format_args!("give a number from {} to {}", range.start(), range.end()),
            )
        })
    }

    /// Takes a string or a list of strings, with at most `most` of them.
    pub fn texts(&mut self, name: &str, most: usize) -> Result<Vec<String>, Refusal> {
        let wrong =
            |me: &Self| me.wrong(name, format_args!("give a string, or a list of at most {most}"));
        match self.take(name) {
            None => Ok(vec![]),
            Some(Value::String(text)) => Ok(vec![text]),
            Some(Value::Array(all)) if all.len() <= most => {
                let texts = all
                    .into_iter()
                    .map(|v| if let Value::String(text) = v { Some(text) } else { None });
                texts.collect::<Option<_>>().ok_or_else(|| wrong(self))
            }
            Some(_) => Err(wrong(self)),
        }
    }

    /// Takes a list.
    pub fn list(&mut self, name: &str) -> Result<Option<Vec<Value>>, Refusal> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Array(all)) => Ok(Some(all)),
            Some(_) => Err(self.wrong(name, "give a list")),
        }
    }

    /// Ignores fields that have no meaning here. The documentation lists them.
    pub fn ignore(&mut self, names: &[&str]) {
        for name in names {
            self.map.remove(*name);
        }
    }

    /// Refuses fields that would change the answer and are not supported.
    pub fn refuse(&mut self, names: &[(&str, &str)]) -> Result<(), Refusal> {
        for (name, why) in names {
            if self.take(name).is_some() {
                return Err(self.wrong(name, why));
            }
        }
        Ok(())
    }

    /// Like [`Fields::refuse`], but empty strings and lists are accepted.
    pub fn refuse_more_than_empty(&mut self, names: &[(&str, &str)]) -> Result<(), Refusal> {
        for (name, _) in names {
            let empty = match self.peek(name) {
                Some(Value::String(text)) => text.is_empty(),
                Some(Value::Array(all)) => all.is_empty(),
                _ => false,
            };
            if empty {
                self.ignore(&[*name]);
            }
        }
        self.refuse(names)
    }

    /// Ends the reading. Within [`let_pass`] the remaining fields are recorded. Elsewhere they are
    /// refused.
    pub fn done(self) -> Result<(), Refusal> {
        for (name, _) in self.map.into_iter().filter(|(_, value)| !value.is_null()) {
            let name: String = name.chars().take(100).collect();
            let name = format!("{}{name}", self.within);
            let noted = UNKNOWN.try_with(|all| {
                let mut all = all.borrow_mut();
                if all.len() < MAX_NOTED {
                    all.push(name.clone());
                }
            });
            if noted.is_err() {
                return Err(Refusal::field(&name, "this field is unknown"));
            }
        }
        Ok(())
    }
}

/// Maximum number of unknown fields that are recorded for a request.
const MAX_NOTED: usize = 16;

tokio::task_local! {
    /// Unknown fields of the request that the current task answers.
    static UNKNOWN: RefCell<Vec<String>>;
}

/// Answers a request whose unknown fields have no effect. Also returns the names of these fields.
pub async fn let_pass<F: Future>(answer: F) -> (F::Output, Vec<String>) {
    let noting = async {
        let answer = answer.await;
        (answer, UNKNOWN.with(RefCell::take))
    };
    UNKNOWN.scope(RefCell::default(), noting).await
}

/// The refusal of a body that is not valid JSON.
fn no_json(body: &[u8], error: &serde_json::Error) -> Refusal {
    let why = match body {
        [0x1f, 0x8b, ..] | [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            "is compressed: send it without compression".to_owned()
        }
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] | [0, ..] | [_, 0, ..] => {
            "is UTF-16 or UTF-32: send UTF-8".to_owned()
        }
        _ => match std::str::from_utf8(body) {
            Err(wrong) => {
                format!("is not UTF-8 from byte {} on: send JSON in UTF-8", wrong.valid_up_to())
            }
            Ok(text) => match lone_surrogate(text).filter(|_| error.is_syntax()) {
                Some((at, half)) => format!(
                    "has half of a character at byte {at}: \\u{half:04x} is a lone surrogate; \
                     write such a character as a pair of escapes, or directly in UTF-8"
                ),
                None => format!("is not JSON: {error}"),
            },
        },
    };
    Refusal::bad(format!("the request's body {why}"))
}

/// The first escape that is half of a surrogate pair, and its position.
fn lone_surrogate(text: &str) -> Option<(usize, u16)> {
    let unit = |at: usize| {
        let digits = text.get(at..)?.strip_prefix("\\u")?.get(..4)?;
        u16::from_str_radix(digits, 16).ok()
    };
    let mut at = 0;
    while let Some(found) = text.get(at..)?.find('\\') {
        at += found;
        match (unit(at), unit(at + 6)) {
            (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => at += 12,
            (Some(half @ 0xd800..=0xdfff), _) => return Some((at, half)),
            (Some(_), _) => at += 6,
            // A backslash escapes the next character.
            (None, _) => at += 2,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::{Fields, lone_surrogate};

    #[test]
    fn invalid_json_bodies_are_identified() {
        for (body, says) in [
            (&br#"{"prompt": "x\ud800"}"#[..], "byte 13: \\ud800 is a lone surrogate"),
            (br#"{"prompt": "\\\uDC00 x"}"#, "byte 14: \\udc00 is a lone surrogate"),
            (br#"{"a": "\ud83d\ude00", "prompt": "\ud83d\u0041"}"#, "\\ud83d is a lone surrogate"),
            (b"\x1f\x8b\x08\0", "is compressed"),
            (b"\x28\xb5\x2f\xfd\0", "is compressed"),
            (b"{\0\"\0", "UTF-16"),
            (b"\xff\xfe{\0", "UTF-16"),
            (b"{\"a\": \"\xed\xa0\x80\"}", "not UTF-8 from byte 7 on"),
            (b"{\"a\": nonsense}", "is not JSON: expected ident"),
            (br#"{"a": "\ud83d\ude00", "prompt": nonsense}"#, "is not JSON: expected ident"),
            (br#"{"a": "\\ud800", "#, "is not JSON: EOF"),
        ] {
            let why = Fields::parse(body).unwrap_err();
            assert!(
                why.message().contains(says),
                "{}: {}",
                String::from_utf8_lossy(body),
                why.message()
            );
        }
        assert_eq!(lone_surrogate(r"\\u\ud8\ud83d\ude00"), None);
    }

    fn fields(json: &str) -> Fields {
        Fields::parse(json.as_bytes()).unwrap()
    }

    #[test]
    fn fields_are_checked_by_type_and_range() {
        let mut f = fields(
            r#"{"a": 3, "b": 2.0, "c": null, "d": "x", "e": ["x", "y"], "o": {"q": true, "r": 1}}"#,
        );
        assert_eq!(f.whole("a", 0..=3).unwrap(), Some(3));
        assert_eq!(f.whole("b", 0..=3).unwrap(), Some(2));
        assert_eq!(f.whole("c", 0..=3).unwrap(), None);
        assert_eq!(f.texts("d", 4).unwrap(), ["x"]);
        assert_eq!(f.texts("e", 2).unwrap(), ["x", "y"]);
        let mut o = f.object("o").unwrap().unwrap();
        assert_eq!(o.flag("q").unwrap(), Some(true));
        assert_eq!(o.done().unwrap_err().message(), "'o.r': this field is unknown");
        f.done().unwrap();
        for (json, why) in [
            (r#"{"a": 4}"#, "'a': give a whole number from 0 to 3"),
            (r#"{"a": 2.5}"#, "'a': give a whole number from 0 to 3"),
            (r#"{"a": "2"}"#, "'a': give a whole number from 0 to 3"),
            (r#"{"a": 1e300}"#, "'a': give a whole number from 0 to 3"),
        ] {
            assert_eq!(fields(json).whole("a", 0..=3).unwrap_err().message(), why);
        }
        assert_eq!(
            fields(r#"{"t": 3}"#).number("t", 0.0..=2.0).unwrap_err().message(),
            "'t': give a number from 0 to 2"
        );
        assert!(fields(r#"{"e": ["x", 1]}"#).texts("e", 2).is_err());
        assert!(fields(r#"{"e": ["x", "y", "z"]}"#).texts("e", 2).is_err());
        assert!(Fields::parse(b"[]").is_err() && Fields::parse(b"{").is_err());
    }

    #[tokio::test]
    async fn unknown_fields_are_noted_in_lenient_mode() {
        let read = async || {
            let mut f = fields(r#"{"a": 1, "b": null, "c": {"d": 2}, "e": 3}"#);
            f.object("c")?.unwrap().done()?;
            f.done()
        };
        let (answer, unknown) = super::let_pass(read()).await;
        assert!(answer.is_ok());
        assert_eq!(unknown, ["c.d", "a", "e"]);
        assert_eq!(read().await.unwrap_err().message(), "'c.d': this field is unknown");
    }

    #[test]
    fn deeply_nested_json_is_refused() {
        let deep = format!("{{\"a\": {}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(Fields::parse(deep.as_bytes()).is_err());
    }
}
