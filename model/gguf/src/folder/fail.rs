//! The error of a folder.

use super::error::FolderError;
use crate::{Error, ErrorKind};
use std::path::Path;

pub(super) fn fail(path: &Path, error: FolderError) -> Error {
    Error::new(path, ErrorKind::Folder(error))
}
