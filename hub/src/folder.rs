//! The cache folder, in the layout of Python's `huggingface_hub`, so that both programs find each
//! other's files:
//!
//! ```text
//! models--ORG--REPO/blobs/ETAG                 contents; ETAG.incomplete: a partial download
//! models--ORG--REPO/snapshots/COMMIT/PATH      a link to the content
//! models--ORG--REPO/refs/BRANCH                its commit
//! .locks/models--ORG--REPO/ETAG.lock           held (flock) by the process that fetches
//! ```

use crate::api::is_commit;
use crate::error::Error;
use crate::open_dir::{Kind, OpenDir};
use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

const PREFIX: &str = "models--";
const SNAPSHOTS: &str = "snapshots";
const LOCKS: &str = ".locks";
/// Maximum depth of folders in a repository.
pub(crate) const MAX_DEPTH: usize = 8;
/// Interval at which a waiter checks a lock.
const LOCK_POLL: Duration = Duration::from_millis(100);
/// Maximum bytes of a ref file: a commit (40) and an end of line.
const MAX_REFERENCE: u64 = 64;

/// The folders of one repository in the cache.
pub(crate) struct Folder {
    cache: PathBuf,
    name: String,
}

/// A commit that has files in the cache.
pub(crate) struct Snapshot {
    pub commit: String,
    /// Paths inside the repository of files whose content is in the cache.
    pub files: Vec<String>,
}

/// Callback for each path that was skipped, with the error.
pub(crate) type Skipped<'a> = &'a mut dyn FnMut(&Path, io::Error);

