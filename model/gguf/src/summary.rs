//! A summary of a model file, as `kjit inspect` prints it.

use std::fmt;

use super::error::TypeId;
use super::value::{Array, Value};
use super::{Gguf, TensorInfo};
use crate::quoted_text::QuotedText;

/// Number of array elements shown.
const SHOWN_ELEMENTS: usize = 6;

/// Number of string characters shown.
const SHOWN_CHARS: usize = 80;

/// The contents of a file for printing: metadata (long values are cut), tensors, quantisation mix,
/// totals.
#[derive(Debug, Clone)]
pub struct Summary {
    /// The file and the other parts of a split model.
    pub files: Vec<String>,
    /// Version of GGUF.
    pub version: u32,
    /// Whether this is a folder of safetensors, shown like a GGUF file.
    pub folder: bool,
    /// Total size of all files in bytes.
    pub file_bytes: u64,
    /// The alignment of tensors, in bytes.
    pub alignment: u64,
    /// Offset of the data in the (first) file.
    pub data_start: u64,
    /// All keys, in the order of the file.
    pub metadata: Vec<KeyLine>,
    /// All tensors, in the order of the file.
    pub tensors: Vec<TensorInfo>,
    /// The share of each type; the type with the most bytes comes first.
    pub mix: Vec<TypeShare>,
    /// Number of elements of all tensors (the number of parameters).
    pub elements: u64,
    /// Size of all tensors in bytes; tensors of unknown size are not counted.
    pub tensor_bytes: u64,
}

/// A metadata key as text.
#[derive(Debug, Clone)]
pub struct KeyLine {
    /// Name of the key.
    pub key: String,
    /// Type of the value: `u32`, `string[49152]`.
    pub ty: String,
    /// The value on one line, cut if it is long.
    pub value: String,
}

/// Totals of the tensors of one type.
#[derive(Debug, Clone)]
pub struct TypeShare {
    /// Type of the tensors.
    pub ty: TypeId,
    /// Number of tensors.
    pub tensors: usize,
    /// Number of elements.
    pub elements: u64,
    /// Number of bytes; 0 if the size of the type is unknown.
    pub bytes: u64,
}

impl Gguf {
    /// Summarises the file.
    pub fn summary(&self) -> Summary {
        let mut mix: Vec<TypeShare> = Vec::new();
        let (mut elements, mut tensor_bytes) = (0u64, 0u64);
        for t in self.tensors() {
            let (n, bytes) = (t.elements(), t.bytes().unwrap_or(0));
            // Tensors of unknown size are not bounded by the file, so sums may overflow.
            elements = elements.saturating_add(n);
            tensor_bytes = tensor_bytes.saturating_add(bytes);
            match mix.iter_mut().find(|m| m.ty == t.ty()) {
                Some(m) => {
                    m.tensors += 1;
                    m.elements = m.elements.saturating_add(n);
                    m.bytes = m.bytes.saturating_add(bytes);
                }
                None => mix.push(TypeShare { ty: t.ty(), tensors: 1, elements: n, bytes }),
            }
        }
        mix.sort_by_key(|m| (std::cmp::Reverse(m.bytes), m.ty));
        let metadata = self.first.layout.metadata.entries().iter().map(|e| KeyLine {
            key: e.key.to_string(),
            ty: e.type_name(),
            value: e.value(&self.first.map).map_or_else(String::new, |v| show(&v)),
        });
        Summary {
            files: self.paths().map(|p| p.display().to_string()).collect(),
            version: self.version(),
            folder: self.is_folder(),
            file_bytes: self.file_bytes(),
            alignment: self.alignment(),
            data_start: self.first.layout.data_start,
            metadata: metadata.collect(),
            tensors: self.tensors().to_vec(),
            mix,
            elements,
            tensor_bytes,
        }
    }
}

fn show(value: &Value<'_>) -> String {
    match value {
        Value::Int(v) => v.to_string(),
        // Most values are stored as f32. This prints the shortest text that parses to the same f32.
        Value::Float(v) if f64::from(*v as f32) == *v => (*v as f32).to_string(),
        Value::Float(v) => v.to_string(),
        Value::Bool(v) => v.to_string(),
        Value::Str(v) => show_str(v),
        Value::Array(a) => show_array(a),
    }
}

