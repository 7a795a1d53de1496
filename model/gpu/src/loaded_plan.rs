//! A plan on a device: kernels and weights loaded, memory allocated, ready to launch.

use super::exchange::Exchange;
use super::host_part::{HostPart, rows_of};
use super::launch;
use super::plan::{
    AllReduceArg, Bind, BufferId, Choice, Control, DRAFTED, Launch, LaunchParams, Number, PICK,
    Parts, Pause, PersistentKernel, Plan, Program,
};
use super::streamed::StagingRing;
use kjit_engine::{
    Arg, Device, DeviceBuffer, Error, Geometry, Graph, Kernel, PinnedBuffer, Result, Stream,
};
use kjit_exec::{Probe, SessionError};
use kjit_graph::{StateId, ValueId, WeightId};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// A ring word without a token: no vocabulary has this id.
pub(super) const NONE: u32 = u32::MAX;

/// Everything that launches bind.
pub(super) struct LoadedPlan {
    pub plan: Plan,
    /// The stream of all launches.
    pub stream: Stream,
    /// Kernels by [`super::plan::JobId`]; `None` while one is being compiled.
    pub kernels: Vec<Option<Kernel>>,
    /// The plan's persistent kernels, or empty.
    pub persistent: Vec<Persistent>,
    /// Whether cooperative launches are used: the device supports them, and no cooperative launch
    /// has failed.
    pub cooperative: bool,
    pub matrices: HashMap<WeightId, DeviceBuffer<u8>>,
    pub vectors: HashMap<WeightId, DeviceBuffer<f32>>,
    /// Rotation tables by [`kjit_graph::RopeId`].
    pub ropes: Vec<DeviceBuffer<f32>>,
    /// Caches by [`kjit_graph::StateId`]: keys and values, slot after slot or page after page.
    pub caches: Vec<(DeviceBuffer<u8>, DeviceBuffer<u8>)>,
    /// Memory shared by launches; programs use it one after another.
    pub arena: DeviceBuffer<u8>,
    pub control: ControlWords,
    /// The staging ring of streamed layers; `None` if all are resident.
    pub ring: Option<StagingRing>,
    /// Exchange buffers with other devices that compute this model; `None` with one device.
    pub meeting: Option<Exchange>,
    /// The host parts, if there are any.
    pub aside: Option<HostPart>,
}

/// Timestamps of a persistent kernel's blocks ([`Probe::Stamps`]).
#[derive(Debug, Clone)]
pub struct Timeline {
    /// The steps in order.
    pub names: Vec<String>,
    /// The number of blocks, each of which runs all steps.
    pub blocks: usize,
    /// By block, then step, in ns since the first start: start, inputs ready, computed, end.
    pub ns: Vec<[u32; Probe::STAMPS]>,
}

/// The time limit of a grid barrier. A step takes microseconds, but another process may use the
/// device at the same time.
const LIMIT: Duration = Duration::from_secs(10);
/// Added to the limit if other devices take part.
const OTHER_DEVICES_TIMEOUT: Duration = Duration::from_secs(2);
/// The time limit for tools that slow launches down a thousand times.
const SLOW_TOOLS_TIMEOUT: Duration = Duration::from_secs(3600);

const fn limit(probe: Probe) -> Duration {
    match probe {
        Probe::None | Probe::Stamps | Probe::Delays => LIMIT,
        Probe::Patient => SLOW_TOOLS_TIMEOUT,
        Probe::Stall => Duration::from_secs(1),
    }
}

/// A persistent kernel and its own buffers.
pub(super) struct Persistent {
    kernel: Kernel,
    program: DeviceBuffer<u64>,
    count: u32,
    meeting: DeviceBuffer<u8>,
    _packets: DeviceBuffer<u8>,
    /// Exchange buffers with other devices, if any.
    sums: Option<DeviceBuffer<u64>>,
    /// Not 0 if a block waited too long.
    late: PinnedBuffer<u32>,
    limit: Duration,
    shape: Geometry,
}

