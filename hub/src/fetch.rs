//! Fetches one file: locks it, resumes a partial download, checks the digest, and moves the file to
//! its final path.

use crate::api::{FileMeta, as_sha256};
use crate::error::{Error, Fault, bytes, shown};
use crate::event::{Event, Watch};
use crate::folder::{Folder, write};
use crate::http::{Http, HttpResponse, strange};
use crate::open_dir::OpenDir;
use crate::rate_meter::RateMeter;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::time::Duration;
use ureq::http::header;

/// Number of bytes that are read, hashed and written in one step.
const PIECE: usize = 256 << 10;

/// Suffix of the name of a partial download.
pub(crate) const PARTIAL: &str = ".incomplete";

/// A file to fetch.
pub(crate) struct FileRequest<'a> {
    pub repo: &'a str,
    pub path: &'a str,
    pub meta: &'a FileMeta,
}

/// Adds a file to its snapshot if it is missing. Returns the bytes received over the network.
pub(crate) fn fetch(
    http: &Http,
    folder: &Folder,
    wanted: &FileRequest,
    watch: Watch,
) -> Result<u64, Error> {
    let (meta, path) = (wanted.meta, wanted.path);
    let here = |blobs: &OpenDir| blobs.length(&meta.etag) == Some(meta.bytes);
    if folder.contents()?.is_some_and(|blobs| here(&blobs))
        && folder.is_linked(&meta.etag, &meta.commit, path)?
    {
        return Ok(0);
    }
    let blobs = folder.make_contents()?;
    let _lock = folder.lock(&meta.etag, &|| watch(Event::Waiting { file: path }))?;
    let came = match here(&blobs) {
        true => 0,
        false => Transfer {
            http,
            wanted,
            watch,
            blobs: &blobs,
            partial: format!("{}{PARTIAL}", meta.etag),
        }
        .run()?,
    };
    folder.link(&meta.etag, &meta.commit, path)?;
    Ok(came)
}

struct Transfer<'a> {
    http: &'a Http,
    wanted: &'a FileRequest<'a>,
    watch: Watch<'a>,
    /// The folder of contents (`blobs`).
    blobs: &'a OpenDir,
    /// Name of the partial download in `blobs`.
    partial: String,
}

/// The stored part of the file, and its digest.
struct HashingWriter {
    file: File,
    hash: Sha256,
    at: u64,
    came: u64,
}

