//! Programs: buffers and launches.

use crate::bind::{Bind, BufferId, Control};
use crate::choice::Choice;
use crate::dim::{Dim, GemmUse, LaunchParams};
use kjit_engine::Target;
use kjit_graph::ValueId;
use kjit_kernels::SpecError;
use kjit_kernels::spec::Spec;
use kjit_kernels::tiles::TileLayout;

/// A compile job and one of its kernels.
#[derive(Debug, Clone, PartialEq)]
#[doc(hidden)]
pub struct Job {
    /// The compile job.
    pub job: kjit_engine::Job,
    /// The kernel.
    pub entry: &'static str,
    /// The spec that it specialises.
    pub spec: Spec,
}

/// Index of a [`Job`] in [`Plan::jobs`](crate::Plan::jobs).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[doc(hidden)]
pub struct JobId(pub u32);

/// Memory that launches share. Buffers that are never live at the same time may overlap.
#[derive(Debug, Clone, PartialEq, Eq)]
#[doc(hidden)]
pub struct Buffer {
    /// The value in the buffer, or its purpose.
    pub name: String,
    /// Bytes for the maximum number of tokens of the program.
    pub bytes: u64,
    /// Bytes from the start of the arena, a multiple of 256.
    pub offset: u64,
    /// Whether the buffer contains counters. They are zero before the first run and after each
    /// launch that uses them. No other buffer overlaps them.
    pub zeroed: bool,
}

/// One launch.
#[derive(Debug, Clone, PartialEq)]
#[doc(hidden)]
pub struct Launch {
    /// The value of its result, or its purpose.
    pub name: String,
    /// Index of its step.
    pub step: usize,
    /// The kernel.
    pub job: JobId,
    /// Arguments of the kernel, in order.
    pub args: Vec<Bind>,
    /// Blocks.
    pub grid: [Dim; 3],
    /// Threads of a block.
    pub block: u32,
    /// Dynamic shared memory of a block, in bytes.
    pub shared: u32,
    /// Whether it may start before the previous launch has ended. The kernel waits for its inputs.
    pub dependent: bool,
    /// Whether its blocks wait for each other. All must be resident. A device that cannot guarantee
    /// this runs one block for each sequence.
    pub cooperative: bool,
}

/// Launches for up to a number of tokens.
#[derive(Debug, Clone, PartialEq)]
#[doc(hidden)]
pub struct Program {
    /// Maximum number of tokens.
    pub tokens: u32,
    /// Memory passed from launch to launch.
    pub buffers: Vec<Buffer>,
    /// Offset of its buffers in the plan's arena. Programs do not overlap, because counters must
    /// stay zero.
    pub base: u64,
    /// Bytes of all buffers.
    pub arena: u64,
    /// The launches in order.
    pub launches: Vec<Launch>,
    /// The buffers of kept values and of the result.
    pub kept: Vec<KeptValue>,
    /// Products whose launches depend on the number of tokens.
    pub products: Vec<GemmUse>,
    /// The input of the steps that compute logits: one f32 row for each token.
    pub head: BufferId,
    /// The first launch of these steps.
    pub head_from: usize,
    /// Input buffer of f32 hidden states. `None` if the program starts from token ids.
    pub given: Option<BufferId>,
    /// The embeddings of the tokens, an f32 row for each. Before the first launch the host may
    /// write rows there whose ids are 2³¹ or more.
    pub embedded: Option<BufferId>,
    /// Pauses at which the CPU computes, in order.
    pub pauses: Vec<Pause>,
}

/// A pause of launches for work of the CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[doc(hidden)]
pub struct Pause {
    /// Index of the launch that it precedes.
    pub at: usize,
    /// Index among the graph's host operations.
    pub op: usize,
    /// The work.
    pub what: HostWork,
}

/// The work at a pause, on rows of 32-bit words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[doc(hidden)]
pub enum HostWork {
    /// The CPU computes everything from these rows. A later launch fetches its result
    /// ([`Bind::HostParts`]).
    All {
        /// The input.
        from: BufferId,
    },
    /// The host divides the chosen experts. It computes some of them, and sends the device the
    /// cache slots of the others.
    Divide {
        /// The input, the chosen experts, their shares.
        from: [BufferId; 3],
        /// The cache slots of the device's experts, and their shares.
        to: [BufferId; 2],
    },
    /// The CPU computes its experts.
    Rest {
        /// The result.
        to: BufferId,
    },
}

