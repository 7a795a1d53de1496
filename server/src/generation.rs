//! Generates one answer: turns the scheduler's tokens into pieces of text, reasoning and calls.

use crate::caller::Caller;
use crate::constrain::Constrained;
use crate::forced::Forced;
use crate::models::Lease;
use crate::refusal::Refusal;
use crate::sampling::Ends;
use crate::thought::Thought;
use kjit_model::SampleOptions;
use kjit_model::chat::{Form, Part, ReplyParser};
use kjit_model::generate::StopReason;
use kjit_model::serve::{
    Answer, Constraint, Event, Failure, Logprobs, Reason, Refused, Request, Stop, Usage,
};
use kjit_model::stop::StopWatcher;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;

/// A request for an answer, the same for all dialects.
pub struct Wanted {
    /// Prompt.
    pub tokens: Vec<u32>,
    /// Maximum tokens of the answer.
    pub max_tokens: Option<usize>,
    /// Sampling.
    pub sampling: SampleOptions,
    /// Stop texts.
    pub stop: Vec<String>,
    /// Whether end-of-generation tokens are ignored.
    pub ignore_eos: bool,
    /// Number of log probabilities per token, if they are wanted.
    pub logprobs: Option<usize>,
    /// Constraints of the answer.
    pub constraint: Option<Constrained>,
    /// How the answer's text is read.
    pub reading: Reading,
    /// The caller.
    pub caller: Caller,
    /// Whether tokens may be drafted.
    pub lookup: bool,
    /// Tokens behind the prompt that the answer begins with: they count as the prompt's, and are
    /// scored.
    pub forced: Vec<u32>,
    /// Ends besides the model's own.
    pub more_ends: Ends,
    /// Bounds its thought.
    pub thought: Option<Thought>,
    /// Whether pieces have the tokens' ids.
    pub ids: bool,
}

impl Wanted {
    /// A greedy answer to this prompt, read so.
    pub fn of(tokens: Vec<u32>, reading: Reading, caller: Caller) -> Wanted {
        Wanted {
            tokens,
            max_tokens: None,
            sampling: SampleOptions::default(),
            stop: vec![],
            ignore_eos: false,
            logprobs: None,
            constraint: None,
            reading,
            caller,
            lookup: false,
            forced: vec![],
            more_ends: Ends::default(),
            thought: None,
            ids: false,
        }
    }
}

/// How an answer's text is read.
pub enum Reading {
    /// As plain text.
    Plain,
    /// As a chat's reply, with reasoning and calls.
    Reply(Form, ReplyParser),
}

/// A token with its log probability.
#[derive(Debug, Clone)]
pub struct Score {
    /// Token id.
    pub id: u32,
    /// Its log probability, and the most likely alternatives.
    pub logprobs: Logprobs,
}

/// A piece of an answer. The last is [`Piece::Done`] or [`Piece::Failed`].
#[derive(Debug)]
pub enum Piece {
    /// The prompt left the queue. At most once, first.
    Started {
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// Tokens of the prompt that were cached.
        cached_tokens: usize,
    },
    /// Of the forced tokens. At most once, before anything is said.
    Prompt(Vec<Score>),
    /// A piece of text.
    Said {
        /// Its parts, in order.
        parts: Vec<Part>,
        /// Scores of its tokens.
        scores: Vec<Score>,
        /// Its tokens, if they are wanted.
        ids: Vec<u32>,
        /// Tokens of the answer up to its end.
        generated_tokens: usize,
    },
    /// The answer is complete.
    Done(Done),
    /// The answer failed.
    Failed(Refusal),
}

/// Figures of a complete answer.
#[derive(Debug, Clone, Copy)]
pub struct Done {
    /// The reason of its end.
    pub ended: Ended,
    /// Which of the stop texts came.
    pub stop_text: Option<usize>,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of the prompt that came from the cache.
    pub cached_tokens: usize,
    /// Tokens of the answer.
    pub generated_tokens: usize,
    /// Time to the first token.
    pub first_token: Duration,
    /// Time to the end.
    pub total: Duration,
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// An end-of-generation token or a stop text.
    Stop,
    /// A limit of tokens.
    Length,
    /// Tool calls, whose results it waits for.
    Calls,
}

/// Time limit for a client to take a piece that is ready.
const PATIENCE: Duration = Duration::from_secs(60);

