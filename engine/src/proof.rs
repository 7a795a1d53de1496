//! Verdicts on code objects that were run on a device before they are used there, in the cache beside the
//! code objects and under the same rules.
//!
//! A verdict is about a kind of device (its name and architecture, not its number), a version of its driver
//! and one build: another compiler's code object of the same source is another subject. All verdicts of a
//! kind and a driver are one record: a start reads one file, and waits for the disk twice, however many
//! kernels are new.
//!
//! A second record says what is being run now, and by which process: a kernel that takes its process down is
//! known at the next start. It is written before each run without waiting for the disk, which outlives the
//! process. A machine that stops as well may have lost the last of these: then the next start waits for the
//! disk before each run.

use crate::arch::Vendor;
use crate::code_object::CodeObject;
use crate::driver::DeviceInfo;
use crate::engine::Engine;
use kjit_cache::{Digest, Key};
use std::collections::BTreeMap;
use std::time::Duration;

/// What a verdict is about.
#[derive(Debug, Clone, Copy)]
pub struct ProofSubject<'a> {
    /// What ran.
    pub code: &'a CodeObject,
    /// What it was to compute: a text that the caller makes the same every time.
    pub what: &'a str,
}

impl ProofSubject<'_> {
    fn digest(&self) -> Digest {
        let key = Key::builder("kjit kernel proof").field("build", self.code.digest().hex()).field("what", self.what);
        key.finish().digest()
    }
}

/// The verdict on what ended the process that ran it.
const ENDED: &str = "the process that proved it was ended by it";
/// How long another process may keep the record before it is written all the same.
const PATIENCE: Duration = Duration::from_secs(2);

/// The verdicts on a kind of device and its driver, and what comes to them. Kept when it is dropped.
pub struct Verdicts {
    engine: Engine,
    /// The record of all, and that of what is being run.
    all: Key,
    now: Key,
    known: BTreeMap<Digest, String>,
    /// What came in this process.
    new: BTreeMap<Digest, String>,
    /// Whether a machine may have stopped at the last run that was said: each is on the disk before it
    /// begins.
    careful: bool,
    begun: bool,
}

impl Engine {
    /// Whether code objects are to be proven on a device before they are used there. NVIDIA's ran on a card
    /// before they were released, AMD's did not.
    #[must_use]
    pub fn proves(&self, device: &DeviceInfo) -> bool {
        device.vendor == Vendor::Amd || self.inner.config.prove_all
    }

    /// The verdicts on a kind of device.
    #[must_use]
    pub fn verdicts(&self, device: &DeviceInfo) -> Verdicts {
        let (major, minor) = device.driver;
        let key = |domain| {
            let key = Key::builder(domain).field("name", device.name.as_str());
            key.field("arch", device.arch_id.as_str()).field("driver", format!("{major}.{minor}")).finish()
        };
        let (all, now) = (key("kjit kernel proofs"), key("kjit kernel under proof"));
        let read = |key| self.cache().record(key).and_then(|bytes| String::from_utf8(bytes).ok());
        let known = parsed(&read(&all).unwrap_or_default());
        let (mut new, mut careful) = (BTreeMap::new(), false);
        match read(&now).as_deref().and_then(Mark::parse) {
            Some(Mark { process, .. }) if process.is_alive() => {}
            Some(Mark { at: Some(ended), .. }) => drop(new.insert(ended, ENDED.to_owned())),
            Some(Mark { at: None, .. }) => careful = true,
            None => {}
        }
        // One that was judged after all ended nothing: its verdict was kept, the mark was not taken back.
        new.retain(|digest, _| !known.contains_key(digest));
        let mut verdicts = Verdicts { engine: self.clone(), all, now, known, new, careful, begun: false };
        // Before another mark takes the place of the one that told of it.
        verdicts.save();
        verdicts
    }
}

impl Verdicts {
    /// The verdict on a subject, if there is one.
    #[must_use]
    pub fn of(&self, subject: &ProofSubject<'_>) -> Option<&str> {
        let digest = subject.digest();
        self.new.get(&digest).or_else(|| self.known.get(&digest)).map(String::as_str)
    }

