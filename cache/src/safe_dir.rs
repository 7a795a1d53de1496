//! Directories that are checked before use, and accessed by their handle instead of their path.
//!
//! Every step opens one name below an open directory without following links, and checks the owner
//! of the open handle. So replacing a directory or a link between two calls has no effect.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, RawMode, Stat};
use rustix::io::Errno;

/// Mode of new directories: only their owner has access.
const DIR_MODE: Mode = Mode::RWXU;
const FILE_MODE: Mode = Mode::RUSR.union(Mode::WUSR);
const OTHERS_WRITE: RawMode = 0o002;
const GROUP_OR_OTHERS_WRITE: RawMode = 0o022;

/// The reasons why a directory or file is not used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Refused(&'static str),
}

impl Fault {
    pub(crate) fn is_absent(&self) -> bool {
        matches!(self, Self::Io(error) if error.kind() == io::ErrorKind::NotFound)
    }

    /// The handle or name is stale (NFS): opening it again from the root may help.
    pub(crate) fn is_stale(&self) -> bool {
        matches!(self, Self::Io(error) if error.raw_os_error() == Some(Errno::STALE.raw_os_error()))
    }

    /// Whether the disk is full or fails. If not, the cause may be an existing file with this name.
    pub(crate) fn is_of_the_disk(&self) -> bool {
        const DISK_ERRORS: [Errno; 4] = [Errno::NOSPC, Errno::DQUOT, Errno::IO, Errno::ROFS];
        matches!(self, Self::Io(error) if DISK_ERRORS.iter().any(|e| error.raw_os_error() == Some(e.raw_os_error())))
    }
}

impl From<Errno> for Fault {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::LOOP => Self::Refused("it is a symbolic link"),
            errno => Self::Io(errno.into()),
        }
    }
}

/// An open, trusted directory.
#[derive(Debug)]
pub(crate) struct SafeDir {
    fd: OwnedFd,
}

const OPEN_DIR: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC)
    .union(OFlags::NONBLOCK);

fn trusted_owner(stat: &Stat) -> bool {
    stat.st_uid == 0 || stat.st_uid == rustix::process::geteuid().as_raw()
}

impl SafeDir {
    /// Opens the root of a store. The path may contain links (a home on another disk), except as
    /// its last step. The root must belong to the current user or to root, and must not be writable
    /// for everybody.
    pub(crate) fn open_root(path: &Path) -> Result<Self, Fault> {
        let fd = match rustix::fs::openat(CWD, path, OPEN_DIR, Mode::empty()) {
            // On Linux a link opened with both flags gives ENOTDIR instead of ELOOP.
            Err(Errno::NOTDIR) if std::fs::symlink_metadata(path).is_ok_and(|m| m.is_symlink()) => {
                return Err(Fault::Refused("it is a symbolic link"));
            }
            result => result?,
        };
        Self::check(fd, OTHERS_WRITE)
    }

    /// Creates the root and its missing parents for the owner only, then opens it.
    pub(crate) fn create_root(path: &Path) -> Result<Self, Fault> {
        use std::os::unix::fs::DirBuilderExt;
        match Self::open_root(path) {
            Err(fault) if fault.is_absent() => {
                std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
                Self::open_root(path)
            }
            result => result,
        }
    }

    fn check(fd: OwnedFd, forbidden: RawMode) -> Result<Self, Fault> {
        let stat = rustix::fs::fstat(&fd)?;
        if !trusted_owner(&stat) {
            return Err(Fault::Refused("it belongs to another user"));
        }
        if stat.st_mode & forbidden != 0 {
            return Err(Fault::Refused("others may write to it"));
        }
        Ok(Self { fd })
    }

    /// Opens a direct subdirectory. Only its owner may have write permission.
    pub(crate) fn open_dir(&self, name: &str) -> Result<Self, Fault> {
        let fd = match rustix::fs::openat(&self.fd, name, OPEN_DIR, Mode::empty()) {
            Err(Errno::NOTDIR) => {
                return Err(Fault::Refused("the path is not a directory"));
            }
            result => result?,
        };
        Self::check(fd, GROUP_OR_OTHERS_WRITE)
    }

