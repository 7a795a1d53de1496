//! A plan on a device: kernels loaded, weights there, memory laid out, ready to launch.

use super::plan::{Bind, BufferId, Choice, Control, Launch, Now, Number, Plan, Program};
use crate::exec::ExecError;
use crate::graph::{ValueId, WeightId};
use kjit_engine::{Arg, DeviceBuffer, Error, Geometry, Kernel, PinnedBuffer, Result, Stream};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// An id that no vocabulary has: the word of a token that is not there yet.
pub(super) const NONE: u32 = u32::MAX;

/// Everything that launches bind.
pub(super) struct Resident {
    pub plan: Plan,
    /// All launches go through it.
    pub stream: Stream,
    /// By [`super::plan::JobId`]; none where one is still being compiled.
    pub kernels: Vec<Option<Kernel>>,
    pub matrices: HashMap<WeightId, DeviceBuffer<u8>>,
    pub vectors: HashMap<WeightId, DeviceBuffer<f32>>,
    /// By [`crate::graph::RopeId`].
    pub ropes: Vec<DeviceBuffer<f32>>,
    /// By [`crate::graph::CacheId`]: keys, values; one slot's behind the other's.
    pub caches: Vec<(DeviceBuffer<u8>, DeviceBuffer<u8>)>,
    /// What launches pass on to each other; the programs use it in turn.
    pub arena: DeviceBuffer<u8>,
    pub control: Words,
}

/// Whose words and caches launches are given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose {
    /// One sequence's: those of this slot.
    Slot(usize),
    /// All sequences'.
    All,
}

/// The words that drive sequences: each slot's behind the other's.
pub(super) struct Words {
    /// Ids of all tokens by position, one more than fit the context: the host and the device both write and read them in place.
    pub tokens: PinnedBuffer<u32>,
    /// Position of the first token at hand.
    pub position: DeviceBuffer<u32>,
    /// 0, 1, 2 … on the host, to copy a position from.
    pub numbers: PinnedBuffer<u32>,
    /// Random number of the draw at each position.
    pub fractions: DeviceBuffer<f32>,
    /// Top-k, temperature, top-p, min-p, as bits.
    pub options: DeviceBuffer<[u32; 4]>,
    /// The slots of the sequences that are decoded.
    pub slots: DeviceBuffer<u32>,
}

impl Resident {
    /// Compute units of the device.
    pub fn units(&self) -> u32 {
        self.stream.device().info().units
    }

    /// Puts launches into the stream.
    pub fn issue(&self, program: &Program, launches: &[Launch], now: &Now, whose: Whose) -> Result<()> {
        launches.iter().try_for_each(|l| self.launch(program, l, now, whose))
    }

    /// Launches the choice of the next token of the first slot's sequence, from the logits of the one just fed.
    pub fn choose(&self, now: &Now) -> Result<()> {
        let launch = match now.choice {
            Choice::Greedy => &self.plan.greedy,
            Choice::Draw { .. } => &self.plan.draw,
        };
        self.launch(&self.plan.decode, launch, now, Whose::Slot(0))
    }