    /// Says that it is about to be run.
    pub fn begin(&mut self, subject: &ProofSubject<'_>) {
        let cache = self.engine.cache();
        let mark = |at| Mark { process: Process::this(), at }.text();
        if !self.begun {
            self.begun = true;
            cache.put_record(&self.now, mark(None).as_bytes());
        }
        let mark = mark(Some(subject.digest()));
        if self.careful {
            cache.put_record(&self.now, mark.as_bytes());
        } else {
            cache.put_record_soon(&self.now, mark.as_bytes());
        }
    }

    /// What came of it, in a line.
    pub fn end(&mut self, subject: &ProofSubject<'_>, verdict: &str) {
        self.new.insert(subject.digest(), verdict.replace('\n', " "));
    }

    fn save(&mut self) {
        if self.new.is_empty() {
            return;
        }
        let new = std::mem::take(&mut self.new);
        self.known.extend(new.clone());
        // Another process may have added its own.
        self.engine.cache().update_record(&self.all, PATIENCE, |old| {
            let mut all = parsed(&String::from_utf8_lossy(old.unwrap_or_default()));
            all.extend(new);
            all.iter().map(|(digest, verdict)| format!("{digest} {verdict}\n")).collect::<String>().into_bytes()
        });
    }
}

impl Drop for Verdicts {
    fn drop(&mut self) {
        self.save();
        if self.begun {
            self.engine.cache().put_record_soon(&self.now, b"");
        }
    }
}

/// A line for each verdict. What is none is passed over: it is proven again.
fn parsed(text: &str) -> BTreeMap<Digest, String> {
    let line = |line: &str| {
        let (digest, verdict) = line.split_once(' ')?;
        Some((digest.parse().ok()?, verdict.to_owned()))
    };
    text.lines().filter_map(line).collect()
}

/// What is being run, and by whom.
#[derive(Debug, PartialEq, Eq)]
struct Mark {
    process: Process,
    /// None before the first.
    at: Option<Digest>,
}

impl Mark {
    fn text(&self) -> String {
        let at = self.at.map_or(String::new(), |digest| digest.hex());
        format!("{} {} {at}", self.process.id, self.process.start)
    }

    fn parse(text: &str) -> Option<Mark> {
        let mut words = text.split(' ');
        let process = Process { id: words.next()?.parse().ok()?, start: words.next()?.parse().ok()? };
        Some(Mark { process, at: words.next().and_then(|word| word.parse().ok()) })
    }
}

/// A process: its number, and when it began, since numbers come again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Process {
    id: u32,
    start: u64,
}

impl Process {
    fn this() -> Process {
        let id = std::process::id();
        Process { id, start: began(id).unwrap_or(0) }
    }

    fn is_alive(self) -> bool {
        began(self.id) == Some(self.start)
    }
}

/// When a process of this machine began, in ticks of its own clock; none if there is no such.
fn began(id: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The program's name, in parentheses, may have anything in it. Behind it: the state is the first word.
    let (_, behind) = stat.rsplit_once(')')?;
    behind.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_are_lines_and_what_is_none_is_passed_over() {
        let (one, two) = (Digest::of(b"1"), Digest::of(b"2"));
        let text = format!("{one} right\nnonsense\n{two} off by a half: 1 of 2\n7f right\n");
        let all: Vec<_> = parsed(&text).into_iter().collect();
        let mut want = vec![(one, "right".to_owned()), (two, "off by a half: 1 of 2".to_owned())];
        want.sort();
        assert_eq!(all, want);
    }

    #[test]
    fn a_mark_says_which_process_runs_what() {
        let this = Process::this();
        assert!(this.is_alive() && !Process { start: this.start + 1, ..this }.is_alive());
        for at in [None, Some(Digest::of(b"1"))] {
            let mark = Mark { process: this, at };
            assert_eq!(Mark::parse(&mark.text()).unwrap(), mark);
        }
        assert_eq!(Mark::parse(""), None);
    }
}
