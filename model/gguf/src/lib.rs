//! The model file: header, metadata and tensor directory of a GGUF file, on a memory map.
//!
//! [`Gguf::open`] checks everything that is ever indexed later (counts, lengths, shapes, alignment,
//! the place of every tensor), touching only the pages of the header: a 16 GB file opens in
//! milliseconds. Nothing is copied but names; strings, arrays and tensor data are slices of the
//! map. GGUF versions 2 and 3, little-endian, in one file or split (`NAME-00001-of-00003.gguf`:
//! open the first).
//!
//! A tensor of a type without a known size does not keep a file from opening, so that its
//! vocabulary can be used and [`Gguf::summary`] can show it; [`Gguf::tensor`] and
//! [`Gguf::require_types`] refuse it by name.
//!
//! A folder of safetensors is opened as if it were such a file ([`crate::folder`]).
//!
//! The layout is that of ggml's `docs/gguf.md`.
//!
//! ```no_run
//! use kjit_gguf::Gguf;
//! # fn main() -> Result<(), kjit_gguf::Error> {
//! let model = Gguf::open("model.gguf")?;
//! let arch = model.architecture()?;
//! let layers = model.require_u32(&format!("{arch}.block_count"))?;
//! let embeddings = model.tensor("token_embd.weight")?;
//! println!("{arch}: {layers} layers, rows of {} in {}", embeddings.dims[0], embeddings.ty);
//! # Ok(()) }
//! ```

#![deny(unsafe_code)]
#![cfg_attr(
    not(test),
    warn(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::unreachable,
        clippy::indexing_slicing
    )
)]

mod cursor;
pub mod elide;
mod error;
pub mod folder;
mod getters;
mod layout;
mod metadata;
mod mix;
mod sigbus;
mod split;
mod summary;
mod tensors;
mod value;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use kjit_formats::ggml::GgmlType;
use memmap2::{Mmap, MmapMut, MmapOptions};

pub use error::{Error, ErrorKind, Shown, TypeId};
use layout::Layout;
use metadata::sorted_index;
pub use sigbus::exit_on_truncated_file;
pub use summary::{KeyLine, Summary, TypeShare};
pub use tensors::TensorInfo;
pub use value::{Array, Elements, Strings, Value, ValueType};

/// The README's example, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// A model file that has been checked, and its map. Shared freely between threads.
pub struct Gguf {
    first: Part,
    others: Vec<Part>,
    /// Of all parts, in the files' order.
    tensors: Vec<TensorInfo>,
    /// Indices of `tensors` by name.
    by_name: Vec<u32>,
    /// Of a folder: the first part was made in memory, and this is to be said of it.
    folder: Option<Vec<String>>,
}

/// A tensor and its data.
#[derive(Debug, Clone, Copy)]
pub struct Tensor<'a> {
    /// Its name.
    pub name: &'a str,
    /// 1 to 4 dimensions as ggml has them, the row length first; none is zero.
    pub dims: &'a [u64],
    /// Its type. That its size is known does not say that kjit can decode it.
    pub ty: &'static GgmlType,
    /// The rows, one after the other: exactly `ty.row_bytes(dims[0])` times the product of the
    /// other dimensions. Starts at a multiple of 8 bytes in memory, at least (of the file's
    /// alignment, mostly 32, up to a page).
    pub data: &'a [u8],
}

/// One file.
struct Part {
    path: PathBuf,
    map: Mmap,
    layout: Layout,
}

impl Part {
    fn open(path: &Path) -> Result<Part, Error> {
        Part::read(path, map_file(path)?)
    }

    fn read(path: &Path, map: Mmap) -> Result<Part, Error> {
        let layout = Layout::read(&map).map_err(|kind| Error::new(path, kind))?;
        Ok(Part { path: path.to_owned(), map, layout })
    }
}

/// A file's bytes; it must not be changed while they are looked at ([`Gguf::open`]).
pub(crate) fn map_file(path: &Path) -> Result<Mmap, Error> {
    let fail = |doing| move |source| Error::new(path, ErrorKind::Io { doing, source });
    // Asked before opening: opening a named pipe would wait for a writer.
    let kind = fs::metadata(path).map_err(fail("open"))?;
    if kind.is_dir() {
        return Err(Error::new(path, ErrorKind::NotAFile { what: "a directory", hint: "" }));
    }
    if !kind.is_file() {
        return Err(Error::new(
            path,
            ErrorKind::NotAFile { what: "a pipe or device", hint: ": save it to a file first" },
        ));
    }
    let file = File::open(path).map_err(fail("open"))?;
    if file.metadata().map_err(fail("read the size"))?.len() == 0 {
        return Err(Error::new(path, ErrorKind::Empty));
    }
    #[allow(unsafe_code, reason = "mapping a file is, in Rust's eyes")]
    // SAFETY: the map is read-only and private to this process, and all access goes through it as
    // bytes that were checked to be inside it. What Rust cannot rule out is another process
    // changing the file under us: then bytes differ from one read to the next (every later read is
    // checked again and none is trusted to be UTF-8 or in range), or, if the file is cut short, the
    // process gets SIGBUS, as any program does that maps a file. Documented at `Gguf::open`.
    let map = unsafe { Mmap::map(&file) }.map_err(fail("map"))?;
    Ok(map)
}