impl HostWork {
    /// The buffers that it reads.
    pub fn reads(&self) -> &[BufferId] {
        match self {
            HostWork::All { from } => std::slice::from_ref(from),
            HostWork::Divide { from, .. } => from,
            HostWork::Rest { .. } => &[],
        }
    }

    /// The buffers that it writes.
    pub fn makes(&self) -> &[BufferId] {
        match self {
            HostWork::All { .. } => &[],
            HostWork::Rest { to } => std::slice::from_ref(to),
            HostWork::Divide { to, .. } => to,
        }
    }
}

/// A value that exists after a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[doc(hidden)]
pub struct KeptValue {
    /// The value.
    pub value: ValueId,
    /// The buffer of the value.
    pub buffer: BufferId,
    /// The layout of f16 values for products; `None`: rows of 32-bit elements.
    pub tiled: Option<TileLayout>,
}

impl Program {
    /// Whether launches read the position of each token ([`Control::Each`]).
    pub fn wants_each(&self) -> bool {
        self.launches.iter().any(|l| l.args.contains(&Bind::Control(Control::Each)))
    }

    /// The multiple of rows at which the tokens of a sequence may begin, if rows may be tokens of
    /// several sequences. `None` if a launch works on rows of several tokens together (experts are
    /// grouped, the CPU computes a part), or if it stores data for them without a separate position
    /// for each row.
    pub fn packs(&self) -> Option<u32> {
        let whole = self.pauses.is_empty() && self.given.is_none() && !self.wants_each();
        // A buffer of tiles has whole blocks of 256 rows. Each row has its share of the bytes.
        if !whole
            || !self.tokens.is_multiple_of(256)
            || self.products.iter().any(|p| p.group.is_some())
        {
            return None;
        }
        let mut rows = 64;
        for launch in &self.launches {
            if launch.args.iter().any(|bind| matches!(bind, Bind::Meeting(_) | Bind::HostParts)) {
                return None;
            }
            if !launch.is_of_a_sequence() {
                continue;
            }
            for dim in launch.grid {
                match dim {
                    Dim::Is(_) => {}
                    Dim::Tokens { per, .. } => rows = lcm(rows, per.max(1)),
                    Dim::Fill { .. } | Dim::Gemm { .. } | Dim::Spread { .. } => return None,
                }
            }
            let buffers = launch.args.iter().filter_map(|bind| match bind {
                Bind::Buffer(id) => self.buffers.get(id.0 as usize),
                _ => None,
            });
            let tokens = u64::from(self.tokens);
            if launch.cooperative
                || buffers.into_iter().any(|b| b.zeroed || !b.bytes.is_multiple_of(tokens))
            {
                return None;
            }
        }
        (rows <= self.tokens).then_some(rows)
    }

    /// The values for the evaluation of launches on a device of `units` compute units.
    ///
    /// # Errors
    /// See [`GemmUse::launch`].
    pub fn now(
        &self,
        target: &Target,
        units: u32,
        tokens: u32,
        choice: Choice,
    ) -> Result<LaunchParams, SpecError> {
        let products = self
            .products
            .iter()
            .map(|p| p.launch(target, tokens, units))
            .collect::<Result<_, _>>()?;
        Ok(LaunchParams { units, tokens, choice, products })
    }
}

fn lcm(a: u32, b: u32) -> u32 {
    let (mut x, mut y) = (a, b);
    while y > 0 {
        (x, y) = (y, x % y);
    }
    a / x.max(1) * b
}

impl Launch {
    /// Whether it reads or writes data of one sequence: its token ids, its position, its keys and
    /// values.
    pub fn is_of_a_sequence(&self) -> bool {
        self.args.iter().any(|bind| {
            matches!(
                bind,
                Bind::Keys(_)
                    | Bind::Values(_)
                    | Bind::Control(Control::Tokens | Control::Position | Control::Pages)
            )
        })
    }
}

/// One token of each of several sequences, one row each. The sequences may have any lengths.
#[derive(Debug, Clone, PartialEq)]
#[doc(hidden)]
pub struct Batch {
    /// Logits of a token of each sequence, for up to [`Program::tokens`] sequences.
    pub program: Program,
    /// Applies biases, masks and penalties to the logits; `None` without logits.
    pub adjust: Option<Launch>,
    /// Chooses each sequence's most likely token, in the program's buffers. `None` if another stage
    /// follows.
    pub greedy: Option<Launch>,
    /// Draws tokens, each with the options of its slot.
    pub draw: Option<Launch>,
}
