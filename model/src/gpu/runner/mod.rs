//! The sequences of a session on a GPU.
//!
//! Each sequence has a *slot*: a stretch of the state, a ring of ids in page-locked memory, a
//! position and a choice of options. Ids of all tokens are in the ring, by position: the host
//! writes the prompt's there, the device's sampler the answer's, and the embedding reads both in
//! place. So a token costs no copy in either direction: the host watches the words as they appear
//! while the device goes on. The position is a word on the device; the sampler moves it on.
//!
//! Single tokens go through *rows*: a token of each of some sequences, every matrix read once for
//! all of them. The list of their slots is an argument in memory, so that sequences of any lengths
//! go together, join and leave. A model that was opened for one sequence has one row, and launches
//! that know the slot.

mod decode;
mod draft;
mod embed;
mod pages;
mod rank;
mod sole;
mod staged;
mod step;
mod tables;
mod takeover;
mod together;

pub use pages::PageCount;
pub(crate) use together::Apart;

use super::aside::Copied;
use super::early::Early;
use super::hot::{Hot, HotCounts};
use super::open::Statistics;
use super::plan::{BufferId, Choice, Launch, Now, Plan, Program};
use super::resident::{NONE, Resident, Timeline, Whose};
use crate::graph::Graph;
use crate::sample::{SampleOptions, Sampler};
use crate::session::{Probe, SessionError};
use half::f16;
use kjit_engine::{Device, DeviceInfo, Graph as Recording, PinnedBuffer, Vendor};
use kjit_kernels::changes::{self, HEAD, MOST};
use kjit_kernels::noise::inverse;
use kjit_kernels::mma::tiled_index;
use pages::Pages;
use std::sync::Arc;

/// What is drawn where a slot's own options say how.
const DRAW: Choice = Choice::Draw { top_k: 1, inverse: 1.0, top_p: 1.0, min_p: 0.0 };

/// Runs the sequences of a session on a GPU. Decoding replays a captured graph for each step:
/// nothing is allocated, compiled, copied or waited for in between.
pub struct GpuRunner {
    /// The other devices that compute the model with this one: the first to go.
    others: together::Others,
    /// Whether another model is on the devices that compute this one together.
    sole: Option<Arc<sole::Sole>>,
    /// Likewise, where the others are other processes'.
    far: Option<rank::Leaving>,
    resident: Resident,
    graph: Graph,
    context: usize,
    slots: Vec<Slot>,
    /// The list of slots on its way to the device.
    rows: PinnedBuffer<u32>,
    /// The list that is there.
    listed: Vec<usize>,
    /// Rows of logits on their way out.
    logits: PinnedBuffer<f32>,
    /// Captured launches, by what they are for; recorded when first needed.
    recordings: Vec<(Recorded, Again)>,
    /// The same of drafted tokens.
    drafts: Vec<(draft::Drafted, Again)>,
    /// Whether launches are captured; where the runtime refuses that, each is made anew.
    captures: bool,
    /// What ran last.
    last: Last,
    statistics: Statistics,
    /// How a start without the kernels for prompts goes.
    early: Option<Early>,
    /// What there is to say of kernels that were not proven, or of variants that were not taken.
    remarks: Vec<String>,
    /// Whether the kernels for prompts are there.
    prompts_ready: bool,
    /// The kernel of a whole token is still to come.
    one_launch_late: bool,
    /// The layers before, on another device.
    before: Option<staged::Before>,
    /// When a prompt's experts are copied to the device, where the CPU has them for single tokens.
    copied: Option<Copied>,
    /// Which pages are whose, and the number of each to copy it from; none where each slot has a
    /// place of its own.
    pages: Option<(Pages, PinnedBuffer<u32>)>,
    /// What random numbers may come from that other processes are to draw as well.
    common_seed: Option<u64>,
}

/// What is known of a slot's words.
#[derive(Debug, Clone, Default)]
struct Slot {
    /// Where the device's position is; none where that is not known.
    at: Option<usize>,
    /// Words of the ring from here on are [`NONE`].
    used: usize,
    /// The options that are in place, as bits.
    options: Option<[u32; 4]>,
    /// The seed that is in place.
    seed: Option<u64>,
    /// Its list of adjustments may have something in it.
    adjusted: bool,
    /// Tokens that its states hold, where some cannot forget a token; none where that is not known.
    held: Option<usize>,
}

