//! How an engine is set up.

use crate::compiler::toolchain::Wish;
use crate::compiler::worker::{Isolation, Limits};
use crate::trace::Trace;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where system packages put packs.
const SYSTEM_PACKS: &str = "/usr/share/kjit/packs";

/// How to set up an [`crate::Engine`].
///
/// ```
/// use kjit_engine::{Config, Engine};
/// let engine = Engine::new(Config::new().no_cache().jobs(2));
/// assert_eq!(engine.counts().compiled, 0);
/// ```
#[derive(Clone)]
pub struct Config {
    pub(crate) cache: kjit_cache::Config,
    pub(crate) wish: Wish,
    pub(crate) jobs: usize,
    pub(crate) isolation: Isolation,
    pub(crate) limits: Limits,
    pub(crate) discovery: Duration,
    pub(crate) trace: Option<Trace>,
    pub(crate) prove_all: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config::new()
    }
}

impl Config {
    /// The user's cache, any compiler, one job a core as far as memory allows, 300 s a compile and
    /// as many addresses as there is memory (4 to 16 GiB).
    #[must_use]
    pub fn new() -> Config {
        Config {
            cache: kjit_cache::Config::for_app("kjit").read_only(SYSTEM_PACKS),
            wish: Wish::default(),
            jobs: default_jobs(),
            isolation: Isolation::default(),
            limits: Limits { timeout: Duration::from_secs(300), memory: default_memory() },
            discovery: Duration::from_secs(20),
            trace: None,
            prove_all: false,
        }
    }

    /// With this cache.
    #[must_use]
    pub fn cache(mut self, cache: kjit_cache::Config) -> Config {
        self.cache = cache;
        self
    }

    /// With the cache in this directory.
    #[must_use]
    pub fn cache_dir(mut self, dir: impl AsRef<Path>) -> Config {
        self.cache = self.cache.dir(dir);
        self
    }

    /// Keeping code objects in memory only. Packs are still read.
    #[must_use]
    pub fn no_cache(mut self) -> Config {
        self.cache = self.cache.memory_only();
        self
    }

    /// With this compiler library or executable and no other.
    #[must_use]
    pub fn compiler_path(mut self, file: impl Into<PathBuf>) -> Config {
        self.wish.file = Some(file.into());
        self
    }

    /// With compilers of this kind only: `nvrtc`, `hiprtc`, `clang`.
    #[must_use]
    pub fn compiler_kind(mut self, kind: impl Into<String>) -> Config {
        self.wish.kind = Some(kind.into());
        self
    }

    /// So many compiles at once, at least one.
    #[must_use]
    pub fn jobs(mut self, jobs: usize) -> Config {
        self.jobs = jobs.max(1);
        self
    }

    /// Where compilers run.
    #[must_use]
    pub fn isolation(mut self, isolation: Isolation) -> Config {
        self.isolation = isolation;
        self
    }

    /// A compile that takes longer is an error. Not in force with [`Isolation::InProcess`].
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Config {
        self.limits.timeout = timeout;
        self
    }

    /// A driver that takes longer to say what devices there are is taken for one that hangs. It is
    /// asked in a process of its own the first time after the machine was started; not with
    /// [`Isolation::InProcess`].
    #[must_use]
    pub fn discovery_limit(mut self, limit: Duration) -> Config {
        self.discovery = limit;
        self
    }

    /// Address space of a compiler process in bytes, 0 for no limit. Not in force with
    /// [`Isolation::InProcess`].
    #[must_use]
    pub fn memory_limit(mut self, bytes: u64) -> Config {
        self.limits.memory = bytes;
        self
    }

    /// Verdicts are wanted of every vendor's devices, not only of AMD's
    /// ([`crate::Engine::proves`]).
    #[must_use]
    pub fn prove_all(mut self) -> Config {
        self.prove_all = true;
        self
    }

    /// Feeds a trace with compiles and loads.
    #[must_use]
    pub fn trace(mut self, trace: Trace) -> Config {
        self.trace = Some(trace);
        self
    }
}

/// A job a core, as long as each has 512 MiB: nvrtc and hiprtc stay below that for kernels of our
/// size.
fn default_jobs() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let room = available_memory()
        .map_or(cores, |bytes| usize::try_from(bytes / (512 << 20)).unwrap_or(cores));
    cores.min(room).max(1)
}

/// What a compiler that allocates without end gets: no more than is free, or the whole machine
/// would suffer. The least is what run-time compilers map before they do anything.
fn default_memory() -> u64 {
    available_memory().unwrap_or(u64::MAX).clamp(4 << 30, 16 << 30)
}

/// Bytes of memory the system says it can give.
fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}
