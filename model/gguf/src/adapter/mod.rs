//! LoRA adapters: pairs of thin matrices that change a model's matrices, `W + scale · B · A`.
//!
//! kjit reads two formats: llama.cpp's GGUF (`general.type` is `adapter`) and PEFT's folder
//! (`adapter_config.json` and `adapter_model.safetensors`). Both become an [`Adapter`] with the
//! names and the row order of the base model's file.

mod error;
mod file;
mod merge;
mod rows;

pub use error::AdapterError;
pub use merge::{MergedType, merge};

use crate::Gguf;
use crate::folder;
use std::path::{Path, PathBuf};

/// The largest rank of a pair.
pub const MAX_RANK: usize = 4096;

/// The embedding table, whose pairs are looked up by token.
pub const EMBEDDING: &str = "token_embd.weight";

/// The output projection.
pub const OUTPUT: &str = "output.weight";

/// A LoRA adapter, fitted to a base model.
#[derive(Debug, Clone, PartialEq)]
pub struct Adapter {
    /// The file or folder.
    pub path: PathBuf,
    /// Name of the file or folder without its extension.
    pub name: String,
    /// The pairs, ordered by the name of their tensor; at least one.
    pub pairs: Vec<LowRank>,
}

/// The change of one matrix: `W + scale · B · A`.
#[derive(Debug, Clone, PartialEq)]
pub struct LowRank {
    /// The matrix of the base model: a tensor's name, or `output.weight` of a model whose output
    /// projection is its embedding table.
    pub tensor: String,
    /// Rows of the base's matrix.
    pub rows: usize,
    /// Length of a row of the base's matrix.
    pub cols: usize,
    /// Rows of A and columns of B.
    pub rank: usize,
    /// The factor of the pair at an adapter's scale of 1: alpha / rank.
    pub scale: f32,
    /// A: `rank` rows of `cols`. For [`EMBEDDING`] it is transposed: `rows` rows of `rank`.
    pub a: Vec<f32>,
    /// B: `rows` rows of `rank`. For [`EMBEDDING`]: `cols` rows of `rank`.
    pub b: Vec<f32>,
}

impl LowRank {
    /// Whether this changes the embedding table.
    pub fn is_embedding(&self) -> bool {
        self.tensor == EMBEDDING
    }

    /// Adds `by · scale · B · A` to one row of the base's matrix.
    ///
    /// Does nothing if `row` is not below [`LowRank::rows`]. `out` has [`LowRank::cols`] elements.
    pub fn add_to_row(&self, row: usize, by: f32, out: &mut [f32]) {
        let (rank, by) = (self.rank.max(1), f64::from(by) * f64::from(self.scale));
        if row >= self.rows {
            return;
        }
        if self.is_embedding() {
            let a = self.a.get(row * rank..).unwrap_or_default();
            for (o, b) in out.iter_mut().zip(self.b.chunks_exact(rank)) {
                let sum: f64 = a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                *o = (f64::from(*o) + by * sum) as f32;
            }
            return;
        }
        let mut sums = vec![0.0f64; out.len()];
        let b = self.b.get(row * rank..).unwrap_or_default();
        for (b, a) in b.iter().zip(self.a.chunks_exact(self.cols.max(1))) {
            sums.iter_mut().zip(a).for_each(|(s, a)| *s += f64::from(*b) * f64::from(*a));
        }
        out.iter_mut().zip(sums).for_each(|(o, s)| *o = (f64::from(*o) + by * s) as f32);
    }
}

impl Adapter {
    /// Reads an adapter for this base model.
    ///
    /// # Errors
    /// The path is not an adapter, the adapter is of a different kind (DoRA, for example) or of
    /// another architecture, or a tensor is unknown, incomplete, of a wrong shape or not finite.
    /// The message is one line that names the file and the tensor or key.
    pub fn open(path: impl AsRef<Path>, base: &Gguf) -> Result<Adapter, AdapterError> {
        let path = path.as_ref();
        let mut pairs = match path.is_dir() {
            true => folder::peft::read(path, base)?,
            false => file::read(path, base)?,
        };
        pairs.sort_by(|a, b| a.tensor.cmp(&b.tensor));
        if pairs.is_empty() {
            return Err(AdapterError::Empty { path: path.to_owned() });
        }
        Ok(Adapter { path: path.to_owned(), name: name_of(path), pairs })
    }

