//! What can be wrong with a model file: one line each, naming the key or tensor, the byte, and what
//! to do where that helps.

use crate::elide::{MAX_LINE, elide};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use kjit_formats::ggml;

/// Why a GGUF file, or something wanted from it, cannot be used. One line: the file, then the
/// [`ErrorKind`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[error("{}", elide(&format!("{}: {kind}", Shown::path(path)), MAX_LINE))]
pub struct Error {
    path: PathBuf,
    // Not a `#[source]`: the line above says all of it, and a chain would say it twice.
    kind: Box<ErrorKind>,
}

impl Error {
    pub(crate) fn new(path: &Path, kind: ErrorKind) -> Error {
        Error { path: path.to_owned(), kind: Box::new(kind) }
    }

    /// The file (of a split model: the part) that this is about.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What is wrong.
    pub fn kind(&self) -> &ErrorKind {
        &self.kind
    }
}

/// What is wrong with a file, or with a request for something in it. Offsets are bytes from the
/// start of the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The operating system refused.
    #[error("cannot {doing}: {source}")]
    Io {
        /// The attempted operation, as a verb.
        doing: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// The path is not a regular file.
    #[error("is {what}, not a model file{hint}")]
    NotAFile {
        /// What it is instead.
        what: &'static str,
        /// What to do.
        hint: &'static str,
    },
    /// The file has no bytes.
    #[error("is empty (0 bytes): download it again")]
    Empty,
    /// The first bytes are not GGUF's.
    #[error("is not a GGUF file: {looks}")]
    NotGguf {
        /// What it looks like, and what to do.
        looks: String,
    },
    /// The file was written for a big-endian machine.
    #[error(
        "is a big-endian GGUF file (byte 4): kjit reads little-endian ones; convert it again \
         without --bigendian"
    )]
    BigEndian,
    /// A version of GGUF that is not read.
    #[error("is GGUF version {version} (byte 4), kjit reads versions 2 and 3: {hint}")]
    Version {
        /// The version in the file.
        version: u32,
        /// What to do.
        hint: &'static str,
    },
    /// The file ends too early for what it says it holds.
    #[error(
        "ends at byte {len}, inside {inside} (which wants {need} bytes at byte {at}): truncated \
         or damaged, download it again"
    )]
    Truncated {
        /// What was being read.
        inside: String,
        /// Where it starts.
        at: u64,
        /// Bytes it should have.
        need: u64,
        /// Bytes in the file.
        len: u64,
    },
    /// A count that this many bytes cannot hold.
    #[error(
        "{what} (byte {at}) is {count}, but the {left} bytes that follow cannot hold so many: \
         truncated or damaged, download it again"
    )]
    Count {
        /// What is counted.
        what: String,
        /// Where the count is.
        at: u64,
        /// The count.
        count: u64,
        /// Bytes left in the file.
        left: u64,
    },
    /// The name of a key or tensor is no name.
    #[error("{what} at byte {at} has a bad name: {why}")]
    Name {
        /// "metadata key number 3", "tensor number 0".
        what: String,
        /// Where its name starts.
        at: u64,
        /// What is wrong.
        why: String,
    },
    /// A key or tensor name that occurs twice.
    #[error("{what} {} is there twice, at byte {first} and at byte {second}", Shown(name))]
    Duplicate {
        /// "metadata key" or "tensor".
        what: &'static str,
        /// The name.
        name: String,
        /// Where it is first.
        first: u64,
        /// Where it is again.
        second: u64,
    },
    /// A metadata type that GGUF does not have.
    #[error(
        "metadata key {}: value type {id} at byte {at} is none that GGUF has (0 to 12): damaged, \
         download it again",
        Shown(key)
    )]
    ValueType {
        /// The key.
        key: String,
        /// Where the type is.
        at: u64,
        /// The type found.
        id: u32,
    },
    /// Arrays of arrays of arrays beyond what is read.
    #[error("metadata key {}: arrays nested more than {max} deep at byte {at}", Shown(key))]
    Nested {
        /// The key.
        key: String,
        /// Where the array too many starts.
        at: u64,
        /// The depth that is read.
        max: usize,
    },
    /// A required key that is not there.
    #[error(
        "metadata key {} is missing, and kjit does not guess it: convert the model again, or use \
         another file",
        Shown(key)
    )]
    MissingKey {
        /// The key.
        key: String,
    },
    /// A key whose value has another type than the one it is used as.
    #[error("metadata key {} (byte {at}) is {found}, where {want} is wanted", Shown(key))]
    WrongType {
        /// The key.
        key: String,
        /// Where its value starts.
        at: u64,
        /// The type found.
        found: String,
        /// The type wanted.
        want: &'static str,
    },
    /// A value of the right type that cannot be used.
    #[error("metadata key {} (byte {at}) is {value}: {why}", Shown(key))]
    BadValue {
        /// The key.
        key: String,
        /// Where the value (of an array: the array) starts.
        at: u64,
        /// The value found, or which element of the array and what is there.
        value: String,
        /// Why that cannot be used.
        why: String,
    },
    /// An array of another length than the one it must have.
    #[error(
        "metadata key {} (byte {at}) has {found} elements, where {want} are wanted",
        Shown(key)
    )]
    ArrayLength {
        /// The key.
        key: String,
        /// Where the array starts.
        at: u64,
        /// Its elements.
        found: u64,
        /// The elements wanted.
        want: u64,
    },
    /// A tensor of no or too many dimensions.
    #[error(
        "tensor {} (byte {at}) has {n} dimensions, where 1 to 4 are possible: damaged, download \
         it again",
        Shown(name)
    )]
    Dimensions {
        /// The tensor.
        name: String,
        /// Where the count is.
        at: u64,
        /// The count.
        n: u32,
    },
    /// A tensor with an impossible shape.
    #[error("tensor {} (byte {at}) has the shape {dims:?}: {why}", Shown(name))]
    Shape {
        /// The tensor.
        name: String,
        /// Where its entry in the directory starts.
        at: u64,
        /// Its dimensions, row length first.
        dims: Vec<u64>,
        /// What is wrong.
        why: String,
    },
    /// A tensor's data does not start where data may start.
    #[error(
        "tensor {} (byte {at}): its offset {offset} is not a multiple of the alignment \
         {alignment}: damaged, or written by a broken converter",
        Shown(name)
    )]
    Misaligned {
        /// The tensor.
        name: String,
        /// Where its entry in the directory starts.
        at: u64,
        /// Its offset from the start of the data.
        offset: u64,
        /// The file's alignment.
        alignment: u64,
    },
    /// A tensor's data is not all in the file.
    #[error(
        "tensor {} (byte {at}): its {bytes} bytes at offset {offset} of the data (which start at \
         byte {data_start}) end past the file's {len} bytes: a truncated download? fetch it again",
        Shown(name)
    )]
    OutOfFile {
        /// The tensor.
        name: String,
        /// Where its entry in the directory starts.
        at: u64,
        /// Its offset from the start of the data.
        offset: u64,
        /// Its bytes.
        bytes: u64,
        /// Where the data start.
        data_start: u64,
        /// Bytes in the file.
        len: u64,
    },
    /// Two tensors share bytes.
    #[error(
        "tensors {} and {} overlap at byte {at}: damaged, or written by a broken converter",
        Shown(first),
        Shown(second)
    )]
    Overlap {
        /// The tensor that starts first.
        first: String,
        /// The one that starts before the first has ended.
        second: String,
        /// Where the second starts.
        at: u64,
    },
    /// A tensor of a type that has no known size, or that whoever asked cannot use.
    #[error("tensor {} (byte {at}) has type {}, which kjit cannot run{}", Shown(name), TypeId(*id), retired_hint(*id))]
    TensorType {
        /// The tensor.
        name: String,
        /// Where its entry in the directory starts.
        at: u64,
        /// ggml's number of its type.
        id: u32,
    },
    /// A tensor that is not in the file.
    #[error(
        "tensor {} is not in the file: an incomplete conversion, or another architecture than the \
         file says",
        Shown(name)
    )]
    MissingTensor {
        /// The tensor.
        name: String,
    },
    /// The parts of a split model do not fit together.
    #[error("{0}")]
    Split(String),
    /// A folder of safetensors cannot be used.
    #[error(transparent)]
    Folder(crate::folder::FolderError),
}

