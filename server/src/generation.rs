//! Generates one answer: converts the scheduler's tokens to pieces of text, reasoning and tool
//! calls.

use crate::adapters::Adapters;
use crate::caller::Caller;
use crate::constrain::Constrained;
use crate::forced::Forced;
use crate::models::Lease;
use crate::reasoning_limit::ReasoningTokens;
use crate::refusal::Refusal;
use crate::sampling::Ends;
use crate::traces::{AnswerOptions, AnswerSpan};
use kjit_model::SampleOptions;
use kjit_model::chat::{Form, Part, ReplyParser};
use kjit_model::exec::ImageRows;
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

/// A request for one answer, independent of the dialect.
pub struct GenerationRequest {
    /// Tokens of the prompt.
    pub tokens: Vec<u32>,
    /// Maximum tokens of the answer.
    pub max_tokens: Option<usize>,
    /// Sampling options.
    pub sampling: SampleOptions,
    /// Stop strings.
    pub stop: Vec<String>,
    /// Whether end-of-generation tokens are ignored.
    pub ignore_eos: bool,
    /// Number of log probabilities per token, if they were requested.
    pub logprobs: Option<usize>,
    /// Constraint of the answer.
    pub constraint: Option<Constrained>,
    /// How the text of the answer is parsed.
    pub reading: OutputParsing,
    /// The caller.
    pub caller: Caller,
    /// Whether tokens may be drafted.
    pub lookup: bool,
    /// Forced first tokens of the answer, after `tokens`. They count as prompt tokens and get log
    /// probabilities.
    pub forced: Vec<u32>,
    /// Conditions that end the answer, besides the model's end tokens.
    pub more_ends: Ends,
    /// Whether a token that ends the answer has log probabilities, too.
    pub scores_ends: bool,
    /// Limits the length of the reasoning.
    pub thought: Option<ReasoningTokens>,
    /// Whether pieces include token ids.
    pub ids: bool,
    /// The adapters, if the request gives them. If not, the adapter that the model's name selects.
    pub adapters: Option<Adapters>,
    /// The images of the prompt.
    pub images: Vec<Arc<ImageRows>>,
}

impl GenerationRequest {
    /// A request for a greedy answer to this prompt.
    pub fn of(tokens: Vec<u32>, reading: OutputParsing, caller: Caller) -> GenerationRequest {
        GenerationRequest {
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
            scores_ends: false,
            thought: None,
            ids: false,
            adapters: None,
            images: vec![],
        }
    }
}

/// How the text of an answer is parsed.
pub enum OutputParsing {
    /// The text is plain.
    Plain,
    /// The text is a chat reply, with reasoning and tool calls.
    Reply(Form, ReplyParser),
}

/// A token with its log probability.
#[derive(Debug, Clone)]
pub struct Score {
    /// Token id.
    pub id: u32,
    /// Log probability of the token, and of the most likely alternatives.
    pub logprobs: Logprobs,
}

/// A piece of an answer. The last one is [`AnswerEvent::Done`] or [`AnswerEvent::Failed`].
#[derive(Debug)]
pub enum AnswerEvent {
    /// The prompt has left the queue. At most one such piece, and it is the first.
    Started {
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// Tokens of the prompt that were cached.
        cached_tokens: usize,
    },
    /// Log probabilities of the forced tokens. At most one such piece, before all text.
    Prompt(Vec<Score>),
    /// A piece of the answer.
    Said {
        /// Text, reasoning and calls, in order.
        parts: Vec<Part>,
        /// Log probabilities of the tokens in this piece.
        scores: Vec<Score>,
        /// Token ids of this piece, if they were requested.
        ids: Vec<u32>,
        /// Number of answer tokens up to the end of this piece.
        generated_tokens: usize,
    },
    /// The answer is complete.
    Done(AnswerStatistics),
    /// The answer failed.
    Failed(Refusal),
}

