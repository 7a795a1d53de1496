//! Compilers that were found, with their identity for keys. The identity is a digest of the library
//! and its companion files.

use super::COMPILERS;
use super::candidates::candidates;
use super::compiled::Probe;
use super::discover::{Candidate, SearchedPath};
use super::info::CompilerInfo;
use super::interface::Compiler;
use super::protocol::{ChildRequest, ChildResponse};
use super::worker::{Workers, path_text};
use crate::arch::Vendor;
use crate::error::{Error, Result};
use kjit_cache::{Cache, Digest, Key};
use std::path::{Path, PathBuf};

/// A usable compiler.
#[derive(Clone)]
pub(crate) struct Toolchain {
    pub compiler: &'static dyn Compiler,
    pub file: PathBuf,
    pub via: String,
    pub probe: Probe,
    /// Digest of the file.
    pub own: Digest,
    /// Digest of the file and its companions.
    pub identity: Digest,
}

impl Toolchain {
    /// Name and version of the compiler, such as `nvrtc 13.5`.
    pub fn name(&self) -> String {
        format!("{} {}.{}", self.compiler.kind(), self.probe.version.0, self.probe.version.1)
    }

    /// Properties of the compiler for listings.
    pub fn info(&self) -> CompilerInfo {
        CompilerInfo {
            kind: self.compiler.kind().to_owned(),
            version: self.probe.version,
            file: self.file.clone(),
            via: self.via.clone(),
            knows: self.probe.ids.clone(),
        }
    }

    /// Whether the compiler supports a compile id, regardless of feature flags.
    pub fn knows(&self, compile_id: &str) -> bool {
        let base = compile_id.split(':').next().unwrap_or_default();
        self.probe.ids.is_empty() || self.probe.ids.iter().any(|id| id == base)
    }
}

/// The result of the search for a vendor's compilers.
#[derive(Default)]
pub(crate) struct Search {
    pub found: Vec<Toolchain>,
    pub tried: Vec<SearchedPath>,
    /// Files that exist but cannot be used, with the reason.
    pub unusable: Vec<String>,
    /// Compilers that exist but could not be queried, because starting a process failed.
    idle: Vec<String>,
    /// Why no process can be started.
    no_process: Option<String>,
}

/// Restrictions of the search.
#[derive(Clone, Debug, Default)]
pub(crate) struct CompilerFilter {
    /// Search only this kind.
    pub kind: Option<String>,
    /// Search only this file.
    pub file: Option<PathBuf>,
}

/// Finds a vendor's compilers, best first.
pub(crate) fn search(
    vendor: Vendor,
    wish: &CompilerFilter,
    driver: Option<(u32, u32)>,
    cache: &Cache,
    workers: &Workers,
) -> Search {
    let mut search = Search::default();
    for compiler in COMPILERS.iter().filter(|c| c.vendor() == vendor) {
        if wish.kind.as_deref().is_some_and(|kind| kind != compiler.kind()) {
            continue;
        }
        let (list, tried) = candidates(*compiler, wish.file.as_deref(), driver);
        if let (true, Some((major, minor))) = (list.is_empty(), driver) {
            let newer = tried.iter().filter_map(|t| t.found.as_ref()).find_map(|file| {
                let version =
                    compiler.major_of(file).filter(|v| !compiler.suits_driver(*v, driver))?;
                let kind = compiler.kind();
                Some(format!(
                    "{} is {kind} {version}, newer than the driver ({major}.{minor}) takes",
                    file.display()
                ))
            });
            search.unusable.extend(newer);
        }
        search.tried.extend(tried);
        for candidate in list {
            match ready(*compiler, &candidate, cache, workers) {
                Ok(toolchain) => search.found.push(toolchain),
                Err(Error::NoProcess { why }) => {
                    let file = format!("{} ({})", compiler.kind(), candidate.file.display());
                    search.unusable.push(format!("{file}: found, but cannot be started: {why}"));
                    search.idle.push(file);
                    search.no_process = Some(why);
                }
                Err(why) => search.unusable.push(format!("{}: {why}", candidate.file.display())),
            }
            // The first one that can be opened is the newest. Others are only needed for
            // architectures that it does not support.
            if search.found.len() >= 3 {
                break;
            }
        }
    }
    search
}