    /// Opens a direct subdirectory, and creates it if it does not exist.
    pub(crate) fn create_dir(&self, name: &str) -> Result<Self, Fault> {
        match self.open_dir(name) {
            Err(fault) if fault.is_absent() => {
                match rustix::fs::mkdirat(&self.fd, name, DIR_MODE) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(errno) => return Err(errno.into()),
                }
                self.open_dir(name)
            }
            result => result,
        }
    }

    /// Whether the directory of the handle was removed.
    pub(crate) fn is_removed(&self) -> bool {
        rustix::fs::fstat(&self.fd).is_ok_and(|stat| stat.st_nlink == 0)
    }

    /// Opens a regular file for reading, with its length. Never follows a link and never waits for
    /// a FIFO.
    pub(crate) fn open_file(&self, name: &str) -> Result<(File, u64), Fault> {
        let flags =
            OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let fd = rustix::fs::openat(&self.fd, name, flags, Mode::empty())?;
        let len = check_file(&fd)?;
        Ok((File::from(fd), len))
    }

    /// Reads a file of at most `limit` bytes.
    pub(crate) fn read(&self, name: &str, limit: u64) -> Result<Vec<u8>, Fault> {
        let (file, len) = self.open_file(name)?;
        if len > limit {
            return Err(Fault::Refused("it is larger than the limit for one entry"));
        }
        // One byte more than its length, so that a file that grows during the read is detected.
        let capacity =
            usize::try_from(len).map_err(|_| Fault::Refused("it does not fit in memory"))?;
        let mut bytes = Vec::new();
        bytes
            .try_reserve_exact(capacity.saturating_add(1))
            .map_err(|_| Fault::Refused("it does not fit in memory"))?;
        file.take(len.saturating_add(1)).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Creates a new file in append mode; fails if it exists.
    pub(crate) fn create_file(&self, name: &str) -> Result<File, Fault> {
        let flags = OFlags::RDWR
            | OFlags::APPEND
            | OFlags::CREATE
            | OFlags::EXCL
            | OFlags::NOFOLLOW
            | OFlags::CLOEXEC;
        Ok(File::from(rustix::fs::openat(&self.fd, name, flags, FILE_MODE)?))
    }

    /// Opens a file for locking or appending, and creates it if it does not exist.
    pub(crate) fn open_shared(&self, name: &str, append: bool) -> Result<File, Fault> {
        let mut flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        if append {
            flags |= OFlags::APPEND;
        }
        let fd = rustix::fs::openat(&self.fd, name, flags, FILE_MODE)?;
        check_file(&fd)?;
        Ok(File::from(fd))
    }

    /// Whether `name` still refers to the open `file`.
    pub(crate) fn names(&self, name: &str, file: &File) -> bool {
        let by_name = rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW);
        match (by_name, rustix::fs::fstat(file)) {
            (Ok(a), Ok(b)) => (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino),
            _ => false,
        }
    }

    /// Length of the regular file `name`.
    pub(crate) fn file_len(&self, name: &str) -> Option<u64> {
        let stat = rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        (FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile)
            .then(|| u64::try_from(stat.st_size).ok())
            .flatten()
    }

    /// Renames, replacing an existing file.
    pub(crate) fn rename(&self, from: &str, to_dir: &Self, to: &str) -> Result<(), Fault> {
        Ok(rustix::fs::renameat(&self.fd, from, &to_dir.fd, to)?)
    }

    /// Removes a file or link, not a directory.
    pub(crate) fn unlink(&self, name: &str) -> Result<(), Fault> {
        Ok(rustix::fs::unlinkat(&self.fd, name, AtFlags::empty())?)
    }

    /// Removes an empty directory.
    pub(crate) fn rmdir(&self, name: &str) -> Result<(), Fault> {
        Ok(rustix::fs::unlinkat(&self.fd, name, AtFlags::REMOVEDIR)?)
    }

    /// Removes a file, a link, or a directory with its contents, at most `depth` levels deep. Links
    /// are not followed.
    pub(crate) fn remove_tree(&self, name: &str, depth: u32) -> Result<(), Fault> {
        let Err(fault) = self.unlink(name).or_else(|_| self.rmdir(name)) else { return Ok(()) };
        let Some(left) = depth.checked_sub(1) else { return Err(fault) };
        let dir = self.open_dir(name)?;
        for below in dir.list()? {
            dir.remove_tree(&below, left)?;
        }
        self.rmdir(name)
    }

    /// Writes renames in this directory to disk, as far as the file system supports it.
    pub(crate) fn sync(&self) {
        let _ = rustix::fs::fsync(&self.fd);
    }

    /// The names in the directory that are valid UTF-8 (the cache creates no other names), in any
    /// order.
    pub(crate) fn list(&self) -> Result<Vec<String>, Fault> {
        let mut names = Vec::new();
        for item in Dir::read_from(self.fd.as_fd())? {
            let item = item?;
            let bytes = item.file_name().to_bytes();
            if bytes == b"." || bytes == b".." {
                continue;
            }
            let Ok(name) = OsString::from(OsStr::from_bytes(bytes)).into_string() else { continue };
            names.push(name);
        }
        Ok(names)
    }
}