/// A lock. Dropping it releases it.
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

    /// Lists the repositories that have a folder in a cache.
    pub fn all(cache: &Path) -> Result<Vec<String>, Error> {
        let repo = |name: &str| Some(name.strip_prefix(PREFIX)?.replacen("--", "/", 1));
        let Some(root) = present(OpenDir::root(cache)).map_err(|e| read(cache, e))? else {
            return Ok(vec![]);
        };
        let mut all: Vec<String> =
            root.names().map_err(|e| read(cache, e))?.iter().filter_map(|n| repo(n)).collect();
        all.sort();
        Ok(all)
    }

    pub fn path(&self) -> PathBuf {
        self.cache.join(&self.name)
    }

    pub fn file(&self, commit: &str, path: &str) -> PathBuf {
        self.path().join(SNAPSHOTS).join(commit).join(path)
    }

    /// The cache folder, if it exists.
    pub fn root(&self) -> io::Result<Option<OpenDir>> {
        present(OpenDir::root(&self.cache))
    }

    /// A folder of this repository, if it exists.
    fn there(&self, below: &str) -> io::Result<Option<OpenDir>> {
        let steps = below.split('/').filter(|name| !name.is_empty());
        let from = OpenDir::root(&self.cache).and_then(|root| root.open(&self.name));
        present(steps.fold(from, |place, name| place?.open(name)))
    }

    /// A folder in the cache. It is created if it is missing.
    fn made<'a>(&self, steps: impl IntoIterator<Item = &'a str>) -> Result<OpenDir, Error> {
        fs::create_dir_all(&self.cache).map_err(|e| write("create the folder", &self.cache, e))?;
        let mut place = OpenDir::root(&self.cache).map_err(|e| write("open", &self.cache, e))?;
        for name in steps {
            place = place
                .make(name)
                .map_err(|e| write("create the folder", &place.path().join(name), e))?;
        }
        Ok(place)
    }

    /// The folder of contents, if it exists.
    pub fn contents(&self) -> Result<Option<OpenDir>, Error> {
        self.there("blobs").map_err(|e| read(&self.path().join("blobs"), e))
    }

    /// The folder of contents. It is created if it is missing.
    pub fn make_contents(&self) -> Result<OpenDir, Error> {
        self.made([self.name.as_str(), "blobs"])
    }

    /// The folder of a file of a commit, if it exists, and the name of the file in it.
    pub fn place_of<'a>(
        &self,
        commit: &str,
        path: &'a str,
    ) -> Result<(Option<OpenDir>, &'a str), Error> {
        let (folders, name) = path.rsplit_once('/').unwrap_or(("", path));
        let place = self.there(&format!("{SNAPSHOTS}/{commit}/{folders}"));
        Ok((place.map_err(|e| read(&self.file(commit, folders), e))?, name))
    }

    /// The commits with files in the cache. The commit of the revision is first. If the reference
    /// has no revision, the other commits follow, newest first. Unreadable parts are skipped and
    /// passed to `skipped`.
    pub fn snapshots(&self, revision: Option<&str>, skipped: Skipped) -> Vec<Snapshot> {
        let wanted = match revision {
            Some(commit) if is_commit(commit) => Some(commit.to_owned()),
            other => self.reference(other.unwrap_or(crate::MAIN)),
        };
        let path = self.path().join(SNAPSHOTS);
        let all = match self.there(SNAPSHOTS) {
            Ok(Some(all)) => all,
            Ok(None) => return vec![],
            Err(e) => {
                skipped(&path, e);
                return vec![];
            }
        };
        let mut others: Vec<(i64, String)> = vec![];
        if revision.is_none() {
            let names = all.names().unwrap_or_else(|e| {
                skipped(&path, e);
                vec![]
            });
            for commit in names.into_iter().filter(|c| is_commit(c) && Some(c) != wanted.as_ref()) {
                others.push((all.open(&commit).map_or(0, |place| place.changed()), commit));
            }
            others.sort_by(|a, b| b.cmp(a));
        }
        // A link of another user counts only if it leads to a content of this repository.
        let within = self.path().canonicalize().ok();
        let mut walk = FolderWalk { within: within.as_deref(), skipped, found: vec![] };
        let mut snapshots = vec![];
        for commit in wanted.into_iter().chain(others.into_iter().map(|(_, commit)| commit)) {
            walk.below(&all, &commit, "", MAX_DEPTH + 1);
            walk.found.sort();
            snapshots.push(Snapshot { files: std::mem::take(&mut walk.found), commit });
        }
        snapshots
    }

    fn reference(&self, revision: &str) -> Option<String> {
        let (folders, name) = revision.rsplit_once('/').unwrap_or(("", revision));
        commit_in(&self.there(&format!("refs/{folders}")).ok()??, name)
    }

    /// The known branches and tags of each commit.
    pub fn references(&self) -> BTreeMap<String, Vec<String>> {
        let mut known: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let Ok(Some(repository)) = self.there("") else { return known };
        let mut walk = FolderWalk { within: None, skipped: &mut |_, _| {}, found: vec![] };
        walk.below(&repository, "refs", "", MAX_DEPTH + 1);
        walk.found.sort();
        for name in walk.found {
            if let Some(commit) = self.reference(&name) {
                known.entry(commit).or_default().push(name);
            }
        }
        known
    }

    /// Writes the commit of a branch or tag.
    pub fn note(&self, revision: &str, commit: &str) -> Result<(), Error> {
        if revision == commit || self.reference(revision).as_deref() == Some(commit) {
            return Ok(());
        }
        let (folders, name) = revision.rsplit_once('/').unwrap_or(("", revision));
        let place = self.made([self.name.as_str(), "refs"].into_iter().chain(steps(folders)))?;
        place
            .write(name, commit.as_bytes())
            .map_err(|e| write("write", &place.path().join(name), e))
    }

    /// The target of a file's link.
    fn link_to(etag: &str, path: &str) -> String {
        format!("{}blobs/{etag}", "../".repeat(2 + path.matches('/').count()))
    }

    /// Whether a file of a commit is a link to this content.
    pub fn is_linked(&self, etag: &str, commit: &str, path: &str) -> Result<bool, Error> {
        let (place, name) = self.place_of(commit, path)?;
        Ok(place.is_some_and(|place| {
            place.link(name).is_some_and(|to| to == Folder::link_to(etag, path))
        }))
    }

    /// Links a content into a commit.
    pub fn link(&self, etag: &str, commit: &str, path: &str) -> Result<(), Error> {
        if self.is_linked(etag, commit, path)? {
            return Ok(());
        }
        let (folders, name) = path.rsplit_once('/').unwrap_or(("", path));
        let place =
            self.made([self.name.as_str(), SNAPSHOTS, commit].into_iter().chain(steps(folders)))?;
        let made = place.make_link(name, &Folder::link_to(etag, path));
        made.map_err(|e| write("link", &place.path().join(name), e))
    }

    /// Waits for a content's lock. `waiting` is called once if another process holds it.
    pub fn lock(&self, etag: &str, waiting: &dyn Fn()) -> Result<Lock, Error> {
        let mut told = false;
        loop {
            if let Some(lock) = self.try_lock(etag)? {
                return Ok(lock);
            }
            if !std::mem::replace(&mut told, true) {
                waiting();
            }
            std::thread::sleep(LOCK_POLL);
        }
    }

    /// Takes a content's lock if it is free. On a file system without locks it does not wait; the
    /// digest of a fetched file is checked in any case.
    pub fn try_lock(&self, etag: &str) -> Result<Option<Lock>, Error> {
        let place = self.made([LOCKS, self.name.as_str()])?;
        let name = format!("{etag}.lock");
        let file =
            place.lock_file(&name).map_err(|e| write("open", &place.path().join(&name), e))?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(e)) if e.kind() == io::ErrorKind::Interrupted => {
                return Ok(None);
            }
            Ok(()) | Err(TryLockError::Error(_)) => {}
        }
        // The previous holder may have removed the lock file for which we waited. Then the name
        // belongs to a new file.
        Ok(place.is_named(&name, &file).then_some(Lock { file }))
    }

    /// Removes empty folders. Removes the folder of the repository if it has no file left.
    pub fn tidy(&self) -> Result<(), Error> {
        let gone = |path: PathBuf| move |e| write("remove", &path, e);
        let Some(root) = self.root().map_err(gone(self.cache.clone()))? else { return Ok(()) };
        if let Ok(Some(repository)) = self.there("") {
            remove_empty(&repository, SNAPSHOTS, MAX_DEPTH + 2);
        }
        let mut unread = false;
        let left = self.snapshots(None, &mut |_, _| unread = true);
        let empty = match self.contents()? {
            Some(blobs) => blobs.names().map_err(gone(blobs.path().to_owned()))?.is_empty(),
            None => true,
        };
        if !unread && empty && left.iter().all(|s| s.files.is_empty()) {
            root.remove_all(&self.name, MAX_DEPTH + 4).map_err(gone(self.path()))?;
            if let Some(locks) = present(root.open(LOCKS)).map_err(gone(self.cache.join(LOCKS)))? {
                locks
                    .remove_all(&self.name, 2)
                    .map_err(gone(self.cache.join(LOCKS).join(&self.name)))?;
            }
        }
        Ok(())
    }
}

