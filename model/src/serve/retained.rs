//! Retained sequences: they have ended but stay in the session, because the next prompt may have
//! the same prefix (the next turn of a conversation, or a common system prompt).

use super::request::Owner;
use crate::session::SequenceId;

/// Minimum number of shared tokens for which a state is copied.
pub(super) const MIN_SHARED_TOKENS: usize = 16;

/// A retained sequence.
struct RetainedSequence {
    id: SequenceId,
    owner: Owner,
    tokens: Vec<u32>,
    /// Value of the counter at the last use.
    used: u64,
}

/// The retained sequences, each with its tokens.
#[derive(Default)]
pub(super) struct RetainedSequences {
    all: Vec<RetainedSequence>,
    now: u64,
}

/// The sequence from which the prefix of a prompt is reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// No sequence.
    None,
    /// This retained sequence is continued after this number of tokens.
    Continue(SequenceId, usize),
    /// This number of tokens of this sequence is copied. The sequence stays unchanged.
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

    /// Number of tokens in all retained sequences.
    pub fn tokens(&self) -> usize {
        self.all.iter().map(|one| one.tokens.len()).sum()
    }

    /// Retains a sequence that ended with `tokens`. A sequence whose tokens are a prefix of another
    /// sequence is redundant. Redundant sequences are returned, and the caller must remove them.
    pub fn keep(&mut self, owner: Owner, id: SequenceId, tokens: Vec<u32>) -> Vec<SequenceId> {
        if self.of(owner).any(|(_, one)| common(&one.tokens, &tokens) == tokens.len()) {
            return vec![id];
        }
        self.now += 1;
        let (gone, stay) =
            std::mem::take(&mut self.all).into_iter().partition::<Vec<RetainedSequence>, _>(
                |one| one.owner == owner && common(&one.tokens, &tokens) == one.tokens.len(),
            );
        self.all = stay;
        self.all.push(RetainedSequence { id, owner, tokens, used: self.now });
        gone.into_iter().map(|one| one.id).collect()
    }

    /// Removes and returns the least recently used sequence. `but` is not removed.
    pub fn oldest(&mut self, but: Option<SequenceId>) -> Option<SequenceId> {
        let others = self.all.iter().enumerate().filter(|(_, one)| Some(one.id) != but);
        let (at, _) = others.min_by_key(|(_, one)| one.used)?;
        Some(self.all.swap_remove(at).id)
    }

    /// Finds the longest prefix of `tokens` among the retained and the running sequences of `owner`
    /// (`running` has only sequences of this owner). At least one token remains to be fed. A
    /// retained sequence with fewer than [`MIN_SHARED_TOKENS`] further tokens is continued.
    /// A longer one may be useful again, so it is copied.
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
        match (
            here.filter(|(n, _)| *n >= MIN_SHARED_TOKENS),
            there.filter(|(n, _)| *n >= MIN_SHARED_TOKENS),
        ) {
            (Some((n, i)), other) if other.is_none_or(|(m, _)| m <= n) => {
                let Some(one) = self.all.get_mut(i) else { return Source::None };
                one.used = self.now;
                if one.tokens.len() - n < MIN_SHARED_TOKENS {
                    let one = self.all.swap_remove(i);
                    return Source::Continue(one.id, n);
                }
                Source::Copy(one.id, n)
            }
            (_, Some((n, id))) => Source::Copy(id, n),
            _ => Source::None,
        }
    }

    /// The longest prefix that these tokens share with a retained sequence of the owner.
    pub fn known(&self, owner: Owner, tokens: &[u32]) -> usize {
        self.of(owner).map(|(_, one)| common(tokens, &one.tokens)).max().unwrap_or(0)
    }

    /// Whether a sequence is retained.
    pub fn has(&self, id: SequenceId) -> bool {
        self.all.iter().any(|one| one.id == id)
    }

    /// Removes a sequence from the retained ones. Returns `false` if it was not retained.
    pub fn take(&mut self, id: SequenceId) -> bool {
        let before = self.all.len();
        self.all.retain(|one| one.id != id);
        self.all.len() < before
    }

    pub fn clear(&mut self) {
        self.all.clear();
    }

    /// The retained sequences of an owner with their indices.
    fn of(&self, owner: Owner) -> impl Iterator<Item = (usize, &RetainedSequence)> {
        self.all.iter().enumerate().filter(move |(_, one)| one.owner == owner)
    }
}

/// Whether to wait for a running sequence because it will compute enough tokens of this prompt.
pub(super) fn coming(prompt: &[u32], tokens: &[u32], fed: usize, most: usize) -> bool {
    let shared = common(prompt, tokens.get(..most).unwrap_or(tokens));
    shared > fed && shared >= 4 * MIN_SHARED_TOKENS && shared - fed >= MIN_SHARED_TOKENS
}
