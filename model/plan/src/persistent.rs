//! The persistent kernel: all launches of a token as one. It is generated for the model
//! (`kjit_kernels::persistent`) and runs the steps of the one-token program in order. The launches
//! stay in the plan, for devices on which the persistent kernel cannot run.
//!
//! Such a launch can also compute one token of each of a few sequences. Its program has a column
//! for each sequence in the one-token products. Its separate launches are never used, because
//! batches are faster on the matrix units. So only its kernels after the last layer are compiled.
//!
//! A grid barrier separates two steps, unless the second step reads only packets of the first
//! (`gpu/packets.h`). Packets also order the reuse of memory. If a block has received a whole
//! vector of packets, the blocks that computed it have read their inputs, and so on for the earlier
//! steps. Attention waits only for its own heads. It writes only to memory that no block reads
//! until every block that waits for all results has continued. If a value is passed as packets and
//! has no other reader, it is not stored.
//!
//! In a mixture, each block gets the scores, chooses the experts, and takes their input from
//! packets of three steps before. A program does this for all of its mixtures or for none.
//!
//! With tensor split each device has such a launch for its share. If weights are streamed from
//! memory, a projection whose rows are summed over devices sends each finished row to the others
//! and receives theirs: the reduction becomes a part of it (`parts`). Other reductions are separate
//! steps.

mod links;
mod use_limits;

pub(super) use use_limits::{SIDE_BY_SIDE, default_min_sequences};

use super::{Batch, Bind, Dim, Job, Launch, LaunchParams, Program};
use kjit_engine::Target;
use kjit_kernels::SpecError;
use kjit_kernels::matvec::MatvecSpec;
use kjit_kernels::persistent::{BARRIER_AFTER, Persistent, Probe, SUM};
use kjit_kernels::segments::Finish;
use kjit_kernels::spec::Spec;
use kjit_kernels::step::StepContext;
use links::{chosen, link};

/// One launch for all steps of a token of one or more sequences, except the choice of the next
/// token.
#[derive(Debug, Clone, PartialEq)]
pub struct PersistentKernel {
    /// The number of sequences.
    pub rows: usize,
    /// With several sequences: the program that the kernel replaces, reduced to its launches for
    /// logits and choice. `None` for the plan's one-token program.
    pub own: Option<Box<Batch>>,
    /// The compile job.
    pub job: kjit_engine::Job,
    /// The kernel's entry point.
    pub entry: &'static str,
    /// Threads of a block.
    pub block: u32,
    /// Dynamic shared memory of a block, in bytes.
    pub shared: u32,
    /// 64-bit words of an instruction.
    pub words: usize,
    /// The steps in order.
    pub instructions: Vec<Instruction>,
    /// Bytes of all packets, zero before the first launch.
    pub packets: u64,
    /// The number of devices that share the model, and this device's rank.
    pub among: (usize, usize),
    /// Sums over these devices.
    pub sums: u32,
    /// Instrumentation of the kernel, for tests.
    pub probe: Probe,
    /// The reason why one block chooses experts for all blocks, between two grid barriers, and rows
    /// of experts are not prefetched. `None` if each block chooses, or if there are no experts.
    pub one_chooses: Option<String>,
}

/// A step of the kernel with its arguments.
#[derive(Debug, Clone, PartialEq)]
pub struct Instruction {
    /// Name of the launch that it replaces.
    pub name: String,
    /// Index of the kernel's step.
    pub step: u32,
    /// The step's grid.
    pub shares: [Number; 3],
    /// The arguments of the step in the kernel's order.
    pub args: Vec<Number>,
    /// Offset of the packets that replace its input in memory.
    pub takes: Option<u64>,
    /// Offset of the packets that it writes, and the weight of the norm that their reader applies.
    pub hands: Option<(u64, Bind)>,
    /// Offset of its results as values sent one by one.
    pub values: Option<u64>,
    /// Whether a grid barrier follows, because the next step reads values that packets do not
    /// carry.
    pub meets: bool,
    /// The index of its sum over devices.
    pub sum: Option<u32>,
}

