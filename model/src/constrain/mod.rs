//! Constrained answers. The crate `llguidance` converts a JSON schema, a regular expression or a
//! grammar to a [`Constraint`]. For every token it computes the set of allowed next tokens.
//!
//! [`Grammars`] is created once per vocabulary, which takes some tenths of a second. A constraint
//! is created per request in a few milliseconds. A mask takes tens of µs per token.

mod gbnf;
mod reply;
mod schema;

pub use gbnf::lark_of_gbnf;
pub use reply::{Content, Reply};
pub use schema::Unenforced;

use crate::cancel::Cancel;
use crate::elide::elide;
use crate::sample::TokenMask;
use crate::serve::{Constraint, Interrupt};
use crate::tokenizer::Tokenizer;
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{TokEnv, TokRxInfo, TokTrie, TokenizerEnv};
use llguidance::{Matcher, ParserFactory};
use schema::Translated;
use serde_json::Value;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Maximum bytes of a grammar, or of all schemas of an answer together.
const MAX_BYTES: usize = 512 << 10;
/// Stack size for creating a constraint, plus a part per byte of the grammar. A chain of rules such
/// as `aaa:aab` needs 2 to 4 KiB of stack per rule in a release build: 1,000 rules overflowed the
/// default 2 MiB. Unused stack takes no memory.
const STACK: usize = 8 << 20;
const STACK_PER_BYTE: usize = 2 << 10;

/// The reasons why a constraint cannot be created.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GrammarError {
    /// The vocabulary cannot be used.
    #[error("answers cannot be constrained with this vocabulary: {}", elide(.0, 400))]
    Vocabulary(String),
    /// The schema, expression or grammar is invalid or unsupported.
    #[error("the {what} cannot be enforced: {}", elide(why, 400))]
    Grammar {
        /// The kind of input.
        what: &'static str,
        /// The reason, in one line.
        why: String,
    },
}

/// Maximum number of entries in one row of the library's parser. An object with 2,000 optional
/// properties has 8,000 entries.
const MAX_ROW_ENTRIES: usize = 10_000;
/// Maximum number of entries in all rows that are tried for one token.
const MAX_STEP_ENTRIES: usize = 250_000;

/// Creates constraints for one vocabulary.
pub struct Grammars {
    factory: ParserFactory,
    n_vocab: usize,
    ends: Vec<u32>,
}

/// The vocabulary in the format of the library. Tokens are never forced, so that only the model
/// decides how a text is split into tokens.
struct Vocabulary(TokTrie);

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.0
    }

    fn tokenize_bytes(&self, text: &[u8]) -> Vec<u32> {
        self.0.greedy_tokenize(text)
    }

    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}

impl Grammars {
    /// Creates constraints for a vocabulary and a model with `n_vocab` logits.
    ///
    /// # Errors
    /// [`GrammarError::Vocabulary`]: no token ends an answer, or the library rejects the
    /// vocabulary.
    pub fn new(tokenizer: &Tokenizer, n_vocab: usize) -> Result<Grammars, GrammarError> {
        let wrong = |why: String| GrammarError::Vocabulary(why);
        let ends = tokenizer.eog_ids().to_vec();
        let end = tokenizer.eot().or(tokenizer.eos()).or(ends.first().copied());
        let end =
            end.ok_or_else(|| wrong("the vocabulary has no token that ends an answer".to_owned()))?;
        let bytes = |id: u32| {
            let mut text = vec![];
            match tokenizer.is_control(id) {
                // The library's marker of a token that no text produces.
                Ok(true) => {
                    text.push(TokTrie::SPECIAL_TOKEN_MARKER);
                    text.extend_from_slice(tokenizer.token_text(id).unwrap_or_default());
                }
                Ok(false) => {
                    // A known id always has a piece. A piece that starts with the marker byte is
                    // not used.
                    let _ = tokenizer.push_piece(id, false, &mut text);
                    if text.first() == Some(&TokTrie::SPECIAL_TOKEN_MARKER) {
                        text.clear();
                    }
                }
                // This id is padding after the vocabulary.
                Err(_) => {}
            }
            text
        };
        let size = u32::try_from(n_vocab).map_err(|e| wrong(e.to_string()))?;
        let words: Vec<Vec<u8>> = (0..size).map(bytes).collect();
        let env: TokEnv = Arc::new(Vocabulary(TokTrie::from(&TokRxInfo::new(size, end), &words)));
        let mut factory = ParserFactory::new_simple(&env).map_err(|e| wrong(line(&e)))?;
        factory.quiet();
        let limits = factory.limits_mut();
        limits.verbose_errors = false;
        (limits.max_items_in_row, limits.step_max_items) = (MAX_ROW_ENTRIES, MAX_STEP_ENTRIES);
        Ok(Grammars { factory, n_vocab, ends })
    }

