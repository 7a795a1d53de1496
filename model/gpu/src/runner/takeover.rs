//! Switches to a persistent kernel that was compiled in the background (`gpu/src/background.rs`)
//! during decoding.

use super::GpuRunner;
use crate::loaded_plan::Persistent;
use kjit_exec::SessionError;

impl GpuRunner {
    /// Switches to the persistent kernel between two tokens, if its compile has just ended. Returns
    /// whether it switched; graphs must then be captured again. `at` is the number of tokens in the
    /// sequence. Until the compile has ended, this only polls. The switch allocates and waits for
    /// the stream.
    pub(super) fn take_over(&mut self, at: usize) -> Result<bool, SessionError> {
        if self.leave_persistent()? {
            return Ok(true);
        }
        if !self.one_launch_late {
            return Ok(false);
        }
        let Some(early) = self.early.clone() else { return Ok(false) };
        // A kernel that was not tried on this device is tried at the next start.
        if self.untried {
            return Ok(false);
        }
        // Cooperative launches failed when the model was opened.
        if !self.loaded.cooperative {
            self.one_launch_late = false;
            early.one_launch_taken(Err("cooperative launches are refused here".to_owned()));
            return Ok(false);
        }
        let Some(kernels) = early.one_launch(self.opened())? else { return Ok(false) };
        self.one_launch_late = false;
        // A captured graph must not be dropped while it runs.
        self.loaded.stream.synchronize()?;
        let ready = Persistent::all(&self.loaded, kernels).and_then(|all| {
            self.loaded.persistent = all;
            self.drop_recordings();
            if self.captures { self.records() } else { Ok(()) }
        });
        let refused = match ready {
            Ok(()) => {
                early.one_launch_taken(Ok(at));
                return Ok(true);
            }
            // After a lost device there is no second try.
            Err(lost) if self.opened().memory().is_err() => return Err(lost),
            Err(refused) => refused,
        };
        // Ordinary launches are used instead, as at opening.
        self.loaded.persistent.clear();
        self.drop_recordings();
        early.one_launch_taken(Err(refused.to_string()));
        Ok(true)
    }

    /// Stops using the persistent kernel: each step of a token is a separate launch from now on.
    pub(super) fn launch_tokens(&mut self) -> Result<(), SessionError> {
        self.one_launch_late = false;
        if !self.loaded.persistent.is_empty() {
            // A captured graph must not be dropped while it runs.
            self.loaded.stream.synchronize()?;
            self.drop_recordings();
            self.loaded.persistent.clear();
        }
        Ok(())
    }

    /// Drops the captured graphs for numbers of sequences that have a persistent kernel.
    fn drop_recordings(&mut self) {
        let most = self.loaded.plan.persistent.last().map_or(0, |one| one.rows);
        self.recordings.retain(|((rows, _), _)| *rows > most);
    }
}
