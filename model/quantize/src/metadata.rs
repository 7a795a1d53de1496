//! The metadata of a file to write.

use kjit_gguf::Gguf;

/// A metadata value as stored in a file.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredValue {
    /// GGUF's id of the type.
    pub ty: u32,
    /// The bytes, with the length of a string and the header of an array.
    pub bytes: Vec<u8>,
}

impl StoredValue {
    /// A 16-bit unsigned integer.
    pub fn u16(value: u16) -> StoredValue {
        StoredValue { ty: 2, bytes: value.to_le_bytes().to_vec() }
    }

    /// A 32-bit unsigned integer.
    pub fn u32(value: u32) -> StoredValue {
        StoredValue { ty: 4, bytes: value.to_le_bytes().to_vec() }
    }

    /// A 32-bit integer.
    pub fn i32(value: i32) -> StoredValue {
        StoredValue { ty: 5, bytes: value.to_le_bytes().to_vec() }
    }

    /// A string.
    pub fn string(text: &str) -> StoredValue {
        StoredValue { ty: 8, bytes: string(text.as_bytes()) }
    }

    /// An array of strings.
    pub fn strings(texts: &[String]) -> StoredValue {
        let mut bytes = [&8u32.to_le_bytes()[..], &(texts.len() as u64).to_le_bytes()].concat();
        texts.iter().for_each(|text| bytes.extend(string(text.as_bytes())));
        StoredValue { ty: 9, bytes }
    }

    /// Reads a value that a user typed. It has the type `like`. Without `like`, its text decides:
    /// bool, u32, i64, f32 or string. `None` if it does not fit or is an array.
    pub fn parse(text: &str, like: Option<u32>) -> Option<StoredValue> {
        fn of<T: std::str::FromStr, const N: usize>(
            text: &str,
            bytes: fn(T) -> [u8; N],
        ) -> Option<Vec<u8>> {
            Some(bytes(text.parse().ok()?).to_vec())
        }
        let Some(ty) = like else {
            let types = [7, 4, 11, 6, 8];
            return types.into_iter().find_map(|ty| StoredValue::parse(text, Some(ty)));
        };
        let bytes = match ty {
            0 => of(text, u8::to_le_bytes),
            1 => of(text, i8::to_le_bytes),
            2 => of(text, u16::to_le_bytes),
            3 => of(text, i16::to_le_bytes),
            4 => of(text, u32::to_le_bytes),
            5 => of(text, i32::to_le_bytes),
            6 => of(text, f32::to_le_bytes),
            7 => of(text, |v: bool| [u8::from(v)]),
            8 => Some(string(text.as_bytes())),
            10 => of(text, u64::to_le_bytes),
            11 => of(text, i64::to_le_bytes),
            12 => of(text, f64::to_le_bytes),
            _ => None,
        };
        Some(StoredValue { ty, bytes: bytes? })
    }
}

/// A string with its length.
fn string(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text].concat()
}

/// Keys and values in order.
#[derive(Debug, Clone, Default)]
pub struct Metadata(pub Vec<(String, StoredValue)>);

impl Metadata {
    /// All metadata of a file, without the keys of a split.
    pub fn of(gguf: &Gguf) -> Metadata {
        let stored = |key: &str| {
            let (ty, bytes) = gguf.stored_value(key)?;
            Some((key.to_owned(), StoredValue { ty, bytes: bytes.to_vec() }))
        };
        Metadata(gguf.keys().filter(|key| !key.starts_with("split.")).filter_map(stored).collect())
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&StoredValue> {
        self.0.iter().find(|(k, _)| k == key).map(|(_, value)| value)
    }

    /// Sets a key. An existing key keeps its position.
    pub fn set(&mut self, key: &str, value: StoredValue) {
        match self.0.iter_mut().find(|(k, _)| k == key) {
            Some((_, old)) => *old = value,
            None => self.0.push((key.to_owned(), value)),
        }
    }

    /// Removes a key. Returns `false` if the key does not exist.
    pub fn remove(&mut self, key: &str) -> bool {
        let before = self.0.len();
        self.0.retain(|(k, _)| k != key);
        self.0.len() < before
    }
}

/// Alignment of tensors in the files that this crate writes, in bytes.
pub const ALIGNMENT: u64 = 32;

/// A tensor's entry in a header.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry<'a> {
    /// Name of the tensor.
    pub name: &'a str,
    /// Dimensions in ggml's order.
    pub dims: &'a [u64],
    /// ggml's id of the type.
    pub ty: u32,
    /// Size of the data in bytes.
    pub bytes: u64,
}

/// The bytes of a GGUF file before its data. The data of each tensor start at a multiple of
/// [`ALIGNMENT`] after the end of the one before.
pub fn header(metadata: &Metadata, tensors: &[Entry<'_>]) -> Vec<u8> {
    let mut out = b"GGUF\x03\0\0\0".to_vec();
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((metadata.0.len() as u64).to_le_bytes());
    for (key, value) in &metadata.0 {
        out.extend(string(key.as_bytes()));
        out.extend(value.ty.to_le_bytes());
        out.extend(&value.bytes);
    }
    let mut at = 0u64;
    for t in tensors {
        out.extend(string(t.name.as_bytes()));
        out.extend((t.dims.len() as u32).to_le_bytes());
        t.dims.iter().for_each(|d| out.extend(d.to_le_bytes()));
        out.extend(t.ty.to_le_bytes());
        out.extend(at.to_le_bytes());
        at += t.bytes.next_multiple_of(ALIGNMENT);
    }
    out.resize(out.len().next_multiple_of(ALIGNMENT as usize), 0);
    out
}
