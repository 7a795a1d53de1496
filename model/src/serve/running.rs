//! A running request: its tokens, sampling, drafts, and the events passed to its sink.

use super::constrained::Constrained;
use super::request::{Event, EventSink, Failure, Logprobs, Owner, Reason, Request, Stop, Usage};
use crate::exec::ImageRows;
use crate::prompt_lookup::{Lookup, MAX_DRAFTS};
use crate::sample::{SampleOptions, Sampler};
use crate::session::{ScaledAdapter, SequenceId};
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// An accepted request and its progress. If it is dropped before its end, it fails.
pub(super) struct ActiveRequest {
    /// All tokens: first the tokens of the prompt, then the tokens of the answer.
    pub tokens: Vec<u32>,
    /// Number of tokens of the prompt.
    pub prompt: usize,
    pub max_tokens: usize,
    pub sampling: SampleOptions,
    /// The sampler of the request when it was preempted.
    pub sampler: Option<Sampler>,
    pub stop_ids: Vec<u32>,
    pub constraint: Option<Constrained>,
    pub logprobs: Option<usize>,
    pub lookup: bool,
    pub client: Option<String>,
    pub weight: u32,
    pub priority: i32,
    /// The owner of the text. It includes the scales of adapters.
    pub owner: Owner,
    pub adapters: Option<Vec<f32>>,
    pub loaded_adapters: Vec<ScaledAdapter>,
    /// Holds the rows of the prompt's images while the request may be computed again.
    _images: Vec<Arc<ImageRows>>,
    pub usage: Usage,
    pub submitted: Instant,
    /// Time of the last token.
    pub last_token: Option<Instant>,
    /// How often shorter requests overtook it while it waited for memory.
    pub passed: u32,
    started: bool,
    cancelled: Arc<AtomicBool>,
    /// `None` after the end was sent.
    sink: Option<EventSink>,
}

/// The end of a request.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum End {
    Done(Reason),
    Failed(Failure),
}

impl ActiveRequest {
    /// `longest`: maximum time of a constraint for one token.
    pub fn new(
        request: Request,
        end_ids: &[u32],
        longest: Duration,
        cancelled: Arc<AtomicBool>,
    ) -> ActiveRequest {
        let prompt = request.tokens.len();
        ActiveRequest {
            tokens: request.tokens,
            prompt,
            max_tokens: request.max_tokens.unwrap_or(usize::MAX),
            sampling: request.sampling,
            sampler: None,
            stop_ids: match request.stop {
                Stop::EndOfTurn => end_ids.to_vec(),
                Stop::Ids(ids) => ids,
                Stop::Never => vec![],
            },
            constraint: request.constraint.map(|c| Constrained::new(c, longest)),
            logprobs: request.logprobs,
            lookup: request.lookup,
            client: request.client,
            weight: request.weight.max(1),
            priority: request.priority,
            owner: match &request.adapters {
                Some(scales) => request.owner.with_adapters(scales),
                None => request.owner.with_loaded(&request.loaded_adapters),
            },
            adapters: request.adapters,
            loaded_adapters: request.loaded_adapters,
            _images: request.images,
            usage: Usage { prompt_tokens: prompt, ..Usage::default() },
            submitted: Instant::now(),
            last_token: None,
            passed: 0,
            started: false,
            cancelled,
            sink: Some(request.sink),
        }
    }

    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// Marks the request as started. Returns whether this is the first start.
    pub fn start(&mut self, cached: usize) -> bool {
        if std::mem::replace(&mut self.started, true) {
            return false;
        }
        self.usage.queued = self.submitted.elapsed();
        self.usage.cached_tokens = cached;
        // A sink that breaks here ends the answer at its first token.
        let _ = self.give(Event::Started { prompt_tokens: self.prompt, cached_tokens: cached });
        true
    }

    /// Adds a token of the answer and passes it to the sink. Returns the time since the last token,
    /// and the end if the answer ends here. `full`: no more tokens can be fed. With a constraint,
    /// the end may come later: [`Worker::follow_constraints`](super::worker::Worker).
    pub fn token(
        &mut self,
        id: u32,
        logprobs: Option<Logprobs>,
        full: bool,
    ) -> (Duration, Option<End>) {
        let now = Instant::now();
        let took = now - self.last_token.replace(now).unwrap_or(self.submitted);
        self.tokens.push(id);
        self.usage.generated_tokens += 1;
        self.usage.first_token.get_or_insert(took);
        let end = match self.give(Event::Token { id, logprobs }) {
            Err(failure) => Some(End::Failed(failure)),
            Ok(_) if self.stop_ids.contains(&id) => Some(End::Done(Reason::Stop)),
            Ok(ControlFlow::Break(())) => Some(End::Done(Reason::Ended)),
            Ok(_) if self.usage.generated_tokens >= self.max_tokens => {
                Some(End::Done(Reason::Length))
            }
            Ok(_) if full => Some(End::Done(Reason::ContextFull)),
            Ok(_) => None,
        };
        let Some(constraint) = &mut self.constraint else { return (took, end) };
        match end {
            // The answer is complete if its constraint is complete at its last token.
            Some(End::Done(reason @ (Reason::Length | Reason::ContextFull))) => {
                constraint.accept(id, Some(reason));
                (took, None)
            }
            None => {
                constraint.accept(id, None);
                (took, None)
            }
            end => (took, end),
        }
    }

