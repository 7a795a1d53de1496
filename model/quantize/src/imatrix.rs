//! Importance matrices: the mean square of each input of a product, in llama.cpp's two formats.

use crate::error::QuantizeError;
use crate::metadata::{ALIGNMENT, Entry, Metadata, StoredValue, header};
use kjit_gguf::{Gguf, Value};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Importance of the columns of matrices.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Imatrix {
    /// The file that it was read from.
    pub file: String,
    /// The texts that the importance was computed from.
    pub datasets: Vec<String>,
    /// Number of chunks of text.
    pub chunks: u32,
    /// The mean squares for each tensor: one value for each column, for one expert after another.
    pub entries: BTreeMap<String, Vec<f32>>,
}

/// The reasons why a file is not an importance matrix.
#[derive(Debug, thiserror::Error)]
#[error("{}: {why}", path.display())]
pub struct ImatrixError {
    /// The file.
    pub path: PathBuf,
    /// The reason.
    pub why: String,
}

impl Imatrix {
    /// Reads a file of either format: GGUF, or the older binary format (`.dat`).
    ///
    /// # Errors
    /// The file cannot be read, is damaged or of a different kind, or contains numbers that are not
    /// finite.
    pub fn read(path: &Path) -> Result<Imatrix, ImatrixError> {
        let fail = |why: String| ImatrixError { path: path.to_owned(), why };
        let found = std::fs::metadata(path).map_err(|e| fail(format!("cannot be read: {e}")))?;
        // Opening a pipe would wait, and a device has no meaningful size.
        if !found.is_file() {
            return Err(fail("is not a regular file: use the file of an importance matrix".into()));
        }
        let mut head = [0; 4];
        let opened = std::fs::File::open(path).map_err(|e| fail(format!("cannot be read: {e}")))?;
        let is_gguf =
            std::io::Read::read_exact(&mut &opened, &mut head).is_ok() && &head == b"GGUF";
        let mut imatrix = if is_gguf {
            from_gguf(&Gguf::open(path).map_err(|e| fail(e.to_string()))?).map_err(fail)?
        } else {
            let size = found.len();
            if size > MAX_BYTES {
                return Err(fail(format!(
                    "has {size} bytes: an importance matrix has at most {MAX_BYTES}"
                )));
            }
            let bytes = std::fs::read(path).map_err(|e| fail(format!("cannot be read: {e}")))?;
            from_dat(&bytes).ok_or_else(|| {
                fail("is not an importance matrix (a GGUF file or a complete .dat file)".into())
            })?
        };
        for (name, values) in &imatrix.entries {
            if let Some(bad) = values.iter().find(|v| !v.is_finite() || **v < 0.0) {
                return Err(fail(format!("has a value of {bad} for {name}: compute it again")));
            }
        }
        imatrix.file = path.display().to_string();
        Ok(imatrix)
    }
}

/// Largest file of the older form, in bytes.
const MAX_BYTES: u64 = 4 << 30;

fn from_gguf(gguf: &Gguf) -> Result<Imatrix, String> {
    let text = |e: kjit_gguf::Error| e.to_string();
    let kind = gguf.opt_str("general.type").map_err(text)?;
    if kind != Some("imatrix") {
        return Err(format!(
            "is not an importance matrix: general.type is {}, expected imatrix",
            kind.unwrap_or("missing")
        ));
    }
    let datasets = match gguf.value("imatrix.datasets") {
        Some(Value::Array(all)) => all
            .iter()
            .filter_map(|v| match v {
                Some(Value::Str(s)) => Some(String::from_utf8_lossy(s).into_owned()),
                _ => None,
            })
            .collect(),
        _ => vec![],
    };
    let chunks = gguf.opt_u32("imatrix.chunk_count").map_err(text)?.unwrap_or(0);
    let mut entries = BTreeMap::new();
    for info in gguf.tensors() {
        let Some(name) = info.name().strip_suffix(".in_sum2") else { continue };
        let sums = floats(gguf, info.name())?;
        let counts = floats(gguf, &format!("{name}.counts"))?;
        let width = sums.len() / counts.len().max(1);
        if width == 0 || width * counts.len() != sums.len() {
            return Err(format!("has {} sums and {} counts for {name}", sums.len(), counts.len()));
        }
        let mean = |(sums, count): (&[f32], &f32)| -> Vec<f32> {
            // An expert that no token chose has no data.
            let of = |sum: &f32| if *count > 0.0 { sum / count } else { 1.0 };
            sums.iter().map(of).collect()
        };
        let means = sums.chunks_exact(width).zip(&counts).flat_map(mean).collect();
        entries.insert(name.to_owned(), means);
    }
    Ok(Imatrix { file: String::new(), datasets, chunks, entries })
}