/// A word of an instruction.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Number {
    /// A launch argument.
    Bind(Bind),
    /// The number of blocks.
    Blocks,
}

/// Blocks on each compute unit.
pub const BLOCKS_PER_UNIT: u32 = 1;

impl PersistentKernel {
    /// Merges a program's launches.
    ///
    /// # Errors
    /// A step that such a kernel does not support, by name.
    pub fn of(
        program: &Program,
        jobs: &[Job],
        target: &Target,
        probe: Probe,
    ) -> Result<PersistentKernel, String> {
        let parts = parts(program, jobs, target)?;
        let mut specs: Vec<Spec> = vec![];
        let mut which = vec![];
        for part in &parts {
            let at = specs.iter().position(|s| *s == part.spec).unwrap_or(specs.len());
            if at == specs.len() {
                specs.push(part.spec.clone());
            }
            which.push(at);
        }
        let (rows, among) =
            (program.tokens as usize, parts.iter().find_map(|p| p.among).unwrap_or((1, 0)));
        let inside = StepContext::of(target, rows, among.0);
        let made =
            |routed| Persistent::new(&specs, target, probe, StepContext { routed, ..inside });
        let kept: Vec<Bind> = program.kept.iter().map(|kept| Bind::Buffer(kept.buffer)).collect();
        // Tries the choice of experts in each block. It must be possible for all mixtures of the
        // program.
        let routed = || -> Result<Result<PersistentKernel, String>, String> {
            let made = match made(true) {
                Ok(made) => made,
                Err(e) => return Ok(Err(e.to_string())),
            };
            let mut all = instructions(&parts, &made, &specs, &which);
            let packets = chosen(&all, &made.steps, &specs, &kept)
                .and_then(|chosen| link(&mut all, &made.steps, &specs, &kept, &chosen));
            match packets {
                Some(packets) => PersistentKernel::with(made, all, packets, target, probe).map(Ok),
                None => Ok(Err(
                    "the mixture's steps are not in the order that each block needs".to_owned()
                )),
            }
        };
        let mut one_chooses = None;
        if rows == 1 && specs.iter().any(|s| matches!(s, Spec::Route(_))) {
            match routed()? {
                Ok(one) => return Ok(PersistentKernel { among, ..one }),
                Err(why) => one_chooses = Some(why),
            }
        }
        let made = made(false).map_err(|e: SpecError| e.to_string())?;
        let mut instructions = instructions(&parts, &made, &specs, &which);
        let packets = link(&mut instructions, &made.steps, &specs, &kept, &[]).unwrap_or(0);
        PersistentKernel::with(made, instructions, packets, target, probe)
            .map(|one| PersistentKernel { rows, among, one_chooses, ..one })
    }

    fn with(
        made: Persistent,
        instructions: Vec<Instruction>,
        packets: u64,
        target: &Target,
        probe: Probe,
    ) -> Result<PersistentKernel, String> {
        let job = made.kernel.job(target);
        job.check().map_err(|e| e.to_string())?;
        let (entry, shared) = (made.kernel.entry, made.kernel.shared);
        let (block, words) = (made.block, made.words);
        let (rows, own, among, one_chooses) = (1, None, (1, 0), None);
        let sums = instructions.iter().filter(|i| i.sum.is_some()).count() as u32;
        Ok(PersistentKernel {
            rows,
            own,
            job,
            entry,
            block,
            shared,
            words,
            instructions,
            packets,
            among,
            sums,
            probe,
            one_chooses,
        })
    }

