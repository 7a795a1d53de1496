//! Errors of model files. Each is one line that names the key or tensor, the byte, and what to do
//! if that helps.

use crate::elide::{MAX_LINE, elide};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::quoted_text::QuotedText;
use kjit_formats::ggml;

/// An error of a GGUF file or of an access to it. It is one line: the file, then the [`ErrorKind`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[error("{}", elide(&format!("{}: {kind}", QuotedText::path(path)), MAX_LINE))]
pub struct Error {
    path: PathBuf,
    // This is not a `#[source]`: the line above contains it, and a chain would print it twice.
    kind: Box<ErrorKind>,
}

impl Error {
    pub(crate) fn new(path: &Path, kind: ErrorKind) -> Error {
        Error { path: path.to_owned(), kind: Box::new(kind) }
    }

    /// The file that has the error; for a split model, the part.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The kind of error.
    pub fn kind(&self) -> &ErrorKind {
        &self.kind
    }
}

/// The kinds of errors. Offsets are bytes from the start of the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The operating system refused an operation.
    #[error("cannot {doing}: {source}")]
    Io {
        /// The attempted operation, as a verb.
        doing: &'static str,
        /// Reason given by the system.
        source: io::Error,
    },
    /// The path is not a regular file.
    #[error("is {what}, not a model file{hint}")]
    NotAFile {
        /// The kind of file that was found instead.
        what: &'static str,
        /// Advice to the user.
        hint: &'static str,
    },
    /// The file is empty.
    #[error("is empty (0 bytes): download it again")]
    Empty,
    /// The file does not start with GGUF's magic.
    #[error("is not a GGUF file: {looks}")]
    NotGguf {
        /// The likely kind of file, and advice.
        looks: String,
    },
    /// The file was written for a big-endian machine.
    #[error(
        "is a big-endian GGUF file (byte 4): \
         kjit reads only little-endian files; convert the model again without --bigendian"
    )]
    BigEndian,
    /// The version of GGUF is not supported.
    #[error("is GGUF version {version} (byte 4); kjit reads versions 2 and 3: {hint}")]
    Version {
        /// The version in the file.
        version: u32,
        /// Advice to the user.
        hint: &'static str,
    },
    /// The file ends before an item that it declares.
    #[error(
        "ends at byte {len}, inside {inside} (which needs {need} bytes at byte {at}): \
         truncated or damaged, download it again"
    )]
    Truncated {
        /// The item that was being read.
        inside: String,
        /// Offset of the item.
        at: u64,
        /// Size of the item in bytes.
        need: u64,
        /// Size of the file.
        len: u64,
    },
    /// The rest of the file is too short for a count.
    #[error(
        "{what} (byte {at}) is {count}, but the {left} bytes that follow cannot hold that many: \
         truncated or damaged, download it again"
    )]
    Count {
        /// The items that are counted.
        what: String,
        /// Offset of the count.
        at: u64,
        /// Value of the count.
        count: u64,
        /// Bytes left in the file.
        left: u64,
    },
    /// The name of a key or tensor is invalid.
    #[error("{what} at byte {at} has an invalid name: {why}")]
    Name {
        /// "metadata key number 3", "tensor number 0".
        what: String,
        /// Offset of the name.
        at: u64,
        /// Why the name is invalid.
        why: String,
    },
    /// The name of a key or tensor occurs twice.
    #[error("{what} {} occurs twice, at byte {first} and at byte {second}", QuotedText(name))]
    Duplicate {
        /// "metadata key" or "tensor".
        what: &'static str,
        /// The repeated name.
        name: String,
        /// Offset of the first occurrence.
        first: u64,
        /// Offset of the second occurrence.
        second: u64,
    },
    /// A metadata value has a type that GGUF does not define.
    #[error(
        "metadata key {}: value type {id} at byte {at} does not exist in GGUF (0 to 12): \
         damaged, download it again",
        QuotedText(key)
    )]
    ValueType {
        /// Name of the key.
        key: String,
        /// Offset of the type.
        at: u64,
        /// Id of the type.
        id: u32,
    },
    /// Arrays are nested too deeply.
    #[error("metadata key {}: arrays nested more than {max} deep at byte {at}", QuotedText(key))]
    Nested {
        /// Name of the key.
        key: String,
        /// Offset of the array that is too deep.
        at: u64,
        /// The maximum depth.
        max: usize,
    },
    /// A required key is missing.
    #[error(
        "metadata key {} is missing, and kjit does not guess it: \
         convert the model again, or use another file",
        QuotedText(key)
    )]
    MissingKey {
        /// Name of the key.
        key: String,
    },
    /// A key has a different type than required.
    #[error("metadata key {} (byte {at}) is {found}, expected {want}", QuotedText(key))]
    WrongType {
        /// Name of the key.
        key: String,
        /// Offset of the value.
        at: u64,
        /// Type in the file.
        found: String,
        /// The required type.
        want: &'static str,
    },
    /// A value has the right type but cannot be used.
    #[error("metadata key {} (byte {at}) is {value}: {why}", QuotedText(key))]
    BadValue {
        /// Name of the key.
        key: String,
        /// Offset of the value, or of the whole array.
        at: u64,
        /// The value, or the index and value of an array's element.
        value: String,
        /// Why the value cannot be used.
        why: String,
    },
    /// An array has the wrong length.
    #[error("metadata key {} (byte {at}) has {found} elements, expected {want}", QuotedText(key))]
    ArrayLength {
        /// Name of the key.
        key: String,
        /// Offset of the array.
        at: u64,
        /// Length of the array.
        found: u64,
        /// The required length.
        want: u64,
    },
    /// A tensor has no dimensions, or too many.
    #[error(
        "tensor {} (byte {at}) has {n} dimensions, expected 1 to 4: damaged, download it again",
        QuotedText(name)
    )]
    Dimensions {
        /// Name of the tensor.
        name: String,
        /// Offset of the count.
        at: u64,
        /// Value of the count.
        n: u32,
    },
    /// A tensor has an impossible shape.
    #[error("tensor {} (byte {at}) has the shape {dims:?}: {why}", QuotedText(name))]
    Shape {
        /// Name of the tensor.
        name: String,
        /// Offset of the tensor's directory entry.
        at: u64,
        /// Dimensions of the tensor, row length first.
        dims: Vec<u64>,
        /// Why the shape is impossible.
        why: String,
    },
    /// A tensor's data are not aligned.
    #[error(
        "tensor {} (byte {at}): \
         its offset {offset} is not a multiple of the alignment {alignment}: \
         damaged, or written by a broken converter",
        QuotedText(name)
    )]
    Misaligned {
        /// Name of the tensor.
        name: String,
        /// Offset of the tensor's directory entry.
        at: u64,
        /// Offset of the tensor from the start of the data.
        offset: u64,
        /// Alignment of the file in bytes.
        alignment: u64,
    },
    /// A tensor's data are not completely in the file.
    #[error(
        "tensor {} (byte {at}): \
         its {bytes} bytes at offset {offset} of the data (which start at byte {data_start}) \
         end past the file's {len} bytes: probably truncated, download it again",
        QuotedText(name)
    )]
    OutOfFile {
        /// Name of the tensor.
        name: String,
        /// Offset of the tensor's directory entry.
        at: u64,
        /// Offset of the tensor from the start of the data.
        offset: u64,
        /// Size of the tensor in bytes.
        bytes: u64,
        /// Offset of the data section.
        data_start: u64,
        /// Size of the file.
        len: u64,
    },
    /// Two tensors share bytes.
    #[error(
        "tensors {} and {} overlap at byte {at}: damaged, or written by a broken converter",
        QuotedText(first),
        QuotedText(second)
    )]
    Overlap {
        /// The tensor that starts first.
        first: String,
        /// The tensor that starts before the first one ends.
        second: String,
        /// Offset of the second tensor.
        at: u64,
    },
    /// A tensor's type has no known size, or the caller cannot use it.
    #[error(
        "tensor {} (byte {at}) has type {}, which kjit cannot run{}",
        QuotedText(name), TypeId(*id), retired_hint(*id)
    )]
    TensorType {
        /// Name of the tensor.
        name: String,
        /// Offset of the tensor's directory entry.
        at: u64,
        /// ggml's id of the tensor's type.
        id: u32,
    },
    /// A required tensor is missing.
    #[error(
        "tensor {} is not in the file: \
         the conversion is incomplete, or the file names a wrong architecture",
        QuotedText(name)
    )]
    MissingTensor {
        /// Name of the tensor.
        name: String,
    },
    /// The parts of a split model do not match.
    #[error("{0}")]
    Split(String),
    /// A folder of safetensors cannot be used.
    #[error(transparent)]
    Folder(crate::folder::FolderError),
}

fn retired_hint(id: u32) -> &'static str {
    match (ggml::GgmlType::by_id(id), ggml::retired(id)) {
        (Some(_), _) => ": use a file with a different quantisation",
        (None, Some(_)) => ": ggml removed this type, use a newer file of this model",
        (None, None) => ": the file is damaged or newer than kjit",
    }
}

/// ggml's id of a tensor type. It prints as the type's name if it has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TypeId(pub u32);

impl TypeId {
    /// Name and block size, if ggml has this type.
    pub fn ggml(self) -> Option<&'static ggml::GgmlType> {
        ggml::GgmlType::by_id(self.0)
    }
}

impl fmt::Display for TypeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.ggml(), ggml::retired(self.0)) {
            (Some(t), _) => f.pad(t.name),
            (None, Some(name)) => f.pad(&format!("{name} (id {})", self.0)),
            (None, None) => f.pad(&format!("id {} (unknown)", self.0)),
        }
    }
}