impl Persistent {
    /// The plan's persistent kernels on this device.
    pub fn all(
        r: &LoadedPlan,
        kernels: Vec<Kernel>,
    ) -> std::result::Result<Vec<Persistent>, SessionError> {
        r.plan
            .persistent
            .iter()
            .zip(kernels)
            .map(|(one, kernel)| Persistent::new(r, one, kernel))
            .collect()
    }

    /// Builds them again after the exchange buffers have changed.
    pub fn again(r: &mut LoadedPlan) -> std::result::Result<(), SessionError> {
        let kernels = r.persistent.iter().map(|one| one.kernel.clone()).collect();
        r.persistent = Persistent::all(r, kernels)?;
        Ok(())
    }

    fn new(
        r: &LoadedPlan,
        one: &PersistentKernel,
        kernel: Kernel,
    ) -> std::result::Result<Persistent, SessionError> {
        let now = LaunchParams {
            units: r.units(),
            tokens: one.rows as u32,
            choice: Choice::Greedy,
            products: vec![],
        };
        let blocks = PersistentKernel::grid().at(&now);
        let (program, whose) = (
            r.plan.program_of(one),
            if one.own.is_some() { SlotScope::All } else { SlotScope::Slot(0) },
        );
        let packets = r.stream.device().buffer::<u8>(one.packets.max(1) as usize)?;
        r.stream.fill(&packets, 0)?;
        let words = one.words(&now, blocks, packets.address(), |name, bind| {
            let number = match (bind, &r.meeting) {
                (Bind::Meeting(what), Some(place)) => Some(place.number(*what)),
                _ => None,
            };
            Ok::<_, Error>(r.view(program, name, bind, whose)?.map(|b| b.address()).or(number))
        })?;
        let each = if one.probe == Probe::Stamps { 8 * Probe::STAMPS } else { 0 };
        let stamps = blocks as usize * one.instructions.len() * each;
        let meeting =
            r.stream.device().buffer(kjit_kernels::persistent::Persistent::MEETING + stamps)?;
        r.stream.fill(&meeting, 0)?;
        let late = r.stream.device().pinned(1)?;
        late.write(|to| to.fill(0))?;
        let sums = (one.among.0 > 1).then(|| Persistent::sums(r, one)).transpose()?;
        let shape = Geometry::new(blocks, one.block).shared(one.shared).cooperative(true);
        let (program, count) = (r.stream.upload(&words)?, one.instructions.len() as u32);
        // A timeout between devices must be reported before the grid barriers that it delays.
        let more = if sums.is_some() { OTHER_DEVICES_TIMEOUT } else { Duration::ZERO };
        let limit = limit(one.probe) + more;
        Ok(Persistent {
            kernel,
            program,
            count,
            meeting,
            _packets: packets,
            sums,
            late,
            limit,
            shape,
        })
    }

    /// The exchange buffers in the layout of [`SUMS`](kjit_kernels::persistent::Persistent::SUMS).
    fn sums(r: &LoadedPlan, one: &PersistentKernel) -> Result<DeviceBuffer<u64>> {
        let missing = || lost("buffer for exchanges", one.entry);
        let place = r.meeting.as_ref().ok_or_else(missing)?;
        let at = |what| place.memory(what).map(|b| b.address()).ok_or_else(missing);
        let mut words =
            vec![at(AllReduceArg::Words)?, at(AllReduceArg::Late)?, at(AllReduceArg::Inbox)?];
        let (ranks, rank) = one.among;
        words.extend([
            place.number(AllReduceArg::Room),
            place.number(AllReduceArg::Limit),
            rank as u64,
            u64::from(one.sums),
        ]);
        for i in 1..ranks {
            words.push(at(AllReduceArg::To(i as u32 - 1))?);
        }
        r.stream.upload(&words)
    }

