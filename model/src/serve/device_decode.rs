//! Decodes a few plain answers on a GPU. The device chooses tokens and runs ahead of the host, as
//! for a single caller.

use super::deliver_tokens::hand_out;
use super::request::{Failure, Refused};
use super::running::{End, Running, guarded};
use super::worker::Worker;
use crate::sample::Sampler;
use crate::session::{DecodeControl, SequenceId, Session, SessionError};
use std::time::{Duration, Instant};

/// Maximum number of answers for running ahead. When a request arrives or ends, the device discards
/// up to four steps that it has computed ahead. With many answers that would happen every few
/// steps.
pub(super) const MAX_AHEAD_ANSWERS: usize = 2;
/// Interval at which the status is updated while the device runs ahead.
const STATUS_INTERVAL: Duration = Duration::from_millis(100);

impl Worker {
    /// Whether few sequences run, all past their prompts, and the device can choose every token.
    pub fn are_few_and_plain(&mut self) -> bool {
        let Some(session) = self.session.as_mut().filter(|s| s.gpu().is_some()) else {
            return false;
        };
        let alone = |r: &Running| {
            r.rest().len() == 1 && r.job.logprobs.is_none() && r.job.constraint.is_none()
        };
        let mut plain =
            |r: &Running| session.sampler(r.id).is_ok_and(|s| Sampler::takes_logits_as_they_are(s));
        self.held_tokens == usize::MAX
            && self.running.len() <= MAX_AHEAD_ANSWERS
            && self.running.iter().all(|r| alone(r) && plain(r))
    }

    /// Whether the device may run ahead now: no request arrived or ended, and drafts are not
    /// faster.
    pub fn can_run_ahead(&mut self) -> bool {
        if self.shared.news() || !self.are_few_and_plain() || !self.has_pages() {
            return false;
        }
        let Some(context) = self.session.as_ref().map(Session::context) else { return false };
        let drafts = self.drafts(true);
        !(drafts && self.running.iter_mut().any(|r| !r.draft(context).is_empty()))
    }

    /// Decodes until a sequence ends or a client arrives or leaves. If no work can be done, returns
    /// the reason.
    pub fn run_ahead(&mut self) -> Option<Refused> {
        let Worker { session, running, seen, shared, usual, pays_ahead: pays, drafted, .. } = self;
        let session = session.as_mut()?;
        let (context, drafts, many) =
            (session.context(), !session.graph().is_recurrent(), running.len());
        let (lead, after_drafts) = (running.first().map(|r| r.id), std::mem::take(drafted));
        let starts: Vec<(SequenceId, Vec<u32>)> =
            running.iter().map(|r| (r.id, r.rest().to_vec())).collect();
        let starts: Vec<(SequenceId, &[u32])> =
            starts.iter().map(|(id, tokens)| (*id, tokens.as_slice())).collect();
        let mut ends: Vec<(usize, End)> = vec![];
        let start = Instant::now();
        let (mut shown, mut counted) = (start, start);
        // The time of the first sequence's last token, and the number of its tokens.
        let (mut last, mut came) = (start, 0u32);
        let mut sink = |id: SequenceId, token: u32| {
            let Some(at) = running.iter().position(|r| r.id == id) else {
                return DecodeControl::Pause;
            };
            let Some(r) = running.get_mut(at) else { return DecodeControl::Pause };
            r.fed += 1;
            let end = hand_out(seen, r, token, None, r.fed >= context);
            let now = Instant::now();
            if now - shown > STATUS_INTERVAL {
                seen.busy += (now - counted).as_secs_f64();
                (shown, counted) = (now, now);
                shared.show(seen, *usual);
            }
            if Some(id) == lead {
                let took = now - last;
                (last, came) = (now, came + 1);
                match came {
                    // The first token after drafts waits until the device runs ahead again. This
                    // cost belongs to drafting.
                    1 if after_drafts => pays.saw(took, Some(0)),
                    1 | 2 => {}
                    _ => pays.saw(took, None),
                }
            }
            // Drafts are compared with the tokens that the device chose. They are not run.
            let mut leave = false;
            if drafts && r.job.lookup && end.is_none() {
                let (worth, another) = r.count_dry(context);
                worth.into_iter().for_each(|right| pays.would(right));
                leave = another && pays.go(many);
            }
            let cancelled = r.job.is_cancelled();
            match end {
                Some(end) => {
                    ends.push((at, end));
                    DecodeControl::Pause
                }
                None if cancelled || leave || shared.news() => DecodeControl::Pause,
                None => DecodeControl::Go,
            }
        };
        let done = guarded(|| session.decode_past_ends(&starts, &mut sink));
        self.seen.busy += counted.elapsed().as_secs_f64();
        self.seen.steps += 1;
        match done {
            Ok(Ok(())) => {}
            // The step was not run. Run a step that can preempt sequences.
            Ok(Err(SessionError::Pages { .. })) => return self.step_together(),
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
