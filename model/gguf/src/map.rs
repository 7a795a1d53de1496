//! Maps of files and of copies in memory.

use crate::error::{Error, ErrorKind};
use memmap2::{Mmap, MmapMut};
use std::fs::File;
use std::path::Path;
use std::{fs, io};

/// Maps a file. It must not be changed while it is mapped ([`Gguf::open`](crate::Gguf::open)).
pub(crate) fn map_file(path: &Path) -> Result<Mmap, Error> {
    let fail = |doing| move |source| Error::new(path, ErrorKind::Io { doing, source });
    // The kind is checked before opening, because opening a named pipe would wait for a writer.
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
    #[allow(unsafe_code, reason = "mapping a file is unsafe in Rust")]
    // SAFETY: the map is read-only, and all access is to bytes that were checked to be inside it.
    // Another process may still change the file. Then bytes may differ between reads: every later
    // read is checked again, and none is assumed to be UTF-8 or in range. If the file is truncated,
    // the process gets SIGBUS, like any program that maps a file; `Gguf::open` documents this.
    let map = unsafe { Mmap::map(&file) }.map_err(fail("map"))?;
    Ok(map)
}

/// A copy of bytes in a separate map, which has the alignment that tensor data must have.
pub(super) fn map_copy(path: &Path, bytes: &[u8]) -> Result<Mmap, Error> {
    let copy = || -> io::Result<Mmap> {
        let mut map = MmapMut::map_anon(bytes.len())?;
        map.copy_from_slice(bytes);
        map.make_read_only()
    };
    copy().map_err(|source| Error::new(path, ErrorKind::Io { doing: "copy", source }))
}