    fn launch(&self, stream: &Stream) -> Result<()> {
        let late = self.late.on_device();
        let limit = self.limit.as_nanos() as u64;
        let mut args = vec![
            Arg::from(&self.program),
            Arg::from(self.count),
            Arg::from(&self.meeting),
            Arg::from(&late),
            Arg::from(self.shape.grid[0]),
            Arg::from(limit),
        ];
        args.extend(self.sums.as_ref().map(Arg::from));
        launch::launch(stream, &self.kernel, &self.shape, &args)
    }

    /// The timestamps of the last launch.
    pub fn timeline(&self, one: &PersistentKernel, stream: &Stream) -> Result<Timeline> {
        let words: Vec<u64> = stream.read(&self.meeting.cast::<u64>()?)?;
        let head = kjit_kernels::persistent::Persistent::MEETING / 8;
        let times = words.get(head..).unwrap_or_default();
        let first = times.iter().step_by(Probe::STAMPS).min().copied().unwrap_or(0);
        let ns = times.chunks_exact(Probe::STAMPS).map(|of| {
            let mut latest = 0;
            // Steps that wait in the middle do not record the time when their inputs are ready.
            std::array::from_fn(|i| {
                latest = latest.max(of.get(i).map_or(0, |t| t.saturating_sub(first)) as u32);
                latest
            })
        });
        let names = one.instructions.iter().map(|i| i.name.clone()).collect();
        Ok(Timeline { names, blocks: self.shape.grid[0] as usize, ns: ns.collect() })
    }

    /// Whether every block has reached every grid barrier so far.
    fn check(&self, one: &PersistentKernel) -> std::result::Result<(), SessionError> {
        match self.late.peek(0)? {
            0 => Ok(()),
            n => {
                let at =
                    one.instructions.get(n as usize - 1).map_or("the end", |i| i.name.as_str());
                Err(SessionError::Lost(format!(
                    "blocks of the persistent kernel waited longer than {} s at '{at}', \
                     so its results are invalid: \
                     open the model again, with --persistent off if this repeats",
                    self.limit.as_secs()
                )))
            }
        }
    }
}

/// The owner of the control words and caches that launches get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SlotScope {
    /// Words and caches of one slot.
    Slot(usize),
    /// As `Slot`, and the rows of the program's buffers from this one on.
    Rows(usize, usize),
    /// Words and caches of all slots.
    All,
}

/// Tokens of a sequence in a program for several.
#[derive(Debug, Clone)]
pub(super) struct Piece {
    pub slot: usize,
    /// Its first row in the program.
    pub row: usize,
    /// Its own values for launches.
    pub now: LaunchParams,
}

/// The control words of sequences, slot after slot.
pub(super) struct ControlWords {
    /// Token ids by position, one more than the context. Host and device both read and write them
    /// in place.
    pub tokens: PinnedBuffer<u32>,
    /// The position of the first current token.
    pub position: DeviceBuffer<u32>,
    /// 0, 1, 2 … in host memory: sources for copying a position, and ids of position embeddings.
    pub numbers: PinnedBuffer<u32>,
    /// Seeds of draws.
    pub seeds: DeviceBuffer<u64>,
    /// Top-k, inverse temperature, top-p, min-p, as bits.
    pub options: DeviceBuffer<[u32; 4]>,
    /// Adjustments of logits before the choice: `kjit_kernels::changes::stride` words for each
    /// slot.
    pub adjustments: DeviceBuffer<u32>,
    /// The slots of decoded sequences.
    pub slots: DeviceBuffer<u32>,
    /// Page tables of all slots; unused without pages.
    pub pages: DeviceBuffer<u32>,
    /// The position of each prompt token, if launches read it.
    pub each: Option<DeviceBuffer<u32>>,
    /// The factor of each adapter.
    pub adapters: DeviceBuffer<f32>,
    /// Words of drafts; `None` without drafts.
    pub drafts: Option<DraftWords>,
}

