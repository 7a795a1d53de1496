//! The cache folder, as Python's `huggingface_hub` lays it out, so that each finds what the other fetched:
//!
//! ```text
//! models--ORG--REPO/blobs/ETAG                 contents; ETAG.incomplete: what came of one so far
//! models--ORG--REPO/snapshots/COMMIT/PATH      a link to the content
//! models--ORG--REPO/refs/BRANCH                the commit that it was
//! .locks/models--ORG--REPO/ETAG.lock           held (flock) by who fetches
//! ```

use crate::api::is_commit;
use crate::error::Error;
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

const PREFIX: &str = "models--";
/// Folders inside a repository are not deeper than this.
const DEEPEST: usize = 8;
/// A waiter looks this often.
const LOOK: Duration = Duration::from_millis(100);

/// A repository's part of the cache.
pub(crate) struct Folder {
    cache: PathBuf,
    name: String,
}

/// A commit of which files are here.
pub(crate) struct Snapshot {
    pub commit: String,
    /// Paths inside the repository whose content is here.
    pub files: Vec<String>,
}

/// A lock, given up when dropped.
pub(crate) struct Lock {
    file: File,
}

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = self.file.unlock();
    }
}

impl Folder {
    pub fn new(cache: &Path, repo: &str) -> Folder {
        Folder { cache: cache.to_owned(), name: format!("{PREFIX}{}", repo.replace('/', "--")) }
    }

    /// The repositories that have a folder in a cache.
    pub fn all(cache: &Path) -> Result<Vec<String>, Error> {
        let repo = |name: &str| Some(name.strip_prefix(PREFIX)?.replacen("--", "/", 1));
        let mut all: Vec<String> = names(cache)?.iter().filter_map(|n| repo(n)).collect();
        all.sort();
        Ok(all)
    }

    pub fn path(&self) -> PathBuf {
        self.cache.join(&self.name)
    }

    pub fn blob(&self, etag: &str) -> PathBuf {
        self.path().join("blobs").join(etag)
    }

    /// What came of a content so far.
    pub fn partial(&self, etag: &str) -> PathBuf {
        self.path().join("blobs").join(format!("{etag}.incomplete"))
    }

    pub fn file(&self, commit: &str, path: &str) -> PathBuf {
        self.path().join("snapshots").join(commit).join(path)
    }

