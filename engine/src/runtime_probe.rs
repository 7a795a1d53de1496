//! Checks in a separate process, with a time limit, whether a vendor's runtime answers.
//!
//! A kernel driver may hang after a failed reset, or with a card that it supports only in part.
//! Then it blocks its callers forever in a system call. Some runtimes abort the calling process. So
//! a child process makes the first query after boot. Success is recorded, and later starts query
//! directly.

use crate::compiler::child::LOOK;
use crate::compiler::wait::wait;
use crate::driver;
use crate::engine::Engine;
use kjit_cache::Key;
use std::io::{Read, Seek};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};
use std::sync::Once;

/// Variables that influence the answer, in addition to the boot.
const VARIABLES: &[&str] = &["KJIT_HIP_LIBRARY", "ROCM_PATH", "LD_LIBRARY_PATH"];

/// Id of the current boot.
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
    /// Checks that drivers answer. A driver that does not answer is not used again.
    pub(crate) fn check_drivers(&self) {
        // This is done once for all engines, because a driver is opened once per process.
        static LOOKED: Once = Once::new();
        LOOKED.call_once(|| {
            driver::probed_in_child().into_iter().for_each(|word| self.check_driver(word))
        });
    }

    fn check_driver(&self, word: &'static str) {
        let kept = boot().map(|boot| key(word, &boot));
        if kept.as_ref().is_some_and(|key| self.cache().record(key).is_some()) {
            return;
        }
        match self.probe_in_child(word) {
            Ok(true) => {
                if let Some(key) = kept {
                    self.cache().put_record(&key, b"answers");
                }
            }
            // No child process can be started, so this process queries the driver.
            Ok(false) => {}
            Err(why) => driver::refuse(word, why),
        }
    }

    /// Whether a child process got an answer. The error states how the driver blocked or killed it.
    fn probe_in_child(&self, word: &str) -> Result<bool, String> {
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
                "{name} did not answer within {} s: the kernel driver hangs. `dmesg | grep amdgpu` shows the cause; restart the machine",
                patience.as_secs_f64()
            ));
        };
        if status.success() {
            return Ok(true);
        }
        let mut output = String::new();
        let _ = log.rewind().and_then(|()| log.read_to_string(&mut output));
        let last =
            output.lines().rev().find(|l| !l.trim().is_empty()).map(|l| format!(": {}", l.trim()));
        let how = status.signal().map_or_else(|| status.to_string(), |n| format!("signal {n}"));
        Err(format!("{name} crashes when it lists devices ({how}){}", last.unwrap_or_default()))
    }
}