    /// The largest rank of its pairs.
    pub fn rank(&self) -> usize {
        self.pairs.iter().map(|p| p.rank).max().unwrap_or(0)
    }

    /// The pair of a matrix.
    pub fn pair(&self, tensor: &str) -> Option<&LowRank> {
        self.pairs.iter().find(|p| p.tensor == tensor)
    }
}

/// A file's name without its ending, or a folder's name.
fn name_of(path: &Path) -> String {
    let whole = path.canonicalize();
    let path = whole.as_deref().unwrap_or(path);
    let name = if path.is_dir() { path.file_name() } else { path.file_stem() };
    name.unwrap_or_default().to_string_lossy().into_owned()
}

/// One side of a pair.
pub(crate) struct Side {
    /// The tensor's name in the adapter, for errors.
    pub name: String,
    /// Rows.
    pub rows: usize,
    /// Elements of a row.
    pub cols: usize,
    /// The elements, row by row.
    pub values: Vec<f32>,
}

impl Side {
    /// Rows and columns exchanged.
    pub fn transposed(self) -> Side {
        let Side { name, rows, cols, values } = self;
        let at = |i: usize| values.get(i % rows * cols + i / rows).copied().unwrap_or(0.0);
        let values = (0..values.len()).map(at).collect();
        Side { name, rows: cols, cols: rows, values }
    }
}

/// Builds a pair from its two sides, for the matrix `tensor` of the base.
pub(crate) fn pair(
    path: &Path,
    base: &Gguf,
    tensor: &str,
    [a, b]: [Side; 2],
    scale: impl Fn(usize) -> f32,
) -> Result<LowRank, AdapterError> {
    // A model without an output projection uses its embedding table.
    let in_base = match base.tensor_info(tensor) {
        None if tensor == OUTPUT => base.tensor_info(EMBEDDING),
        found => found,
    };
    let Some(found) = in_base else {
        let (path, arch) = (path.to_owned(), base.architecture().unwrap_or_default().to_owned());
        return Err(AdapterError::NoSuchMatrix { path, tensor: a.name, base: tensor.into(), arch });
    };
    let &[cols, rows] = found.dims() else {
        let (path, dims) = (path.to_owned(), found.dims().to_vec());
        return Err(AdapterError::NotAMatrix { path, tensor: a.name, base: tensor.into(), dims });
    };
    let (rows, cols) = (rows as usize, cols as usize);
    let (rank, want_a, want_b) = match tensor == EMBEDDING {
        true => (a.cols, [rows, b.cols], [cols, a.cols]),
        false => (a.rows, [b.cols, cols], [rows, a.rows]),
    };
    for (side, want) in [(&a, want_a), (&b, want_b)] {
        if [side.rows, side.cols] != want {
            return Err(AdapterError::Shape {
                path: path.to_owned(),
                tensor: side.name.clone(),
                found: vec![side.rows, side.cols],
                want: want.to_vec(),
            });
        }
        if side.values.iter().any(|v| !v.is_finite()) {
            let (path, tensor) = (path.to_owned(), side.name.clone());
            return Err(AdapterError::NotFinite { path, tensor });
        }
    }
    if rank == 0 || rank > MAX_RANK {
        return Err(AdapterError::Rank { path: path.to_owned(), tensor: a.name, rank });
    }
    let scale = scale(rank);
    Ok(LowRank { tensor: tensor.to_owned(), rows, cols, rank, scale, a: a.values, b: b.values })
}

pub(crate) use rows::{Order, reorder};
