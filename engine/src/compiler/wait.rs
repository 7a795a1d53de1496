//! Waits for a child process with a time limit.

use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

/// The exit status of the child. `None` if it did not end in time; it is then killed in the
/// background.
pub(crate) fn wait(mut child: Child, patience: Duration) -> Option<ExitStatus> {
    let start = Instant::now();
    while start.elapsed() < patience {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) => std::thread::sleep(Duration::from_millis(2)),
            Err(_) => break,
        }
    }
    let _ = child.kill();
    // A child that hangs in the kernel does not even end when it is killed. So a separate thread
    // waits for it.
    let reap = move || drop(child.wait());
    let _ = std::thread::Builder::new().name("kjit waits".into()).stack_size(64 << 10).spawn(reap);
    None
}
