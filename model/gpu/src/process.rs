//! A child process that uses a device. If it faults, hangs or is killed, the parent continues. The
//! parent sends requests and reads answers.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A child that answers each line of JSON with an `ChildResponse` as a line of JSON.
pub struct Process<ChildResponse> {
    child: Child,
    questions: ChildStdin,
    answers: Receiver<Result<ChildResponse, String>>,
    said: Arc<Mutex<Vec<u8>>>,
}

/// Maximum bytes of a child's standard error that are stored.
const MAX_STDERR: usize = 4096;

impl<ChildResponse: DeserializeOwned + Send + 'static> Process<ChildResponse> {
    /// Starts a child.
    ///
    /// # Errors
    /// The program cannot be started, as text.
    pub fn start(mut command: Command) -> Result<Process<ChildResponse>, String> {
        let name = format!("{command:?}");
        let fail =
            |why: String| format!("cannot start the process that uses the device ({name}): {why}");
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = piped.spawn().map_err(|e| fail(e.to_string()))?;
        let (Some(questions), Some(output), Some(mut errors)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(fail("it has no pipes".to_owned()));
        };
        let (send, answers) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines() {
                let line = line.map_err(|e| e.to_string());
                // Other lines (the banner of a library, a test harness) are ignored.
                let answer = line.map(|l| serde_json::from_str::<ChildResponse>(&l));
                let known = match answer {
                    Ok(Ok(answer)) => Ok(answer),
                    Ok(Err(_)) => continue,
                    Err(why) => Err(why),
                };
                if send.send(known).is_err() {
                    return;
                }
            }
        });
        let said = Arc::new(Mutex::new(vec![]));
        let kept = Arc::clone(&said);
        std::thread::spawn(move || {
            let mut part = [0; 1024];
            while let Ok(n @ 1..) = errors.read(&mut part) {
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                kept.extend_from_slice(part.get(..n).unwrap_or_default());
                let extra = kept.len().saturating_sub(MAX_STDERR);
                kept.drain(..extra);
            }
        });
        Ok(Process { child, questions, answers, said })
    }

    /// Sends a request and waits for its answer.
    ///
    /// # Errors
    /// The child ended, or printed nothing for `patience`, as text. [`Process::end`] says how it
    /// ended.
    pub fn exchange(
        &mut self,
        ask: &impl Serialize,
        patience: Duration,
    ) -> Result<ChildResponse, String> {
        let line = serde_json::to_string(ask).map_err(|e| e.to_string())? + "\n";
        // If the child has ended, reading the answer reports the reason.
        let sent = self.questions.write_all(line.as_bytes()).and_then(|()| self.questions.flush());
        match self.answers.recv_timeout(if sent.is_ok() {
            patience
        } else {
            Duration::from_secs(5)
        }) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) => Err(format!(
                "it did not answer within {} s and was stopped",
                patience.as_secs_f64()
            )),
            Err(RecvTimeoutError::Disconnected) => Err("it ended".to_owned()),
        }
    }

    /// Ends the child. Returns the reason of its end, as text.
    pub fn end(mut self, why: &str) -> String {
        // The child's own exit status has more information than the status after the kill.
        let status = match self.child.try_wait() {
            Ok(Some(status)) => Some(status),
            _ => {
                std::thread::sleep(Duration::from_millis(50));
                self.child.try_wait().ok().flatten()
            }
        };
        let how = status.map_or(String::new(), |s| format!(" ({})", ending(s)));
        let _ = self.child.kill();
        let _ = self.child.wait();
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let said = String::from_utf8_lossy(&said);
        let last = said.lines().rev().find(|l| !l.trim().is_empty()).unwrap_or_default();
        format!("{why}{how}{}{last}", if last.is_empty() { "" } else { ": " })
    }
}

impl<ChildResponse> Drop for Process<ChildResponse> {
    fn drop(&mut self) {
        // The child may have ended already. Waiting avoids a zombie.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(unix)]
fn ending(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    status.signal().map_or_else(|| status.to_string(), |s| format!("signal {s}"))
}