    /// Constrains answers to JSON that satisfies this schema, except for the keywords in
    /// [`Grammar::unheld`].
    ///
    /// # Errors
    /// The schema is invalid, or no value satisfies it.
    pub fn json_schema(&self, schema: &Value) -> Result<Box<Grammar>, GrammarError> {
        let Translated { lark, unheld } = translated(schema)?;
        let made = self.made("JSON schema", TopLevelGrammar::from_lark(lark))?;
        Ok(Box::new(Grammar { unheld, ..*made }))
    }

    /// Constrains answers to a JSON object.
    ///
    /// # Errors
    /// See [`Grammars::json_schema`].
    pub fn json_object(&self) -> Result<Box<Grammar>, GrammarError> {
        self.json_schema(&serde_json::json!({ "type": "object" }))
    }

    /// Constrains answers to full matches of this regular expression, in the syntax of the crate
    /// `regex`.
    ///
    /// # Errors
    /// The expression is invalid.
    pub fn regex(&self, expression: &str) -> Result<Box<Grammar>, GrammarError> {
        self.made("regular expression", TopLevelGrammar::from_regex(expression))
    }

    /// Constrains answers to this grammar, in llguidance's dialect of Lark. The start rule is
    /// `start`.
    ///
    /// # Errors
    /// The grammar is invalid.
    pub fn lark(&self, grammar: &str) -> Result<Box<Grammar>, GrammarError> {
        self.made("grammar", TopLevelGrammar::from_lark(grammar.to_owned()))
    }

    fn made(
        &self,
        what: &'static str,
        grammar: TopLevelGrammar,
    ) -> Result<Box<Grammar>, GrammarError> {
        let wrong = |why: String| GrammarError::Grammar { what, why };
        let bytes = serde_json::to_vec(&grammar).map_err(|e| wrong(line(&e)))?.len();
        if bytes > MAX_BYTES {
            return Err(wrong(format!("it has {bytes} bytes, more than {MAX_BYTES}")));
        }
        // The library processes chains of rules or references by recursion.
        let stack = STACK + STACK_PER_BYTE * bytes;
        let matcher = std::thread::scope(|scope| {
            let make = || Matcher::new(self.factory.create_parser(grammar)).into_cancellable();
            let thread = std::thread::Builder::new().name("grammar".to_owned()).stack_size(stack);
            let made = thread
                .spawn_scoped(scope, make)
                .map_err(|e| wrong(format!("cannot start a thread: {e}")))?;
            made.join().map_err(|_| wrong("the grammar library failed".to_owned()))
        })?;
        match matcher.get_error() {
            Some(why) => Err(wrong(one_line(&why))),
            None => {
                let unheld = vec![];
                Ok(Box::new(Grammar {
                    matcher,
                    n_vocab: self.n_vocab,
                    ends: self.ends.clone(),
                    unheld,
                }))
            }
        }
    }
}

/// Translates a schema on a separate stack: the intersection of 128 references, each 128 deep,
/// takes about 50 MiB.
fn translated(schema: &Value) -> Result<Translated, GrammarError> {
    const STACK: usize = 128 << 20;
    let wrong = |why: &str| GrammarError::Grammar { what: "JSON schema", why: one_line(why) };
    let made = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("schema".to_owned()).stack_size(STACK);
        let made = thread.spawn_scoped(scope, || schema::translate(schema));
        made.map_err(|e| wrong(&format!("cannot start a thread: {e}")))?
            .join()
            .map_err(|_| wrong("it cannot be read"))
    })?;
    made.map_err(|why| wrong(&why))
}

/// The keywords of a schema that are not enforced in answers.
///
/// # Errors
/// The schema is invalid, or no value satisfies it.
pub fn unheld(schema: &Value) -> Result<Vec<Unenforced>, GrammarError> {
    translated(schema).map(|translated| translated.unheld)
}

/// An error of the library in one line.
fn line(error: &impl std::fmt::Display) -> String {
    one_line(&error.to_string())
}

/// An error of the library in one line that states what to do. The library's limits and panics have
/// texts for its developers.
fn one_line(text: &str) -> String {
    const MAX_CHARS: usize = 300;
    const SMALLER: &str = "make it smaller, or less ambiguous";
    let has = |part: &str| text.contains(part);
    if has("panic: ") || has("<backtrace>") {
        return format!("it is too large or too deep: {SMALLER}");
    }
    if has("Current row has") {
        let number =
            |text: &str| text.split(|c: char| !c.is_ascii_digit()).find_map(|n| n.parse().ok());
        let n: u64 = text.split("Current row has").nth(1).and_then(number).unwrap_or_default();
        return format!(
            "it has {n} alternatives at one position, more than the limit of {MAX_ROW_ENTRIES}: \
             {SMALLER}"
        );
    }
    if has("Too many items") {
        return format!(
            "it has more than {MAX_STEP_ENTRIES} alternatives for one token: {SMALLER}"
        );
    }
    let limits = ["too big (limit", "too many expressions", "too many states", "fuel exhausted"];
    if limits.iter().any(|limit| has(limit)) {
        return format!("it exceeds the size limits of grammars: {SMALLER}");
    }
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    line.chars().take(MAX_CHARS).collect()
}