fn floats(gguf: &Gguf, name: &str) -> Result<Vec<f32>, String> {
    let tensor = gguf.tensor(name).map_err(|e| e.to_string())?;
    if tensor.ty.name != "F32" {
        return Err(format!("has {name} as {}, expected F32", tensor.ty));
    }
    Ok(tensor.data.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect())
}

/// Reads the older format: a count, then for each tensor its name, a number of calls and the sums
/// of squares for a call, then the number of chunks and the name of the text.
fn from_dat(bytes: &[u8]) -> Option<Imatrix> {
    let mut rest = bytes;
    let mut take = |n: usize| -> Option<&[u8]> {
        let (head, tail) = rest.split_at_checked(n)?;
        rest = tail;
        Some(head)
    };
    let int = |b: &[u8]| Some(i32::from_le_bytes(b.try_into().ok()?));
    let count = int(take(4)?)?;
    if count < 1 {
        return None;
    }
    let mut entries = BTreeMap::new();
    for _ in 0..count {
        let length = usize::try_from(int(take(4)?)?).ok()?;
        let name = String::from_utf8(take(length)?.to_vec()).ok()?;
        let calls = int(take(4)?)?;
        let values = usize::try_from(int(take(4)?)?).ok().filter(|n| *n > 0)?;
        let sums = take(values.checked_mul(4)?)?.as_chunks().0;
        let divisor = if calls > 0 { calls as f32 } else { 1.0 };
        let means = sums.iter().map(|b| f32::from_le_bytes(*b) / divisor).collect();
        entries.insert(name, means);
    }
    // Files from before 2024 end here.
    let chunks = take(4).and_then(int).and_then(|n| u32::try_from(n).ok()).unwrap_or(0);
    let length = take(4).and_then(int).and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
    let dataset = take(length).map(|b| String::from_utf8_lossy(b).into_owned());
    let datasets = dataset.filter(|d| !d.is_empty()).into_iter().collect();
    Some(Imatrix { file: String::new(), datasets, chunks, entries })
}

/// The inputs of the products with one tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct ColumnSums {
    /// Name of the tensor.
    pub tensor: String,
    /// For each matrix, one after another, the sum of squares of each column's inputs.
    pub sums: Vec<f32>,
    /// For each matrix, the number of inputs.
    pub counts: Vec<f32>,
}

/// Writes an importance matrix in llama.cpp's GGUF format. `dataset` is the name of the text.
/// `chunks` chunks of `chunk_tokens` tokens of the text were used.
///
/// # Errors
/// The file exists (unless `replace`) or cannot be written.
pub fn write_imatrix(
    path: &Path,
    dataset: &str,
    chunks: u32,
    chunk_tokens: u32,
    sums: &[ColumnSums],
    replace: bool,
) -> Result<(), QuantizeError> {
    if !replace && path.symlink_metadata().is_ok() {
        return Err(QuantizeError::Exists(path.to_owned()));
    }
    let mut metadata = Metadata::default();
    metadata.set("general.type", StoredValue::string("imatrix"));
    metadata.set("imatrix.datasets", StoredValue::strings(&[dataset.to_owned()]));
    metadata.set("imatrix.chunk_count", StoredValue::u32(chunks));
    metadata.set("imatrix.chunk_size", StoredValue::u32(chunk_tokens));
    let mut tensors = vec![];
    for of in sums {
        let matrices = of.counts.len() as u64;
        let width = of.sums.len() as u64 / matrices.max(1);
        tensors.push((format!("{}.in_sum2", of.tensor), [width, matrices], &of.sums));
        tensors.push((format!("{}.counts", of.tensor), [1, matrices], &of.counts));
    }
    let entries: Vec<Entry<'_>> = tensors
        .iter()
        .map(|(name, dims, data)| Entry { name, dims, ty: 0, bytes: 4 * data.len() as u64 })
        .collect();
    let mut bytes = header(&metadata, &entries);
    for (_, _, data) in &tensors {
        bytes.extend(data.iter().flat_map(|v| v.to_le_bytes()));
        bytes.resize(bytes.len().next_multiple_of(ALIGNMENT as usize), 0);
    }
    let fail = |source| QuantizeError::Write { path: path.to_owned(), source };
    let mut file = crate::write::temporary(path).map_err(fail)?;
    file.write_all(&bytes).map_err(fail)?;
    crate::write::publish(file, path, replace).map_err(fail)
}
