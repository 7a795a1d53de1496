//! The parent's side of compiler processes. They are started on demand, reused for many kernels,
//! and killed if they hang.

use super::child::{self, OpenCompilers, WORK};
use super::descendants::kill_descendants;
use super::protocol::{ChildRequest, ChildResponse};
use crate::error::{Error, Result};
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Where compilers run: in child processes or in this process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// In child processes. They run this program if it called [`crate::child_main`], otherwise the
    /// `kjit-cc` in the same folder.
    #[default]
    Children,
    /// In child processes of this executable (a `kjit-cc`).
    Worker(PathBuf),
    /// In this process. If the compiler aborts, this process ends. Only used on explicit request.
    InProcess,
}

/// Limits of a compile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub timeout: Duration,
    /// Maximum address space of a process in bytes; 0: no limit.
    pub memory: u64,
}

/// Number of compiles after which a process is replaced, since run-time compilers leak memory.
const RENEW_AFTER: u32 = 400;

/// All compiler processes of an engine.
pub(crate) struct Workers {
    isolation: Isolation,
    limits: Limits,
    idle: Mutex<Vec<Worker>>,
    /// Compilers that were opened in this process, if requested.
    here: Mutex<Vec<OpenCompilers>>,
}

/// The reason of a failed request.
enum Failure {
    /// The process cannot be started. This fails for every request.
    Start(Box<Error>),
    /// The process exceeded the time limit.
    Slow,
    /// The process died, or its answer was invalid.
    Died(String),
}

/// A failed request with the output of the process.
struct Failed {
    failure: Failure,
    log: String,
}

struct Worker {
    child: Child,
    questions: ChildStdin,
    answers: Receiver<std::result::Result<Option<ChildResponse>, String>>,
    log: File,
    /// Bytes of the log that belong to earlier compiles.
    seen: u64,
    done: u32,
    /// The folder of temporary files. It is removed when the process has ended for any reason.
    _scratch: tempfile::TempDir,
}

impl Drop for Worker {
    fn drop(&mut self) {
        // The process may have exited already. Otherwise SIGSTOP prevents it from starting new
        // processes, and orphans become its children. Then all its descendants (a hanging clang,
        // its linker) are killed, also descendants outside its process group.
        if let (Ok(None), Ok(group)) = (self.child.try_wait(), i32::try_from(self.child.id())) {
            // SAFETY: `kill` gets numbers only. The child leads the group and was not reaped, so
            // its id was not reused.
            unsafe { libc::kill(group, libc::SIGSTOP) };
            kill_descendants(group);
            // SAFETY: `kill` gets numbers only. The child was not reaped, so its id was not reused.
            unsafe { libc::kill(-group, libc::SIGKILL) };
        }
        let _ = self.child.kill();
        // Reaps the child, so that no zombie remains.
        let _ = self.child.wait();
    }
}

impl Workers {
    pub fn new(isolation: Isolation, limits: Limits) -> Workers {
        Workers { isolation, limits, idle: Mutex::default(), here: Mutex::default() }
    }

    /// Sends a request to a compiler process. If the process dies, a second one gets the request.
    /// Returns the answer and the output of the process.
    ///
    /// # Errors
    /// [`Error::Worker`] if the process died twice or hung; [`Error::NoProcess`] if it could not be
    /// started.
    pub fn ask(
        &self,
        kernel: &str,
        compiler: &str,
        ask: &ChildRequest,
    ) -> Result<(ChildResponse, String)> {
        if self.isolation == Isolation::InProcess {
            let mut opened = lock(&self.here).pop().unwrap_or_default();
            let answer = opened.answer(ask.clone());
            lock(&self.here).push(opened);
            return Ok((answer, String::new()));
        }
        let failure = |what: String, log: &str| {
            Err(Error::Worker {
                kernel: kernel.to_owned(),
                compiler: compiler.to_owned(),
                what: format!("{what}{}", end_of_log(log)),
                log: keep_log(kernel, log),
            })
        };
        match self.try_once(ask) {
            Ok(answered) => Ok(answered),
            Err(Failed { failure: Failure::Start(error), .. }) => Err(*error),
            // A second process would hang as well.
            Err(Failed { failure: Failure::Slow, log }) => failure(
                format!("was stopped after {} s (time limit)", self.limits.timeout.as_secs_f64()),
                &log,
            ),
            Err(Failed { failure: Failure::Died(_), .. }) => match self.try_once(ask) {
                Ok(answered) => Ok(answered),
                Err(Failed { failure: Failure::Start(error), .. }) => Err(*error),
                Err(Failed { failure: Failure::Slow, log }) => {
                    failure("died, and the second attempt hung".to_owned(), &log)
                }
                Err(Failed { failure: Failure::Died(how), log }) => {
                    failure(format!("{how}, twice"), &log)
                }
            },
        }
    }