/// The words of drafted tokens' rows.
pub(super) struct DraftWords {
    /// The host's source for `rows`.
    pub put: PinnedBuffer<u32>,
    /// The position of each row, followed by zeros.
    pub rows: DeviceBuffer<u32>,
    /// [`PICK`] words for each row; the last one gets the chosen token.
    pub picks: PinnedBuffer<u32>,
}

impl DraftWords {
    /// Allocates for the largest step.
    pub fn new(device: &Device) -> Result<DraftWords> {
        let rows = DRAFTED as usize;
        let (put, picks) = (device.pinned(2 * rows)?, device.pinned(PICK * rows)?);
        put.write(|to| to.fill(0))?;
        Ok(DraftWords { put, rows: device.buffer(2 * rows)?, picks })
    }
}

impl LoadedPlan {
    /// The device's compute units.
    pub fn units(&self) -> u32 {
        self.stream.device().info().units
    }

    /// Enqueues the launches of a decoding step, or its persistent kernel.
    pub fn issue_rows(
        &self,
        program: &Program,
        now: &LaunchParams,
        whose: SlotScope,
    ) -> Result<()> {
        let mut ready = self.plan.persistent.iter().zip(&self.persistent);
        match ready.find(|(one, _)| std::ptr::eq(program, self.plan.program_of(one))) {
            Some((_, one)) => one.launch(&self.stream),
            None => self.issue(program, 0, now, whose),
        }
    }

    /// Checks whether the results so far are valid.
    pub fn check(&self) -> std::result::Result<(), SessionError> {
        if let Some(meeting) = &self.meeting {
            meeting.check(self.stream.device())?;
        }
        self.persistent
            .iter()
            .zip(&self.plan.persistent)
            .try_for_each(|(ready, one)| ready.check(one))
    }

    /// Enqueues a program's launches from index `from` on, with the copies of streamed layers. At
    /// pauses it waits for the CPU.
    pub fn issue(
        &self,
        program: &Program,
        from: usize,
        now: &LaunchParams,
        whose: SlotScope,
    ) -> Result<()> {
        let launches = program.launches.get(from..).unwrap_or_default();
        let mut pauses = program.pauses.iter().filter(|p| from == 0 || p.at > from).peekable();
        // Runs the pauses before a launch. Returns whether there were any.
        let mut pause = |i: usize| {
            let mut paused = false;
            while let Some(pause) = pauses.next_if(|p| p.at <= from + i) {
                self.compute_aside(program, pause, now)?;
                paused = true;
            }
            Ok(paused)
        };
        // Kernels read positions before they wait for the previous launch. So the first launch
        // waits for the previous token, whose choice changes the position. A graph waits anyway.
        // Without this wait, an H100 decoded different tokens in separate launches than in a graph.
        let launch = |l: &Launch, behind_all| {
            let first = launches.first().is_some_and(|first| std::ptr::eq(first, l));
            self.launch_behind(program, l, now, whose, behind_all || first)
        };
        if let (Some(ring), Some(streaming)) = (&self.ring, &self.plan.streaming) {
            let stretches = streaming.stretches(launches);
            if !stretches.is_empty() {
                return ring.issue(&stretches, &self.stream, launches, pause, launch);
            }
        }
        for (i, l) in launches.iter().enumerate() {
            let paused = pause(i)?;
            launch(l, paused)?;
        }
        pause(launches.len()).map(|_| ())
    }

    /// Enqueues a program for tokens of several sequences ([`Program::packs`]). Launches that
    /// belong to a sequence are issued for each piece. All others are issued once, for all rows.
    pub fn issue_packed(
        &self,
        program: &Program,
        now: &LaunchParams,
        pieces: &[Piece],
    ) -> Result<()> {
        let mut first = true;
        for l in &program.launches {
            if l.is_of_a_sequence() {
                for p in pieces {
                    let rows = SlotScope::Rows(p.slot, p.row);
                    self.launch_behind(program, l, &p.now, rows, std::mem::take(&mut first))?;
                }
            } else {
                self.launch_behind(program, l, now, SlotScope::All, std::mem::take(&mut first))?;
            }
        }
        Ok(())
    }

