//! The metadata section: the keys and the offsets of their values. Every length is checked once.

use std::ops::Range;

use super::cursor::{Cursor, UnexpectedEnd};
use super::error::ErrorKind;
use super::value::{Array, MAX_DEPTH, Value, ValueType};
use crate::quoted_text::QuotedText;

/// Maximum length of the name of a key or tensor: the format's limit for keys (2^16 − 1). ggml's
/// limit for tensors is lower.
const MAX_NAME: u64 = 65535;

/// A key and the offset of its value.
pub(crate) struct Entry {
    pub(crate) key: Box<str>,
    /// Offset of the key.
    key_at: u64,
    /// Offset of the value, including a string's length or an array's header.
    pub(crate) at: u64,
    pub(crate) ty: ValueType,
    /// Element type and count of an array.
    array: Option<(ValueType, u64)>,
    /// The bytes of the scalar, the string, or the array's elements.
    body: Range<usize>,
}

impl Entry {
    /// The value, from the bytes of the file that this entry was read from. `None` only if the
    /// bytes have changed.
    pub(crate) fn value<'a>(&self, file: &'a [u8]) -> Option<Value<'a>> {
        let body = file.get(self.body.clone())?;
        match (self.ty, self.array) {
            (_, Some((elem, len))) => Some(Value::Array(Array::new(elem, len, body))),
            (ValueType::String, _) => Some(Value::Str(body)),
            (ty, _) => Value::scalar(ty, body),
        }
    }

    /// The bytes of the key and its value, as GGUF stores them.
    pub(crate) fn raw<'a>(&self, file: &'a [u8]) -> Option<&'a [u8]> {
        file.get(usize::try_from(self.key_at).ok()?..self.body.end)
    }

    /// The id of the type, and the bytes of the value with its length or header.
    pub(crate) fn stored<'a>(&self, file: &'a [u8]) -> Option<(u32, &'a [u8])> {
        Some((self.ty as u32, file.get(usize::try_from(self.at).ok()?..self.body.end)?))
    }

    /// A description of the value for errors: "a u32", "an array of 3 string".
    pub(crate) fn describe(&self) -> String {
        match self.array {
            Some((elem, len)) => format!("an array of {len} {elem}"),
            None => match self.ty {
                ValueType::I8
                | ValueType::I16
                | ValueType::I32
                | ValueType::I64
                | ValueType::F32
                | ValueType::F64 => {
                    format!("an {}", self.ty)
                }
                _ => format!("a {}", self.ty),
            },
        }
    }

    /// The type as shown in listings: `u32`, `string[3]`.
    pub(crate) fn type_name(&self) -> String {
        match self.array {
            Some((elem, len)) => format!("{elem}[{len}]"),
            None => self.ty.to_string(),
        }
    }
}

/// All keys of a file, in the order of the file.
#[derive(Default)]
pub(crate) struct Metadata {
    entries: Vec<Entry>,
    /// Indices of `entries` by key.
    by_key: Vec<u32>,
}