/// A copy of bytes in a map of its own, so that the alignment promised for a tensor's data holds in
/// it, too.
fn map_copy(path: &Path, bytes: &[u8]) -> Result<Mmap, Error> {
    let copy = || -> io::Result<Mmap> {
        let mut map = MmapMut::map_anon(bytes.len())?;
        map.copy_from_slice(bytes);
        map.make_read_only()
    };
    copy().map_err(|source| Error::new(path, ErrorKind::Io { doing: "copy", source }))
}

impl Gguf {
    /// Opens and checks a model file, and, if it is the first part of a split one, the others
    /// beside it; or a folder with `config.json`, `*.safetensors` and `tokenizer.json`, which
    /// answers as a file would.
    ///
    /// The files must not be changed while the result lives: what is read may then be anything, and
    /// reading past the new end of a file that was cut short ends the process (SIGBUS;
    /// [`exit_on_truncated_file`] makes a sentence of it).
    ///
    /// # Errors
    /// One line that names the file, the key or tensor, the byte, and what to do; see
    /// [`ErrorKind`].
    pub fn open(path: impl AsRef<Path>) -> Result<Gguf, Error> {
        let path = path.as_ref();
        if path.is_dir() {
            return crate::folder::open(path);
        }
        let first = Part::open(path)?;
        let others = split::open_others(&first)?;
        Gguf::assemble(first, others)
    }

    /// The same from bytes in memory, which are copied; never the part of a split model. `name`
    /// stands for the path in errors.
    ///
    /// # Errors
    /// As [`Gguf::open`].
    pub fn from_bytes(name: &str, bytes: &[u8]) -> Result<Gguf, Error> {
        let path = Path::new(name);
        if bytes.is_empty() {
            return Err(Error::new(path, ErrorKind::Empty));
        }
        Gguf::assemble(Part::read(path, map_copy(path, bytes)?)?, Vec::new())
    }

    /// A folder: a file that was made in memory (metadata, and tensors that are not used as they
    /// lie), and others with the places of tensors in them.
    pub(crate) fn of_folder(
        config: &Path,
        made: &[u8],
        files: Vec<(PathBuf, Mmap, Vec<TensorInfo>)>,
        remarks: Vec<String>,
    ) -> Result<Gguf, Error> {
        let first = Part::read(config, map_copy(config, made)?)?;
        let parts = files.into_iter().map(|(path, map, tensors)| Part {
            path,
            map,
            layout: Layout::of(tensors),
        });
        let gguf = Gguf::assemble(first, parts.collect())?;
        Ok(Gguf { folder: Some(remarks), ..gguf })
    }

    /// The same from a header in memory, with so many bytes of data that are all zero and take no
    /// room: to plan for a model, or to compile for it, without its file.
    pub fn without_data(name: &str, header: &[u8], data: u64) -> Result<Gguf, Error> {
        let path = Path::new(name);
        let map = || -> io::Result<Mmap> {
            let len = usize::try_from(data).ok().and_then(|data| data.checked_add(header.len()));
            let len = len.ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
            let mut map = MmapOptions::new().len(len).no_reserve_swap().map_anon()?;
            map.iter_mut().zip(header).for_each(|(to, from)| *to = *from);
            map.make_read_only()
        };
        let map =
            map().map_err(|source| Error::new(path, ErrorKind::Io { doing: "map", source }))?;
        Gguf::assemble(Part::read(path, map)?, Vec::new())
    }

    fn assemble(mut first: Part, mut others: Vec<Part>) -> Result<Gguf, Error> {
        let mut tensors = std::mem::take(&mut first.layout.tensors);
        for (part, no) in others.iter_mut().zip(1..) {
            let mut more = std::mem::take(&mut part.layout.tensors);
            more.iter_mut().for_each(|t| t.part = no);
            tensors.append(&mut more);
        }
        let name = |i: &u32| tensors.get(*i as usize).map(|t| &*t.name);
        let by_name = sorted_index(tensors.len(), |a, b| name(a).cmp(&name(b)));
        let gguf = Gguf { first, others, tensors, by_name, folder: None };
        for pair in gguf.by_name.windows(2) {
            if let [a, b] = pair
                && let (Some(a), Some(b)) =
                    (gguf.tensors.get(*a as usize), gguf.tensors.get(*b as usize))
                && a.name == b.name
            {
                let kind = if a.part == b.part {
                    ErrorKind::Duplicate {
                        what: "tensor",
                        name: a.name.to_string(),
                        first: a.at,
                        second: b.at,
                    }
                } else {
                    let (first, second) = (a.part + 1, b.part + 1);
                    ErrorKind::Split(format!(
                        "tensor {} is in part {first} and in part {second}",
                        error::Shown(&a.name)
                    ))
                };
                return Err(Error::new(
                    gguf.part(b.part()).map_or(&gguf.first.path, |p| &p.path),
                    kind,
                ));
            }
        }
        Ok(gguf)
    }