impl Transfer<'_> {
    /// Fetches the whole content, checks it and moves it to its path. Returns the number of bytes
    /// received.
    fn run(&self) -> Result<u64, Error> {
        let meta = self.wanted.meta;
        let gone = |why: &str| (self.watch)(Event::Removed { path: &self.path(), why });
        let file = self
            .blobs
            .own_file(&self.partial, &gone)
            .map_err(|e| write("open", &self.path(), e))?;
        let mut sink = HashingWriter { file, hash: Sha256::new(), at: 0, came: 0 };
        self.take_up(&mut sink)?;
        self.room(sink.at)?;
        let mut resumed = sink.at > 0;
        (self.watch)(Event::File { file: self.wanted.path, bytes: meta.bytes, have: sink.at });
        loop {
            let host = self.rest(&mut sink)?;
            let got = format!("{:x}", HexOf(&sink.hash.clone().finalize()));
            match as_sha256(&meta.etag) {
                Some(want) if want != got => {
                    self.clear(&mut sink)?;
                    // A partial download of another process may be damaged: fetch once more from
                    // the start. A download that this process began is not repeated.
                    if !std::mem::take(&mut resumed) {
                        let _ = self.blobs.remove(&self.partial);
                        return Err(Error::Hash {
                            file: shown(self.wanted.path),
                            host,
                            got,
                            want: want.to_owned(),
                        });
                    }
                    (self.watch)(Event::Again {
                        why: "the partial download is damaged",
                        pause: Duration::ZERO,
                    });
                    (self.watch)(Event::At(0));
                }
                _ => break,
            }
        }
        // The content is synced before it gets its name, so that it is complete even after a power
        // failure.
        sink.file.sync_data().map_err(|e| self.write_error(e, 0))?;
        // On a file system without locks, another process may have replaced the file.
        let named = match self.blobs.is_named(&self.partial, &sink.file) {
            true => self.blobs.rename(&self.partial, &meta.etag),
            false => Err(io::Error::other("another process replaced the file")),
        };
        named.map_err(|e| write("rename", &self.path(), e))?;
        Ok(sink.came)
    }

    /// Path of the partial download, for errors.
    fn path(&self) -> PathBuf {
        self.blobs.path().join(&self.partial)
    }

    /// Reads and hashes the partial download of an earlier process.
    fn take_up(&self, sink: &mut HashingWriter) -> Result<(), Error> {
        let left = sink.file.metadata().map_or(0, |m| m.len());
        if left > self.wanted.meta.bytes {
            return self.clear(sink);
        }
        let mut piece = vec![0; PIECE];
        loop {
            let n = sink
                .file
                .read(&mut piece)
                .map_err(|source| Error::Read { path: self.path(), source })?;
            let Some(read) = piece.get(..n).filter(|r| !r.is_empty()) else { return Ok(()) };
            sink.hash.update(read);
            sink.at += n as u64;
        }
    }

    fn clear(&self, sink: &mut HashingWriter) -> Result<(), Error> {
        let cleared = sink.file.set_len(0).and_then(|()| sink.file.seek(SeekFrom::Start(0)));
        cleared.map_err(|e| write("empty", &self.path(), e))?;
        (sink.hash, sink.at) = (Sha256::new(), 0);
        Ok(())
    }

    /// Checks the free space for the rest of the file.
    fn room(&self, have: u64) -> Result<(), Error> {
        // If the file system does not report free space, the write will show an error.
        let Some(free) = self.blobs.free() else { return Ok(()) };
        let need = self.wanted.meta.bytes - have;
        if free < need { Err(self.no_room(need, free)) } else { Ok(()) }
    }

    fn no_room(&self, need: u64, free: u64) -> Error {
        let path = self.blobs.path().to_owned();
        Error::Room { file: shown(self.wanted.path), path, need: bytes(need), free: bytes(free) }
    }

    fn write_error(&self, error: io::Error, at: u64) -> Error {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                self.no_room(self.wanted.meta.bytes.saturating_sub(at), 0)
            }
            _ => write("write", &self.path(), error),
        }
    }

    /// Fetches the bytes after the partial download. Returns the host that sent them.
    fn rest(&self, sink: &mut HashingWriter) -> Result<String, Error> {
        let meta = self.wanted.meta;
        let url = self.http.file_url(self.wanted.repo, &meta.commit, self.wanted.path);
        let came = std::cell::Cell::new(sink.came);
        let told = |why: &str, pause| (self.watch)(Event::Again { why, pause });
        let mut host = self.http.host();
        self.http.retry(&told, &|| came.get(), || {
            if sink.at == meta.bytes {
                return Ok(());
            }
            let answer = self.http.ask(&url, false, sink.at)?;
            host.clone_from(&answer.host);
            let done = self.body(answer, &url, sink);
            came.set(sink.came);
            done
        })?;
        Ok(host)
    }

    /// Writes the bytes of one answer.
    fn body(&self, answer: HttpResponse, url: &str, sink: &mut HashingWriter) -> Result<(), Fault> {
        let (meta, file) = (self.wanted.meta, shown(self.wanted.path));
        let (status, host) = (answer.response.status().as_u16(), answer.host.clone());
        // The number of bytes of this answer that are already stored: all of them, if the host
        // ignores ranges.
        let mut skip = match status {
            200 => sink.at,
            206 if starts_at(&answer) == Some(sink.at) => 0,
            206 => {
                return Err(strange(
                    url,
                    format!("a range that does not begin at byte {}", sink.at),
                )
                .into());
            }
            _ => return Err(self.http.refused(&answer, url, self.wanted.repo, &meta.commit)),
        };
        let whole = answer.response.body().content_length().map(|n| n + sink.at - skip);
        if let Some(got) = whole.filter(|n| *n != meta.bytes) {
            return Err(Error::Length { file, host, got, want: meta.bytes }.into());
        }
        let broken = |why: String| {
            let (file, host, said) = (shown(self.wanted.path), answer.host.clone(), why.clone());
            Fault::Again {
                why,
                after: None,
                last: Box::new(move |tries| Error::Broken { file, host, why: said, tries }),
            }
        };
        let mut pace = RateMeter::new(self.http.pace);
        let mut body = answer.response.into_body().into_with_config().limit(u64::MAX).reader();
        let mut piece = vec![0; PIECE];
        loop {
            let n = match body.read(&mut piece) {
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => {
                    return Err(broken(format!(
                        "{e} after {} of {}",
                        bytes(sink.at),
                        bytes(meta.bytes)
                    )));
                }
            };
            let Some(read) = piece.get(..n).filter(|r| !r.is_empty()) else { break };
            if let Err(rate) = pace.came(n) {
                return Err(self.http.slow(self.wanted.path, &host, rate).into());
            }
            let old = usize::try_from(skip).unwrap_or(usize::MAX).min(n);
            skip -= old as u64;
            let Some(new) = read.get(old..).filter(|r| !r.is_empty()) else { continue };
            if sink.at + new.len() as u64 > meta.bytes {
                let got = sink.at + new.len() as u64;
                return Err(Error::Length { file, host, got, want: meta.bytes }.into());
            }
            sink.file.write_all(new).map_err(|e| self.write_error(e, sink.at))?;
            sink.hash.update(new);
            sink.at += new.len() as u64;
            sink.came += new.len() as u64;
            (self.watch)(Event::At(sink.at));
        }
        if sink.at < meta.bytes {
            return Err(broken(format!(
                "it ended after {} of {}",
                bytes(sink.at),
                bytes(meta.bytes)
            )));
        }
        Ok(())
    }
}

/// The offset of the first byte of an answer, from its `Content-Range: bytes 100-199/200`.
fn starts_at(answer: &HttpResponse) -> Option<u64> {
    let range = answer.response.headers().get(header::CONTENT_RANGE)?.to_str().ok()?;
    range.trim().strip_prefix("bytes ")?.split('-').next()?.parse().ok()
}

/// Prints a digest in hex.
struct HexOf<'a>(&'a [u8]);

impl std::fmt::LowerHex for HexOf<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}
