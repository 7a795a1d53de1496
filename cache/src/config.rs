//! Where a cache lives and how large it may grow.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::pack::PublicKey;
use crate::warning::{OnWarning, Warning};

/// Two gigabytes: 40,000 artefacts of 50 kB.
const DEFAULT_MAX_BYTES: u64 = 2 << 30;
const DEFAULT_MEMORY_BYTES: u64 = 256 << 20;
/// No entry is read or written above this size.
const DEFAULT_ENTRY_LIMIT: u64 = 1 << 30;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Home {
    User,
    Dir(PathBuf),
    Memory,
}

/// How to open a [`crate::Cache`].
#[derive(Clone)]
pub struct Config {
    pub(crate) app: String,
    pub(crate) home: Home,
    pub(crate) environment: bool,
    pub(crate) read_only: Vec<PathBuf>,
    pub(crate) max_bytes: u64,
    pub(crate) memory_bytes: u64,
    pub(crate) entry_limit: u64,
    pub(crate) signers: Vec<PublicKey>,
    pub(crate) on_warning: Option<OnWarning>,
}

impl Config {
    /// The user's cache of the program `app`: `$APP_CACHE_DIR`, else the platform's cache folder +
    /// `/app`, else memory. `$APP_PACK_PATH` (a list as in `PATH`) names packs and folders of packs
    /// that are read.
    pub fn for_app(app: &str) -> Self {
        Self {
            app: app.to_owned(),
            home: Home::User,
            environment: true,
            read_only: Vec::new(),
            max_bytes: DEFAULT_MAX_BYTES,
            memory_bytes: DEFAULT_MEMORY_BYTES,
            entry_limit: DEFAULT_ENTRY_LIMIT,
            signers: Vec::new(),
            on_warning: None,
        }
    }

    /// Keeps everything in `dir` instead. When it cannot be used, memory is; never another
    /// directory.
    #[must_use]
    pub fn dir(mut self, dir: impl AsRef<Path>) -> Self {
        self.home = Home::Dir(dir.as_ref().to_owned());
        self
    }

    /// Nothing on disk is written; read-only layers are still read.
    #[must_use]
    pub fn memory_only(mut self) -> Self {
        self.home = Home::Memory;
        self
    }

    /// Pays no heed to environment variables.
    #[must_use]
    pub fn ignore_environment(mut self) -> Self {
        self.environment = false;
        self
    }

    /// Adds a layer that is only read: a pack, a folder of packs (`*.kjitpack` for the app `kjit`),
    /// or the root of another cache. Earlier ones win. What is not there is passed over.
    #[must_use]
    pub fn read_only(mut self, path: impl AsRef<Path>) -> Self {
        self.read_only.push(path.as_ref().to_owned());
        self
    }

    /// Cap for the home directory (default 2 GiB). The least recently used entries go first.
    #[must_use]
    pub fn max_bytes(mut self, bytes: u64) -> Self {
        self.max_bytes = bytes;
        self
    }

    /// Cap for what is kept in memory because no directory takes it (default 256 MiB).
    #[must_use]
    pub fn memory_bytes(mut self, bytes: u64) -> Self {
        self.memory_bytes = bytes;
        self
    }

    /// Takes packs only when this key signed them; more than one may be given.
    #[must_use]
    pub fn signer(mut self, key: PublicKey) -> Self {
        self.signers.push(key);
        self
    }

    /// Called for each new warning, from whichever thread meets it. It must not call the cache.
    #[must_use]
    pub fn on_warning(mut self, callback: impl Fn(&Warning) + Send + Sync + 'static) -> Self {
        self.on_warning = Some(Arc::new(callback));
        self
    }

    /// `APP_SUFFIX`, as far as it may be listened to.
    fn variable(&self, suffix: &str) -> Option<std::ffi::OsString> {
        let mut name: String = self
            .app
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' })
            .collect();
        name.push_str(suffix);
        std::env::var_os(name).filter(|value| self.environment && !value.is_empty())
    }

    /// The home directory, absolute: the process may change its working directory later.
    pub(crate) fn home_dir(&self) -> Option<PathBuf> {
        let dir = match &self.home {
            Home::Memory => None,
            Home::Dir(dir) => Some(dir.clone()),
            Home::User => self.variable("_CACHE_DIR").map(PathBuf::from).or_else(|| {
                let user = directories::BaseDirs::new()?;
                Some(user.cache_dir().join(&self.app))
            }),
        }?;
        Some(std::path::absolute(&dir).unwrap_or(dir))
    }

    /// The read-only layers' paths. What the environment names was named by somebody: it is kept
    /// even when it is not there, to be reported.
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
