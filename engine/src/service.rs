//! The compile service. It looks jobs up in the cache, compiles missing ones in parallel (each
//! distinct key once), and caches the results.

use crate::code_object::{CodeObject, Inner as CodeInner, Origin, inspect};
use crate::compiler::child;
use crate::compiler::compiled::Compiled;
use crate::compiler::protocol::{ChildRequest, ChildResponse, Request};
use crate::compiler::toolchain::Toolchain;
use crate::compiler::worker::{keep_log, kept_folder, path_text};
use crate::driver;
use crate::engine::{Engine, lost};
use crate::error::{CompileFailure, Error, Result};
use crate::gate::{CompileBatch, Urgency};
use crate::key::{Job, build_key};
use crate::lock::lock;
use kjit_cache::{Artefact, BuildKey, Found, Key, Scope};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Called with the index of a finished job, from the thread that finished it.
pub type OnDone<'a> = &'a (dyn Fn(usize, &Result<CodeObject>) + Sync);

/// Options of a request.
pub(crate) struct CompileOptions<'a> {
    pub urgency: Urgency,
    /// If this is set to true, no further jobs are started.
    pub stop: Option<&'a AtomicBool>,
    /// Ignores code of other compilers in packs.
    pub own: bool,
}

/// Initial number of kernels per lane. A lane is a process that opens a compiler. Processes that
/// start at the same time slow each other down: on 16 cores the first kernel took 40 ms in one
/// process, 80 ms in each of 4, 260 ms in each of 16; any further kernel took 25 ms (with nvrtc's
/// own cache enabled, so mostly startup). 30 such kernels took 0.36 s on 8 lanes and 0.46 s on 16.
const PER_LANE: usize = 3;
/// Kernels that remain after this time are slow (nvrtc without its cache takes 50 to 900 ms). Then
/// all lanes start.
const RAMP: Duration = Duration::from_millis(80);

/// A job with its keys and compiler.
struct Prepared {
    source: Key,
    compile_id: String,
    made_by: Option<(Toolchain, BuildKey, Vec<String>)>,
}

impl Engine {
    /// Compiles a job, or finds it in the cache.
    ///
    /// # Errors
    /// See [`Engine::compile_all`].
    pub fn compile(&self, job: &Job) -> Result<CodeObject> {
        self.compile_all(std::slice::from_ref(job)).pop().unwrap_or_else(|| Err(lost(job)))
    }

    /// Compiles all jobs, up to `jobs` in parallel, or finds them in the cache by build key. Packs
    /// are also searched by source key. Without a compiler every layer is searched by source key,
    /// and the newest build that this machine can run is used. Equal keys are compiled once, over
    /// all callers and processes. Returns one result per job, in order.
    ///
    /// Errors of a job: [`Error::Source`] and [`Error::Target`] before anything is compiled;
    /// [`Error::Compile`] with log and stored source (cached: a repeated request fails
    /// immediately); [`Error::Worker`]; [`Error::Miss`] if the job is not in the cache and cannot
    /// be compiled; [`Error::Corrupt`].
    pub fn compile_all(&self, jobs: &[Job]) -> Vec<Result<CodeObject>> {
        self.compile_each(jobs, &|_, _| {})
    }

    /// Like [`Engine::compile`], for tests of the compiler. If there is a compiler
    /// ([`Engine::compiler_for`]), only its own code is used, not code of packs. Without a compiler
    /// any code is used.
    ///
    /// # Errors
    /// See [`Engine::compile_all`].
    pub fn compile_own(&self, job: &Job) -> Result<CodeObject> {
        let asked = CompileOptions { urgency: Urgency::Now, stop: None, own: true };
        let mut results = self.compile_with_options(std::slice::from_ref(job), &asked, &|_, _| {});
        results.pop().flatten().unwrap_or_else(|| Err(lost(job)))
    }

    /// Like [`Engine::compile_all`], with a callback per finished job, for progress bars.
    pub fn compile_each(&self, jobs: &[Job], on_done: OnDone<'_>) -> Vec<Result<CodeObject>> {
        let asked = CompileOptions { urgency: Urgency::Now, stop: None, own: false };
        let results = self.compile_with_options(jobs, &asked, on_done);
        jobs.iter()
            .zip(results)
            .map(|(job, result)| result.unwrap_or_else(|| Err(lost(job))))
            .collect()
    }

