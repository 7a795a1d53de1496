//! Runs the sequences of a session on a GPU.
//!
//! Each sequence has a *slot*: a part of the states, a ring of ids in page-locked memory, a
//! position and sampling options. The ring has the ids of all tokens by position. The host writes
//! the ids of the prompt, the device's sampler writes the ids of the answer, and the embedding
//! reads both in place. So a token needs no copy in either direction: the host polls the ids while
//! the device continues. The position is a word on the device, which the sampler increments.
//!
//! Single tokens run as *rows*: one token of each of some sequences. Every matrix is read once for
//! all rows. The list of their slots is in device memory, so sequences of any lengths run together,
//! and can start and end at any step. A model opened for one sequence has one row, and its launches
//! have a fixed slot.

mod decode;
mod device_sharing;
mod draft;
mod embed;
mod form;
mod images;
mod launched;
mod pages;
mod rank;
mod rank_shutdown;
mod recordings;
mod shared_devices;
mod slot_words;
mod stage;
mod stage_link;
mod step;
mod tables;
mod takeover;
mod tensor_parallel;

pub use form::Form;
pub use tensor_parallel::DevicesIncompatible;

use super::background::BackgroundCompiling;
use super::expert_cache::{ExpertCache, ExpertCacheCounts};
use super::host_part::PromptCopy;
use super::loaded_plan::{LoadedPlan, Persistent, Timeline};
use super::plan::{BufferId, Plan, Program};
use crate::statistics::Statistics;
use half::f16;
use kjit_engine::Stream;
use kjit_engine::{Device, DeviceInfo, PinnedBuffer, Vendor};
use kjit_exec::{PageCount, Probe, SessionError};
use kjit_graph::Graph;
use launched::{LISTS, LaunchedSteps};
use pages::Pages;
use recordings::{RecordedLaunches, RecordingKey, SamplingMode};
use slot_words::{SlotWords, choice_of};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Runs the sequences of a session on a GPU. Decoding replays a captured graph for each step,
/// without any allocation, compile, copy or wait between steps.
pub struct GpuRunner {
    /// The other devices of a tensor split. This is the first field, because fields are dropped in
    /// order.
    others: OtherDevices,
    /// Detects other models on the devices of a tensor split.
    sole: Option<Arc<shared_devices::SharedDevices>>,
    /// Waits for the ranks of other processes at shutdown.
    far: Option<rank_shutdown::RankShutdown>,
    loaded: LoadedPlan,
    graph: Graph,
    context: usize,
    slots: Vec<SlotWords>,
    /// Staging for the slot list, used in turns: while steps are launched ahead, the last copies
    /// may not have run.
    rows: [PinnedBuffer<u32>; LISTS],
    /// Sampling options and seeds by slot, as sources of copies in steps that are launched ahead.
    staged: (PinnedBuffer<[u32; 4]>, PinnedBuffer<u64>),
    /// The steps that were launched ahead and not collected yet.
    ahead: LaunchedSteps,
    /// The slot list on the device.
    listed: Vec<usize>,
    /// Staging for rows of logits.
    logits: PinnedBuffer<f32>,
    /// Captured launches by key, captured when first needed.
    recordings: Vec<(RecordingKey, RecordedLaunches)>,
    /// Captured draft steps.
    drafts: Vec<(Drafted, RecordedLaunches)>,
    /// Whether launches are captured. If the runtime cannot capture, they are issued for each
    /// token.
    captures: bool,
    /// Whether the runtime captures launches.
    may_capture: bool,
    /// Persistent kernels that are not used, because a different form is used.
    shelved: Vec<Persistent>,
    /// The last program that ran.
    last: LastProgram,
    statistics: Statistics,
    /// The state of the background compiles; `None` if nothing was missing.
    early: Option<BackgroundCompiling>,
    /// Warnings about kernels that could not be verified and variants that were rejected.
    remarks: Vec<String>,
    /// Whether the prompt kernels are loaded.
    prompts_ready: bool,
    /// Whether the persistent kernel is still being compiled.
    one_launch_late: bool,
    /// Whether that kernel must be tried before it is used, as at opening.
    untried: bool,
    /// The previous stage of a layer split, on another device.
    before: Option<stage_link::PreviousStage>,
    /// The prompts whose experts are copied to the GPU. Only set if the CPU computes the experts of
    /// single tokens.
    copied: Option<PromptCopy>,
    /// The owners of pages, and the page numbers as a source of copies. `None` without pages.
    pages: Option<(Pages, PinnedBuffer<u32>)>,
    /// A seed that all ranks share, from which random seeds are chosen.
    common_seed: Option<u64>,
    /// The rows of images, if the session has any.
    images: Option<images::StagedImages>,
    /// Whether the rows of an image attend to each other: each image is a pass of its own.
    bidirectional_images: bool,
}

