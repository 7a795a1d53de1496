//! Streamed layers on a device: a copy stream fills the staging ring while the compute stream reads
//! it.
//!
//! Two events of each slot order the streams. *there* is recorded after a layer's copies, and the
//! launches that read the layer wait for it. *free* is recorded after the last of these launches,
//! and the next copy into the slot waits for it. Everything else is fixed: each matrix has one
//! address, and the launches are as for a resident model. So a step is captured with its copies as
//! graph nodes, and replayed by one call.
//!
//! Launches that may start early (`dependent`) prefetch weights before they wait. The first launch
//! that reads a layer is never of this kind, and later launches start after it.

use super::launch;
use super::plan::{JobId, Launch, LayerLaunches, Plan, SLOTS, StreamedLayer};
use super::staging::{CopyRange, Staging};
use crate::statistics::Streamed;
use kjit_engine::{
    Arena, Arg, DeviceBuffer, DeviceClock, Error, Event, Kernel, Result, Stream, Target,
};
use kjit_exec::SessionError;
use kjit_graph::{Graph, WeightId};
use kjit_kernels::arguments::Arguments;
use kjit_kernels::layout::Layout;
use kjit_kernels::repack::{RepackArgs, RepackSpec};
use std::cell::Cell;
use std::collections::HashMap;

/// Minimum bytes that are copied to measure the rate.
const MIN_TIMED_BYTES: u64 = 256 << 20;

/// Launches a repack kernel.
#[derive(Clone)]
pub(super) struct Repacker {
    pub kernel: Kernel,
    pub spec: RepackSpec,
    pub target: Target,
}

impl Repacker {
    /// Repacks rows from the layout of the file to the layout of the device, in stream order.
    pub fn launch(
        &self,
        stream: &Stream,
        raw: &DeviceBuffer<u8>,
        to: &DeviceBuffer<u8>,
        rows: usize,
    ) -> Result<()> {
        let units = stream.device().info().units;
        let launch = self.spec.launch_rows(&self.target, rows as u64, units);
        let shape = launch.map_err(|e| Error::Buffer(e.to_string()))?.geometry.dependent(false);
        let (rows, blocks) = ((rows as u64).into(), shape.grid[0].into());
        let args = RepackArgs::<Arg<'_>> { raw: raw.into(), records: to.into(), rows, blocks };
        launch::launch(stream, &self.kernel, &shape, &args.list())
    }
}

/// A staging slot.
struct StagingSlot {
    all: DeviceBuffer<u8>,
    there: Event,
    free: Event,
}

/// A matrix that is repacked after each copy.
struct RepackedMatrix {
    job: JobId,
    rows: usize,
    from: DeviceBuffer<u8>,
    to: DeviceBuffer<u8>,
}

/// A streamed layer with its copies.
struct Layer {
    number: usize,
    slot: usize,
    pieces: Vec<(CopyRange, DeviceBuffer<u8>)>,
    laid: Vec<RepackedMatrix>,
    /// The slot stays in use until the layer is computed.
    held: bool,
}

/// The staging ring of streamed layers.
pub(super) struct StagingRing {
    copies: Stream,
    /// The start of a pass.
    begun: Event,
    slots: Vec<StagingSlot>,
    laid: DeviceBuffer<u8>,
    layers: Vec<Layer>,
    repackers: HashMap<JobId, Repacker>,
    /// The sources of copies. They must outlive the copies.
    stock: Staging,
    /// Fills slots with NaN before each copy, for tests.
    poison: Cell<bool>,
    pub streamed: Streamed,
}

/// The address at which each streamed matrix is read.
pub(super) type MatrixAddresses = HashMap<WeightId, DeviceBuffer<u8>>;

/// The events before and after an operation.
type EventPair = (Event, Event);

/// Timestamps of a pass, for a trace.
struct PassTimestamps {
    clock: DeviceClock,
    copies: Vec<(usize, EventPair)>,
    steps: Vec<(usize, EventPair)>,
}

