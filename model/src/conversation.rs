//! A chat with history: renders the whole conversation at each turn, and feeds only what the executor has not seen.

use crate::exec::Executor;

/// Tokens of a sequence that an executor holds, so that the next prompt can go on where they agree.
#[derive(Debug, Default, Clone)]
pub struct Seen {
    tokens: Vec<u32>,
}

impl Seen {
    /// Makes the executor hold just the common beginning of what it has seen and `prompt`, and gives the rest, which is to be fed:
    /// at least one token, so that there are logits.
    pub fn rest<'p>(&mut self, exec: &mut dyn Executor, prompt: &'p [u32]) -> &'p [u32] {
        self.tokens.truncate(exec.len());
        let common = self.tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        let keep = common.min(prompt.len().saturating_sub(1));
        exec.truncate(keep);
        self.tokens.clear();
        self.tokens.extend_from_slice(prompt);
        prompt.get(keep..).unwrap_or_default()
    }

    /// Notes the tokens that were generated after the prompt; the last may not have been fed.
    pub fn generated(&mut self, exec: &dyn Executor, ids: &[u32]) {
        self.tokens.extend_from_slice(ids);
        self.tokens.truncate(exec.len());
    }
}
