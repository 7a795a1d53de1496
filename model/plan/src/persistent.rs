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

use super::arena::ALIGN;
use super::{Batch, Bind, Dim, Job, Launch, LaunchParams, Program};
use kjit_engine::{MatrixUnit, Target};
use kjit_graph::{Graph, Op, State, StateKind};
use kjit_kernels::SpecError;
use kjit_kernels::matvec::MatvecSpec;
use kjit_kernels::persistent::{BARRIER_AFTER, Persistent, Probe, SUM};
use kjit_kernels::segments::Finish;
use kjit_kernels::spec::Spec;
use kjit_kernels::step::{Step, StepContext, packets};

/// Minimum bytes of a layer's weights for which one launch is the default.
const MIN_LAYER_BYTES: usize = 50 << 20;
/// Formats with faster products. At least half of a layer's bytes must have one of these formats.
const FASTER_FORMATS: [&str; 6] = ["Q4_0", "Q4_1", "Q4_K", "Q5_K", "Q6_K", "Q8_0"];
/// Maximum head size for which one launch is the default.
const HEAD: usize = 128;

/// Minimum number of sequences for which a token is one launch by default. `None`: never.
///
/// Measured tokens/s with one launch and with separate launches (docs/performance.md), H100: 8b
/// Q4_0 574 and 509, Q4_K_M 544 and 483, Q5_K_M 469 and 420, Q6_K 420 and 384, Q8_0 353 and 328,
/// 70b Q4_K_M 65.1 and 59.1, 3b Q4_K_M (60 MB per layer) 969 and 871. Not faster: F16 189 and 191,
/// 1b (34 MB) 2161 and 2261, 135m; 30b-a3b 614 and 588, but after 4k positions 465 and 496.
/// gemma3-12b (heads of 256) was not faster on an H200 with the previous kernel. Other GPUs were
/// not measured.
///
/// Tensor split on two H200: 8b Q8_0 (116 MB per layer) 733 and 664, 70b Q4_K_M (257 MB) 146 and
/// 143; 8b Q4_K_M (66 MB) 840 and 880, with two sequences 1500 and 1125. On two H100: 608 and 535,
/// 119 and 109; 795 and 748, 1433 and 1075. More devices were not measured.
pub(super) fn default_min_sequences(graph: &Graph, target: &Target) -> Option<usize> {
    let heads = |state: &State| matches!(&state.kind, StateKind::Kv(kv) if kv.key <= HEAD && kv.value <= HEAD);
    if target.arch().matrix != MatrixUnit::Wgmma
        || graph.states.is_empty()
        // Models with adapters were not measured.
        || !graph.adapters.is_empty()
        || !graph.states.iter().all(heads)
    {
        return None;
    }
    let (mut bytes, mut gaining) = (0, 0);
    // Only weights that operations read. A shard's graph also lists the weights of the whole model.
    let mut read: Vec<_> = graph.ops.iter().flat_map(|op| op.weights()).collect();
    read.sort_unstable();
    read.dedup();
    for weight in read
        .into_iter()
        .map(|id| graph.weight(id))
        .filter(|w| w.tensor.starts_with("blk.") && w.rows > 1)
    {
        if weight.experts > 1 {
            return None;
        }
        bytes += weight.bytes();
        gaining += if FASTER_FORMATS.contains(&weight.format.name) { weight.bytes() } else { 0 };
    }
    let each = bytes / graph.states.len();
    let ranks = graph
        .ops
        .iter()
        .find_map(|op| if let Op::Reduce(sum) = op { Some(sum.ranks) } else { None });
    let from = match ranks {
        None => 1,
        Some(2) if each >= 2 * MIN_LAYER_BYTES => 1,
        Some(2) => 2,
        Some(_) => return None,
    };
    (each >= MIN_LAYER_BYTES && 2 * gaining >= bytes).then_some(from)
}

/// Maximum number of sequences with a token in one launch. H100, 8b Q4_K_M, tokens/s with one
/// launch and with separate launches: one sequence 545 and 484, two 930 and 764, three 1165 and
/// 1144 (the gain is too small for another kernel), four 1228 and 1511. In one launch, the products
/// of each column use vector units; separate launches use matrix units.
pub(super) const SIDE_BY_SIDE: usize = 2;

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

/// The five instructions of a mixture, as the index of the first: the producer of its input, the
/// scores, the choice, the experts' first and second matrices.
#[derive(Clone, Copy)]
struct Mixture(usize);

