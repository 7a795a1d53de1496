//! Streamed layers on a device: a copy stream that fills the ring while the compute stream reads
//! it.
//!
//! Two events a slot order the streams: *there* after a layer's copies, for which the launches that
//! read it wait, and *free* after the last of those, for which the next copy into the slot waits.
//! Everything else is fixed: a matrix has one place for good, launches are those of a model that
//! stays on the device. So a step is captured with its copies as nodes, and replayed by one call.
//!
//! Launches that may start before the one before them has ended (`dependent`) fetch weights before
//! they wait: the first one that reads a layer is never such a one, and those behind it start after
//! it has.

use super::open::Streamed;
use super::ours;
use super::plan::{JobId, Launch, Plan, SLOTS, StreamedLayer, Stretch};
use super::stock::{Piece, Stock};
use crate::graph::{Graph, WeightId};
use crate::session::SessionError;
use kjit_engine::{
    Arena, Arg, DeviceBuffer, DeviceClock, Error, Event, Kernel, Result, Stream, Target,
};
use kjit_kernels::arguments::Arguments;
use kjit_kernels::layout::Layout;
use kjit_kernels::repack::{RepackArgs, RepackSpec};
use std::cell::Cell;
use std::collections::HashMap;

/// Bytes that are copied at least to find the rate.
const ENOUGH: u64 = 256 << 20;

/// Launches the kernel that lays rows out.
#[derive(Clone)]
pub(super) struct Repacker {
    pub kernel: Kernel,
    pub spec: RepackSpec,
    pub target: Target,
}

impl Repacker {
    /// Lays so many rows out, from the file's to the device's, in the order of the stream.
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
        ours::launch(stream, &self.kernel, &shape, &args.list())
    }
}

/// A slot of the ring.
struct Slot {
    all: DeviceBuffer<u8>,
    there: Event,
    free: Event,
}

/// A matrix that is laid out anew after each copy.
struct Laid {
    job: JobId,
    rows: usize,
    from: DeviceBuffer<u8>,
    to: DeviceBuffer<u8>,
}

/// A streamed layer, ready to be copied.
struct Layer {
    number: usize,
    slot: usize,
    pieces: Vec<(Piece, DeviceBuffer<u8>)>,
    laid: Vec<Laid>,
    /// Its slot is read until the layer was computed.
    held: bool,
}

/// The ring of a plan with streamed layers.
pub(super) struct Ring {
    copies: Stream,
    /// Where a pass begins.
    begun: Event,
    slots: Vec<Slot>,
    laid: DeviceBuffer<u8>,
    layers: Vec<Layer>,
    repackers: HashMap<JobId, Repacker>,
    /// What is copied from: kept as long as copies may come.
    stock: Stock,
    /// Slots are filled with what is no number before each copy: for tests.
    poison: Cell<bool>,
    pub streamed: Streamed,
}

/// Where each streamed matrix is read.
pub(super) type Places = HashMap<WeightId, DeviceBuffer<u8>>;

/// Two events between which something ran.
type Between = (Event, Event);

/// When what of a pass ran, where somebody traces.
struct Seen {
    clock: DeviceClock,
    copies: Vec<(usize, Between)>,
    steps: Vec<(usize, Between)>,
}

