//! From a prompt to text: feeds an executor, watches for the end, and hands out text as it becomes certain.

use crate::exec::{ExecError, Executor, Want};
use crate::sample::Sampler;
use crate::tokenizer::{Detokenizer, Tokenizer};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// Why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// The model said so with an end-of-generation token.
    EndOfGeneration,
    /// The number of tokens asked for was reached.
    Length,
    /// One of the stop texts appeared; it and what follows are not part of the answer.
    StopText,
    /// No room is left in the context.
    ContextFull,
    /// The caller interrupted.
    Interrupted,
}

impl StopReason {
    /// As scripts see it.
    pub fn as_str(self) -> &'static str {
        match self {
            StopReason::EndOfGeneration => "end_of_generation",
            StopReason::Length => "length",
            StopReason::StopText => "stop_text",
            StopReason::ContextFull => "context_full",
            StopReason::Interrupted => "interrupted",
        }
    }
}

/// What to generate.
#[derive(Debug, Clone)]
pub struct Request<'a> {
    /// Tokens to feed before the first one is sampled; at least one.
    pub prompt: &'a [u32],
    /// At most this many tokens; `None`: until the context is full.
    pub max_tokens: Option<usize>,
    /// Texts that end the answer.
    pub stop: &'a [String],
}

/// What came out.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The tokens, a final end-of-generation token included.
    pub ids: Vec<u32>,
    /// The text, without stop text.
    pub text: String,
    /// Why it ended.
    pub reason: StopReason,
    /// Time until the first token, the prompt's included.
    pub first_token: Duration,
    /// Time from the first token to the last.
    pub decode: Duration,
}

/// Generates. `on_text` gets each piece of text as soon as no stop text can begin in it; breaking there interrupts. `interrupted` is
/// asked at every token, and between the pieces of a long prompt.
///
/// # Errors
/// Those of the executor; what was generated until then has been handed to `on_text`.
pub fn generate(
    exec: &mut dyn Executor,
    tokenizer: &Tokenizer,
    sampler: &mut Sampler,
    request: &Request,
    on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    interrupted: &dyn Fn() -> bool,
) -> Result<Answer, ExecError> {
    let start = Instant::now();
    let mut first = None;
    let mut ids = vec![];
    let mut text = StopWatcher::new(Detokenizer::new(tokenizer, false), request.stop);
    let mut reason = StopReason::ContextFull;
    if request.max_tokens == Some(0) {
        let answer = Answer {
            ids,
            text: String::new(),
            reason: StopReason::Length,
            first_token: start.elapsed(),
            decode: Duration::ZERO,
        };
        return Ok(answer);
    }
    let Some(prompt) = feed_all_but_a_piece(exec, request.prompt, interrupted)? else {
        reason = StopReason::Interrupted;
        return Ok(Answer { ids, text: String::new(), reason, first_token: start.elapsed(), decode: Duration::ZERO });
    };
    exec.decode(prompt, sampler, &mut |id| {
        first.get_or_insert_with(Instant::now);
        ids.push(id);
        let stop = if tokenizer.is_eog(id) {
            Some(StopReason::EndOfGeneration)
        } else {
            match text.push(id, on_text) {
                ControlFlow::Break(why) => Some(why),
                ControlFlow::Continue(()) if request.max_tokens.is_some_and(|n| ids.len() >= n) => {
                    Some(StopReason::Length)
                }
                ControlFlow::Continue(()) if interrupted() => Some(StopReason::Interrupted),
                ControlFlow::Continue(()) => None,
            }
        };
        match stop {
            Some(why) => {
                reason = why;
                ControlFlow::Break(())
            }
            None => ControlFlow::Continue(()),
        }
    })?;
    let end = Instant::now();
    if reason != StopReason::StopText {
        // Text that was held back turned out to begin no stop text.
        text.finish(on_text);
    }
    let first = first.unwrap_or(end);
    Ok(Answer { ids, text: text.text, reason, first_token: first - start, decode: end - first })
}

