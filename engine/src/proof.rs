//! Verdicts on code objects that were tested on a device before use. They are stored in the cache
//! like the code objects, under the same rules.
//!
//! A verdict is valid for one kind of device (name, architecture and units, not its number), one
//! driver version and one build. If a different compiler builds the source, a new verdict is
//! needed. All verdicts of a kind and a driver are in one record. So a start reads one file and
//! waits for the disk twice, regardless of the number of new kernels.
//!
//! A second record per device (the mark) names the code object that is being tested and the process
//! that tests it. If a kernel kills its process, the next start finds this out. The mark is written
//! before each test and cleared after it, without waiting for the disk: the page cache outlives the
//! process. If the process is killed between tests, no kernel is blamed.
//!
//! If the whole machine stops, the last of these writes may be lost, and the mark may name a
//! different kernel. So after a reboot a mark that was not synced is ignored, and the next start
//! syncs before and after each test.

use crate::arch::Vendor;
use crate::code_object::CodeObject;
use crate::driver::DeviceInfo;
use crate::engine::Engine;
use kjit_cache::{Digest, Key};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The subject of a verdict.
#[derive(Debug, Clone, Copy)]
pub struct ProofSubject<'a> {
    /// The tested code object.
    pub code: &'a CodeObject,
    /// The tested computation, as a string. Equal tests have equal strings.
    pub what: &'a str,
}

impl ProofSubject<'_> {
    fn digest(&self) -> Digest {
        let key = Key::builder("kjit kernel proof")
            .field("build", self.code.digest().hex())
            .field("what", self.what);
        key.finish().digest()
    }
}

/// Must be incremented when cases or tolerances change what they accept. Older verdicts are then
/// ignored.
const REVISION: &str = "2";
/// The verdict on a code object that killed its process.
const KILLED: &str = "the kernel killed the process that tested it";
/// Maximum time to wait for another process to release the record. Then it is written anyway.
const SAVE_TIMEOUT: Duration = Duration::from_secs(2);
/// If a process cannot be inspected, a mark of this age in seconds counts as the mark of an ended
/// process. A test takes milliseconds, and the driver kills a hanging kernel within a minute.
const FOREIGN_MARK_SECONDS: u64 = 120;
/// Only one test runs at a time in a process, over all its devices. If the process dies, one kernel
/// is to blame.
static TEST_LOCK: Mutex<()> = Mutex::new(());

/// The verdicts on a kind of device and its driver, including new ones. They are saved on drop.
pub struct Verdicts {
    engine: Engine,
    /// Keys: of the record with all verdicts, and of the mark.
    all: Key,
    now: Key,
    known: BTreeMap<Digest, String>,
    /// Verdicts from this process.
    new: BTreeMap<Digest, String>,
    /// Whether the machine may have stopped during the last test. If so, each mark is synced before
    /// its test.
    sync_marks: bool,
    prepared: bool,
    /// Whether there is a record of verdicts.
    recorded: bool,
}

impl Engine {
    /// Whether code objects must be tested on a device before use. Kernels for NVIDIA were tested
    /// on cards before release; kernels for AMD were not.
    #[must_use]
    pub fn proves(&self, device: &DeviceInfo) -> bool {
        device.vendor == Vendor::Amd || self.inner.config.prove_all
    }

