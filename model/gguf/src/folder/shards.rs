//! The `*.safetensors` files of a folder. Selects the files of the model, maps them and locates
//! their tensors. The format: <https://huggingface.co/docs/safetensors>.

use super::error::FolderError;
use super::fail::fail;
use super::json::{self, one_line};
use crate::map::map_file;
use crate::{Error, QuotedText};
use memmap2::Mmap;
use safetensors::tensor::{Dtype, TensorInfo};
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Component, Path, PathBuf};

/// A mapped file.
pub struct Shard {
    /// Path of the file.
    pub path: PathBuf,
    /// Bytes of the file.
    pub map: Mmap,
    /// Tensors of the file, ordered by offset.
    pub tensors: Vec<ShardTensor>,
}

/// A tensor of a file.
pub struct ShardTensor {
    /// Name of the tensor.
    pub name: String,
    /// Type of the tensor.
    pub dtype: Dtype,
    /// The shape, rows first.
    pub shape: Vec<u64>,
    /// Offset of the tensor's first byte. The whole tensor is in the file.
    pub at: u64,
    /// Size of the tensor in bytes.
    pub bytes: u64,
}

/// A file's path, and the tensors that the index lists for it.
type IndexedFile = (PathBuf, Vec<String>);

/// The header of a file: its tensors in order, including duplicates.
struct ShardHeader(Vec<(String, TensorInfo)>);

impl<'de> Deserialize<'de> for ShardHeader {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<ShardHeader, D::Error> {
        from.deserialize_map(HeaderVisitor).map(ShardHeader)
    }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = Vec<(String, TensorInfo)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with an entry for each tensor")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut tensors = vec![];
        while let Some(name) = map.next_key::<String>()? {
            // Free text of the program that wrote the file.
            if name == "__metadata__" {
                map.next_value::<IgnoredAny>()?;
            } else {
                tensors.push((name, map.next_value()?));
            }
        }
        Ok(tensors)
    }
}

/// Maximum bytes of a header. A file with 100,000 tensors has 12 MB; the format allows 100 MB.
const MAX_HEADER: u64 = 16 << 20;

/// The file name of a model in one file.
const SINGLE_FILE: &str = "model.safetensors";

#[derive(Deserialize)]
struct Index {
    weight_map: WeightMap,
}

/// The tensors of each file, inverted from an index that lists a file for each tensor.
struct WeightMap(BTreeMap<String, Vec<String>>);

impl<'de> Deserialize<'de> for WeightMap {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<WeightMap, D::Error> {
        from.deserialize_map(WeightMapVisitor).map(WeightMap)
    }
}

struct WeightMapVisitor;

impl<'de> Visitor<'de> for WeightMapVisitor {
    type Value = BTreeMap<String, Vec<String>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with a file's name for each tensor")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut files = BTreeMap::<String, Vec<String>>::new();
        while let Some((tensor, file)) = map.next_entry::<String, Cow<'de, str>>()? {
            match files.get_mut(file.as_ref()) {
                Some(tensors) => tensors.push(tensor),
                None => drop(files.insert(file.into_owned(), vec![tensor])),
            }
        }
        Ok(files)
    }
}

/// The files of the model, and a warning. `model.safetensors` is used if it exists, even with an
/// index (as in transformers). Otherwise the files of the index are used, and without an index the
/// only file.
pub fn files(folder: &Path) -> Result<(Vec<IndexedFile>, Option<String>), Error> {
    let whole = folder.join(SINGLE_FILE);
    let index = folder.join("model.safetensors.index.json");
    if let Some(bytes) = json::json_bytes(&index, json::MAX_INDEX)? {
        let WeightMap(files) = json::parse::<Index>(&index, &bytes)?.weight_map;
        for (file, tensors) in &files {
            // A file name must not point outside the folder.
            let mut parts = Path::new(file).components();
            if !matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None)) {
                let why = "expected the name of a file in the folder".to_owned();
                let key = tensors.first().cloned().unwrap_or_default();
                return Err(fail(&index, FolderError::Value { key, value: file.clone(), why }));
            }
        }
        if !whole.exists() || files.contains_key(SINGLE_FILE) {
            let files = files.into_iter().map(|(file, tensors)| (folder.join(file), tensors));
            return Ok((files.collect(), None));
        }
        let n = files.len();
        let line = format!(
            "{SINGLE_FILE} is used; \
             the {n} files that model.safetensors.index.json lists are ignored"
        );
        return Ok((vec![(whole, vec![])], Some(line)));
    }
    if whole.exists() {
        return Ok((vec![(whole, vec![])], None));
    }
    let refused = |source| fail(folder, FolderError::Io { doing: "read", source });
    let mut found = vec![];
    for entry in folder.read_dir().map_err(refused)? {
        let path = entry.map_err(refused)?.path();
        if path.extension().is_some_and(|end| end == "safetensors") {
            found.push((path, vec![]));
        }
    }
    match found.len() {
        0 => Err(fail(
            &whole,
            FolderError::NotThere { hint: ": a folder needs *.safetensors files" },
        )),
        1 => Ok((found, None)),
        _ => Err(fail(folder, FolderError::Unclear)),
    }
}