fn retired_hint(id: u32) -> &'static str {
    match (ggml::GgmlType::by_id(id), ggml::retired(id)) {
        (Some(_), _) => ": use a file of another quantisation",
        (None, Some(_)) => ": ggml removed it, use a newer file of this model",
        (None, None) => ": damaged, or written by a newer program",
    }
}

/// ggml's number of a tensor type, as the file has it; prints its name where it has one.
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

/// Text from a file, safe to print: quoted, on one line, control characters escaped, cut after
/// about 96 bytes.
pub struct Shown<'a>(pub &'a str);

impl Shown<'_> {
    fn path(path: &Path) -> String {
        let mut out = String::new();
        for c in path.to_string_lossy().chars() {
            // Writing to a String cannot fail.
            let _ = write_escaped(&mut out, c);
        }
        out
    }
}

/// As `char::escape_debug` has it, but with quotes and backslashes, which are harmless here, as
/// they are.
fn write_escaped(out: &mut impl fmt::Write, c: char) -> fmt::Result {
    match c {
        '\'' | '"' | '\\' => out.write_char(c),
        _ => c.escape_debug().try_for_each(|e| out.write_char(e)),
    }
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write;
        f.write_char('\'')?;
        let mut out = String::new();
        for c in self.0.chars() {
            // By what is written: a control character takes up to ten.
            if out.len() >= 96 {
                out.push('…');
                break;
            }
            write_escaped(&mut out, c)?;
        }
        f.write_str(&out)?;
        f.write_char('\'')
    }
}