/// The mixtures of a program. `None` if a choice or a product of experts cannot get all its inputs
/// as packets.
fn chosen(
    instructions: &[Instruction],
    steps: &[Step],
    specs: &[Spec],
    kept: &[Bind],
) -> Option<Vec<Mixture>> {
    let spec = |n: usize| instructions.get(n).and_then(|i| specs.get(i.step as usize));
    let step = |n: usize| instructions.get(n).and_then(|i| steps.get(i.step as usize));
    let arg = |n: usize, name: &str| instructions.get(n).and_then(|i| argument(specs, i, name));
    // Whether only `readers` read result `made` of an instruction.
    let only = |from: usize, made: &str, readers: &[(usize, &str)]| {
        let bind = arg(from, made).filter(|b| matches!(b, Bind::Buffer(_)) && !kept.contains(b));
        let Some(bind) = bind else { return false };
        let reads = |n: usize| readers.iter().any(|r| r.0 == n);
        let mut others = instructions.iter().enumerate().filter(|(n, _)| *n != from && !reads(*n));
        readers.iter().all(|&(n, read)| arg(n, read) == Some(bind))
            && others.all(|(_, i)| !i.args.contains(&Number::Bind(bind)))
    };
    let fits = |first: usize| -> Option<bool> {
        let [scores, choice, up, down] = [1, 2, 3, 4].map(|n| first + n);
        let (made, cols) = step(first)?.hands?;
        let inner = step(up)?.hands?.1;
        let alike = arg(scores, "x") == arg(first, made)
            && arg(up, "x") == arg(first, made)
            && arg(up, "aux") == arg(scores, "aux")
            && step(first)?.hands_values == Some(cols)
            && step(scores)?.takes_values == Some(cols)
            && step(scores)?.hands_values == step(choice)?.takes_values
            && step(up)?.takes == Some(cols)
            && step(down)?.takes == Some(inner);
        let buffer = matches!(arg(first, made), Some(Bind::Buffer(_)));
        Some(
            alike
                && buffer
                && matches!((spec(first)?, spec(scores)?), (Spec::Matvec(_), Spec::Matvec(_)))
                && matches!((spec(up)?, spec(down)?), (Spec::Experts(_), Spec::Experts(_)))
                && only(scores, "y0", &[(choice, "scores")])
                && only(choice, "experts", &[(up, "chosen"), (down, "chosen")])
                && only(choice, "shares", &[(down, "shares")])
                && only(up, "y", &[(down, "x")]),
        )
    };
    let mut found = vec![];
    for (n, i) in instructions.iter().enumerate() {
        match specs.get(i.step as usize)? {
            Spec::Route(_) => {
                let first = n.checked_sub(2).filter(|&first| fits(first) == Some(true))?;
                found.push(Mixture(first));
            }
            Spec::Experts(_) => {
                found.last().filter(|m| n == m.0 + 3 || n == m.0 + 4).map(|_| ())?
            }
            _ => {}
        }
    }
    Some(found)
}

/// Assigns packets to values that are passed on, and returns the bytes of the packets. `None` if a
/// mixture's values cannot be passed as packets.
fn link(
    instructions: &mut [Instruction],
    steps: &[Step],
    specs: &[Spec],
    kept: &[Bind],
    mixtures: &[Mixture],
) -> Option<u64> {
    let found = linked(instructions, steps, specs, kept, mixtures)?;
    let mut bytes = 0;
    let mut room = |size: usize| {
        let at = bytes;
        bytes += (size as u64).next_multiple_of(ALIGN);
        at
    };
    let step = |i: &Instruction| steps.get(i.step as usize);
    for &n in &found {
        let Some([from, to]) = instructions.get_mut(n - 1..=n) else { continue };
        from.meets = false;
        // In a mixture, scores go to the choice, and values go to the scores. The step after the
        // choice gets no packets, because each block chooses.
        let of = mixtures.iter().map(|m| n.wrapping_sub(m.0)).find(|at| (1..=3).contains(at));
        if of == Some(3) {
            continue;
        }
        if of.is_some() || step(to).is_some_and(|s| s.takes_values.is_some()) {
            let at =
                room(packets::values_bytes(step(from).and_then(|s| s.hands_values).unwrap_or(0)));
            (from.values, to.takes) = (Some(at), Some(at));
            continue;
        }
        let at = room(packets::bytes(step(from).and_then(|s| s.hands).map_or(0, |h| h.1)));
        (from.hands, to.takes) =
            (Some((at, argument(specs, to, "aux").unwrap_or(Bind::Null))), Some(at));
    }
    for Mixture(first) in mixtures {
        let Some([from, _, _, up, ..]) = instructions.get_mut(*first..) else { continue };
        let at = room(packets::bytes(step(from).and_then(|s| s.hands).map_or(0, |h| h.1)));
        (from.hands, up.takes) =
            (Some((at, argument(specs, up, "aux").unwrap_or(Bind::Null))), Some(at));
    }
    unstore(instructions, specs, kept);
    Some(bytes)
}

/// Removes the stores of values that only packets carry. Their memory may already contain another
/// value.
fn unstore(instructions: &mut [Instruction], specs: &[Spec], kept: &[Bind]) {
    const RESULTS: [&str; 4] = ["y0", "y1", "y2", "y"];
    // The inputs that steps read from memory.
    let mut read: Vec<Bind> = kept.to_vec();
    for i in instructions.iter() {
        let Some(spec) = specs.get(i.step as usize) else { continue };
        for (d, number) in spec.arguments().iter().zip(&i.args) {
            let handed: &[&str] = match spec {
                Spec::Attend(_) => &["q", "k", "v"],
                Spec::Route(_) => &["scores"],
                _ => &["x"],
            };
            if let (Number::Bind(bind), false) =
                (number, i.takes.is_some() && handed.contains(&d.name))
                && !RESULTS.contains(&d.name)
            {
                read.push(*bind);
            }
        }
    }
    for i in instructions.iter_mut() {
        let Some(spec) = specs.get(i.step as usize) else { continue };
        if i.meets || matches!(spec, Spec::Attend(_)) {
            continue;
        }
        for (d, number) in spec.arguments().iter().zip(&mut i.args) {
            if let Number::Bind(bind @ Bind::Buffer(_)) = number
                && RESULTS.contains(&d.name)
                && !read.contains(bind)
            {
                *number = Number::Bind(Bind::Null);
            }
        }
    }
}