    /// Encodes the instructions for `blocks` blocks, with packets at address `packets`. `address`
    /// returns the memory address of an argument, or `None` if it is a number.
    ///
    /// # Errors
    /// Errors of `address`.
    pub fn words<E>(
        &self,
        now: &LaunchParams,
        blocks: u32,
        packets: u64,
        mut address: impl FnMut(&str, &Bind) -> Result<Option<u64>, E>,
    ) -> Result<Vec<u64>, E> {
        let mut all = Vec::with_capacity(self.words * self.instructions.len());
        for i in &self.instructions {
            let begin = all.len();
            let sum = i.sum.map_or(0, |n| (u64::from(n) + 1) * SUM);
            all.push(u64::from(i.step) | if i.meets { BARRIER_AFTER } else { 0 } | sum);
            let place = |at: Option<u64>| Number::Bind(Bind::U64(at.map_or(0, |at| packets + at)));
            let weigh = Number::Bind(i.hands.map_or(Bind::Null, |h| h.1));
            let links = [place(i.takes), place(i.hands.map(|h| h.0)), weigh, place(i.values)];
            for number in i.shares.iter().chain(&links).chain(&i.args) {
                all.push(match number {
                    Number::Blocks => u64::from(blocks),
                    Number::Bind(bind) => match (bind, address(&i.name, bind)?) {
                        (_, Some(address)) => address,
                        (Bind::Dim(dim), None) => u64::from(dim.at(now)),
                        (Bind::U32(n), None) => u64::from(*n),
                        (Bind::U64(n), None) => *n,
                        (Bind::F32(x), None) => u64::from(x.to_bits()),
                        (Bind::Elements(each), None) => each.saturating_mul(u64::from(now.tokens)),
                        (_, None) => 0,
                    },
                });
            }
            all.resize(begin + self.words, 0);
        }
        Ok(all)
    }

    /// The grid: all blocks that are resident.
    #[must_use]
    pub const fn grid() -> Dim {
        Dim::Fill { per_unit: BLOCKS_PER_UNIT, most: u32::MAX }
    }
}

/// The source of an instruction: a launch, or a product that is merged with the reduction of its
/// rows over devices.
struct Part<'p> {
    launch: &'p Launch,
    spec: Spec,
    args: Vec<Bind>,
    /// The number of devices that reduce, and this device's rank.
    among: Option<(usize, usize)>,
}

/// A program's launches. If weights are streamed from memory, products are merged with reductions.
fn parts<'p>(program: &'p Program, jobs: &[Job], target: &Target) -> Result<Vec<Part<'p>>, String> {
    let streams = StepContext::of(target, 1, 1).streams;
    let mut all: Vec<Part<'p>> = vec![];
    for launch in &program.launches {
        let job = jobs.get(launch.job.0 as usize).ok_or("a launch without a job")?;
        let (spec, args) = (job.spec.with(None), launch.args.clone());
        let among = match &spec {
            Spec::Reduce(sum) => {
                let rank = named(&spec, &args, "rank")
                    .and_then(|b| if let Bind::U32(n) = b { Some(n) } else { None });
                Some((sum.ranks, rank.ok_or("a sum without a rank")? as usize))
            }
            _ => None,
        };
        let part = Part { launch, spec, args, among };
        let summed =
            all.last().filter(|_| streams).and_then(|product| summed(program, product, &part));
        match (summed, all.last_mut()) {
            (Some(summed), Some(product)) => *product = summed,
            _ => all.push(part),
        }
    }
    Ok(all)
}

