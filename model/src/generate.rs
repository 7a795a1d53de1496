//! Generates text from a prompt. Feeds the sequence, decodes until a stop condition, and returns
//! text when it cannot be the start of a stop string.

use crate::NonExhaustive;
use crate::prompt_lookup::{self, Drafts};
use crate::serve::Constraint;
use crate::session::{DecodeControl, SequenceId, Session, SessionError, StepOutput, Want, Work};
use crate::stop::StopWatcher;
use crate::tokenizer::Tokenizer;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

pub use crate::stop::StopReason;

/// A prompt and the limits of its answer. The default has no prompt.
#[derive(Debug, Clone, Default)]
pub struct Request<'a> {
    /// Tokens that are fed before the first one is sampled; at least one.
    pub prompt: &'a [u32],
    /// Maximum number of tokens to generate; `None`: until the context is full.
    pub max_tokens: Option<usize>,
    /// Strings that end the answer.
    pub stop: &'a [String],
    /// Whether tokens are drafted from repetitions in the prompt and the answer.
    pub lookup: bool,
    #[doc(hidden)]
    pub _more: NonExhaustive,
}

/// A generated answer.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Answer {
    /// The tokens, including a final end-of-generation token.
    pub ids: Vec<u32>,
    /// The text without the stop string.
    pub text: String,
    /// Why the answer ended.
    pub reason: StopReason,
    /// Time until the first token, including the time of the prompt.
    pub first_token: Duration,
    /// Time from the first token to the last.
    pub decode: Duration,
    /// Counts of drafted and accepted tokens.
    pub drafts: Drafts,
}

/// Why a constrained answer failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GenerateError {
    /// An error of the session.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The constraint cannot continue: the reason, in one line.
    #[error("the answer cannot follow its grammar: {0}")]
    Constraint(String),
}

/// Generates an answer with the sampler of the sequence. `on_text` gets each piece of text when it
/// cannot be the start of a stop string; `Break` interrupts. `interrupted` is called at every token
/// and between the pieces of a long prompt.
///
/// # Errors
/// An error of the session. `on_text` has received the text that was generated before.
pub fn generate(
    session: &mut Session,
    sequence: SequenceId,
    tokenizer: &Tokenizer,
    request: &Request,
    on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    interrupted: &dyn Fn() -> bool,
) -> Result<Answer, SessionError> {
    let mut decode = |session: &mut Session, rest: &[u32], sink: Sink<'_>| match request.lookup {
        true => {
            let text = request.prompt.to_vec();
            let drafts = prompt_lookup::decode(session, sequence, text, rest.len(), sink)?;
            Ok((drafts, false))
        }
        false => {
            session.decode(&[(sequence, rest)], &mut |_, id| sink(id))?;
            Ok((Drafts::default(), false))
        }
    };
    generate_by(session, sequence, tokenizer, request, on_text, interrupted, &mut decode)
}

/// Like [`generate`], but the constraint decides which tokens are allowed. The answer also ends
/// when the constraint is complete, with [`StopReason::EndOfGeneration`]. The constraint has
/// accepted all tokens of the answer, so an answer that was cut can be continued with it. No tokens
/// are drafted.
///
/// # Errors
/// An error of the session, or of the constraint. `on_text` has received the text that was
/// generated before.
pub fn generate_constrained(
    session: &mut Session,
    sequence: SequenceId,
    tokenizer: &Tokenizer,
    request: &Request,
    constraint: &mut dyn Constraint,
    on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    interrupted: &dyn Fn() -> bool,
) -> Result<Answer, GenerateError> {
    let mut decode = |session: &mut Session, rest: &[u32], sink: Sink<'_>| {
        let done = decode_constrained(session, sequence, rest, constraint, sink);
        session.sampler(sequence)?.set_mask(None);
        Ok((Drafts::default(), done?))
    };
    generate_by(session, sequence, tokenizer, request, on_text, interrupted, &mut decode)
}

