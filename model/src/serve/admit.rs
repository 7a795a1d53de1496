//! Admission: assigns sequence slots to waiting requests, and frees them when sequences end or are
//! preempted.

use super::adapters;
use super::checkpoints;
use super::launched::Leaving;
use super::paged;
use super::paged::RESERVED_POSITIONS;
use super::request::{Failure, Reason};
use super::retained::{MIN_SHARED_TOKENS, Source, coming};
use super::running::{ActiveRequest, End, Running};
use super::waiting::AdmitDecision;
use super::worker::Worker;
use crate::sample::Sampler;
use crate::session::{LoadedAdapter, SequenceId, Session, SessionError};
use std::collections::HashMap;

/// Adds an empty sequence with the request's adapters.
pub(super) fn add(
    session: &mut Session,
    job: &ActiveRequest,
    busy: &[LoadedAdapter],
) -> Result<SequenceId, SessionError> {
    let id = session.add(job.sampling.clone())?;
    let set = match &job.adapters {
        Some(scales) => session.set_adapters(id, scales),
        None => adapters::apply(session, id, job, busy),
    };
    match set {
        Ok(()) => Ok(id),
        Err(error) => {
            session.remove(id)?;
            Err(error)
        }
    }
}

impl Worker {
    /// Admits waiting requests while there are free slots and space for their tokens.
    pub fn admit(&mut self) {
        let Some(slots) = self.session.as_ref().map(Session::sequences) else { return };
        self.crowded &= !self.running.is_empty();
        while self.running.len() + self.leaving.len() < slots && !self.crowded {
            let mut by_client: HashMap<Option<String>, usize> = HashMap::new();
            self.running
                .iter()
                .for_each(|r| *by_client.entry(r.job.client.clone()).or_default() += 1);
            let (running, reuse) = (&self.running, self.reuse);
            let (session, prefixes) = (self.session.as_ref(), &self.prefixes);
            let room =
                self.held_tokens.saturating_sub(running.iter().map(|r| r.job.tokens.len()).sum());
            let marks = reuse && session.is_some_and(checkpoints::has);
            let mut wanted = vec![];
            let next = self.shared.lock().waiting.pop(&by_client, |job| {
                // A request waits if a running prompt will compute a prefix that both share.
                let shared = |r: &Running| {
                    r.job.owner == job.owner
                        && coming(&job.tokens, &r.job.tokens, r.fed, r.job.prompt)
                };
                let mut later = || match marks {
                    false => running.iter().any(shared),
                    true => match checkpoints::wait(running, prefixes, job) {
                        Some(border) => {
                            wanted.push(border);
                            true
                        }
                        None => false,
                    },
                };
                let pages =
                    || session.is_none_or(|session| paged::fits(session, prefixes, running, job));
                let places = session.map_or(0, Session::adapter_slots);
                let room = || job.tokens.len() + RESERVED_POSITIONS <= room && pages();
                let fits = || adapters::fits(places, running, job);
                match running.is_empty() || (fits() && room()) {
                    false => AdmitDecision::NoRoom,
                    true if reuse && later() => AdmitDecision::Later,
                    true => AdmitDecision::Now,
                }
            });
            for (id, border) in wanted {
                let of = self.running.iter_mut().find(|r| r.id == id);
                of.into_iter().for_each(|r| r.borders.push(border));
            }
            let Some(mut job) = next else { return };
            job.passed = 0;
            if job.max_tokens == 0 {
                job.start(0);
                self.end(job, End::Done(Reason::Length));
                continue;
            }
            let mut placed = self.place(&mut job);
            while matches!(placed, Err(SessionError::Memory { .. })) && self.forget_oldest() {
                placed = self.place(&mut job);
            }
            match placed {
                Ok((id, fed)) => {
                    if job.start(fed.min(job.prompt)) {
                        self.seen.queued.add(job.usage.queued);
                        self.seen.cached_tokens += fed as u64;
                    }
                    let mut running = Running::new(id, fed, job);
                    running.borders = self.borders(&running);
                    self.running.push(running);
                }
                Err(SessionError::Lost(why)) => {
                    // The next step gets the same error and reopens the model.
                    self.end(job, End::Failed(Failure::Device(why)));
                    return;
                }
                Err(error @ SessionError::Memory { .. }) => self.lacks_memory(job, &error),
                Err(error) => self.end(job, End::Failed(Failure::Request(error.to_string()))),
            }
        }
    }