impl Metadata {
    /// Reads `count` keys and the offsets of their values. The caller has checked `count` against
    /// the remaining bytes.
    pub(crate) fn read(cursor: &mut Cursor<'_>, count: u64) -> Result<Metadata, ErrorKind> {
        let mut entries = Vec::new();
        for i in 0..count {
            entries.push(read_entry(cursor, i)?);
        }
        let key = |i: &u32| entries.get(*i as usize).map(|e: &Entry| &*e.key);
        let by_key = sorted_index(entries.len(), |a, b| key(a).cmp(&key(b)));
        for pair in by_key.windows(2) {
            if let [a, b] = pair
                && let (Some(a), Some(b)) = (entries.get(*a as usize), entries.get(*b as usize))
                && a.key == b.key
            {
                let name = a.key.to_string();
                return Err(ErrorKind::Duplicate {
                    what: "metadata key",
                    name,
                    first: a.key_at,
                    second: b.key_at,
                });
            }
        }
        Ok(Metadata { entries, by_key })
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Entry> {
        let entry = |i: &u32| self.entries.get(*i as usize);
        let found =
            self.by_key.binary_search_by(|i| entry(i).map(|e| &*e.key).cmp(&Some(key))).ok()?;
        self.by_key.get(found).and_then(entry)
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }
}

/// The indices below `n`, sorted by `cmp`; equal ones are in ascending order.
pub(crate) fn sorted_index(n: usize, cmp: impl Fn(&u32, &u32) -> std::cmp::Ordering) -> Vec<u32> {
    // A count above 2^32 would need a header of over 60 GB; such a file is refused earlier (see
    // `counts`).
    let mut index: Vec<u32> = (0..u32::try_from(n).unwrap_or(u32::MAX)).collect();
    index.sort_unstable_by(|a, b| cmp(a, b).then(a.cmp(b)));
    index
}

/// Reads a name: UTF-8, not empty, not too long. `what` describes the named thing for errors.
pub(crate) fn read_name(
    cursor: &mut Cursor<'_>,
    what: impl Fn() -> String,
) -> Result<Box<str>, ErrorKind> {
    let at = cursor.at();
    let bad = |why: String| ErrorKind::Name { what: what(), at, why };
    let inside = |s: UnexpectedEnd| s.inside(|| format!("the name of {}", what()));
    let len = cursor.u64().map_err(inside)?;
    if len == 0 {
        return Err(bad("the name is empty".into()));
    }
    if len > MAX_NAME && len <= cursor.left() {
        return Err(bad(format!(
            "its length is {len}, more than the limit of {MAX_NAME}: damaged, download it again"
        )));
    }
    let bytes = cursor.take(len).map_err(inside)?;
    match std::str::from_utf8(bytes) {
        Ok(name) => Ok(name.into()),
        Err(e) => {
            let shown = String::from_utf8_lossy(bytes);
            Err(bad(format!(
                "{} is invalid UTF-8 at its byte {}",
                QuotedText(&shown),
                e.valid_up_to()
            )))
        }
    }
}

fn read_entry(cursor: &mut Cursor<'_>, index: u64) -> Result<Entry, ErrorKind> {
    let key_at = cursor.at();
    let key = read_name(cursor, || format!("metadata key number {index}"))?;
    let inside =
        |s: UnexpectedEnd| s.inside(|| format!("the value of metadata key {}", QuotedText(&key)));
    let ty = read_type(cursor, &key)?;
    let at = cursor.at();
    let mut array = None;
    let body = match (ty, ty.size()) {
        (_, Some(size)) => {
            let body = cursor.take(size).map_err(inside)?;
            if Value::scalar(ty, body).is_none() {
                let value = body.first().map_or_else(String::new, |b| b.to_string());
                let why = "expected 0 or 1".to_owned();
                return Err(ErrorKind::BadValue { key: key.into(), at, value, why });
            }
            size
        }
        (ValueType::String, None) => {
            let n = cursor.u64().map_err(inside)?;
            cursor.take(n).map_err(inside)?;
            n
        }
        (_, None) => {
            let (elem, len) = read_array_header(cursor, &key)?;
            array = Some((elem, len));
            let start = cursor.at();
            check_elements(cursor, &key, elem, len, 1)?;
            cursor.at() - start
        }
    };
    // The cursor is inside a slice, so its offset fits in a usize.
    let end = cursor.at() as usize;
    let start = end - body as usize;
    Ok(Entry { key, key_at, at, ty, array, body: start..end })
}

fn read_type(cursor: &mut Cursor<'_>, key: &str) -> Result<ValueType, ErrorKind> {
    let at = cursor.at();
    let id = cursor
        .u32()
        .map_err(|s| s.inside(|| format!("the type of metadata key {}", QuotedText(key))))?;
    ValueType::by_id(id).ok_or_else(|| ErrorKind::ValueType { key: key.into(), at, id })
}

/// Reads the element type and the count. The rest of the file is large enough for that many
/// elements.
fn read_array_header(cursor: &mut Cursor<'_>, key: &str) -> Result<(ValueType, u64), ErrorKind> {
    let elem = read_type(cursor, key)?;
    let at = cursor.at();
    let len = cursor
        .u64()
        .map_err(|s| s.inside(|| format!("the array of metadata key {}", QuotedText(key))))?;
    if len.checked_mul(elem.least_size()).is_none_or(|least| least > cursor.left()) {
        let what = format!("the element count of metadata key {}", QuotedText(key));
        return Err(ErrorKind::Count { what, at, count: len, left: cursor.left() });
    }
    Ok((elem, len))
}

/// Skips the elements of an array and checks every length in it.
fn check_elements(
    cursor: &mut Cursor<'_>,
    key: &str,
    elem: ValueType,
    len: u64,
    depth: usize,
) -> Result<(), ErrorKind> {
    if let Some(size) = elem.size() {
        let bytes = len.saturating_mul(size);
        return match cursor.take(bytes) {
            Ok(_) => Ok(()),
            Err(s) => Err(s.inside(|| format!("the array of metadata key {}", QuotedText(key)))),
        };
    }
    for i in 0..len {
        if elem == ValueType::String {
            cursor.string().map_err(|s| {
                s.inside(|| format!("string {i} of metadata key {}", QuotedText(key)))
            })?;
        } else if depth == MAX_DEPTH {
            return Err(ErrorKind::Nested { key: key.into(), at: cursor.at(), max: MAX_DEPTH });
        } else {
            let (elem, len) = read_array_header(cursor, key)?;
            check_elements(cursor, key, elem, len, depth + 1)?;
        }
    }
    Ok(())
}