    fn compute_aside(&self, program: &Program, pause: &Pause, now: &LaunchParams) -> Result<()> {
        let aside = self.aside.as_ref().ok_or_else(|| lost("host part", "a pause"))?;
        let rows = now.tokens as usize;
        let part = |id| rows_of(program, &self.buffer(program, id)?.cast()?, rows);
        aside.compute(&self.stream, pause, rows, &part)
    }

    /// Captures the work that `f` enqueues, with the copies of streamed layers.
    pub fn capture(&self, f: impl FnOnce() -> Result<()>) -> Result<Graph> {
        match &self.ring {
            None => self.stream.capture(f),
            Some(ring) => self.stream.capture_across(&[ring.copies()], f),
        }
    }

    pub fn launch(
        &self,
        program: &Program,
        launch: &Launch,
        now: &LaunchParams,
        whose: SlotScope,
    ) -> Result<()> {
        self.launch_behind(program, launch, now, whose, false)
    }

    /// Like [`LoadedPlan::launch`]. With `behind_all` it starts only after all earlier work.
    fn launch_behind(
        &self,
        program: &Program,
        launch: &Launch,
        now: &LaunchParams,
        whose: SlotScope,
        behind_all: bool,
    ) -> Result<()> {
        let kernel = self.kernels.get(launch.job.0 as usize).and_then(Option::as_ref);
        let kernel = kernel.ok_or_else(|| lost("kernel", &launch.name))?;
        let together = launch.cooperative && self.cooperative;
        // If the device cannot keep blocks resident together, the launch has a single block.
        let alone =
            (launch.cooperative && !together).then(|| LaunchParams { units: 1, ..now.clone() });
        let now = alone.as_ref().unwrap_or(now);
        let gathers = launch.gathers();
        if let Some((part, all, each)) = gathers {
            self.gather(
                program,
                launch,
                (part, all, each.saturating_mul(u64::from(now.tokens))),
                whose,
            )?;
        }
        // Views must live as long as the arguments that use them.
        let views = launch
            .args
            .iter()
            .map(|bind| self.view(program, &launch.name, bind, whose))
            .collect::<Result<Vec<_>>>()?;
        let args: Vec<Arg<'_>> = launch
            .args
            .iter()
            .zip(&views)
            .map(|(bind, view)| match (bind, view) {
                (_, Some(view)) => Arg::from(view),
                (Bind::Dim(dim), None) => Arg::from(dim.at(now)),
                (Bind::U32(n), None) => Arg::from(*n),
                (Bind::U64(n), None) => Arg::from(*n),
                (Bind::F32(x), None) => Arg::from(*x),
                (Bind::Elements(each), None) => {
                    Arg::from(each.saturating_mul(u64::from(now.tokens)))
                }
                (Bind::Meeting(what), None) => {
                    Arg::from(self.meeting.as_ref().map_or(0, |m| m.number(*what)))
                }
                (Bind::Chosen(what), None) => match what.of(now.choice) {
                    Number::U32(n) => Arg::from(n),
                    Number::F32(x) => Arg::from(x),
                },
                (_, None) => Arg::Null,
            })
            .collect();
        let shape = Geometry::of(launch.grid.map(|d| d.at(now)), [launch.block, 1, 1])
            .shared(launch.shared)
            .dependent(launch.dependent && !behind_all && gathers.is_none())
            .cooperative(together && launch.grid[0].at(now) > 1);
        launch::launch(&self.stream, kernel, &shape, &args)
    }

