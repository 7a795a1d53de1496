//! Merges adapters into a model: each changed matrix becomes `W + scale · B · A`.

use super::{Adapter, AdapterError, EMBEDDING, LowRank, OUTPUT};
use crate::error::{Error, ErrorKind};
use crate::write::{PlannedTensor, write};
use crate::{Gguf, Tensor};
use half::f16;
use kjit_formats::format::Format;
use std::borrow::Cow;
use std::io::{self, Write};

/// The type of merged matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MergedType {
    /// f16. An element above its range is an error.
    F16,
    /// f32.
    F32,
}

impl MergedType {
    /// ggml's id of the type. `general.file_type` has the same number.
    fn id(self) -> u32 {
        match self {
            MergedType::F32 => 0,
            MergedType::F16 => 1,
        }
    }

    fn bytes(self) -> u64 {
        match self {
            MergedType::F32 => 4,
            MergedType::F16 => 2,
        }
    }
}

/// Writes a GGUF file of the model with these adapters merged, each with its scale. Matrices
/// without a change and other tensors are copied unchanged. If a model shares its embedding table
/// with its output projection and an adapter changes one of them, the file gets a separate output
/// projection.
///
/// # Errors
/// The model is a folder, a tensor's type cannot be decoded, a merged element does not fit the
/// type, or writing fails.
pub fn merge(
    out: &mut impl Write,
    base: &Gguf,
    adapters: &[(Adapter, f32)],
    to: MergedType,
    threads: usize,
) -> Result<(), AdapterError> {
    let mut planned = vec![];
    let mut sources = vec![];
    let mut plan = |name: &str, source: &str| -> Result<(), AdapterError> {
        let tensor = base.tensor(source)?;
        let changes: Vec<(&LowRank, f32)> =
            adapters.iter().filter_map(|(a, scale)| Some((a.pair(name)?, *scale))).collect();
        let (ty, bytes) = match changes.is_empty() {
            true => (tensor.ty.id, tensor.data.len() as u64),
            false => (to.id(), tensor.dims.iter().product::<u64>() * to.bytes()),
        };
        planned.push(PlannedTensor { name: name.into(), dims: tensor.dims.to_vec(), ty, bytes });
        sources.push((tensor, changes));
        Ok(())
    };
    for tensor in base.tensors() {
        plan(tensor.name(), tensor.name())?;
    }
    let changed = |name: &str| adapters.iter().any(|(a, _)| a.pair(name).is_some());
    if base.tensor_info(OUTPUT).is_none() && (changed(EMBEDDING) || changed(OUTPUT)) {
        plan(OUTPUT, EMBEDDING)?;
    }
    let mut sources = sources.into_iter();
    let mut refused = None;
    let written = write(out, base, &[("general.file_type", to.id())], &planned, |_| {
        let Some((tensor, changes)) = sources.next() else { return Ok(Cow::Borrowed(&[])) };
        if changes.is_empty() {
            return Ok(Cow::Borrowed(tensor.data));
        }
        merged(&tensor, &changes, to, threads).map(Cow::Owned).map_err(|why| {
            refused = Some(why);
            io::Error::other("a tensor cannot be merged")
        })
    });
    let first = base.paths().next().unwrap_or(std::path::Path::new("")).to_owned();
    match (written, refused) {
        (Ok(()), _) => Ok(()),
        (_, Some((tensor, why))) => {
            let (path, key, value) = (first, tensor, "too large".to_owned());
            Err(AdapterError::Unsupported { path, key, value, why })
        }
        (Err(source), None) => {
            Err(Error::new(&first, ErrorKind::Io { doing: "write the merged model", source })
                .into())
        }
    }
}

/// The bytes of a merged matrix. The error has the tensor's name and the reason.
fn merged(
    tensor: &Tensor<'_>,
    changes: &[(&LowRank, f32)],
    to: MergedType,
    threads: usize,
) -> Result<Vec<u8>, (String, &'static str)> {
    let fail = |why| (tensor.name.to_owned(), why);
    let format = Format::by_id(tensor.ty.id).ok_or_else(|| fail("its type cannot be decoded"))?;
    let cols = tensor.dims.first().map_or(0, |d| *d as usize).max(1);
    let from = format.row_bytes(cols).unwrap_or(0).max(1);
    let (rows, width) = (tensor.data.len() / from, cols * to.bytes() as usize);
    let mut bytes = vec![0u8; rows * width];
    let each = rows.div_ceil(threads.max(1)).max(1);
    let work = |first: usize, data: &[u8], out: &mut [u8]| {
        let (mut row, mut fits) = (vec![0.0f32; cols], true);
        for (i, (data, out)) in data.chunks_exact(from).zip(out.chunks_exact_mut(width)).enumerate()
        {
            fits &= format.decode(data, &mut row).is_ok();
            changes.iter().for_each(|(pair, by)| pair.add_to_row(first + i, *by, &mut row));
            match to {
                MergedType::F32 => {
                    let out = out.as_chunks_mut::<4>().0;
                    out.iter_mut().zip(&row).for_each(|(o, v)| *o = v.to_le_bytes());
                }
                MergedType::F16 => {
                    for (o, v) in out.as_chunks_mut::<2>().0.iter_mut().zip(&row) {
                        let half = f16::from_f32(*v);
                        fits &= half.is_finite();
                        *o = half.to_le_bytes();
                    }
                }
            }
        }
        fits
    };
    let parts = tensor.data.chunks(each * from).zip(bytes.chunks_mut(each * width));
    let fits = std::thread::scope(|scope| {
        let all: Vec<_> = parts
            .enumerate()
            .map(|(n, (data, out))| scope.spawn(move || work(n * each, data, out)))
            .collect();
        all.into_iter().fold(true, |fits, one| fits & one.join().unwrap_or(false))
    });
    match fits {
        true => Ok(bytes),
        false => Err(fail("a merged element is above f16's range: use --type F32")),
    }
}
