//! Captured graphs: the launches of rows and of the choice of their tokens, captured once and
//! replayed for each step.

use super::GpuRunner;
use crate::loaded_plan::SlotScope;
use crate::plan::{Choice, Launch, LaunchParams, Program};
use kjit_engine::Graph as Recording;
use kjit_exec::SessionError;

/// A draw that reads the options of each slot from device memory.
const DRAW: Choice = Choice::Draw { top_k: 1, inverse: 1.0, top_p: 1.0, min_p: 0.0 };

/// The key of a captured graph: the number of rows, and how the next tokens are chosen.
pub(super) type RecordingKey = (usize, Option<SamplingMode>);

/// How tokens are chosen after rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct SamplingMode {
    pub(super) choice: Choice,
    /// Whether a slot has biases, a mask or penalties. If not, no adjustment is launched.
    pub(super) adjusted: bool,
}

impl From<Choice> for SamplingMode {
    fn from(choice: Choice) -> SamplingMode {
        SamplingMode { choice, adjusted: false }
    }
}

/// A captured graph, or the values for issuing its launches again.
pub(super) enum RecordedLaunches {
    /// A captured graph.
    Replay(Recording),
    /// The values for launches that are issued one by one.
    Launch(LaunchParams),
}

/// The launches for a number of rows.
pub(super) struct Rows<'a> {
    pub(super) program: &'a Program,
    pub(super) adjust: Option<&'a Launch>,
    pub(super) greedy: Option<&'a Launch>,
    pub(super) draw: Option<&'a Launch>,
    pub(super) whose: SlotScope,
}

impl<'a> Rows<'a> {
    /// The launch that chooses tokens in this way.
    fn choosing(&self, choice: Choice) -> kjit_engine::Result<&'a Launch> {
        let launch = if choice == Choice::Greedy { self.greedy } else { self.draw };
        launch.ok_or_else(|| {
            kjit_engine::Error::Buffer("there are no logits to choose a token from".to_owned())
        })
    }
}

impl GpuRunner {
    /// Captures one token when the model is opened, so that an error of the runtime is reported
    /// before any computation. After an error it tries again without cooperative launches (some
    /// runtimes cannot capture them), and then without captures.
    pub(super) fn try_capture(&mut self) -> Result<(), SessionError> {
        let refused = match self.records() {
            Ok(()) => return Ok(()),
            // After a lost device there is no second try.
            Err(lost) if self.opened().memory().is_err() => return Err(lost),
            Err(refused) => refused,
        };
        let label = self.device().label();
        self.recordings.clear();
        if self.loaded.cooperative {
            self.loaded.cooperative = false;
            let persistent = std::mem::take(&mut self.loaded.persistent);
            if self.records().is_ok() {
                self.remarks.push(format!(
                    "{label} refuses to capture cooperative launches ({refused}): \
                     kernels of one block are used instead"
                ));
                return Ok(());
            }
            (self.loaded.cooperative, self.loaded.persistent) = (true, persistent);
        }
        self.recordings.clear();
        self.captures = false;
        self.remarks.push(format!(
            "{label} cannot capture launches in a graph ({refused}): \
             every launch is issued again for each token, which is slower"
        ));
        Ok(())
    }

