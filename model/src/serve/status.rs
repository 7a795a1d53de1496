//! What a [`super::Scheduler`] does, in numbers.

use crate::gpu::PageCount;
use std::time::Duration;

/// Upper bounds of the [`Histogram`]'s buckets in seconds: 1 ms to 100 s, about three to the
/// decade.
pub const BOUNDS: [f64; 16] =
    [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0];

/// How long something took, how often.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Histogram {
    /// How often it took at most as long as each of `BOUNDS` and longer than the one before; the
    /// last: longer than all.
    pub counts: [u64; BOUNDS.len() + 1],
    /// Sum of all in seconds.
    pub sum: f64,
}

impl Histogram {
    /// Upper bounds of the buckets in seconds; the last bucket has none.
    pub fn bounds(&self) -> &'static [f64] {
        &BOUNDS
    }

    /// How often it took any time.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Enters one.
    pub(super) fn add(&mut self, took: Duration) {
        let seconds = took.as_secs_f64();
        self.sum += seconds;
        let bucket = BOUNDS.iter().position(|b| seconds <= *b).unwrap_or(BOUNDS.len());
        if let Some(count) = self.counts.get_mut(bucket) {
            *count += 1;
        }
    }
}

/// How the scheduler is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum State {
    /// It takes requests.
    #[default]
    Ready,
    /// Memory could not be had for a request that ran alone. Requests are taken, and tried; it is
    /// ready again when there is as much.
    Short,
    /// The device failed; the model is being opened again. Requests are taken, and wait.
    Reopening,
    /// It finishes what it has.
    Stopping,
    /// It has ended: stopped, or the model could not be opened again.
    Ended,
}

/// What a [`super::Scheduler`] does. Counts are since the start.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Status {
    /// How it is.
    pub state: State,
    /// Requests that wait.
    pub waiting: usize,
    /// Requests that wait at most.
    pub max_queue: usize,
    /// Requests that are being answered, those whose prompt is still being computed included.
    pub running: usize,
    /// Those of them whose prompt is being computed.
    pub prefilling: usize,
    /// Sequences that fit.
    pub slots: usize,
    /// Slots of sequences that ended, kept because the next prompt may begin as they do.
    pub kept_slots: usize,
    /// Tokens that fit in a slot.
    pub context: usize,
    /// Tokens that fit in all slots together, or in all pages.
    pub room: usize,
    /// Tokens that are in all slots; those in pages that several have are counted once.
    pub held_tokens: usize,
    /// Those of them that are in kept slots, or in pages that nobody has who runs.
    pub kept_tokens: usize,
    /// Copies of states that do not grow, kept where texts with the same beginning can go on; those
    /// that sequences on the CPU have of their own are not counted.
    pub kept_states: usize,
    /// The pages of keys and values that sequences share; none where each slot has a place of its
    /// own.
    pub pages: Option<PageCount>,
    /// Bytes that a token takes in a slot.
    pub bytes_per_token: u64,
    /// Requests that were taken.
    pub taken: u64,
    /// Requests that were refused because the queue was full.
    pub refused: u64,
    /// Requests that ended as they should.
    pub done: u64,
    /// Requests that were cancelled.
    pub cancelled: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Tokens of prompts that were computed.
    pub prompt_tokens: u64,
    /// Tokens of prompts that need not be computed, because they were there.
    pub cached_tokens: u64,
    /// Tokens of answers.
    pub generated_tokens: u64,
    /// Tokens that were drafted.
    pub drafted_tokens: u64,
    /// Drafted tokens that were right.
    pub accepted_tokens: u64,
    /// Sequences that gave their place to another and were computed again.
    pub preempted: u64,
    /// Steps of the session.
    pub steps: u64,
    /// Seconds in steps of the session.
    pub busy: f64,
    /// How often the session was opened again.
    pub reopened: u64,
    /// Vectors that were made.
    pub embeddings: u64,
    /// Time in the queue.
    pub queued: Histogram,
    /// Time from submission to first token.
    pub first_token: Histogram,
    /// Time between tokens of one answer.
    pub between_tokens: Histogram,
}