    /// Like [`Engine::compile_each`], with options. The result is `None` for jobs that were not
    /// started because of a stop.
    pub(crate) fn compile_with_options(
        &self,
        jobs: &[Job],
        asked: &CompileOptions<'_>,
        on_done: OnDone<'_>,
    ) -> Vec<Option<Result<CodeObject>>> {
        let line = self.inner.gate.register(asked.urgency, jobs.len());
        let results: Vec<Mutex<Option<Result<CodeObject>>>> =
            jobs.iter().map(|_| Mutex::new(None)).collect();
        let finish = |index: usize, result: Result<CodeObject>| {
            let t = &self.inner.tally;
            match &result {
                Ok(code) if *code.origin() == Origin::Compiled => &t.compiled,
                Ok(_) => &t.cached,
                Err(_) => &t.failed,
            }
            .fetch_add(1, Ordering::Relaxed);
            on_done(index, &result);
            if let Some(slot) = results.get(index) {
                *lock(slot) = Some(result);
            }
        };
        // Cached jobs need no thread. If jobs are equal, only the first is compiled; the others
        // share its result.
        let mut open: Vec<(usize, &Job, Prepared)> = Vec::new();
        let mut same: HashMap<kjit_cache::Digest, Vec<usize>> = HashMap::new();
        for (index, job) in jobs.iter().enumerate() {
            match self
                .prepare(job)
                .and_then(|p| self.find(job, &p, asked.own).map(|code| (p, code)))
            {
                Ok((prepared, None)) => {
                    let waiting = same.entry(prepared.source.digest()).or_default();
                    waiting.push(index);
                    if waiting.len() == 1 {
                        open.push((index, job, prepared));
                        continue;
                    }
                }
                Ok((_, Some(code))) => finish(index, Ok(code)),
                Err(error) => finish(index, Err(error)),
            }
            line.skip();
        }
        // The longest jobs start first, so that other lanes are not idle while a long job runs
        // last. The time is not known in advance, but the length of the source is a good estimate.
        // For 210 kernels by nvrtc (1 : 40 between shortest and longest), 16 lanes took 29 % more
        // than the ideal in the order of the models, 2.3 % in this order, and 0.7 % in the order of
        // the true times.
        open.sort_by_cached_key(|(_, job, _)| std::cmp::Reverse(job.source.length()));
        let next = AtomicUsize::new(0);
        let work = |lane: usize| {
            while let Some((index, job, prepared)) = open.get(next.fetch_add(1, Ordering::Relaxed))
            {
                let Some(result) = self.make(job, prepared, lane, asked, &line) else { return };
                for other in same
                    .get(&prepared.source.digest())
                    .into_iter()
                    .flatten()
                    .filter(|i| *i != index)
                {
                    // The other jobs share the compiled result.
                    let shared = result
                        .clone()
                        .map(|code| code.with_origin(Origin::Cached("this process".to_owned())));
                    finish(*other, shared);
                }
                finish(*index, result);
            }
        };
        let lanes = self.inner.config.jobs.min(open.len());
        if lanes <= 1 {
            work(0);
        } else {
            let work = &work;
            std::thread::scope(|scope| {
                let first = open.len().div_ceil(PER_LANE).min(lanes);
                (0..first).for_each(|lane| drop(scope.spawn(move || work(lane))));
                let began = Instant::now();
                while first < lanes && next.load(Ordering::Relaxed) < open.len() {
                    if began.elapsed() > RAMP {
                        (first..lanes).for_each(|lane| drop(scope.spawn(move || work(lane))));
                        break;
                    }
                    std::thread::sleep(Duration::from_millis(2));
                }
            });
        }
        let answer = |slot: Mutex<Option<_>>| {
            slot.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
        };
        results.into_iter().map(answer).collect()
    }

    /// Returns the job's code object if it is in the cache. Compiles nothing.
    ///
    /// # Errors
    /// [`Error::Source`], [`Error::Target`]; [`Error::Miss`] if the job could not be compiled
    /// either.
    pub fn cached(&self, job: &Job) -> Result<Option<CodeObject>> {
        self.prepare(job).and_then(|prepared| self.find(job, &prepared, false))
    }

    fn prepare(&self, job: &Job) -> Result<Prepared> {
        let source = job.source_key()?;
        let compile_id = job.compile_id()?;
        let search = self.search(job.target.vendor());
        let made_by = search.found.iter().find(|t| t.knows(&compile_id)).map(|toolchain| {
            let arguments = toolchain.compiler.arguments(&compile_id, &job.options);
            let key = build_key(&source, toolchain.compiler.kind(), toolchain.identity, &arguments);
            (toolchain.clone(), key, arguments)
        });
        Ok(Prepared { source, compile_id, made_by })
    }