    /// Ends all idle processes, so that the next compile reopens its compiler.
    pub fn renew(&self) {
        lock(&self.idle).clear();
    }

    fn try_once(&self, ask: &ChildRequest) -> std::result::Result<(ChildResponse, String), Failed> {
        let idle = lock(&self.idle).pop();
        let mut worker = match idle {
            Some(worker) => worker,
            None => self
                .start()
                .map_err(|e| Failed { failure: Failure::Start(Box::new(e)), log: String::new() })?,
        };
        let answer = worker.exchange(ask, self.limits.timeout);
        let log = worker.read_log();
        match answer {
            Ok(answer) => {
                worker.done += 1;
                if worker.done < RENEW_AFTER {
                    lock(&self.idle).push(worker);
                }
                Ok((answer, log))
            }
            Err(failure) => Err(Failed { failure, log }),
        }
    }

    fn start(&self) -> Result<Worker> {
        let program = self.program()?;
        let fail =
            |why: std::io::Error| Error::NoProcess { why: format!("{}: {why}", program.display()) };
        let temporary = |e: std::io::Error| Error::NoProcess {
            why: format!(
                "cannot write temporary files to {}: {e}; set TMPDIR to a writable folder",
                std::env::temp_dir().display()
            ),
        };
        let log = tempfile::tempfile().map_err(temporary)?;
        let scratch = tempfile::Builder::new().prefix("kjit-cc-").tempdir().map_err(temporary)?;
        let mut child = Command::new(&program)
            // The compilers' own caches are disabled, since their entries are not verified. (nvrtc
            // 13.0 compiled 210 kernels in 47 s with one job the first time, and in 2.4 s with two
            // the second time.)
            .env("CUDA_CACHE_DISABLE", "1")
            .env("AMD_COMGR_CACHE", "0")
            .arg(WORK)
            .arg(self.limits.memory.to_string())
            .arg(scratch.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log.try_clone().map_err(fail)?)
            // The program handles Ctrl-C; it must not kill a compile.
            .process_group(0)
            .spawn()
            .map_err(fail)?;
        let (Some(questions), Some(mut output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(fail(std::io::Error::other("no pipes")));
        };
        let (send, answers) = sync_channel(1);
        std::thread::Builder::new()
            .name("kjit-cc reader".into())
            .stack_size(256 << 10)
            .spawn(move || {
                loop {
                    let answer = ChildResponse::read(&mut output);
                    let last = !matches!(answer, Ok(Some(_)));
                    if send.send(answer).is_err() || last {
                        return;
                    }
                }
            })
            .map_err(fail)?;
        Ok(Worker { child, questions, answers, log, seen: 0, done: 0, _scratch: scratch })
    }

    /// The executable of other child processes; `None` if everything must run in this process.
    pub fn apart(&self) -> Option<PathBuf> {
        if self.isolation == Isolation::InProcess { None } else { self.program().ok() }
    }

    /// The executable of compiler processes. It can also repeat a failed compile.
    pub fn program(&self) -> Result<PathBuf> {
        if let Isolation::Worker(path) = &self.isolation {
            return Ok(path.clone());
        }
        let this = std::env::current_exe()
            .map_err(|e| Error::Io { path: "/proc/self/exe".into(), why: e.to_string() })?;
        if child::is_armed() {
            return Ok(this);
        }
        let mut tried = Vec::new();
        // The folder of the program is searched, and its parent: cargo puts test and example
        // binaries into subfolders.
        for folder in this.ancestors().skip(1).take(2) {
            let file = folder.join("kjit-cc");
            if file.is_file() {
                return Ok(file);
            }
            tried.push(file.display().to_string());
        }
        Err(Error::NoProcess {
            why: format!(
                "the compiler runs in a child process: call kjit_engine::child_main() first in main, or install {}",
                tried.join(" or ")
            ),
        })
    }
}

impl Worker {
    fn exchange(
        &mut self,
        ask: &ChildRequest,
        timeout: Duration,
    ) -> std::result::Result<ChildResponse, Failure> {
        let sent = self.questions.write_all(&ask.encode()).and_then(|()| self.questions.flush());
        if sent.is_err() {
            return Err(Failure::Died(self.exit_reason()));
        }
        match self.answers.recv_timeout(timeout) {
            Ok(Ok(Some(answer))) => Ok(answer),
            Ok(Ok(None)) | Err(RecvTimeoutError::Disconnected) => {
                Err(Failure::Died(self.exit_reason()))
            }
            Ok(Err(why)) => Err(Failure::Died(format!(
                "sent an invalid answer ({why}); {}",
                self.exit_reason()
            ))),
            Err(RecvTimeoutError::Timeout) => Err(Failure::Slow),
        }
    }

