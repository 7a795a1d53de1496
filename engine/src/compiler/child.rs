//! The compiler process: a loop that answers requests. Compilers cannot write to its pipes by
//! standard output.

use super::compiled::Compiled;
use super::descendants::{adopt_orphans, kill_descendants};
use super::interface::Backend;
use super::open;
use super::protocol::{ChildRequest, ChildResponse};
use super::scratch::{SCRATCH, remove_scratch};
use crate::driver;
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::FromRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// First argument of a compiler process.
pub(crate) const WORK: &str = "--kjit-cc-work";
/// First argument of a process that lists a driver's devices.
pub(crate) const LOOK: &str = "--kjit-cc-look";
/// First argument of a process that repeats a failed compile.
pub(crate) const REPEAT: &str = "--kjit-cc-repeat";
/// Name of the request file in the folder of a failed compile.
pub(crate) const REQUEST: &str = "request.bin";

/// Whether this program can be started as its own compiler process.
static ARMED: AtomicBool = AtomicBool::new(false);

pub(crate) fn is_armed() -> bool {
    ARMED.load(Ordering::Relaxed)
}

/// Lets the calling program be its own compiler process. Call it first in `main`. In a process that
/// was started to compile, it does not return; in other processes it returns immediately.
///
/// A program that ships `kjit-cc` in its own folder does not need this call.
pub fn child_main() {
    ARMED.store(true, Ordering::Relaxed);
    let mut arguments = std::env::args_os().skip(1);
    if let Some(first) = arguments.next()
        && let Some(code) = dispatch(&first, arguments)
    {
        std::process::exit(code);
    }
}

/// Runs the action that the first argument names; `None` if the argument does not name an action.
fn dispatch(first: &OsString, mut rest: impl Iterator<Item = OsString>) -> Option<i32> {
    if first == WORK {
        let limit = rest.next().and_then(|n| n.to_str()?.parse().ok()).unwrap_or(0);
        if let Some(folder) = rest.next() {
            let _ = SCRATCH.set(PathBuf::from(folder));
        }
        let code = work(limit);
        remove_scratch();
        return Some(code);
    }
    if first == LOOK {
        exit_with_parent();
        return Some(look(rest.next()?.to_str()?));
    }
    if first == REPEAT {
        return Some(repeat(&PathBuf::from(rest.next().unwrap_or_default())));
    }
    None
}

/// The main function of `kjit-cc`; returns its exit code.
#[must_use]
pub fn kjit_cc() -> i32 {
    let mut arguments = std::env::args_os().skip(1);
    let code = arguments.next().and_then(|first| dispatch(&first, arguments));
    code.unwrap_or_else(|| {
        eprintln!(
            "kjit-cc is the compiler process of kjit; to repeat a failed compile: kjit-cc {REPEAT} FOLDER"
        );
        2
    })
}

/// Answers requests until the pipe ends.
fn work(memory_limit: u64) -> i32 {
    let Some((mut questions, mut answers)) = take_pipes() else { return 1 };
    limit_memory(memory_limit);
    adopt_orphans();
    exit_with_parent();
    let mut opened = OpenCompilers::default();
    loop {
        let answer = match ChildRequest::read(&mut questions) {
            Ok(Some(ask)) => opened.answer(ask),
            Ok(None) => return 0,
            Err(why) => {
                eprintln!("kjit-cc: {why}");
                return 1;
            }
        };
        if answer.write(&mut answers).is_err() {
            return 0; // the parent has exited
        }
    }
}

/// Moves the pipes away from descriptors 0 and 1. Then a compiler that prints writes to the log
/// (descriptor 2), and a compiler that reads gets nothing.
fn take_pipes() -> Option<(File, File)> {
    // SAFETY: duplicates our own descriptors; each copy belongs to one of the two files only.
    unsafe {
        let questions = libc::fcntl(0, libc::F_DUPFD_CLOEXEC, 16);
        let answers = libc::fcntl(1, libc::F_DUPFD_CLOEXEC, 16);
        if questions < 0 || answers < 0 || libc::dup2(2, 1) < 0 {
            return None;
        }
        let nothing = libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        if nothing < 0 || libc::dup2(nothing, 0) < 0 {
            return None;
        }
        libc::close(nothing);
        Some((File::from_raw_fd(questions), File::from_raw_fd(answers)))
    }
}