/// Starts an answer. Its pieces are sent to `to`, each with `index`. The answer is cancelled when
/// the receiver is dropped.
///
/// # Errors
/// The scheduler did not accept it.
pub fn start(
    loaded: &Lease,
    wanted: Wanted,
    index: usize,
    to: mpsc::Sender<(usize, Piece)>,
) -> Result<(), Refusal> {
    let asks = match &wanted.reading {
        Reading::Plain => "prompt",
        Reading::Reply(..) => "messages",
    };
    let ends = if wanted.ignore_eos { vec![] } else { loaded.tokenizer.eog_ids().to_vec() };
    let forced = wanted.forced.len();
    if wanted.max_tokens == Some(0) && forced == 0 {
        return nothing(wanted.tokens.len(), index, &to);
    }
    let (field, constraint) = match wanted.constraint {
        None => ("response_format", None),
        Some(one) => (one.field, Some(one.constraint)),
    };
    let constraint = match wanted.thought {
        None => constraint,
        Some(thought) => Some(thought.with(constraint)),
    };
    let all_ends = || ends.iter().chain(&wanted.more_ends.ids).copied().collect::<Vec<u32>>();
    let mut stop = match (wanted.ignore_eos, wanted.more_ends.ids.is_empty()) {
        (false, true) => Stop::EndOfTurn,
        (true, true) => Stop::Never,
        (_, false) => Stop::Ids(all_ends()),
    };
    let constraint: Option<Box<dyn Constraint>> = match forced > 0 || wanted.more_ends.least > 0 {
        false => constraint,
        true => {
            // An end among the forced tokens is none.
            stop = Stop::Never;
            Some(Box::new(Forced {
                forced: wanted.forced,
                ends: all_ends(),
                least: wanted.more_ends.least,
                n_vocab: loaded.n_vocab(),
                then: constraint,
                at: 0,
            }))
        }
    };
    // The channel has no bound of its own: the context bounds the events.
    let (events_to, events) = mpsc::unbounded_channel();
    let enough = Arc::new(AtomicBool::new(false));
    let heard = Arc::clone(&enough);
    let request = Request {
        max_tokens: wanted.max_tokens.map(|n| n.saturating_add(forced)),
        sampling: wanted.sampling,
        stop,
        constraint,
        logprobs: wanted.logprobs,
        lookup: wanted.lookup,
        client: wanted.caller.client,
        owner: wanted.caller.owner,
        ..Request::new(
            wanted.tokens,
            Box::new(move |event| {
                // Sending fails only if the answer was dropped, which has cancelled it.
                let _ = events_to.send(event);
                match heard.load(Ordering::Relaxed) {
                    false => ControlFlow::Continue(()),
                    true => ControlFlow::Break(()),
                }
            }),
        )
    };
    let answer = loaded.scheduler.submit(request).map_err(|why| refused(&why, asks))?;
    let reader = Reader {
        stop: wanted.stop,
        reading: wanted.reading,
        ends,
        silent: wanted.more_ends.ids,
        forced,
        enough,
        field,
        told: wanted.ids,
    };
    tokio::spawn(reader.run(loaded.clone(), answer, events, index, to));
    Ok(())
}

/// An answer of no tokens: nothing is computed.
fn nothing(
    prompt_tokens: usize,
    index: usize,
    to: &mpsc::Sender<(usize, Piece)>,
) -> Result<(), Refusal> {
    let none = Duration::ZERO;
    let done = Done {
        ended: Ended::Length,
        stop_text: None,
        prompt_tokens,
        cached_tokens: 0,
        generated_tokens: 0,
        first_token: none,
        total: none,
    };
    to.try_send((index, Piece::Done(done)))
        .map_err(|_| Refusal::internal("the answer's end was lost"))
}
/// The HTTP refusal of a request that was not accepted, for this field.
pub fn refused(why: &Refused, field: &str) -> Refusal {
    match why {
        Refused::QueueFull { retry_after, .. } => {
            Refusal::busy(retry_after.as_secs().max(1), why.to_string())
        }
        Refused::Context { tokens, context } => {
            Refusal::too_long(*tokens, None, *context).of(field)
        }
        Refused::Stopping => Refusal::unavailable(30, why.to_string()),
        Refused::Lost(_) => Refusal::unavailable(60, why.to_string()),
        Refused::NoTokens | Refused::Token { .. } => Refusal::field(field, why),
        Refused::Logprobs { .. } => Refusal::field("top_logprobs", why),
        Refused::Encoder { .. } | Refused::NoEncoder { .. } => Refusal::bad(why.to_string()),
        _ => Refusal::internal(why.to_string()),
    }
}

/// The HTTP refusal of an answer that failed. `field` asked for its constraint.
pub fn failed(why: &Failure, field: &str) -> Refusal {
    match why {
        Failure::Memory(_) => Refusal::unavailable(5, why.to_string()),
        Failure::Device(_) | Failure::Stopped => Refusal::unavailable(1, why.to_string()),
        Failure::Constraint(_) => Refusal::field(field, why),
        _ => Refusal::internal(why.to_string()),
    }
}