/// What a recording is for: rows, and what comes behind them.
type Recorded = (usize, Option<Chosen>);

/// How tokens are chosen behind rows.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Chosen {
    choice: Choice,
    /// Some slots have biases, a mask or penalties. Where none has, nothing is launched for them.
    adjusted: bool,
}

impl From<Choice> for Chosen {
    fn from(choice: Choice) -> Chosen {
        Chosen { choice, adjusted: false }
    }
}

/// How a recording's launches are made again.
enum Again {
    /// By one call.
    Replay(Recording),
    /// One by one, as they were.
    Launch(Now),
}

/// What ran last: a program for prompts and its tokens, or rows.
#[derive(Debug, Clone, Copy)]
enum Last {
    Prompt(usize, usize),
    Rows(usize),
}

/// The launches for some rows.
struct Rows<'a> {
    program: &'a Program,
    adjust: Option<&'a Launch>,
    greedy: Option<&'a Launch>,
    draw: Option<&'a Launch>,
    whose: Whose,
}

impl<'a> Rows<'a> {
    /// The launch that chooses so.
    fn choosing(&self, choice: Choice) -> kjit_engine::Result<&'a Launch> {
        let launch = if choice == Choice::Greedy { self.greedy } else { self.draw };
        launch.ok_or_else(|| {
            kjit_engine::Error::Buffer("a token is chosen where there are no logits".to_owned())
        })
    }
}

/// The choice on the device that a sampler's options ask for.
fn choice_of(o: &SampleOptions) -> Choice {
    if o.temperature <= 0.0 {
        return Choice::Greedy;
    }
    let top_k = u32::try_from(o.top_k).unwrap_or(u32::MAX);
    Choice::Draw { top_k, inverse: inverse(o.temperature), top_p: o.top_p, min_p: o.min_p }
}

/// The bits of a slot's options; greedy is the likeliest one.
fn bits_of(choice: Choice) -> [u32; 4] {
    match choice {
        Choice::Greedy => [1, 1f32.to_bits(), 1f32.to_bits(), 0f32.to_bits()],
        Choice::Draw { top_k, inverse, top_p, min_p } => {
            [top_k, inverse.to_bits(), top_p.to_bits(), min_p.to_bits()]
        }
    }
}

impl GpuRunner {
    pub(super) fn new(
        resident: Resident,
        graph: Graph,
        context: usize,
        statistics: Statistics,
        early: Option<Early>,
    ) -> Result<GpuRunner, SessionError> {
        let device = resident.stream.device();
        let (logits, rows) = (device.pinned(graph.n_vocab())?, device.pinned(resident.plan.slots)?);
        // What lies in the rings was never written.
        let slots = vec![
            Slot { used: context + 1, adjusted: true, ..Slot::default() };
            resident.plan.slots
        ];
        // Who traces streamed layers wants to see each copy: a replay shows none.
        let shown = resident.ring.is_none() || resident.stream.device().trace().is_none();
        // What the CPU computes in between is no launch.
        let captures = shown && resident.aside.is_none();
        let mut runner = GpuRunner {
            others: together::Others::default(),
            sole: None,
            far: None,
            resident,
            graph,
            context,
            slots,
            rows,
            listed: vec![],
            logits,
            recordings: vec![],
            drafts: vec![],
            captures,
            last: Last::Rows(1),
            statistics,
            prompts_ready: early.as_ref().is_none_or(|early| early.jobs().is_empty()),
            one_launch_late: early.as_ref().is_some_and(Early::lacks_one_launch),
            early,
            remarks: vec![],
            before: None,
            copied: None,
            pages: None,
            common_seed: None,
        };
        if let Some(pages) = runner.resident.plan.pages {
            let numbers = runner.opened().pinned(pages)?;
            numbers.write(|to| to.iter_mut().zip(0..).for_each(|(word, n)| *word = n))?;
            runner.pages = Some((Pages::new(pages, runner.slots.len()), numbers));
        }
        // They may have come while the weights travelled.
        runner.prompts_ready(0)?;
        if captures && runner.opened().target().vendor() == Vendor::Amd {
            runner.try_capture()?;
        }
        Ok(runner)
    }

