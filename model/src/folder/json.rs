//! JSON files of a folder: read with a bound, values asked for by key, every refusal with the file's name.

use super::error::FolderError;
use super::fail;
use crate::gguf::Error;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::fs;
use std::io::ErrorKind::NotFound;
use std::path::{Path, PathBuf};

/// Bytes of the largest file that is read: the tokenizer of Gemma 3 has 33 MB.
const MOST: u64 = 256 << 20;

/// The bytes of a file; none if it is not there.
pub fn bytes(path: &Path) -> Result<Option<Vec<u8>>, Error> {
    let refused = |doing| move |source| fail(path, FolderError::Io { doing, source });
    let kind = match fs::metadata(path) {
        Err(e) if e.kind() == NotFound => return Ok(None),
        kind => kind.map_err(refused("open"))?,
    };
    // Not opened: a named pipe would wait for a writer.
    if !kind.is_file() {
        return Err(fail(path, FolderError::NotThere { hint: ": what has this name is no file" }));
    }
    if kind.len() > MOST {
        return Err(fail(path, FolderError::Large { bytes: kind.len(), most: MOST }));
    }
    fs::read(path).map(Some).map_err(refused("read"))
}

/// Bytes as JSON of some form.
pub fn parse<T: DeserializeOwned>(path: &Path, bytes: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(bytes).map_err(|e| fail(path, FolderError::Json { why: one_line(&e.to_string()) }))
}

/// A JSON object in a file.
#[derive(Clone)]
pub struct Object {
    path: PathBuf,
    map: Map<String, Value>,
}

impl Object {
    /// Reads a file; none if it is not there.
    pub fn read(path: PathBuf) -> Result<Option<Object>, Error> {
        let Some(bytes) = bytes(&path)? else { return Ok(None) };
        let map = parse(&path, &bytes)?;
        Ok(Some(Object { path, map }))
    }

    /// An object in this one, of the same file.
    pub fn inner(&self, key: &str) -> Result<Option<Object>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(Object { path: self.path.clone(), map: map.clone() })),
            Some(_) => Err(self.bad(key, "an object is wanted")),
        }
    }

    /// A value; `null` is none.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// Whether `null` stands there, which some keys tell from nothing.
    pub fn is_null(&self, key: &str) -> bool {
        self.map.get(key).is_some_and(Value::is_null)
    }

    /// The keys, by name.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.map.keys().map(String::as_str)
    }

    /// An integer from 0 to 2^32 − 1.
    pub fn u32(&self, key: &str) -> Result<Option<u32>, Error> {
        let Some(value) = self.get(key) else { return Ok(None) };
        // Some files have integers as 4096.0.
        let number =
            value.as_u64().or_else(|| value.as_f64().filter(|x| x.fract() == 0.0 && *x >= 0.0).map(|x| x as u64));
        match number.and_then(|n| u32::try_from(n).ok()) {
            Some(n) => Ok(Some(n)),
            None => Err(self.bad(key, "an integer of 0 to 4294967295 is wanted")),
        }
    }

    /// A number that a single can hold.
    pub fn f64(&self, key: &str) -> Result<Option<f64>, Error> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_f64().filter(|x| (*x as f32).is_finite()) {
            Some(x) => Ok(Some(x)),
            None => Err(self.bad(key, "a number is wanted")),
        }
    }

    /// Yes or no.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, Error> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.bad(key, "true or false is wanted"))
    }

    /// A text.
    pub fn str(&self, key: &str) -> Result<Option<&str>, Error> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.bad(key, "a text is wanted"))
    }

    /// One integer or several.
    pub fn ids(&self, key: &str) -> Result<Vec<u32>, Error> {
        let Some(value) = self.get(key) else { return Ok(vec![]) };
        let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        let ids = match value {
            Value::Array(list) => list.iter().map(id).collect(),
            one => id(one).map(|id| vec![id]),
        };
        ids.ok_or_else(|| self.bad(key, "ids of tokens are wanted"))
    }

    /// A value that must be there.
    pub fn require<T>(&self, key: &str, value: Option<T>) -> Result<T, Error> {
        value.ok_or_else(|| fail(&self.path, FolderError::MissingKey { key: key.to_owned() }))
    }

    /// The error for a value that cannot be used.
    pub fn bad(&self, key: &str, why: impl Into<String>) -> Error {
        let value = self.map.get(key).map_or_else(String::new, short);
        fail(&self.path, FolderError::Value { key: key.to_owned(), value, why: why.into() })
    }
}

/// JSON as text for an error, which cuts it; a value may be megabytes long.
pub fn short(value: &Value) -> String {
    match value {
        Value::String(text) => text.chars().take(200).collect(),
        Value::Array(list) if list.len() > 8 => format!("a list of {}", list.len()),
        Value::Object(map) if map.len() > 8 => format!("an object of {}", map.len()),
        other => other.to_string().chars().take(200).collect(),
    }
}

/// What another says, on one line, not too long.
pub fn one_line(text: &str) -> String {
    text.chars().take(300).map(|c| if c.is_control() { ' ' } else { c }).collect()
}
