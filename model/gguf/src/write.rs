//! Writes GGUF files: the metadata of a model, and tensors whose data are produced one at a time.

use crate::Gguf;
use std::borrow::Cow;
use std::io::{self, Write};

/// A tensor with its data.
#[derive(Debug, Clone)]
pub struct NewTensor {
    /// The name.
    pub name: String,
    /// 1 to 4 dimensions in ggml's order (the row length first).
    pub dims: Vec<u64>,
    /// ggml's id of the type.
    pub ty: u32,
    /// The data.
    pub bytes: Vec<u8>,
}

/// A tensor for [`write()`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedTensor {
    /// The name.
    pub name: String,
    /// 1 to 4 dimensions in ggml's order (the row length first).
    pub dims: Vec<u64>,
    /// ggml's id of the type.
    pub ty: u32,
    /// Size of the data in bytes.
    pub bytes: u64,
}

/// The alignment of data, GGUF's default.
const ALIGNMENT: u64 = 32;

/// ggml's id of the metadata type `u32`.
const U32: u32 = 4;

/// Writes a GGUF file with the metadata of `model`. The integers of `set` replace keys of the same
/// name. Keys about parts of a split model and about the alignment are omitted.
///
/// `data` returns the bytes of each tensor, in order. Only one tensor is in memory at a time.
///
/// # Errors
/// The writer or `data` fails, or `data` returns a different number of bytes than planned.
pub fn write<'a>(
    out: &mut impl Write,
    model: &Gguf,
    set: &[(&str, u32)],
    tensors: &'a [PlannedTensor],
    mut data: impl FnMut(&'a PlannedTensor) -> io::Result<Cow<'a, [u8]>>,
) -> io::Result<()> {
    let keeps = |key: &str| {
        !key.starts_with("split.") && key != "general.alignment" && set.iter().all(|s| s.0 != key)
    };
    let keys: Vec<&[u8]> = model.raw_keys().filter(|(key, _)| keeps(key)).map(|k| k.1).collect();
    let mut head = b"GGUF\x03\0\0\0".to_vec();
    head.extend_from_slice(&(tensors.len() as u64).to_le_bytes());
    head.extend_from_slice(&((keys.len() + set.len()) as u64).to_le_bytes());
    keys.iter().for_each(|key| head.extend_from_slice(key));
    for (key, value) in set {
        push_str(&mut head, key);
        head.extend_from_slice(&U32.to_le_bytes());
        head.extend_from_slice(&value.to_le_bytes());
    }
    let mut offset = 0u64;
    for t in tensors {
        push_str(&mut head, &t.name);
        head.extend_from_slice(&(t.dims.len() as u32).to_le_bytes());
        t.dims.iter().for_each(|d| head.extend_from_slice(&d.to_le_bytes()));
        head.extend_from_slice(&t.ty.to_le_bytes());
        head.extend_from_slice(&offset.to_le_bytes());
        offset += t.bytes.next_multiple_of(ALIGNMENT);
    }
    head.resize(head.len().next_multiple_of(ALIGNMENT as usize), 0);
    out.write_all(&head)?;
    for t in tensors {
        let bytes = data(t)?;
        let len = bytes.len() as u64;
        if len != t.bytes {
            let why = format!("tensor {} has {len} bytes, {} were planned", t.name, t.bytes);
            return Err(io::Error::other(why));
        }
        out.write_all(&bytes)?;
        let pad = len.next_multiple_of(ALIGNMENT) - len;
        out.write_all([0; ALIGNMENT as usize].get(..pad as usize).unwrap_or_default())?;
    }
    Ok(())
}

fn push_str(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&(text.len() as u64).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}
