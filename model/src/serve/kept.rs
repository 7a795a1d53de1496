//! Sequences that ended and stay in the session, because the next prompt may begin as they do: the
//! next turn of a conversation, a system prompt that all have in common.

use super::request::Owner;
use crate::session::SequenceId;

/// A beginning of so many tokens at least is worth a copy of a state.
pub(super) const WORTH: usize = 16;

/// A sequence without a request.
struct One {
    id: SequenceId,
    owner: Owner,
    tokens: Vec<u32>,
    /// When it was last of use: a number that rises.
    used: u64,
}

/// Sequences that ended, each with the tokens that are in it.
#[derive(Default)]
pub(super) struct Kept {
    all: Vec<One>,
    now: u64,
}

/// Where a prompt's beginning comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// From nowhere.
    None,
    /// This kept sequence goes on, from so many tokens.
    Continue(SequenceId, usize),
    /// So many tokens of this sequence are copied: it stays as it is.
    Copy(SequenceId, usize),
}

/// Tokens that two texts have in common at their beginning.
pub(super) fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

impl Kept {
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Tokens of all.
    pub fn tokens(&self) -> usize {
        self.all.iter().map(|one| one.tokens.len()).sum()
    }

    /// A sequence ended with these tokens in it. What begins another is of no use beside it: it is
    /// given back, to be removed.
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

    /// The one that was of no use for longest, but for this one; it is not kept any more.
    pub fn oldest(&mut self, but: Option<SequenceId>) -> Option<SequenceId> {
        let others = self.all.iter().enumerate().filter(|(_, one)| Some(one.id) != but);
        let (at, _) = others.min_by_key(|(_, one)| one.used)?;
        Some(self.all.swap_remove(at).id)
    }

    /// Where the beginning of these tokens comes from, of what is kept of this owner's and of those
    /// that run, which are his, with the tokens that are in them; one token at least is left to
    /// feed. A sequence that goes on as it was is continued, and one that has little besides; else
    /// what it has may be of use once more, and is copied.
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

    /// Tokens that these have in common with one that is kept of this owner's, at most.
    pub fn known(&self, owner: Owner, tokens: &[u32]) -> usize {
        self.of(owner).map(|(_, one)| common(tokens, &one.tokens)).max().unwrap_or(0)
    }

    /// Takes this one out, to go on.
    pub fn take(&mut self, id: SequenceId) -> bool {
        let before = self.all.len();
        self.all.retain(|one| one.id != id);
        self.all.len() < before
    }

    pub fn clear(&mut self) {
        self.all.clear();
    }

    /// An owner's, each with its place.
    fn of(&self, owner: Owner) -> impl Iterator<Item = (usize, &One)> {
        self.all.iter().enumerate().filter(move |(_, one)| one.owner == owner)
    }
}

/// Tokens of this prompt that a sequence that runs will have once its own prompt is computed, and
/// has not yet: worth waiting for.
pub(super) fn coming(prompt: &[u32], tokens: &[u32], fed: usize, most: usize) -> bool {
    let shared = common(prompt, tokens.get(..most).unwrap_or(tokens));
    shared > fed && shared >= 4 * WORTH && shared - fed >= WORTH
}
