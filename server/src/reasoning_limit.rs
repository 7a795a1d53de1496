//! Limits the length of the reasoning: a constraint that forces the end tokens of the reasoning
//! when its token limit is reached. Then the answer follows.

use crate::fields::Fields;
use crate::loaded::Loaded;
use crate::refusal::Refusal;
use kjit_model::chat::Form;
use kjit_model::sample::TokenMask;
use kjit_model::serve::{Constraint, Interrupt};
use kjit_model::tokenizer::EncodeOptions;

/// Names of the field in llama.cpp, vLLM and Qwen's API.
const NAMES: [&str; 3] = ["reasoning_budget", "thinking_token_budget", "thinking_budget"];

/// The maximum tokens of the reasoning that a request sets; `Some(None)`: no limit.
///
/// # Errors
/// The value is not an integer from -1 up.
pub fn budget(f: &mut Fields) -> Result<Option<Option<usize>>, Refusal> {
    let mut budget = None;
    for name in NAMES {
        if let Some(n) = f.whole(name, -1..=i64::MAX)? {
            budget = Some(usize::try_from(n).ok());
        }
    }
    Ok(budget)
}

/// The current position in the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Position {
    /// At the start, after this many tokens of the reasoning's start marker.
    Begin(usize),
    /// In the reasoning, after this many tokens.
    Thought(usize),
    /// After the reasoning.
    Answer,
}

/// The tokens that mark the start and the end of reasoning.
#[derive(Debug, Clone)]
pub struct ReasoningTokens {
    open: Vec<u32>,
    close: Vec<u32>,
    most: usize,
    n_vocab: usize,
    at: Position,
    /// The last tokens, as many as the end marker has.
    last: Vec<u32>,
}

impl ReasoningTokens {
    /// A limit of `most` tokens for the reasoning in an answer to this prompt.
    pub fn new(loaded: &Loaded, form: Form, prompt: &str, most: usize) -> ReasoningTokens {
        let begun = form.begun(prompt);
        let (open, close) = match form {
            Form::Channels => ("<|channel|>analysis<|message|>", "<|end|>"),
            form => {
                let all = form.reasoning();
                let own = all.iter().find(|(_, close)| begun.is_none_or(|begun| begun == *close));
                own.copied().unwrap_or(("<think>", "</think>"))
            }
        };
        let marks = EncodeOptions { parse_special: true, ..EncodeOptions::default() };
        let ids = |text: &str| loaded.tokenizer.encode(text.as_bytes(), marks);
        let at = if begun.is_some() { Position::Thought(0) } else { Position::Begin(0) };
        let (open, close) = (ids(open), ids(close));
        ReasoningTokens { open, close, most, n_vocab: loaded.n_vocab(), at, last: vec![] }
    }

    /// Combines the limit with a constraint on the whole answer.
    pub fn with(self, then: Option<Box<dyn Constraint>>) -> Box<dyn Constraint> {
        Box::new(Bounded {
            all: TokenMask::new(self.n_vocab, ids(self.n_vocab)),
            thought: self,
            then,
        })
    }

    /// The token that is forced next.
    fn forced(&self) -> Option<u32> {
        if !matches!(self.at, Position::Thought(n) if n >= self.most) {
            return None;
        }
        // The end marker may have begun.
        let so_far =
            |n: &usize| self.close.get(..*n).is_some_and(|begin| self.last.ends_with(begin));
        let so_far = (0..self.close.len()).rev().find(so_far).unwrap_or(0);
        self.close.get(so_far).copied()
    }

    fn saw(&mut self, token: u32) {
        self.last.push(token);
        if self.last.len() > self.close.len() {
            self.last.remove(0);
        }
        self.at = match self.at {
            Position::Begin(n) if self.open.get(n) == Some(&token) => {
                if n + 1 == self.open.len() {
                    Position::Thought(0)
                } else {
                    Position::Begin(n + 1)
                }
            }
            Position::Begin(_) | Position::Answer => Position::Answer,
            Position::Thought(_) if self.last == self.close => Position::Answer,
            Position::Thought(n) => Position::Thought(n.saturating_add(1)),
        };
    }
}

fn ids(n_vocab: usize) -> std::ops::Range<u32> {
    0..u32::try_from(n_vocab).unwrap_or(u32::MAX)
}

struct Bounded {
    thought: ReasoningTokens,
    then: Option<Box<dyn Constraint>>,
    all: TokenMask,
}

impl Constraint for Bounded {
    fn allowed(&mut self) -> Result<TokenMask, String> {
        let allowed = match &mut self.then {
            Some(then) => then.allowed()?,
            None => self.all.clone(),
        };
        match self.thought.forced() {
            Some(id) if allowed.allows(id) => Ok(TokenMask::new(self.thought.n_vocab, [id])),
            // A constraint that has no end marker here excludes reasoning.
            _ => Ok(allowed),
        }
    }

    fn accept(&mut self, token: u32) -> Result<bool, String> {
        self.thought.saw(token);
        self.then.as_mut().map_or(Ok(false), |then| then.accept(token))
    }

    fn interrupt(&self) -> Option<Interrupt> {
        self.then.as_ref()?.interrupt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tokens of an answer when the model prefers these tokens.
    fn said(at: Position, most: usize, wanted: &[u32]) -> Vec<u32> {
        let thought = ReasoningTokens {
            open: vec![1],
            close: vec![2, 3],
            most,
            n_vocab: 10,
            at,
            last: vec![],
        };
        let mut bounded = thought.with(None);
        let one = |&id: &u32| {
            let mask = bounded.allowed().unwrap();
            let id =
                if mask.allows(id) { id } else { (0..10).find(|id| mask.allows(*id)).unwrap() };
            assert!(!bounded.accept(id).unwrap());
            id
        };
        wanted.iter().map(one).collect()
    }

    #[test]
    fn reasoning_ends_exactly_at_its_token_limit() {
        let (begun, none) = (Position::Thought(0), Position::Begin(0));
        assert_eq!(said(begun, 2, &[5, 5, 5, 5, 5, 5]), [5, 5, 2, 3, 5, 5]);
        assert_eq!(said(begun, 0, &[5, 5, 5]), [2, 3, 5]);
        // The reasoning ends before the limit.
        assert_eq!(said(begun, 3, &[5, 2, 3, 5, 5, 5, 5]), [5, 2, 3, 5, 5, 5, 5]);
        // The first token of the end marker alone is not the end. The marker may begin at the
        // limit.
        assert_eq!(said(begun, 3, &[2, 5, 2, 3, 6]), [2, 5, 2, 3, 6]);
        assert_eq!(said(none, 1, &[1, 5, 5, 5, 5]), [1, 5, 2, 3, 5]);
        // Without reasoning nothing is limited.
        assert_eq!(said(none, 0, &[5, 1, 5, 5]), [5, 1, 5, 5]);
    }
}
