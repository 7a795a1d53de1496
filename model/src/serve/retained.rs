//! Kept sequences: they ended but stay in the session, because the next prompt may share their
//! prefix, such as the next turn of a conversation or a common system prompt.

use super::request::Owner;
use crate::session::SequenceId;

/// The fewest shared tokens that are worth copying a state.
pub(super) const WORTH: usize = 16;

/// A kept sequence.
struct One {
    id: SequenceId,
    owner: Owner,
    tokens: Vec<u32>,
    /// A counter value of its last use.
    used: u64,
}

/// The kept sequences, each with its tokens.
#[derive(Default)]
pub(super) struct RetainedSequences {
    all: Vec<One>,
    now: u64,
}

/// The sequence that a prompt's prefix comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// No sequence.
    None,
    /// This kept sequence continues after so many tokens.
    Continue(SequenceId, usize),
    /// So many tokens of this sequence are copied; it stays unchanged.
    Copy(SequenceId, usize),
}

/// The length of the common prefix of two texts.
pub(super) fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

impl RetainedSequences {
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// The number of tokens in all kept sequences.
    pub fn tokens(&self) -> usize {
        self.all.iter().map(|one| one.tokens.len()).sum()
    }

    /// Keeps a sequence that ended with `tokens`. Sequences that are a prefix of another are
    /// redundant and returned, to be removed.
    pub fn keep(&mut self, owner: Owner, id: SequenceId, tokens: Vec<u32>) -> Vec<SequenceId> {
        if self.of(owner).any(|(_, one)| common(&one.tokens, &tokens) == tokens.len()) {
            return vec![id];
        }
        self.now += 1;
        let (gone, stay) =
            std::mem::take(&mut self.all).into_iter().partition::<Vec<One>, _>(|one| {
                one.owner == owner && common(&one.tokens, &tokens) == one.tokens.len()
            });
        self.all = stay;
        self.all.push(One { id, owner, tokens, used: self.now });
        gone.into_iter().map(|one| one.id).collect()
    }

    /// Takes out the least recently used sequence other than `but`.
    pub fn oldest(&mut self, but: Option<SequenceId>) -> Option<SequenceId> {
        let others = self.all.iter().enumerate().filter(|(_, one)| Some(one.id) != but);
        let (at, _) = others.min_by_key(|(_, one)| one.used)?;
        Some(self.all.swap_remove(at).id)
    }

    /// Finds the longest prefix of `tokens` among kept and running sequences of `owner` (`running`
    /// has only this owner's). At least one token is left to feed. A kept sequence with fewer than
    /// [`WORTH`] further tokens is continued; otherwise it may be useful again, and is copied.
    pub fn source<'a>(
        &mut self,
        owner: Owner,
        tokens: &[u32],
        running: impl Iterator<Item = (SequenceId, &'a [u32])>,
    ) -> Source {
        let asked = tokens.get(..tokens.len().saturating_sub(1)).unwrap_or_default();
        let here = self.of(owner).map(|(i, one)| (common(asked, &one.tokens), i)).max();
        let there = running.map(|(id, tokens)| (common(asked, tokens), id)).max();
        self.now += 1;
        match (here.filter(|(n, _)| *n >= WORTH), there.filter(|(n, _)| *n >= WORTH)) {
            (Some((n, i)), other) if other.is_none_or(|(m, _)| m <= n) => {
                let Some(one) = self.all.get_mut(i) else { return Source::None };
                one.used = self.now;
                if one.tokens.len() - n < WORTH {
                    let one = self.all.swap_remove(i);
                    return Source::Continue(one.id, n);
                }
                Source::Copy(one.id, n)
            }
            (_, Some((n, id))) => Source::Copy(id, n),
            _ => Source::None,
        }
    }

    /// The longest prefix that these tokens share with a kept sequence of the owner.
    pub fn known(&self, owner: Owner, tokens: &[u32]) -> usize {
        self.of(owner).map(|(_, one)| common(tokens, &one.tokens)).max().unwrap_or(0)
    }

    /// Takes a sequence out of the kept ones. `false` if it was not there.
    pub fn take(&mut self, id: SequenceId) -> bool {
        let before = self.all.len();
        self.all.retain(|one| one.id != id);
        self.all.len() < before
    }

    pub fn clear(&mut self) {
        self.all.clear();
    }

    /// The kept sequences of an owner with their indices.
    fn of(&self, owner: Owner) -> impl Iterator<Item = (usize, &One)> {
        self.all.iter().enumerate().filter(move |(_, one)| one.owner == owner)
    }
}

/// Whether a running sequence will compute enough tokens of this prompt to be worth waiting for.
pub(super) fn coming(prompt: &[u32], tokens: &[u32], fed: usize, most: usize) -> bool {
    let shared = common(prompt, tokens.get(..most).unwrap_or(tokens));
    shared > fed && shared >= 4 * WORTH && shared - fed >= WORTH
}