/// Maps a file and reads its tensors.
pub fn open((path, promised): IndexedFile) -> Result<Shard, Error> {
    let map = map_file(&path)?;
    let tensors = read(&map).map_err(|e| fail(&path, e))?;
    let names: std::collections::HashSet<&str> = tensors.iter().map(|t| t.name.as_str()).collect();
    if let Some(tensor) = promised.into_iter().find(|name| !names.contains(name.as_str())) {
        return Err(fail(&path, FolderError::NotInShard { tensor }));
    }
    Ok(Shard { path, map, tensors })
}

/// Reads the tensors of a file. Every offset is checked against the end of the file and the shape
/// of the tensor.
fn read(file: &[u8]) -> Result<Vec<ShardTensor>, FolderError> {
    let damaged = |why: String| FolderError::Header { why };
    let len = file.len() as u64;
    let Some((head, rest)) = file.split_first_chunk::<8>() else {
        return Err(damaged(format!(
            "it has {len} bytes, fewer than the 8 bytes of a header's length"
        )));
    };
    let header = u64::from_le_bytes(*head);
    if header > MAX_HEADER {
        return Err(damaged(format!(
            "its header has {header} bytes, more than the limit of {MAX_HEADER}"
        )));
    }
    let Some(text) = usize::try_from(header).ok().and_then(|n| rest.get(..n)) else {
        return Err(damaged(format!(
            "its first 8 bytes give a header of {header} bytes, but the file has {len}"
        )));
    };
    // The safetensors crate parses the entry of a tensor. Offsets are checked here, so that errors
    // can name the tensor.
    let ShardHeader(mut entries) =
        serde_json::from_slice(text).map_err(|e| damaged(one_line(&e.to_string())))?;
    entries.sort_by(|a, b| a.0.cmp(&b.0));
    for pair in entries.windows(2) {
        if let [(a, _), (b, _)] = pair
            && a == b
        {
            return Err(FolderError::Twice { tensor: a.clone() });
        }
    }
    let start = 8 + header;
    let mut tensors = vec![];
    for (name, info) in entries {
        let (from, to) = (info.data_offsets.0 as u64, info.data_offsets.1 as u64);
        let place =
            start.checked_add(from).zip(start.checked_add(to)).filter(|(at, end)| at <= end);
        let Some((at, end)) = place else {
            return Err(damaged(format!(
                "tensor {} is at bytes {from} to {to} of its data",
                QuotedText(&name)
            )));
        };
        if end > len {
            return Err(FolderError::Truncated { tensor: name, at, end, len });
        }
        let shape: Vec<u64> = info.shape.iter().map(|d| *d as u64).collect();
        tensors.push(ShardTensor { name, dtype: info.dtype, shape, at, bytes: end - at });
    }
    tensors.sort_by(|a, b| (a.at, &a.name).cmp(&(b.at, &b.name)));
    for pair in tensors.windows(2) {
        if let [a, b] = pair
            && a.at + a.bytes > b.at
        {
            return Err(damaged(format!(
                "tensors {} and {} overlap",
                QuotedText(&a.name),
                QuotedText(&b.name)
            )));
        }
    }
    Ok(tensors)
}

/// ggml's id and the element size of a type of weights.
pub fn ggml(dtype: Dtype) -> Option<(u32, u64)> {
    match dtype {
        Dtype::F32 => Some((super::header::F32, 4)),
        Dtype::F16 => Some((1, 2)),
        Dtype::BF16 => Some((30, 2)),
        _ => None,
    }
}

/// Converts bytes to f32.
pub fn singles(dtype: Dtype, bytes: &[u8]) -> Vec<f32> {
    let halves = |of: fn([u8; 2]) -> f32| bytes.as_chunks::<2>().0.iter().map(|b| of(*b)).collect();
    match dtype {
        Dtype::F16 => halves(|b| half::f16::from_le_bytes(b).to_f32()),
        Dtype::BF16 => halves(|b| half::bf16::from_le_bytes(b).to_f32()),
        _ => bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
    }
}