    /// Captures a token at once, so that what the runtime cannot record shows before anything is
    /// computed: then first without launches whose blocks meet, which some do not record, and at
    /// last not at all.
    fn try_capture(&mut self) -> Result<(), SessionError> {
        let refused = match self.records() {
            Ok(()) => return Ok(()),
            // Of a lost device nothing more can be had.
            Err(lost) if self.opened().memory().is_err() => return Err(lost),
            Err(refused) => refused,
        };
        let label = self.device().label();
        self.recordings.clear();
        if self.resident.cooperative {
            self.resident.cooperative = false;
            let persistent = std::mem::take(&mut self.resident.persistent);
            if self.records().is_ok() {
                self.remarks.push(format!(
                    "blocks that meet are refused on {label} ({refused}): kernels of one block \
                     take their place"
                ));
                return Ok(());
            }
            (self.resident.cooperative, self.resident.persistent) = (true, persistent);
        }
        self.recordings.clear();
        self.captures = false;
        self.remarks.push(format!(
            "launches cannot be recorded on {label} ({refused}): each is made anew for each \
             token, which is slower"
        ));
        Ok(())
    }

    /// Kernels that compute wrongly on this device and were not taken, and those that could not be
    /// proven: a line each.
    pub fn remarks(&self) -> &[String] {
        &self.remarks
    }

    pub(crate) fn remark(&mut self, lines: Vec<String>) {
        self.remarks.extend(lines);
    }

    /// What was still to come when the model was opened, and how that went; none if nothing was.
    pub fn early(&self) -> Option<&Early> {
        self.early.as_ref()
    }

    /// When a prompt's experts are copied to the device, where the CPU has them for single tokens;
    /// none where they never are.
    pub fn copied(&self) -> Option<Copied> {
        self.copied
    }

    /// How often experts that the device has were chosen, where the CPU has all of them.
    pub fn hot(&self) -> Option<HotCounts> {
        self.resident.aside.as_ref()?.hot.as_ref().map(Hot::counts)
    }

    pub(super) fn copy_experts(&mut self, when: Option<Copied>) {
        self.copied = when;
    }

    /// What opening took and what is held.
    pub fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// Fills the slots of streamed layers with what is no number before each copy, so that what is
    /// read too early shows: for tests. Before the first step.
    pub fn poison_ring(&self) {
        if let Some(ring) = &self.resident.ring {
            ring.poison(true);
        }
    }

    /// The device.
    pub fn device(&self) -> &DeviceInfo {
        self.resident.stream.device().info()
    }

    /// The same, opened: for its counts of what it was asked to do.
    pub fn opened(&self) -> &Device {
        self.resident.stream.device()
    }

    /// The plan that is run.
    pub fn plan(&self) -> &Plan {
        &self.resident.plan
    }

    /// Steps that one launch does for a token of one sequence (or of the fewest that have one), and
    /// of how many it has a token each at most; none where each step is a launch.
    pub fn persistent(&self) -> Option<(usize, usize)> {
        let ready = self.resident.plan.persistent.iter().zip(&self.resident.persistent);
        let mut steps = ready.map(|(one, _)| (one.instructions.len(), one.rows));
        let first = steps.next()?;
        Some((first.0, steps.next_back().unwrap_or(first).1))
    }

    /// Where the blocks of the last token's one launch were; none where a token is many, or was
    /// opened without [`Probe::Stamps`](crate::session::Probe).
    ///
    /// # Errors
    /// A device that failed.
    pub fn timeline(&self) -> Result<Option<Timeline>, SessionError> {
        let r = &self.resident;
        let both = r.plan.persistent.first().zip(r.persistent.first());
        let both = both.filter(|(one, _)| one.probe == Probe::Stamps);
        Ok(both.map(|(one, ready)| ready.timeline(one, &r.stream)).transpose()?)
    }

