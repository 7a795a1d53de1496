//! Few answers and nobody else: on a GPU the device chooses token after token and runs ahead, as it does for one who talks to it alone.

use super::request::{Failure, Refused};
use super::running::{End, guarded};
use super::step::hand_out;
use super::worker::Worker;
use crate::sample::Sampler;
use crate::session::{After, SequenceId, SessionError};
use std::time::{Duration, Instant};

/// Answers at most. Whoever comes has the device throw away what it is ahead, up to four steps: of many, somebody comes or goes at every few.
const FEW: usize = 2;
/// Others see how things are so often meanwhile.
const SHOWN: Duration = Duration::from_millis(100);

impl Worker {
    /// Whether those that run are few, have nothing but tokens to come, and all of them chosen by the device.
    pub fn can_run_ahead(&mut self) -> bool {
        let Some(session) = self.session.as_mut().filter(|s| s.gpu().is_some()) else { return false };
        let plain = |id| session.sampler(id).is_ok_and(|s| Sampler::takes_logits_as_they_are(s));
        let quiet = !self.shared.news() && self.held_tokens == usize::MAX;
        let alone = |r: &super::running::Running| {
            r.rest().len() == 1 && !r.job.lookup && r.job.logprobs.is_none() && !r.job.constrained
        };
        quiet && self.running.len() <= FEW && self.running.iter().all(alone) && {
            let ids: Vec<SequenceId> = self.running.iter().map(|r| r.id).collect();
            ids.into_iter().all(plain)
        }
    }

    /// Decodes until somebody ends, comes or goes; why there is nothing to go on with, if so.
    pub fn run_ahead(&mut self) -> Option<Refused> {
        let Worker { session, running, seen, shared, usual, .. } = self;
        let session = session.as_mut()?;
        let context = session.context();
        let starts: Vec<(SequenceId, Vec<u32>)> = running.iter().map(|r| (r.id, r.rest().to_vec())).collect();
        let starts: Vec<(SequenceId, &[u32])> = starts.iter().map(|(id, tokens)| (*id, tokens.as_slice())).collect();
        let mut ends: Vec<(usize, End)> = vec![];
        let start = Instant::now();
        let (mut shown, mut counted) = (start, start);
        let mut sink = |id: SequenceId, token: u32| {
            let Some(at) = running.iter().position(|r| r.id == id) else { return After::Pause };
            let Some(r) = running.get_mut(at) else { return After::Pause };
            r.fed += 1;
            let end = hand_out(seen, r, token, None, r.fed >= context);
            let now = Instant::now();
            if now - shown > SHOWN {
                seen.busy += (now - counted).as_secs_f64();
                (shown, counted) = (now, now);
                shared.show(seen, *usual);
            }
            let cancelled = r.job.is_cancelled();
            match end {
                Some(end) => {
                    ends.push((at, end));
                    After::Pause
                }
                None if cancelled || shared.news() => After::Pause,
                None => After::Go,
            }
        };
        let done = guarded(|| session.decode(&starts, &mut sink));
        self.seen.busy += counted.elapsed().as_secs_f64();
        self.seen.steps += 1;
        match done {
            Ok(Ok(())) => {}
            Ok(Err(SessionError::Lost(why))) => return self.fault(Failure::Device(why)),
            Ok(Err(error)) => return self.fault(Failure::Device(error.to_string())),
            Err(failure) => return self.fault(failure),
        }
        for (at, end) in ends.into_iter().rev() {
            let r = self.running.remove(at);
            self.finish(r, end);
        }
        None
    }
}
