//! Configuration: the directories of a cache and its size limits.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::pack::PublicKey;
use crate::remote::RemotePacks;
use crate::warning::{OnWarning, Warning};

/// Two gigabytes: 40,000 artefacts of 50 kB.
const DEFAULT_MAX_BYTES: u64 = 2 << 30;
const DEFAULT_MEMORY_BYTES: u64 = 256 << 20;
/// Maximum size of an entry for reading and writing.
const DEFAULT_ENTRY_LIMIT: u64 = 1 << 30;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HomeDir {
    User,
    Dir(PathBuf),
    Memory,
}

/// Configuration of a [`crate::Cache`].
#[derive(Clone)]
pub struct Config {
    pub(crate) app: String,
    pub(crate) home: HomeDir,
    pub(crate) environment: bool,
    pub(crate) read_only: Vec<PathBuf>,
    pub(crate) max_bytes: u64,
    pub(crate) memory_bytes: u64,
    pub(crate) entry_limit: u64,
    pub(crate) signers: Vec<PublicKey>,
    pub(crate) on_warning: Option<OnWarning>,
    pub(crate) remote: Option<RemotePacks>,
}

impl Config {
    /// The user's cache of the program `app`: `$APP_CACHE_DIR`, or if unset `/app` in the
    /// platform's cache folder, or memory. `$APP_PACK_PATH` (a list like `PATH`) names packs and
    /// folders of packs for reading.
    pub fn for_app(app: &str) -> Self {
        Self {
            app: app.to_owned(),
            home: HomeDir::User,
            environment: true,
            read_only: Vec::new(),
            max_bytes: DEFAULT_MAX_BYTES,
            memory_bytes: DEFAULT_MEMORY_BYTES,
            entry_limit: DEFAULT_ENTRY_LIMIT,
            signers: Vec::new(),
            on_warning: None,
            remote: None,
        }
    }

    /// Sets the home directory. If it cannot be used, memory is used, never another directory.
    #[must_use]
    pub fn dir(mut self, dir: impl AsRef<Path>) -> Self {
        self.home = HomeDir::Dir(dir.as_ref().to_owned());
        self
    }

    /// Writes nothing to disk; read-only layers are still read.
    #[must_use]
    pub fn memory_only(mut self) -> Self {
        self.home = HomeDir::Memory;
        self
    }

    /// Ignores environment variables.
    #[must_use]
    pub fn ignore_environment(mut self) -> Self {
        self.environment = false;
        self
    }

    /// Adds a read-only layer: a pack, a folder of packs (`*.kjitpack` for the app `kjit`), or the
    /// root of another cache. Earlier layers have priority. A missing path is ignored.
    #[must_use]
    pub fn read_only(mut self, path: impl AsRef<Path>) -> Self {
        self.read_only.push(path.as_ref().to_owned());
        self
    }

    /// Size limit of the home directory (default 2 GiB). The least recently used entries are
    /// evicted first.
    #[must_use]
    pub fn max_bytes(mut self, bytes: u64) -> Self {
        self.max_bytes = bytes;
        self
    }

    /// Size limit of entries in memory, which could not be written to a directory (default 256
    /// MiB).
    #[must_use]
    pub fn memory_bytes(mut self, bytes: u64) -> Self {
        self.memory_bytes = bytes;
        self
    }

    /// Accepts only packs that are signed by this key. Several keys may be set.
    #[must_use]
    pub fn signer(mut self, key: PublicKey) -> Self {
        self.signers.push(key);
        self
    }

    /// Sets a callback for new warnings. The thread that causes a warning calls it. It must not
    /// call the cache.
    #[must_use]
    pub fn on_warning(mut self, callback: impl Fn(&Warning) + Send + Sync + 'static) -> Self {
        self.on_warning = Some(Arc::new(callback));
        self
    }

    /// Requests entries that no layer has from a server. Entries from it are stored in the home
    /// directory.
    #[must_use]
    pub fn remote(mut self, remote: RemotePacks) -> Self {
        self.remote = Some(remote);
        self
    }

    /// The variable `APP_SUFFIX`, unless the environment is ignored.
    fn variable(&self, suffix: &str) -> Option<std::ffi::OsString> {
        let mut name: String = self
            .app
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' })
            .collect();
        name.push_str(suffix);
        std::env::var_os(name).filter(|value| self.environment && !value.is_empty())
    }

    /// The home directory as an absolute path, because the process may change its working directory
    /// later.
    pub(crate) fn home_dir(&self) -> Option<PathBuf> {
        let dir = match &self.home {
            HomeDir::Memory => None,
            HomeDir::Dir(dir) => Some(dir.clone()),
            HomeDir::User => self.variable("_CACHE_DIR").map(PathBuf::from).or_else(|| {
                let user = directories::BaseDirs::new()?;
                Some(user.cache_dir().join(&self.app))
            }),
        }?;
        Some(std::path::absolute(&dir).unwrap_or(dir))
    }

    /// The paths of read-only layers. A missing path from the environment is recorded, so that it
    /// is reported.
    pub(crate) fn read_only_paths(&self) -> Vec<PathBuf> {
        let named = self.variable("_PACK_PATH");
        let named = named
            .iter()
            .flat_map(std::env::split_paths)
            .filter(|path| !path.as_os_str().is_empty());
        let paths = named.chain(self.read_only.iter().filter(|path| path.exists()).cloned());
        paths.map(|path| std::path::absolute(&path).unwrap_or(path)).collect()
    }
}