fn steps(folders: &str) -> impl Iterator<Item = &str> {
    folders.split('/').filter(|name| !name.is_empty())
}

/// Reads the commit from a ref file.
fn commit_in(place: &OpenDir, name: &str) -> Option<String> {
    let text = String::from_utf8(place.read(name, MAX_REFERENCE).ok()?).ok()?;
    Some(text.trim().to_owned()).filter(|c| is_commit(c))
}

/// A missing folder is `None`, not an error.
fn present(place: io::Result<OpenDir>) -> io::Result<Option<OpenDir>> {
    match place {
        Ok(place) => Ok(Some(place)),
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(e) => Err(e),
    }
}

/// Lists the files below a folder.
struct FolderWalk<'a> {
    within: Option<&'a Path>,
    skipped: Skipped<'a>,
    found: Vec<String>,
}

impl FolderWalk<'_> {
    /// Lists one folder. Links without existing content are skipped. Links to folders are skipped
    /// too: this program and Python's library only create links to files.
    fn below(&mut self, above: &OpenDir, name: &str, prefix: &str, depth: usize) {
        let place = match above.open(name) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return,
            opened => opened,
        };
        let (place, names) = match place.and_then(|place| Ok((place.names()?, place))) {
            Ok((names, place)) => (place, names),
            Err(e) => return (self.skipped)(&above.path().join(name), e),
        };
        for name in names {
            let inside = format!("{prefix}{name}");
            match place.kind(&name, self.within) {
                Some(Kind::File(_)) => self.found.push(inside),
                Some(Kind::Folder) if depth > 1 => {
                    self.below(&place, &name, &format!("{inside}/"), depth - 1)
                }
                Some(Kind::Other) => {
                    (self.skipped)(
                        &place.path().join(&name),
                        io::Error::other("it is not a plain file"),
                    );
                }
                Some(Kind::Folder | Kind::Link) | None => {}
            }
        }
    }
}

/// Removes empty folders below this name, and then this folder if it is empty.
fn remove_empty(above: &OpenDir, name: &str, depth: usize) {
    if above.kind(name, None) != Some(Kind::Folder) || depth == 0 {
        return;
    }
    let Ok(place) = above.open(name) else { return };
    for below in place.names().unwrap_or_default() {
        remove_empty(&place, &below, depth - 1);
    }
    // This fails if the folder is not empty. Then it stays.
    above.remove_empty(name);
}

pub(crate) fn write(doing: &'static str, path: &Path, source: io::Error) -> Error {
    Error::Write { doing, path: path.to_owned(), source }
}

pub(crate) fn read(path: &Path, source: io::Error) -> Error {
    Error::Read { path: path.to_owned(), source }
}

/// The length of a content in the cache.
pub(crate) fn length(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().filter(fs::Metadata::is_file).map(|m| m.len())
}
