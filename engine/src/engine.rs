//! The engine: devices, compilers and the cache together.

use crate::arch::{Target, Vendor};
use crate::code_object::CodeObject;
use crate::compiler::discover::SearchedPath;
use crate::compiler::info::CompilerInfo;
use crate::compiler::toolchain::{Search, Toolchain, search};
use crate::compiler::worker::Workers;
use crate::config::Config;
use crate::driver::{self, Device, Inventory, Module};
use crate::error::{Error, Result};
use crate::gate::Gate;
use crate::key::Job;
use crate::lock::lock;
use kjit_cache::{Cache, Digest};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Compiles, caches and loads kernels. Cheap to clone: clones share everything. Threads can share
/// it.
#[derive(Clone)]
pub struct Engine {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub config: Config,
    pub cache: Cache,
    pub workers: Workers,
    /// Limits parallel compiles over all calls.
    pub gate: Gate,
    /// The results of the search for compilers, by vendor. The first key that needs it starts the
    /// search.
    searches: Mutex<HashMap<Vendor, Arc<Search>>>,
    /// Builds that failed. They are not repeated in this process.
    pub failed: Mutex<HashMap<Digest, Error>>,
    pub tally: CompileCounters,
}

#[derive(Default)]
pub(crate) struct CompileCounters {
    pub compiled: AtomicU64,
    pub cached: AtomicU64,
    pub failed: AtomicU64,
    pub microseconds: AtomicU64,
}

/// Counts since the engine was created.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CompileCounts {
    /// Compiled code objects.
    pub compiled: u64,
    /// Code objects found in the cache.
    pub cached: u64,
    /// Jobs that failed.
    pub failed: u64,
    /// Seconds of compiling, summed over jobs.
    pub seconds: f64,
}

/// The compiler of a target, and the reason for the choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompilerChoice {
    /// The compiler.
    pub compiler: CompilerInfo,
    /// A sentence such as `clang 19.1: hiprtc 5.2 does not know gfx1100`.
    pub reason: String,
}

/// The result of the search for a vendor's compilers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompilerReport {
    /// Usable compilers, the preferred one first.
    pub found: Vec<CompilerInfo>,
    /// All searched paths in order.
    pub tried: Vec<SearchedPath>,
    /// Files that exist but cannot be used, with the reason.
    pub unusable: Vec<String>,
}

impl Engine {
    /// Creates an engine. It opens no library and never fails: missing libraries are reported when
    /// they are needed.
    #[must_use]
    pub fn new(config: Config) -> Engine {
        let inner = Inner {
            cache: Cache::open(config.cache.clone()),
            workers: Workers::new(config.isolation.clone(), config.limits),
            gate: Gate::new(config.jobs),
            searches: Mutex::default(),
            failed: Mutex::default(),
            tally: CompileCounters::default(),
            config,
        };
        Engine { inner: Arc::new(inner) }
    }

    /// The cache, for its statistics, warnings and records.
    #[must_use]
    pub fn cache(&self) -> &Cache {
        &self.inner.cache
    }

    /// Counts of compiled and cached code objects so far.
    #[must_use]
    pub fn counts(&self) -> CompileCounts {
        let read = |n: &AtomicU64| n.load(Ordering::Relaxed);
        let t = &self.inner.tally;
        CompileCounts {
            compiled: read(&t.compiled),
            cached: read(&t.cached),
            failed: read(&t.failed),
            seconds: read(&t.microseconds) as f64 * 1e-6,
        }
    }

    /// The devices, the settings that hide devices, and what was not found.
    #[must_use]
    pub fn devices(&self) -> Inventory {
        self.check_drivers();
        driver::inventory()
    }

    /// Opens a device: `cuda:0`, `cuda`, or `auto` (the preferred GPU, never the CPU).
    ///
    /// # Errors
    /// [`Error::NoDevice`], [`Error::NoLibrary`] with the request, the existing devices, and
    /// settings that hide devices.
    pub fn device(&self, asked: &str) -> Result<Device> {
        self.check_drivers();
        // The caller will need kernels next, and their keys need the compiler. So the search runs
        // in parallel. (Making a context takes 110 ms, hashing a new compiler 80 ms.) If the thread
        // cannot be started, the first use searches.
        let word = asked.split(':').next().unwrap_or_default();
        if let Some(vendor) =
            [Vendor::Nvidia, Vendor::Amd].into_iter().find(|v| v.device_word() == word)
        {
            let engine = self.clone();
            let search = move || drop(engine.search(vendor));
            let _ = std::thread::Builder::new().name("kjit compiler search".into()).spawn(search);
        }
        driver::open(asked, self.inner.config.trace.clone())
    }

    /// The file of AMD's runtime: the configured file if it can be opened, or the path that the
    /// loader found.
    #[must_use]
    pub fn amd_library(&self) -> Option<std::path::PathBuf> {
        self.check_drivers();
        driver::library(Vendor::Amd)
    }

