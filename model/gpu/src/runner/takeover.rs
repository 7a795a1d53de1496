//! A token becomes one launch while tokens are made: its kernel was compiled behind the first of
//! them (`gpu/early.rs`).

use super::GpuRunner;
use crate::resident::Persistent;
use kjit_exec::SessionError;

impl GpuRunner {
    /// If the kernel of a whole token has just come, it takes over here, between two tokens.
    /// Whether it did: then what was recorded of a token is recorded anew. `at`: tokens that are in
    /// the sequence at hand. Until it is there this is a look; once, it allocates and waits for
    /// what is on its way.
    pub(super) fn take_over(&mut self, at: usize) -> Result<bool, SessionError> {
        if self.leave_one_launch()? {
            return Ok(true);
        }
        if !self.one_launch_late {
            return Ok(false);
        }
        let Some(early) = self.early.clone() else { return Ok(false) };
        // Launches whose blocks meet were refused when the model was opened.
        if !self.resident.cooperative {
            self.one_launch_late = false;
            early.one_launch_taken(Err("its blocks meet, and that is refused here".to_owned()));
            return Ok(false);
        }
        let Some(kernels) = early.one_launch(self.opened())? else { return Ok(false) };
        self.one_launch_late = false;
        // What is replayed may not go while it runs.
        self.resident.stream.synchronize()?;
        let ready = Persistent::all(&self.resident, kernels).and_then(|all| {
            self.resident.persistent = all;
            self.forget_tokens();
            if self.captures { self.records() } else { Ok(()) }
        });
        let refused = match ready {
            Ok(()) => {
                early.one_launch_taken(Ok(at));
                return Ok(true);
            }
            // Of a lost device nothing more can be had.
            Err(lost) if self.opened().memory().is_err() => return Err(lost),
            Err(refused) => refused,
        };
        // As at opening: launches go on.
        self.resident.persistent.clear();
        self.forget_tokens();
        early.one_launch_taken(Err(refused.to_string()));
        Ok(true)
    }

    /// Each step of a token is a launch from here on.
    pub(super) fn launch_tokens(&mut self) -> Result<(), SessionError> {
        self.one_launch_late = false;
        if !self.resident.persistent.is_empty() {
            // What is replayed may not go while it runs.
            self.resident.stream.synchronize()?;
            self.forget_tokens();
            self.resident.persistent.clear();
        }
        Ok(())
    }

    /// What was recorded of as many sequences as have one launch.
    fn forget_tokens(&mut self) {
        let most = self.resident.plan.persistent.last().map_or(0, |one| one.rows);
        self.recordings.retain(|((rows, _), _)| *rows > most);
    }
}