/// The last program that ran: a prompt program and its tokens, or rows.
#[derive(Debug, Clone, Copy)]
enum LastProgram {
    Prompt(usize, usize),
    Rows(usize),
}

impl GpuRunner {
    pub(super) fn new(
        loaded: LoadedPlan,
        graph: Graph,
        context: usize,
        statistics: Statistics,
        early: Option<BackgroundCompiling>,
    ) -> Result<GpuRunner, SessionError> {
        let device = loaded.stream.device();
        let (logits, slots) = (device.pinned(graph.n_vocab())?, loaded.plan.slots);
        let rows = [device.pinned(slots)?, device.pinned(slots)?, device.pinned(slots)?];
        let staged = (device.pinned(slots)?, device.pinned(slots)?);
        // The rings were never written.
        let slots = vec![
            SlotWords { used: context + 1, adjusted: true, ..SlotWords::default() };
            loaded.plan.slots
        ];
        // A trace of streamed layers must contain each copy. A replayed graph has no separate
        // copies in the trace.
        let shown = loaded.ring.is_none() || loaded.stream.device().trace().is_none();
        // Host parts cannot be captured.
        let captures = shown && loaded.aside.is_none();
        let mut runner = GpuRunner {
            others: OtherDevices::default(),
            sole: None,
            far: None,
            loaded,
            graph,
            context,
            slots,
            rows,
            staged,
            ahead: LaunchedSteps::default(),
            listed: vec![],
            logits,
            recordings: vec![],
            drafts: vec![],
            captures,
            may_capture: captures,
            shelved: vec![],
            last: LastProgram::Rows(1),
            statistics,
            prompts_ready: early.as_ref().is_none_or(|early| early.jobs().is_empty()),
            one_launch_late: early.as_ref().is_some_and(BackgroundCompiling::lacks_one_launch),
            untried: false,
            early,
            remarks: vec![],
            before: None,
            copied: None,
            pages: None,
            common_seed: None,
            images: None,
            bidirectional_images: false,
        };
        if let Some(pages) = runner.loaded.plan.pages {
            let numbers = runner.opened().pinned(pages)?;
            numbers.write(|to| to.iter_mut().zip(0..).for_each(|(word, n)| *word = n))?;
            runner.pages = Some((Pages::new(pages, runner.slots.len()), numbers));
        }
        // Kernels may have been compiled during the upload.
        runner.prompts_ready(0)?;
        if captures && runner.opened().target().vendor() == Vendor::Amd {
            runner.try_capture()?;
            runner.may_capture = runner.captures;
        }
        Ok(runner)
    }

    /// Warnings: kernels that are not used because of wrong results, and kernels that could not be
    /// verified.
    pub fn remarks(&self) -> &[String] {
        &self.remarks
    }

    /// Adds warnings.
    pub fn remark(&mut self, lines: Vec<String>) {
        self.remarks.extend(lines);
    }

    /// The background compiles of opening and their state; `None` if nothing was missing.
    pub fn early(&self) -> Option<&BackgroundCompiling> {
        self.early.as_ref()
    }

    /// The prompts whose experts are copied to the GPU, if the CPU computes the experts of single
    /// tokens. `None` if experts are never copied.
    pub fn copied(&self) -> Option<PromptCopy> {
        self.copied
    }

