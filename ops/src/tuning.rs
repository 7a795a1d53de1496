//! Tuning of tensor kernels. A product has several tilings; a table says which is used. With
//! [`exhaustive`] tuning, the first product of each size and layout measures all of them, and the
//! verdict is kept in the cache folder, where later processes find it.
//!
//! ```
//! kjit_ops::tuning::exhaustive(true);   // from now on, new products are measured
//! # kjit_ops::tuning::exhaustive(false);
//! assert!(kjit_ops::tuning::verdicts().iter().all(|v| !v.choice.is_empty()));
//! ```

use crate::error::{Error, Result};
use kjit_engine::{Engine, TuningSubject};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Begins the text of a subject of this crate.
pub(crate) const PREFIX: &str = "tensor product ";
/// The first line of a file of verdicts.
const HEADER: &str = "kjit tuning 1";
/// Bytes of the largest file of verdicts that is read.
const LARGEST: u64 = 16 << 20;

static EXHAUSTIVE: AtomicBool = AtomicBool::new(false);
/// Grows with each change of the settings, after which prepared products choose again.
static GENERATION: AtomicU64 = AtomicU64::new(0);
static FILE: Mutex<Option<VerdictFile>> = Mutex::new(None);

/// The time of a candidate.
#[derive(Clone, Debug, PartialEq)]
pub enum Measured {
    /// Microseconds of a launch.
    Microseconds(f32),
    /// It could not run, and why.
    Refused(String),
}

/// The outcome of a measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// The architecture: `sm_90`, `gfx1100`.
    pub device: String,
    /// dtype, batch × rows × columns × depth, and the operands' strides.
    pub subject: String,
    /// The fastest candidate.
    pub choice: String,
    /// All candidates by name.
    pub measured: Vec<(String, Measured)>,
}

/// A file of verdicts, by the digest of their subjects.
struct VerdictFile {
    path: PathBuf,
    verdicts: BTreeMap<String, Verdict>,
}

fn file() -> MutexGuard<'static, Option<VerdictFile>> {
    FILE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether new products are measured; off at the start of a process.
#[must_use]
pub fn is_exhaustive() -> bool {
    EXHAUSTIVE.load(Ordering::Relaxed)
}

