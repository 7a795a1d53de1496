//! The reasons why a model cannot be quantised.

use crate::RowError;
use std::io;
use std::path::PathBuf;

/// The reasons why a model cannot be quantised. Each message is one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QuantizeError {
    /// The source cannot be read.
    #[error(transparent)]
    Gguf(#[from] kjit_gguf::Error),
    /// A file cannot be written.
    #[error("cannot write {}: {source}{}", path.display(), hint(source))]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// An output file exists.
    #[error("{} exists: use --force to replace it", .0.display())]
    Exists(PathBuf),
    /// The output is a file of the source.
    #[error("{} is the source: use a different name for the output", .0.display())]
    IsSource(PathBuf),
    /// Weights of a tensor cannot be quantised.
    #[error("tensor {tensor}: {source}")]
    Row {
        /// Name of the tensor.
        tensor: String,
        /// The reason.
        source: RowError,
    },
    /// A tensor has a type that kjit cannot decode.
    #[error("tensor {tensor} has the type {ty}, which kjit cannot decode")]
    Type {
        /// Name of the tensor.
        tensor: String,
        /// Name of the type.
        ty: String,
    },
    /// A pattern names a format whose blocks do not divide the rows of a tensor.
    #[error(
        "{pattern}={format}: rows of {tensor} have {columns} weights, \
         not a whole number of {format} blocks"
    )]
    Columns {
        /// The pattern.
        pattern: String,
        /// Name of the format.
        format: &'static str,
        /// Name of the tensor.
        tensor: String,
        /// Weights of a row.
        columns: u64,
    },
    /// A pattern matches no matrix.
    #[error("the pattern {0} matches no matrix of this model: list the matrices with kjit inspect")]
    Unmatched(String),
    /// The importance matrix and a tensor differ in the number of columns.
    #[error(
        "{file} has {found} values for {tensor}, which has {want} columns: \
         the importance matrix belongs to a different model"
    )]
    Importance {
        /// The file of the importance matrix.
        file: String,
        /// Name of the tensor.
        tensor: String,
        /// Values in the file.
        found: usize,
        /// Columns of the tensor, of all experts.
        want: u64,
    },
    /// The mixture is usable only with an importance matrix.
    #[error(
        "{0} without --imatrix gives an unusable model: \
         create an importance matrix with kjit imatrix, or use --type Q2_K"
    )]
    NeedsImportance(&'static str),
    /// A metadata key cannot be set or removed.
    #[error("metadata key {key}: {why}")]
    Key {
        /// The key.
        key: String,
        /// The reason.
        why: String,
    },
    /// The work was interrupted. All output files are removed.
    #[error("interrupted")]
    Interrupted,
}

/// Advice about a system error.
fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull => ": --dry-run prints the size",
        io::ErrorKind::NotFound => ": its folder does not exist",
        _ => "",
    }
}