/// Receives each chosen token, and decides whether decoding continues.
type Sink<'a> = &'a mut dyn FnMut(u32) -> DecodeControl;
/// Feeds the rest of a prompt and decodes. Returns whether a constraint ended the answer.
type Decode<'a, E> = &'a mut dyn FnMut(&mut Session, &[u32], Sink<'_>) -> Result<(Drafts, bool), E>;

/// Decodes with a constraint. Returns whether the constraint is complete.
fn decode_constrained(
    session: &mut Session,
    sequence: SequenceId,
    rest: &[u32],
    constraint: &mut dyn Constraint,
    sink: Sink<'_>,
) -> Result<bool, GenerateError> {
    let mut tokens = rest.to_vec();
    loop {
        let mask = constraint.allowed().map_err(GenerateError::Constraint)?;
        session.sampler(sequence)?.set_mask(Some(mask));
        let work = [Work { sequence, tokens: &tokens, want: Want::Choose }];
        let Some(StepOutput::Token(id)) = session.step(&work)?.pop() else {
            return Err(SessionError::NoTokens.into());
        };
        let complete = constraint.accept(id).map_err(GenerateError::Constraint)?;
        let control = sink(id);
        if complete || control != DecodeControl::Go || session.len(sequence)? >= session.context() {
            return Ok(complete);
        }
        tokens.clear();
        tokens.push(id);
    }
}

/// Generates an answer with this way of decoding.
fn generate_by<E: From<SessionError>>(
    session: &mut Session,
    sequence: SequenceId,
    tokenizer: &Tokenizer,
    request: &Request,
    on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    interrupted: &dyn Fn() -> bool,
    decode: Decode<'_, E>,
) -> Result<Answer, E> {
    let start = Instant::now();
    let mut first = None;
    let mut ids = vec![];
    let mut text = StopWatcher::new(tokenizer, request.stop);
    let mut reason = StopReason::ContextFull;
    if request.max_tokens == Some(0) {
        let answer = Answer {
            ids,
            text: String::new(),
            reason: StopReason::Length,
            first_token: start.elapsed(),
            decode: Duration::ZERO,
            drafts: Drafts::default(),
        };
        return Ok(answer);
    }
    session.sampler(sequence)?.read(request.prompt);
    let Some(prompt) = feed_all_but_a_piece(session, sequence, request.prompt, interrupted)? else {
        reason = StopReason::Interrupted;
        let (text, first_token, drafts) = (String::new(), start.elapsed(), Drafts::default());
        return Ok(Answer { ids, text, reason, first_token, decode: Duration::ZERO, drafts });
    };
    let mut sink = |id| {
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
                DecodeControl::End
            }
            None => DecodeControl::Go,
        }
    };
    let (drafts, complete) = decode(session, prompt, &mut sink)?;
    let end = Instant::now();
    if complete && matches!(reason, StopReason::Length | StopReason::ContextFull) {
        reason = StopReason::EndOfGeneration;
    }
    // Text that was held back was not the start of a stop string.
    match reason {
        StopReason::StopText => {}
        StopReason::EndOfGeneration => text.finish(on_text),
        StopReason::Length | StopReason::ContextFull | StopReason::Interrupted => text.cut(on_text),
    }
    let first = first.unwrap_or(end);
    Ok(Answer {
        ids,
        text: text.into_text(),
        reason,
        first_token: first - start,
        decode: end - first,
        drafts,
    })
}

/// Feeds a prompt except for its last piece, which is returned. `None` if interrupted between
/// pieces.
fn feed_all_but_a_piece<'p>(
    session: &mut Session,
    sequence: SequenceId,
    prompt: &'p [u32],
    interrupted: &dyn Fn() -> bool,
) -> Result<Option<&'p [u32]>, SessionError> {
    // The whole prompt is checked before any piece is fed.
    session.check(&Work { sequence, tokens: prompt, want: Want::Choose })?;
    let (mut rest, piece) = (prompt, session.piece().max(1));
    while let Some((now, later)) =
        rest.split_at_checked(piece).filter(|(_, later)| !later.is_empty())
    {
        session.feed(sequence, now, Want::Nothing)?;
        if interrupted() {
            return Ok(None);
        }
        rest = later;
    }
    Ok(Some(rest))
}
