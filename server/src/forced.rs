//! A constraint that forces an answer's first tokens and delays its end. Log probabilities of a
//! prompt are computed by forcing the prompt's tokens as an answer.

use kjit_model::sample::TokenMask;
use kjit_model::serve::{Constraint, Interrupt};

/// Forces the first tokens of an answer, then delays its end.
pub struct Forced {
    /// The forced tokens.
    pub forced: Vec<u32>,
    /// Tokens that end the answer, once the forced tokens are complete.
    pub ends: Vec<u32>,
    /// Number of tokens after the forced tokens before an end token is allowed.
    pub least: usize,
    /// Size of the vocabulary.
    pub n_vocab: usize,
    /// The constraint on the tokens after the forced ones.
    pub then: Option<Box<dyn Constraint>>,
    /// Number of tokens accepted so far.
    pub at: usize,
}

impl Constraint for Forced {
    fn allowed(&mut self) -> Result<TokenMask, String> {
        if let Some(next) = self.forced.get(self.at) {
            return Ok(TokenMask::new(self.n_vocab, [*next]));
        }
        if let Some(then) = &mut self.then {
            return then.allowed();
        }
        let early = self.at - self.forced.len() < self.least;
        let may = |id: &u32| !(early && self.ends.contains(id));
        let all = 0..u32::try_from(self.n_vocab).unwrap_or(u32::MAX);
        Ok(TokenMask::new(self.n_vocab, all.filter(may)))
    }

    fn accept(&mut self, token: u32) -> Result<bool, String> {
        self.at += 1;
        if self.at <= self.forced.len() {
            return Ok(false);
        }
        let complete = match &mut self.then {
            Some(then) => then.accept(token)?,
            None => false,
        };
        Ok(complete || self.ends.contains(&token))
    }

    fn interrupt(&self) -> Option<Interrupt> {
        self.then.as_ref()?.interrupt()
    }
}

#[cfg(test)]
mod tests {
    use super::{Constraint, Forced, TokenMask};

    #[test]
    fn forced_tokens_come_first_and_end_tokens_wait() {
        let all = |without: &[u32]| TokenMask::new(5, (0..5).filter(|id| !without.contains(id)));
        let (forced, ends) = (vec![3, 4, 1], vec![4]);
        let mut constraint = Forced { forced, ends, least: 1, n_vocab: 5, then: None, at: 0 };
        for id in [3, 4, 1] {
            assert_eq!(constraint.allowed().unwrap(), TokenMask::new(5, [id]));
            assert!(!constraint.accept(id).unwrap());
        }
        assert_eq!(constraint.allowed().unwrap(), all(&[4]));
        assert!(!constraint.accept(0).unwrap());
        assert_eq!(constraint.allowed().unwrap(), all(&[]));
        assert!(constraint.accept(4).unwrap());
    }
}