impl StagingRing {
    /// Allocates the ring in an arena that is large enough. Also returns the address of each
    /// streamed matrix.
    pub fn new(
        (plan, graph): (&Plan, &Graph),
        arena: &Arena,
        copies: Stream,
        stock: Staging,
        repackers: HashMap<JobId, Repacker>,
    ) -> std::result::Result<Option<(StagingRing, MatrixAddresses)>, SessionError> {
        let Some(plan) = &plan.streaming else { return Ok(None) };
        let device = copies.device().clone();
        let size = |n: u64| {
            usize::try_from(n)
                .map_err(|_| Error::Buffer(format!("{n} bytes are too large to address")))
        };
        let slot = || {
            let all = arena.buffer(size(plan.slot)?)?;
            Ok(StagingSlot { all, there: device.event()?, free: device.event()? })
        };
        let slots = (0..SLOTS).map(|_| slot()).collect::<Result<Vec<_>>>()?;
        let laid = arena.buffer::<u8>(size(plan.laid)?)?;
        let (mut layers, mut matrices) = (vec![], MatrixAddresses::new());
        for l in &plan.layers {
            let none = || Error::Buffer(format!("layer {} has no slot", l.number));
            let slot = &slots.get(l.slot).ok_or_else(none)?.all;
            let mut layer = Layer {
                number: l.number,
                slot: l.slot,
                pieces: vec![],
                laid: vec![],
                held: l.is_read_in_slot(),
            };
            for m in &l.matrices {
                let lands = slot.slice(size(m.lands.start)?..size(m.lands.end)?)?;
                let place = match m.job {
                    None => lands,
                    Some(job) => {
                        let w = graph.weight(m.weight);
                        let to = laid.slice(size(m.laid.start)?..size(m.laid.end)?)?;
                        layer.laid.push(RepackedMatrix {
                            job,
                            rows: w.rows * w.experts,
                            from: lands,
                            to: to.clone(),
                        });
                        to
                    }
                };
                matrices.insert(m.weight, place);
            }
            layer.pieces = pieces(&stock, l, slot)?;
            layers.push(layer);
        }
        let step = || plan.layers.iter().filter(|l| !l.for_prompts);
        let bytes = step().map(StreamedLayer::bytes).sum();
        let apart = plan.layers.len() - step().count();
        let streamed = Streamed { layers: step().count(), of: plan.of, apart, bytes, rate: 0.0 };
        let (begun, poison) = (device.event()?, Cell::new(false));
        let mut ring =
            StagingRing { copies, begun, slots, laid, layers, repackers, stock, poison, streamed };
        ring.streamed.rate = ring.rate()?;
        Ok(Some((ring, matrices)))
    }

    /// Whether weights of host parts can be copied for prompts.
    pub fn copies_for_prompts(&self) -> bool {
        self.stock.prompts
    }

    /// The copy stream, for captures.
    pub fn copies(&self) -> &Stream {
        &self.copies
    }

    /// Fills slots with NaN before each copy, so that tests detect reads before a copy.
    pub fn poison(&self, on: bool) {
        self.poison.set(on);
    }

    /// Measures the bytes per second of copies: the best of two rounds. Before that, all sources
    /// are locked and the slots are written once.
    fn rate(&self) -> Result<f64> {
        let device = self.copies.device();
        let mut best = 0.0f64;
        for _ in 0..2 {
            let (start, end) = (device.timed_event()?, device.timed_event()?);
            let mut bytes = 0;
            self.copies.record(&start)?;
            for layer in &self.layers {
                self.copy(layer)?;
                bytes += layer.pieces.iter().map(|(_, to)| to.len() as u64).sum::<u64>();
                if bytes >= MIN_TIMED_BYTES {
                    break;
                }
            }
            self.copies.record(&end)?;
            end.synchronize()?;
            let seconds = f64::from(end.milliseconds_since(&start)?) * 1e-3;
            if seconds > 0.0 {
                best = best.max(bytes as f64 / seconds);
            }
        }
        Ok(best)
    }