/// The argument with this name.
fn argument(specs: &[Spec], i: &Instruction, name: &str) -> Option<Bind> {
    let at = specs.get(i.step as usize)?.arguments().iter().position(|d| d.name == name)?;
    i.args
        .get(at)
        .and_then(|number| if let Number::Bind(bind) = number { Some(*bind) } else { None })
}

/// The instructions that read the packets of the previous instruction and need no other result of
/// it.
fn linked(
    instructions: &[Instruction],
    steps: &[Step],
    specs: &[Spec],
    kept: &[Bind],
    mixtures: &[Mixture],
) -> Option<Vec<usize>> {
    let step = |n: usize| instructions.get(n).and_then(|i| steps.get(i.step as usize));
    let arg = |n: usize, name: &str| instructions.get(n).and_then(|i| argument(specs, i, name));
    let hands = |n: usize| step(n).and_then(|s| s.hands);
    // Whether a buffer is used only as this argument of a step and as that result of the previous
    // step.
    let alone = |n: usize, (mine, made): (&str, &str)| {
        let mut others = instructions.iter().enumerate().filter(|(m, _)| *m != n && m + 1 != n);
        arg(n, mine).is_some_and(|bind| {
            matches!(bind, Bind::Buffer(_))
                && arg(n - 1, made) == Some(bind)
                && !kept.contains(&bind)
                && others.all(|(_, i)| !i.args.contains(&Number::Bind(bind)))
        })
    };
    // A block that has its heads computes attention and writes results while other blocks still
    // read the projection's input. That input must not be overwritten until all blocks have
    // continued, so it needs a reader after attention. A residual is such a reader. The result of a
    // separate norm has none.
    let heads = |n: usize| {
        let attends = instructions.get(n).and_then(|i| specs.get(i.step as usize));
        let all = step(n)
            .and_then(|s| s.takes_values)
            .filter(|_| matches!(attends, Some(Spec::Attend(_))));
        let stays = arg(n - 1, "x").is_some_and(|x| {
            instructions
                .get(n..)
                .is_some_and(|behind| behind.iter().any(|i| i.args.contains(&Number::Bind(x))))
        });
        all.is_some()
            && step(n - 1).and_then(|s| s.hands_values) == all
            && stays
            && [("q", "y0"), ("k", "y1"), ("v", "y2")].into_iter().all(|pair| alone(n, pair))
    };
    let mut found: Vec<usize> = (1..instructions.len())
        .filter(|&n| {
            if heads(n) || mixtures.iter().any(|m| (m.0 + 1..=m.0 + 4).contains(&n)) {
                return true;
            }
            let values = hands(n - 1).filter(|h| step(n).and_then(|s| s.takes) == Some(h.1));
            values.is_some_and(|(name, _)| match name {
                // Attention's results are not stored if they are passed as packets.
                "out" => alone(n, ("x", name)),
                _ => {
                    matches!(arg(n, "x"), Some(Bind::Buffer(_))) && arg(n - 1, name) == arg(n, "x")
                }
            })
        })
        .collect();
    // A residual must be from a step before a grid barrier, or from the same block and rows: rows
    // of vectors that are passed as packets always have the same distribution over blocks.
    let writes = |n: usize, b: Bind| {
        ["y0", "y1", "y2", "y", "out"].iter().any(|name| arg(n, name) == Some(b))
    };
    let rows = |n: usize, found: &[usize]| {
        // Results of experts have the same distribution for any reader. Scores do not.
        let experts = mixtures.iter().any(|m| n == m.0 + 4);
        let packets = found.contains(&(n + 1)) && !mixtures.iter().any(|m| n == m.0 + 1);
        let dealt = (packets || experts) && step(n).is_some_and(|s| s.of_all_blocks);
        if dealt { hands(n).map(|h| h.1) } else { None }
    };
    let fits = |n: usize, found: &[usize]| match arg(n, "residual") {
        None | Some(Bind::Null) => true,
        Some(residual) => (0..n).rev().find(|&w| writes(w, residual)).is_some_and(|w| {
            let met = (w + 1..=n).any(|m| !found.contains(&m));
            met || rows(w, found).is_some_and(|r| rows(n, found) == Some(r))
        }),
    };
    // Each removal adds one grid barrier and removes one vector of packets.
    while let Some(at) = found.iter().position(|&n| !fits(n, &found)) {
        let n = found.remove(at);
        if mixtures.iter().any(|m| (m.0 + 1..=m.0 + 4).contains(&n)) {
            return None;
        }
    }
    Some(found)
}