    fn part(&self, no: usize) -> Option<&Part> {
        if no == 0 { Some(&self.first) } else { self.others.get(no - 1) }
    }

    fn parts(&self) -> impl Iterator<Item = &Part> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// Whether this is a folder of safetensors.
    pub fn is_folder(&self) -> bool {
        self.folder.is_some()
    }

    /// What is to be said of a folder: what of it is left out.
    pub fn remarks(&self) -> &[String] {
        self.folder.as_deref().unwrap_or_default()
    }

    /// The file, and the other parts of a split model; of a folder `config.json` and the files with
    /// tensors.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.parts().map(|p| p.path.as_path())
    }

    /// GGUF's version: 2 or 3.
    pub fn version(&self) -> u32 {
        self.first.layout.version
    }

    /// Where tensors start in the file is a multiple of this many bytes.
    pub fn alignment(&self) -> u64 {
        self.first.layout.alignment
    }

    /// Bytes of the file, or of all parts together; of a folder those of the files with tensors.
    pub fn file_bytes(&self) -> u64 {
        self.parts().skip(usize::from(self.is_folder())).map(|p| p.map.len() as u64).sum()
    }

    /// All bytes of a part ([`TensorInfo::part`]; 0 is the first), as they are mapped: from a
    /// page's start on. For copying tensors in place; a tensor's bytes are from
    /// [`TensorInfo::data_offset`] on.
    pub fn part_bytes(&self, no: usize) -> Option<&[u8]> {
        self.part(no).map(|p| &p.map[..])
    }

    /// The keys, in the file's order (of a split model: the first part's).
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.first.layout.metadata.entries().iter().map(|e| &*e.key)
    }

    /// All tensors of all parts, in the files' order, also those that [`Gguf::tensor`] refuses.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// What the directory says of the tensor with this name.
    pub fn tensor_info(&self, name: &str) -> Option<&TensorInfo> {
        let info = |i: &u32| self.tensors.get(*i as usize);
        let found =
            self.by_name.binary_search_by(|i| info(i).map(|t| &*t.name).cmp(&Some(name))).ok()?;
        self.by_name.get(found).and_then(info)
    }

    /// The tensor with this name.
    ///
    /// # Errors
    /// It is not there, or its type has no known size.
    pub fn tensor(&self, name: &str) -> Result<Tensor<'_>, Error> {
        let missing = || self.fail(ErrorKind::MissingTensor { name: name.into() });
        self.opt_tensor(name)?.ok_or_else(missing)
    }

    /// The tensor with this name, if there is one.
    ///
    /// # Errors
    /// Its type has no known size.
    pub fn opt_tensor(&self, name: &str) -> Result<Option<Tensor<'_>>, Error> {
        let Some(info) = self.tensor_info(name) else { return Ok(None) };
        match self.data(info) {
            Some((ty, data)) => Ok(Some(Tensor { name: &info.name, dims: info.dims(), ty, data })),
            None => Err(self.refuse_type(info)),
        }
    }

    /// Checks that every tensor's type is one that `usable` says yes to (kjit's block formats,
    /// say).
    ///
    /// # Errors
    /// Names the first tensor of another type, and the type.
    pub fn require_types(&self, usable: impl Fn(TypeId) -> bool) -> Result<(), Error> {
        match self.tensors.iter().find(|t| t.bytes().is_none() || !usable(t.ty())) {
            None => Ok(()),
            Some(t) => Err(self.refuse_type(t)),
        }
    }

    fn refuse_type(&self, t: &TensorInfo) -> Error {
        let kind = ErrorKind::TensorType { name: t.name.to_string(), at: t.at, id: t.ty().0 };
        Error::new(self.part(t.part()).map_or(&self.first.path, |p| &p.path), kind)
    }

    fn data(&self, info: &TensorInfo) -> Option<(&'static GgmlType, &[u8])> {
        let start = usize::try_from(info.data_at).ok()?;
        let end = start.checked_add(usize::try_from(info.bytes()?).ok()?)?;
        Some((info.ty().ggml()?, self.part(info.part())?.map.get(start..end)?))
    }
}
