//! Steps that are launched while the step before runs. The device finds its own tokens in the ring,
//! so a step needs no result of the one before. Nothing here waits for the device, except the first
//! step after work of a different kind.

use super::GpuRunner;
use super::step::last_of;
use kjit_engine::Event;
use kjit_exec::{SessionError, StepAhead, Task, Want};
use std::collections::VecDeque;

/// Staging buffers of slot lists: one for each step that may be in flight, and one to write.
pub(super) const LISTS: usize = 3;

/// A launched step.
struct LaunchedStep {
    /// The word of each task's chosen token in the ring.
    words: Vec<Option<usize>>,
    /// Recorded after the step, if it chooses no token.
    end: Option<Event>,
}

/// The launched steps of a runner.
#[derive(Default)]
pub(super) struct LaunchedSteps {
    steps: VecDeque<LaunchedStep>,
    /// A step is being launched: words that no launched work uses are set without waiting.
    pub(super) launching: bool,
    /// Work of a different kind may be in flight, which uses any words.
    pub(super) unsettled: bool,
}

impl GpuRunner {
    /// Whether steps can be launched ahead: one device has all layers, its states can drop a token,
    /// and the host computes no part.
    pub(super) fn may_launch_ahead(&self) -> bool {
        self.may_pack()
            && self.loaded.aside.is_none()
            && self.loaded.meeting.is_none()
            && self.graph.pooling.is_none()
    }

    fn try_launch(&mut self, tasks: &mut [Task<'_>]) -> Result<LaunchedStep, SessionError> {
        self.compute(tasks, None)?;
        let ring = self.context + 1;
        let word = |t: &Task<'_>| (t.want == Want::Choose).then(|| t.slot * ring + last_of(t) + 1);
        let words: Vec<Option<usize>> = tasks.iter().map(word).collect();
        let end = match words.iter().all(Option::is_none) {
            true => {
                let end = self.opened().event()?;
                self.loaded.stream.record(&end)?;
                Some(end)
            }
            false => None,
        };
        Ok(LaunchedStep { words, end })
    }
}

impl StepAhead for GpuRunner {
    fn launch(&mut self, tasks: &mut [Task<'_>]) -> Result<(), SessionError> {
        self.all_have_place(tasks)?;
        if std::mem::take(&mut self.ahead.unsettled) {
            self.loaded.stream.synchronize()?;
        }
        self.ahead.launching = true;
        let made = self.try_launch(tasks);
        self.ahead.launching = false;
        match made {
            Ok(step) => {
                self.ahead.steps.push_back(step);
                Ok(())
            }
            Err(error) => {
                let slots: Vec<usize> = tasks.iter().map(|t| t.slot).collect();
                self.doubt(&slots);
                Err(error)
            }
        }
    }

    fn collect(&mut self) -> Result<Vec<Option<u32>>, SessionError> {
        let Some(step) = self.ahead.steps.pop_front() else { return Ok(vec![]) };
        if let Some(end) = step.end {
            end.synchronize()?;
        }
        let token = |word: Option<usize>| word.map(|at| self.loaded.wait_for(at)).transpose();
        step.words.into_iter().map(token).collect()
    }
}
