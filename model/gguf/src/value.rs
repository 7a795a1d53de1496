//! Metadata values: scalars by value, strings and arrays as ranges of the mapped file.

use std::fmt;

use super::cursor::Cursor;

/// The types of metadata values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are clear")]
pub enum ValueType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    String,
    Array,
    U64,
    I64,
    F64,
}

impl ValueType {
    pub(crate) fn by_id(id: u32) -> Option<ValueType> {
        use ValueType::*;
        [U8, I8, U16, I16, U32, I32, F32, Bool, String, Array, U64, I64, F64]
            .get(usize::try_from(id).ok()?)
            .copied()
    }

    /// Bytes of a value; `None` for strings and arrays, which have their own length.
    pub(crate) fn size(self) -> Option<u64> {
        use ValueType::*;
        match self {
            U8 | I8 | Bool => Some(1),
            U16 | I16 => Some(2),
            U32 | I32 | F32 => Some(4),
            U64 | I64 | F64 => Some(8),
            String | Array => None,
        }
    }

    /// Minimum bytes of an array element of this type.
    pub(crate) fn least_size(self) -> u64 {
        match self {
            ValueType::String => 8,
            ValueType::Array => 12,
            other => other.size().unwrap_or(1),
        }
    }

    /// Whether this is a floating-point number.
    pub fn is_float(self) -> bool {
        matches!(self, ValueType::F32 | ValueType::F64)
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use ValueType::*;
        f.pad(match self {
            U8 => "u8",
            I8 => "i8",
            U16 => "u16",
            I16 => "i16",
            U32 => "u32",
            I32 => "i32",
            F32 => "f32",
            Bool => "bool",
            String => "string",
            Array => "array",
            U64 => "u64",
            I64 => "i64",
            F64 => "f64",
        })
    }
}

/// A metadata value.
#[derive(Debug, Clone, Copy)]
pub enum Value<'a> {
    /// An integer of any of the eight types.
    Int(i128),
    /// An `f32`, or an `f64`.
    Float(f64),
    /// A boolean.
    Bool(bool),
    /// A string. The format requires UTF-8, but this is not checked.
    Str(&'a [u8]),
    /// An array.
    Array(Array<'a>),
}

impl<'a> Value<'a> {
    /// Decodes a scalar from its exact bytes. `None` for a wrong length, a bool that is neither 0
    /// nor 1, a string or an array.
    pub(crate) fn scalar(ty: ValueType, bytes: &[u8]) -> Option<Value<'a>> {
        use ValueType::*;
        Some(match ty {
            U8 => Value::Int(i128::from(*bytes.first()?)),
            I8 => Value::Int(i128::from(i8::from_le_bytes(bytes.try_into().ok()?))),
            U16 => Value::Int(i128::from(u16::from_le_bytes(bytes.try_into().ok()?))),
            I16 => Value::Int(i128::from(i16::from_le_bytes(bytes.try_into().ok()?))),
            U32 => Value::Int(i128::from(u32::from_le_bytes(bytes.try_into().ok()?))),
            I32 => Value::Int(i128::from(i32::from_le_bytes(bytes.try_into().ok()?))),
            U64 => Value::Int(i128::from(u64::from_le_bytes(bytes.try_into().ok()?))),
            I64 => Value::Int(i128::from(i64::from_le_bytes(bytes.try_into().ok()?))),
            F32 => Value::Float(f64::from(f32::from_le_bytes(bytes.try_into().ok()?))),
            F64 => Value::Float(f64::from_le_bytes(bytes.try_into().ok()?)),
            Bool => match bytes.first()? {
                0 => Value::Bool(false),
                1 => Value::Bool(true),
                _ => return None,
            },
            String | Array => return None,
        })
    }
}

/// An array of metadata values in the map. It is not copied until it is iterated.
#[derive(Clone, Copy)]
pub struct Array<'a> {
    elem: ValueType,
    len: u64,
    body: &'a [u8],
}

impl<'a> Array<'a> {
    pub(crate) fn new(elem: ValueType, len: u64, body: &'a [u8]) -> Self {
        Array { elem, len, body }
    }

    /// The type of the elements.
    pub fn elem(&self) -> ValueType {
        self.elem
    }

    /// Number of elements.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements. The iteration ends early only if the file was changed after it was opened.
    pub fn iter(&self) -> Elements<'a> {
        Elements { elem: self.elem, left: self.len, cursor: Cursor::new(self.body) }
    }
}

impl fmt::Debug for Array<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}; {}]", self.elem, self.len)
    }
}

/// The elements of an [`Array`], in order.
pub struct Elements<'a> {
    elem: ValueType,
    left: u64,
    cursor: Cursor<'a>,
}

impl<'a> Iterator for Elements<'a> {
    /// `None` inside means a bool that is neither 0 nor 1.
    type Item = Option<Value<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        match (self.elem, self.elem.size()) {
            (_, Some(size)) => Some(Value::scalar(self.elem, self.cursor.take(size).ok()?)),
            (ValueType::String, None) => Some(Some(Value::Str(self.cursor.string().ok()?))),
            (_, None) => {
                let elem = ValueType::by_id(self.cursor.u32().ok()?)?;
                let len = self.cursor.u64().ok()?;
                let body = skip_elements(&mut self.cursor, elem, len, 0)?;
                Some(Some(Value::Array(Array::new(elem, len, body))))
            }
        }
    }
}

/// Maximum nesting of arrays. GGUF has no limit; no key in use has even two levels.
pub(crate) const MAX_DEPTH: usize = 4;

/// Skips the elements of an array that was checked on opening, and returns their bytes.
fn skip_elements<'a>(
    cursor: &mut Cursor<'a>,
    elem: ValueType,
    len: u64,
    depth: usize,
) -> Option<&'a [u8]> {
    if depth > MAX_DEPTH {
        return None;
    }
    if let Some(size) = elem.size() {
        return cursor.take(len.checked_mul(size)?).ok();
    }
    let start = cursor.at();
    let from = cursor.rest();
    for _ in 0..len {
        if elem == ValueType::String {
            cursor.string().ok()?;
        } else {
            let inner = ValueType::by_id(cursor.u32().ok()?)?;
            let n = cursor.u64().ok()?;
            skip_elements(cursor, inner, n, depth + 1)?;
        }
    }
    from.get(..usize::try_from(cursor.at() - start).ok()?)
}

/// The strings of an array as bytes of the map. The iteration ends early only if the file was
/// changed after it was opened.
pub struct Strings<'a> {
    left: u64,
    cursor: Cursor<'a>,
}

impl<'a> Strings<'a> {
    /// `None` if the elements are not strings.
    pub(crate) fn of(array: Array<'a>) -> Option<Self> {
        (array.elem == ValueType::String)
            .then(|| Strings { left: array.len, cursor: Cursor::new(array.body) })
    }

    /// An empty sequence.
    pub(crate) fn none() -> Self {
        Strings { left: 0, cursor: Cursor::new(&[]) }
    }

    /// Whether no strings are left.
    pub fn is_empty(&self) -> bool {
        self.left == 0
    }

    /// Number of strings left.
    pub fn len(&self) -> usize {
        usize::try_from(self.left).unwrap_or(usize::MAX)
    }
}

impl<'a> Iterator for Strings<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        self.left = self.left.checked_sub(1)?;
        self.cursor.string().ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.len()))
    }
}