    pub fn launch(&self, program: &Program, launch: &Launch, now: &Now, whose: Whose) -> Result<()> {
        let kernel = self.kernels.get(launch.job.0 as usize).and_then(Option::as_ref);
        let kernel = kernel.ok_or_else(|| lost("kernel", &launch.name))?;
        // Views live as long as the arguments that point into them.
        let views =
            launch.args.iter().map(|bind| self.view(program, launch, bind, whose)).collect::<Result<Vec<_>>>()?;
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
                (Bind::Elements(each), None) => Arg::from(each.saturating_mul(u64::from(now.tokens))),
                (Bind::Chosen(what), None) => match what.of(now.choice) {
                    Number::U32(n) => Arg::from(n),
                    Number::F32(x) => Arg::from(x),
                },
                (_, None) => Arg::Null,
            })
            .collect();
        let shape = Geometry::of(launch.grid.map(|d| d.at(now)), [launch.block, 1, 1])
            .shared(launch.shared)
            .dependent(launch.dependent);
        self.stream.launch(kernel, &shape, &args)
    }

    /// The memory an argument is, if it is any.
    fn view(&self, program: &Program, launch: &Launch, bind: &Bind, whose: Whose) -> Result<Option<DeviceBuffer<u8>>> {
        let lost = |what| lost(what, &launch.name);
        // What every slot has as much of.
        let part = |all: DeviceBuffer<u8>| match whose {
            Whose::All => Ok(all),
            Whose::Slot(slot) => {
                let each = all.len() / self.plan.slots.max(1);
                all.slice(slot * each..(slot + 1) * each)
            }
        };
        Ok(Some(match *bind {
            Bind::Buffer(id) => self.buffer(program, id)?,
            Bind::Matrix(w) => self.matrices.get(&w).ok_or_else(|| lost("matrix"))?.clone(),
            Bind::Vector(w) => self.vectors.get(&w).ok_or_else(|| lost("vector"))?.cast()?,
            Bind::Rope(r) => self.ropes.get(r.0 as usize).ok_or_else(|| lost("rotation"))?.cast()?,
            Bind::Keys(c) => part(self.caches.get(c.0 as usize).ok_or_else(|| lost("cache"))?.0.clone())?,
            Bind::Values(c) => part(self.caches.get(c.0 as usize).ok_or_else(|| lost("cache"))?.1.clone())?,
            Bind::Control(Control::Tokens) => part(self.control.tokens.on_device().cast()?)?,
            Bind::Control(Control::Fractions) => part(self.control.fractions.cast()?)?,
            Bind::Control(Control::Position) => part(self.control.position.cast()?)?,
            Bind::Control(Control::Options) => part(self.control.options.cast()?)?,
            Bind::Control(Control::Slots) => self.control.slots.cast()?,
            Bind::Null
            | Bind::Dim(_)
            | Bind::U32(_)
            | Bind::U64(_)
            | Bind::F32(_)
            | Bind::Elements(_)
            | Bind::Chosen(_) => return Ok(None),
        }))
    }

    /// A word of [`Words::tokens`], as soon as the device has put an id there.
    pub fn wait_for(&self, index: usize) -> std::result::Result<u32, ExecError> {
        let start = Instant::now();
        let mut spins = 0u32;
        loop {
            let id = self.control.tokens.peek(index)?;
            if id != NONE {
                return Ok(id);
            }
            spins += 1;
            match spins {
                // Some tens of µs: as long as the fastest token takes.
                0..2000 => std::hint::spin_loop(),
                _ => {
                    std::thread::yield_now();
                    // A device that stopped will never write; what it says is the error.
                    if spins.is_multiple_of(1024) && self.stream.is_idle()? && self.control.tokens.peek(index)? == NONE
                    {
                        return Err(ExecError::Device(format!("no token came at {index}")));
                    }
                    if start.elapsed() > Duration::from_millis(5) {
                        std::thread::sleep(Duration::from_micros(50));
                    }
                }
            }
        }
    }

    /// Where a value is that was kept.
    pub fn kept(&self, program: &Program, value: ValueId) -> Result<DeviceBuffer<u8>> {
        let found = program.kept.iter().find(|k| k.value == value);
        let kept = found.ok_or_else(|| Error::Buffer(format!("value {} was not kept by the plan", value.0)))?;
        self.buffer(program, kept.buffer)
    }

    /// Where a program's buffer is.
    pub fn buffer(&self, program: &Program, id: BufferId) -> Result<DeviceBuffer<u8>> {
        let b = program.buffers.get(id.0 as usize).ok_or_else(|| lost("buffer", "a program"))?;
        let size = |n: u64| usize::try_from(n).map_err(|_| lost("address", &b.name));
        let at = program.base + b.offset;
        self.arena.slice(size(at)?..size(at + b.bytes)?)
    }
}

/// A plan that binds what it does not have: a fault of ours, and an error all the same.
fn lost(what: &str, launch: &str) -> Error {
    Error::Buffer(format!("launch '{launch}' binds a {what} that the plan does not have"))
}