impl Ring {
    /// The ring of this plan, in an arena that has room for it; and where each streamed matrix is
    /// read.
    pub fn new(
        (plan, graph): (&Plan, &Graph),
        arena: &Arena,
        copies: Stream,
        stock: Stock,
        repackers: HashMap<JobId, Repacker>,
    ) -> std::result::Result<Option<(Ring, Places)>, SessionError> {
        let Some(plan) = &plan.streaming else { return Ok(None) };
        let device = copies.device().clone();
        let size = |n: u64| {
            usize::try_from(n).map_err(|_| Error::Buffer(format!("{n} bytes cannot be addressed")))
        };
        let slot = || {
            let all = arena.buffer(size(plan.slot)?)?;
            Ok(Slot { all, there: device.event()?, free: device.event()? })
        };
        let slots = (0..SLOTS).map(|_| slot()).collect::<Result<Vec<_>>>()?;
        let laid = arena.buffer::<u8>(size(plan.laid)?)?;
        let (mut layers, mut matrices) = (vec![], Places::new());
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
                        layer.laid.push(Laid {
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
            Ring { copies, begun, slots, laid, layers, repackers, stock, poison, streamed };
        ring.streamed.rate = ring.rate()?;
        Ok(Some((ring, matrices)))
    }

    /// Whether what the CPU has for single tokens can be copied for prompts.
    pub fn copies_for_prompts(&self) -> bool {
        self.stock.prompts
    }

    /// The stream that copies go through, for captures.
    pub fn copies(&self) -> &Stream {
        &self.copies
    }

    /// What is read before it was copied shows from now on: for tests.
    pub fn poison(&self, on: bool) {
        self.poison.set(on);
    }

    /// Bytes a second that layers come at, once all are locked and the slots were written: the best
    /// of two rounds over as many as it takes.
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
                if bytes >= ENOUGH {
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

    /// Puts launches into `compute`, and beside them the copies of the layers that they read.
    /// `launch` puts one; the second argument says whether it must wait for all before it. `pause`
    /// comes before the launch of an index, and says whether the host waited there: copies go on
    /// meanwhile, as far as there are slots.
    pub fn issue(
        &self,
        stretches: &[Stretch],
        compute: &Stream,
        launches: &[Launch],
        mut pause: impl FnMut(usize) -> Result<bool>,
        mut launch: impl FnMut(&Launch, bool) -> Result<()>,
    ) -> Result<()> {
        let capturing = compute.is_capturing();
        let trace = compute.device().trace().filter(|_| !capturing);
        let mut seen = match trace {
            Some(trace) => {
                Some(Seen { clock: trace.device_clock(compute)?, copies: vec![], steps: vec![] })
            }
            None => None,
        };
        let mut pass = Pass {
            ring: self,
            stretches,
            compute,
            next: 0,
            busy: [None; SLOTS],
            used: [false; SLOTS],
        };
        // Copies come after all that was in the stream: the slots may be read there.
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

    /// Puts what ran into the trace: copies and layers in rows of their own.
    fn tell(&self, seen: &Seen, compute: &Stream) -> Result<()> {
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

/// A timed event at the end of a stream.
fn recorded(stream: &Stream) -> Result<Event> {
    let event = stream.device().timed_event()?;
    stream.record(&event)?;
    Ok(event)
}

/// Where a layer's bytes come from, and where each piece goes.
fn pieces(
    stock: &Stock,
    layer: &StreamedLayer,
    slot: &DeviceBuffer<u8>,
) -> Result<Vec<(Piece, DeviceBuffer<u8>)>> {
    let place = |(at, piece): (u64, Piece)| {
        let at = usize::try_from(at)
            .map_err(|_| Error::Buffer("a slot cannot be addressed".to_owned()))?;
        Ok((piece.clone(), slot.slice(at..at + piece.len())?))
    };
    stock.pieces(layer)?.into_iter().map(place).collect()
}

/// One pass over some launches, while it is put into the streams.
struct Pass<'a> {
    ring: &'a Ring,
    stretches: &'a [Stretch],
    compute: &'a Stream,
    /// The stretch whose layer is copied next.
    next: usize,
    /// The stretch that each slot's layer is for, until the slot is free again.
    busy: [Option<usize>; SLOTS],
    /// Whether the slot's event of its end was recorded in this pass.
    used: [bool; SLOTS],
}

impl Pass<'_> {
    fn layer(&self, stretch: usize) -> Option<&Layer> {
        self.ring.layers.get(self.stretches.get(stretch)?.layer)
    }

    /// Puts copies into the stream as far as there are slots.
    fn copy_ahead(&mut self, seen: &mut Option<Seen>) -> Result<()> {
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

    /// The launches of a stretch come next: they wait for its layer, which is laid out where it
    /// must be.
    fn arrive(&mut self, stretch: usize, seen: &mut Option<Seen>) -> Result<()> {
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
            let repacker = repacker
                .ok_or_else(|| Error::Buffer("a layer's kernel is not there".to_owned()))?;
            repacker.launch(self.compute, &one.from, &one.to, one.rows)?;
        }
        if held { Ok(()) } else { self.free(slot, seen) }
    }

    /// The last launch of a stretch is in the stream.
    fn leave(&mut self, stretch: usize, seen: &mut Option<Seen>) -> Result<()> {
        match self.layer(stretch).map(|l| (l.slot, l.held)) {
            Some((slot, true)) => self.free(slot, seen),
            _ => Ok(()),
        }
    }

    /// A slot may be written again after what is in the stream now.
    fn free(&mut self, slot: usize, seen: &mut Option<Seen>) -> Result<()> {
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