    /// Counts of the expert cache, if there is one.
    pub fn hot(&self) -> Option<ExpertCacheCounts> {
        self.loaded.aside.as_ref()?.hot.as_ref().map(ExpertCache::counts)
    }

    pub(super) fn copy_experts(&mut self, when: Option<PromptCopy>) {
        self.copied = when;
    }

    /// Times and memory of opening.
    pub fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// Fills staging slots with NaN before each copy, so that tests detect reads before the copy.
    /// Call it before the first step.
    pub fn poison_ring(&self) {
        if let Some(ring) = &self.loaded.ring {
            ring.poison(true);
        }
    }

    /// The device's description.
    pub fn device(&self) -> &DeviceInfo {
        self.loaded.stream.device().info()
    }

    /// The open device, for its counters.
    pub fn opened(&self) -> &Device {
        self.loaded.stream.device()
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.loaded.plan
    }

    /// `(steps, sequences)` of persistent kernels: the number of steps in the first kernel, and the
    /// largest number of sequences of any kernel. `None` without a persistent kernel.
    pub fn persistent(&self) -> Option<(usize, usize)> {
        let ready = self.loaded.plan.persistent.iter().zip(&self.loaded.persistent);
        let mut steps = ready.map(|(one, _)| (one.instructions.len(), one.rows));
        let first = steps.next()?;
        Some((first.0, steps.next_back().unwrap_or(first).1))
    }

    /// Timestamps of the last token's persistent kernel. `None` without such a kernel, or if the
    /// model was opened without [`Probe::Stamps`].
    ///
    /// # Errors
    /// A device fault.
    pub fn timeline(&self) -> Result<Option<Timeline>, SessionError> {
        let r = &self.loaded;
        let both = r.plan.persistent.first().zip(r.persistent.first());
        let both = both.filter(|(one, _)| one.probe == Probe::Stamps);
        Ok(both.map(|(one, ready)| ready.timeline(one, &r.stream)).transpose()?)
    }

    /// The graph.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Tokens that fit in a sequence.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Rows of a kept value from the last program: one row per token of a prompt chunk, or one per
    /// sequence. `None` if a fused step does not store the value.
    ///
    /// # Errors
    /// No value with this name; a device fault.
    pub fn tap(&self, name: &str) -> Result<Option<Vec<f32>>, SessionError> {
        let id = self.graph.find(name);
        let id = id.ok_or_else(|| SessionError::Device(format!("no value is called '{name}'")))?;
        let r = &self.loaded;
        let (program, rows) = match self.last {
            LastProgram::Prompt(index, rows) => (self.prompt(index)?, rows),
            LastProgram::Rows(rows) => (self.rows_of(rows)?.program, rows),
        };
        let Some(kept) = program.kept.iter().find(|k| k.value == id) else { return Ok(None) };
        let (v, view) = (self.graph.value(id), r.buffer(program, kept.buffer)?);
        let cols = v.slots * v.width;
        let Some(layout) = kept.tiled else {
            return Ok(Some(r.stream.read(&view.cast::<f32>()?.slice(..rows * cols)?)?));
        };
        let halves = r.stream.read(&view.cast::<u16>()?)?;
        let at = |i: usize| {
            halves
                .get(layout.index(i / cols, i % cols, cols))
                .copied()
                .unwrap_or(f16::NAN.to_bits())
        };
        Ok(Some((0..rows * cols).map(|i| f16::from_bits(at(i)).to_f32()).collect()))
    }

    /// Fills the programs' memory with NaN, so that tests detect reads before writes.
    ///
    /// # Errors
    /// A device fault.
    pub fn poison(&self) -> Result<(), SessionError> {
        let r = &self.loaded;
        for program in r.plan.programs() {
            for (i, _) in program.buffers.iter().enumerate().filter(|(_, b)| !b.zeroed) {
                r.stream.fill(&r.buffer(program, BufferId(i as u32))?, 0xff)?;
            }
        }
        Ok(())
    }