    /// Searches the layers. With `own`, it accepts only code of the installed compiler.
    fn find(&self, job: &Job, prepared: &Prepared, own: bool) -> Result<Option<CodeObject>> {
        let vendor = job.target.vendor();
        let found = match &prepared.made_by {
            Some((_, key, _)) => {
                if let Some(error) = lock(&self.inner.failed).get(&key.digest()) {
                    return Err(error.clone());
                }
                let others = || self.find_by_source(job, prepared, Scope::ReadOnly);
                self.inner.cache.get(key).or_else(|| if own { None } else { others() })
            }
            None => {
                Some(self.find_by_source(job, prepared, Scope::Everywhere).ok_or_else(|| {
                    let why = self.search(vendor).why_not(
                        vendor,
                        &self.inner.config.wish,
                        &prepared.compile_id,
                    );
                    let why = match self
                        .too_new(job, &prepared.source)
                        .or_else(|| self.packs_lack(&job.target))
                    {
                        Some(there) => format!("{there}; {why}"),
                        None => why,
                    };
                    // The message names the card instead of the compile id of this kernel, so that
                    // one cause gives one message.
                    Error::Miss {
                        kernel: job.source.name().to_owned(),
                        target: job.target.to_string(),
                        why,
                    }
                })?)
            }
        };
        let Some(found) = found else { return Ok(None) };
        match self.open(job, &found) {
            Ok(code) => Ok(Some(code)),
            // The hash was correct, so the entry was stored with this content. It is never run, and
            // compiled again if possible.
            Err(error) => {
                self.inner.cache.quarantine(found.entry.key());
                if prepared.made_by.is_some() { Ok(None) } else { Err(error) }
            }
        }
    }

    fn find_by_source(&self, job: &Job, prepared: &Prepared, scope: Scope) -> Option<Found> {
        let driver = driver::driver_version(job.target.vendor());
        self.inner.cache.find(&prepared.source, scope, |entry| satisfies(entry.needs(), driver))
    }

    /// Compiles a job, under the cache's single flight and lock. `None` if a stop came before it
    /// started.
    fn make(
        &self,
        job: &Job,
        prepared: &Prepared,
        lane: usize,
        asked: &CompileOptions<'_>,
        line: &CompileBatch<'_>,
    ) -> Option<Result<CodeObject>> {
        let stopped = || asked.stop.is_some_and(|stop| stop.load(Ordering::Relaxed));
        let _pass = line.acquire();
        if stopped() {
            return None;
        }
        let made = self.make_by(job, prepared, lane);
        let replaced = |(toolchain, ..): &(Toolchain, BuildKey, Vec<String>)| {
            self.inner.cache.file_digest(&toolchain.file).ok() != Some(toolchain.own)
        };
        if made.is_ok() || !prepared.made_by.as_ref().is_some_and(replaced) {
            return Some(made);
        }
        // The compiler was replaced during the compile: tries once more with the new one.
        self.search_again(job.target.vendor());
        Some(self.prepare(job).and_then(|prepared| match self.find(job, &prepared, asked.own)? {
            Some(code) => Ok(code),
            None => self.make_by(job, &prepared, lane),
        }))
    }

    fn make_by(&self, job: &Job, prepared: &Prepared, lane: usize) -> Result<CodeObject> {
        let Some((toolchain, key, arguments)) = &prepared.made_by else { return Err(lost(job)) };
        let deadline = self
            .inner
            .config
            .limits
            .timeout
            .saturating_mul(2)
            .saturating_add(Duration::from_secs(10));
        let made = self.inner.cache.get_or_make(key, deadline, || {
            let _span = self.inner.config.trace.as_ref().map(|t| {
                let mut span = t.span(format!("compile {lane}"), job.source.name());
                span.detail("target", prepared.compile_id.as_str());
                span.detail("constants", job.constants.to_string());
                span
            });
            self.run(job, prepared, toolchain, arguments)
        });
        match made {
            Ok(found) => self.open(job, &found),
            Err(error) => {
                if matches!(error, Error::Compile(_) | Error::Worker { .. } | Error::Corrupt { .. })
                {
                    lock(&self.inner.failed).insert(key.digest(), error.clone());
                }
                Err(error)
            }
        }
    }