fn show_str(bytes: &[u8]) -> String {
    // The text is cut before it is converted, because a string may have megabytes. A character has
    // at most 4 bytes.
    let head = bytes.get(..bytes.len().min(SHOWN_CHARS * 4)).unwrap_or(bytes);
    let text = String::from_utf8_lossy(head);
    let cut: String = text.chars().take(SHOWN_CHARS).collect();
    if cut.len() == text.len() && head.len() == bytes.len() {
        format!("{cut:?}")
    } else {
        format!("{cut:?}… ({} bytes)", bytes.len())
    }
}

fn show_array(a: &Array<'_>) -> String {
    let mut out = String::from("[");
    for (i, v) in a.iter().take(SHOWN_ELEMENTS).enumerate() {
        if i > 0 {
            out.push_str(", ");
        }
        out.push_str(&match v {
            // One level is enough to recognise the array.
            Some(Value::Array(inner)) => format!("{inner:?}"),
            Some(v) => show(&v),
            None => "?".into(),
        });
    }
    if a.len() > SHOWN_ELEMENTS as u64 {
        out.push_str(", …");
    }
    out.push(']');
    out
}

/// Bytes in decimal units.
fn show_bytes(n: u64) -> String {
    match n {
        0..1_000 => format!("{n} B"),
        1_000..1_000_000 => format!("{:.1} kB", n as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", n as f64 / 1e6),
        _ => format!("{:.2} GB", n as f64 / 1e9),
    }
}

fn show_count(n: u64) -> String {
    match n {
        0..10_000 => n.to_string(),
        10_000..1_000_000 => format!("{:.1} k", n as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} M", n as f64 / 1e6),
        _ => format!("{:.2} G", n as f64 / 1e9),
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for file in &self.files {
            writeln!(f, "{file}")?;
        }
        let bytes = show_bytes(self.file_bytes);
        if self.folder {
            // `config.json` is one of the files.
            writeln!(
                f,
                "folder of safetensors, {bytes} in {}",
                files(self.files.len().saturating_sub(1))
            )?;
        } else {
            writeln!(
                f,
                "GGUF v{}, {bytes} in {}, data from byte {}, aligned to {}",
                self.version,
                files(self.files.len()),
                self.data_start,
                self.alignment
            )?;
        }
        writeln!(f, "\nmetadata ({} keys)", self.metadata.len())?;
        let key_width =
            self.metadata.iter().map(|k| k.key.chars().count().min(48)).max().unwrap_or(0);
        let ty_width = self.metadata.iter().map(|k| k.ty.len()).max().unwrap_or(0);
        for k in &self.metadata {
            writeln!(f, "  {:key_width$}  {:ty_width$}  {}", printable(&k.key), k.ty, k.value)?;
        }
        writeln!(f, "\ntensors ({})", self.tensors.len())?;
        let name_width =
            self.tensors.iter().map(|t| t.name().chars().count().min(64)).max().unwrap_or(0);
        for t in &self.tensors {
            let dims: Vec<String> = t.dims().iter().map(u64::to_string).collect();
            let bytes = t.bytes().map_or("size unknown".into(), show_bytes);
            writeln!(
                f,
                "  {:name_width$}  {:8}  {:>20}  {bytes:>10}",
                printable(t.name()),
                t.ty(),
                dims.join(" x ")
            )?;
        }
        writeln!(f, "\nquantisation mix")?;
        for m in &self.mix {
            let share = 100.0 * m.bytes as f64 / (self.tensor_bytes.max(1)) as f64;
            let (n, bytes) = (show_count(m.elements), show_bytes(m.bytes));
            writeln!(
                f,
                "  {:8}  {:>6} tensors  {n:>9} weights  {bytes:>10}  {share:5.1} %",
                m.ty, m.tensors
            )?;
        }
        let bits = 8.0 * self.tensor_bytes as f64 / (self.elements.max(1)) as f64;
        write!(
            f,
            "  total {} tensors, {} weights, {}, {bits:.2} bits per weight",
            self.tensors.len(),
            show_count(self.elements),
            show_bytes(self.tensor_bytes)
        )
    }
}

fn files(n: usize) -> String {
    if n == 1 { "one file".to_owned() } else { format!("{n} files") }
}

/// A name, escaped if it has control characters.
fn printable(name: &str) -> String {
    if name.chars().any(char::is_control) { QuotedText(name).to_string() } else { name.to_owned() }
}