    /// Passes the end to the sink.
    pub fn end(&mut self, end: End) {
        self.usage.total = self.submitted.elapsed();
        let usage = self.usage;
        let event = match end {
            End::Done(reason) => Event::Done { reason, usage },
            End::Failed(failure) => Event::Failed(failure),
        };
        let _ = self.give(event);
        self.sink = None;
    }

    /// Calls the sink. If it panics, the panic is returned and the sink is not called again.
    fn give(&mut self, event: Event) -> Result<ControlFlow<()>, Failure> {
        let Some(sink) = &mut self.sink else { return Ok(ControlFlow::Break(())) };
        let said = guarded(|| sink(event));
        if said.is_err() {
            self.sink = None;
        }
        said
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        if self.sink.is_some() {
            self.end(End::Failed(Failure::Stopped));
        }
    }
}

/// Runs `f`. A panic becomes a failure.
pub(super) fn guarded<T>(f: impl FnOnce() -> T) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(f)).map_err(|panic| Failure::Panic(said(&*panic)))
}

/// The message of a panic.
fn said(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".to_owned())
}

/// A request with a sequence in the session.
pub(super) struct Running {
    pub id: SequenceId,
    /// Number of tokens of the job that are in the sequence.
    pub fed: usize,
    /// Number of launched steps that choose a token of it and were not collected yet.
    pub pending: usize,
    /// Positions at which the recurrent states are saved.
    pub borders: Vec<usize>,
    pub job: ActiveRequest,
    /// The logits after the last token, which wait for the mask of a constraint.
    pub row: Option<Vec<f32>>,
    /// The n-gram index of the text.
    pub lookup: Lookup,
    /// A draft that is only compared, and the number of its tokens that were chosen so far.
    dry: (Vec<u32>, usize),
}

impl Running {
    pub fn new(id: SequenceId, fed: usize, job: ActiveRequest) -> Running {
        Running {
            id,
            fed,
            pending: 0,
            borders: vec![],
            job,
            row: None,
            lookup: Lookup::default(),
            dry: (vec![], 0),
        }
    }

    /// Drafts the next tokens if the request allows drafts, within the limits of the answer and the
    /// context.
    pub fn draft(&mut self, context: usize) -> Vec<u32> {
        if !self.job.lookup || self.job.constraint.is_some() || self.job.usage.generated_tokens == 0
        {
            return vec![];
        }
        // The last token of the answer is not drafted.
        let left = self.job.max_tokens.saturating_sub(self.job.usage.generated_tokens + 1);
        let room = context.saturating_sub(self.job.tokens.len());
        self.lookup.draft(&self.job.tokens, left.min(room).min(MAX_DRAFTS))
    }

    /// Compares the last token with a draft that is not run. If the draft is over, returns the
    /// number of its tokens that were chosen. Also returns whether there is a new draft.
    pub fn count_dry(&mut self, context: usize) -> (Option<usize>, bool) {
        let Some(&token) = self.job.tokens.last() else { return (None, false) };
        let (draft, right) = &mut self.dry;
        let came = draft.get(*right) == Some(&token);
        *right += usize::from(came);
        if came && *right < draft.len() {
            return (None, false);
        }
        let worth = (!draft.is_empty()).then_some(*right);
        self.dry = (self.draft(context), 0);
        (worth, !self.dry.0.is_empty())
    }

    /// Discards the draft, because tokens were added in another way.
    pub fn forget_dry(&mut self) {
        self.dry.0.clear();
    }

    /// Number of tokens that the next step may feed: the known ones, or the one that a launched
    /// step is choosing, unless the answer ends with it.
    pub fn next(&self, context: usize) -> usize {
        let ends = self.job.usage.generated_tokens + self.pending >= self.job.max_tokens;
        match self.pending {
            0 => self.rest().len(),
            1 => usize::from(!ends && self.fed < context),
            _ => 0,
        }
    }

    /// The known tokens in the sequence. While steps are launched ahead, the last one in it may not
    /// be known.
    pub fn known(&self) -> &[u32] {
        self.job.tokens.get(..self.fed).unwrap_or(&self.job.tokens)
    }

    /// Tokens that are not in the sequence yet: at least the last one, or none while the sequence
    /// waits for its constraint.
    pub fn rest(&self) -> &[u32] {
        if self.job.constraint.as_ref().is_some_and(Constrained::is_ending) {
            return &[];
        }
        self.job.tokens.get(self.fed..).unwrap_or_default()
    }
}