/// Statistics of a complete answer.
#[derive(Debug, Clone, Copy)]
pub struct AnswerStatistics {
    /// Why the answer ended.
    pub ended: FinishReason,
    /// Index of the stop string that ended the answer.
    pub stop_text: Option<usize>,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Prompt tokens that came from the cache.
    pub cached_tokens: usize,
    /// Tokens of the answer.
    pub generated_tokens: usize,
    /// Time to the first token.
    pub first_token: Duration,
    /// Time to the end of the answer.
    pub total: Duration,
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// An end-of-generation token or a stop text.
    Stop,
    /// The token limit.
    Length,
    /// Tool calls. The model waits for their results.
    Calls,
}

impl FinishReason {
    /// The name of the reason in traces.
    fn as_str(self) -> &'static str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::Calls => "tool_calls",
        }
    }
}

/// Maximum time until the client takes a piece that is ready.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(60);

/// Starts an answer. Its pieces are sent to `to`, each with `index`. The answer is cancelled when
/// the receiver is dropped.
///
/// # Errors
/// The scheduler did not accept it.
pub fn start(
    loaded: &Lease,
    wanted: GenerationRequest,
    index: usize,
    to: mpsc::Sender<(usize, AnswerEvent)>,
) -> Result<(), Refusal> {
    let asks = match &wanted.reading {
        OutputParsing::Plain => "prompt",
        OutputParsing::Reply(..) => "messages",
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
            // An end token among the forced tokens does not end the answer.
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
    let trace = wanted.caller.trace.clone();
    let options = AnswerOptions {
        temperature: wanted.sampling.temperature,
        top_p: wanted.sampling.top_p,
        max_tokens: wanted.max_tokens,
    };
    let adapters = wanted.adapters.or_else(|| loaded.adapters());
    wanted.caller.may_use(&loaded.served, adapters.as_ref())?;
    let (adapters, loaded_adapters) = match adapters {
        None => (None, vec![]),
        Some(Adapters::Scales(scales)) => (Some(scales), vec![]),
        Some(Adapters::Loaded(all)) => (None, all),
    };
    // The channel is unbounded: the context size limits the number of events.
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
        weight: wanted.caller.weight,
        priority: wanted.caller.priority,
        owner: wanted.caller.owner,
        adapters,
        loaded_adapters,
        images: wanted.images,
        ..Request::new(
            wanted.tokens,
            Box::new(move |event| {
                // Sending fails only if the answer was dropped, which already cancelled it.
                let _ = events_to.send(event);
                match heard.load(Ordering::Relaxed) {
                    false => ControlFlow::Continue(()),
                    true => ControlFlow::Break(()),
                }
            }),
        )
    };
    let answer = loaded.scheduler.submit(request).map_err(|why| refused(&why, asks))?;
    let span = trace.map(|trace| trace.answer(loaded.name(), &options));
    let reader = Reader {
        stop: wanted.stop,
        reading: wanted.reading,
        ends,
        silent: wanted.more_ends.ids,
        forced,
        enough,
        field,
        told: wanted.ids,
        scores_ends: wanted.scores_ends,
        span,
    };
    tokio::spawn(reader.run(loaded.clone(), answer, events, index, to));
    Ok(())
}

/// An answer without tokens: nothing is computed.
fn nothing(
    prompt_tokens: usize,
    index: usize,
    to: &mpsc::Sender<(usize, AnswerEvent)>,
) -> Result<(), Refusal> {
    let none = Duration::ZERO;
    let done = AnswerStatistics {
        ended: FinishReason::Length,
        stop_text: None,
        prompt_tokens,
        cached_tokens: 0,
        generated_tokens: 0,
        first_token: none,
        total: none,
    };
    to.try_send((index, AnswerEvent::Done(done)))
        .map_err(|_| Refusal::internal("the stream ended before the answer was complete"))
}
/// The HTTP error of a request that the scheduler did not accept, for this field.
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
        Refused::AdapterSlots { .. } => Refusal::field("lora", why),
        Refused::Encoder { .. } | Refused::NoEncoder { .. } => Refusal::bad(why.to_string()),
        _ => Refusal::internal(why.to_string()),
    }
}