/// Reads the events of one answer.
struct Reader {
    stop: Vec<String>,
    reading: Reading,
    /// Tokens that mark the end and have no text.
    ends: Vec<u32>,
    /// Tokens that are the end, and whose text is no part of the answer.
    silent: Vec<u32>,
    /// Tokens that are the prompt's.
    forced: usize,
    /// Ends the answer as a complete one.
    enough: Arc<AtomicBool>,
    /// The field that asked for a constraint.
    field: &'static str,
    /// Whether pieces have the tokens' ids.
    told: bool,
}

impl Reader {
    async fn run(
        self,
        loaded: Lease,
        answer: Answer,
        mut events: mpsc::UnboundedReceiver<Event>,
        index: usize,
        to: mpsc::Sender<(usize, Piece)>,
    ) {
        let start = std::time::Instant::now();
        let Reader { stop, mut reading, ends, silent, forced, enough, field, told } = self;
        let (mut of_prompt, mut scored, mut generated) = (vec![], forced == 0, 0);
        let markers = match &reading {
            Reading::Plain => &[],
            Reading::Reply(form, _) => form.markers(),
        };
        let mut text = StopWatcher::showing(&loaded.tokenizer, &stop, markers);
        let mut usage = Usage::default();
        let (mut first, mut calls) = (None, false);
        loop {
            let event = tokio::select! {
                event = events.recv() => event,
                // The client has gone. Dropping `answer` cancels it.
                () = to.closed() => return,
            };
            let Some(mut event) = event else {
                let lost = Refusal::internal("the answer's end was lost");
                let _ = to.send((index, Piece::Failed(lost))).await;
                return;
            };
            let (mut said, mut scores, mut ended) = (String::new(), vec![], None);
            let (mut started, mut ids) = (None, vec![]);
            // Cut by its length or by a stop text, in the middle of a token's text.
            let mut cut = false;
            // Tokens that came meanwhile are sent as one piece.
            loop {
                match event {
                    Event::Started { prompt_tokens, cached_tokens } => {
                        let prompt_tokens = prompt_tokens + forced;
                        (usage.prompt_tokens, usage.cached_tokens) = (prompt_tokens, cached_tokens);
                        started = Some(Piece::Started { prompt_tokens, cached_tokens });
                    }
                    Event::Token { id, logprobs } if !scored && of_prompt.len() < forced => {
                        let none = || Logprobs { chosen: f32::NAN, top: vec![] };
                        let logprobs = logprobs.unwrap_or_else(none);
                        of_prompt.push(Score { id, logprobs });
                    }
                    Event::Token { id, .. } if silent.contains(&id) => {
                        generated += 1;
                        ids.extend(told.then_some(id));
                    }
                    Event::Token { id, logprobs } => {
                        generated += 1;
                        ids.extend(told.then_some(id));
                        first.get_or_insert_with(|| start.elapsed());
                        usage.generated_tokens = generated;
                        let logprobs = logprobs.filter(|_| !ends.contains(&id));
                        scores.extend(logprobs.map(|logprobs| Score { id, logprobs }));
                        let mut keep = |piece: &str| {
                            said.push_str(piece);
                            ControlFlow::Continue(())
                        };
                        if let ControlFlow::Break(StopReason::StopText) = text.push(id, &mut keep) {
                            (ended, cut) = (Some(Ok(Ended::Stop)), true);
                        }
                    }
                    Event::Done { reason, usage: whole } => {
                        cut = matches!(reason, Reason::Length | Reason::ContextFull);
                        let mut keep = |piece: &str| {
                            said.push_str(piece);
                            ControlFlow::Continue(())
                        };
                        // An incomplete character is left out of an answer that was cut.
                        if cut {
                            text.cut(&mut keep)
                        } else {
                            text.finish(&mut keep)
                        };
                        usage = whole;
                        usage.prompt_tokens += forced;
                        usage.generated_tokens = usage.generated_tokens.saturating_sub(forced);
                        ended = Some(Ok(match reason {
                            Reason::Length | Reason::ContextFull => Ended::Length,
                            Reason::Stop
                            | Reason::Constraint
                            | Reason::Ended
                            | Reason::Cancelled => Ended::Stop,
                        }));
                    }
                    Event::Failed(why) => ended = Some(Err(failed(&why, field))),
                }
                if ended.is_some() {
                    break;
                }
                match events.try_recv() {
                    Ok(next) => event = next,
                    Err(_) => break,
                }
            }
            if let Some(started) = started {
                match tokio::time::timeout(PATIENCE, to.send((index, started))).await {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) | Err(_) => return,
                }
            }
            if !scored && of_prompt.len() == forced {
                scored = true;
                let piece = Piece::Prompt(std::mem::take(&mut of_prompt));
                match tokio::time::timeout(PATIENCE, to.send((index, piece))).await {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) | Err(_) => return,
                }
            }
            let (parts, partial) = read(&mut reading, said, ended.is_some(), cut);
            calls |= parts.iter().any(|part| matches!(part, Part::Call(_)));
            if !parts.is_empty() || !scores.is_empty() || !ids.is_empty() {
                let said = Piece::Said { parts, scores, ids, generated_tokens: generated };
                let sent = to.send((index, said));
                match tokio::time::timeout(PATIENCE, sent).await {
                    Ok(Ok(())) => {}
                    // The receiver is gone, or the client took nothing in time.
                    Ok(Err(_)) | Err(_) => return,
                }
            }
            let Some(ended) = ended else { continue };
            // After a stop text the scheduler learns of the end with the next token. Dropping an
            // answer that has ended must not cancel it.
            enough.store(true, Ordering::Relaxed);
            answer.detach();
            let last = match ended {
                Err(refusal) => Piece::Failed(refusal),
                Ok(ended) => Piece::Done(Done {
                    // A call that was cut is not waited for.
                    ended: if calls && !partial && ended == Ended::Stop {
                        Ended::Calls
                    } else {
                        ended
                    },
                    stop_text: text.stopped_by(),
                    prompt_tokens: usage.prompt_tokens,
                    cached_tokens: usage.cached_tokens,
                    generated_tokens: usage.generated_tokens,
                    first_token: first.unwrap_or_default(),
                    total: start.elapsed(),
                }),
            };
            let _ = tokio::time::timeout(PATIENCE, to.send((index, last))).await;
            return;
        }
    }
}