/// A constraint: a grammar and the position of an answer in it. A clone is independent.
pub struct Grammar {
    matcher: Matcher,
    n_vocab: usize,
    ends: Vec<u32>,
    unheld: Vec<Unenforced>,
}

impl Grammar {
    /// Computes the mask of the first token, so that a grammar that is too slow or too large is
    /// refused early. Stops after `longest`, or when the work is cancelled.
    ///
    /// # Errors
    /// The reason, in one line.
    pub fn try_first(&mut self, longest: Duration, cancel: &Cancel) -> Result<(), String> {
        /// Interval between two checks of `cancel`.
        const CANCEL_POLL: Duration = Duration::from_millis(20);
        let Some(interrupt) = self.interrupt() else { return self.allowed().map(drop) };
        let (done, end) = channel::<()>();
        let start = Instant::now();
        let (made, late) = std::thread::scope(|scope| {
            let watch = move || {
                while matches!(end.recv_timeout(CANCEL_POLL), Err(RecvTimeoutError::Timeout)) {
                    let late = start.elapsed() > longest;
                    if late || cancel.is_cancelled() {
                        interrupt();
                        return late;
                    }
                }
                false
            };
            let thread = std::thread::Builder::new().name("grammar-watch".to_owned());
            let watch = thread
                .spawn_scoped(scope, watch)
                .map_err(|e| format!("cannot start a thread: {e}"))?;
            let made = self.allowed();
            drop(done);
            Ok::<_, String>((made, watch.join().unwrap_or(false)))
        })?;
        match (made, late) {
            (Err(_), true) => Err(format!(
                "the first token took more than {} s: make it smaller, or less ambiguous",
                longest.as_secs_f32()
            )),
            (made, _) => made.map(drop),
        }
    }

    /// The keywords of the schemas that are not enforced in answers.
    pub fn unheld(&self) -> &[Unenforced] {
        &self.unheld
    }
}

impl Clone for Grammar {
    fn clone(&self) -> Grammar {
        Grammar {
            matcher: self.matcher.deep_clone(),
            ends: self.ends.clone(),
            unheld: self.unheld.clone(),
            ..*self
        }
    }
}

impl Constraint for Grammar {
    fn allowed(&mut self) -> Result<TokenMask, String> {
        let bits = self.matcher.compute_mask_or_eos().map_err(|e| line(&e))?;
        let mut mask = TokenMask::of_bits(self.n_vocab, bits.as_slice());
        // If one end token is allowed, all end tokens are allowed.
        if self.ends.iter().any(|id| mask.allows(*id))
            || self.matcher.is_accepting().unwrap_or(false)
        {
            self.ends.iter().for_each(|id| mask.allow(*id));
        }
        Ok(mask)
    }

    fn accept(&mut self, token: u32) -> Result<bool, String> {
        if self.ends.contains(&token) {
            return Ok(true);
        }
        self.matcher.consume_token(token).map_err(|e| line(&e))?;
        match self.matcher.get_error() {
            Some(why) => Err(one_line(&why)),
            None => Ok(self.matcher.is_stopped()),
        }
    }

    fn interrupt(&self) -> Option<Interrupt> {
        let handle = self.matcher.cancellation_handle()?;
        Some(Arc::new(move || handle.cancel()))
    }
}

#[cfg(test)]
mod tests {
    use super::one_line;

    #[test]
    fn library_limits_and_panics_become_plain_messages() {
        for (text, line) in [
            (
                "Parser Error: Current row has 11999 items; max is 10000; consider making your \
                 grammar left-recursive if it's right-recursive\n<non-verbose/>",
                "it has 11999 alternatives at one position, more than the limit of 10000: \
                 make it smaller, or less ambiguous",
            ),
            (
                "parser error: Too many items (limit 250000; mask); try avoiding single-byte",
                "it has more than 250000 alternatives for one token: \
                 make it smaller, or less ambiguous",
            ),
            (
                "panic: class too large\n<backtrace>\n 0: llguidance::earley\n</backtrace>",
                "it is too large or too deep: make it smaller, or less ambiguous",
            ),
            (
                "grammar size (number of symbols) too big (limit for this grammar: 500000)",
                "it exceeds the size limits of grammars: make it smaller, or less ambiguous",
            ),
            ("unknown name:\n \"x\"", "unknown name: \"x\""),
        ] {
            assert_eq!(one_line(text), line);
        }
    }
}
