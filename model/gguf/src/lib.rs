//! GGUF model files: header, metadata and tensor directory on a memory map.
//!
//! [`Gguf::open`] checks everything that is indexed later: counts, lengths, shapes, alignment, the
//! offset of every tensor. It reads only the pages of the header, so a 16 GB file opens in
//! milliseconds. Only names are copied; strings, arrays and tensor data are slices of the map.
//! Supported are GGUF versions 2 and 3, little-endian, in one file or split
//! (`NAME-00001-of-00003.gguf`: open the first).
//!
//! A file with a tensor of unknown size can be opened: its vocabulary can be used, and
//! [`Gguf::summary`] can show it. [`Gguf::tensor`] and [`Gguf::require_types`] return an error that
//! names such a tensor.
//!
//! A folder of safetensors opens as if it were a GGUF file ([`crate::folder`]).
//!
//! The layout follows ggml's `docs/gguf.md`.
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

#![cfg_attr(not(test), deny(unsafe_code))]
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

pub mod adapter;
mod cursor;
pub mod elide;
mod error;
pub mod folder;
mod getters;
mod header;
mod map;
mod metadata;
mod part;
mod quantisation_mix;
mod quoted_text;
mod sigbus;
mod split;
mod summary;
mod tensors;
mod value;
mod write;

use std::io;
use std::path::Path;

use kjit_formats::ggml::GgmlType;
use memmap2::{Mmap, MmapOptions};

pub use error::{Error, ErrorKind, TypeId};
use folder::Folder;
use header::GgufHeader;
use map::map_copy;
use metadata::sorted_index;
use part::Part;
pub use quoted_text::QuotedText;
pub use sigbus::exit_on_truncated_file;
pub use summary::{KeyLine, Summary, TypeShare};
pub use tensors::TensorInfo;
pub use value::{Array, Elements, Strings, Value, ValueType};
pub use write::{NewTensor, PlannedTensor, write};

/// Compiles the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
/// A checked model file and its memory map. Threads can share it.
pub struct Gguf {
    first: Part,
    others: Vec<Part>,
    /// The tensors of all parts, in the order of the files.
    tensors: Vec<TensorInfo>,
    /// Indices of `tensors` by name.
    by_name: Vec<u32>,
    /// The warnings about a folder; `None` for a file. The header of a folder is built in memory.
    folder: Option<Vec<String>>,
}

/// A tensor: its name, shape, type and data.
#[derive(Debug, Clone, Copy)]
pub struct Tensor<'a> {
    /// Name of the tensor.
    pub name: &'a str,
    /// 1 to 4 dimensions in ggml's order (the row length first). No dimension is zero.
    pub dims: &'a [u64],
    /// Type of the tensor, of known size. kjit may be unable to decode it.
    pub ty: &'static GgmlType,
    /// The rows in order: `ty.row_bytes(dims[0])` times the product of the other dimensions, in
    /// bytes. The data are aligned in memory to at least 8 bytes (the file's alignment, usually 32,
    /// up to a page).
    pub data: &'a [u8],
}

impl Gguf {
    /// Opens and checks a model file. For the first part of a split model it opens the other parts
    /// in the same folder as well. The path may also be a folder with `config.json`,
    /// `*.safetensors` and `tokenizer.json`.
    ///
    /// The files must not be changed while the result exists. Otherwise reads may return any bytes.
    /// If a file is truncated, a read beyond its new end kills the process by SIGBUS
    /// ([`exit_on_truncated_file`] prints a message instead).
    ///
    /// # Errors
    /// The message is one line. It names the file, the key or tensor, the byte, and what to do; see
    /// [`ErrorKind`].
    pub fn open(path: impl AsRef<Path>) -> Result<Gguf, Error> {
        let path = path.as_ref();
        if path.is_dir() {
            return Gguf::of_folder(folder::open(path)?);
        }
        let first = Part::open(path)?;
        let others = split::open_others(&first)?;
        Gguf::assemble(first, others)
    }

    /// Opens a copy of bytes in memory. They cannot be a part of a split model. Errors show `name`
    /// as the path.
    ///
    /// # Errors
    /// See [`Gguf::open`].
    pub fn from_bytes(name: &str, bytes: &[u8]) -> Result<Gguf, Error> {
        let path = Path::new(name);
        if bytes.is_empty() {
            return Err(Error::new(path, ErrorKind::Empty));
        }
        Gguf::assemble(Part::read(path, map_copy(path, bytes)?)?, Vec::new())
    }

    fn of_folder(folder: Folder) -> Result<Gguf, Error> {
        let Folder { config, made, files, remarks } = folder;
        let first = Part::read(&config, map_copy(&config, &made)?)?;
        let parts = files.into_iter().map(|(path, map, tensors)| Part {
            path,
            map,
            layout: GgufHeader::of(tensors),
        });
        let gguf = Gguf::assemble(first, parts.collect())?;
        Ok(Gguf { folder: Some(remarks), ..gguf })
    }

    /// Like [`Gguf::from_bytes`], for a header and `data` zero bytes of tensor data, which take no
    /// memory. Used to plan or compile without the model's file.
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

