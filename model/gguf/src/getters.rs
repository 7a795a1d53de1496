//! Typed access to metadata: a key must have the requested type, and a required key must exist.

use super::Gguf;
use super::error::{Error, ErrorKind};
use super::metadata::Entry;
use super::value::{Array, Strings, Value};

/// Typed getters. If the key is missing, `require_*` and the plain array getters return an error,
/// and `opt_*` return `None`. All return an error if the value has a different type or is out of
/// range. Integers may be stored in any integer type of GGUF.
impl Gguf {
    /// The raw value; `None` if there is no such key.
    pub fn value(&self, key: &str) -> Option<Value<'_>> {
        self.first.layout.metadata.get(key)?.value(&self.first.map)
    }

    /// The value as stored: GGUF's id of its type, and its bytes with the length of a string and
    /// the header of an array. `None` if there is no such key.
    pub fn stored_value(&self, key: &str) -> Option<(u32, &[u8])> {
        self.first.layout.metadata.get(key)?.stored(&self.first.map)
    }

    /// Whether the key exists.
    pub fn contains(&self, key: &str) -> bool {
        self.first.layout.metadata.get(key).is_some()
    }

    /// `general.architecture`, such as `llama` or `qwen2`: the prefix of the architecture's keys.
    pub fn architecture(&self) -> Result<&str, Error> {
        self.require_str("general.architecture")
    }

    /// An integer from 0 to 2^32 − 1.
    pub fn opt_u32(&self, key: &str) -> Result<Option<u32>, Error> {
        self.integer(key, "an integer from 0 to 4294967295")
    }

    /// An integer from 0 to 2^32 − 1.
    pub fn require_u32(&self, key: &str) -> Result<u32, Error> {
        self.required(key, self.opt_u32(key)?)
    }

    /// An integer from 0 to 2^64 − 1.
    pub fn opt_u64(&self, key: &str) -> Result<Option<u64>, Error> {
        self.integer(key, "an integer that is not negative")
    }

    /// An integer from 0 to 2^64 − 1.
    pub fn require_u64(&self, key: &str) -> Result<u64, Error> {
        self.required(key, self.opt_u64(key)?)
    }

    /// An integer from −2^31 to 2^31 − 1.
    pub fn opt_i32(&self, key: &str) -> Result<Option<i32>, Error> {
        self.integer(key, "an integer from -2147483648 to 2147483647")
    }

    /// A finite number, stored as f32 or f64.
    pub fn opt_f32(&self, key: &str) -> Result<Option<f32>, Error> {
        let Some((entry, value)) = self.entry(key)? else { return Ok(None) };
        let Value::Float(v) = value else { return Err(self.wrong_type(entry, "an f32")) };
        if (v as f32).is_finite() {
            Ok(Some(v as f32))
        } else {
            Err(self.bad_value(entry, v.to_string(), "expected a finite number that fits an f32"))
        }
    }

    /// A finite number, stored as f32 or f64.
    pub fn require_f32(&self, key: &str) -> Result<f32, Error> {
        self.required(key, self.opt_f32(key)?)
    }

    /// A boolean.
    pub fn opt_bool(&self, key: &str) -> Result<Option<bool>, Error> {
        match self.entry(key)? {
            None => Ok(None),
            Some((_, Value::Bool(v))) => Ok(Some(v)),
            Some((entry, _)) => Err(self.wrong_type(entry, "a bool")),
        }
    }

    /// A boolean.
    pub fn require_bool(&self, key: &str) -> Result<bool, Error> {
        self.required(key, self.opt_bool(key)?)
    }

    /// A string, which must be UTF-8.
    pub fn opt_str(&self, key: &str) -> Result<Option<&str>, Error> {
        match self.entry(key)? {
            None => Ok(None),
            Some((entry, Value::Str(v))) => match std::str::from_utf8(v) {
                Ok(s) => Ok(Some(s)),
                Err(e) => {
                    let value = format!("invalid UTF-8 at its byte {}", e.valid_up_to());
                    Err(self.bad_value(entry, value, "expected a UTF-8 string"))
                }
            },
            Some((entry, _)) => Err(self.wrong_type(entry, "a string")),
        }
    }

    /// A string, which must be UTF-8.
    pub fn require_str(&self, key: &str) -> Result<&str, Error> {
        self.required(key, self.opt_str(key)?)
    }

    /// An array of strings as bytes of the map (tokens are not always UTF-8). Nothing is copied,
    /// and the strings are read only when they are iterated, even for 262,144 tokens.
    pub fn opt_strings(&self, key: &str) -> Result<Option<Strings<'_>>, Error> {
        let Some((entry, array)) = self.array(key, "an array of strings")? else { return Ok(None) };
        if array.is_empty() {
            return Ok(Some(Strings::none()));
        }
        Strings::of(array).map(Some).ok_or_else(|| self.wrong_type(entry, "an array of strings"))
    }

    /// An array of strings as bytes of the map; see [`Gguf::opt_strings`].
    pub fn strings(&self, key: &str) -> Result<Strings<'_>, Error> {
        self.required(key, self.opt_strings(key)?)
    }

    /// An array of strings that must all be UTF-8.
    pub fn opt_strs(&self, key: &str) -> Result<Option<Vec<&str>>, Error> {
        self.elements(key, "an array of strings", |v| match v {
            Value::Str(s) => Some(std::str::from_utf8(s).map_err(|_| "invalid UTF-8".into())),
            _ => None,
        })
    }

    /// An array of strings that must all be UTF-8.
    pub fn strs(&self, key: &str) -> Result<Vec<&str>, Error> {
        self.required(key, self.opt_strs(key)?)
    }

    /// An array of f32 or f64 (rounded to f32; not checked to be finite).
    pub fn opt_f32s(&self, key: &str) -> Result<Option<Vec<f32>>, Error> {
        self.elements(key, "an array of f32", |v| match v {
            Value::Float(v) => Some(Ok(v as f32)),
            _ => None,
        })
    }

    /// An array of f32 or f64 (rounded to f32; not checked to be finite).
    pub fn f32s(&self, key: &str) -> Result<Vec<f32>, Error> {
        self.required(key, self.opt_f32s(key)?)
    }

    /// An array of integers that fit in an i32.
    pub fn opt_i32s(&self, key: &str) -> Result<Option<Vec<i32>>, Error> {
        self.elements(key, "an array of integers", integer_element)
    }

    /// An array of integers that fit in an i32.
    pub fn i32s(&self, key: &str) -> Result<Vec<i32>, Error> {
        self.required(key, self.opt_i32s(key)?)
    }

    /// An array of integers that fit in a u32.
    pub fn opt_u32s(&self, key: &str) -> Result<Option<Vec<u32>>, Error> {
        self.elements(key, "an array of integers", integer_element)
    }

    /// An array of integers that fit in a u32.
    pub fn u32s(&self, key: &str) -> Result<Vec<u32>, Error> {
        self.required(key, self.opt_u32s(key)?)
    }

    /// An array of booleans.
    pub fn opt_bools(&self, key: &str) -> Result<Option<Vec<bool>>, Error> {
        self.elements(key, "an array of bools", |v| match v {
            Value::Bool(v) => Some(Ok(v)),
            _ => None,
        })
    }

    /// A number for each layer: an array of exactly `layers` integers, or one integer for all
    /// layers (`attention.head_count_kv`, `feed_forward_length`).
    pub fn opt_per_layer_u32(&self, key: &str, layers: usize) -> Result<Option<Vec<u32>>, Error> {
        let Some((entry, value)) = self.entry(key)? else { return Ok(None) };
        let Value::Array(array) = value else {
            return Ok(self.opt_u32(key)?.map(|v| vec![v; layers]));
        };
        if array.len() != layers as u64 {
            let (at, found) = (entry.at, array.len());
            return Err(self.fail(ErrorKind::ArrayLength {
                key: key.into(),
                at,
                found,
                want: layers as u64,
            }));
        }
        self.opt_u32s(key)
    }

    /// A number for each layer; see [`Gguf::opt_per_layer_u32`].
    pub fn per_layer_u32(&self, key: &str, layers: usize) -> Result<Vec<u32>, Error> {
        self.required(key, self.opt_per_layer_u32(key, layers)?)
    }

    fn integer<T: TryFrom<i128>>(&self, key: &str, want: &'static str) -> Result<Option<T>, Error> {
        match self.entry(key)? {
            None => Ok(None),
            Some((entry, Value::Int(v))) => match T::try_from(v) {
                Ok(v) => Ok(Some(v)),
                Err(_) => Err(self.bad_value(entry, v.to_string(), format!("expected {want}"))),
            },
            Some((entry, _)) => Err(self.wrong_type(entry, "an integer")),
        }
    }

    fn array(&self, key: &str, want: &'static str) -> Result<Option<(&Entry, Array<'_>)>, Error> {
        match self.entry(key)? {
            None => Ok(None),
            Some((entry, Value::Array(array))) => Ok(Some((entry, array))),
            Some((entry, _)) => Err(self.wrong_type(entry, want)),
        }
    }

    /// All elements, converted. `convert` returns `None` for a wrong type and an error for an
    /// unusable value.
    fn elements<'a, T>(
        &'a self,
        key: &str,
        want: &'static str,
        convert: impl Fn(Value<'a>) -> Option<Result<T, String>>,
    ) -> Result<Option<Vec<T>>, Error> {
        let Some((entry, array)) = self.array(key, want)? else { return Ok(None) };
        let mut out = Vec::new();
        // The byte array of a hostile file may be as large as the file, and its converted elements
        // larger.
        if usize::try_from(array.len()).map_or(true, |n| out.try_reserve_exact(n).is_err()) {
            return Err(self.bad_value(
                entry,
                entry.describe(),
                "too large for this machine's memory",
            ));
        }
        for (i, value) in array.iter().enumerate() {
            let Some(value) = value else {
                return Err(self.bad_value(
                    entry,
                    format!("neither 0 nor 1 in element {i}"),
                    "expected 0 or 1",
                ));
            };
            match convert(value) {
                Some(Ok(v)) => out.push(v),
                Some(Err(found)) => {
                    return Err(self.bad_value(
                        entry,
                        format!("{found} in element {i}"),
                        format!("expected {want}"),
                    ));
                }
                None => return Err(self.wrong_type(entry, want)),
            }
        }
        Ok(Some(out))
    }

    fn entry(&self, key: &str) -> Result<Option<(&Entry, Value<'_>)>, Error> {
        let Some(entry) = self.first.layout.metadata.get(key) else { return Ok(None) };
        match entry.value(&self.first.map) {
            Some(value) => Ok(Some((entry, value))),
            None => Err(self.bad_value(
                entry,
                "unreadable".into(),
                "the file was changed while it was open",
            )),
        }
    }

    fn required<T>(&self, key: &str, value: Option<T>) -> Result<T, Error> {
        value.ok_or_else(|| self.fail(ErrorKind::MissingKey { key: key.into() }))
    }

    fn wrong_type(&self, entry: &Entry, want: &'static str) -> Error {
        self.fail(ErrorKind::WrongType {
            key: entry.key.to_string(),
            at: entry.at,
            found: entry.describe(),
            want,
        })
    }

    fn bad_value(&self, entry: &Entry, value: String, why: impl Into<String>) -> Error {
        self.fail(ErrorKind::BadValue {
            key: entry.key.to_string(),
            at: entry.at,
            value,
            why: why.into(),
        })
    }

    pub(crate) fn fail(&self, kind: ErrorKind) -> Error {
        Error::new(&self.first.path, kind)
    }
}

fn integer_element<T: TryFrom<i128>>(v: Value<'_>) -> Option<Result<T, String>> {
    match v {
        Value::Int(v) => Some(T::try_from(v).map_err(|_| v.to_string())),
        _ => None,
    }
}