/// Feeds a prompt but for its last piece, which is the result; `None` when interrupted between two.
fn feed_all_but_a_piece<'p>(
    exec: &mut dyn Executor,
    prompt: &'p [u32],
    interrupted: &dyn Fn() -> bool,
) -> Result<Option<&'p [u32]>, ExecError> {
    let (tokens, context) = (exec.len().saturating_add(prompt.len()), exec.context());
    if tokens > context {
        // Said before anything is fed, as the executor would of the whole.
        return Err(ExecError::Context { tokens, context });
    }
    let (mut rest, piece) = (prompt, exec.piece().max(1));
    while let Some((now, later)) = rest.split_at_checked(piece).filter(|(_, later)| !later.is_empty()) {
        exec.feed(now, Want::Nothing)?;
        if interrupted() {
            return Ok(None);
        }
        rest = later;
    }
    Ok(Some(rest))
}

/// Turns ids into text and holds back what may be the start of a stop text.
struct StopWatcher<'a> {
    detokenizer: Detokenizer<'a>,
    stop: &'a [String],
    /// All text so far that belongs to the answer.
    text: String,
    /// Bytes of `text` that were handed out.
    shown: usize,
}

impl<'a> StopWatcher<'a> {
    fn new(detokenizer: Detokenizer<'a>, stop: &'a [String]) -> Self {
        StopWatcher { detokenizer, stop, text: String::new(), shown: 0 }
    }

    fn push(&mut self, id: u32, on_text: &mut dyn FnMut(&str) -> ControlFlow<()>) -> ControlFlow<StopReason> {
        // An id without text (a vocabulary padded beyond its tokens) says nothing.
        let Ok(Some(piece)) = self.detokenizer.push(id) else { return ControlFlow::Continue(()) };
        // A stop text may have begun in earlier pieces, but not before what was shown.
        self.text.push_str(&piece);
        let unseen = self.text.get(self.shown..).unwrap_or_default();
        let found = self.stop.iter().filter(|s| !s.is_empty()).filter_map(|s| unseen.find(s.as_str())).min();
        if let Some(at) = found {
            self.text.truncate(self.shown + at);
            let _ = self.show(self.text.len(), on_text);
            return ControlFlow::Break(StopReason::StopText);
        }
        let held = self.stop.iter().map(|s| partial_suffix(unseen, s)).max().unwrap_or(0);
        match self.show(self.text.len() - held, on_text) {
            ControlFlow::Break(()) => ControlFlow::Break(StopReason::Interrupted),
            ControlFlow::Continue(()) => ControlFlow::Continue(()),
        }
    }

    fn finish(&mut self, on_text: &mut dyn FnMut(&str) -> ControlFlow<()>) {
        let rest = self.detokenizer.finish().unwrap_or_default();
        self.text.push_str(&rest);
        let _ = self.show(self.text.len(), on_text);
    }

    fn show(&mut self, until: usize, on_text: &mut dyn FnMut(&str) -> ControlFlow<()>) -> ControlFlow<()> {
        let piece = self.text.get(self.shown..until).unwrap_or_default();
        self.shown = until;
        if piece.is_empty() { ControlFlow::Continue(()) } else { on_text(piece) }
    }
}

/// The length of the longest end of `text` that begins `stop` without being all of it.
fn partial_suffix(text: &str, stop: &str) -> usize {
    stop.char_indices()
        .map(|(i, _)| i)
        .skip(1)
        .filter(|&i| text.ends_with(stop.get(..i).unwrap_or(stop)))
        .max()
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::partial_suffix;

    #[test]
    fn the_longest_possible_beginning_of_a_stop_text_is_held_back() {
        assert_eq!(partial_suffix("hello <|im", "<|im_end|>"), 4);
        assert_eq!(partial_suffix("hello", "<|im_end|>"), 0);
        assert_eq!(partial_suffix("aab", "aabaac"), 3);
        assert_eq!(partial_suffix("ü", "üx"), 2);
    }
}
