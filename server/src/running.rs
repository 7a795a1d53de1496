//! The running servers of a user, for `kjit ps`. Each server has a Unix socket in a folder that
//! only its user may write to, and sends one JSON document to each program that connects.
//!
//! Connecting needs no API key and no certificate: the owner of the folder is the check. If a
//! connection is refused, the server is dead, even if another process has its process number now.

use crate::service::Service;
use crate::status::state;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags};
use serde_json::{Value, json};
use std::fmt;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;
use tokio::net::UnixListener;
use tokio::task::JoinHandle;

/// Suffix of a socket's name. The part before it is the process id.
const SOCKET: &str = ".sock";
/// Maximum number of servers with the same process id: containers may share the folder.
const SAME_NUMBER: u32 = 16;
/// Maximum number of sockets that are read.
const MAX_SOCKETS: usize = 64;
/// Maximum bytes of a document. A model takes about 150.
const DOCUMENT: u64 = 1 << 20;
/// Time for a program to take the document.
const WRITE: Duration = Duration::from_secs(2);

/// A folder of sockets. It is checked before use and then accessed only by its handle.
struct Folder(OwnedFd);

impl Folder {
    /// Opens the folder. The last part of the path must not be a link. The folder must belong to
    /// the user, and no other user may write to it.
    fn open(path: &Path) -> io::Result<Folder> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = rustix::fs::openat(CWD, path, flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&folder)?;
        let refused = |why| Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        if stat.st_uid != rustix::process::geteuid().as_raw() {
            return refused("it belongs to another user");
        }
        if Mode::from_raw_mode(stat.st_mode).intersects(Mode::WGRP | Mode::WOTH) {
            return refused("others may write to it");
        }
        Ok(Folder(folder))
    }

    /// Opens the folder. If it is missing, it is created with access for its owner only.
    fn create(path: &Path) -> io::Result<Folder> {
        match Folder::open(path) {
            Err(why) if why.kind() == io::ErrorKind::NotFound => {
                std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
                Folder::open(path)
            }
            opened => opened,
        }
    }

    /// A path to a name in this folder, through its handle. It fits into a socket address (108
    /// bytes), even if the path of the folder is long.
    fn path(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/{name}", self.0.as_raw_fd()))
    }

    fn remove(&self, name: &str) {
        let _ = rustix::fs::unlinkat(&self.0, name, AtFlags::empty());
    }

    /// Names of the sockets.
    fn names(&self) -> io::Result<Vec<String>> {
        let mut names = vec![];
        for entry in Dir::read_from(&self.0)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy();
            let kind = entry.file_type();
            if name.ends_with(SOCKET) && matches!(kind, FileType::Socket | FileType::Unknown) {
                names.push(name.into_owned());
            }
        }
        names.sort();
        names.truncate(MAX_SOCKETS);
        Ok(names)
    }
}

/// The socket of a server. It is removed when this is dropped.
pub struct SocketRegistration {
    folder: Folder,
    name: String,
    answers: JoinHandle<()>,
}

impl SocketRegistration {
    /// Creates the socket in the first of these folders that can be used.
    ///
    /// # Errors
    /// No folder can be used. The error is about the last one.
    pub fn begin(
        folders: &[PathBuf],
        service: &Arc<Service>,
        address: &impl fmt::Display,
    ) -> Result<Option<SocketRegistration>, String> {
        let mut failed = Ok(None);
        for path in folders {
            match SocketRegistration::within(path, service, &address.to_string()) {
                Ok(listed) => return Ok(Some(listed)),
                Err(why) => failed = Err(format!("{}: {why}", path.display())),
            }
        }
        failed
    }

    fn within(
        path: &Path,
        service: &Arc<Service>,
        address: &str,
    ) -> io::Result<SocketRegistration> {
        let folder = Folder::create(path)?;
        let process = std::process::id();
        let begun = format!("{process}.begun");
        folder.remove(&begun);
        let listener = UnixListener::bind(folder.path(&begun))?;
        rustix::fs::chmodat(&folder.0, begun.as_str(), Mode::RUSR | Mode::WUSR, AtFlags::empty())?;
        // The name is created last. So every named socket of a living server answers, and one that
        // refuses belongs to a dead server.
        let name = (0..SAME_NUMBER)
            .map(|n| match n {
                0 => format!("{process}{SOCKET}"),
                n => format!("{process}-{n}{SOCKET}"),
            })
            .find(|name| UnixStream::connect(folder.path(name)).is_err());
        let Some(name) = name else {
            folder.remove(&begun);
            return Err(io::ErrorKind::AddrInUse.into());
        };
        rustix::fs::renameat(&folder.0, begun.as_str(), &folder.0, name.as_str())?;
        let answers = tokio::spawn(answer(listener, Arc::clone(service), address.to_owned()));
        Ok(SocketRegistration { folder, name, answers })
    }
}

impl Drop for SocketRegistration {
    fn drop(&mut self) {
        self.answers.abort();
        self.folder.remove(&self.name);
    }
}

