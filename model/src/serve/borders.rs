//! Where copies of states that do not grow are kept: a recurrent state cannot go back, so others
//! begin only where somebody kept it. Three places are worth a copy: near the end of a prompt,
//! where a prompt leaves a text that is known (what both have in common others will have, too), and
//! where an answer ends. The first two are ends of pages, so that they lie at the same place in all
//! texts that begin alike; prompts are fed in pieces that end there. On a GPU a piece more is a
//! pass more over all weights (16 % of the tokens a second of 32 clients with prompts of 512, where
//! experts are many): there the first place is the end of as many tokens as a step takes anyway.

use super::kept::common;
use super::prefixes::Prefixes;
use super::running::{Job, Running};
use super::step::BUDGET_ON_GPU;
use super::worker::Worker;
use crate::gpu::PageCount;
use crate::session::{SequenceId, Session};

/// So many of these tokens fill pages.
const fn whole_pages(tokens: usize) -> usize {
    tokens / PageCount::POSITIONS * PageCount::POSITIONS
}

/// Of a prompt of so many tokens, those before the first of the three places.
fn own_border(tokens: usize, step: usize) -> usize {
    let step = step.next_multiple_of(PageCount::POSITIONS);
    tokens / step * step
}

/// The tokens that may come from elsewhere: the last one is fed, whatever is there.
fn asked(tokens: &[u32]) -> &[u32] {
    tokens.split_last().map_or(&[], |(_, rest)| rest)
}

/// Whether states are kept so.
pub(super) fn has(session: &Session) -> bool {
    session.graph().is_recurrent() && (session.copies() > 0 || session.grows())
}

/// Whose prompt is being computed to a border at which this request can begin, and which that is.
pub(super) fn wait(
    running: &[Running],
    prefixes: &Prefixes,
    job: &Job,
) -> Option<(SequenceId, usize)> {
    let asked = asked(&job.tokens);
    let of = |r: &Running| {
        let prompt = r.job.tokens.get(..r.job.prompt).unwrap_or_default();
        Some((whole_pages(common(asked, prompt)), r.id)).filter(|(border, _)| *border > r.fed)
    };
    let his = running.iter().filter(|r| r.job.owner == job.owner);
    let (border, id) = his.filter_map(of).max_by_key(|(border, _)| *border)?;
    let there = prefixes.find_copy(job.owner, asked).is_some_and(|begun| begun.len >= border);
    (!there).then_some((id, border))
}

impl Worker {
    /// The borders of a sequence that comes.
    pub(super) fn borders(&self, new: &Running) -> Vec<usize> {
        if !self.reuse || !self.session.as_ref().is_some_and(has) {
            return vec![];
        }
        let (asked, owner) = (asked(&new.job.tokens), new.job.owner);
        let fed = |r: &Running| common(asked, r.job.tokens.get(..r.fed).unwrap_or_default());
        let runs = self.running.iter().filter(|r| r.job.owner == owner).map(fed).max().unwrap_or(0);
        let known = self.prefixes.find(owner, asked).1.max(self.kept.known(owner, asked)).max(runs);
        let on_gpu = self.session.as_ref().is_some_and(|session| session.gpu().is_some());
        let step = if on_gpu { self.budget.unwrap_or(BUDGET_ON_GPU) } else { 1 };
        let borders = [whole_pages(known), own_border(asked.len(), step)];
        borders.into_iter().filter(|border| *border > new.fed).collect()
    }

    /// Keeps the states of those that came to a border.
    pub(super) fn keep_at_borders(&mut self) {
        let mut due = vec![];
        for r in &mut self.running {
            if r.borders.contains(&r.fed) {
                due.push((
                    r.job.owner,
                    r.id,
                    r.job.tokens.get(..r.fed).unwrap_or_default().to_vec(),
                ));
            }
            r.borders.retain(|border| *border > r.fed);
        }
        for (owner, id, tokens) in due {
            match &mut self.session {
                Some(session) if session.pages().is_none() => drop(session.checkpoint(id)),
                _ => self.keep(owner, id, &tokens),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::own_border;

    #[test]
    fn a_prompt_that_a_step_takes_whole_is_no_piece_more_for_a_copy() {
        // A prompt of 512 has 511 tokens that may come from elsewhere.
        assert_eq!(
            [511, 512, 513, 2047].map(|tokens| own_border(tokens, 512)),
            [0, 512, 512, 1536]
        );
        assert_eq!([127, 128, 300].map(|tokens| own_border(tokens, 1)), [0, 128, 256]);
        assert_eq!(own_border(1000, 200), 768);
    }
}
