//! Reads the JSON files of a folder, with a limit on the size and typed access. Every error names
//! the file.

use super::error::FolderError;
use super::fail::fail;
use crate::Error;
use serde::de::{Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::fmt;
use std::fs;
use std::io::ErrorKind::NotFound;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Maximum bytes of a settings file or a template. Large files have about 10 kB.
pub const MAX_SETTINGS: u64 = 1 << 20;
/// Maximum bytes of `tokenizer_config.json`, which lists added tokens. Gemma 3's file has 1.2 MB.
pub const MAX_TOKENIZER_CONFIG: u64 = 16 << 20;
/// Maximum bytes of `tokenizer.json`. Gemma 3's file has 33 MB.
pub const MAX_TOKENIZER: u64 = 64 << 20;
/// Maximum bytes of the index of `*.safetensors`. For a model of 91,000 tensors it has 9 MB.
pub const MAX_INDEX: u64 = 16 << 20;

/// The bytes of a file, at most `most`; `None` if it does not exist.
pub fn bytes(path: &Path, most: u64) -> Result<Option<Vec<u8>>, Error> {
    let refused = |doing| move |source| fail(path, FolderError::Io { doing, source });
    // The file is opened non-blocking, because opening a named pipe would wait for a writer.
    let file = match fs::File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)
    {
        Err(e) if e.kind() == NotFound => return Ok(None),
        file => file.map_err(refused("open"))?,
    };
    let kind = file.metadata().map_err(refused("read"))?;
    if !kind.is_file() {
        return Err(fail(path, FolderError::NotThere { hint: ": it is not a regular file" }));
    }
    let mut bytes = vec![];
    if kind.len() <= most {
        // One byte more than allowed, to detect a file that grows during the read.
        file.take(most + 1).read_to_end(&mut bytes).map_err(refused("read"))?;
    }
    match kind.len().max(bytes.len() as u64) {
        len if len > most => Err(fail(path, FolderError::Large { bytes: len, most })),
        _ => Ok(Some(bytes)),
    }
}

/// The bytes of a JSON file. Python writes `NaN`, `Infinity` and `-Infinity`, which are not JSON.
/// Each word is replaced by a unique string: it is an error only if its value is used.
pub fn json_bytes(path: &Path, most: u64) -> Result<Option<Vec<u8>>, Error> {
    Ok(bytes(path, most)?.map(|mut bytes| {
        mark_bare_words(&mut bytes);
        bytes
    }))
}

/// A bare word, the string of equal length that replaces it, and that string after parsing.
const BARE_WORDS: [(&[u8], &[u8], &str); 3] = [
    (b"NaN", b"\"\x7f\"", "\x7f"),
    (b"-Infinity", b"\"-\\uffff\"", "-\u{ffff}"),
    (b"Infinity", b"\"\\uffff\"", "\u{ffff}"),
];

fn mark_bare_words(bytes: &mut [u8]) {
    let (mut at, mut in_text) = (0, false);
    while let Some(rest) = bytes.get_mut(at..).filter(|rest| !rest.is_empty()) {
        at += 1;
        match rest.first() {
            // An escaped character does not end a string.
            Some(b'\\') if in_text => at += 1,
            Some(b'"') => in_text = !in_text,
            Some(b'N' | b'I' | b'-') if !in_text => {
                if let Some((word, text, _)) =
                    BARE_WORDS.iter().find(|(word, ..)| rest.starts_with(word))
                {
                    rest.iter_mut().zip(*text).for_each(|(byte, new)| *byte = *new);
                    at += word.len() - 1;
                }
            }
            _ => {}
        }
    }
}

/// Parses bytes as JSON.
pub fn parse<'a, T: Deserialize<'a>>(path: &Path, bytes: &'a [u8]) -> Result<T, Error> {
    serde_json::from_slice(bytes)
        .map_err(|e| fail(path, FolderError::Json { why: one_line(&e.to_string()) }))
}

/// Deserialises only the listed keys of an object. Other keys are skipped.
struct SelectedKeys<'a>(&'a [&'a str]);

impl<'de> DeserializeSeed<'de> for SelectedKeys<'_> {
    type Value = Map<String, Value>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for SelectedKeys<'_> {
    type Value = Map<String, Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut kept = Map::new();
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            match self.0.contains(&key.as_ref()) {
                true => drop(kept.insert(key.into_owned(), map.next_value()?)),
                false => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(kept)
    }
}

/// A JSON object of a file.
#[derive(Clone)]
pub struct Object {
    path: PathBuf,
    map: Map<String, Value>,
}

impl Object {
    /// Reads a file; `None` if it does not exist.
    pub fn read(path: PathBuf) -> Result<Option<Object>, Error> {
        let Some(bytes) = json_bytes(&path, MAX_SETTINGS)? else { return Ok(None) };
        let map = parse(&path, &bytes)?;
        Ok(Some(Object { path, map }))
    }

    /// Reads these keys of a file of at most `most` bytes; `None` if it does not exist.
    pub fn read_keys(path: PathBuf, most: u64, keys: &[&str]) -> Result<Option<Object>, Error> {
        let Some(bytes) = json_bytes(&path, most)? else { return Ok(None) };
        let mut from = serde_json::Deserializer::from_slice(&bytes);
        let map =
            SelectedKeys(keys).deserialize(&mut from).and_then(|map| from.end().map(|()| map));
        let map =
            map.map_err(|e| fail(&path, FolderError::Json { why: one_line(&e.to_string()) }))?;
        Ok(Some(Object { path, map }))
    }