    /// What is computed.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Tokens of each sequence that fit.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Rows of a kept value for what ran last: the tokens of a prompt that went through together,
    /// or a token of each sequence. `None` where a fused step keeps it to itself.
    ///
    /// # Errors
    /// No such value; a device that failed.
    pub fn tap(&self, name: &str) -> Result<Option<Vec<f32>>, SessionError> {
        let id = self.graph.find(name);
        let id = id.ok_or_else(|| SessionError::Device(format!("no value is called '{name}'")))?;
        let r = &self.resident;
        let (program, rows) = match self.last {
            Last::Prompt(index, rows) => (self.prompt(index)?, rows),
            Last::Rows(rows) => (self.rows_of(rows)?.program, rows),
        };
        let Some(kept) = program.kept.iter().find(|k| k.value == id) else { return Ok(None) };
        let (v, view) = (self.graph.value(id), r.buffer(program, kept.buffer)?);
        let cols = v.slots * v.width;
        if !kept.tiled {
            return Ok(Some(r.stream.read(&view.cast::<f32>()?.slice(..rows * cols)?)?));
        }
        let halves = r.stream.read(&view.cast::<u16>()?)?;
        let at = |i: usize| {
            halves.get(tiled_index(i / cols, i % cols, cols)).copied().unwrap_or(f16::NAN.to_bits())
        };
        Ok(Some((0..rows * cols).map(|i| f16::from_bits(at(i)).to_f32()).collect()))
    }

    /// Fills all memory that launches pass on to each other with NaN, so that what is read before
    /// it was written shows: for tests.
    ///
    /// # Errors
    /// A device that failed.
    pub fn poison(&self) -> Result<(), SessionError> {
        let r = &self.resident;
        for program in r.plan.programs() {
            for (i, _) in program.buffers.iter().enumerate().filter(|(_, b)| !b.zeroed) {
                r.stream.fill(&r.buffer(program, BufferId(i as u32))?, 0xff)?;
            }
        }
        Ok(())
    }

    /// Whether the kernels for prompts are there. If they have just come, they take over here:
    /// between two tokens. `at`: tokens that are in the sequence at hand.
    fn prompts_ready(&mut self, at: usize) -> Result<bool, SessionError> {
        if !self.prompts_ready
            && let Some(early) = &self.early
            && let Some(kernels) = early.arrived(self.resident.stream.device(), at)?
        {
            for (job, kernel) in kernels {
                if let Some(place) = self.resident.kernels.get_mut(job.0 as usize) {
                    *place = Some(kernel);
                }
            }
            self.prompts_ready = true;
        }
        Ok(self.prompts_ready)
    }

    fn prompt(&self, index: usize) -> Result<&Program, SessionError> {
        let plan = &self.resident.plan;
        let copying = || plan.copying().filter(|_| index == plan.prompts.len());
        plan.prompts
            .get(index)
            .or_else(copying)
            .ok_or_else(|| SessionError::Device("no program for prompts".to_owned()))
    }