/// A product that is merged with the reduction after it, if no other step reads this device's part.
fn summed<'p>(program: &'p Program, product: &Part<'p>, sum: &Part<'p>) -> Option<Part<'p>> {
    let (Spec::Matvec(matvec), Spec::Reduce(reduce)) = (&product.spec, &sum.spec) else {
        return None;
    };
    let made = named(&product.spec, &product.args, "y0")?;
    let rows = matches!(*matvec.segments, [ref one] if one.rows == reduce.cols);
    let others = program
        .launches
        .iter()
        .filter(|l| !std::ptr::eq(*l, product.launch) && !std::ptr::eq(*l, sum.launch));
    let alone = named(&sum.spec, &sum.args, "x") == Some(made)
        && matches!(made, Bind::Buffer(id) if !program.kept.iter().any(|kept| kept.buffer == id))
        && others.flat_map(|l| &l.args).all(|arg| *arg != made);
    if !rows
        || !alone
        || reduce.join
        || reduce.gathered
        || reduce.stretches
        || product.among.is_some()
        || matvec.finish != Finish::Store
    {
        return None;
    }
    let (y, residual) =
        (named(&sum.spec, &sum.args, "y")?, named(&sum.spec, &sum.args, "residual")?);
    // A launch may write to memory that the previous launch read. A merged step must not do this,
    // because its other blocks may still read that memory.
    let place = |bind: Bind| match bind {
        Bind::Buffer(id) => {
            program.buffers.get(id.0 as usize).map(|b| b.offset..b.offset + b.bytes)
        }
        _ => None,
    };
    let reads = ["x", "aux"]
        .into_iter()
        .filter_map(|name| named(&product.spec, &product.args, name))
        .filter_map(place);
    let written = place(y)?;
    if reads.into_iter().any(|read| read.start < written.end && written.start < read.end) {
        return None;
    }
    let finish = if reduce.residual { Finish::Add } else { Finish::Store };
    let spec = Spec::Matvec(MatvecSpec { finish, ..matvec.clone() });
    let names = product.spec.arguments().iter().map(|d| d.name);
    let args = product.args.iter().zip(names).map(|(&bind, name)| match name {
        "y0" => y,
        "residual" => residual,
        _ => bind,
    });
    Some(Part { launch: product.launch, spec, args: args.collect(), among: sum.among })
}

/// The argument with this name.
fn named(spec: &Spec, args: &[Bind], name: &str) -> Option<Bind> {
    args.get(spec.arguments().iter().position(|d| d.name == name)?).copied()
}

/// The parts as instructions without packets.
fn instructions(
    parts: &[Part<'_>],
    made: &Persistent,
    specs: &[Spec],
    which: &[usize],
) -> Vec<Instruction> {
    let (mut all, mut sums) = (vec![], 0..);
    for (Part { launch, args, among, .. }, &at) in parts.iter().zip(which) {
        let (Some(step), Some(spec)) = (made.steps.get(at), specs.get(at)) else { continue };
        let shares = match (step.of_all_blocks, step.shares) {
            (true, _) => [Number::Blocks, Number::Bind(Bind::U32(1)), Number::Bind(Bind::U32(1))],
            // All blocks of a row.
            (false, Some(shares)) => {
                let [_, y, z] = launch.grid;
                [Dim::Is(shares), y, z].map(|d| Number::Bind(Bind::Dim(d)))
            }
            (false, None) => {
                let [x, y, z] = launch.grid;
                let y = if let Dim::Is(n) = y { Dim::Is(n * step.parts) } else { y };
                [spread(x, step.parts), y, z].map(|d| Number::Bind(Bind::Dim(d)))
            }
        };
        let names = spec.arguments().iter().map(|d| d.name);
        let args = args.iter().zip(names).map(|(&bind, name)| match name {
            "blocks" if step.of_all_blocks => Number::Blocks,
            _ => Number::Bind(if let Bind::Dim(dim) = bind {
                Bind::Dim(spread(dim, step.parts))
            } else {
                bind
            }),
        });
        let (name, args, step) = (launch.name.clone(), args.collect(), at as u32);
        let sum = among.and_then(|_| sums.next());
        all.push(Instruction {
            name,
            step,
            shares,
            args,
            takes: None,
            hands: None,
            values: None,
            meets: true,
            sum,
        });
    }
    all
}

/// A size that is spread over `parts` times as many blocks. The total must not grow, because the
/// memory is fixed.
fn spread(dim: Dim, parts: u32) -> Dim {
    match dim {
        Dim::Spread { per_unit, over, most } => {
            Dim::Spread { per_unit, over: over * parts, most: (most / parts.max(1)).max(1) }
        }
        other => other,
    }
}