    /// The launches for one token of each of `n` sequences.
    pub(super) fn rows_of(&self, n: usize) -> Result<Rows<'_>, SessionError> {
        let plan = &self.loaded.plan;
        if plan.batches.is_empty() && n == 1 {
            let adjust = plan.adjust.as_ref();
            let (program, greedy, draw) = (&plan.decode, plan.greedy.as_ref(), plan.draw.as_ref());
            return Ok(Rows { program, adjust, greedy, draw, whose: SlotScope::Slot(0) });
        }
        // Takes the persistent kernel if there is one.
        let mut ready = plan.persistent.iter().zip(&self.loaded.persistent).map(|(one, _)| one);
        let own = ready.find(|one| one.rows == n).and_then(|one| one.own.as_deref());
        let found = own.or_else(|| plan.batches.iter().find(|b| b.program.tokens as usize >= n));
        let batch =
            found.ok_or_else(|| SessionError::Device(format!("no program for {n} sequences")))?;
        let (adjust, greedy, draw) =
            (batch.adjust.as_ref(), batch.greedy.as_ref(), batch.draw.as_ref());
        Ok(Rows { program: &batch.program, adjust, greedy, draw, whose: SlotScope::All })
    }

    /// The values for evaluating a program's launches.
    pub(super) fn now(
        &self,
        program: &Program,
        tokens: usize,
        choice: Choice,
    ) -> Result<LaunchParams, SessionError> {
        let r = &self.loaded;
        let now = program.now(&r.plan.target, r.units(), tokens as u32, choice);
        now.map_err(|e| SessionError::Device(e.to_string()))
    }

    /// Index of the captured graph for this key. If the graph is missing, it is captured.
    pub(super) fn record(&mut self, what: RecordingKey) -> Result<usize, SessionError> {
        if let Some(at) = self.recordings.iter().position(|(w, _)| *w == what) {
            return Ok(at);
        }
        let (n, choice) = what;
        let (r, rows) = (&self.loaded, self.rows_of(n)?);
        let now = self.now(rows.program, n, choice.map_or(Choice::Greedy, |c| c.choice))?;
        let recording = match self.captures {
            true => RecordedLaunches::Replay(r.capture(|| self.issue(what, &now))?),
            false => RecordedLaunches::Launch(now),
        };
        // If options are launch arguments, each set of options has its own graph. Only the last
        // graph of each kind is stored.
        let same = |(w, _): &(RecordingKey, RecordedLaunches)| {
            let drawn = |c: &SamplingMode| c.choice != Choice::Greedy;
            let (before, now) = (w.1.filter(drawn), choice.filter(drawn));
            w.0 == n && before.zip(now).is_some_and(|(before, now)| before.adjusted == now.adjusted)
        };
        self.recordings.retain(|one| !same(one));
        self.recordings.push((what, recording));
        Ok(self.recordings.len() - 1)
    }

    pub(super) fn replay(&self, recording: usize) -> Result<(), SessionError> {
        let found = self.recordings.get(recording);
        let (what, recording) =
            found.ok_or_else(|| SessionError::Device("no such recording".to_owned()))?;
        match recording {
            RecordedLaunches::Replay(recording) => self.loaded.stream.replay(recording)?,
            RecordedLaunches::Launch(now) => self.issue(*what, now)?,
        }
        Ok(())
    }

    /// Tests whether a token with adjustments and a draw can be captured.
    pub(super) fn records(&mut self) -> Result<(), SessionError> {
        let chooses = self.rows_of(1)?.greedy.is_some();
        self.record((1, chooses.then_some(Choice::Greedy.into())))?;
        let (r, rows) = (&self.loaded, self.rows_of(1)?);
        let now = self.now(rows.program, 1, DRAW)?;
        let last = [rows.adjust, rows.draw];
        let mut last = last.iter().flatten();
        drop(
            r.stream
                .capture(|| last.try_for_each(|l| r.launch(rows.program, l, &now, rows.whose)))?,
        );
        Ok(())
    }

    /// Issues the launches of rows and of the choice of tokens.
    pub(super) fn issue(
        &self,
        (n, choice): RecordingKey,
        now: &LaunchParams,
    ) -> kjit_engine::Result<()> {
        let r = &self.loaded;
        let rows = self.rows_of(n).map_err(|e| kjit_engine::Error::Buffer(e.to_string()))?;
        r.issue_rows(rows.program, now, rows.whose)?;
        choice.map_or(Ok(()), |chosen| self.issue_choice(&rows, chosen, now))
    }

    /// Issues the launches that choose tokens after rows.
    pub(super) fn issue_choice(
        &self,
        rows: &Rows<'_>,
        chosen: SamplingMode,
        now: &LaunchParams,
    ) -> kjit_engine::Result<()> {
        let r = &self.loaded;
        if let Some(adjust) = rows.adjust.filter(|_| chosen.adjusted) {
            r.launch(rows.program, adjust, now, rows.whose)?;
        }
        r.launch(rows.program, rows.choosing(chosen.choice)?, now, rows.whose)
    }

    /// The choice to capture. If the slots have their options in device memory, one captured draw
    /// is valid for all of them.
    pub(super) fn recorded_choice(&self, choices: impl Iterator<Item = Choice>) -> Choice {
        let drawn =
            choices.fold(Choice::Greedy, |all, c| if c == Choice::Greedy { all } else { c });
        if drawn != Choice::Greedy && !self.loaded.plan.batches.is_empty() { DRAW } else { drawn }
    }
}