    /// The launches for a token of each of so many sequences.
    fn rows_of(&self, n: usize) -> Result<Rows<'_>, SessionError> {
        let plan = &self.resident.plan;
        if plan.batches.is_empty() && n == 1 {
            let adjust = plan.adjust.as_ref();
            let (program, greedy, draw) = (&plan.decode, plan.greedy.as_ref(), plan.draw.as_ref());
            return Ok(Rows { program, adjust, greedy, draw, whose: Whose::Slot(0) });
        }
        // In one launch, where that is there.
        let mut ready = plan.persistent.iter().zip(&self.resident.persistent).map(|(one, _)| one);
        let own = ready.find(|one| one.rows == n).and_then(|one| one.own.as_deref());
        let found = own.or_else(|| plan.batches.iter().find(|b| b.program.tokens as usize >= n));
        let batch =
            found.ok_or_else(|| SessionError::Device(format!("no program for {n} sequences")))?;
        let (adjust, greedy, draw) =
            (batch.adjust.as_ref(), batch.greedy.as_ref(), batch.draw.as_ref());
        Ok(Rows { program: &batch.program, adjust, greedy, draw, whose: Whose::All })
    }

    /// What launches of a program are evaluated with.
    fn now(&self, program: &Program, tokens: usize, choice: Choice) -> Result<Now, SessionError> {
        let r = &self.resident;
        let now = program.now(&r.plan.target, r.units(), tokens as u32, choice);
        now.map_err(|e| SessionError::Device(e.to_string()))
    }

    /// The place of the recording of rows with a choice behind them, made unless it is there.
    fn record(&mut self, what: Recorded) -> Result<usize, SessionError> {
        if let Some(at) = self.recordings.iter().position(|(w, _)| *w == what) {
            return Ok(at);
        }
        let (n, choice) = what;
        let (r, rows) = (&self.resident, self.rows_of(n)?);
        let now = self.now(rows.program, n, choice.map_or(Choice::Greedy, |c| c.choice))?;
        let recording = match self.captures {
            true => Again::Replay(r.capture(|| self.issue(what, &now))?),
            false => Again::Launch(now),
        };
        // Where options are arguments, each choice is another recording: the last one of each kind
        // is kept.
        let same = |(w, _): &(Recorded, Again)| {
            let drawn = |c: &Chosen| c.choice != Choice::Greedy;
            let (before, now) = (w.1.filter(drawn), choice.filter(drawn));
            w.0 == n && before.zip(now).is_some_and(|(before, now)| before.adjusted == now.adjusted)
        };
        self.recordings.retain(|one| !same(one));
        self.recordings.push((what, recording));
        Ok(self.recordings.len() - 1)
    }

    fn replay(&self, recording: usize) -> Result<(), SessionError> {
        let found = self.recordings.get(recording);
        let (what, recording) =
            found.ok_or_else(|| SessionError::Device("no such recording".to_owned()))?;
        match recording {
            Again::Replay(recording) => self.resident.stream.replay(recording)?,
            Again::Launch(now) => self.issue(*what, now)?,
        }
        Ok(())
    }

    /// Whether a token is recorded, and the launches that no plain greedy one has.
    fn records(&mut self) -> Result<(), SessionError> {
        let chooses = self.rows_of(1)?.greedy.is_some();
        self.record((1, chooses.then_some(Choice::Greedy.into())))?;
        let (r, rows) = (&self.resident, self.rows_of(1)?);
        let now = self.now(rows.program, 1, DRAW)?;
        let last = [rows.adjust, rows.draw];
        let mut last = last.iter().flatten();
        drop(
            r.stream
                .capture(|| last.try_for_each(|l| r.launch(rows.program, l, &now, rows.whose)))?,
        );
        Ok(())
    }

    /// The launches of rows, and of the choice behind them.
    fn issue(&self, (n, choice): Recorded, now: &Now) -> kjit_engine::Result<()> {
        let r = &self.resident;
        let rows = self.rows_of(n).map_err(|e| kjit_engine::Error::Buffer(e.to_string()))?;
        r.issue_rows(rows.program, now, rows.whose)?;
        choice.map_or(Ok(()), |chosen| self.issue_choice(&rows, chosen, now))
    }

    /// The launches of a choice behind rows.
    fn issue_choice(&self, rows: &Rows<'_>, chosen: Chosen, now: &Now) -> kjit_engine::Result<()> {
        let r = &self.resident;
        if let Some(adjust) = rows.adjust.filter(|_| chosen.adjusted) {
            r.launch(rows.program, adjust, now, rows.whose)?;
        }
        r.launch(rows.program, rows.choosing(chosen.choice)?, now, rows.whose)
    }

    /// The choice that is recorded behind rows: where each slot has its own options, a draw by
    /// those stands for all.
    fn recorded_choice(&self, choices: impl Iterator<Item = Choice>) -> Choice {
        let drawn =
            choices.fold(Choice::Greedy, |all, c| if c == Choice::Greedy { all } else { c });
        if drawn != Choice::Greedy && !self.resident.plan.batches.is_empty() { DRAW } else { drawn }
    }

    fn slot(&self, slot: usize) -> Slot {
        self.slots.get(slot).cloned().unwrap_or_default()
    }

    fn note(&mut self, slot: usize, change: impl FnOnce(&mut Slot)) {
        if let Some(s) = self.slots.get_mut(slot) {
            change(s);
        }
    }

    /// Puts ids in place behind a sequence's first tokens, and sees to it that what the device will
    /// choose after them can be told from what was there.
    fn put(&mut self, slot: usize, first: usize, tokens: &[u32]) -> Result<(), SessionError> {
        let (ring, end) = (slot * (self.context + 1), first + tokens.len());
        let used = self.slot(slot).used.max(end);
        let ids = &self.resident.control.tokens;
        // A token that the device itself has chosen is there, and writing would wait for the
        // device.
        let there = matches!(*tokens, [id] if used == end && ids.peek(ring + first)? == id);
        if !there {
            ids.slice(ring + first..ring + used)?.write(|to| {
                let (ids, rest) = to.split_at_mut(tokens.len().min(to.len()));
                ids.copy_from_slice(tokens);
                rest.fill(NONE);
            })?;
        }
        self.note(slot, |s| s.used = end);
        Ok(())
    }

    /// Makes a slot's keys and values those of another, in the order of the stream. All that a slot
    /// has room for: one copy for each layer's, whatever their layout; 8b's 4096 tokens are half a
    /// gigabyte, some 0.3 ms of an H200's memory, as much as 8 tokens of a prompt.
    pub(crate) fn copy(
        &mut self,
        from: usize,
        to: usize,
        len: usize,
    ) -> Result<usize, SessionError> {
        if let Some(before) = &mut self.before {
            // What is missing there is run again when rows of it are asked for.
            before.stage.copy(from, to, len)?;
        }
        self.copy_others(from, to, len)?;
        if self.pages.is_some() {
            let same = self
                .pages_of(from)
                .iter()
                .copied()
                .take(len.div_ceil(PageCount::POSITIONS))
                .collect::<Vec<_>>();
            self.begin_with(to, &same)?;
            if self.graph.is_recurrent() {
                self.copy_states(from, to)?;
                self.copy_known(from, to, len)?;
            }
            return Ok(len);
        }
        let (r, slots) = (&self.resident, self.slots.len().max(1));
        let caches = r.caches.iter().flat_map(|(keys, values)| [keys, values]);
        for cache in caches.filter(|c| !c.is_empty()) {
            let each = cache.len() / slots;
            let of = |slot: usize| cache.slice(slot * each..(slot + 1) * each);
            r.stream.copy(&of(from)?, &of(to)?)?;
        }
        if self.graph.is_recurrent() {
            self.copy_known(from, to, len)?;
        }
        Ok(len)
    }

    /// A slot's states hold what another's do; to go back from there takes the tokens.
    fn copy_known(&mut self, from: usize, to: usize, len: usize) -> Result<(), SessionError> {
        let (ring, ids) = (self.context + 1, &self.resident.control.tokens);
        let known = ids.slice(from * ring..from * ring + len)?.read(<[u32]>::to_vec)?;
        ids.slice(to * ring..to * ring + len)?.write(|to| to.copy_from_slice(&known))?;
        let held = self.slot(from).held;
        self.note(to, |s| (s.used, s.held) = (s.used.max(len), held));
        Ok(())
    }

    /// Whether a slot's states hold its first `len` tokens and no more.
    pub(crate) fn reaches(&self, slot: usize, len: usize) -> bool {
        // At position 0 they are zeros, whatever they were.
        len == 0 || !self.graph.is_recurrent() || self.slot(slot).held == Some(len)
    }

    /// Sees to it that a slot's states hold its first `len` tokens, whose ids are in the ring, and
    /// no more. Some states cannot forget a token: those begin again.
    fn reach(&mut self, slot: usize, len: usize) -> Result<(), SessionError> {
        if self.reaches(slot, len) {
            return Ok(());
        }
        let mut at = 0;
        while at < len {
            at += self.feed_some(slot, at, len - at)?;
        }
        Ok(())
    }

    /// Puts a sequence's position to this one, in the order of the stream.
    fn move_to(&mut self, slot: usize, position: usize) -> Result<(), SessionError> {
        if self.slot(slot).at != Some(position) {
            let r = &self.resident;
            let number = r.control.numbers.slice(position..position + 1)?;
            r.stream.copy_in(&number, &r.control.position.slice(slot..slot + 1)?)?;
            self.note(slot, |s| s.at = Some(position));
        }
        Ok(())
    }

    /// Says which slots the next rows are for, in the order of the stream.
    fn list(&mut self, slots: &[usize]) -> Result<(), SessionError> {
        if self.resident.plan.batches.is_empty() || self.listed == slots {
            return Ok(());
        }
        self.listed.clear();
        self.rows
            .write(|to| to.iter_mut().zip(slots).for_each(|(row, slot)| *row = *slot as u32))?;
        let to = self.resident.control.slots.slice(..slots.len())?;
        self.resident.stream.copy_in(&self.rows.slice(..slots.len())?, &to)?;
        self.listed.extend_from_slice(slots);
        Ok(())
    }

    /// Puts in place how a sequence's tokens are chosen, and its seed.
    fn put_options(&mut self, slot: usize, o: &SampleOptions) -> Result<(), SessionError> {
        let choice = choice_of(o);
        self.put_bits(slot, choice)?;
        if choice != Choice::Greedy && self.slot(slot).seed != Some(o.seed) {
            let r = &self.resident;
            r.stream.write(&r.control.seeds.slice(slot..slot + 1)?, &[o.seed])?;
            self.note(slot, |s| s.seed = Some(o.seed));
        }
        Ok(())
    }

    /// Puts in place how a slot's tokens are chosen.
    fn put_bits(&mut self, slot: usize, choice: Choice) -> Result<(), SessionError> {
        let bits = bits_of(choice);
        if self.slot(slot).options != Some(bits) {
            let r = &self.resident;
            r.stream.write(&r.control.options.slice(slot..slot + 1)?, &[bits])?;
            self.note(slot, |s| s.options = Some(bits));
        }
        Ok(())
    }

    /// Puts in place what is done to a slot's logits before its token is chosen: of this sampler,
    /// or nothing.
    fn put_adjustments(
        &mut self,
        slot: usize,
        sampler: Option<&Sampler>,
    ) -> Result<(), SessionError> {
        let none = || {
            SessionError::Device("more adjustments than a device's list has room for".to_owned())
        };
        let (n_vocab, stride) = (self.graph.n_vocab(), changes::stride(self.graph.n_vocab()));
        let first = slot * stride;
        let Some(sampler) = sampler else {
            if self.slot(slot).adjusted {
                let r = &self.resident;
                r.stream.write(&r.control.adjustments.slice(first..first + HEAD)?, &[0; HEAD])?;
                self.note(slot, |s| s.adjusted = false);
            }
            return Ok(());
        };
        let entries = sampler.adjustments(n_vocab, MOST).ok_or_else(none)?;
        let (mask, repeat) = (sampler.mask_words(), sampler.options().repeat_penalty);
        let r = &self.resident;
        let words = changes::words(&entries, mask.is_some(), repeat);
        r.stream.write(&r.control.adjustments.slice(first..first + words.len())?, &words)?;
        if let Some(mask) = mask {
            let mut halves: Vec<u32> =
                mask.iter().flat_map(|w| [*w as u32, (*w >> 32) as u32]).collect();
            halves.resize(changes::mask(n_vocab), 0);
            let first = first + HEAD + 4 * MOST;
            r.stream.write(&r.control.adjustments.slice(first..first + halves.len())?, &halves)?;
        }
        self.note(slot, |s| s.adjusted = true);
        Ok(())
    }

    /// Nothing is known any more of these slots: the device was asked for something and failed.
    fn doubt(&mut self, slots: &[usize]) {
        self.listed.clear();
        let used = self.context + 1;
        slots.iter().for_each(|&slot| {
            self.note(slot, |s| *s = Slot { used, adjusted: true, ..Slot::default() })
        });
    }
}