    fn run(
        &self,
        job: &Job,
        prepared: &Prepared,
        toolchain: &Toolchain,
        arguments: &[String],
    ) -> Result<Artefact> {
        let reached = job.source.reached()?;
        let request = Request {
            file: job.source.main_file().to_owned(),
            source: job.source.render(&job.constants, &job.options),
            headers: reached.into_iter().map(|(n, t)| (n.to_owned(), t.to_owned())).collect(),
            arguments: arguments.to_vec(),
        };
        let kind = toolchain.compiler.kind().to_owned();
        let ask = ChildRequest::Compile { kind, file: path_text(&toolchain.file)?, request };
        let began = Instant::now();
        let name = job.source.name();
        let (answer, printed) = self.inner.workers.ask(name, &toolchain.name(), &ask)?;
        let took = began.elapsed();
        self.inner
            .tally
            .microseconds
            .fetch_add(u64::try_from(took.as_micros()).unwrap_or(0), Ordering::Relaxed);
        let broken = |why: String| Error::Worker {
            kernel: name.to_owned(),
            compiler: toolchain.name(),
            what: format!("failed: {why}"),
            log: keep_log(name, &printed),
        };
        let (code, log) = match answer {
            ChildResponse::Compiled(Compiled::Code { code, log }) => (code, log),
            ChildResponse::Compiled(Compiled::Refused { log }) => {
                let log = if printed.trim().is_empty() { log } else { format!("{log}\n{printed}") };
                return Err(self.refused(job, prepared, toolchain, &ask, log));
            }
            ChildResponse::Compiled(Compiled::Broken { why }) => return Err(broken(why)),
            ChildResponse::Probe(_) => {
                return Err(broken("sent the wrong type of answer".to_owned()));
            }
        };
        // If the library was replaced since its digest was computed, the key would be wrong.
        if self.inner.cache.file_digest(&toolchain.file).ok() != Some(toolchain.own) {
            return Err(broken(format!(
                "{} was replaced during the compile; run again",
                toolchain.file.display()
            )));
        }
        let kernels = inspect(name, &code)?;
        missing_entry(job, &kernels)?;
        let mut artefact = Artefact::new(code)
            .meta("kernel", name)
            .meta("arch", prepared.compile_id.as_str())
            .meta("wave", job.options.wave.to_string())
            .meta("compiler", toolchain.name())
            .meta("constants", job.constants.to_string())
            .meta("seconds", format!("{:.3}", took.as_secs_f64()));
        for (kernel, count) in toolchain.compiler.spills(&log) {
            artefact = artefact.meta(format!("spills.{kernel}"), count.to_string());
        }
        for (need, value) in toolchain.compiler.needs(toolchain.probe.version) {
            artefact = artefact.need(need, value);
        }
        Ok(artefact)
    }

    /// The error for a source with errors. A folder has everything that is needed to reproduce it.
    fn refused(
        &self,
        job: &Job,
        prepared: &Prepared,
        toolchain: &Toolchain,
        ask: &ChildRequest,
        log: String,
    ) -> Error {
        let arguments = match ask {
            ChildRequest::Compile { request, .. } => request.arguments.clone(),
            ChildRequest::Probe { .. } => Vec::new(),
        };
        let constants = job.constants.to_string();
        let program = self.inner.workers.program().unwrap_or_else(|_| "kjit-cc".into());
        let kept = keep(job, toolchain, ask, &program, &log).ok();
        Error::Compile(Arc::new(CompileFailure {
            kernel: job.source.name().to_owned(),
            target: prepared.compile_id.clone(),
            compiler: toolchain.name(),
            constants,
            arguments,
            log,
            kept,
        }))
    }

    /// The code object of a verified entry.
    fn open(&self, job: &Job, found: &Found) -> Result<CodeObject> {
        let entry = &found.entry;
        let mut kernels = inspect(job.source.name(), entry.payload())?;
        missing_entry(job, &kernels)?;
        let meta = |key: &str| entry.meta().get(key).map(String::as_str).unwrap_or_default();
        for kernel in &mut kernels {
            if kernel.spills.is_none() {
                kernel.spills = meta(&format!("spills.{}", kernel.name)).parse().ok();
            }
        }
        let origin = match &found.origin {
            kjit_cache::Origin::Made => Origin::Compiled,
            kjit_cache::Origin::ReadOnly(path) => Origin::Cached(path.display().to_string()),
            kjit_cache::Origin::Memory | kjit_cache::Origin::Shared => {
                Origin::Cached("this process".to_owned())
            }
            _ => Origin::Cached("cache".to_owned()),
        };
        Ok(CodeObject::of(
            CodeInner {
                name: job.source.name().to_owned(),
                compile_id: job.compile_id()?,
                wave: job.options.wave,
                compiler: meta("compiler").to_owned(),
                seconds: meta("seconds").parse().unwrap_or(0.0),
                kernels,
                entry: entry.clone(),
            },
            origin,
        ))
    }
}

