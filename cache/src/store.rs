//! A directory of entries: reading, publishing and quarantining. It knows names and bytes, but not
//! the entry format.
//!
//! ```text
//! ROOT/v1/e/ab/SOURCE/BUILD     entries: a directory for each source key, so that its builds are one small listing
//! ROOT/v1/r/ab/KEY              records
//! ROOT/v1/locks/NAME            one file for each key being made, removed after
//! ROOT/v1/aside/NAME            faulty entries, the newest few
//! ROOT/v1/journal               order of use and sizes
//! ```

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::entry::FORMAT;
use crate::key::Digest;
use crate::safe_dir::{Fault, SafeDir};
use crate::warning::Warning;

/// Maximum number of lookups from the root after the file system reported a stale handle.
const STALE_RETRIES: usize = 4;
/// Number of retries of a publication whose directory was removed during the publication (by
/// eviction or by a user).
const PUBLISH_RETRIES: usize = 8;
const QUARANTINE: &str = "aside";
/// Maximum number of faulty entries that are stored for inspection.
const MAX_QUARANTINED: usize = 16;
/// Maximum depth of removing a directory that has the name of an entry.
const TREE_DEPTH: u32 = 8;
const TEMP_PREFIX: &str = "tmp-";

/// The kind of a stored item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Entry,
    Record,
}

/// The path of an item below the store's base.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ItemPath {
    dirs: Vec<String>,
    name: String,
}

fn shard(hex: &str) -> String {
    hex.chars().take(2).collect()
}

impl ItemPath {
    pub(crate) fn entry(source: Digest, build: Digest) -> Self {
        let source = source.hex();
        Self { dirs: vec!["e".into(), shard(&source), source], name: build.hex() }
    }

