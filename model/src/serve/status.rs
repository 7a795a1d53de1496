//! The status of a [`super::Scheduler`]: counts, times and memory.

use crate::gpu::PageCount;
use std::time::Duration;

/// Upper bounds of the [`Histogram`]'s buckets in seconds: 1 ms to 100 s, three for each decade.
pub const BOUNDS: [f64; 16] =
    [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0];

/// A histogram of durations, or of lengths in thousands of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Histogram {
    /// Durations in each bucket, up to its bound of `BOUNDS`; the last bucket has no bound.
    pub counts: [u64; BOUNDS.len() + 1],
    /// The sum of all durations in seconds.
    pub sum: f64,
}

impl Histogram {
    /// Upper bounds of the buckets in seconds; the last bucket has none.
    pub fn bounds(&self) -> &'static [f64] {
        &BOUNDS
    }

    /// The number of durations.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Adds a duration.
    pub(super) fn add(&mut self, took: Duration) {
        self.add_value(took.as_secs_f64());
    }

    /// Adds a length.
    pub(super) fn add_tokens(&mut self, tokens: usize) {
        self.add_value(tokens as f64 / 1000.0);
    }

    fn add_value(&mut self, seconds: f64) {
        self.sum += seconds;
        let bucket = BOUNDS.iter().position(|b| seconds <= *b).unwrap_or(BOUNDS.len());
        if let Some(count) = self.counts.get_mut(bucket) {
            *count += 1;
        }
    }
}

/// The state of a scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum State {
    /// The scheduler accepts and runs requests.
    #[default]
    Ready,
    /// There was not enough memory for a request that ran alone. Requests are still accepted and
    /// tried. The state becomes `AdmitDecision` when that amount of memory can be allocated.
    Short,
    /// The device failed and the model is being reopened. Requests are accepted and wait.
    Reopening,
    /// The scheduler finishes the accepted requests and accepts no new requests.
    Stopping,
    /// The scheduler has ended: it was stopped, or the model could not be reopened.
    Ended,
}

/// Counts of the steps that were launched ahead, and the time of the scheduler's thread in them.
/// The device waits for the host only where the seconds of waiting are near 0.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct AheadCounts {
    /// Number of these steps.
    pub steps: u64,
    /// Single tokens of answers in them.
    pub rows: u64,
    /// Pieces of prompts in them.
    pub pieces: u64,
    /// Seconds to compose a step and to find pages for it.
    pub prepare: f64,
    /// Seconds to give its work to the device.
    pub issue: f64,
    /// Seconds of waiting for its tokens.
    pub wait: f64,
    /// Seconds to pass its tokens on and to end answers.
    pub deliver: f64,
}

/// A snapshot of a [`super::Scheduler`]. Counts are since its start.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Status {
    /// The state.
    pub state: State,
    /// Number of waiting requests.
    pub waiting: usize,
    /// Maximum number of waiting requests.
    pub max_queue: usize,
    /// Running requests, including those whose prompt is being computed.
    pub running: usize,
    /// Running requests whose prompt is being computed.
    pub prefilling: usize,
    /// Sequence slots.
    pub slots: usize,
    /// Slots of ended sequences that are retained for prompts with the same prefix.
    pub kept_slots: usize,
    /// Places for adapters that are loaded later.
    pub adapter_slots: usize,
    /// Names of the adapters of running requests.
    pub running_adapters: Vec<String>,
    /// Names of the adapters of waiting requests.
    pub waiting_adapters: Vec<String>,
    /// Tokens that fit in a sequence.
    pub context: usize,
    /// Tokens that fit in all slots or in all pages.
    pub room: usize,
    /// Number of tokens in all slots or pages. Tokens in shared pages count once.
    pub held_tokens: usize,
    /// Number of tokens that are only in retained slots, or in pages that only the prefix cache
    /// references.
    pub kept_tokens: usize,
    /// Number of saved recurrent states in the prefix cache. Checkpoints of sequences on the CPU
    /// are not counted.
    pub kept_states: usize,
    /// The shared pages; `None` without pages.
    pub pages: Option<PageCount>,
    /// Size of the keys and values of a token in bytes.
    pub bytes_per_token: u64,
    /// Accepted requests.
    pub taken: u64,
    /// Requests rejected because the queue was full.
    pub refused: u64,
    /// Requests that ended normally.
    pub done: u64,
    /// Cancelled requests.
    pub cancelled: u64,
    /// Failed requests.
    pub failed: u64,
    /// Computed tokens of prompts.
    pub prompt_tokens: u64,
    /// Cached tokens of prompts.
    pub cached_tokens: u64,
    /// Tokens of answers.
    pub generated_tokens: u64,
    /// Drafted tokens.
    pub drafted_tokens: u64,
    /// Drafted tokens that were accepted.
    pub accepted_tokens: u64,
    /// Preemptions.
    pub preempted: u64,
    /// Steps of the session.
    pub steps: u64,
    /// Seconds in steps of the session.
    pub busy: f64,
    /// Steps that were launched before the results of the step before were known.
    pub ahead: AheadCounts,
    /// Times the session was reopened.
    pub reopened: u64,
    /// Computed embeddings.
    pub embeddings: u64,
    /// Time in the queue.
    pub queued: Histogram,
    /// Time from submission to first token.
    pub first_token: Histogram,
    /// Time between tokens of one answer.
    pub between_tokens: Histogram,
    /// Number of requests that ended normally, but whose answer was cut by its limit or by the
    /// context.
    pub cut: u64,
    /// Time from submission to the end, of requests that ended normally.
    pub whole: Histogram,
    /// Time from leaving the queue to the first token.
    pub prefill: Histogram,
    /// Time from the first token to the end.
    pub decode: Histogram,
    /// Lengths of prompts in thousands of tokens.
    pub prompts: Histogram,
    /// Lengths of answers in thousands of tokens.
    pub answers: Histogram,
}

impl Status {
    /// Counts a request that ended normally after this time.
    pub(super) fn ended(&mut self, usage: &super::Usage, total: Duration, cut: bool) {
        self.done += 1;
        self.cut += u64::from(cut);
        self.whole.add(total);
        if let Some(first) = usage.first_token {
            self.prefill.add(first.saturating_sub(usage.queued));
            self.decode.add(total.saturating_sub(first));
        }
        self.prompts.add_tokens(usage.prompt_tokens);
        self.answers.add_tokens(usage.generated_tokens);
    }
}