/// The HTTP error of an answer that failed. `field` requested its constraint.
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
    reading: OutputParsing,
    /// Tokens that mark the end and have no text.
    ends: Vec<u32>,
    /// End tokens whose text is not part of the answer.
    silent: Vec<u32>,
    /// Number of forced tokens, which count as prompt.
    forced: usize,
    /// Set to end the answer early as a complete one.
    enough: Arc<AtomicBool>,
    /// The field that requested a constraint.
    field: &'static str,
    /// Whether pieces include token ids.
    told: bool,
    /// Whether a token that ends the answer has log probabilities.
    scores_ends: bool,
    /// The answer's span, if its trace is recorded. It ends with the answer.
    span: Option<AnswerSpan>,
}

impl Reader {
    async fn run(
        self,
        loaded: Lease,
        answer: Answer,
        mut events: mpsc::UnboundedReceiver<Event>,
        index: usize,
        to: mpsc::Sender<(usize, AnswerEvent)>,
    ) {
        let start = std::time::Instant::now();
        let Reader {
            stop,
            mut reading,
            ends,
            silent,
            forced,
            enough,
            field,
            told,
            scores_ends,
            mut span,
        } = self;
        let (mut of_prompt, mut scored, mut generated) = (vec![], forced == 0, 0);
        let markers = match &reading {
            OutputParsing::Plain => &[],
            OutputParsing::Reply(form, _) => form.markers(),
        };
        let mut text = StopWatcher::showing(&loaded.tokenizer, &stop, markers);
        let mut usage = Usage::default();
        let (mut first, mut calls) = (None, false);
        loop {
            let event = tokio::select! {
                event = events.recv() => event,
                // The client has disconnected. Dropping `answer` cancels it.
                () = to.closed() => return,
            };
            let Some(mut event) = event else {
                let lost = Refusal::internal("the stream ended before the answer was complete");
                let _ = to.send((index, AnswerEvent::Failed(lost))).await;
                return;
            };
            let (mut said, mut scores, mut ended) = (String::new(), vec![], None);
            let (mut started, mut ids) = (None, vec![]);
            // The answer was cut by its length or a stop string, inside the text of a token.
            let mut cut = false;
            // Tokens that arrived in the meantime are sent as one piece.
            loop {
                match event {
                    Event::Started { prompt_tokens, cached_tokens } => {
                        let prompt_tokens = prompt_tokens + forced;
                        (usage.prompt_tokens, usage.cached_tokens) = (prompt_tokens, cached_tokens);
                        span.iter_mut().for_each(|span| span.started(prompt_tokens, cached_tokens));
                        started = Some(AnswerEvent::Started { prompt_tokens, cached_tokens });
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
                        if first.is_none() {
                            first = Some(start.elapsed());
                            span.iter_mut().for_each(AnswerSpan::first_token);
                        }
                        usage.generated_tokens = generated;
                        let logprobs = logprobs.filter(|_| scores_ends || !ends.contains(&id));
                        scores.extend(logprobs.map(|logprobs| Score { id, logprobs }));
                        let mut keep = |piece: &str| {
                            said.push_str(piece);
                            ControlFlow::Continue(())
                        };
                        if let ControlFlow::Break(StopReason::StopText) = text.push(id, &mut keep) {
                            (ended, cut) = (Some(Ok(FinishReason::Stop)), true);
                        }
                    }
                    Event::Done { reason, usage: whole } => {
                        cut = matches!(reason, Reason::Length | Reason::ContextFull);
                        let mut keep = |piece: &str| {
                            said.push_str(piece);
                            ControlFlow::Continue(())
                        };
                        // If the answer was cut, an incomplete character is omitted.
                        if cut {
                            text.cut(&mut keep)
                        } else {
                            text.finish(&mut keep)
                        };
                        usage = whole;
                        usage.prompt_tokens += forced;
                        usage.generated_tokens = usage.generated_tokens.saturating_sub(forced);
                        ended = Some(Ok(match reason {
                            Reason::Length | Reason::ContextFull => FinishReason::Length,
                            Reason::Stop
                            | Reason::Constraint
                            | Reason::Ended
                            | Reason::Cancelled => FinishReason::Stop,
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
                match tokio::time::timeout(CLIENT_TIMEOUT, to.send((index, started))).await {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) | Err(_) => return,
                }
            }
            if !scored && of_prompt.len() == forced {
                scored = true;
                let piece = AnswerEvent::Prompt(std::mem::take(&mut of_prompt));
                match tokio::time::timeout(CLIENT_TIMEOUT, to.send((index, piece))).await {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) | Err(_) => return,
                }
            }
            let (parts, partial) = read(&mut reading, said, ended.is_some(), cut);
            calls |= parts.iter().any(|part| matches!(part, Part::Call(_)));
            if !parts.is_empty() || !scores.is_empty() || !ids.is_empty() {
                let said = AnswerEvent::Said { parts, scores, ids, generated_tokens: generated };
                let sent = to.send((index, said));
                match tokio::time::timeout(CLIENT_TIMEOUT, sent).await {
                    Ok(Ok(())) => {}
                    // The receiver was dropped, or the client did not read in time.
                    Ok(Err(_)) | Err(_) => return,
                }
            }
            let Some(ended) = ended else { continue };
            // After a stop string the scheduler learns of the end with the next token. Dropping an
            // answer that is complete must not cancel it.
            enough.store(true, Ordering::Relaxed);
            answer.detach();
            if let Some(span) = &mut span {
                match &ended {
                    Err(refusal) => span.failed(refusal.message()),
                    Ok(ended) => span.done(usage.generated_tokens, ended.as_str()),
                }
            }
            drop(span);
            let last = match ended {
                Err(refusal) => AnswerEvent::Failed(refusal),
                Ok(ended) => AnswerEvent::Done(AnswerStatistics {
                    // A call that was cut off is not executed, so the reason is not `Calls`.
                    ended: if calls && !partial && ended == FinishReason::Stop {
                        FinishReason::Calls
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
            let _ = tokio::time::timeout(CLIENT_TIMEOUT, to.send((index, last))).await;
            return;
        }
    }
}

/// The parts of a piece of text, and whether the last part is an unfinished call.
fn read(reading: &mut OutputParsing, said: String, ended: bool, cut: bool) -> (Vec<Part>, bool) {
    let (mut parts, mut partial) = (vec![], false);
    match reading {
        OutputParsing::Plain if said.is_empty() => {}
        OutputParsing::Plain => parts.push(Part::Content(said)),
        OutputParsing::Reply(_, parser) => {
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

/// A complete answer.
#[derive(Debug, Default)]
pub struct CompleteAnswer {
    /// Text.
    pub content: String,
    /// Reasoning.
    pub reasoning: String,
    /// Tool calls.
    pub calls: Vec<kjit_model::chat::ToolCall>,
    /// Log probabilities of the forced tokens.
    pub prompt: Vec<Score>,
    /// Log probabilities of the answer tokens.
    pub scores: Vec<Score>,
    /// Token ids, if they were requested.
    pub ids: Vec<u32>,
    /// Statistics.
    pub done: Option<AnswerStatistics>,
}

impl CompleteAnswer {
    /// Adds the parts of a piece.
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

/// Waits until this many answers are complete.
///
/// # Errors
/// One answer failed; the others are cancelled.
pub async fn collect(
    mut pieces: mpsc::Receiver<(usize, AnswerEvent)>,
    answers: usize,
) -> Result<Vec<CompleteAnswer>, Refusal> {
    let mut all: Vec<CompleteAnswer> = (0..answers).map(|_| CompleteAnswer::default()).collect();
    while let Some((index, piece)) = pieces.recv().await {
        let Some(whole) = all.get_mut(index) else { continue };
        match piece {
            AnswerEvent::Started { .. } => {}
            AnswerEvent::Prompt(scores) => whole.prompt = scores,
            AnswerEvent::Said { parts, scores, ids, .. } => {
                whole.add(parts, scores);
                whole.ids.extend(ids);
            }
            AnswerEvent::Done(done) => whole.done = Some(done),
            AnswerEvent::Failed(refusal) => return Err(refusal),
        }
    }
    match all.iter().all(|whole| whole.done.is_some()) {
        true => Ok(all),
        false => Err(Refusal::internal("the answer is incomplete")),
    }
}