impl Search {
    /// The reason, in one line, why none of the compilers supports this architecture. It lists
    /// compilers that do not support it, compilers that cannot be used, and what else can be
    /// installed.
    pub fn why_not(&self, vendor: Vendor, wish: &CompilerFilter, arch: &str) -> String {
        if self.found.is_empty() {
            return self.why_none(vendor, wish);
        }
        let names: Vec<String> = self.found.iter().map(Toolchain::name).collect();
        let mut why = format!("{} does not know {arch}", names.join(", "));
        for line in &self.unusable {
            why = format!("{why}; {line}");
        }
        let found = |c: &dyn Compiler| self.found.iter().any(|t| t.compiler.kind() == c.kind());
        let others: Vec<&str> = COMPILERS
            .iter()
            .filter(|c| c.vendor() == vendor && !found(**c) && wish.file.is_none())
            .filter(|c| wish.kind.as_deref().is_none_or(|kind| kind == c.kind()))
            .map(|c| c.package())
            .collect();
        match others.is_empty() {
            true => why,
            false => format!("{why}; install: {}", others.join(" or ")),
        }
    }

    /// The reason, in one line, why a compiler is missing.
    pub fn why_none(&self, vendor: Vendor, wish: &CompilerFilter) -> String {
        // All compilers have the same reason, and installing something would not help.
        if let Some(why) = &self.no_process {
            return format!("{} found, but cannot be started: {why}", self.idle.join(", "));
        }
        let packages: Vec<&str> = COMPILERS
            .iter()
            .filter(|c| {
                c.vendor() == vendor && wish.kind.as_deref().is_none_or(|kind| kind == c.kind())
            })
            .map(|c| c.package())
            .collect();
        if packages.is_empty() {
            return match &wish.kind {
                Some(kind) => format!("this build has no compiler '{kind}' for {}", vendor.name()),
                None => format!("this build has no compiler for {}", vendor.name()),
            };
        }
        let mut why = String::new();
        if !self.unusable.is_empty() {
            why = format!("{}; ", self.unusable.join("; "));
        }
        let mut tried: Vec<String> =
            self.tried.iter().map(|t| t.place.display().to_string()).collect();
        tried.dedup();
        format!(
            "{why}no compiler found; tried {}; install: {}",
            tried.join(", "),
            packages.join(" or ")
        )
    }
}

/// Identity and probe of a candidate. Both are cached on disk by content, so that a later start
/// neither hashes nor opens it.
fn ready(
    compiler: &'static dyn Compiler,
    candidate: &Candidate,
    cache: &Cache,
    workers: &Workers,
) -> Result<Toolchain> {
    let digest = |file: &Path| {
        cache.file_digest(file).map_err(|e| Error::Io { path: file.to_owned(), why: e.to_string() })
    };
    let file = &candidate.file;
    let own = digest(file)?;
    let memo = Key::builder("compiler probe")
        .field("kind", compiler.kind())
        .field("file", own.hex())
        .finish();
    let known =
        cache.record(&memo).and_then(|bytes| match ChildResponse::read(&mut bytes.as_slice()) {
            Ok(Some(ChildResponse::Probe(Ok(probe)))) => Some(probe),
            _ => None,
        });
    let probe = match known {
        Some(probe) => probe,
        None => {
            let ask =
                ChildRequest::Probe { kind: compiler.kind().to_owned(), file: path_text(file)? };
            let (answer, _) = workers.ask("(probe)", compiler.kind(), &ask)?;
            let mut bytes = Vec::new();
            match answer {
                ChildResponse::Probe(Ok(probe)) => {
                    let answer = ChildResponse::Probe(Ok(probe.clone()));
                    // Writing to memory cannot fail; if it did, the next start would probe again.
                    if answer.write(&mut bytes).is_ok() {
                        cache.put_record(&memo, &bytes);
                    }
                    probe
                }
                ChildResponse::Probe(Err(why)) => {
                    return Err(Error::Io { path: file.clone(), why });
                }
                ChildResponse::Compiled(_) => {
                    return Err(Error::Io {
                        path: file.clone(),
                        why: "sent the wrong type of answer".to_owned(),
                    });
                }
            }
        }
    };
    let mut identity = Key::builder("compiler identity").field("file", own.hex());
    for companion in compiler.companions(file, probe.version) {
        identity = identity.field("companion", digest(&companion)?.hex());
    }
    let identity = identity.finish().digest();
    Ok(Toolchain { compiler, file: file.clone(), via: candidate.via.clone(), probe, own, identity })
}