    /// Gathers the partial rows of this device and of other processes with the vendor's library.
    fn gather(
        &self,
        program: &Program,
        launch: &Launch,
        of: (&Bind, &Bind, u64),
        whose: SlotScope,
    ) -> Result<()> {
        let (part, all, count) = of;
        let lost = |what| lost(what, &launch.name);
        let far = self
            .meeting
            .as_ref()
            .and_then(Exchange::far)
            .ok_or_else(|| lost("buffer for exchanges"))?;
        let count = usize::try_from(count).map_err(|_| lost("address"))?;
        let view = |bind| {
            self.view(program, &launch.name, bind, whose)?
                .ok_or_else(|| lost("part"))?
                .cast::<f32>()
        };
        far.gather(&self.stream, &view(part)?.slice(..count)?, &view(all)?)
    }

    /// The memory of an argument, if it has any.
    fn view(
        &self,
        program: &Program,
        launch: &str,
        bind: &Bind,
        whose: SlotScope,
    ) -> Result<Option<DeviceBuffer<u8>>> {
        let lost = |what| lost(what, launch);
        // The part of one slot, in memory with equal parts for all slots.
        let part = |all: DeviceBuffer<u8>| match whose {
            SlotScope::All => Ok(all),
            SlotScope::Slot(slot) | SlotScope::Rows(slot, _) => {
                let each = all.len() / self.plan.slots.max(1);
                all.slice(slot * each..(slot + 1) * each)
            }
        };
        // All slots share the pages.
        let kept = |id: StateId, all: &DeviceBuffer<u8>| match (
            self.plan.parts_of(id.0 as usize),
            whose,
        ) {
            (parts @ Parts::Slots { .. }, SlotScope::Slot(slot) | SlotScope::Rows(slot, _)) => {
                let each = all.len() / parts.count().max(1);
                all.slice(slot * each..(slot + 1) * each)
            }
            (Parts::Pages(_), _) | (_, SlotScope::All) => Ok(all.clone()),
        };
        Ok(Some(match *bind {
            Bind::Buffer(id) => {
                let all = self.buffer(program, id)?;
                match whose {
                    SlotScope::Rows(_, row) => {
                        let each = all.len() / (program.tokens as usize).max(1);
                        all.slice(row * each..all.len())?
                    }
                    SlotScope::Slot(_) | SlotScope::All => all,
                }
            }
            Bind::Matrix(w) => self.matrices.get(&w).ok_or_else(|| lost("matrix"))?.clone(),
            Bind::Vector(w) => self.vectors.get(&w).ok_or_else(|| lost("vector"))?.cast()?,
            Bind::Rope(r) => {
                self.ropes.get(r.0 as usize).ok_or_else(|| lost("rotation"))?.cast()?
            }
            Bind::Keys(c) => {
                kept(c, &self.caches.get(c.0 as usize).ok_or_else(|| lost("cache"))?.0)?
            }
            Bind::Values(c) => {
                kept(c, &self.caches.get(c.0 as usize).ok_or_else(|| lost("cache"))?.1)?
            }
            Bind::Control(Control::Tokens) => part(self.control.tokens.on_device().cast()?)?,
            Bind::Control(Control::Numbers) => self.control.numbers.on_device().cast()?,
            Bind::Control(Control::Seed) => part(self.control.seeds.cast()?)?,
            Bind::Control(Control::Position) => part(self.control.position.cast()?)?,
            Bind::Control(Control::Options) => part(self.control.options.cast()?)?,
            Bind::Control(Control::Adjustments) => part(self.control.adjustments.cast()?)?,
            Bind::Control(Control::Adapters) => part(self.control.adapters.cast()?)?,
            Bind::Control(Control::Slots) => self.control.slots.cast()?,
            Bind::Control(Control::Pages) => part(self.control.pages.cast()?)?,
            Bind::Control(Control::Each) => {
                self.control.each.as_ref().ok_or_else(|| lost("list of positions"))?.cast()?
            }
            Bind::Control(what @ (Control::Places | Control::Turns | Control::Picks)) => {
                let words = self.control.drafts.as_ref().ok_or_else(|| lost("draft's words"))?;
                let half = words.rows.len() / 2;
                match what {
                    Control::Places => words.rows.slice(..half)?.cast()?,
                    Control::Turns => words.rows.slice(half..)?.cast()?,
                    _ => words.picks.on_device().cast()?,
                }
            }
            Bind::HostParts => {
                self.aside.as_ref().ok_or_else(|| lost("host part"))?.rows().cast()?
            }
            Bind::Meeting(AllReduceArg::Room | AllReduceArg::RowsRoom | AllReduceArg::Limit) => {
                return Ok(None);
            }
            Bind::Meeting(what) => self
                .meeting
                .as_ref()
                .and_then(|m| m.memory(what))
                .ok_or_else(|| lost("buffer for exchanges"))?,
            Bind::Null
            | Bind::Dim(_)
            | Bind::U32(_)
            | Bind::U64(_)
            | Bind::F32(_)
            | Bind::Elements(_)
            | Bind::Chosen(_) => return Ok(None),
        }))
    }