async fn answer(listener: UnixListener, service: Arc<Service>, address: String) {
    loop {
        match listener.accept().await {
            Ok((mut stream, _)) => {
                let document = document(&service, &address).to_string();
                let _ = tokio::time::timeout(WRITE, stream.write_all(document.as_bytes())).await;
            }
            // No file descriptor is left.
            Err(_) => tokio::time::sleep(Duration::from_secs(1)).await,
        }
    }
}

fn document(service: &Service, address: &str) -> Value {
    let models: Vec<Value> = service
        .all()
        .map(|(served, seen)| {
            let status = seen.loaded.as_ref().map(|loaded| loaded.scheduler.status());
            let (running, waiting) = status.as_ref().map_or((0, 0), |s| (s.running, s.waiting));
            json!({
                "name": served.name(),
                "state": state(&seen, status.as_ref()),
                "device": seen.loaded.as_ref().map(|loaded| loaded.device.label.clone()),
                "running": running,
                "waiting": waiting + seen.counts.waiting,
            })
        })
        .collect();
    json!({
        "pid": std::process::id(),
        "address": address,
        "version": env!("CARGO_PKG_VERSION"),
        "up_s": service.started.elapsed().as_secs_f64(),
        "stopping": service.stopping(),
        "models": models,
    })
}

/// A server that has a socket.
#[derive(Debug)]
pub struct Running {
    /// The process id, from the name of the socket.
    pub process: Option<u32>,
    /// The document of the server, or the error.
    ///
    /// `{"pid", "address", "version", "up_s", "stopping", "models": [{"name", "state", "device",
    /// "running", "waiting"}]}`
    pub said: Result<Value, String>,
}

/// The servers that have sockets in this folder. All are queried simultaneously, for at most
/// `patience`. Sockets of dead servers are removed. A missing folder has no servers.
///
/// # Errors
/// The folder cannot be read, or other users may write to it.
pub fn running(folder: &Path, patience: Duration) -> io::Result<Vec<Running>> {
    let folder = match Folder::open(folder) {
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
        opened => opened?,
    };
    let names = folder.names()?;
    let ask = |name: &String| match said(&folder.path(name), patience) {
        Err(why) if why.kind() == io::ErrorKind::ConnectionRefused => {
            folder.remove(name);
            None
        }
        // The server ended after the folder was read.
        Err(why) if why.kind() == io::ErrorKind::NotFound => None,
        said => {
            let number = name.split(['-', '.']).next().and_then(|number| number.parse().ok());
            Some(Running { process: number, said: said.map_err(|why| why.to_string()) })
        }
    };
    Ok(std::thread::scope(|scope| {
        let asked: Vec<_> = names.iter().map(|name| scope.spawn(|| ask(name))).collect();
        asked.into_iter().filter_map(|asked| asked.join().ok().flatten()).collect()
    }))
}

/// Reads the document of a server.
fn said(socket: &Path, patience: Duration) -> io::Result<Value> {
    let until = Instant::now() + patience;
    let mut stream = UnixStream::connect(socket)?;
    let (mut text, mut some) = (vec![], [0; 4096]);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let late = || {
            let seconds = patience.as_secs_f64();
            io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {seconds} s"))
        };
        if left.is_zero() {
            return Err(late());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut some) {
            Ok(0) => break,
            Ok(n) => text.extend_from_slice(some.get(..n).unwrap_or_default()),
            Err(why) if why.kind() == io::ErrorKind::WouldBlock => return Err(late()),
            Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
            Err(why) => return Err(why),
        }
        if text.len() as u64 > DOCUMENT {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "its answer is too long"));
        }
    }
    Ok(serde_json::from_slice(&text)?)
}

#[cfg(test)]
mod tests {
    use super::{Folder, running};
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;
    use std::time::Duration;

    fn folder(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("kjit-running-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        path
    }

    #[test]
    fn symlinked_or_shared_folder_is_refused() {
        let path = folder("trust");
        assert!(running(&path, Duration::ZERO).unwrap().is_empty());
        Folder::create(&path).unwrap();
        let mode = |path: &PathBuf| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o700);
        for bad in [0o720, 0o702] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(bad)).unwrap();
            let why = running(&path, Duration::ZERO).unwrap_err();
            assert_eq!(why.to_string(), "others may write to it", "{bad:o}");
        }
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
        let link = folder("link");
        symlink(&path, &link).unwrap();
        assert!(Folder::create(&link).is_err());
        std::fs::remove_file(link).unwrap();
        std::fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn dead_socket_is_removed_and_silent_one_times_out() {
        let path = folder("dead");
        Folder::create(&path).unwrap();
        drop(UnixListener::bind(path.join("7.sock")).unwrap());
        let silent = UnixListener::bind(path.join("8.sock")).unwrap();
        std::fs::write(path.join("9.sock"), "no socket").unwrap();
        let begun = std::time::Instant::now();
        let found = running(&path, Duration::from_millis(300)).unwrap();
        assert!(begun.elapsed() < Duration::from_secs(30));
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].process, Some(8));
        assert_eq!(found[0].said.as_ref().unwrap_err(), "no answer within 0.3 s");
        assert!(!path.join("7.sock").exists() && path.join("9.sock").exists());
        drop(silent);
        std::fs::remove_dir_all(path).unwrap();
    }
}