    fn exit_reason(&mut self) -> String {
        // The pipe is closed, so the process has exited or will exit soon. If it does not, it is
        // killed.
        for _ in 0..200 {
            match self.child.try_wait() {
                Ok(Some(status)) => return ended(status),
                Ok(None) => std::thread::sleep(Duration::from_millis(5)),
                Err(error) => return format!("is lost: {error}"),
            }
        }
        "closed its pipe".to_owned()
    }

    /// The output since the last call. It is read by offset, because the child writes to the same
    /// file.
    fn read_log(&mut self) -> String {
        const MOST: u64 = 1 << 20;
        let len = self.log.metadata().map_or(self.seen, |m| m.len());
        let from = self.seen.max(len.saturating_sub(MOST));
        let mut bytes = vec![0; usize::try_from(len.saturating_sub(from)).unwrap_or(0)];
        self.seen = len;
        match self.log.read_at(&mut bytes, from) {
            Ok(n) => String::from_utf8_lossy(bytes.get(..n).unwrap_or_default()).into_owned(),
            Err(_) => String::new(),
        }
    }
}

fn ended(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("was killed by signal {signal}{}", signal_name(signal)),
        (None, Some(code)) => format!("exited with code {code}"),
        (None, None) => "ended".to_owned(),
    }
}

fn signal_name(signal: i32) -> &'static str {
    match signal {
        libc::SIGABRT => " (it aborted)",
        libc::SIGSEGV => " (invalid memory access)",
        libc::SIGKILL => " (out of memory?)",
        libc::SIGILL => " (illegal instruction)",
        libc::SIGFPE => " (arithmetic fault)",
        _ => "",
    }
}

fn end_of_log(log: &str) -> String {
    log.lines()
        .rev()
        .find(|l| !l.trim().is_empty())
        .map(|l| format!(": {}", l.trim()))
        .unwrap_or_default()
}

pub(crate) fn keep_log(kernel: &str, log: &str) -> Option<PathBuf> {
    if log.trim().is_empty() {
        return None;
    }
    let folder = kept_folder(kernel).ok()?;
    let file = folder.join("log.txt");
    std::fs::write(&file, log).ok()?;
    Some(file)
}

/// Creates a private folder. The files of a failed compile stay in it for inspection.
pub(crate) fn kept_folder(kernel: &str) -> std::io::Result<PathBuf> {
    let name: String =
        kernel.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).take(40).collect();
    Ok(tempfile::Builder::new().prefix(&format!("kjit-failed-{name}-")).tempdir()?.keep())
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A path as a field of a request.
pub(crate) fn path_text(path: &Path) -> Result<String> {
    path.to_str()
        .map(str::to_owned)
        .ok_or_else(|| Error::Io { path: path.to_owned(), why: "its name is not UTF-8".to_owned() })
}
