//! Where sequences share pages: what is kept is a tree of them, and who is let in, and who must go,
//! is counted in them.

use super::admit::ROOM;
use super::kept::{WORTH, common};
use super::prefixes::{Begun, Prefixes};
use super::request::Owner;
use super::running::{Job, Running};
use super::worker::Worker;
use crate::gpu::PageCount;
use crate::lookup::MOST;
use crate::session::{SequenceId, Session, SessionError};

/// Pages that a step takes.
fn needed(session: &Session, running: &[Running], take: &[usize]) -> usize {
    let of = |(r, &n): (&Running, &usize)| {
        // What may be drafted besides.
        let drafts = if n > 0 && r.job.lookup { MOST } else { 0 };
        let room = session.context().saturating_sub(r.fed);
        session.pages_needed(r.id, (n + drafts).min(room)).unwrap_or(0)
    };
    running.iter().zip(take).map(of).sum()
}

/// Whether there are pages for a request beside what runs: those that are free, those that are only
/// kept, less what prompts that run will take.
pub(super) fn fits(session: &Session, prefixes: &Prefixes, running: &[Running], job: &Job) -> bool {
    let Some(pages) = session.pages() else { return true };
    let kept = prefixes.pages().filter(|page| session.page_users(*page) == 1).count();
    let rest: Vec<usize> = running.iter().map(|r| r.rest().len()).collect();
    // One token at least is computed.
    let asked = job.tokens.get(..job.tokens.len().saturating_sub(1)).unwrap_or_default();
    let there = match session.graph().is_recurrent() {
        true => prefixes.find_copy(job.owner, asked).map_or(vec![], |begun| begun.pages),
        false => prefixes.find(job.owner, &job.tokens).0,
    };
    let shared = there.into_iter().filter(|page| session.page_users(*page) > 1).count();
    let tokens = (job.tokens.len() + ROOM).min(session.context());
    let own = tokens.div_ceil(PageCount::POSITIONS).saturating_sub(shared.saturating_sub(1));
    own + needed(session, running, &rest) <= pages.free() + kept
}

/// Tokens that are held in so many pages, those that several have counted once: of sequences, with
/// their pages and tokens, and of pages that are kept, with theirs.
pub(super) fn held<'a>(
    pages: usize,
    running: impl Iterator<Item = (&'a [u32], usize)>,
    kept: impl Iterator<Item = (u32, usize)>,
) -> usize {
    let mut most = vec![0; pages];
    let mut has = |page: u32, tokens: usize| {
        if let Some(most) = most.get_mut(page as usize) {
            *most = tokens.max(*most);
        }
    };
    for (pages, fed) in running {
        let begin = (0..fed).step_by(PageCount::POSITIONS);
        pages
            .iter()
            .zip(begin)
            .for_each(|(&page, at)| has(page, (fed - at).min(PageCount::POSITIONS)));
    }
    kept.for_each(|(page, tokens)| has(page, tokens));
    most.into_iter().sum()
}

impl Worker {
    /// A sequence for a request that has the pages of the longest beginning that is there.
    pub(super) fn place_in_pages(
        &mut self,
        job: &Job,
    ) -> Result<(SequenceId, usize), SessionError> {
        let Some(session) = &mut self.session else { return Err(SessionError::NoSequence) };
        let asked = job
            .tokens
            .get(..job.tokens.len().saturating_sub(1))
            .filter(|_| self.reuse)
            .unwrap_or_default();
        if session.graph().is_recurrent() {
            // Those that run are at other positions: what they leave behind is in the tree.
            let begun = self.prefixes.find_copy(job.owner, asked);
            self.prefixes.touch_copy(job.owner, asked);
            let id = session.add(job.sampling.clone())?;
            let Some(Begun { pages, len, copy }) = begun else { return Ok((id, 0)) };
            session.begin_as(id, asked.get(..len).unwrap_or_default(), &pages, Some(copy))?;
            return Ok((id, len));
        }
        let (pages, len) = self.prefixes.find(job.owner, asked);
        let his = self.running.iter().filter(|r| r.job.owner == job.owner);
        let runs = his.filter_map(|r| Some((common(asked, r.job.tokens.get(..r.fed)?), r.id)));
        if let Some((_, of)) = runs.max().filter(|(n, _)| *n >= WORTH && *n > len) {
            let n = self
                .running
                .iter()
                .find(|r| r.id == of)
                .map_or(0, |r| common(asked, &r.job.tokens).min(r.fed));
            let id = session.fork(of, n, job.sampling.clone())?;
            return Ok((id, session.len(id)?));
        }
        self.prefixes.touch(job.owner, asked);
        let id = session.add(job.sampling.clone())?;
        if len > 0 {
            session.begin_as(id, asked.get(..len).unwrap_or_default(), &pages, None)?;
        }
        Ok((id, len))
    }

    /// What is in a sequence stays while nobody needs its pages, and its states that do not grow as
    /// they are now.
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

    /// What is in a sequence that leaves stays while nobody needs its pages.
    fn keep_pages(&mut self, owner: Owner, id: SequenceId, tokens: &[u32]) {
        let Some(session) = self.session.as_mut().filter(|_| self.reuse && tokens.len() >= WORTH)
        else {
            return;
        };
        let entered = self.prefixes.enter(owner, tokens, session.pages_of(id));
        session.hold_pages(&entered.held);
        session.release_pages(&entered.released);
    }

    /// Sees to it that there are pages for the next step, and says what it takes of each: what is
    /// kept goes first, the longest unused first; then the youngest sequence is put back into the
    /// queue. What it had is kept while nobody needs it, and computed again where somebody did. The
    /// oldest always goes on.
    pub(super) fn make_pages(&mut self) -> Vec<usize> {
        loop {
            let take = self.compose();
            let Some(session) = &mut self.session else { return take };
            let free = session.pages().map_or(usize::MAX, |pages| pages.free());
            if needed(session, &self.running, &take) <= free {
                return take;
            }
            // One that somebody has, too, gives no page, but what it writes need not be copied any
            // more.
            let alone = self.prefixes.forget(|page| session.page_users(page) == 1);
            if let Some(page) = alone.or_else(|| self.prefixes.forget(|_| true)) {
                session.release_pages(&[page]);
                continue;
            }
            if !self.put_back_youngest() {
                return take;
            }
        }
    }

    /// Whether everybody who runs has a page for the next token.
    pub(super) fn has_pages(&self) -> bool {
        let Some(session) = &self.session else { return false };
        let Some(pages) = session.pages() else { return true };
        needed(session, &self.running, &vec![1; self.running.len()]) <= pages.free()
    }
}

#[cfg(test)]
mod tests {
    use super::{PageCount, held};

    #[test]
    fn what_lies_in_a_page_of_several_is_counted_once() {
        const PAGE: usize = PageCount::POSITIONS;
        assert_eq!(held(4, [(&[2, 0][..], PAGE + 7)].into_iter(), std::iter::empty()), PAGE + 7);
        // A page in common, which is kept, too, and the rest of each; one has a page that it has
        // not begun.
        let two = [(&[2, 0][..], PAGE + 7), (&[2, 1][..], PAGE + 9), (&[2, 3][..], PAGE)];
        assert_eq!(held(4, two.into_iter(), [(2, PAGE)].into_iter()), PAGE + 7 + 9);
        // Of a page that is shared in part the longest part counts.
        let begins = [(&[1][..], 60), (&[1][..], 20)];
        assert_eq!(held(4, begins.into_iter(), [(1, 70), (3, 5)].into_iter()), 75);
        assert_eq!(held(0, std::iter::empty(), std::iter::empty()), 0);
    }
}