/// Opens a file by path for reading. It does not follow a link in the last component and does not
/// wait for a FIFO. The owner of the file is not checked.
pub(crate) fn open_untrusted(path: &Path) -> Result<File, Fault> {
    let flags =
        OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    Ok(File::from(rustix::fs::openat(CWD, path, flags, Mode::empty())?))
}

/// Checks for a regular file that belongs to the current user or root and that others cannot write.
/// Returns its length.
pub(crate) fn check_file(fd: impl AsFd) -> Result<u64, Fault> {
    let len = regular_file_len(&fd)?;
    let stat = rustix::fs::fstat(fd)?;
    if !trusted_owner(&stat) {
        return Err(Fault::Refused("it belongs to another user"));
    }
    if stat.st_mode & GROUP_OR_OTHERS_WRITE != 0 {
        return Err(Fault::Refused("others may write to it"));
    }
    Ok(len)
}

/// The length of a regular file of any owner.
pub(crate) fn regular_file_len(fd: impl AsFd) -> Result<u64, Fault> {
    let stat = rustix::fs::fstat(fd)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => {}
        FileType::Fifo => return Err(Fault::Refused("it is a FIFO")),
        FileType::Directory => return Err(Fault::Refused("it is a directory")),
        _ => return Err(Fault::Refused("it is not a regular file")),
    }
    u64::try_from(stat.st_size).map_err(|_| Fault::Refused("its length is negative"))
}

/// Whether the process has rights that its parent lacks (setuid, setgid, file capabilities).
pub(crate) fn is_privileged() -> bool {
    rustix::process::getuid() != rustix::process::geteuid()
        || rustix::process::getgid() != rustix::process::getegid()
        || is_secure_execution()
}

/// The kernel's `AT_SECURE`, which includes file capabilities. If a process cannot read its own
/// auxiliary vector, the system made it undumpable because of such rights.
fn is_secure_execution() -> bool {
    const AT_SECURE: usize = 23;
    const WORD: usize = size_of::<usize>();
    match std::fs::read("/proc/self/auxv") {
        Ok(bytes) => {
            let words: Vec<usize> = bytes
                .chunks_exact(WORD)
                .map(|w| w.try_into().map_or(0, usize::from_ne_bytes))
                .collect();
            words.chunks_exact(2).any(|pair| matches!(pair, [AT_SECURE, value] if *value != 0))
        }
        Err(error) => error.kind() == io::ErrorKind::PermissionDenied,
    }
}
