//! Verifies drafts: a few tokens of one sequence in one step. All tokens except the first are
//! drafted. They have a separate program, which is captured like the program of a token.
//!
//! Each row has its own position, and keys and values are written before any row reads them. So a
//! row reads the drafts before it and none after it. The tokens that are chosen after each draft
//! are known when the step ends.

use super::Drafted;
use super::images::RingRows;
use super::{GpuRunner, RecordedLaunches, choice_of};
use crate::loaded_plan::{NONE, SlotScope};
use kjit_exec::{SessionError, Task, Want, follow};
use kjit_plan::{Choice, DRAFTED, LaunchParams, PICK};

/// Maximum number of captured graphs. A graph contains addresses of a slot's memory, so each slot
/// has its own graph. The oldest graph is dropped.
const MAX_GRAPHS: usize = 64;

impl GpuRunner {
    /// Whether the whole task can run in the draft program.
    pub(super) fn takes_drafts(&self, t: &Task<'_>) -> bool {
        let few = 2..=DRAFTED as usize;
        let drafted = matches!(t.want, Want::Drafted(n) if n + 1 == t.tokens.len());
        drafted
            && few.contains(&t.tokens.len())
            && self.before.is_none()
            && self.loaded.plan.drafts.is_some()
    }

    /// Runs a task's tokens, whose ids are in the ring. Returns the tokens chosen after them, up to
    /// the first token that differs from its draft.
    pub(super) fn draft(&mut self, t: &mut Task<'_>) -> Result<Vec<u32>, SessionError> {
        let plain = choice_of(t.sampler.options()) == Choice::Greedy
            && t.sampler.takes_logits_as_they_are();
        let what = Drafted { slot: t.slot, rows: t.tokens.len(), chosen: plain };
        self.take_place(t.slot, t.first, t.first + t.tokens.len())?;
        let recording = self.record_drafted(what)?;
        let shown = RingRows { slot: t.slot, first: t.first, tokens: t.tokens.len(), row: 0 };
        self.show(
            |runner| {
                let drafts = runner.loaded.plan.drafts.as_ref();
                Ok(&drafts.ok_or_else(none)?.program)
            },
            &[shown],
        )?;
        let r = &self.loaded;
        let words = r.control.drafts.as_ref().ok_or_else(none)?;
        words.picks.write(|to| to.fill(NONE))?;
        words.put.write(|to| {
            to.iter_mut().zip(t.first as u32..).take(what.rows).for_each(|(to, at)| *to = at)
        })?;
        r.stream.copy_in(&words.put, &words.rows)?;
        match self.drafts.get(recording) {
            Some((_, RecordedLaunches::Replay(recording))) => r.stream.replay(recording)?,
            Some((_, RecordedLaunches::Launch(now))) => self.issue_drafted(what, now)?,
            None => return Err(none()),
        }
        self.note(t.slot, |s| s.held = None);
        let drafts = t.tokens.get(1..).unwrap_or_default();
        if !plain {
            let r = &self.loaded;
            let program = &r.plan.drafts.as_ref().ok_or_else(none)?.program;
            let view = r.kept(program, self.graph.logits)?.cast::<f32>()?;
            let rows: Vec<usize> = (0..what.rows).collect();
            let rows = self.read_from(&view, &rows)?;
            return follow(t, &rows, self.graph.n_vocab(), drafts);
        }
        let (r, mut chosen) = (&self.loaded, vec![]);
        let words = r.control.drafts.as_ref().ok_or_else(none)?;
        for i in 0..what.rows {
            let id = r.wait_in(&words.picks, i * PICK + PICK - 1)?;
            t.sampler.accept(id);
            chosen.push(id);
            if drafts.get(i) != Some(&id) {
                break;
            }
        }
        Ok(chosen)
    }

    /// Index of the captured graph for this key. If the graph is missing, it is captured.
    fn record_drafted(&mut self, what: Drafted) -> Result<usize, SessionError> {
        if let Some(at) = self.drafts.iter().position(|(w, _)| *w == what) {
            return Ok(at);
        }
        let r = &self.loaded;
        let drafts = r.plan.drafts.as_ref().ok_or_else(none)?;
        let now = self.now(&drafts.program, what.rows, Choice::Greedy)?;
        let recording = match self.captures {
            true => RecordedLaunches::Replay(r.capture(|| self.issue_drafted(what, &now))?),
            false => RecordedLaunches::Launch(now),
        };
        if self.drafts.len() >= MAX_GRAPHS {
            self.drafts.remove(0);
        }
        self.drafts.push((what, recording));
        Ok(self.drafts.len() - 1)
    }

    fn issue_drafted(&self, what: Drafted, now: &LaunchParams) -> kjit_engine::Result<()> {
        let (r, whose) = (&self.loaded, SlotScope::Slot(what.slot));
        let Some(drafts) = &r.plan.drafts else { return Ok(()) };
        r.issue(&drafts.program, 0, now, whose)?;
        match drafts.greedy.as_ref().filter(|_| what.chosen) {
            Some(greedy) => r.launch(&drafts.program, greedy, now, whose),
            None => Ok(()),
        }
    }
}

fn none() -> SessionError {
    SessionError::Device("there is no program for drafted tokens".to_owned())
}