    /// The verdicts on a kind of device.
    #[must_use]
    pub fn verdicts(&self, device: &DeviceInfo) -> Verdicts {
        let (major, minor) = device.driver;
        let key = |domain| {
            let key = Key::builder(domain)
                .field("revision", REVISION)
                .field("name", device.name.as_str());
            let key =
                key.field("arch", device.arch_id.as_str()).field("units", device.units.to_string());
            key.field("driver", format!("{major}.{minor}"))
        };
        let all = key("kjit kernel proofs").finish();
        let now = key("kjit kernel under proof").field("pci", device.pci.as_str()).finish();
        let read = |key| self.cache().record(key).and_then(|bytes| String::from_utf8(bytes).ok());
        let all_read = read(&all);
        let known = parsed(all_read.as_deref().unwrap_or_default());
        let (mut new, mut sync_marks) = (BTreeMap::new(), false);
        match read(&now) {
            // Every test leaves a mark, which may be empty. So a missing mark was lost.
            None => sync_marks = all_read.is_some(),
            Some(text) if text.is_empty() => {}
            Some(text) => match RunningTest::parse(&text) {
                Some(mark) if mark.may_run() => {}
                // The mark on the disk may be older than the last test.
                Some(mark) if !mark.waited && mark.process.boot != boot() => sync_marks = true,
                Some(RunningTest { at: Some(ended), .. }) => {
                    drop(new.insert(ended, KILLED.to_owned()))
                }
                Some(RunningTest { at: None, .. }) | None => sync_marks = true,
            },
        }
        // A code object with a verdict did not kill its process: only its mark was not cleared.
        new.retain(|digest, _| !known.contains_key(digest));
        let recorded = all_read.is_some();
        let mut verdicts = Verdicts {
            engine: self.clone(),
            all,
            now,
            known,
            new,
            sync_marks,
            prepared: false,
            recorded,
        };
        // The verdicts are saved before the next mark replaces this one.
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

    /// Runs a test. `run` returns the verdict as one line, or `None` if it could not decide. No
    /// other device of this process runs a test at the same time.
    pub fn prove<T>(
        &mut self,
        subject: &ProofSubject<'_>,
        run: impl FnOnce() -> (T, Option<String>),
    ) -> T {
        self.at(subject.digest(), run)
    }

    fn at<T>(&mut self, digest: Digest, run: impl FnOnce() -> (T, Option<String>)) -> T {
        let _lock: MutexGuard<'_, ()> = TEST_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        self.mark(Some(digest));
        let (of, verdict) = run();
        if let Some(verdict) = verdict {
            self.new.insert(digest, verdict.replace('\n', " "));
        }
        self.mark(None);
        of
    }

    /// Prepares for tests, which waits for the disk. Callers that have other work to do call it
    /// before the first test.
    pub fn begin(&mut self) {
        if self.prepared {
            return;
        }
        self.prepared = true;
        let cache = self.engine.cache();
        if !self.recorded {
            // From now on a missing mark means that the mark was lost. Verdicts that another
            // process saved meanwhile are merged.
            cache.update_record(&self.all, SAVE_TIMEOUT, |kept| kept.unwrap_or_default().to_vec());
        }
        cache.put_record(&self.now, RunningTest::now(None, true).text().as_bytes());
    }

    fn mark(&mut self, at: Option<Digest>) {
        self.begin();
        let cache = self.engine.cache();
        let mark = RunningTest::now(at, self.sync_marks).text();
        if self.sync_marks {
            cache.put_record(&self.now, mark.as_bytes());
        } else {
            cache.put_record_unsynced(&self.now, mark.as_bytes());
        }
    }

    /// Saves the new verdicts.
    pub fn save(&mut self) {
        if self.new.is_empty() {
            return;
        }
        let new = std::mem::take(&mut self.new);
        self.known.extend(new.clone());
        // Another process may have added verdicts.
        self.engine.cache().update_record(&self.all, SAVE_TIMEOUT, |old| {
            let mut all = parsed(&String::from_utf8_lossy(old.unwrap_or_default()));
            all.extend(new);
            all.iter()
                .map(|(digest, verdict)| format!("{digest} {verdict}\n"))
                .collect::<String>()
                .into_bytes()
        });
    }
}

impl Drop for Verdicts {
    fn drop(&mut self) {
        self.save();
        if self.prepared {
            self.engine.cache().put_record_unsynced(&self.now, b"");
        }
    }
}

/// Parses one verdict per line. Invalid lines are skipped, so their code objects are tested again.
fn parsed(text: &str) -> BTreeMap<Digest, String> {
    let line = |line: &str| {
        let (digest, verdict) = line.split_once(' ')?;
        Some((digest.parse().ok()?, verdict.to_owned()))
    };
    text.lines().filter_map(line).collect()
}

/// The current test and its process.
#[derive(Debug, PartialEq, Eq)]
struct RunningTest {
    process: Process,
    /// Seconds since 1970.
    since: u64,
    /// Whether the mark was synced to the disk.
    waited: bool,
    /// The tested code object; `None` between two tests.
    at: Option<Digest>,
}

impl RunningTest {
    fn now(at: Option<Digest>, waited: bool) -> RunningTest {
        RunningTest { process: Process::this(), since: seconds(), waited, at }
    }

