//! A small GGUF writer for tests, which also writes invalid files.

/// A metadata value to write.
#[derive(Clone, Debug)]
pub enum Val {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(u8),
    Str(Vec<u8>),
    /// Element type, written count, bytes of the elements.
    Array(u32, u64, Vec<u8>),
    U64(u64),
    I64(i64),
    F64(f64),
    /// Type id and raw bytes.
    Raw(u32, Vec<u8>),
}

pub fn string(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_le_bytes()[..], bytes].concat()
}

pub fn text(s: &str) -> Val {
    Val::Str(s.as_bytes().to_vec())
}

pub fn strings(values: &[&[u8]]) -> Val {
    Val::Array(8, values.len() as u64, values.iter().flat_map(|v| string(v)).collect())
}

pub fn i32s(values: &[i32]) -> Val {
    Val::Array(5, values.len() as u64, values.iter().flat_map(|v| v.to_le_bytes()).collect())
}

pub fn f32s(values: &[f32]) -> Val {
    Val::Array(6, values.len() as u64, values.iter().flat_map(|v| v.to_le_bytes()).collect())
}

/// Arrays of one array each, `depth` levels; the innermost one is an empty array of u8.
pub fn nested(depth: usize) -> Val {
    let mut body = Vec::new();
    for _ in 2..depth {
        body.extend([&9u32.to_le_bytes()[..], &1u64.to_le_bytes()].concat());
    }
    body.extend([&0u32.to_le_bytes()[..], &0u64.to_le_bytes()].concat());
    Val::Array(9, 1, body)
}

impl Val {
    fn bytes(&self) -> (u32, Vec<u8>) {
        match self {
            Val::U8(v) => (0, v.to_le_bytes().into()),
            Val::I8(v) => (1, v.to_le_bytes().into()),
            Val::U16(v) => (2, v.to_le_bytes().into()),
            Val::I16(v) => (3, v.to_le_bytes().into()),
            Val::U32(v) => (4, v.to_le_bytes().into()),
            Val::I32(v) => (5, v.to_le_bytes().into()),
            Val::F32(v) => (6, v.to_le_bytes().into()),
            Val::Bool(v) => (7, vec![*v]),
            Val::Str(v) => (8, string(v)),
            Val::Array(elem, n, body) => {
                (9, [&elem.to_le_bytes()[..], &n.to_le_bytes(), body].concat())
            }
            Val::U64(v) => (10, v.to_le_bytes().into()),
            Val::I64(v) => (11, v.to_le_bytes().into()),
            Val::F64(v) => (12, v.to_le_bytes().into()),
            Val::Raw(ty, bytes) => (*ty, bytes.clone()),
        }
    }
}

/// A tensor's directory entry.
#[derive(Clone, Debug)]
pub struct Ten {
    pub name: Vec<u8>,
    pub dims: Vec<u64>,
    /// The number of dimensions to write, if it differs from the true number.
    pub n_dims: Option<u32>,
    pub ty: u32,
    pub offset: u64,
}

/// A file to write.
#[derive(Clone, Debug)]
pub struct Writer {
    pub magic: [u8; 4],
    pub version: u32,
    /// The counts to write, if they differ from the true counts.
    pub n_tensors: Option<u64>,
    pub n_keys: Option<u64>,
    pub keys: Vec<(Vec<u8>, Val)>,
    pub tensors: Vec<Ten>,
    /// The alignment of the data.
    pub alignment: u64,
    /// Number of data bytes. Each byte is the low byte of its offset plus one.
    pub data: u64,
}

impl Writer {
    /// A file without keys and tensors.
    pub fn new() -> Writer {
        Writer {
            magic: *b"GGUF",
            version: 3,
            n_tensors: None,
            n_keys: None,
            keys: Vec::new(),
            tensors: Vec::new(),
            alignment: 32,
            data: 0,
        }
    }

    /// A small file with a value of every type, and tensors of three types.
    pub fn sample() -> Writer {
        let mut w = Writer::new()
            .key("general.architecture", text("llama"))
            .key("general.alignment", Val::U32(32))
            .key("llama.block_count", Val::U32(2))
            .key("a.u8", Val::U8(200))
            .key("a.i8", Val::I8(-5))
            .key("a.u16", Val::U16(60000))
            .key("a.i16", Val::I16(-300))
            .key("a.i32", Val::I32(-70000))
            .key("a.u64", Val::U64(1 << 40))
            .key("a.i64", Val::I64(-(1 << 40)))
            .key("a.f32", Val::F32(1e-5))
            .key("a.f64", Val::F64(0.1))
            .key("a.bool", Val::Bool(1))
            .key("a.nested", nested(2))
            .key("tokenizer.ggml.tokens", strings(&[b"a", b"", b"\xff\xfe", "\u{e9}".as_bytes()]))
            .key("tokenizer.ggml.scores", f32s(&[0.0, -1.5, f32::NEG_INFINITY]))
            .key("tokenizer.ggml.token_type", i32s(&[1, 3, -2]))
            .key("a.bools", Val::Array(7, 2, vec![1, 0]))
            .key("a.empty", Val::Array(4, 0, vec![]));
        w = w.tensor("norm", &[33], 0).tensor("q4_0", &[64, 3], 2).tensor("f16", &[5, 3, 2], 1);
        w
    }

    pub fn key(mut self, key: &str, value: Val) -> Writer {
        self.keys.push((key.as_bytes().to_vec(), value));
        self
    }

    /// Appends a tensor of type F32, F16 or Q4_0.
    pub fn tensor(mut self, name: &str, dims: &[u64], ty: u32) -> Writer {
        let n: u64 = dims.iter().product();
        let bytes = match ty {
            0 => n * 4,
            1 => n * 2,
            2 => n / 32 * 18,
            _ => panic!("the test's writer has no size for type {ty}"),
        };
        let offset = self.data.next_multiple_of(self.alignment);
        self.data = offset + bytes;
        let name = name.as_bytes().to_vec();
        self.tensors.push(Ten { name, dims: dims.to_vec(), n_dims: None, ty, offset });
        self
    }

    /// Changes the last tensor.
    pub fn but(mut self, change: impl FnOnce(&mut Ten)) -> Writer {
        change(self.tensors.last_mut().expect("a tensor to change"));
        self
    }

    /// Everything before the data, with padding.
    pub fn header(&self) -> Vec<u8> {
        let mut out = self.magic.to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.n_tensors.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend(self.n_keys.unwrap_or(self.keys.len() as u64).to_le_bytes());
        for (key, value) in &self.keys {
            let (ty, bytes) = value.bytes();
            out.extend(string(key));
            out.extend(ty.to_le_bytes());
            out.extend(bytes);
        }
        for t in &self.tensors {
            out.extend(string(&t.name));
            out.extend(t.n_dims.unwrap_or(t.dims.len() as u32).to_le_bytes());
            t.dims.iter().for_each(|d| out.extend(d.to_le_bytes()));
            out.extend(t.ty.to_le_bytes());
            out.extend(t.offset.to_le_bytes());
        }
        out.resize(out.len().next_multiple_of(self.alignment as usize), 0);
        out
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut out = self.header();
        out.extend((0..self.data).map(|i| (i as u8).wrapping_add(1)));
        out
    }
}
