//! One folder of the cache, by handle. The cache may be shared with other users, so nothing in it
//! is trusted to be what its name says: no link of somebody else's is followed, nothing is waited
//! for that is no plain file, and what is written goes into a file of our own or into none. Every
//! step opens one name below an open folder and asks the open handle, so that what is swapped in
//! between two calls changes nothing.

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

const FOLDER: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);
/// No link is followed, no pipe waited for, no terminal taken.
const FILE: OFlags =
    OFlags::NOFOLLOW.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);
/// As far as the user's umask lets others.
const ANY: Mode = Mode::RWXU.union(Mode::RWXG).union(Mode::RWXO);
const ANY_FILE: Mode = Mode::from_raw_mode(0o666);

/// An open folder.
pub(crate) struct Place {
    fd: OwnedFd,
    /// For errors alone.
    path: PathBuf,
}

/// What bears a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Folder,
    /// A plain file of so many bytes, or a link to one that may be followed.
    File(u64),
    /// A link whose content is gone, or that leads where it should not.
    Link,
    /// A pipe, a socket, a device.
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

impl Place {
    /// The cache folder. The way there is the user's own word, links and all.
    pub fn root(path: &Path) -> io::Result<Place> {
        let fd = rustix::fs::openat(CWD, path, FOLDER, Mode::empty())?;
        Ok(Place { fd, path: path.to_owned() })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The folder of this name in this one. A link is followed if we or root made it: people lay
    /// large repositories on other disks.
    pub fn open(&self, name: &str) -> io::Result<Place> {
        let fd = match rustix::fs::openat(&self.fd, name, FOLDER | OFlags::NOFOLLOW, Mode::empty())
        {
            Err(Errno::NOTDIR | Errno::LOOP) => self.through_own_link(name)?,
            opened => opened?,
        };
        Ok(Place { fd, path: self.path.join(name) })
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
            _ => Err(refused("something that is no folder stands in its place")),
        }
    }

    /// The folder of this name in this one, made if it is not there.
    pub fn make(&self, name: &str) -> io::Result<Place> {
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

    /// The names in the folder, in no order. What is no text is nothing that the hub named.
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

    /// What bears this name. A link of somebody else's is followed as far as `within`, a path
    /// without links.
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

    /// The length of the plain file of this name.
    pub fn length(&self, name: &str) -> Option<u64> {
        match self.kind(name, None)? {
            Kind::File(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// When the folder itself last changed, in seconds: only an order follows from it.
    pub fn changed(&self) -> i64 {
        rustix::fs::fstat(&self.fd).map_or(0, |stat| stat.st_mtime)
    }

    /// Where a link leads, as it is written.
    pub fn link(&self, name: &str) -> Option<String> {
        rustix::fs::readlinkat(&self.fd, name, vec![]).ok()?.into_string().ok()
    }

    /// A plain file of at most `limit` bytes, whole.
    pub fn read(&self, name: &str, limit: u64) -> io::Result<Vec<u8>> {
        let file =
            File::from(rustix::fs::openat(&self.fd, name, OFlags::RDONLY | FILE, Mode::empty())?);
        let stat = rustix::fs::fstat(&file)?;
        if kind(&stat) != FileType::RegularFile || length(&stat) > limit {
            return Err(refused("it is no plain file, or too long for what it should be"));
        }
        let mut bytes = vec![];
        file.take(limit).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// The file of this name to be gone on with, made if it is not there. What stands there and is
    /// no plain file of our own, with this name alone, is taken away first, and `gone` is told
    /// that.
    pub fn own_file(&self, name: &str, gone: &dyn Fn(&str)) -> io::Result<File> {
        let why = match rustix::fs::openat(&self.fd, name, OFlags::RDWR | FILE, Mode::empty()) {
            Ok(fd) => {
                let stat = rustix::fs::fstat(&fd)?;
                match kind(&stat) {
                    FileType::RegularFile if !is_ours(&stat) => "is another user's file",
                    FileType::RegularFile if stat.st_nlink > 1 => "has another name besides",
                    FileType::RegularFile => return Ok(File::from(fd)),
                    _ => "is no plain file",
                }
            }
            Err(Errno::NOENT) => return self.create(name),
            Err(Errno::LOOP) => "is a symbolic link",
            Err(Errno::ACCESS) => "is a file that we may not write",
            Err(Errno::NXIO) => "is no plain file",
            Err(errno) => return Err(errno.into()),
        };
        self.remove(name)?;
        gone(why);
        self.create(name)
    }

    /// A new file.
    fn create(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | FILE;
        Ok(File::from(rustix::fs::openat(&self.fd, name, flags, ANY_FILE)?))
    }

    /// A file to be locked, made if it is not there, whoever made it.
    pub fn lock_file(&self, name: &str) -> io::Result<File> {
        let fd = rustix::fs::openat(&self.fd, name, OFlags::RDWR | OFlags::CREATE | FILE, ANY_FILE);
        let fd = fd.map_err(|errno| {
            if errno == Errno::LOOP { refused("it is a symbolic link") } else { errno.into() }
        })?;
        match kind(&rustix::fs::fstat(&fd)?) {
            FileType::RegularFile => Ok(File::from(fd)),
            _ => Err(refused("it is no plain file")),
        }
    }

    /// Whether the name still is this open file's.
    pub fn is_named(&self, name: &str, file: &File) -> bool {
        let by_name = rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW);
        matches!((by_name, rustix::fs::fstat(file)), (Ok(a), Ok(b)) if (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino))
    }

    /// Writes a small file: a reader sees the old one or the new one.
    pub fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.replaced(name, |new| self.create(new)?.write_all(bytes))
    }

    /// Makes a link that leads there, in place of what was there.
    pub fn make_link(&self, name: &str, to: &str) -> io::Result<()> {
        self.replaced(name, |new| Ok(rustix::fs::symlinkat(to, &self.fd, new)?))
    }

    fn replaced(&self, name: &str, make: impl Fn(&str) -> io::Result<()>) -> io::Result<()> {
        // Short: a file's name may be as long as a name can be.
        let new = format!(".kjit-{}.new", std::process::id());
        let made = match make(&new) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                self.remove(&new).and_then(|()| make(&new))
            }
            made => made,
        };
        made.and_then(|()| self.rename(&new, name))
    }

    /// Gives the file another name in this folder, in place of what had it.
    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.fd, from, &self.fd, to)?)
    }

    /// Removes a name that is no folder; a link itself, not where it leads.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        match rustix::fs::unlinkat(&self.fd, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Removes a folder, if nothing is in it.
    pub fn remove_empty(&self, name: &str) {
        let _ = rustix::fs::unlinkat(&self.fd, name, AtFlags::REMOVEDIR);
    }

    /// Removes whatever bears the name, with what is in it, so many levels deep. No link is
    /// followed.
    pub fn remove_all(&self, name: &str, depth: usize) -> io::Result<()> {
        let stat = match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(()),
            stat => stat?,
        };
        if kind(&stat) != FileType::Directory {
            return self.remove(name);
        }
        let Some(left) = depth.checked_sub(1) else {
            return Err(refused("folders in it are too deep"));
        };
        let below = self.open(name)?;
        for name in below.names()? {
            below.remove_all(&name, left)?;
        }
        self.remove_empty(name);
        Ok(())
    }

    /// Bytes that the disk has free for us; none where it does not say.
    pub fn free(&self) -> Option<u64> {
        let disk = rustix::fs::fstatvfs(&self.fd).ok()?;
        Some(disk.f_bavail.saturating_mul(disk.f_frsize))
    }
}