/// Limits the address space, so that a compiler that allocates too much fails alone.
fn limit_memory(bytes: u64) {
    if bytes > 0 {
        let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
        // SAFETY: passes one struct. If the system refuses, memory is unlimited.
        unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) };
    }
}

/// Ends this process when the parent has ended, even during a compile.
fn exit_with_parent() {
    // SAFETY: takes no arguments and accesses no memory.
    let parent = unsafe { libc::getppid() };
    // Without this thread, a hanging compiler would keep running after its parent was killed. That
    // is not a reason to fail.
    let _ = std::thread::Builder::new().name("parent watch".into()).stack_size(64 << 10).spawn(
        move || {
            loop {
                std::thread::sleep(std::time::Duration::from_millis(250));
                // SAFETY: takes no arguments and accesses no memory.
                if unsafe { libc::getppid() } != parent {
                    if let Ok(this) = i32::try_from(std::process::id()) {
                        kill_descendants(this);
                    }
                    remove_scratch();
                    // SAFETY: _exit runs no exit handlers, which could crash while a compiler is
                    // working.
                    unsafe { libc::_exit(0) }
                }
            }
        },
    );
}

/// The compilers opened in this process.
#[derive(Default)]
pub(crate) struct OpenCompilers(HashMap<(String, String), Result<Box<dyn Backend>, String>>);

impl OpenCompilers {
    pub fn answer(&mut self, ask: ChildRequest) -> ChildResponse {
        match ask {
            ChildRequest::Probe { kind, file } => {
                ChildResponse::Probe(self.get(kind, file).and_then(|c| c.probe()))
            }
            ChildRequest::Compile { kind, file, request } => {
                ChildResponse::Compiled(match self.get(kind, file) {
                    Ok(compiler) => compiler.compile(&request),
                    Err(why) => Compiled::Broken { why },
                })
            }
        }
    }

    fn get(&mut self, kind: String, file: String) -> Result<&dyn Backend, String> {
        let entry = self.0.entry((kind, file));
        let (kind, file) = entry.key().clone();
        match entry.or_insert_with(|| open(&kind, Path::new(&file))) {
            Ok(compiler) => Ok(&**compiler),
            Err(why) => Err(why.clone()),
        }
    }
}

/// Repeats a failed compile and prints the output of the compiler.
fn repeat(folder: &Path) -> i32 {
    let file = folder.join(REQUEST);
    let ask = std::fs::read(&file)
        .map_err(|e| e.to_string())
        .and_then(|bytes| ChildRequest::read(&mut bytes.as_slice()));
    let mut out = std::io::stderr();
    // Standard error may be closed. There is nowhere else to report the error.
    match ask {
        Ok(Some(ask)) => match OpenCompilers::default().answer(ask) {
            ChildResponse::Compiled(Compiled::Code { code, log }) => {
                let _ = writeln!(out, "{log}\ncompiled: {} bytes", code.len());
                0
            }
            ChildResponse::Compiled(Compiled::Refused { log } | Compiled::Broken { why: log }) => {
                let _ = writeln!(out, "{log}");
                1
            }
            ChildResponse::Probe(probe) => {
                let _ = writeln!(out, "{probe:?}");
                0
            }
        },
        Ok(None) => {
            let _ = writeln!(out, "{}: empty", file.display());
            1
        }
        Err(why) => {
            let _ = writeln!(out, "{}: {why}", file.display());
            1
        }
    }
}

/// The child: queries devices and exits with 0 regardless of the answer. The parent then queries
/// the devices itself.
pub(crate) fn look(word: &str) -> i32 {
    driver::ask(word);
    0
}
