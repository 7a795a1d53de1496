//! Filters of cache entries.
//!
//! The entries of a model are found by making its plan for each architecture, as `run` does. The
//! source keys of the plan's jobs select the entries. Entries do not store the model that requested
//! them, because that would often be wrong: another model may share a kernel, another build may
//! plan differently, or a pack may come from another machine.

use crate::args::CacheFilter;
use crate::report::say;
use anyhow::Context;
use kjit_cache::{Digest, EntryInfo};
use kjit_engine::{Engine, Target};
use kjit_model::gguf::Gguf;
use kjit_model::gpu;
use kjit_model::session::{OpenOptions, Persistence};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::{SystemTime, UNIX_EPOCH};

/// A filter that is ready for use.
pub struct CacheSelection<'a> {
    filter: &'a CacheFilter,
    wanted: Vec<ModelKernels>,
    sources: HashSet<Digest>,
    now_s: u64,
}

/// The kernels of a model on one architecture.
pub struct ModelKernels {
    pub arch: String,
    /// Source keys and kernel names.
    pub kernels: HashMap<Digest, String>,
}

impl<'a> CacheSelection<'a> {
    /// `entries` are all entries of the cache. Without `--arch`, a model is planned for the
    /// architectures that occur in them.
    pub fn new(
        engine: &Engine,
        filter: &'a CacheFilter,
        entries: &[EntryInfo],
    ) -> anyhow::Result<CacheSelection<'a>> {
        for arch in &filter.arch {
            // A name that this build does not know may be an architecture of a newer build that has
            // entries here.
            if let Err(unknown) = Target::parse(arch)
                && !entries.iter().any(|e| is_arch(arch, meta(e, "arch")))
            {
                return Err(unknown.into());
            }
        }
        let wanted = wanted(engine, filter, entries)?;
        let sources = wanted.iter().flat_map(|w| w.kernels.keys().copied()).collect();
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        Ok(CacheSelection { filter, wanted, sources, now_s })
    }

    /// Whether there is no filter.
    pub fn all(&self) -> bool {
        let f = self.filter;
        f.arch.is_empty()
            && f.model.is_none()
            && f.kernel.is_none()
            && f.older.is_none()
            && f.larger.is_none()
    }

    /// Whether an entry matches all filters.
    pub fn picks(&self, e: &EntryInfo) -> bool {
        let f = self.filter;
        // A time in the future counts as now: clocks may go backwards.
        let age = self.now_s.saturating_sub(e.used_s.unwrap_or(e.created_ms / 1000));
        (f.arch.is_empty() || f.arch.iter().any(|arch| is_arch(arch, meta(e, "arch"))))
            && (f.model.is_none() || self.sources.contains(&e.key.source().digest()))
            && f.kernel.as_deref().is_none_or(|text| meta(e, "kernel").contains(text))
            && f.older.is_none_or(|older| age >= older.0)
            && f.larger.is_none_or(|larger| e.bytes >= larger.0)
    }

    /// The kernels of the model, by architecture. Empty without `--model`.
    pub fn wanted(&self) -> &[ModelKernels] {
        &self.wanted
    }
}

impl ModelKernels {
    /// Names of kernels that are not among the entries.
    pub fn missing(&self, entries: &[EntryInfo]) -> Vec<&str> {
        let here: HashSet<Digest> = entries.iter().map(|e| e.key.source().digest()).collect();
        let mut missing: Vec<&str> = self
            .kernels
            .iter()
            .filter(|(source, _)| !here.contains(source))
            .map(|(_, name)| name.as_str())
            .collect();
        missing.sort_unstable();
        missing
    }
}

/// A field of an entry's metadata, or an empty string.
pub fn meta<'e>(e: &'e EntryInfo, key: &str) -> &'e str {
    e.meta.get(key).map(String::as_str).unwrap_or_default()
}

/// `sm_90` and its architecture-specific form `sm_90a` match each other. Feature flags follow a
/// colon.
fn is_arch(want: &str, have: &str) -> bool {
    have.strip_prefix(want)
        .is_some_and(|rest| rest.is_empty() || rest == "a" || rest.starts_with(':'))
}

fn wanted(
    engine: &Engine,
    filter: &CacheFilter,
    entries: &[EntryInfo],
) -> anyhow::Result<Vec<ModelKernels>> {
    let Some(model) = &filter.model else { return Ok(Vec::new()) };
    let gguf = Gguf::open(model.here()?)?;
    let graph = kjit_model::arch::build(&gguf).with_context(|| model.to_string())?;
    let options = OpenOptions {
        context: filter.context,
        kv: filter.kv_type.into(),
        precise: filter.precise,
        reproducible: filter.reproducible,
        prefill_chunk: filter.prefill_chunk,
        // The defaults of `run`. A kernel of a whole token is in the cache only if `run` has
        // requested it.
        persistent: Persistence::default(),
        ..OpenOptions::default()
    };
    let plan = |target: &Target| -> anyhow::Result<ModelKernels> {
        let jobs = gpu::jobs_for(engine, &graph, target, &options)
            .with_context(|| format!("for {target}"))?;
        let key =
            |job: &kjit_engine::Job| Ok((job.source_key()?.digest(), job.source.name().to_owned()));
        let kernels = jobs.iter().map(key).collect::<anyhow::Result<_>>()?;
        Ok(ModelKernels { arch: target.to_string(), kernels })
    };
    if !filter.arch.is_empty() {
        return filter.arch.iter().map(|arch| plan(&Target::parse(arch)?)).collect();
    }
    let here: BTreeSet<&str> =
        entries.iter().map(|e| meta(e, "arch")).filter(|arch| !arch.is_empty()).collect();
    let mut wanted: Vec<ModelKernels> = Vec::new();
    for arch in here {
        match Target::parse(arch).map_err(anyhow::Error::from).and_then(|target| plan(&target)) {
            Ok(w) if wanted.iter().any(|known| known.arch == w.arch) => {}
            Ok(w) => wanted.push(w),
            Err(error) => say(format_args!("note: {model}: not for {arch}: {error:#}")),
        }
    }
    Ok(wanted)
}
