//! One file of a model.

use crate::error::Error;
use crate::header::GgufHeader;
use crate::map::map_file;
use memmap2::Mmap;
use std::path::{Path, PathBuf};

/// One file of a model.
pub(super) struct Part {
    pub(super) path: PathBuf,
    pub(super) map: Mmap,
    pub(super) layout: GgufHeader,
}

impl Part {
    pub(super) fn open(path: &Path) -> Result<Part, Error> {
        Part::read(path, map_file(path)?)
    }

    pub(super) fn read(path: &Path, map: Mmap) -> Result<Part, Error> {
        let layout = GgufHeader::read(&map).map_err(|kind| Error::new(path, kind))?;
        Ok(Part { path: path.to_owned(), map, layout })
    }
}