/// Whether this machine satisfies all requirements of an entry. An unknown requirement is not
/// satisfied.
fn satisfies(needs: &BTreeMap<String, String>, driver: Option<(u32, u32)>) -> bool {
    needs.iter().all(|(need, value)| match need.as_str() {
        "driver" => {
            let mut parts = value.split('.').map(str::parse::<u32>);
            let (Some(Ok(major)), Some(Ok(minor)), None) =
                (parts.next(), parts.next(), parts.next())
            else {
                return false;
            };
            // Without a driver the code cannot run here, but it may be exported.
            driver.is_none_or(|driver| driver >= (major, minor))
        }
        _ => false,
    })
}

fn missing_entry(job: &Job, kernels: &[crate::code_object::KernelInfo]) -> Result<()> {
    match job.source.entries().find(|entry| kernels.iter().all(|k| k.name != *entry)) {
        None => Ok(()),
        Some(entry) => {
            let names: Vec<&str> = kernels.iter().map(|k| k.name.as_str()).collect();
            Err(Error::Corrupt {
                kernel: job.source.name().to_owned(),
                why: format!(
                    "the source defines no kernel '{entry}'; it defines: {}",
                    names.join(", ")
                ),
            })
        }
    }
}

/// The script, in the folder of a failed compile, that repeats it.
pub(crate) const AGAIN: &str = "again.sh";

/// Writes rendered source, headers, options and log to a new folder, with the request that repeats
/// the compile.
fn keep(
    job: &Job,
    toolchain: &Toolchain,
    ask: &ChildRequest,
    program: &Path,
    log: &str,
) -> std::io::Result<PathBuf> {
    let folder = kept_folder(job.source.name())?;
    let plain = |name: &str| name.replace(['/', '\\', '\0'], "_");
    std::fs::write(
        folder.join(plain(job.source.main_file())),
        job.source.render(&job.constants, &job.options),
    )?;
    for (name, text) in job.source.reached().unwrap_or_default() {
        std::fs::write(folder.join(plain(name)), text)?;
    }
    let arguments = match ask {
        ChildRequest::Compile { request, .. } => request.arguments.join(" "),
        ChildRequest::Probe { .. } => String::new(),
    };
    let options = format!(
        "compiler: {} ({})\ntarget: {}\nwave: {}\nfast math: {}\nconstants: {}\narguments: {arguments}\nagain: sh {}\n",
        toolchain.name(),
        toolchain.file.display(),
        job.target,
        job.options.wave,
        job.options.fast_math,
        job.constants,
        folder.join(AGAIN).display()
    );
    std::fs::write(folder.join("options.txt"), options)?;
    std::fs::write(folder.join("log.txt"), log)?;
    let quoted = format!("'{}'", program.display().to_string().replace('\'', "'\\''"));
    let again = format!(
        "#!/bin/sh\n# Compiles what is in request.bin again and shows what the compiler says. \
         Source and options, to read: the other files.\n\
         exec {quoted} {} \"$(dirname \"$0\")\"\n",
        child::REPEAT
    );
    std::fs::write(folder.join(AGAIN), again)?;
    std::fs::write(folder.join(child::REQUEST), ask.encode())?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pack_requires_equal_or_newer_driver() {
        let needs = |k: &str, v: &str| BTreeMap::from([(k.to_owned(), v.to_owned())]);
        assert!(satisfies(&needs("driver", "12.0"), Some((13, 0))));
        assert!(
            satisfies(&needs("driver", "13.0"), Some((13, 0)))
                && satisfies(&needs("driver", "13.0"), None)
        );
        assert!(!satisfies(&needs("driver", "13.0"), Some((12, 9))));
        assert!(!satisfies(&needs("driver", "13"), Some((14, 0))));
        assert!(!satisfies(&needs("moon phase", "full"), Some((13, 0))));
    }
}