    /// The commits of which something is here: that of the revision first, then, if none was named, the
    /// others, the newest first.
    pub fn snapshots(&self, revision: Option<&str>) -> Result<Vec<Snapshot>, Error> {
        let wanted = match revision {
            Some(commit) if is_commit(commit) => Some(commit.to_owned()),
            other => self.reference(other.unwrap_or(crate::MAIN)),
        };
        let mut others: Vec<(SystemTime, String)> = vec![];
        let folder = self.path().join("snapshots");
        if revision.is_none() {
            for commit in names(&folder)?.into_iter().filter(|c| is_commit(c) && Some(c) != wanted.as_ref()) {
                let made =
                    fs::metadata(folder.join(&commit)).and_then(|m| m.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
                others.push((made, commit));
            }
            others.sort_by(|a, b| b.cmp(a));
        }
        let commits = wanted.into_iter().chain(others.into_iter().map(|(_, commit)| commit));
        commits.map(|commit| Ok(Snapshot { files: self.files(&commit)?, commit })).collect()
    }

    /// The files of a commit that are here.
    fn files(&self, commit: &str) -> Result<Vec<String>, Error> {
        let mut found = vec![];
        walk(&self.path().join("snapshots").join(commit), "", DEEPEST, &mut found)?;
        found.sort();
        Ok(found)
    }

    fn reference(&self, revision: &str) -> Option<String> {
        let text = fs::read_to_string(self.path().join("refs").join(revision)).ok()?;
        Some(text.trim().to_owned()).filter(|c| is_commit(c))
    }

    /// The branches and tags that are known to be this commit.
    pub fn references(&self, commit: &str) -> Vec<String> {
        let mut found = vec![];
        let _ = walk(&self.path().join("refs"), "", DEEPEST, &mut found);
        found.retain(|name| self.reference(name).as_deref() == Some(commit));
        found.sort();
        found
    }

    /// Notes which commit a branch or tag is.
    pub fn note(&self, revision: &str, commit: &str) -> Result<(), Error> {
        if revision == commit || self.reference(revision).as_deref() == Some(commit) {
            return Ok(());
        }
        let path = self.path().join("refs").join(revision);
        make_folder_of(&path)?;
        // By renaming: a reader sees the old commit or the new one.
        let new = path.with_extension(format!("{}.new", std::process::id()));
        fs::write(&new, commit).and_then(|()| fs::rename(&new, &path)).map_err(|e| write("write", &path, e))
    }

    /// Links a content into a commit.
    pub fn link(&self, etag: &str, commit: &str, path: &str) -> Result<(), Error> {
        let at = self.file(commit, path);
        make_folder_of(&at)?;
        let up = "../".repeat(2 + path.matches('/').count());
        let to = PathBuf::from(format!("{up}blobs/{etag}"));
        if fs::read_link(&at).is_ok_and(|old| old == to) {
            return Ok(());
        }
        let new = at.with_file_name(format!(".{}.{}.new", etag, std::process::id()));
        let _ = fs::remove_file(&new);
        let made = std::os::unix::fs::symlink(&to, &new).and_then(|()| fs::rename(&new, &at));
        made.map_err(|e| write("link", &at, e))
    }

    /// Waits for the lock of a content; `waiting` is told once if somebody has it.
    pub fn lock(&self, etag: &str, waiting: &dyn Fn()) -> Result<Lock, Error> {
        let mut told = false;
        loop {
            if let Some(lock) = self.try_lock(etag)? {
                return Ok(lock);
            }
            if !std::mem::replace(&mut told, true) {
                waiting();
            }
            std::thread::sleep(LOOK);
        }
    }

    /// The lock of a content, if nobody has it. A file system without locks has no lock to wait for: what is
    /// fetched is checked in any case.
    pub fn try_lock(&self, etag: &str) -> Result<Option<Lock>, Error> {
        let path = self.locks().join(format!("{etag}.lock"));
        make_folder_of(&path)?;
        let file = File::options().create(true).append(true).open(&path).map_err(|e| write("open", &path, e))?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(e)) if e.kind() == io::ErrorKind::Interrupted => return Ok(None),
            Ok(()) | Err(TryLockError::Error(_)) => {}
        }
        // The one before us may have removed the file that we waited on: its successor is a new file.
        let (ours, there) = (file.metadata(), fs::metadata(&path));
        let same = matches!((ours, there), (Ok(a), Ok(b)) if (a.dev(), a.ino()) == (b.dev(), b.ino()));
        Ok(same.then_some(Lock { file }))
    }

    pub fn locks(&self) -> PathBuf {
        self.cache.join(".locks").join(&self.name)
    }
}

/// Names in a folder; none if it is not there.
pub(crate) fn names(folder: &Path) -> Result<Vec<String>, Error> {
    let read = |source| Error::Read { path: folder.to_owned(), source };
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => return Ok(vec![]),
        Err(e) => return Err(read(e)),
    };
    let mut names = vec![];
    for entry in entries {
        // What is no text is nothing that the hub named.
        names.extend(entry.map_err(read)?.file_name().into_string());
    }
    Ok(names)
}

/// Paths of the files below a folder; links whose content is gone are none.
fn walk(folder: &Path, prefix: &str, depth: usize, found: &mut Vec<String>) -> Result<(), Error> {
    for name in names(folder)? {
        let (path, inside) = (folder.join(&name), format!("{prefix}{name}"));
        match fs::metadata(&path) {
            Ok(there) if there.is_file() => found.push(inside),
            // A link to a folder is nobody's: both of us link files.
            Ok(there) if there.is_dir() && depth > 0 && !path.is_symlink() => {
                walk(&path, &format!("{inside}/"), depth - 1, found)?
            }
            _ => {}
        }
    }
    Ok(())
}

pub(crate) fn make_folder_of(path: &Path) -> Result<(), Error> {
    let folder = path.parent().unwrap_or(path);
    fs::create_dir_all(folder).map_err(|e| write("make the folder", folder, e))
}

pub(crate) fn write(doing: &'static str, path: &Path, source: io::Error) -> Error {
    Error::Write { doing, path: path.to_owned(), source }
}

/// The length of a content that is here.
pub(crate) fn length(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().filter(fs::Metadata::is_file).map(|m| m.len())
}