    /// Whether the process may still run. Only processes of this machine can be inspected, not
    /// processes in other containers or on other machines that share the cache.
    fn may_run(&self) -> bool {
        if self.process.machine == machine() {
            self.process.boot == boot() && start_time(self.process.id) == Some(self.process.start)
        } else {
            seconds().saturating_sub(self.since) < FOREIGN_MARK_SECONDS
        }
    }

    fn text(&self) -> String {
        let at = self.at.map_or(String::new(), |digest| digest.hex());
        let (Process { id, start, machine, boot }, waited) = (&self.process, u8::from(self.waited));
        format!("{id} {start} {machine} {boot} {} {waited} {at}", self.since)
    }

    fn parse(text: &str) -> Option<RunningTest> {
        let mut words = text.split(' ');
        let (id, start) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let process = Process {
            id,
            start,
            machine: words.next()?.to_owned(),
            boot: words.next()?.to_owned(),
        };
        let since = words.next()?.parse().ok()?;
        let waited = words.next()? == "1";
        Some(RunningTest {
            process,
            since,
            waited,
            at: words.next().and_then(|word| word.parse().ok()),
        })
    }
}

/// A process: its pid, its start time (pids are reused), its machine and pid namespace, and the
/// boot.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Process {
    id: u32,
    start: u64,
    machine: String,
    boot: String,
}

impl Process {
    fn this() -> Process {
        let id = std::process::id();
        Process { id, start: start_time(id).unwrap_or(0), machine: machine(), boot: boot() }
    }
}

/// The kernel's id of the current boot; `-` if it is unknown.
fn boot() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    if boot.trim().is_empty() { "-".to_owned() } else { boot.trim().to_owned() }
}

/// The host name and the pid namespace as one word.
fn machine() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let space = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    format!("{}/{}", host.trim(), space.display()).replace(char::is_whitespace, "_")
}

