//! The configuration of an engine.

use crate::compiler::toolchain::CompilerFilter;
use crate::compiler::worker::{Isolation, Limits};
use crate::trace::Trace;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The folder for packs of system packages.
const SYSTEM_PACKS: &str = "/usr/share/kjit/packs";

/// The configuration of an [`crate::Engine`].
///
/// ```
/// use kjit_engine::{Config, Engine};
/// let engine = Engine::new(Config::new().no_cache().jobs(2));
/// assert_eq!(engine.counts().compiled, 0);
/// ```
#[derive(Clone)]
pub struct Config {
    pub(crate) cache: kjit_cache::Config,
    pub(crate) wish: CompilerFilter,
    pub(crate) jobs: usize,
    pub(crate) isolation: Isolation,
    pub(crate) limits: Limits,
    pub(crate) discovery: Duration,
    pub(crate) trace: Option<Trace>,
    pub(crate) prove_all: bool,
    pub(crate) trial: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config::new()
    }
}

impl Config {
    /// The default: the cache of the user, any compiler, one job per core if memory suffices, a
    /// limit of 300 s per compile, and an address space of the available memory (4 to 16 GiB).
    #[must_use]
    pub fn new() -> Config {
        Config {
            cache: kjit_cache::Config::for_app("kjit").read_only(SYSTEM_PACKS),
            wish: CompilerFilter::default(),
            jobs: default_jobs(),
            isolation: Isolation::default(),
            limits: Limits { timeout: Duration::from_secs(300), memory: default_memory() },
            discovery: Duration::from_secs(20),
            trace: None,
            prove_all: false,
            trial: true,
        }
    }

    /// Sets the cache.
    #[must_use]
    pub fn cache(mut self, cache: kjit_cache::Config) -> Config {
        self.cache = cache;
        self
    }

    /// Sets the folder of the cache.
    #[must_use]
    pub fn cache_dir(mut self, dir: impl AsRef<Path>) -> Config {
        self.cache = self.cache.dir(dir);
        self
    }

    /// Stores code objects in memory only. Packs are still read.
    #[must_use]
    pub fn no_cache(mut self) -> Config {
        self.cache = self.cache.memory_only();
        self
    }

    /// Uses only this compiler library or executable.
    #[must_use]
    pub fn compiler_path(mut self, file: impl Into<PathBuf>) -> Config {
        self.wish.file = Some(file.into());
        self
    }

    /// Uses only compilers of this kind: `nvrtc`, `hiprtc`, `clang`.
    #[must_use]
    pub fn compiler_kind(mut self, kind: impl Into<String>) -> Config {
        self.wish.kind = Some(kind.into());
        self
    }

    /// Sets the number of parallel compiles, at least one.
    #[must_use]
    pub fn jobs(mut self, jobs: usize) -> Config {
        self.jobs = jobs.max(1);
        self
    }

    /// Sets where compilers run.
    #[must_use]
    pub fn isolation(mut self, isolation: Isolation) -> Config {
        self.isolation = isolation;
        self
    }

    /// Sets the time limit of a compile. It is ignored with [`Isolation::InProcess`].
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Config {
        self.limits.timeout = timeout;
        self
    }

    /// Sets the time limit of the driver's device discovery; a slower driver is treated as hanging.
    /// The first discovery after boot runs in a separate process, except with
    /// [`Isolation::InProcess`].
    #[must_use]
    pub fn discovery_limit(mut self, limit: Duration) -> Config {
        self.discovery = limit;
        self
    }

    /// Sets the maximum address space of a compiler process in bytes; 0: no limit. It is ignored
    /// with [`Isolation::InProcess`].
    #[must_use]
    pub fn memory_limit(mut self, bytes: u64) -> Config {
        self.limits.memory = bytes;
        self
    }

    /// Requires verdicts for devices of all vendors, not only of AMD ([`crate::Engine::proves`]).
    #[must_use]
    pub fn prove_all(mut self) -> Config {
        self.prove_all = true;
        self
    }

    /// Disables the trial of forms ([`crate::Engine::tries_forms`]): tokens run as captured graphs.
    #[must_use]
    pub fn without_trial(mut self) -> Config {
        self.trial = false;
        self
    }

    /// Records compiles and loads in a trace.
    #[must_use]
    pub fn trace(mut self, trace: Trace) -> Config {
        self.trace = Some(trace);
        self
    }
}

/// One job per core as long as each has 512 MiB: nvrtc and hiprtc need less for kernels of this
/// size.
fn default_jobs() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let room = available_memory()
        .map_or(cores, |bytes| usize::try_from(bytes / (512 << 20)).unwrap_or(cores));
    cores.min(room).max(1)
}

/// The limit for a compiler that allocates without end. It is the available memory, to protect the
/// rest of the machine. The minimum is the address space that run-time compilers map at startup.
fn default_memory() -> u64 {
    available_memory().unwrap_or(u64::MAX).clamp(4 << 30, 16 << 30)
}

/// Available memory in bytes, as the system reports it.
fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}
