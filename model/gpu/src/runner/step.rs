//! A step: prompt chunks one after another, then one token of each sequence together.

use super::images::RingRows;
use super::{GpuRunner, LastProgram, RecordingKey, SamplingMode, choice_of};
use crate::loaded_plan::{Piece, SlotScope};
use kjit_engine::DeviceBuffer;
use kjit_exec::{MaskCallback, SessionError, StepOutput, Task, Want, choose, follow};
use kjit_kernels::changes::MOST;
use kjit_plan::Choice;
use std::ops::Range;

/// Number of prompt tokens that run one by one before the host checks again for the prompt kernels.
/// The wait takes some tens of µs. Without the wait, all tokens would be launched before the
/// kernels are ready.
const LOOK_EVERY: usize = 4;

/// The issued work of a step.
pub(super) struct Computed {
    /// The logits that were read so far, by task.
    logits: Vec<Vec<f32>>,
    /// The tokens chosen after drafts, by task.
    chosen: Vec<Option<Vec<u32>>>,
    /// The tasks whose last token ran in the last rows, in the order of the rows.
    rows: Vec<usize>,
}

impl GpuRunner {
    /// Runs all tasks. After an error no sequence has changed.
    pub(super) fn step(
        &mut self,
        tasks: &mut [Task<'_>],
        late: Option<MaskCallback<'_>>,
    ) -> Result<Vec<StepOutput>, SessionError> {
        if self.graph.pooling.is_some() {
            return Err(SessionError::Encoder { arch: self.graph.arch.clone() });
        }
        if self.others.is_empty() {
            self.step_alone(tasks, late)
        } else {
            self.step_together(tasks, late)
        }
    }

    pub(super) fn step_alone(
        &mut self,
        tasks: &mut [Task<'_>],
        late: Option<MaskCallback<'_>>,
    ) -> Result<Vec<StepOutput>, SessionError> {
        // A lack of pages is reported before anything is changed.
        self.all_have_place(tasks)?;
        self.ahead.unsettled = true;
        let _waiting = self.given(tasks);
        let done = self.try_step(tasks, late).and_then(|given| self.agreed().map(|()| given));
        let done = done.map_err(|error| self.instead(error));
        if done.is_err() {
            let slots: Vec<usize> = tasks.iter().map(|t| t.slot).collect();
            self.doubt(&slots);
        }
        done
    }

    fn try_step(
        &mut self,
        tasks: &mut [Task<'_>],
        late: Option<MaskCallback<'_>>,
    ) -> Result<Vec<StepOutput>, SessionError> {
        let Computed { logits, chosen, rows } = self.compute(tasks, late)?;
        self.answers(tasks, logits, chosen, &rows)
    }

    /// Issues the work of all tasks. It waits only for logits of prompts and for drafts.
    pub(super) fn compute(
        &mut self,
        tasks: &mut [Task<'_>],
        mut late: Option<MaskCallback<'_>>,
    ) -> Result<Computed, SessionError> {
        let mut logits: Vec<Vec<f32>> = vec![vec![]; tasks.len()];
        // Tasks whose last token runs together with the last tokens of others.
        let joins =
            |t: &Task<'_>| t.tokens.len() == 1 || matches!(t.want, Want::Last | Want::Choose);
        let rows: Vec<usize> =
            (0..).zip(tasks.iter()).filter(|(_, t)| joins(t)).map(|(i, _)| i).collect();
        for t in tasks.iter() {
            self.put(t.slot, t.first, t.tokens)?;
            self.reach(t.slot, t.first)?;
        }
        let alone = self.goes_alone(tasks, &rows)?;
        for t in rows.iter().filter(|_| !alone).filter_map(|&i| tasks.get(i)) {
            self.ends_with_text(t.tokens)?;
        }
        let drafted: Vec<bool> = tasks.iter().map(|t| self.takes_drafts(t)).collect();
        let packed = self.prefill_packed(tasks, &rows, &drafted)?;
        // The prompt that runs alone must be the last prompt, because its logits are computed from
        // the output of the last program.
        for own in [false, true] {
            let with = tasks
                .iter()
                .enumerate()
                .zip(&drafted)
                .filter(|((i, _), drafted)| !**drafted && !packed.contains(i))
                .map(|(with, _)| with);
            for (i, t) in with.filter(|(i, _)| (alone && rows.contains(i)) == own) {
                let out =
                    logits.get_mut(i).filter(|_| matches!(t.want, Want::All | Want::Drafted(_)));
                self.prefill(t, t.tokens.len() - usize::from(!own && rows.contains(&i)), out)?;
            }
        }
        let at: Vec<(usize, usize)> =
            rows.iter().filter_map(|&i| tasks.get(i)).map(|t| (t.slot, last_of(t))).collect();
        match *at {
            [] => late.take().into_iter().for_each(|late| late(tasks)),
            [(slot, last)] if alone => {
                self.row_after_prompt(slot, last)?;
                if let Some(late) = late.take() {
                    late(tasks);
                }
                if let Some(choice) = self.choice_for(tasks, &rows)? {
                    self.launch_choice(1, choice)?;
                    self.moved_on(slot, last);
                }
            }
            // The device computes while the masks are determined.
            _ if late.is_some() => {
                self.run_rows(&at, None)?;
                if let Some(late) = late.take() {
                    late(tasks);
                }
                if let Some(choice) = self.choice_for(tasks, &rows)? {
                    self.launch_choice(at.len(), choice)?;
                    at.iter().for_each(|&(slot, last)| self.moved_on(slot, last));
                }
            }
            _ => {
                let choice = self.choice_for(tasks, &rows)?;
                self.run_rows(&at, choice)?;
            }
        }
        // The host waits for each draft step. The rows of other tasks are in flight meanwhile.
        let mut chosen: Vec<Option<Vec<u32>>> = vec![];
        for (t, drafted) in tasks.iter_mut().zip(drafted) {
            chosen.push(if drafted { Some(self.draft(t)?) } else { None });
        }
        Ok(Computed { logits, chosen, rows })
    }

    /// Whether the only requested last token runs in the same pass as its prompt. This saves one
    /// pass over all weights.
    pub(super) fn goes_alone(
        &mut self,
        tasks: &[Task<'_>],
        rows: &[usize],
    ) -> Result<bool, SessionError> {
        match *rows {
            [one] => match tasks.get(one) {
                Some(t) if t.tokens.len() > 1 => {
                    Ok(!self.loaded.plan.prompts.is_empty() && self.prompts_ready(t.first)?)
                }
                _ => Ok(false),
            },
            _ => Ok(false),
        }
    }

    /// Sets the options and returns the device's choice after rows. `None` if the host makes all
    /// choices.
    fn choice_for(
        &mut self,
        tasks: &[Task<'_>],
        rows: &[usize],
    ) -> Result<Option<SamplingMode>, SessionError> {
        let of = |t: &Task<'_>| choice_of(t.sampler.options());
        let here: Vec<&Task<'_>> = rows.iter().filter_map(|&i| tasks.get(i)).collect();
        let mut choices = here.iter().filter(|t| by_device(t)).map(|t| of(t)).peekable();
        if choices.peek().is_none() {
            return Ok(None);
        }
        let choice = self.recorded_choice(choices);
        for t in here.iter().filter(|_| choice != Choice::Greedy) {
            match by_device(t) {
                true => self.put_options(t.slot, t.sampler.options())?,
                // A token is also chosen for this row, but it is ignored.
                false => self.put_bits(t.slot, Choice::Greedy)?,
            }
        }
        let changes = |t: &Task<'_>| by_device(t) && !t.sampler.takes_logits_as_they_are();
        let adjusted = here.iter().any(|t| changes(t));
        for t in here.iter().filter(|_| adjusted) {
            // Rows that the host samples keep their logits unchanged.
            self.put_adjustments(t.slot, Some(&*t.sampler).filter(|_| changes(t)))?;
        }
        Ok(Some(SamplingMode { choice, adjusted }))
    }

    /// Runs one token at each `(slot, position)`, whose ids are in the ring, then the choice.
    pub(super) fn run_rows(
        &mut self,
        at: &[(usize, usize)],
        choice: Option<SamplingMode>,
    ) -> Result<(), SessionError> {
        let slots: Vec<usize> = at.iter().map(|(slot, _)| *slot).collect();
        self.list(&slots)?;
        for &(slot, position) in at {
            self.move_to(slot, position)?;
            self.take_place(slot, position, position + 1)?;
        }
        if let Some(&(_, position)) = at.first() {
            self.take_over(position)?;
        }
        let what: RecordingKey = (at.len(), choice);
        let recording = self.record(what)?;
        if self.before.is_some() {
            let tokens: Vec<(usize, usize, usize)> =
                at.iter().map(|&(slot, position)| (slot, position, 1)).collect();
            self.take_rows(|runner| Ok(runner.rows_of(at.len())?.program), &tokens)?;
        }
        self.show_rows(at)?;
        self.replay(recording)?;
        at.iter().for_each(|&(slot, position)| self.note(slot, |s| s.held = Some(position + 1)));
        if choice.is_some() {
            at.iter().for_each(|&(slot, position)| self.moved_on(slot, position));
        }
        self.last = LastProgram::Rows(at.len());
        Ok(())
    }

    /// Records that the device has chosen a token after this position.
    pub(super) fn moved_on(&mut self, slot: usize, position: usize) {
        self.note(slot, |s| (s.at, s.used) = (Some(position + 1), s.used.max(position + 2)));
    }

    /// Launches the choice of the next tokens after `n` rows.
    pub(super) fn launch_choice(
        &mut self,
        n: usize,
        chosen: SamplingMode,
    ) -> Result<(), SessionError> {
        let rows = self.rows_of(n)?;
        let now = self.now(rows.program, n, chosen.choice)?;
        Ok(self.issue_choice(&rows, chosen, &now)?)
    }

    /// Computes a task's first tokens, whose ids are in the ring. Appends the logits of every row
    /// to `out`, if given.
    pub(super) fn prefill(
        &mut self,
        task: &Task<'_>,
        tokens: usize,
        mut out: Option<&mut Vec<f32>>,
    ) -> Result<(), SessionError> {
        let (slot, end) = (task.slot, task.first + tokens);
        let mut at = task.first;
        while at < end {
            let (image, left) = self.next_rows(slot, at, end - at)?;
            match self.program_for(at, left, image)? {
                Some(index) => {
                    let fed = self.feed_many(slot, at, index, left)?;
                    if let Some(out) = &mut out {
                        self.heads(index, 0..fed, out)?;
                    }
                    at += fed;
                }
                // If there are no prompt kernels, or they are still being compiled, prompts run
                // token by token.
                None => {
                    self.run_rows(&[(slot, at)], None)?;
                    if let Some(out) = &mut out {
                        out.append(&mut self.read_rows(&[0])?);
                    }
                    at += 1;
                    if let Some(early) = self.early.as_ref().filter(|_| !self.prompts_ready) {
                        early.count_single();
                        if left.is_multiple_of(LOOK_EVERY) {
                            self.loaded.stream.synchronize()?;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Computes prompt chunks of several sequences in common passes, each with as many chunks as
    /// fit. The weights are read once for all of them, and products of many rows are faster (8b
    /// Q4_K_M on an H100: prompts of 512 tokens 25,900 tokens/s, of 2,048 tokens 31,400). Returns
    /// the tasks that are done except for their last tokens in `rows`.
    fn prefill_packed(
        &mut self,
        tasks: &[Task<'_>],
        rows: &[usize],
        drafted: &[bool],
    ) -> Result<Vec<usize>, SessionError> {
        let prompts = &self.loaded.plan.prompts;
        let most = prompts.iter().filter(|p| p.packs().is_some()).map(|p| p.tokens).max();
        let Some(most) = most.filter(|_| self.may_pack()) else { return Ok(vec![]) };
        let most = most as usize;
        // The index of each task, and the number of its tokens that run here.
        let mut left: Vec<(usize, usize)> = vec![];
        for ((i, t), drafted) in tasks.iter().enumerate().zip(drafted) {
            let n = t.tokens.len().saturating_sub(usize::from(rows.contains(&i)));
            let own = self.has_own_passes(t.tokens);
            if !own
                && !drafted
                && n > 1
                && n < most
                && !matches!(t.want, Want::All | Want::Drafted(_))
            {
                left.push((i, n));
            }
        }
        let mut done = vec![];
        while left.len() > 1 {
            // The longest chunks that fit together, so that there are few passes.
            left.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
            let (mut here, mut rest, mut row) = (vec![], vec![], 0);
            for &(i, n) in &left {
                if row + n <= most {
                    here.push((i, row, n));
                    row += n.next_multiple_of(self.piece_rows());
                } else {
                    rest.push((i, n));
                }
            }
            left = rest;
            let [_, _, ..] = *here else { continue };
            let first = here.iter().filter_map(|(i, ..)| tasks.get(*i)).map(|t| t.first).min();
            if !self.prompts_ready(first.unwrap_or(0))? {
                break;
            }
            self.feed_packed(tasks, &here)?;
            done.extend(here.iter().map(|(i, ..)| *i));
        }
        Ok(done)
    }

    /// Whether prompt chunks of several sequences may share a pass: one device has all layers, and
    /// its states are keys and values.
    pub(super) fn may_pack(&self) -> bool {
        self.loaded.ring.is_none()
            && self.before.is_none()
            && self.others.is_empty()
            && self.copied.is_none()
            && !self.graph.is_recurrent()
    }

    /// The multiple of rows at which chunks of sequences begin, in all programs that support
    /// several sequences.
    fn piece_rows(&self) -> usize {
        let prompts = &self.loaded.plan.prompts;
        prompts.iter().filter_map(|p| p.packs()).max().unwrap_or(64) as usize
    }

    /// Computes chunks of several sequences, `(task, first row, tokens)`, in one pass.
    fn feed_packed(
        &mut self,
        tasks: &[Task<'_>],
        pieces: &[(usize, usize, usize)],
    ) -> Result<(), SessionError> {
        let rows = pieces.iter().map(|&(_, row, n)| row + n).max().unwrap_or(0);
        let prompts = &self.loaded.plan.prompts;
        let fits = |p: &kjit_plan::Program| p.tokens as usize >= rows && p.packs().is_some();
        let index = prompts
            .iter()
            .position(fits)
            .ok_or_else(|| SessionError::Device("no program for these prompts".to_owned()))?;
        let (mut all, mut shown) = (vec![], vec![]);
        for &(i, row, n) in pieces {
            let Some(t) = tasks.get(i) else { continue };
            shown.push(RingRows { slot: t.slot, first: t.first, tokens: n, row });
            self.move_to(t.slot, t.first)?;
            self.take_place(t.slot, t.first, t.first + n)?;
            let now = self.now(self.prompt(index)?, n, Choice::Greedy)?;
            all.push(Piece { slot: t.slot, row, now });
        }
        self.show(|runner| runner.prompt(index), &shown)?;
        let (r, program) = (&self.loaded, self.prompt(index)?);
        let trace = r.stream.device().trace();
        let span = trace.map(|t| {
            let (n, tokens) = (pieces.len(), pieces.iter().map(|p| p.2).sum::<usize>());
            t.span("compute", format!("prompts of {n} sequences, {tokens} tokens"))
        });
        r.issue_packed(program, &self.now(program, rows, Choice::Greedy)?, &all)?;
        if span.is_some() {
            r.stream.synchronize()?;
        }
        drop(span);
        for &(i, _, n) in pieces {
            let Some(t) = tasks.get(i) else { continue };
            self.note(t.slot, |s| s.held = Some(t.first + n));
        }
        self.last = LastProgram::Prompt(index, rows);
        Ok(())
    }

    /// The prompt program for `left` tokens; `None` if they run one by one.
    fn program_for(
        &mut self,
        at: usize,
        left: usize,
        image: bool,
    ) -> Result<Option<usize>, SessionError> {
        let rows = self.loaded.plan.image.as_ref().map_or(0, |p| p.tokens as usize);
        // A single row is the last one of its image, which sees all others like any token.
        if image && left > 1 {
            return match left <= rows {
                true => Ok(Some(self.image_index())),
                false => Err(SessionError::Images(format!(
                    "an image has {left} rows, a pass of the model {rows}"
                ))),
            };
        }
        let many = left > 1 && self.prompts_ready(at)?;
        let prompts = &self.loaded.plan.prompts;
        if many && self.copied.is_some_and(|copied| left >= copied.from) {
            return Ok(Some(prompts.len()));
        }
        let fits =
            prompts.iter().position(|p| p.tokens as usize >= left).or(prompts.len().checked_sub(1));
        Ok(fits.filter(|_| many))
    }

    /// Computes some of these tokens, whose ids are in the ring. Returns their number, at least
    /// one.
    pub(super) fn feed_some(
        &mut self,
        slot: usize,
        at: usize,
        left: usize,
    ) -> Result<usize, SessionError> {
        let (image, left) = self.next_rows(slot, at, left)?;
        match self.program_for(at, left, image)? {
            Some(index) => self.feed_many(slot, at, index, left),
            None => self.run_rows(&[(slot, at)], None).map(|()| 1),
        }
    }

    /// Computes as many tokens as a program supports, up to `left`, without logits. Returns their
    /// number.
    fn feed_many(
        &mut self,
        slot: usize,
        at: usize,
        index: usize,
        left: usize,
    ) -> Result<usize, SessionError> {
        self.move_to(slot, at)?;
        let tokens = left.min(self.prompt(index)?.tokens as usize);
        self.take_place(slot, at, at + tokens)?;
        self.take_rows(|runner| runner.prompt(index), &[(slot, at, tokens)])?;
        let shown = RingRows { slot, first: at, tokens, row: 0 };
        self.show(|runner| runner.prompt(index), &[shown])?;
        let (r, program) = (&self.loaded, self.prompt(index)?);
        let span = r
            .stream
            .device()
            .trace()
            .map(|t| t.span("compute", format!("prompt of {tokens} tokens")));
        let now = self.now(program, tokens, Choice::Greedy)?;
        if let Some(each) = r.control.each.as_ref().filter(|_| program.wants_each()) {
            r.stream.copy_in(&r.control.numbers.slice(at..at + tokens)?, &each.slice(..tokens)?)?;
        }
        r.issue(program, 0, &now, SlotScope::Slot(slot))?;
        if span.is_some() {
            // The trace should show the time of the work, not the time of its launch.
            r.stream.synchronize()?;
        }
        drop(span);
        self.note(slot, |s| s.held = Some(at + tokens));
        self.last = LastProgram::Prompt(index, tokens);
        Ok(tokens)
    }

    /// Runs after a prompt that ended with the token at `last`: computes its logits in row 0, and
    /// sets the position.
    pub(super) fn row_after_prompt(
        &mut self,
        slot: usize,
        last: usize,
    ) -> Result<(), SessionError> {
        match self.last {
            LastProgram::Prompt(index, fed) => self.head(index, fed - 1..fed)?,
            // The last piece was a single token, so it has logits.
            LastProgram::Rows(_) => {}
        }
        self.list(&[slot])?;
        self.move_to(slot, last)
    }

    /// Appends the logits of these rows of the last prompt chunk. They are computed in groups.
    fn heads(
        &mut self,
        index: usize,
        rows: Range<usize>,
        out: &mut Vec<f32>,
    ) -> Result<(), SessionError> {
        let most = self.loaded.plan.batches.last().map_or(1, |b| b.program.tokens as usize);
        for first in rows.clone().step_by(most) {
            let here = first..rows.end.min(first + most);
            let all: Vec<usize> = (0..here.len()).collect();
            self.head(index, here)?;
            // `read_rows` finds logits by the number of rows.
            let last = std::mem::replace(&mut self.last, LastProgram::Rows(all.len()));
            let read = self.read_rows(&all);
            self.last = last;
            out.append(&mut read?);
        }
        Ok(())
    }

    /// Computes the logits of these rows of the last prompt chunk, in the buffers of a program with
    /// the same number of rows.
    fn head(&self, index: usize, rows: Range<usize>) -> Result<(), SessionError> {
        let (r, prompt, n) = (&self.loaded, self.prompt(index)?, rows.len());
        let of = self.rows_of(n)?;
        let to = r.buffer(of.program, of.program.head)?;
        let each = to.len() / (of.program.tokens as usize).max(1);
        let from = r.buffer(prompt, prompt.head)?.slice(rows.start * each..rows.end * each)?;
        r.stream.copy(&from, &to.slice(..n * each)?)?;
        let now = self.now(of.program, n, Choice::Greedy)?;
        Ok(r.issue(of.program, of.program.head_from, &now, of.whose)?)
    }

    /// Logits of some rows of the last program.
    fn read_rows(&mut self, rows: &[usize]) -> Result<Vec<f32>, SessionError> {
        let n = match self.last {
            LastProgram::Rows(n) => n,
            LastProgram::Prompt(..) => 1,
        };
        let r = &self.loaded;
        let view = r.kept(self.rows_of(n)?.program, self.graph.logits)?.cast::<f32>()?;
        self.read_from(&view, rows)
    }

    /// Reads some rows of logits.
    pub(super) fn read_from(
        &mut self,
        view: &DeviceBuffer<f32>,
        rows: &[usize],
    ) -> Result<Vec<f32>, SessionError> {
        let n_vocab = self.graph.n_vocab();
        if self.logits.len() < rows.len() * n_vocab {
            self.logits = self.loaded.stream.device().pinned(rows.len() * n_vocab)?;
        }
        let r = &self.loaded;
        for (to, &row) in rows.iter().enumerate() {
            let to = self.logits.slice(to * n_vocab..(to + 1) * n_vocab)?;
            r.stream.copy_out(&view.slice(row * n_vocab..(row + 1) * n_vocab)?, &to)?;
        }
        let all = self.logits.slice(..rows.len() * n_vocab)?;
        // With ranks in other processes the result may never arrive; this wait has a time limit.
        self.loaded.settle()?;
        let rows = all.read(<[f32]>::to_vec)?;
        // The results are checked after everything was computed.
        self.loaded.check()?;
        Ok(rows)
    }

    /// Collects the requested results. `rows` are the tasks whose last token ran in the last rows,
    /// in the same order.
    fn answers(
        &mut self,
        tasks: &mut [Task<'_>],
        mut logits: Vec<Vec<f32>>,
        chosen: Vec<Option<Vec<u32>>>,
        rows: &[usize],
    ) -> Result<Vec<StepOutput>, SessionError> {
        let n_vocab = self.graph.n_vocab();
        let wanted = |t: &Task<'_>| t.want != Want::Nothing && !by_device(t);
        let task_of = |row: usize| rows.get(row).and_then(|&i| tasks.get(i));
        let come: Vec<usize> =
            (0..rows.len()).filter(|&row| task_of(row).is_some_and(wanted)).collect();
        if !come.is_empty() {
            let all = self.read_rows(&come)?;
            for (row, come) in all.chunks_exact(n_vocab).zip(&come) {
                if let Some(place) = rows.get(*come).and_then(|&i| logits.get_mut(i)) {
                    *place = row.to_vec();
                }
            }
        }
        // Sequences that may have no allowed token are handled first, because no sampler has
        // advanced yet.
        for t in tasks.iter().filter(|t| by_device(t) && !t.sampler.takes_logits_as_they_are()) {
            let token = self.loaded.wait_for(t.slot * (self.context + 1) + last_of(t) + 1)?;
            if !t.sampler.may_choose(token) {
                return Err(SessionError::NothingAllowed);
            }
        }
        // Then the host's choices, because its logits may be invalid.
        let by_host = |t: &Task<'_>| t.want == Want::Choose && !by_device(t);
        let with = tasks.iter_mut().zip(&mut logits).filter(|(t, _)| by_host(t));
        let mut tokens = choose(with.map(|(t, row)| (t, std::mem::take(row))))?.into_iter();
        let mut given = vec![];
        for ((t, rows), chosen) in tasks.iter_mut().zip(logits).zip(chosen) {
            let last = last_of(t);
            given.push(match t.want {
                Want::Drafted(n) => StepOutput::Tokens(match chosen {
                    Some(chosen) => chosen,
                    None => {
                        let before = (rows.len() / n_vocab).saturating_sub(n + 1) * n_vocab;
                        let drafts =
                            t.tokens.get(t.tokens.len().saturating_sub(n)..).unwrap_or_default();
                        follow(t, rows.get(before..).unwrap_or_default(), n_vocab, drafts)?
                    }
                }),
                Want::Nothing => StepOutput::Nothing,
                Want::Last | Want::All => StepOutput::Logits(rows),
                Want::Choose if !by_device(t) => {
                    tokens.next().map_or(StepOutput::Nothing, StepOutput::Token)
                }
                Want::Choose => {
                    let token = self.loaded.wait_for(t.slot * (self.context + 1) + last + 1)?;
                    t.sampler.accept(token);
                    StepOutput::Token(token)
                }
            });
        }
        Ok(given)
    }
}

/// The position of a task's last token.
pub(super) fn last_of(t: &Task<'_>) -> usize {
    (t.first + t.tokens.len()).saturating_sub(1)
}

/// Whether the device chooses. The host chooses if there are very many biases or the penalty window
/// is very long, because a slot's list on the device has space for `MOST` tokens.
fn by_device(t: &Task<'_>) -> bool {
    t.want == Want::Choose && t.sampler.is_adjustable(MOST)
}
