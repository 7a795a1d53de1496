//! The scheduler with shared pages. Prefixes are cached in a tree of pages, and admission and
//! preemption count pages.

use super::adapters;
use super::admit::add;
use super::prefixes::{CachedPrefix, Prefixes};
use super::request::Owner;
use super::retained::{MIN_SHARED_TOKENS, common};
use super::running::{ActiveRequest, Running};
use super::worker::Worker;
use crate::gpu::PageCount;
use crate::prompt_lookup::MAX_DRAFTS;
use crate::session::{SequenceId, Session, SessionError};

/// Number of pages that a step needs.
fn needed(session: &Session, running: &[Running], take: &[usize]) -> usize {
    let of = |(r, &n): (&Running, &usize)| {
        // Positions for drafts.
        let drafts = if n > 0 && r.job.lookup { MAX_DRAFTS } else { 0 };
        let room = session.context().saturating_sub(r.fed);
        session.pages_needed(r.id, (n + drafts).min(room)).unwrap_or(0)
    };
    running.iter().zip(take).map(of).sum()
}

/// Whether there are enough pages for a request: the free pages, plus the pages that only the
/// prefix cache references, minus the pages that running prompts will take.
pub(super) fn fits(
    session: &Session,
    prefixes: &Prefixes,
    running: &[Running],
    job: &ActiveRequest,
) -> bool {
    let Some(pages) = session.pages() else { return true };
    let kept = prefixes.pages().filter(|page| session.page_users(*page) == 1).count();
    let rest: Vec<usize> = running.iter().map(|r| r.next(session.context())).collect();
    // At least one token is computed.
    let asked = job.tokens.get(..job.tokens.len().saturating_sub(1)).unwrap_or_default();
    let there = match session.graph().is_recurrent() {
        true => prefixes.find_copy(job.owner, asked).map_or(vec![], |begun| begun.pages),
        false => prefixes.find(job.owner, &job.tokens).0,
    };
    let shared = there.into_iter().filter(|page| session.page_users(*page) > 1).count();
    let tokens = (job.tokens.len() + RESERVED_POSITIONS).min(session.context());
    let own = tokens.div_ceil(PageCount::POSITIONS).saturating_sub(shared.saturating_sub(1));
    own + needed(session, running, &rest) <= pages.free() + kept
}

impl Worker {
    /// Gives a request a sequence with the pages of its longest cached prefix.
    pub(super) fn place_in_pages(
        &mut self,
        job: &ActiveRequest,
    ) -> Result<(SequenceId, usize), SessionError> {
        let busy = adapters::busy(&self.running);
        let Some(session) = &mut self.session else { return Err(SessionError::NoSequence) };
        let asked = job
            .tokens
            .get(..job.tokens.len().saturating_sub(1))
            .filter(|_| self.reuse)
            .unwrap_or_default();
        if session.graph().is_recurrent() {
            // Running sequences are at later positions. Their saved states are in the tree.
            let begun = self.prefixes.find_copy(job.owner, asked);
            self.prefixes.touch_copy(job.owner, asked);
            let id = add(session, job, &busy)?;
            let Some(CachedPrefix { pages, len, copy }) = begun else { return Ok((id, 0)) };
            session.begin_as(id, asked.get(..len).unwrap_or_default(), &pages, Some(copy))?;
            return Ok((id, len));
        }
        let (pages, len) = self.prefixes.find(job.owner, asked);
        let his = self.running.iter().filter(|r| r.job.owner == job.owner);
        let runs = his.map(|r| (common(asked, r.known()), r.id));
        if let Some((_, of)) = runs.max().filter(|(n, _)| *n >= MIN_SHARED_TOKENS && *n > len) {
            let n = self
                .running
                .iter()
                .find(|r| r.id == of)
                .map_or(0, |r| common(asked, &r.job.tokens).min(r.fed));
            let id = session.fork(of, n, job.sampling.clone())?;
            return Ok((id, session.len(id)?));
        }
        self.prefixes.touch(job.owner, asked);
        let id = add(session, job, &busy)?;
        if len > 0 {
            session.begin_as(id, asked.get(..len).unwrap_or_default(), &pages, None)?;
        }
        Ok((id, len))
    }

    /// Stores a sequence's pages in the prefix cache, and saves its recurrent states.
    pub(super) fn keep(&mut self, owner: Owner, id: SequenceId, tokens: &[u32]) {
        self.keep_pages(owner, id, tokens);
        let Some(session) = self.session.as_mut().filter(|_| self.reuse) else { return };
        if session.graph().is_recurrent()
            && session.reaches(id)
            && let Some(copy) = self.prefixes.place_copy(owner, tokens, session.copies())
            && !session.keep_states(id, copy).unwrap_or(false)
        {
            self.prefixes.forget_copy(copy);
        }
    }

    /// Stores a sequence's pages in the prefix cache.
    fn keep_pages(&mut self, owner: Owner, id: SequenceId, tokens: &[u32]) {
        let Some(session) =
            self.session.as_mut().filter(|_| self.reuse && tokens.len() >= MIN_SHARED_TOKENS)
        else {
            return;
        };
        let entered = self.prefixes.enter(owner, tokens, session.pages_of(id));
        session.hold_pages(&entered.held);
        session.release_pages(&entered.released);
    }

    /// Frees pages for the next step. Returns the number of tokens of each sequence in the step.
    /// Cached prefixes are removed first (least recently used first), then the newest sequence is
    /// preempted. Its prefix stays cached until its pages are needed. The oldest sequence always
    /// runs.
    pub(super) fn make_pages(&mut self) -> Vec<usize> {
        loop {
            let take = self.compose();
            if self.free_pages(&take) || !self.preempt_newest() {
                return take;
            }
        }
    }

    /// Frees pages for a step that takes these numbers of tokens, without preempting a sequence.
    /// Returns whether there are enough. Launched steps may still use a freed page: later steps
    /// write it after them.
    pub(super) fn free_pages(&mut self, take: &[usize]) -> bool {
        loop {
            let Some(session) = &mut self.session else { return true };
            let free = session.pages().map_or(usize::MAX, |pages| pages.free());
            if needed(session, &self.running, take) <= free {
                return true;
            }
            // A page that is also in use does not become free, but the sequence can then write to
            // it without a copy.
            let alone = self.prefixes.forget(|page| session.page_users(page) == 1);
            match alone.or_else(|| self.prefixes.forget(|_| true)) {
                Some(page) => session.release_pages(&[page]),
                None => return false,
            }
        }
    }

    /// Whether every running sequence has a page for its next token.
    pub(super) fn has_pages(&self) -> bool {
        let Some(session) = &self.session else { return false };
        let Some(pages) = session.pages() else { return true };
        needed(session, &self.running, &vec![1; self.running.len()]) <= pages.free()
    }
}

/// Number of free positions that a new request should have after its prompt, so that it is not
/// preempted immediately.
pub(super) const RESERVED_POSITIONS: usize = 32;
