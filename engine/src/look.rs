//! Whether a vendor's runtime answers at all: found out in a process of its own, with a deadline.
//!
//! A kernel driver that hangs (after a fault that it could not reset, or with a card that it half
//! knows) holds whoever asks it for ever, in a call that nothing ends, and some runtimes end the
//! process that asks. So the first question after the machine was started is put by a child. It is
//! remembered that it was answered: the next start asks at once.

use crate::compiler::child::LOOK;
use crate::driver;
use crate::engine::Engine;
use kjit_cache::Key;
use std::io::{Read, Seek};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Once;
use std::time::{Duration, Instant};

/// What the answer depends on, beside which start of the machine this is.
const VARIABLES: &[&str] = &["KJIT_HIP_LIBRARY", "ROCM_PATH", "LD_LIBRARY_PATH"];

/// The child: asks for devices, and ends well whatever it is told. What it is told, the parent
/// hears itself.
pub(crate) fn look(word: &str) -> i32 {
    driver::ask(word);
    0
}

/// Which start of the machine this is.
fn boot() -> Option<String> {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()
}

fn key(word: &str, boot: &str) -> Key {
    let named = VARIABLES.iter().map(|name| (*name, std::env::var(name).unwrap_or_default()));
    let seen = driver::visibility();
    let seen = seen.iter().map(|(name, value)| (name.as_str(), value.clone()));
    named
        .chain(seen)
        .fold(
            Key::builder("kjit discovery").field("driver", word).field("boot", boot),
            |key, (name, value)| key.field(name, value),
        )
        .finish()
}

impl Engine {
    /// Sees to it that drivers can be asked: one that does not answer is refused from then on.
    pub(crate) fn look(&self) {
        // Once for all engines: a driver is opened once for the process.
        static LOOKED: Once = Once::new();
        LOOKED.call_once(|| driver::asked_apart().into_iter().for_each(|word| self.look_at(word)));
    }

    fn look_at(&self, word: &'static str) {
        let kept = boot().map(|boot| key(word, &boot));
        if kept.as_ref().is_some_and(|key| self.cache().record(key).is_some()) {
            return;
        }
        match self.ask_apart(word) {
            Ok(true) => {
                if let Some(key) = kept {
                    self.cache().put_record(&key, b"answers");
                }
            }
            // No such process can be started: it is asked here, as it would be without all this.
            Ok(false) => {}
            Err(why) => driver::refuse(word, why),
        }
    }

    /// Whether a child could ask and came back; why not, if the driver held or ended it.
    fn ask_apart(&self, word: &str) -> Result<bool, String> {
        let (Some(program), Ok(mut log)) = (self.inner.workers.apart(), tempfile::tempfile())
        else {
            return Ok(false);
        };
        let Ok(errors) = log.try_clone() else { return Ok(false) };
        let mut command = Command::new(program);
        command
            .args([LOOK, word])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(errors)
            .process_group(0);
        let Ok(child) = command.spawn() else { return Ok(false) };
        let patience = self.inner.config.discovery;
        let name = driver::runtime_name(word);
        let Some(status) = wait(child, patience) else {
            return Err(format!(
                "{name} did not answer within {} s, nor may it ever: the kernel driver hangs \
                 (dmesg | grep amdgpu says \
                 of what; a restart of the machine ends that)",
                patience.as_secs_f64()
            ));
        };
        if status.success() {
            return Ok(true);
        }
        let mut said = String::new();
        let _ = log.rewind().and_then(|()| log.read_to_string(&mut said));
        let last =
            said.lines().rev().find(|l| !l.trim().is_empty()).map(|l| format!(": {}", l.trim()));
        let how = status.signal().map_or_else(|| status.to_string(), |n| format!("signal {n}"));
        Err(format!(
            "{name} ends the process that asks it for devices ({how}){}",
            last.unwrap_or_default()
        ))
    }
}

/// How the child ended; none, and it is left to its fate, where it did not in that time.
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
    // One that hangs in the kernel does not even end then: nobody waits for it but a thread.
    let reap = move || drop(child.wait());
    let _ = std::thread::Builder::new().name("kjit waits".into()).stack_size(64 << 10).spawn(reap);
    None
}