    /// Gives a request a sequence. Returns the number of its tokens that are already in the
    /// sequence.
    fn place(&mut self, job: &mut ActiveRequest) -> Result<(SequenceId, usize), SessionError> {
        if self.session.as_ref().is_some_and(|s| s.pages().is_some()) {
            let (id, fed) = self.place_in_pages(job)?;
            let fed = self.restore_for(job, id, fed)?;
            self.take_sampler(job, id)?;
            return Ok((id, fed));
        }
        let busy = adapters::busy(&self.running);
        let Some(session) = &mut self.session else { return Err(SessionError::NoSequence) };
        let his = self.running.iter().filter(|r| r.job.owner == job.owner);
        let running = his.map(|r| (r.id, r.known()));
        let source = if self.reuse {
            self.kept.source(job.owner, &job.tokens, running)
        } else {
            Source::None
        };
        let used = self.running.len() + self.leaving.len() + self.kept.len();
        let full = used >= session.sequences();
        // States that cannot go back run tokens again, which needs the adapters.
        if let Source::Continue(id, _) | Source::Copy(id, _) = source {
            adapters::apply(session, id, job, &busy)?;
        }
        let (id, fed) = match source {
            Source::Continue(id, len) => (id, session.truncate(id, len)?),
            Source::Copy(of, len) => {
                let oldest = if full { self.kept.oldest(Some(of)) } else { None };
                if let Some(oldest) = oldest {
                    session.remove(oldest)?;
                }
                match full && oldest.is_none() && self.kept.take(of) {
                    // Every other slot is in use, so the retained sequence is continued and not
                    // copied.
                    true => (of, session.truncate(of, len)?),
                    false => {
                        let id = session.fork(of, len, job.sampling.clone())?;
                        (id, session.len(id)?)
                    }
                }
            }
            Source::None => {
                if full && let Some(oldest) = self.kept.oldest(None) {
                    session.remove(oldest)?;
                }
                (add(session, job, &busy)?, 0)
            }
        };
        let fed = self.restore_for(job, id, fed)?;
        self.take_sampler(job, id)?;
        Ok((id, fed))
    }

    /// Adds saved pages to the sequence of a request. After an error the sequence is removed.
    fn restore_for(
        &mut self,
        job: &ActiveRequest,
        id: SequenceId,
        fed: usize,
    ) -> Result<usize, SessionError> {
        match self.reuse {
            false => Ok(fed),
            true => self.restore(job.owner, id, &job.tokens, fed).inspect_err(|_| {
                if let Some(session) = &mut self.session {
                    drop(session.remove(id));
                }
            }),
        }
    }

    /// Sets the sampler of a sequence: made from the request's options, or the sampler at the time
    /// of preemption.
    fn take_sampler(
        &mut self,
        job: &mut ActiveRequest,
        id: SequenceId,
    ) -> Result<(), SessionError> {
        let Some(session) = &mut self.session else { return Err(SessionError::NoSequence) };
        *session.sampler(id)? = job.sampler.take().unwrap_or_else(|| {
            let mut sampler = Sampler::new(job.sampling.clone());
            sampler.read(&job.tokens);
            sampler
        });
        Ok(())
    }

    /// Ends a sequence. Its tokens are retained until the slot is needed. If a launched step has
    /// the sequence, its slot and its pages are free when the step was collected; the request ends
    /// now.
    pub fn finish(&mut self, r: Running, end: End) {
        let tokens = r.known().to_vec();
        let Running { id, job, .. } = r;
        self.crowded = false;
        let good =
            self.reuse && !matches!(end, End::Failed(_)) && tokens.len() >= MIN_SHARED_TOKENS;
        let leaving = Leaving { id, owner: job.owner, tokens: good.then_some(tokens) };
        match self.launched.as_ref().is_some_and(|step| step.has(id)) {
            true => self.leaving.push(leaving),
            false => self.release(leaving),
        }
        self.end(job, end);
    }

    /// Retains the tokens of an ended sequence, or frees its slot.
    pub(super) fn release(&mut self, leaving: Leaving) {
        let Leaving { id, owner, tokens } = leaving;
        if let Some(tokens) = &tokens {
            self.save(owner, id, tokens);
        }
        let gone = match tokens {
            None => vec![id],
            Some(tokens) if self.session.as_ref().is_some_and(|s| s.pages().is_some()) => {
                self.keep(owner, id, &tokens);
                vec![id]
            }
            Some(tokens) => {
                if let Some(blocks) = &mut self.blocks {
                    blocks.keep(owner, id, &tokens);
                }
                self.kept.keep(owner, id, tokens)
            }
        };
        if let Some(session) = &mut self.session {
            // The slots are free even after an error.
            gone.into_iter().for_each(|id| drop(session.remove(id)));
        }
    }

    /// Frees space for `more` tokens. Removes retained sequences, least recently used first, then
    /// preempts the newest sequences, which are recomputed later. The oldest always runs.
    pub fn make_room(&mut self, more: usize) {
        let held =
            |running: &[Running]| running.iter().map(|r| r.fed).sum::<usize>().saturating_add(more);
        while held(&self.running).saturating_add(self.kept.tokens()) > self.held_tokens
            && self.forget_oldest()
        {}
        while held(&self.running) > self.held_tokens && self.preempt_newest() {}
    }
}