    /// Waits for a word of [`ControlWords::tokens`] that the device writes.
    pub fn wait_for(&self, index: usize) -> std::result::Result<u32, SessionError> {
        self.wait_in(&self.control.tokens, index)
    }

    /// Like [`LoadedPlan::wait_for`], for other words that the device writes.
    pub fn wait_in(
        &self,
        words: &PinnedBuffer<u32>,
        index: usize,
    ) -> std::result::Result<u32, SessionError> {
        let start = Instant::now();
        let _waiting = self.meeting.as_ref().and_then(Exchange::waiting);
        let mut spins = 0u32;
        loop {
            let id = words.peek(index)?;
            if id != NONE {
                self.check()?;
                return Ok(id);
            }
            spins += 1;
            match spins {
                // Some tens of µs: the time of the fastest token.
                0..2000 => std::hint::spin_loop(),
                _ => {
                    std::thread::yield_now();
                    if let Some(meeting) = self.meeting.as_ref().filter(|m| m.is_over()) {
                        meeting.check(self.stream.device())?;
                    }
                    // A device that has failed writes nothing more. Its error is then reported.
                    if spins.is_multiple_of(1024)
                        && self.stream.is_idle()?
                        && words.peek(index)? == NONE
                    {
                        return Err(SessionError::Device(format!(
                            "the device wrote no token at {index}"
                        )));
                    }
                    if start.elapsed() > Duration::from_millis(5) {
                        std::thread::sleep(Duration::from_micros(50));
                    }
                }
            }
        }
    }

    /// Waits for the stream, or until another device of the model has failed.
    pub fn settle(&self) -> std::result::Result<(), SessionError> {
        let Some(meeting) = &self.meeting else { return Ok(()) };
        let _waiting = meeting.waiting();
        let mut spins = 0u32;
        while !self.stream.is_idle()? {
            meeting.check(self.stream.device())?;
            spins += 1;
            match spins {
                0..2000 => std::hint::spin_loop(),
                _ => std::thread::sleep(Duration::from_micros(50)),
            }
        }
        meeting.check(self.stream.device())
    }

    /// The buffer of a kept value.
    pub fn kept(&self, program: &Program, value: ValueId) -> Result<DeviceBuffer<u8>> {
        let found = program.kept.iter().find(|k| k.value == value);
        let kept = found
            .ok_or_else(|| Error::Buffer(format!("the plan did not keep value {}", value.0)))?;
        self.buffer(program, kept.buffer)
    }

    /// The memory of a program's buffer.
    pub fn buffer(&self, program: &Program, id: BufferId) -> Result<DeviceBuffer<u8>> {
        let b = program.buffers.get(id.0 as usize).ok_or_else(|| lost("buffer", "a program"))?;
        let size = |n: u64| usize::try_from(n).map_err(|_| lost("address", &b.name));
        let at = program.base + b.offset;
        self.arena.slice(size(at)?..size(at + b.bytes)?)
    }
}

/// The error for a plan that binds something that it does not have. This is an internal fault.
fn lost(what: &str, launch: &str) -> Error {
    Error::Buffer(format!("launch '{launch}' binds a {what}, but the plan has none"))
}