fn seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Start time of a process of this machine in clock ticks; `None` if the process does not exist.
fn start_time(id: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The program's name, in parentheses, may contain any character. The first word after it is the
    // state.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut words = rest.split_whitespace();
    // A zombie has exited and runs nothing.
    let state = words.next().filter(|state| !matches!(*state, "Z" | "X" | "x"));
    state.and_then(|_| words.nth(18)?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdict_lines_are_parsed_and_others_skipped() {
        let (one, two) = (Digest::of(b"1"), Digest::of(b"2"));
        let text = format!("{one} right\nnonsense\n{two} off by a half: 1 of 2\n7f right\n");
        let all: Vec<_> = parsed(&text).into_iter().collect();
        let mut want = vec![(one, "right".to_owned()), (two, "off by a half: 1 of 2".to_owned())];
        want.sort();
        assert_eq!(all, want);
    }

    #[test]
    fn mark_detects_running_and_ended_processes() {
        for at in [None, Some(Digest::of(b"1"))] {
            let mark = RunningTest::now(at, at.is_some());
            assert!(mark.may_run());
            assert_eq!(RunningTest::parse(&mark.text()).unwrap(), mark);
        }
        assert_eq!(RunningTest::parse(""), None);
        let ended = RunningTest {
            process: Process { start: 1, ..Process::this() },
            ..RunningTest::now(None, false)
        };
        assert!(!ended.may_run());
        // The process is on another machine or in another container: only the age of the mark
        // counts.
        let process = Process { machine: "elsewhere/pid:[1]".to_owned(), ..Process::this() };
        let fresh = RunningTest { process, ..RunningTest::now(None, false) };
        assert!(fresh.may_run());
        assert!(!RunningTest { since: fresh.since - FOREIGN_MARK_SECONDS, ..fresh }.may_run());
    }

    /// A zombie: a process that has exited but was not reaped.
    #[test]
    fn zombie_process_counts_as_ended() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        while std::fs::read_to_string(format!("/proc/{}/stat", child.id()))
            .is_ok_and(|stat| !stat.contains(") Z "))
        {
            std::thread::yield_now();
        }
        assert_eq!(start_time(child.id()), None);
        child.wait().unwrap();
        assert_eq!(start_time(child.id()), None);
    }

    /// If the process is killed between two tests (Ctrl-C during the upload of weights), no kernel
    /// is blamed. If it is killed during a test, only the tested kernel is blamed.
    #[test]
    fn killed_process_blames_only_the_kernel_under_test() {
        let dir = tempfile::tempdir().unwrap();
        let engine = Engine::new(crate::Config::new().cache_dir(dir.path()));
        let device = crate::driver::amd(0, "gfx1100", false);
        let (one, two) = (Digest::of(b"1"), Digest::of(b"2"));
        let ended = |verdicts: Verdicts, at| {
            // Simulates that the process has ended: nothing is dropped, and the mark belongs to
            // another process.
            let mark = RunningTest {
                process: Process { start: 1, ..Process::this() },
                ..RunningTest::now(at, false)
            };
            verdicts.engine.cache().put_record(&verdicts.now, mark.text().as_bytes());
            std::mem::forget(verdicts);
        };
        let mut first = engine.verdicts(&device);
        first.at(one, || ((), Some("right".to_owned())));
        let at = RunningTest::parse(
            &String::from_utf8(engine.cache().record(&first.now).unwrap()).unwrap(),
        )
        .unwrap()
        .at;
        assert_eq!(at, None, "the mark is cleared after the test");
        ended(first, at);
        let mut second = engine.verdicts(&device);
        assert!(second.new.is_empty() && second.known.is_empty() && second.sync_marks);
        second.at(one, || ((), Some("right".to_owned())));
        second.save();
        ended(second, Some(two));
        let mut third = engine.verdicts(&device);
        assert_eq!(third.known.get(&one).map(String::as_str), Some("right"));
        assert_eq!(third.known.get(&two).map(String::as_str), Some(KILLED));
        // The mark is partly or completely lost: the tested code object is unknown.
        third.at(one, || ((), None));
        let torn = |mark: &[u8]| {
            engine.cache().put_record(&third.now, mark);
            engine.verdicts(&device)
        };
        assert!(torn(b"12 34").sync_marks && torn(b"\0\0\0\0").sync_marks && !torn(b"").sync_marks);
        // A mark from before a reboot may be outdated, unless it was synced.
        let three = Digest::of(b"3");
        let before = |waited| {
            let process = Process { boot: "before".to_owned(), ..Process::this() };
            let mark = RunningTest { process, ..RunningTest::now(Some(three), waited) };
            engine.cache().put_record(&third.now, mark.text().as_bytes());
            engine.verdicts(&device)
        };
        let lagging = before(false);
        assert!(lagging.sync_marks && !lagging.known.contains_key(&three));
        assert_eq!(before(true).known.get(&three).map(String::as_str), Some(KILLED));
        let elsewhere = DeviceInfo { pci: "another".to_owned(), ..device };
        assert!(engine.verdicts(&elsewhere).sync_marks, "verdicts exist, but the mark is missing");
    }
}
