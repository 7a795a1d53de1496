//! A folder of the cache, accessed by its handle. Other users may share the cache, so no name is
//! trusted: links of other users are not followed, only plain files are read, and only own files
//! are written. Each step opens one name below an open folder and checks the open handle. So
//! replacing a file between two calls has no effect.

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

const FOLDER: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);
/// Flags of every open call: no links, no waiting for a FIFO, no controlling terminal.
const FILE: OFlags =
    OFlags::NOFOLLOW.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);
/// Mode of new files. The umask removes permissions.
const ANY: Mode = Mode::RWXU.union(Mode::RWXG).union(Mode::RWXO);
const ANY_FILE: Mode = Mode::from_raw_mode(0o666);

/// An open folder.
pub(crate) struct OpenDir {
    fd: OwnedFd,
    /// The path, only for errors.
    path: PathBuf,
}

/// The kind of file behind a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Folder,
    /// A regular file with this length in bytes, or a permitted link to one.
    File(u64),
    /// A link whose target is missing or not permitted.
    Link,
    /// A FIFO, a socket or a device.
    Other,
}

fn is_ours(stat: &Stat) -> bool {
    stat.st_uid == 0 || stat.st_uid == rustix::process::geteuid().as_raw()
}

fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

fn length(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

fn refused(why: &str) -> io::Error {
    io::Error::other(why.to_owned())
}

impl OpenDir {
    /// Opens the cache folder. The user chose its path, so it may contain links.
    pub fn root(path: &Path) -> io::Result<OpenDir> {
        let fd = rustix::fs::openat(CWD, path, FOLDER, Mode::empty())?;
        Ok(OpenDir { fd, path: path.to_owned() })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a folder below this one. A link is followed if this user or root created it, because
    /// users store large repositories on other disks.
    pub fn open(&self, name: &str) -> io::Result<OpenDir> {
        let fd = match rustix::fs::openat(&self.fd, name, FOLDER | OFlags::NOFOLLOW, Mode::empty())
        {
            Err(Errno::NOTDIR | Errno::LOOP) => self.through_own_link(name)?,
            opened => opened?,
        };
        Ok(OpenDir { fd, path: self.path.join(name) })
    }

    fn through_own_link(&self, name: &str) -> io::Result<OwnedFd> {
        let link = rustix::fs::openat(&self.fd, name, OFlags::PATH | FILE, Mode::empty())?;
        let stat = rustix::fs::fstat(&link)?;
        match kind(&stat) {
            FileType::Symlink if is_ours(&stat) => {
                let to = rustix::fs::readlinkat(&link, "", vec![])?;
                Ok(rustix::fs::openat(&self.fd, to, FOLDER, Mode::empty())?)
            }
            FileType::Symlink => Err(refused("it is a symbolic link of another user")),
            _ => Err(refused("the path is not a folder")),
        }
    }

    /// Opens a folder below this one. It is created if it is missing.
    pub fn make(&self, name: &str) -> io::Result<OpenDir> {
        match self.open(name) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                match rustix::fs::mkdirat(&self.fd, name, ANY) {
                    Ok(()) | Err(Errno::EXIST) => self.open(name),
                    Err(errno) => Err(errno.into()),
                }
            }
            opened => opened,
        }
    }

    /// The names in the folder, in no order. Names that are not UTF-8 are skipped: the hub does not
    /// use them.
    pub fn names(&self) -> io::Result<Vec<String>> {
        let mut names = vec![];
        for entry in Dir::read_from(self.fd.as_fd())? {
            let entry = entry?;
            names.extend(
                entry
                    .file_name()
                    .to_str()
                    .ok()
                    .filter(|n| !matches!(*n, "." | ".."))
                    .map(str::to_owned),
            );
        }
        Ok(names)
    }

    /// The kind of file behind a name. A link of another user is followed only if it leads below
    /// `within`, a path without links.
    pub fn kind(&self, name: &str, within: Option<&Path>) -> Option<Kind> {
        let stat = rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        Some(match kind(&stat) {
            FileType::Directory => Kind::Folder,
            FileType::RegularFile => Kind::File(length(&stat)),
            FileType::Symlink => {
                let inside = || {
                    self.path
                        .join(name)
                        .canonicalize()
                        .is_ok_and(|to| within.is_some_and(|w| to.starts_with(w)))
                };
                match rustix::fs::statat(&self.fd, name, AtFlags::empty()) {
                    Ok(to)
                        if kind(&to) == FileType::RegularFile && (is_ours(&stat) || inside()) =>
                    {
                        Kind::File(length(&to))
                    }
                    _ => Kind::Link,
                }
            }
            _ => Kind::Other,
        })
    }

    /// The length of a plain file.
    pub fn length(&self, name: &str) -> Option<u64> {
        match self.kind(name, None)? {
            Kind::File(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// Time of the folder's last change in seconds. It is used only to order commits.
    pub fn changed(&self) -> i64 {
        rustix::fs::fstat(&self.fd).map_or(0, |stat| stat.st_mtime)
    }

    /// The target of a link, as stored.
    pub fn link(&self, name: &str) -> Option<String> {
        rustix::fs::readlinkat(&self.fd, name, vec![]).ok()?.into_string().ok()
    }

    /// Reads a plain file of at most `limit` bytes.
    pub fn read(&self, name: &str, limit: u64) -> io::Result<Vec<u8>> {
        let file =
            File::from(rustix::fs::openat(&self.fd, name, OFlags::RDONLY | FILE, Mode::empty())?);
        let stat = rustix::fs::fstat(&file)?;
        if kind(&stat) != FileType::RegularFile || length(&stat) > limit {
            return Err(refused("it is not a plain file, or it is too long"));
        }
        let mut bytes = vec![];
        file.take(limit).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Opens a partial download to append to it. It is created if it is missing. If the name
    /// belongs to anything but a regular file of this user with one link, that file is removed
    /// first, and `gone` receives a description of it.
    pub fn own_file(&self, name: &str, gone: &dyn Fn(&str)) -> io::Result<File> {
        let why = match rustix::fs::openat(&self.fd, name, OFlags::RDWR | FILE, Mode::empty()) {
            Ok(fd) => {
                let stat = rustix::fs::fstat(&fd)?;
                match kind(&stat) {
                    FileType::RegularFile if !is_ours(&stat) => "belongs to another user",
                    FileType::RegularFile if stat.st_nlink > 1 => "has a second name (a hard link)",
                    FileType::RegularFile => return Ok(File::from(fd)),
                    _ => "is not a plain file",
                }
            }
            Err(Errno::NOENT) => return self.create(name),
            Err(Errno::LOOP) => "is a symbolic link",
            Err(Errno::ACCESS) => "is a file without write permission",
            Err(Errno::NXIO) => "is not a plain file",
            Err(errno) => return Err(errno.into()),
        };
        self.remove(name)?;
        gone(why);
        self.create(name)
    }

    /// Creates a file. The name must not exist.
    fn create(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | FILE;
        Ok(File::from(rustix::fs::openat(&self.fd, name, flags, ANY_FILE)?))
    }

    /// Opens a lock file of any user, and creates it if it is missing.
    pub fn lock_file(&self, name: &str) -> io::Result<File> {
        let fd = rustix::fs::openat(&self.fd, name, OFlags::RDWR | OFlags::CREATE | FILE, ANY_FILE);
        let fd = fd.map_err(|errno| {
            if errno == Errno::LOOP { refused("it is a symbolic link") } else { errno.into() }
        })?;
        match kind(&rustix::fs::fstat(&fd)?) {
            FileType::RegularFile => Ok(File::from(fd)),
            _ => Err(refused("it is not a plain file")),
        }
    }

    /// Whether the name still refers to this open file.
    pub fn is_named(&self, name: &str, file: &File) -> bool {
        let by_name = rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW);
        matches!((by_name, rustix::fs::fstat(file)), (Ok(a), Ok(b))
            if (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino))
    }

    /// Writes a small file. A reader sees the old content or the new one.
    pub fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.replaced(name, |new| self.create(new)?.write_all(bytes))
    }

    /// Creates a link. It replaces an existing file with this name.
    pub fn make_link(&self, name: &str, to: &str) -> io::Result<()> {
        self.replaced(name, |new| Ok(rustix::fs::symlinkat(to, &self.fd, new)?))
    }

    fn replaced(&self, name: &str, make: impl Fn(&str) -> io::Result<()>) -> io::Result<()> {
        // A short name: the file's own name may already have the maximum length.
        let new = format!(".kjit-{}.new", std::process::id());
        let made = match make(&new) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                self.remove(&new).and_then(|()| make(&new))
            }
            made => made,
        };
        made.and_then(|()| self.rename(&new, name))
    }

    /// Renames a file in this folder. It replaces an existing file with the new name.
    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.fd, from, &self.fd, to)?)
    }

    /// Removes a file or a link. The link's target stays.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        match rustix::fs::unlinkat(&self.fd, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Removes a folder if it is empty.
    pub fn remove_empty(&self, name: &str) {
        let _ = rustix::fs::unlinkat(&self.fd, name, AtFlags::REMOVEDIR);
    }

    /// Removes a file or a folder with its content, up to this depth. Links are not followed.
    pub fn remove_all(&self, name: &str, depth: usize) -> io::Result<()> {
        let stat = match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(()),
            stat => stat?,
        };
        if kind(&stat) != FileType::Directory {
            return self.remove(name);
        }
        let Some(left) = depth.checked_sub(1) else {
            return Err(refused("its folders are nested too deeply"));
        };
        let below = self.open(name)?;
        for name in below.names()? {
            below.remove_all(&name, left)?;
        }
        self.remove_empty(name);
        Ok(())
    }

    /// Free bytes of the file system for this user. `None` if unknown.
    pub fn free(&self) -> Option<u64> {
        let disk = rustix::fs::fstatvfs(&self.fd).ok()?;
        Some(disk.f_bavail.saturating_mul(disk.f_frsize))
    }
}
