//! Positions at which recurrent states are saved. A recurrent state cannot be rewound, so a request
//! can only start from a position at which a state was saved. States are saved at three positions:
//!
//! - near the end of a prompt,
//! - at the end of a prefix that is shared with a known text (other prompts will share that
//!   prefix),
//! - where an answer ends.
//!
//! The first two are rounded to the ends of pages, so that they are equal in all texts with the
//! same prefix. Prompts are fed in pieces that end there. On a GPU each additional piece is a pass
//! over all weights (16 % of the tokens per second of 32 clients with prompts of 512 tokens, with
//! many experts). So on a GPU the first position is a multiple of the tokens of a step.

use super::prefixes::Prefixes;
use super::retained::common;
use super::running::{ActiveRequest, Running};
use super::step::BUDGET_ON_GPU;
use super::worker::Worker;
use crate::gpu::PageCount;
use crate::session::{SequenceId, Session};

/// `tokens` rounded down to whole pages.
const fn whole_pages(tokens: usize) -> usize {
    tokens / PageCount::POSITIONS * PageCount::POSITIONS
}

/// The saved position near the end of a prompt of `tokens` tokens, a multiple of `step` rounded up
/// to pages.
fn own_border(tokens: usize, step: usize) -> usize {
    let step = step.next_multiple_of(PageCount::POSITIONS);
    tokens / step * step
}

/// The tokens that may be found in the prefix cache: all except the last, which is always fed.
fn asked(tokens: &[u32]) -> &[u32] {
    tokens.split_last().map_or(&[], |(_, rest)| rest)
}

/// Whether this session saves recurrent states.
pub(super) fn has(session: &Session) -> bool {
    session.graph().is_recurrent() && (session.copies() > 0 || session.grows())
}

/// A running sequence whose prompt will reach a position from which this request can start, and
/// that position.
pub(super) fn wait(
    running: &[Running],
    prefixes: &Prefixes,
    job: &ActiveRequest,
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
    /// The positions at which a new sequence saves its states.
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

    /// Saves the states of sequences that have reached such a position.
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
    fn single_step_prompt_is_not_split_for_a_checkpoint() {
        // A prompt of 512 tokens has 511 that may be found in the prefix cache.
        assert_eq!(
            [511, 512, 513, 2047].map(|tokens| own_border(tokens, 512)),
            [0, 512, 512, 1536]
        );
        assert_eq!([127, 128, 300].map(|tokens| own_border(tokens, 1)), [0, 128, 256]);
        assert_eq!(own_border(1000, 200), 768);
    }
}