    pub(crate) fn record(key: Digest) -> Self {
        let name = key.hex();
        Self { dirs: vec!["r".into(), shard(&name)], name }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether this is the path of an entry of `source`.
    pub(crate) fn is_of_source(&self, source: Digest) -> bool {
        self.dirs.last().is_some_and(|dir| *dir == source.hex())
    }

    fn path_below(&self, base: &Path) -> PathBuf {
        self.dirs.iter().fold(base.to_owned(), |path, dir| path.join(dir)).join(&self.name)
    }
}

/// A directory of entries. All methods take `&self` and may be called from any thread.
#[derive(Debug)]
pub(crate) struct DirStore {
    path: PathBuf,
    base: Mutex<Option<Arc<SafeDir>>>,
}

impl DirStore {
    /// Sets the directory. It is opened when it is needed.
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, base: Mutex::new(None) }
    }

    /// The root directory as the user gave it.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The full path of `place`, for messages.
    pub(crate) fn path_of(&self, place: &ItemPath) -> PathBuf {
        place.path_below(&self.path.join(base_name()))
    }

    /// The base directory, if it exists.
    pub(crate) fn base(&self) -> Result<Arc<SafeDir>, Fault> {
        let mut cached = self.base.lock().unwrap_or_else(PoisonError::into_inner);
        // A handle of a removed directory still works, but the directory is empty.
        if let Some(base) = cached.as_ref().filter(|base| !base.is_removed()) {
            return Ok(base.clone());
        }
        *cached = None;
        let base = Arc::new(SafeDir::open_root(&self.path)?.open_dir(&base_name())?);
        *cached = Some(base.clone());
        Ok(base)
    }

    /// The base directory, created if it does not exist.
    pub(crate) fn create_base(&self) -> Result<Arc<SafeDir>, Fault> {
        match self.base() {
            Err(fault) if fault.is_absent() => {
                SafeDir::create_root(&self.path)?.create_dir(&base_name())?;
                self.base()
            }
            result => result,
        }
    }

    /// Opens the root.
    pub(crate) fn root(&self) -> Result<SafeDir, Fault> {
        SafeDir::open_root(&self.path)
    }

    /// The warning for a fault of the root or base.
    pub(crate) fn unusable(&self, fault: &Fault) -> Warning {
        let (path, reason) = (self.path.clone(), fault.to_string());
        match fault {
            Fault::Refused(_) => Warning::Refused { path, reason },
            Fault::Io(_) => Warning::NotReadable { path, reason },
        }
    }

    /// Folders next to the base directory that belong to other formats.
    pub(crate) fn other_formats(&self) -> Vec<String> {
        let mut names = self.root().and_then(|root| root.list()).unwrap_or_default();
        let numbered =
            |name: &str| name.strip_prefix('v').is_some_and(|number| number.parse::<u32>().is_ok());
        names.retain(|name| numbered(name) && *name != base_name());
        names.sort();
        names
    }

    /// Drops the handle because the file system reported it as stale.
    fn forget_base(&self) {
        *self.base.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn open_place(&self, place: &ItemPath) -> Result<SafeDir, Fault> {
        let base = self.base()?;
        let mut dirs = place.dirs.iter();
        let mut dir = base.open_dir(dirs.next().map_or("", String::as_str))?;
        for name in dirs {
            dir = dir.open_dir(name)?;
        }
        Ok(dir)
    }

    fn create_place(&self, place: &ItemPath) -> Result<SafeDir, Fault> {
        let base = self.create_base()?;
        let mut dirs = place.dirs.iter();
        let mut dir = make_room(&base, &base, dirs.next().map_or("", String::as_str))?;
        for name in dirs {
            dir = make_room(&base, &dir, name)?;
        }
        Ok(dir)
    }

    /// Runs a lookup, and repeats it from the root if a handle is stale. `None` if it does not
    /// exist.
    fn looking<T>(&self, look: impl Fn() -> Result<T, Fault>) -> Result<Option<T>, Fault> {
        let mut result = look();
        for _ in 0..STALE_RETRIES {
            if !matches!(&result, Err(fault) if fault.is_stale()) {
                break;
            }
            self.forget_base();
            result = look();
        }
        match result {
            Ok(found) => Ok(Some(found)),
            Err(fault) if fault.is_absent() => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    /// The bytes at `place`, from one read.
    pub(crate) fn read(&self, place: &ItemPath, limit: u64) -> Result<Option<Vec<u8>>, Fault> {
        self.looking(|| self.open_place(place)?.read(&place.name, limit))
    }

    /// Up to `len` bytes from the start of `place`. The bytes are not verified.
    pub(crate) fn peek(&self, place: &ItemPath, len: usize) -> Option<Vec<u8>> {
        use std::io::Read;
        let (file, _) = self.open_place(place).ok()?.open_file(&place.name).ok()?;
        let mut bytes = Vec::with_capacity(len);
        file.take(len as u64).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }

    /// The existing builds of a source.
    pub(crate) fn builds(&self, source: Digest) -> Result<Vec<ItemPath>, Fault> {
        let place = ItemPath::entry(source, source);
        let listed = self.looking(|| self.open_place(&place)?.list())?.unwrap_or_default();
        let builds = listed.iter().filter_map(|name| name.parse().ok());
        Ok(builds.map(|build| ItemPath::entry(source, build)).collect())
    }

    /// Writes `bytes` atomically and durably.
    pub(crate) fn publish(&self, place: &ItemPath, bytes: &[u8]) -> Result<(), Fault> {
        self.publish_as(place, bytes, true)
    }

    /// [`DirStore::publish`] without waiting for the disk: the file survives the process but
    /// perhaps not a crash of the machine. For a short time no file has this name.
    pub(crate) fn publish_soon(&self, place: &ItemPath, bytes: &[u8]) -> Result<(), Fault> {
        self.publish_as(place, bytes, false)
    }

    fn publish_as(&self, place: &ItemPath, bytes: &[u8], durable: bool) -> Result<(), Fault> {
        let mut result = self.publish_once(place, bytes, durable);
        for _ in 0..PUBLISH_RETRIES {
            match &result {
                Err(fault) if fault.is_absent() || fault.is_stale() => {
                    self.forget_base();
                    result = self.publish_once(place, bytes, durable);
                }
                _ => break,
            }
        }
        result
    }

    fn publish_once(&self, place: &ItemPath, bytes: &[u8], durable: bool) -> Result<(), Fault> {
        let dir = self.create_place(place)?;
        sweep_temps(&dir);
        let (temp, file) = create_temp(&dir)?;
        let written = write(&file, bytes, durable).and_then(|()| {
            // If a rename replaces a file, some file systems (ext4) write the new file to disk
            // immediately, which takes a millisecond or more.
            if !durable {
                let _ = dir.unlink(&place.name);
            }
            let renamed = dir.rename(&temp, &dir, &place.name);
            // The name may belong to a directory, which a file cannot replace. If the disk has
            // failed, the name may belong to a valid entry.
            if renamed.as_ref().is_err_and(|fault| !fault.is_of_the_disk())
                && self.set_aside(place).is_ok()
            {
                return dir.rename(&temp, &dir, &place.name);
            }
            renamed
        });
        match written {
            Ok(()) => {
                if durable {
                    dir.sync();
                }
                Ok(())
            }
            Err(fault) => {
                let _ = dir.unlink(&temp);
                Err(fault)
            }
        }
    }

    /// Moves the item at `place` away, of whatever kind. It is stored for inspection if possible.
    pub(crate) fn set_aside(&self, place: &ItemPath) -> Result<(), Fault> {
        let dir = self.open_place(place)?;
        clear_place(&*self.base()?, &dir, &place.name)
    }

    /// Removes the item at `place`, and its directory if this was the last build of its source.
    pub(crate) fn remove(&self, place: &ItemPath) -> Result<(), Fault> {
        let dir = self.open_place(place)?;
        dir.unlink(&place.name)
            .or_else(|fault| if fault.is_absent() { Ok(()) } else { dir.rmdir(&place.name) })?;
        if let [parents @ .., source] = place.dirs.as_slice()
            && source.len() == 64
        {
            let parent = ItemPath { dirs: parents.to_vec(), name: String::new() };
            // This fails, as it should, if another build remains or was just added.
            let _ = self.open_place(&parent).and_then(|dir| dir.rmdir(source));
        }
        Ok(())
    }

    /// All items of a kind with their sizes, in any order. With `sweep`, also removes leftovers of
    /// crashed writers.
    pub(crate) fn walk(&self, kind: Kind, sweep: bool) -> Vec<(ItemPath, u64)> {
        let mut found = Vec::new();
        let Ok(base) = self.base() else { return found };
        let Ok(top) = base.open_dir(if kind == Kind::Entry { "e" } else { "r" }) else {
            return found;
        };
        for (shard, dir) in subdirs(&top) {
            if sweep {
                sweep_temps(&dir);
            }
            if kind == Kind::Record {
                let dirs = vec!["r".to_owned(), shard];
                found.extend(files(&dir, &dirs));
                continue;
            }
            for (source, dir) in subdirs(&dir) {
                if sweep {
                    sweep_temps(&dir);
                }
                let dirs = vec!["e".to_owned(), shard.clone(), source];
                found.extend(files(&dir, &dirs));
            }
        }
        found
    }
}

/// Creates a subdirectory of `dir`. Anything else with this name (a file, a link, a FIFO) is moved
/// away.
pub(crate) fn make_room(base: &SafeDir, dir: &SafeDir, name: &str) -> Result<SafeDir, Fault> {
    match dir.create_dir(name) {
        Err(Fault::Refused(_)) => {
            clear_place(base, dir, name)?;
            dir.create_dir(name)
        }
        result => result,
    }
}

/// Opens an internal file of the cache (a lock, the journal) and creates it if it does not exist.
/// Anything else with this name is moved away.
pub(crate) fn open_or_clear(
    base: &SafeDir,
    dir: &SafeDir,
    name: &str,
    append: bool,
) -> Result<File, Fault> {
    match dir.open_shared(name, append) {
        // This is the error for opening a directory for writing.
        Err(Fault::Io(error)) if error.kind() == std::io::ErrorKind::IsADirectory => {}
        Err(Fault::Refused(_)) => {}
        result => return result,
    }
    clear_place(base, dir, name)?;
    dir.open_shared(name, append)
}

/// Moves the item with this name away, or removes it if it cannot be moved.
pub(crate) fn clear_place(base: &SafeDir, dir: &SafeDir, name: &str) -> Result<(), Fault> {
    let aside = base.create_dir(QUARANTINE).or_else(|fault| {
        match base.remove_tree(QUARANTINE, TREE_DEPTH) {
            Ok(()) => base.create_dir(QUARANTINE),
            Err(_) => Err(fault),
        }
    });
    let moved = aside.and_then(|aside| {
        trim_aside(&aside);
        dir.rename(name, &aside, &unique_name(name))
    });
    match moved {
        Err(fault) if !fault.is_absent() => dir.remove_tree(name, TREE_DEPTH),
        moved => moved,
    }
}

/// The directory of this format below the root.
pub(crate) fn base_name() -> String {
    format!("v{FORMAT}")
}

fn subdirs(dir: &SafeDir) -> Vec<(String, SafeDir)> {
    let listed = dir.list().unwrap_or_default();
    listed.into_iter().filter_map(|name| dir.open_dir(&name).ok().map(|sub| (name, sub))).collect()
}

/// All items whose name is a digest, of whatever kind: a FIFO with such a name is listed with size
/// 0.
fn files(dir: &SafeDir, dirs: &[String]) -> Vec<(ItemPath, u64)> {
    let listed = dir.list().unwrap_or_default();
    let named = listed.into_iter().filter(|name| name.parse::<Digest>().is_ok());
    named
        .map(|name| {
            let bytes = dir.file_len(&name).unwrap_or(0);
            (ItemPath { dirs: dirs.to_vec(), name }, bytes)
        })
        .collect()
}

/// A name that is very probably unique. The caller creates the file with O_EXCL.
pub(crate) fn unique_name(prefix: &str) -> String {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let count = COUNTER.fetch_add(1, Ordering::Relaxed);
    // The time distinguishes processes with equal pids (containers that share a home directory). If
    // names are equal, O_EXCL fails.
    let nanos = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |time| time.subsec_nanos());
    format!("{prefix}-{}-{count}-{nanos}", std::process::id())
}

fn create_temp(dir: &SafeDir) -> Result<(String, File), Fault> {
    let mut last = Fault::Refused("no free name for a temporary file");
    for _ in 0..STALE_RETRIES {
        let name = unique_name(TEMP_PREFIX.trim_end_matches('-'));
        match dir.create_file(&name) {
            Ok(file) => {
                // The lock shows that the writer is alive, and the system releases it when the
                // writer ends. Without locks nothing is removed.
                let _ = file.try_lock();
                return Ok((name, file));
            }
            Err(Fault::Io(error)) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                last = error.into()
            }
            Err(fault) => return Err(fault),
        }
    }
    Err(last)
}

fn write(mut file: &File, bytes: &[u8], durable: bool) -> Result<(), Fault> {
    file.write_all(bytes)?;
    if durable {
        // Some file systems report a full disk or quota only here.
        file.sync_all()?;
    }
    Ok(())
}

/// Removes temporary files of dead writers: these files are not locked.
pub(crate) fn sweep_temps(dir: &SafeDir) {
    for name in dir.list().unwrap_or_default() {
        if name.starts_with(TEMP_PREFIX)
            && let Ok((file, _)) = dir.open_file(&name)
            && file.try_lock().is_ok()
        {
            let _ = dir.unlink(&name);
        }
    }
}

fn trim_aside(aside: &SafeDir) {
    let listed = aside.list().unwrap_or_default();
    let surplus = (listed.len() + 1).saturating_sub(MAX_QUARANTINED);
    for name in listed.iter().take(surplus) {
        let _ = aside.remove_tree(name, TREE_DEPTH);
    }
}
