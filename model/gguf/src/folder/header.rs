//! Builds a GGUF file in memory for the parts of a folder that need conversion: metadata, and
//! vectors in f32.

/// A GGUF file under construction.
#[derive(Default)]
pub struct Header {
    keys: Vec<u8>,
    count: u64,
    tensors: Vec<MemoryTensor>,
}

/// A tensor in this file.
struct MemoryTensor {
    name: String,
    dims: Vec<u64>,
    ty: u32,
    bytes: Vec<u8>,
}

/// ggml's id of F32.
pub const F32: u32 = 0;

/// The alignment of data.
const ALIGNMENT: usize = 32;

impl Header {
    fn key(&mut self, key: &str, ty: u32, value: &[u8]) {
        self.count += 1;
        push_str(&mut self.keys, key.as_bytes());
        self.keys.extend_from_slice(&ty.to_le_bytes());
        self.keys.extend_from_slice(value);
    }

    /// Adds an integer.
    pub fn u32(&mut self, key: &str, value: u32) {
        self.key(key, 4, &value.to_le_bytes());
    }

    /// Adds a number.
    pub fn f32(&mut self, key: &str, value: f64) {
        self.key(key, 6, &(value as f32).to_le_bytes());
    }

    /// Adds a boolean.
    pub fn bool(&mut self, key: &str, value: bool) {
        self.key(key, 7, &[u8::from(value)]);
    }

    /// Adds a string.
    pub fn str(&mut self, key: &str, value: &str) {
        let mut bytes = Vec::with_capacity(8 + value.len());
        push_str(&mut bytes, value.as_bytes());
        self.key(key, 8, &bytes);
    }

    fn array(&mut self, key: &str, ty: u32, len: usize, elements: &[u8]) {
        let head = [&ty.to_le_bytes()[..], &(len as u64).to_le_bytes()].concat();
        self.key(key, 9, &[&head, elements].concat());
    }

    /// Adds an array of strings.
    pub fn strs<'a>(&mut self, key: &str, values: impl ExactSizeIterator<Item = &'a str>) {
        let (mut bytes, len) = (vec![], values.len());
        values.for_each(|value| push_str(&mut bytes, value.as_bytes()));
        self.array(key, 8, len, &bytes);
    }

    /// Adds an array of integers.
    pub fn i32s(&mut self, key: &str, values: &[i32]) {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.array(key, 5, values.len(), &bytes);
    }

    /// Adds an array of numbers.
    pub fn f32s(&mut self, key: &str, values: &[f32]) {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.array(key, 6, values.len(), &bytes);
    }

    /// Adds an array of booleans.
    pub fn bools(&mut self, key: &str, values: &[bool]) {
        let bytes: Vec<u8> = values.iter().map(|v| u8::from(*v)).collect();
        self.array(key, 7, values.len(), &bytes);
    }

    /// Adds a tensor with its bytes.
    pub fn tensor(&mut self, name: &str, dims: &[u64], ty: u32, bytes: Vec<u8>) {
        self.tensors.push(MemoryTensor { name: name.to_owned(), dims: dims.to_vec(), ty, bytes });
    }

    /// Adds a vector.
    pub fn vector(&mut self, name: &str, values: &[f32]) {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.tensor(name, &[values.len() as u64], F32, bytes);
    }

    /// The bytes of the file.
    pub fn bytes(self) -> Vec<u8> {
        let mut out = b"GGUF\x03\0\0\0".to_vec();
        out.extend_from_slice(&(self.tensors.len() as u64).to_le_bytes());
        out.extend_from_slice(&self.count.to_le_bytes());
        out.extend_from_slice(&self.keys);
        let mut offset = 0u64;
        for t in &self.tensors {
            push_str(&mut out, t.name.as_bytes());
            out.extend_from_slice(&(t.dims.len() as u32).to_le_bytes());
            t.dims.iter().for_each(|d| out.extend_from_slice(&d.to_le_bytes()));
            out.extend_from_slice(&t.ty.to_le_bytes());
            out.extend_from_slice(&offset.to_le_bytes());
            offset += t.bytes.len().next_multiple_of(ALIGNMENT) as u64;
        }
        out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
        for t in &self.tensors {
            out.extend_from_slice(&t.bytes);
            out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
        }
        out
    }
}

fn push_str(out: &mut Vec<u8>, text: &[u8]) {
    out.extend_from_slice(&(text.len() as u64).to_le_bytes());
    out.extend_from_slice(text);
}
