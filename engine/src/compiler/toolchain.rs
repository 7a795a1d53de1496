//! Compilers that were found, with the identity that keys hold: the content of the library and of
//! its companions.

use super::discover::{Candidate, Tried, candidates};
use super::protocol::{Answer, Ask};
use super::worker::{Workers, path_text};
use super::{COMPILERS, Compiler, Probe};
use crate::arch::Vendor;
use crate::engine::CompilerInfo;
use crate::error::{Error, Result};
use kjit_cache::{Cache, Digest, Key};
use std::path::{Path, PathBuf};

/// A compiler ready to be used.
#[derive(Clone)]
pub(crate) struct Toolchain {
    pub compiler: &'static dyn Compiler,
    pub file: PathBuf,
    pub via: String,
    pub probe: Probe,
    /// Content of the file alone.
    pub own: Digest,
    /// Content of the file and its companions.
    pub identity: Digest,
}

impl Toolchain {
    /// `nvrtc 13.5`.
    pub fn name(&self) -> String {
        format!("{} {}.{}", self.compiler.kind(), self.probe.version.0, self.probe.version.1)
    }

    /// For listings.
    pub fn info(&self) -> CompilerInfo {
        CompilerInfo {
            kind: self.compiler.kind().to_owned(),
            version: self.probe.version,
            file: self.file.clone(),
            via: self.via.clone(),
            knows: self.probe.ids.clone(),
        }
    }

    /// Whether it knows a compile id (feature flags aside).
    pub fn knows(&self, compile_id: &str) -> bool {
        let base = compile_id.split(':').next().unwrap_or_default();
        self.probe.ids.is_empty() || self.probe.ids.iter().any(|id| id == base)
    }
}

/// What the search for a vendor's compilers gave.
#[derive(Default)]
pub(crate) struct Search {
    pub found: Vec<Toolchain>,
    pub tried: Vec<Tried>,
    /// Files that are there and cannot be used, with the reason.
    pub unusable: Vec<String>,
    /// Compilers that are there and may be right: no process to ask them in can be started.
    idle: Vec<String>,
    /// Why not.
    no_process: Option<String>,
}

/// How the search may be steered.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wish {
    /// Only this kind.
    pub kind: Option<String>,
    /// Only this file.
    pub file: Option<PathBuf>,
}

/// Finds a vendor's compilers, best first.
pub(crate) fn search(
    vendor: Vendor,
    wish: &Wish,
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
            // The first that opens is the newest; others only stand in for what it does not know.
            if search.found.len() >= 3 {
                break;
            }
        }
    }
    search
}

impl Search {
    /// Why none of what was found compiles for this architecture, in one line: who does not know
    /// it, what is here but cannot be used, and what else there is to install.
    pub fn why_not(&self, vendor: Vendor, wish: &Wish, arch: &str) -> String {
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

    /// Why there is no compiler, in one line.
    pub fn why_none(&self, vendor: Vendor, wish: &Wish) -> String {
        // One reason for all of them; there is nothing to install.
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

/// Identity and probe of a candidate; both remembered on disk by content, so that a start hashes
/// and opens nothing.
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
    let known = cache.record(&memo).and_then(|bytes| match Answer::read(&mut bytes.as_slice()) {
        Ok(Some(Answer::Probe(Ok(probe)))) => Some(probe),
        _ => None,
    });
    let probe = match known {
        Some(probe) => probe,
        None => {
            let ask = Ask::Probe { kind: compiler.kind().to_owned(), file: path_text(file)? };
            let (answer, _) = workers.ask("(probe)", compiler.kind(), &ask)?;
            let mut bytes = Vec::new();
            match answer {
                Answer::Probe(Ok(probe)) => {
                    let answer = Answer::Probe(Ok(probe.clone()));
                    // Into memory: cannot fail; and if it did, the next start would probe again.
                    if answer.write(&mut bytes).is_ok() {
                        cache.put_record(&memo, &bytes);
                    }
                    probe
                }
                Answer::Probe(Err(why)) => return Err(Error::Io { path: file.clone(), why }),
                Answer::Compiled(_) => {
                    return Err(Error::Io {
                        path: file.clone(),
                        why: "answered another question".to_owned(),
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