    /// Whether the prompt kernels are loaded. If their compiles have ended, they are loaded here,
    /// between two tokens. `at` is the number of tokens in the sequence.
    fn prompts_ready(&mut self, at: usize) -> Result<bool, SessionError> {
        if !self.prompts_ready
            && let Some(early) = &self.early
            && let Some(kernels) = early.arrived(self.loaded.stream.device(), at)?
        {
            for (job, kernel) in kernels {
                if let Some(place) = self.loaded.kernels.get_mut(job.0 as usize) {
                    *place = Some(kernel);
                }
            }
            self.prompts_ready = true;
        }
        Ok(self.prompts_ready)
    }

    fn prompt(&self, index: usize) -> Result<&Program, SessionError> {
        let plan = &self.loaded.plan;
        let copying = || plan.copying().filter(|_| index == plan.prompts.len());
        let image = || plan.image.as_ref().filter(|_| index == self.image_index());
        plan.prompts
            .get(index)
            .or_else(copying)
            .or_else(image)
            .ok_or_else(|| SessionError::Device("no program for prompts".to_owned()))
    }

    /// Copies the keys and values of one slot to another, in stream order. It copies the whole slot
    /// with one copy per layer, in any layout. For 8b with 4096 tokens these are 0.5 GB: about 0.3
    /// ms on an H200, the time of 8 prompt tokens.
    fn copy(&mut self, from: usize, to: usize, len: usize) -> Result<usize, SessionError> {
        if let Some(before) = &mut self.before {
            // Tokens that are missing in previous stages are recomputed when their hidden states
            // are requested.
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
        let (r, slots) = (&self.loaded, self.slots.len().max(1));
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

    /// Copies the known state of a slot, and the ids needed to recompute its tokens.
    fn copy_known(&mut self, from: usize, to: usize, len: usize) -> Result<(), SessionError> {
        let (ring, ids) = (self.context + 1, &self.loaded.control.tokens);
        let known = ids.slice(from * ring..from * ring + len)?.read(<[u32]>::to_vec)?;
        ids.slice(to * ring..to * ring + len)?.write(|to| to.copy_from_slice(&known))?;
        let held = self.slot(from).held;
        self.note(to, |s| (s.used, s.held) = (s.used.max(len), held));
        Ok(())
    }

    /// Whether a slot's states are exactly the states of its first `len` tokens.
    fn reaches(&self, slot: usize, len: usize) -> bool {
        // At position 0 the kernels treat states as zero.
        len == 0 || !self.graph.is_recurrent() || self.slot(slot).held == Some(len)
    }

    /// Recomputes a slot's states until they are exactly the states of its first `len` tokens,
    /// whose ids are in the ring. Recurrent states of other tokens are recomputed from the start.
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
}

/// The key of a captured draft step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Drafted {
    pub(super) slot: usize,
    pub(super) rows: usize,
    /// True: the device chooses greedily after each row. False: the host reads the logits.
    pub(super) chosen: bool,
}

/// The other devices of a tensor split; empty without one.
#[derive(Default)]
pub(super) struct OtherDevices {
    pub(super) runners: Vec<GpuRunner>,
    /// The streams of all devices, the first one included.
    pub(super) streams: Vec<Stream>,
}

impl OtherDevices {
    pub(super) fn is_empty(&self) -> bool {
        self.runners.is_empty()
    }
}

impl Drop for OtherDevices {
    fn drop(&mut self) {
        // Work in flight on one device writes to the memory of other devices.
        let end = Instant::now() + PATIENCE;
        for stream in &self.streams {
            while matches!(stream.is_idle(), Ok(false)) {
                if Instant::now() > end {
                    // The device hangs: freeing memory would wait for it.
                    std::mem::forget(std::mem::take(&mut self.runners));
                    return;
                }
                std::thread::sleep(Duration::from_micros(100));
            }
        }
    }
}

/// The time limit for launched work when the model is closed. It is longer than devices wait for
/// each other.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);