    /// The compilers for a vendor's targets.
    #[must_use]
    pub fn compilers(&self, vendor: Vendor) -> CompilerReport {
        let search = self.search(vendor);
        CompilerReport {
            found: search.found.iter().map(Toolchain::info).collect(),
            tried: search.tried.clone(),
            unusable: search.unusable.clone(),
        }
    }

    /// The compiler for a target, with the reason. The vendor's own compiler is before clang, and
    /// newer versions are before older ones. The first that supports the architecture is chosen.
    ///
    /// # Errors
    /// [`Error::Miss`] if no installed compiler supports it.
    pub fn compiler_for(&self, target: &Target) -> Result<CompilerChoice> {
        let search = self.search(target.vendor());
        let passed: Vec<String> = search
            .found
            .iter()
            .take_while(|t| !t.knows(target.id()))
            .map(Toolchain::name)
            .collect();
        let Some(chosen) = search.found.get(passed.len()) else {
            let why = search.why_not(target.vendor(), &self.inner.config.wish, target.id());
            return Err(Error::Miss {
                kernel: "(any)".to_owned(),
                target: target.to_string(),
                why,
            });
        };
        let wish = &self.inner.config.wish;
        let reason = match (&wish.kind, &wish.file) {
            (_, Some(file)) => format!("{} was requested", file.display()),
            (Some(kind), None) => format!("{kind} was requested"),
            _ if !passed.is_empty() => {
                format!("{} does not know {}", passed.join(", "), target.id())
            }
            _ if chosen.compiler.kind() == "clang" => {
                "the vendor's run-time compiler is not installed".to_owned()
            }
            _ => "the vendor's run-time compiler comes first".to_owned(),
        };
        Ok(CompilerChoice {
            compiler: chosen.info(),
            reason: format!("{}: {reason}", chosen.name()),
        })
    }

    pub(crate) fn search(&self, vendor: Vendor) -> Arc<Search> {
        self.check_drivers();
        // The lock is held during the search, so that a second thread waits for its result.
        let mut searches = lock(&self.inner.searches);
        let found = searches.entry(vendor).or_insert_with(|| {
            let driver = driver::driver_version(vendor);
            let (cache, workers) = (&self.inner.cache, &self.inner.workers);
            Arc::new(search(vendor, &self.inner.config.wish, driver, cache, workers))
        });
        Arc::clone(found)
    }

    /// Discards the search result after a compiler was replaced.
    pub(crate) fn search_again(&self, vendor: Vendor) {
        lock(&self.inner.searches).remove(&vendor);
        self.inner.workers.renew();
    }

    /// Loads a job, after compiling it or finding it in the cache.
    ///
    /// # Errors
    /// See [`Engine::compile_all`] and [`Device::load`].
    pub fn load(&self, device: &Device, job: &Job) -> Result<Module> {
        self.load_all(device, std::slice::from_ref(job)).pop().unwrap_or_else(|| Err(lost(job)))
    }

    /// Loads all jobs, after compiling them in parallel or finding them in the cache. A code object
    /// that the driver refuses is quarantined in the cache and compiled again.
    pub fn load_all(&self, device: &Device, jobs: &[Job]) -> Vec<Result<Module>> {
        let codes = self.compile_all(jobs);
        jobs.iter().zip(codes).map(|(job, code)| self.load_code(device, job, &code?)).collect()
    }

    /// Loads the code object of a job, with the retry of [`Engine::load_all`].
    ///
    /// # Errors
    /// See [`Device::load`].
    pub fn load_code(&self, device: &Device, job: &Job, code: &CodeObject) -> Result<Module> {
        let load = |code: &CodeObject| {
            let _span = self.inner.config.trace.as_ref().map(|t| t.span("load", code.name()));
            device.load(code)
        };
        match load(code) {
            Err(refused @ Error::Load { .. }) if self.distrust(code) => match self.compile(job) {
                Ok(code) => load(&code),
                // If the kernel cannot be compiled again, the error of the driver is more useful.
                Err(Error::Miss { .. } | Error::Worker { .. }) => Err(refused),
                Err(error) => Err(error),
            },
            loaded => loaded,
        }
    }

    /// Quarantines a code object's entry. Returns whether a second attempt is useful.
    fn distrust(&self, code: &CodeObject) -> bool {
        let fresh = *code.origin() == crate::code_object::Origin::Compiled;
        self.inner.cache.quarantine(code.entry().key()) == 1 && !fresh
    }
}

/// The error for a job without a result, which cannot happen.
pub(crate) fn lost(job: &Job) -> Error {
    Error::Worker {
        kernel: job.source.name().to_owned(),
        compiler: "kjit".to_owned(),
        what: "lost the job".to_owned(),
        log: None,
    }
}