    /// A nested object of the same file.
    pub fn inner(&self, key: &str) -> Result<Option<Object>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(map)) => {
                Ok(Some(Object { path: self.path.clone(), map: map.clone() }))
            }
            Some(_) => Err(self.bad(key, "expected an object")),
        }
    }

    /// A value; `None` if it is missing or `null`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// Whether a value is `null`. Some keys distinguish `null` from a missing key.
    pub fn is_null(&self, key: &str) -> bool {
        self.map.get(key).is_some_and(Value::is_null)
    }

    /// The keys in order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.map.keys().map(String::as_str)
    }

    /// An integer from 0 to 2^32 − 1.
    pub fn u32(&self, key: &str) -> Result<Option<u32>, Error> {
        let Some(value) = self.get(key) else { return Ok(None) };
        // Some files store integers as 4096.0.
        let number = value
            .as_u64()
            .or_else(|| value.as_f64().filter(|x| x.fract() == 0.0 && *x >= 0.0).map(|x| x as u64));
        match number.and_then(|n| u32::try_from(n).ok()) {
            Some(n) => Ok(Some(n)),
            None => Err(self.bad(key, "expected an integer from 0 to 4294967295")),
        }
    }

    /// A number in the range of f32.
    pub fn f64(&self, key: &str) -> Result<Option<f64>, Error> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_f64().filter(|x| (*x as f32).is_finite()) {
            Some(x) => Ok(Some(x)),
            None => Err(self.bad(key, "expected a number")),
        }
    }

    /// A boolean.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, Error> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.bad(key, "expected true or false"))
    }

    /// A string.
    pub fn str(&self, key: &str) -> Result<Option<&str>, Error> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.bad(key, "expected a string"))
    }

    /// One integer or a list of them.
    pub fn ids(&self, key: &str) -> Result<Vec<u32>, Error> {
        let Some(value) = self.get(key) else { return Ok(vec![]) };
        let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        let ids = match value {
            Value::Array(list) => list.iter().map(id).collect(),
            one => id(one).map(|id| vec![id]),
        };
        ids.ok_or_else(|| self.bad(key, "expected token ids"))
    }

    /// A required value.
    pub fn require<T>(&self, key: &str, value: Option<T>) -> Result<T, Error> {
        value.ok_or_else(|| fail(&self.path, FolderError::MissingKey { key: key.to_owned() }))
    }

    /// The error for an unusable value.
    pub fn bad(&self, key: &str, why: impl Into<String>) -> Error {
        let value = self.map.get(key).map_or_else(String::new, short);
        fail(&self.path, FolderError::Value { key: key.to_owned(), value, why: why.into() })
    }
}

/// A JSON value as text for an error. Long values are cut, because they may have megabytes.
pub fn short(value: &Value) -> String {
    match value {
        Value::String(text) => match BARE_WORDS.iter().find(|(.., read)| text == read) {
            Some((word, ..)) => String::from_utf8_lossy(word).into_owned(),
            None => text.chars().take(200).collect(),
        },
        Value::Array(list) if list.len() > 8 => format!("a list of {} values", list.len()),
        Value::Object(map) if map.len() > 8 => format!("an object of {} values", map.len()),
        // Each of the eight entries may have megabytes.
        Value::Array(_) | Value::Object(_) if !is_small(value, &mut 64) => {
            "a long value".to_owned()
        }
        other => other.to_string().chars().take(200).collect(),
    }
}

/// Whether a value contains few values and no long string.
fn is_small(value: &Value, left: &mut usize) -> bool {
    *left = left.saturating_sub(1);
    *left > 0
        && match value {
            Value::Array(list) => list.iter().all(|value| is_small(value, left)),
            Value::Object(map) => {
                map.iter().all(|(key, value)| key.len() < 200 && is_small(value, left))
            }
            Value::String(text) => text.len() < 1000,
            _ => true,
        }
}

/// A text on one line, cut to 300 characters.
pub fn one_line(text: &str) -> String {
    text.chars().take(300).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nan_and_infinity_become_strings_only_as_values() {
        let mut bytes =
            br#"{"a": [0.0, Infinity, -Infinity], "b": NaN, "Infinity": "NaN, \" -Infinity", "c": -1, "d":"\\"}"#
                .to_vec();
        let len = bytes.len();
        mark_bare_words(&mut bytes);
        assert_eq!(bytes.len(), len);
        let read: Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(read["a"][0], 0.0);
        assert_eq!(
            [&read["a"][1], &read["a"][2], &read["b"]].map(short),
            ["Infinity", "-Infinity", "NaN"]
        );
        assert_eq!((&read["Infinity"], &read["c"]), (&"NaN, \" -Infinity".into(), &(-1).into()));
        // Parts of these words are not replaced, and invalid JSON stays invalid.
        for text in ["{\"a\": Nan}", "{\"a\": Infinit}", "Infinity5", "\"\\", "NaN NaN"] {
            let mut bytes = text.as_bytes().to_vec();
            mark_bare_words(&mut bytes);
            assert!(serde_json::from_slice::<Value>(&bytes).is_err(), "{text}");
        }
    }
}
