//! Errors of adapters. Each error is one line. It names the file, the tensor or key, and what to
//! do.

use crate::Error;
use crate::elide::elide;
use crate::quoted_text::QuotedText;
use std::path::PathBuf;

/// The error of reading a LoRA adapter, or of fitting it to a model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdapterError {
    /// The file or folder could not be read.
    #[error(transparent)]
    File(#[from] Error),
    /// A GGUF file that is not an adapter.
    #[error(
        "{}: general.type is {}, expected 'adapter': \
         create the file with llama.cpp's convert_lora_to_gguf.py",
        QuotedText::path(path),
        QuotedText(found)
    )]
    NoAdapter {
        /// The file.
        path: PathBuf,
        /// The value, or "missing".
        found: String,
    },
    /// An adapter with a property that kjit does not compute.
    #[error("{}: {} is {}: {}", QuotedText::path(path), QuotedText(key), elide(value, 100), why)]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// Why kjit refuses it, and what to do.
        why: &'static str,
    },
    /// The adapter belongs to another architecture.
    #[error(
        "{}: the adapter is for architecture {}, the model has {}",
        QuotedText::path(path),
        QuotedText(adapter),
        QuotedText(base)
    )]
    Architecture {
        /// The file.
        path: PathBuf,
        /// The adapter's architecture.
        adapter: String,
        /// The model's architecture.
        base: String,
    },
    /// PEFT's names are not known for this architecture.
    #[error(
        "{0}: PEFT folders are not supported for architecture {1}, only for {known}: \
         convert the adapter with convert_lora_to_gguf.py",
        QuotedText::path(path),
        QuotedText(arch)
    )]
    UnknownArchitecture {
        /// The folder.
        path: PathBuf,
        /// The model's architecture.
        arch: String,
        /// The architectures whose names are known.
        known: String,
    },
    /// A tensor that is not part of a LoRA pair.
    #[error(
        "{}: tensor {} is not part of a known LoRA pair{hint}",
        QuotedText::path(path),
        QuotedText(tensor)
    )]
    UnknownTensor {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// A guess at its kind, appended to the message; may be empty.
        hint: &'static str,
    },
    /// One side of a pair is missing.
    #[error(
        "{}: tensor {} needs the tensor {}, which is missing",
        QuotedText::path(path),
        QuotedText(tensor),
        QuotedText(missing)
    )]
    Half {
        /// The file.
        path: PathBuf,
        /// The half that exists.
        tensor: String,
        /// The missing half.
        missing: String,
    },
    /// The model has no matrix of this name.
    #[error(
        "{}: tensor {} changes {}, which the model (architecture {}) does not have: \
         the adapter belongs to another model",
        QuotedText::path(path),
        QuotedText(tensor),
        QuotedText(base),
        QuotedText(arch)
    )]
    NoSuchMatrix {
        /// The file.
        path: PathBuf,
        /// The adapter's tensor.
        tensor: String,
        /// The model's tensor.
        base: String,
        /// The model's architecture.
        arch: String,
    },
    /// The model's tensor is a vector, or has a matrix for each expert.
    #[error(
        "{}: tensor {} changes {} of shape {dims:?}: \
         kjit applies adapters only to plain matrices, not to vectors or expert matrices",
        QuotedText::path(path),
        QuotedText(tensor),
        QuotedText(base)
    )]
    NotAMatrix {
        /// The file.
        path: PathBuf,
        /// The adapter's tensor.
        tensor: String,
        /// The model's tensor.
        base: String,
        /// The shape of the model's tensor.
        dims: Vec<u64>,
    },
    /// The model uses the matrix in a way that has no adapted form.
    #[error(
        "{}: the model does not multiply by {} as a plain matrix: \
         kjit cannot apply an adapter to it",
        QuotedText::path(path),
        QuotedText(tensor)
    )]
    NotUsed {
        /// The file.
        path: PathBuf,
        /// The model's tensor.
        tensor: String,
    },
    /// The rank of a pair is larger than the rank of the places for adapters.
    #[error(
        "{}: the pair of {} has rank {rank}, the server has room for rank {most}: \
         start it with --max-lora-rank {rank}",
        QuotedText::path(path),
        QuotedText(tensor)
    )]
    RankOfSlots {
        /// The file.
        path: PathBuf,
        /// The model's tensor.
        tensor: String,
        /// The pair's rank.
        rank: usize,
        /// The largest rank.
        most: usize,
    },
    /// The places for adapters have no pair of the matrix.
    #[error(
        "{}: an adapter that is loaded later cannot change {}, \
         only whole matrices between the embedding and the output: \
         give it with --lora, without --max-loras",
        QuotedText::path(path),
        QuotedText(tensor)
    )]
    NotInSlots {
        /// The file.
        path: PathBuf,
        /// The model's tensor.
        tensor: String,
    },
    /// A tensor has a wrong shape.
    #[error(
        "{}: tensor {} has shape {found:?}, expected {want:?} (rows first)",
        QuotedText::path(path),
        QuotedText(tensor)
    )]
    Shape {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its shape.
        found: Vec<usize>,
        /// The required shape.
        want: Vec<usize>,
    },
    /// A tensor has a type that is not supported in adapters.
    #[error(
        "{}: tensor {} has type {ty}, expected F32, F16, BF16 or Q8_0",
        QuotedText::path(path),
        QuotedText(tensor)
    )]
    Type {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its type.
        ty: String,
    },
    /// A tensor has elements that are infinite or NaN.
    #[error(
        "{}: tensor {} has elements that are infinite or NaN: \
         the training failed, or the file is damaged",
        QuotedText::path(path),
        QuotedText(tensor)
    )]
    NotFinite {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// The rank is 0 or above the maximum.
    #[error(
        "{}: tensor {} has rank {rank}, expected 1 to {}",
        QuotedText::path(path),
        QuotedText(tensor),
        super::MAX_RANK
    )]
    Rank {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its rank.
        rank: usize,
    },
    /// The adapter has no pairs.
    #[error("{}: the adapter has no tensors", QuotedText::path(path))]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The number of rows of a query or key matrix is not a multiple of the number of heads.
    #[error(
        "{}: the {rows} rows of {} cannot be divided into {heads} heads",
        QuotedText::path(path),
        QuotedText(tensor)
    )]
    Heads {
        /// The file.
        path: PathBuf,
        /// The model's tensor.
        tensor: String,
        /// Rows of the matrix.
        rows: usize,
        /// Number of heads.
        heads: usize,
    },
}