/// The parts of a piece of text, and whether the last one is an unfinished call.
fn read(reading: &mut Reading, said: String, ended: bool, cut: bool) -> (Vec<Part>, bool) {
    let (mut parts, mut partial) = (vec![], false);
    match reading {
        Reading::Plain if said.is_empty() => {}
        Reading::Plain => parts.push(Part::Content(said)),
        Reading::Reply(_, parser) => {
            parser.push(&said, &mut parts);
            match (ended, cut) {
                (true, true) => partial = parser.cut(&mut parts),
                (true, false) => parser.finish(&mut parts),
                (false, _) => {}
            }
        }
    }
    (parts, partial)
}

/// A whole answer.
#[derive(Debug, Default)]
pub struct Whole {
    /// Text.
    pub content: String,
    /// Reasoning.
    pub reasoning: String,
    /// Tool calls.
    pub calls: Vec<kjit_model::chat::ToolCall>,
    /// Of the forced tokens.
    pub prompt: Vec<Score>,
    /// Scores of its tokens.
    pub scores: Vec<Score>,
    /// Its tokens, if they are wanted.
    pub ids: Vec<u32>,
    /// Its figures.
    pub done: Option<Done>,
}

impl Whole {
    /// Adds parts.
    pub fn add(&mut self, parts: Vec<Part>, scores: Vec<Score>) {
        self.scores.extend(scores);
        for part in parts {
            match part {
                Part::Content(text) => self.content.push_str(&text),
                Part::Reasoning(text) => self.reasoning.push_str(&text),
                Part::Call(call) => self.calls.push(call),
            }
        }
    }
}

/// Waits for this many answers.
///
/// # Errors
/// One of them failed; the others are cancelled.
pub async fn collect(
    mut pieces: mpsc::Receiver<(usize, Piece)>,
    answers: usize,
) -> Result<Vec<Whole>, Refusal> {
    let mut all: Vec<Whole> = (0..answers).map(|_| Whole::default()).collect();
    while let Some((index, piece)) = pieces.recv().await {
        let Some(whole) = all.get_mut(index) else { continue };
        match piece {
            Piece::Started { .. } => {}
            Piece::Prompt(scores) => whole.prompt = scores,
            Piece::Said { parts, scores, ids, .. } => {
                whole.add(parts, scores);
                whole.ids.extend(ids);
            }
            Piece::Done(done) => whole.done = Some(done),
            Piece::Failed(refusal) => return Err(refusal),
        }
    }
    match all.iter().all(|whole| whole.done.is_some()) {
        true => Ok(all),
        false => Err(Refusal::internal("an answer's end was lost")),
    }
}
