//! Decoding on the device: it chooses every token and runs ahead of the host.

use super::{GpuRunner, choice_of};
use kjit_engine::Trace;
use kjit_exec::{DecodeControl, SessionError, Task};
use kjit_plan::Choice;

/// Maximum number of tokens that the device computes ahead of the host. The tokens that are left at
/// an end are discarded, but the host must wait for them: with 16, an answer of 128 tokens took 14
/// % longer. Four tokens take
/// 1.6 ms on the smallest model; the host polls a hundred times in that time.
const MAX_STEPS_AHEAD: usize = 4;

/// The progress of a sequence.
struct DecodeProgress {
    slot: usize,
    /// Position of the token that the next step computes.
    next: usize,
    /// Position of the next token that the sink gets.
    read: usize,
    /// Length of the sequence: tokens before the last one that the sink got.
    len: usize,
    /// The position after the last one that the device may write.
    written: usize,
    /// Number of computed tokens.
    fed: usize,
    /// Whether the sequence takes part in steps.
    live: bool,
}

impl DecodeProgress {
    /// Number of launched steps whose token has not yet been passed to the sink.
    fn ahead(&self) -> usize {
        (self.next + 1).saturating_sub(self.read)
    }
}

impl GpuRunner {
    /// Computes each task's tokens, then repeats: choose a token, pass it on, compute it. Returns
    /// each sequence's length, even after an error.
    pub(super) fn decode(
        &mut self,
        tasks: &mut [Task<'_>],
        sink: &mut dyn FnMut(usize, u32) -> DecodeControl,
    ) -> (Vec<usize>, Result<(), SessionError>) {
        if self.graph.pooling.is_some() {
            let arch = self.graph.arch.clone();
            return (tasks.iter().map(|t| t.first).collect(), Err(SessionError::Encoder { arch }));
        }
        if self.others.is_empty() {
            self.decode_alone(tasks, sink)
        } else {
            self.decode_together(tasks, sink)
        }
    }

    pub(super) fn decode_alone(
        &mut self,
        tasks: &mut [Task<'_>],
        sink: &mut dyn FnMut(usize, u32) -> DecodeControl,
    ) -> (Vec<usize>, Result<(), SessionError>) {
        if let Err(error) = self.all_have_place(tasks) {
            return (tasks.iter().map(|t| t.first).collect(), Err(error));
        }
        self.ahead.unsettled = true;
        // The guard must not be held here: the sink may take any time.
        drop(self.given(tasks));
        let mut running: Vec<DecodeProgress> = tasks.iter().map(starting).collect();
        let choice = self.recorded_choice(tasks.iter().map(|t| choice_of(t.sampler.options())));
        let begun = self.begin(tasks, &mut running, choice);
        let done = begun
            .and_then(|()| self.agreed())
            .and_then(|()| self.run(tasks, &mut running, choice, sink));
        let done = done.map_err(|error| self.instead(error));
        if self.far.is_some() {
            // If another rank stopped earlier, the launched steps may never complete. Tokens that
            // were passed on are valid. Without this wait the next driver call would block forever.
            let _ = self.loaded.settle();
        }
        for r in &running {
            // Records the tokens in the states when the device stops: the computed tokens.
            self.note(r.slot, |s| {
                (s.at, s.used, s.held) = (None, s.used.max(r.written), Some(r.fed))
            });
        }
        if done.is_err() {
            let slots: Vec<usize> = running.iter().map(|r| r.slot).collect();
            self.doubt(&slots);
        }
        (running.iter().map(|r| r.len).collect(), done)
    }

    /// Prepares all sequences up to their last token. A single prompt is computed as a whole, and
    /// its first token is chosen.
    fn begin(
        &mut self,
        tasks: &[Task<'_>],
        running: &mut [DecodeProgress],
        choice: Choice,
    ) -> Result<(), SessionError> {
        for t in tasks {
            self.put(t.slot, t.first, t.tokens)?;
            self.reach(t.slot, t.first)?;
        }
        let rows: Vec<usize> = (0..tasks.len()).collect();
        let alone = self.goes_alone(tasks, &rows)?;
        for t in tasks.iter().filter(|_| !alone) {
            self.ends_with_text(t.tokens)?;
        }
        for (t, r) in tasks.iter().zip(running) {
            let last = t.first + t.tokens.len() - 1;
            self.prefill(t, t.tokens.len() - usize::from(!alone), None)?;
            if choice != Choice::Greedy {
                self.put_options(t.slot, t.sampler.options())?;
            }
            if alone {
                self.row_after_prompt(t.slot, last)?;
                self.launch_choice(1, choice.into())?;
                (r.next, r.written, r.fed) = (last + 1, last + 2, last + 1);
            } else {
                self.move_to(t.slot, last)?;
            }
        }
        Ok(())
    }

    /// Runs steps until no sequence continues.
    fn run(
        &mut self,
        tasks: &mut [Task<'_>],
        running: &mut [DecodeProgress],
        choice: Choice,
        sink: &mut dyn FnMut(usize, u32) -> DecodeControl,
    ) -> Result<(), SessionError> {
        let (context, ring) = (self.context, self.context + 1);
        // The device runs only one step ahead in three cases: recurrent states, which cannot drop a
        // discarded token; host parts, because the host must wait; and streamed layers, because
        // discarded copies of a 70B model took 1.2 s after an answer.
        let alone =
            self.graph.is_recurrent() || self.loaded.aside.is_some() || self.loaded.ring.is_some();
        let ahead = if alone { 1 } else { MAX_STEPS_AHEAD };
        let mut came = self.loaded.stream.device().trace().map_or(0.0, Trace::now_us);
        // The captured step for the current sequences. `None` after the sequences have changed.
        let mut recording = None;
        loop {
            while running.iter().any(|r| r.live)
                && running.iter().filter(|r| r.live).all(|r| r.ahead() < ahead)
            {
                // A sequence with a full context waits for its last token and is not part of
                // further steps.
                for r in running.iter_mut().filter(|r| r.live && r.next == context) {
                    (r.live, recording) = (false, None);
                }
                // Without free pages, all sequences wait for the launched steps, then pause.
                let mut place = true;
                for r in running.iter().filter(|r| r.live) {
                    place = place && self.make_place(r.slot, r.next, r.next + 1)?;
                }
                if !place {
                    running.iter_mut().for_each(|r| r.live = false);
                }
                let n = running.iter().filter(|r| r.live).count();
                let Some(fed) = running.iter().find(|r| r.live).map(|r| r.next) else { break };
                if self.take_over(fed)? {
                    recording = None;
                }
                let step = match recording {
                    Some(step) => step,
                    None => {
                        let slots: Vec<usize> =
                            running.iter().filter(|r| r.live).map(|r| r.slot).collect();
                        self.list(&slots)?;
                        self.record((n, Some(choice.into())))?
                    }
                };
                recording = Some(step);
                if self.images.is_some() {
                    let at: Vec<(usize, usize)> =
                        running.iter().filter(|r| r.live).map(|r| (r.slot, r.next)).collect();
                    self.show_rows(&at)?;
                }
                self.replay(step)?;
                for r in running.iter_mut().filter(|r| r.live) {
                    (r.next, r.written, r.fed) = (r.next + 1, r.next + 2, r.next + 1);
                }
            }
            let (mut any, mut pause) = (false, false);
            for (index, (r, t)) in running
                .iter_mut()
                .zip(tasks.iter_mut())
                .enumerate()
                .filter(|(_, (r, _))| r.ahead() > 0)
            {
                let token = self.loaded.wait_for(r.slot * ring + r.read)?;
                any = true;
                if let Some(trace) = self.loaded.stream.device().trace() {
                    let now = trace.now_us();
                    trace.add("compute", format!("token {}", r.read), came, now - came);
                    came = now;
                }
                (r.len, r.read) = (r.read, r.read + 1);
                t.sampler.accept(token);
                match sink(index, token) {
                    DecodeControl::Go => {}
                    // A state that cannot be rewound already has the tokens of the other sequences,
                    // so these tokens are passed on too.
                    DecodeControl::Pause if self.graph.is_recurrent() => pause = true,
                    DecodeControl::Pause => return Ok(()),
                    DecodeControl::End => {
                        // Steps already launched for this sequence are discarded.
                        (r.live, r.next, recording) = (false, r.read - 1, None);
                    }
                }
            }
            if !any || pause {
                return Ok(());
            }
        }
    }
}

fn starting(t: &Task<'_>) -> DecodeProgress {
    let end = t.first + t.tokens.len();
    DecodeProgress {
        slot: t.slot,
        next: end - 1,
        read: end,
        len: t.first,
        written: 0,
        fed: end - 1,
        live: true,
    }
}
