//! The tensor directory: names, shapes, types and offsets of data. They are checked, so that every
//! later slice is inside the file.

use super::cursor::{Cursor, UnexpectedEnd};
use super::error::{ErrorKind, TypeId};
use super::metadata::read_name;
use crate::quoted_text::QuotedText;

/// The directory entry of a tensor.
#[derive(Debug, Clone)]
pub struct TensorInfo {
    pub(crate) name: Box<str>,
    /// Offset of the directory entry.
    pub(crate) at: u64,
    dims: [u64; 4],
    n_dims: u8,
    ty: TypeId,
    /// Offset from the start of the data section, as stored.
    offset: u64,
    /// Size of the data in bytes; `None` if the size of the type is unknown.
    bytes: Option<u64>,
    /// Offset of the data in the file.
    pub(crate) data_at: u64,
    pub(crate) part: u32,
}

impl TensorInfo {
    /// Creates the entry of a tensor in a file of a different format. The tensor has one to four
    /// dimensions, and the caller has checked that `bytes` at `at` are in the file.
    pub(crate) fn placed(name: &str, dims: &[u64], ty: u32, bytes: u64, at: u64) -> TensorInfo {
        let mut all = [1; 4];
        all.iter_mut().zip(dims).for_each(|(to, from)| *to = *from);
        let n_dims = dims.len().min(4) as u8;
        let (ty, bytes) = (TypeId(ty), Some(bytes));
        TensorInfo {
            name: name.into(),
            at: 0,
            dims: all,
            n_dims,
            ty,
            offset: at,
            bytes,
            data_at: at,
            part: 0,
        }
    }

    /// Name of the tensor.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Dimensions in ggml's order: 1 to 4, the row length (contiguous in memory) first. No
    /// dimension is zero.
    pub fn dims(&self) -> &[u64] {
        self.dims.get(..usize::from(self.n_dims)).unwrap_or(&self.dims)
    }

    /// Type of the tensor, which may be unknown.
    pub fn ty(&self) -> TypeId {
        self.ty
    }

    /// The product of the dimensions.
    pub fn elements(&self) -> u64 {
        self.dims().iter().product()
    }

    /// Size of the data in bytes; `None` if the size of the type is unknown.
    pub fn bytes(&self) -> Option<u64> {
        self.bytes
    }

    /// Offset of the data from the start of the file.
    pub fn data_offset(&self) -> u64 {
        self.data_at
    }

    /// The part of a split model that contains it, from 0.
    pub fn part(&self) -> usize {
        self.part as usize
    }
}

/// Minimum bytes of an entry: name length, a name of one byte, dimension count, one dimension,
/// type, offset.
pub(crate) const MIN_ENTRY: u64 = 8 + 1 + 4 + 8 + 4 + 8;

/// Reads the directory. The caller has checked `count` against the remaining bytes.
pub(crate) fn read(cursor: &mut Cursor<'_>, count: u64) -> Result<Vec<TensorInfo>, ErrorKind> {
    let mut tensors = Vec::new();
    for i in 0..count {
        tensors.push(read_one(cursor, i)?);
    }
    Ok(tensors)
}

fn read_one(cursor: &mut Cursor<'_>, index: u64) -> Result<TensorInfo, ErrorKind> {
    let at = cursor.at();
    let name = read_name(cursor, || format!("tensor number {index}"))?;
    let inside = |s: UnexpectedEnd| {
        s.inside(|| format!("the directory entry of tensor {}", QuotedText(&name)))
    };
    let n_at = cursor.at();
    let n = cursor.u32().map_err(inside)?;
    if !(1..=4).contains(&n) {
        return Err(ErrorKind::Dimensions { name: name.into(), at: n_at, n });
    }
    let mut dims = [1; 4];
    for d in dims.iter_mut().take(n as usize) {
        *d = cursor.u64().map_err(inside)?;
    }
    let ty = TypeId(cursor.u32().map_err(inside)?);
    let offset = cursor.u64().map_err(inside)?;
    let shape = |why: String| {
        let dims = dims.iter().copied().take(n as usize).collect();
        ErrorKind::Shape { name: name.to_string(), at, dims, why }
    };
    if dims.contains(&0) {
        return Err(shape("a dimension is zero".into()));
    }
    let [row, rest @ ..] = dims;
    let too_large = || shape("too large for any file: damaged, download it again".into());
    let rows = rest.iter().try_fold(1u64, |p, d| p.checked_mul(*d)).ok_or_else(too_large)?;
    row.checked_mul(rows).ok_or_else(too_large)?;
    let bytes = match ty.ggml() {
        None => None,
        Some(t) => {
            if !row.is_multiple_of(u64::from(t.block_elems)) {
                return Err(shape(format!(
                    "its rows of {row} are not a whole number of {} blocks of {}",
                    t.name, t.block_elems
                )));
            }
            Some(t.row_bytes(row).and_then(|b| b.checked_mul(rows)).ok_or_else(too_large)?)
        }
    };
    Ok(TensorInfo { name, at, dims, n_dims: n as u8, ty, offset, bytes, data_at: 0, part: 0 })
}

/// Computes the offset of each tensor in the file (`len` bytes, data at `data_start`). Checks that
/// each tensor is inside the file and that tensors do not overlap. For a tensor of unknown size,
/// only its first byte is checked.
pub(crate) fn place(
    tensors: &mut [TensorInfo],
    data_start: u64,
    alignment: u64,
    len: u64,
) -> Result<(), ErrorKind> {
    for t in tensors.iter_mut() {
        if !t.offset.is_multiple_of(alignment) {
            return Err(ErrorKind::Misaligned {
                name: t.name.to_string(),
                at: t.at,
                offset: t.offset,
                alignment,
            });
        }
        let bytes = t.bytes.unwrap_or(1);
        let end = data_start.checked_add(t.offset).and_then(|s| s.checked_add(bytes));
        if end.is_none_or(|end| end > len) {
            let (name, offset) = (t.name.to_string(), t.offset);
            return Err(ErrorKind::OutOfFile { name, at: t.at, offset, bytes, data_start, len });
        }
        t.data_at = data_start + t.offset;
    }
    let mut by_place: Vec<&TensorInfo> = tensors.iter().collect();
    by_place.sort_by_key(|t| t.data_at);
    for pair in by_place.windows(2) {
        if let [a, b] = pair
            && a.data_at + a.bytes.unwrap_or(1) > b.data_at
        {
            let (first, second) = (a.name.to_string(), b.name.to_string());
            return Err(ErrorKind::Overlap { first, second, at: b.data_at });
        }
    }
    Ok(())
}
