//! A plan on a device: kernels loaded, weights there, memory laid out, ready to launch.

use super::plan::{Bind, BufferId, Choice, Control, Launch, Now, Number, Plan, Program};
use crate::graph::{ValueId, WeightId};
use kjit_engine::{Arg, DeviceBuffer, Error, Geometry, Kernel, PinnedBuffer, Result, Stream};
use std::collections::HashMap;

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
    /// By [`crate::graph::CacheId`]: keys, values.
    pub caches: Vec<(DeviceBuffer<u8>, DeviceBuffer<u8>)>,
    /// What launches pass on to each other; the programs use it in turn.
    pub arena: DeviceBuffer<u8>,
    pub control: Words,
}

/// The words that drive a sequence.
pub(super) struct Words {
    /// Ids of all tokens by position, one more than fit the context: the host and the device both write and read them in place.
    pub tokens: PinnedBuffer<u32>,
    /// Position of the first token at hand.
    pub position: DeviceBuffer<u32>,
    /// 0, 1, 2 … on the host, to copy a position from.
    pub numbers: PinnedBuffer<u32>,
    /// Random number of the draw at each position.
    pub fractions: DeviceBuffer<f32>,
}

impl Resident {
    /// Compute units of the device.
    pub fn units(&self) -> u32 {
        self.stream.device().info().units
    }

    /// Puts launches into the stream.
    pub fn issue(&self, program: &Program, launches: &[Launch], now: &Now) -> Result<()> {
        launches.iter().try_for_each(|l| self.launch(program, l, now))
    }

    /// Launches the choice of the next token from the logits of the one just fed.
    pub fn choose(&self, now: &Now) -> Result<()> {
        let launch = match now.choice {
            Choice::Greedy => &self.plan.greedy,
            Choice::Draw { .. } => &self.plan.draw,
        };
        self.launch(&self.plan.decode, launch, now)
    }

    fn launch(&self, program: &Program, launch: &Launch, now: &Now) -> Result<()> {
        let kernel = self.kernels.get(launch.job.0 as usize).and_then(Option::as_ref);
        let kernel = kernel.ok_or_else(|| lost("kernel", &launch.name))?;
        // Views live as long as the arguments that point into them.
        let views = launch.args.iter().map(|bind| self.view(program, launch, bind)).collect::<Result<Vec<_>>>()?;
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
    fn view(&self, program: &Program, launch: &Launch, bind: &Bind) -> Result<Option<DeviceBuffer<u8>>> {
        let lost = |what| lost(what, &launch.name);
        Ok(Some(match *bind {
            Bind::Buffer(id) => self.buffer(program, id)?,
            Bind::Matrix(w) => self.matrices.get(&w).ok_or_else(|| lost("matrix"))?.clone(),
            Bind::Vector(w) => self.vectors.get(&w).ok_or_else(|| lost("vector"))?.cast()?,
            Bind::Rope(r) => self.ropes.get(r.0 as usize).ok_or_else(|| lost("rotation"))?.cast()?,
            Bind::Keys(c) => self.caches.get(c.0 as usize).ok_or_else(|| lost("cache"))?.0.clone(),
            Bind::Values(c) => self.caches.get(c.0 as usize).ok_or_else(|| lost("cache"))?.1.clone(),
            Bind::Control(Control::Tokens) => self.control.tokens.on_device().cast()?,
            Bind::Control(Control::Fractions) => self.control.fractions.cast()?,
            Bind::Control(Control::Position) => self.control.position.cast()?,
            Bind::Null
            | Bind::Dim(_)
            | Bind::U32(_)
            | Bind::U64(_)
            | Bind::F32(_)
            | Bind::Elements(_)
            | Bind::Chosen(_) => return Ok(None),
        }))
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
