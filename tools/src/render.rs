//! A chat template is a program out of a file. Its steps are counted by the library; what it may hold in memory is watched here, because a string that
//! is doubled fifty times takes few steps, and a refused allocation would end the process by a signal.

use crate::report::say;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{Builder, Thread, park_timeout};
use std::time::Duration;

/// What rendering may add to the process's memory: four times the longest prompt that is taken, and thousands of times a usual one.
const LIMIT: u64 = 1 << 30;
/// Doubling a string of that size takes some hundred times as long.
const PAUSE: Duration = Duration::from_millis(2);

/// Runs `render`; ends the program with one line and exit code 1 if it takes memory without end.
pub fn bounded<T>(render: impl FnOnce() -> T) -> T {
    let done = AtomicBool::new(false);
    let before = data();
    std::thread::scope(|scope| {
        let watch = || {
            while !done.load(Relaxed) {
                if data().saturating_sub(before) > LIMIT {
                    say(format_args!(
                        "error: the model's chat template takes more than {} MiB of memory: use --raw to do without it",
                        LIMIT >> 20
                    ));
                    std::process::exit(1);
                }
                park_timeout(PAUSE);
            }
        };
        // Where the system gives no thread, nobody watches.
        let watcher = Builder::new().name("kjit-template".into()).spawn_scoped(scope, watch);
        let _end = End(&done, watcher.as_ref().ok().map(|w| w.thread().clone()));
        render()
    })
}

/// Ends the watch, also when rendering panics.
struct End<'a>(&'a AtomicBool, Option<Thread>);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
        if let Some(watcher) = &self.1 {
            watcher.unpark();
        }
    }
}

/// Bytes that the process has for data, mapped files not counted; 0 where the system does not say.
fn data() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: Option<u64> = text.split_whitespace().nth(5).and_then(|n| n.parse().ok());
    // Of 4 KiB nearly everywhere; where they are larger, the limit is.
    pages.unwrap_or(0).saturating_mul(4096)
}