    fn copy(&self, layer: &Layer) -> Result<()> {
        layer.pieces.iter().try_for_each(|(from, to)| from.copy(&self.copies, to))
    }

    /// Enqueues launches in `compute`, and the copies of their layers in the copy stream. `launch`
    /// adds one launch; its second argument is true if the launch must wait for all earlier work.
    /// `pause` is called before the launch with that index, and returns whether the host waited
    /// there. Copies continue meanwhile while slots are free.
    pub fn issue(
        &self,
        stretches: &[LayerLaunches],
        compute: &Stream,
        launches: &[Launch],
        mut pause: impl FnMut(usize) -> Result<bool>,
        mut launch: impl FnMut(&Launch, bool) -> Result<()>,
    ) -> Result<()> {
        let capturing = compute.is_capturing();
        let trace = compute.device().trace().filter(|_| !capturing);
        let mut seen = match trace {
            Some(trace) => Some(PassTimestamps {
                clock: trace.device_clock(compute)?,
                copies: vec![],
                steps: vec![],
            }),
            None => None,
        };
        let mut pass = LayerPass {
            ring: self,
            stretches,
            compute,
            next: 0,
            busy: [None; SLOTS],
            used: [false; SLOTS],
        };
        // Copies come after all earlier work, because it may read the slots.
        compute.record(&self.begun)?;
        self.copies.wait(&self.begun)?;
        pass.copy_ahead(&mut seen)?;
        let mut at = 0;
        let mut from = None;
        for (i, l) in launches.iter().enumerate() {
            let paused = pause(i)?;
            let here = stretches.get(at).filter(|s| s.first <= i);
            let arrives = here.is_some_and(|s| s.first == i);
            if arrives {
                pass.arrive(at, &mut seen)?;
                from = seen.is_some().then(|| recorded(compute)).transpose()?;
            }
            launch(l, arrives || paused)?;
            if let Some(s) = here.filter(|s| s.last == i) {
                pass.leave(at, &mut seen)?;
                if let (Some(seen), Some(from)) = (&mut seen, from.take()) {
                    seen.steps.push((s.layer, (from, recorded(compute)?)));
                }
                at += 1;
            }
        }
        pause(launches.len())?;
        match seen {
            Some(seen) => self.tell(&seen, compute),
            None => Ok(()),
        }
    }

    /// Adds the copies and layers of a pass to the trace, in separate rows.
    fn tell(&self, seen: &PassTimestamps, compute: &Stream) -> Result<()> {
        self.copies.synchronize()?;
        compute.synchronize()?;
        for (row, spans) in [("copies", &seen.copies), ("streamed layers", &seen.steps)] {
            let clock = seen.clock.row(row);
            for (layer, (from, to)) in spans {
                let number = self.layers.get(*layer).map_or(0, |l| l.number);
                clock.span(format!("layer {number}"), from, to)?;
            }
        }
        Ok(())
    }
}

/// Records a timed event in a stream.
fn recorded(stream: &Stream) -> Result<Event> {
    let event = stream.device().timed_event()?;
    stream.record(&event)?;
    Ok(event)
}

/// The sources of a layer's bytes, and the offset of each piece in the slot.
fn pieces(
    stock: &Staging,
    layer: &StreamedLayer,
    slot: &DeviceBuffer<u8>,
) -> Result<Vec<(CopyRange, DeviceBuffer<u8>)>> {
    let place = |(at, piece): (u64, CopyRange)| {
        let at = usize::try_from(at)
            .map_err(|_| Error::Buffer("a slot is too large to address".to_owned()))?;
        Ok((piece.clone(), slot.slice(at..at + piece.len())?))
    };
    stock.pieces(layer)?.into_iter().map(place).collect()
}