/// Turns measuring on or off. A measurement compiles each tiling and launches it some fifty times.
/// Verdicts of earlier measurements are used in either case.
pub fn exhaustive(on: bool) {
    EXHAUSTIVE.store(on, Ordering::Relaxed);
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

pub(crate) fn generation() -> u64 {
    GENERATION.load(Ordering::Relaxed)
}

/// Sets a file of verdicts: those in it are used before those of the cache folder, and verdicts
/// that are measured or used from now on are written to it. `None` sets none. Returns the number of
/// verdicts in the file, 0 if it does not exist yet.
///
/// # Errors
/// [`Error::Value`] if the file cannot be read, or a line of it is no verdict.
pub fn set_file(path: Option<&Path>) -> Result<usize> {
    let read = match path {
        None => None,
        Some(path) => Some(VerdictFile { path: path.to_owned(), verdicts: read(path)? }),
    };
    let count = read.as_ref().map_or(0, |f| f.verdicts.len());
    *file() = read;
    GENERATION.fetch_add(1, Ordering::Relaxed);
    Ok(count)
}

/// All verdicts of the file and of the cache folder.
#[must_use]
pub fn verdicts() -> Vec<Verdict> {
    let mut all: Vec<Verdict> = Vec::new();
    if let Some(file) = &*file() {
        all.extend(file.verdicts.values().cloned());
    }
    for (key, value) in crate::device::engine().cache().records() {
        let fields = key.fields();
        let ours =
            fields.iter().any(|f| f.label == "what" && f.value.to_string().starts_with(PREFIX));
        let verdict = std::str::from_utf8(&value).ok().and_then(Verdict::parse);
        if let Some(verdict) = verdict.filter(|v| ours && !all.contains(v)) {
            all.push(verdict);
        }
    }
    all.sort_by(|a, b| (&a.device, &a.subject).cmp(&(&b.device, &b.subject)));
    all
}

/// The verdict of a subject, from the file or the cache folder. `is_one` says whether a choice is
/// one of the candidates.
///
/// # Errors
/// [`Error::Value`] if the file has another choice, or cannot be written.
pub(crate) fn verdict(
    engine: &Engine,
    by: &TuningSubject<'_>,
    is_one: impl Fn(&str) -> bool,
) -> Result<Option<Verdict>> {
    if let Some(file) = &*file()
        && let Some(known) = file.verdicts.get(&by.digest()?)
    {
        if is_one(&known.choice) {
            return Ok(Some(known.clone()));
        }
        let (path, Verdict { subject, choice, .. }) = (file.path.display(), known);
        let why = format!("{path}: {subject} has no candidate '{choice}'; remove its line");
        return Err(Error::value("tuning", why));
    }
    let Some(bytes) = engine.tuning_choice(by)? else { return Ok(None) };
    let verdict = std::str::from_utf8(&bytes).ok().and_then(Verdict::parse);
    let verdict = verdict.filter(|v| is_one(&v.choice));
    match &verdict {
        None => engine.reject_tuning_choice(by, "it cannot be read, or names no candidate")?,
        Some(verdict) => keep_in_file(by, verdict)?,
    }
    Ok(verdict)
}

/// Keeps a verdict in the cache folder, and in the file if there is one.
pub(crate) fn keep(engine: &Engine, by: &TuningSubject<'_>, verdict: &Verdict) -> Result<()> {
    engine.keep_tuning_choice(by, verdict.line().as_bytes())?;
    keep_in_file(by, verdict)
}

fn keep_in_file(by: &TuningSubject<'_>, verdict: &Verdict) -> Result<()> {
    let mut file = file();
    let Some(VerdictFile { path, verdicts }) = &mut *file else { return Ok(()) };
    // Another process may have written since.
    if let Ok(now) = read(path) {
        for (digest, verdict) in now {
            verdicts.entry(digest).or_insert(verdict);
        }
    }
    verdicts.insert(by.digest()?, verdict.clone());
    let mut text = format!("{HEADER}\n");
    for (digest, verdict) in verdicts.iter() {
        _ = writeln!(text, "{digest}\t{}", verdict.line());
    }
    let fail = |e: std::io::Error| Error::value("tuning", format!("{}: {e}", path.display()));
    // Readers see the old file or the new one.
    let new = path.with_extension(format!("{}.new", std::process::id()));
    std::fs::write(&new, text).map_err(fail)?;
    std::fs::rename(&new, &*path).map_err(fail)
}

fn read(path: &Path) -> Result<BTreeMap<String, Verdict>> {
    let fail = |why: String| Error::value("set_cache_file", format!("{}: {why}", path.display()));
    match std::fs::metadata(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(e) => return Err(fail(e.to_string())),
        Ok(m) if m.len() > LARGEST => {
            return Err(fail(format!("{} bytes are more than {LARGEST}", m.len())));
        }
        Ok(_) => {}
    }
    let text = std::fs::read_to_string(path).map_err(|e| fail(e.to_string()))?;
    let mut lines = text.lines().enumerate();
    if lines.next().map(|(_, line)| line) != Some(HEADER) {
        return Err(fail(format!("the first line is not '{HEADER}'")));
    }
    let mut verdicts = BTreeMap::new();
    for (at, line) in lines {
        let parsed = line.split_once('\t').and_then(|(d, v)| Some((d, Verdict::parse(v)?)));
        let (digest, verdict) =
            parsed.ok_or_else(|| fail(format!("line {} is no verdict", at + 1)))?;
        verdicts.insert(digest.to_owned(), verdict);
    }
    Ok(verdicts)
}

impl Verdict {
    /// Device, subject, choice, then `name=µs` or `name!reason` for each candidate, with tabs
    /// between.
    fn line(&self) -> String {
        let plain = |text: &str| text.replace(['\t', '\n', '\r'], " ");
        let mut line = [&self.device, &self.subject, &self.choice].map(|t| plain(t)).join("\t");
        for (name, measured) in &self.measured {
            match measured {
                Measured::Microseconds(took) => _ = write!(line, "\t{}={took}", plain(name)),
                Measured::Refused(why) => _ = write!(line, "\t{}!{}", plain(name), plain(why)),
            }
        }
        line
    }

    /// The verdict of a line of [`Verdict::line`]; `None` if it is none.
    fn parse(line: &str) -> Option<Verdict> {
        let mut parts = line.split('\t');
        let mut next = || parts.next().filter(|p| !p.is_empty()).map(str::to_owned);
        let (device, subject, choice) = (next()?, next()?, next()?);
        let mut measured = Vec::new();
        for part in parts {
            let at = part.find(['=', '!'])?;
            let (name, value) = part.split_at(at);
            let measure = match value.strip_prefix('=') {
                Some(took) => {
                    let took: f32 = took.parse().ok()?;
                    Measured::Microseconds(Some(took).filter(|t| t.is_finite() && *t >= 0.0)?)
                }
                None => Measured::Refused(value.get(1..)?.to_owned()),
            };
            measured.push((name.to_owned(), measure));
        }
        Some(Verdict { device, subject, choice, measured })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_survive_their_lines_and_bad_lines_are_none() {
        let verdict = Verdict {
            device: "gfx1100".to_owned(),
            subject: "float16 1 × 64 × 64 × 64".to_owned(),
            choice: "mma 64x64".to_owned(),
            measured: vec![
                ("mma 64x64".to_owned(), Measured::Microseconds(12.25)),
                ("mma 128x128".to_owned(), Measured::Refused("no\troom\nleft".to_owned())),
            ],
        };
        let again = Verdict::parse(&verdict.line()).unwrap();
        assert_eq!(again.measured[1].1, Measured::Refused("no room left".to_owned()));
        assert_eq!((&again.choice, &again.measured[0]), (&verdict.choice, &verdict.measured[0]));
        for bad in ["", "a", "a\tb", "a\tb\tc\td", "a\tb\tc\td=x", "a\tb\tc\td=NaN", "a\t\tc"] {
            assert_eq!(Verdict::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn verdict_files_name_the_file_and_line_that_is_wrong() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.txt");
        assert!(read(&path).unwrap().is_empty());
        for (text, says) in
            [("nonsense\n", "first line"), ("kjit tuning 1\nd\ta\tb\tc\nx\n", "line 3")]
        {
            std::fs::write(&path, text).unwrap();
            let error = read(&path).unwrap_err().to_string();
            assert!(error.contains(says) && error.contains("t.txt"), "{error}");
        }
    }
}