    /// Like [`Gguf::without_data`], with memory for the data, which `fill` writes. Used to measure
    /// a device with a model of given shapes. Offsets of tensors are relative to the start of the
    /// slice.
    ///
    /// # Errors
    /// See [`Gguf::open`]; also if there is not enough memory.
    pub fn filled(
        name: &str,
        header: &[u8],
        data: u64,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<Gguf, Error> {
        let path = Path::new(name);
        let map = || -> io::Result<Mmap> {
            let len = usize::try_from(data).ok().and_then(|data| data.checked_add(header.len()));
            let len = len.ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
            let mut map = MmapOptions::new().len(len).map_anon()?;
            fill(&mut map);
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
                        crate::quoted_text::QuotedText(&a.name)
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

    /// Returns the model with additional tensors, whose data are copied to memory. Errors name
    /// them by `path`.
    ///
    /// # Errors
    /// There is not enough memory, or the model already has a tensor of that name.
    pub fn with_tensors(self, path: &Path, tensors: Vec<NewTensor>) -> Result<Gguf, Error> {
        const ALIGNMENT: usize = 32;
        let (mut bytes, mut placed) = (vec![], vec![]);
        for t in tensors {
            let at = bytes.len() as u64;
            let len = t.bytes.len() as u64;
            placed.push(TensorInfo::placed(&t.name, &t.dims, t.ty, len, at));
            bytes.extend_from_slice(&t.bytes);
            bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
        }
        if placed.is_empty() {
            return Ok(self);
        }
        let map = map_copy(path, &bytes)?;
        let Gguf { mut first, mut others, tensors, folder, .. } = self;
        let mut by_part: Vec<Vec<TensorInfo>> = vec![vec![]; others.len() + 1];
        for t in tensors {
            if let Some(part) = by_part.get_mut(t.part()) {
                part.push(t);
            }
        }
        let layouts = std::iter::once(&mut first).chain(&mut others);
        layouts.zip(by_part).for_each(|(part, tensors)| part.layout.tensors = tensors);
        others.push(Part { path: path.to_owned(), map, layout: GgufHeader::of(placed) });
        Ok(Gguf { folder, ..Gguf::assemble(first, others)? })
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

    /// Warnings about ignored parts of a folder.
    pub fn remarks(&self) -> &[String] {
        self.folder.as_deref().unwrap_or_default()
    }

    /// The paths of all files: of the file and the other parts of a split model; for a folder, of
    /// `config.json` and the files with tensors.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.parts().map(|p| p.path.as_path())
    }

    /// GGUF's version: 2 or 3.
    pub fn version(&self) -> u32 {
        self.first.layout.version
    }

    /// The alignment of tensors in bytes.
    pub fn alignment(&self) -> u64 {
        self.first.layout.alignment
    }

    /// Total size of all parts in bytes; for a folder, the size of the files with tensors.
    pub fn file_bytes(&self) -> u64 {
        self.parts().skip(usize::from(self.is_folder())).map(|p| p.map.len() as u64).sum()
    }

    /// All mapped bytes of a part, aligned to a page. `no` is [`TensorInfo::part`]; 0 is the first
    /// part. Tensors can be copied from these bytes: they begin at [`TensorInfo::data_offset`].
    pub fn part_bytes(&self, no: usize) -> Option<&[u8]> {
        self.part(no).map(|p| &p.map[..])
    }

    /// The metadata keys, in the order of the file. A split model has the keys of its first part.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.first.layout.metadata.entries().iter().map(|e| &*e.key)
    }

    /// Each metadata key, with the bytes of the key and its value as stored in the file.
    pub(crate) fn raw_keys(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let entries = self.first.layout.metadata.entries().iter();
        entries.filter_map(|e| Some((&*e.key, e.raw(&self.first.map)?)))
    }

    /// All tensors of all parts, in the order of the files. Tensors that [`Gguf::tensor`] refuses
    /// are included.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The directory entry of a tensor.
    pub fn tensor_info(&self, name: &str) -> Option<&TensorInfo> {
        let info = |i: &u32| self.tensors.get(*i as usize);
        let found =
            self.by_name.binary_search_by(|i| info(i).map(|t| &*t.name).cmp(&Some(name))).ok()?;
        self.by_name.get(found).and_then(info)
    }

    /// Returns a tensor by name.
    ///
    /// # Errors
    /// The tensor is missing, or its type has no known size.
    pub fn tensor(&self, name: &str) -> Result<Tensor<'_>, Error> {
        let missing = || self.fail(ErrorKind::MissingTensor { name: name.into() });
        self.opt_tensor(name)?.ok_or_else(missing)
    }

    /// Returns a tensor by name, or `None` if it does not exist.
    ///
    /// # Errors
    /// The tensor's type has no known size.
    pub fn opt_tensor(&self, name: &str) -> Result<Option<Tensor<'_>>, Error> {
        let Some(info) = self.tensor_info(name) else { return Ok(None) };
        match self.data(info) {
            Some((ty, data)) => Ok(Some(Tensor { name: &info.name, dims: info.dims(), ty, data })),
            None => Err(self.refuse_type(info)),
        }
    }

    /// Checks that `usable` accepts the type of every tensor. For example, `usable` tests for
    /// kjit's block formats.
    ///
    /// # Errors
    /// The error names the first tensor of a different type, and its type.
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

// Unit and integration tests are one program. The integration tests use the public API only.
#[cfg(test)]
extern crate self as kjit_gguf;
#[cfg(test)]
#[path = "../tests/it/main.rs"]
mod it;