/// A pass while its work is enqueued.
struct LayerPass<'a> {
    ring: &'a StagingRing,
    stretches: &'a [LayerLaunches],
    compute: &'a Stream,
    /// Index of the range whose layer is copied next.
    next: usize,
    /// The range of each slot's layer, until the slot is free.
    busy: [Option<usize>; SLOTS],
    /// Whether the slot's *free* event was recorded in this pass.
    used: [bool; SLOTS],
}

impl LayerPass<'_> {
    fn layer(&self, stretch: usize) -> Option<&Layer> {
        self.ring.layers.get(self.stretches.get(stretch)?.layer)
    }

    /// Issues copies while slots are free.
    fn copy_ahead(&mut self, seen: &mut Option<PassTimestamps>) -> Result<()> {
        let ring = self.ring;
        while let Some(stretch) = self.stretches.get(self.next)
            && let Some(layer) = ring.layers.get(stretch.layer)
            && let Some(slot) = ring.slots.get(layer.slot)
            && let Some(busy) = self.busy.get_mut(layer.slot)
            && busy.is_none()
        {
            *busy = Some(self.next);
            if self.used.get(layer.slot).is_some_and(|used| *used) {
                ring.copies.wait(&slot.free)?;
            }
            if ring.poison.get() {
                ring.copies.fill(&slot.all, 0xff)?;
            }
            let from = seen.is_some().then(|| recorded(&ring.copies)).transpose()?;
            ring.copy(layer)?;
            if let (Some(seen), Some(from)) = (seen.as_mut(), from) {
                seen.copies.push((stretch.layer, (from, recorded(&ring.copies)?)));
            }
            ring.copies.record(&slot.there)?;
            self.next += 1;
        }
        Ok(())
    }

    /// Called before the launches of a range. Waits for its layer, and repacks the layer if needed.
    fn arrive(&mut self, stretch: usize, seen: &mut Option<PassTimestamps>) -> Result<()> {
        let ring = self.ring;
        let Some(layer) = self.layer(stretch) else { return Ok(()) };
        let (slot, held) = (layer.slot, layer.held);
        if let Some(slot) = ring.slots.get(slot) {
            self.compute.wait(&slot.there)?;
        }
        if ring.poison.get() {
            self.compute.fill(&ring.laid, 0xff)?;
        }
        for one in &layer.laid {
            let repacker = ring.repackers.get(&one.job);
            let repacker =
                repacker.ok_or_else(|| Error::Buffer("a layer's kernel is missing".to_owned()))?;
            repacker.launch(self.compute, &one.from, &one.to, one.rows)?;
        }
        if held { Ok(()) } else { self.free(slot, seen) }
    }

    /// Called after the last launch of a range.
    fn leave(&mut self, stretch: usize, seen: &mut Option<PassTimestamps>) -> Result<()> {
        match self.layer(stretch).map(|l| (l.slot, l.held)) {
            Some((slot, true)) => self.free(slot, seen),
            _ => Ok(()),
        }
    }

    /// Frees a slot after the work that is in the stream now.
    fn free(&mut self, slot: usize, seen: &mut Option<PassTimestamps>) -> Result<()> {
        if let (Some(at), Some(busy), Some(used)) =
            (self.ring.slots.get(slot), self.busy.get_mut(slot), self.used.get_mut(slot))
        {
            self.compute.record(&at.free)?;
            (*busy, *used) = (None, true);
        }
        self.copy_ahead(seen)
    }
}

/// The layout of a matrix's rows.
pub(super) fn layout_of(graph: &Graph, id: WeightId) -> std::result::Result<Layout, SessionError> {
    let w = graph.weight(id);
    let layout = Layout::new(w.format, w.cols);
    Ok(layout.map_err(|source| super::plan::PlanError::Layout { name: w.name.clone(), source })?)
}
