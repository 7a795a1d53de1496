//! Generates one answer: turns the scheduler's tokens into pieces of text, reasoning and calls.

use crate::caller::Caller;
use crate::constrain::Constrained;
use crate::models::Lease;
use crate::refusal::Refusal;
use kjit_model::SampleOptions;
use kjit_model::chat::{Form, Part, ReplyParser};
use kjit_model::generate::StopReason;
use kjit_model::serve::{Answer, Event, Failure, Logprobs, Reason, Refused, Request, Stop, Usage};
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
    /// A piece of text.
    Said {
        /// Its parts, in order.
        parts: Vec<Part>,
        /// Scores of its tokens.
        scores: Vec<Score>,
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
    let field = wanted.constraint.as_ref().map_or("response_format", |c| c.field);
    let ends = if wanted.ignore_eos { vec![] } else { loaded.tokenizer.eog_ids().to_vec() };
    // The channel has no bound of its own: the context bounds the events.
    let (events_to, events) = mpsc::unbounded_channel();
    let enough = Arc::new(AtomicBool::new(false));
    let heard = Arc::clone(&enough);
    let request = Request {
        max_tokens: wanted.max_tokens,
        sampling: wanted.sampling,
        stop: if wanted.ignore_eos { Stop::Never } else { Stop::EndOfTurn },
        constraint: wanted.constraint.map(|c| c.constraint),
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
    let reader = Reader { stop: wanted.stop, reading: wanted.reading, ends, enough, field };
    tokio::spawn(reader.run(loaded.clone(), answer, events, index, to));
    Ok(())
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
    /// Ends the answer as a complete one.
    enough: Arc<AtomicBool>,
    /// The field that asked for a constraint.
    field: &'static str,
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
        let Reader { stop, mut reading, ends, enough, field } = self;
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
            // Cut by its length or by a stop text, in the middle of a token's text.
            let mut cut = false;
            // Tokens that came meanwhile are sent as one piece.
            loop {
                match event {
                    Event::Started { prompt_tokens, cached_tokens } => {
                        (usage.prompt_tokens, usage.cached_tokens) = (prompt_tokens, cached_tokens);
                    }
                    Event::Token { id, logprobs } => {
                        first.get_or_insert_with(|| start.elapsed());
                        usage.generated_tokens += 1;
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
            let (parts, partial) = read(&mut reading, said, ended.is_some(), cut);
            calls |= parts.iter().any(|part| matches!(part, Part::Call(_)));
            if !parts.is_empty() || !scores.is_empty() {
                let sent = to.send((index, Piece::Said { parts, scores }));
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
    /// Scores of its tokens.
    pub scores: Vec<Score>,
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
            Piece::Said { parts, scores } => whole.add(parts, scores),
            Piece::Done(done) => whole.done = Some(done),
            Piece::Failed(refusal) => return Err(refusal),
        }
    }
    match all.iter().all(|whole| whole.done.is_some()) {
        true => Ok(all),
        false => Err(Refusal::internal("an answer's end was lost")),
    }
}
