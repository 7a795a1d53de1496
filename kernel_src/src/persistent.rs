//! One kernel of many steps (a persistent kernel): a whole token in one launch. See
//! `gpu/persist.h`, and `gpu/stream.h` for streamed weights.
//!
//! [`Family::inside`](crate::Family::inside) gives a family's part of such a kernel. This module
//! generates the kernel's source: structs of constants, shared memory, and a case for each distinct
//! step. The order of the steps is data, a list of instructions in device memory. So a model of a
//! hundred layers has no more code than one of its distinct layers.

use crate::attention::kv::KvLayout;
use crate::spec::Spec;
use crate::vocabulary::arguments::Declared;
use crate::vocabulary::files::with_headers;
use crate::vocabulary::kernel::{Kernel, SpecError, require};
use crate::vocabulary::mma::Product;
use crate::vocabulary::shape::Shape;
use crate::vocabulary::step::{Record, Step, StepContext};
use kjit_engine::arch::Dot;
use kjit_engine::{Constants, Options, Source, Target, Vendor};
use std::fmt::Write as _;

const NAME: &str = "persistent";
/// Threads of the extra warp that loads weights.
const LOADING_THREADS: u32 = 32;
/// 64-bit words of an instruction before a step's arguments: number of the step, its grid (3
/// sizes), source of values, destination of packets, weight of the next norm, destination of values
/// sent one by one.
pub const HEAD: usize = 8;
/// Bit of an instruction's first word: a grid barrier follows it.
pub const BARRIER_AFTER: u64 = 1 << 32;
/// Unit of a field in an instruction's first word: the number, from 1, of its all-reduce; 0: none.
pub const SUM: u64 = 1 << 33;
/// Most bytes of static shared memory of a step, without sums. Attention needs the most.
const STEP: usize = 14 << 10;
/// Bytes of static shared memory of the kernel: for the largest step, four instructions, the
/// block's barrier state, the ring's barriers.
const FIXED: usize = STEP + (4 << 10);
/// Bytes for the sums of a wave in a column: two buffers of 128 rows of two matrices.
const SUMS: usize = 2 << 10;
/// Bytes of a line of shared memory. Copies fill whole lines. Rows of other lengths begin anywhere
/// in a line.
const LINE: usize = 128;
/// Fewest slots of a ring: a team of waves uses one while others are in flight.
const SLOTS: usize = 4;
/// Cost of starting and ending a slot for its team, in bytes that it could multiply in that time.
const SLOT_COST: f64 = 700.0;
/// Cost of a short ring: half of the bytes that arrive while a block waits for others: 0.25 µs at
/// 35 KB/µs per multiprocessor (H200).
const SHORT_RING_COST: f64 = 4200.0;
/// Waves that share a slot when the ring streams rows of experts. On an H100 with qwen3-30b-a3b
/// Q4_K_M one wave gives 590 tokens/s, two give 600.
const EXPERT_WAVES_PER_SLOT: usize = 2;
/// Bytes of weights in flight per multiprocessor: enough to keep an H100 or an H200 busy. More
/// would delay all other reads.
const AHEAD: usize = 30 << 10;

/// Instrumentation of a kernel of many steps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Probe {
    /// No instrumentation.
    #[default]
    None,
    /// Each block stores the times of each instruction, [`Probe::STAMPS`] of 8 bytes, after the
    /// barrier words: by block, then by instruction.
    Stamps,
    /// Random delays of waves, different in each launch: for tests.
    Delays,
    /// No instrumentation, but waits time out after an hour: for tools that slow a launch a
    /// thousandfold.
    Patient,
    /// One block does not arrive at the first barrier: tests the time limit of waits, which is one
    /// second in this mode.
    Stall,
}

impl Probe {
    /// Times of an instruction: start, inputs have arrived, computed, end.
    pub const STAMPS: usize = 4;
}

/// A kernel of many steps.
#[derive(Debug, Clone)]
pub struct Persistent {
    /// The kernel. Its arguments are [`Persistent::ARGUMENTS`].
    pub kernel: Kernel,
    /// Distinct steps, in the order of their numbers.
    pub steps: Vec<Step>,
    /// Threads of a launched block.
    pub block: u32,
    /// 64-bit words of an instruction.
    pub words: usize,
}

impl Persistent {
    /// Bytes of the barrier state, zero before the first launch.
    pub const MEETING: usize = 16;

    /// Arguments of a launch:
    ///
    /// - the instructions, and their number;
    /// - [`Persistent::MEETING`] bytes of device memory;
    /// - a word that the host reads (not 0: a block has waited longer than the limit);
    /// - the number of blocks, and the limit in ns.
    pub const ARGUMENTS: [&'static str; 6] =
        ["program", "count", "words", "late", "blocks", "limit"];

    /// Further argument with several devices, a table:
    ///
    /// - addresses of the words and of the host word of `ReduceArgs`, and of this device's inbox;
    /// - the size of an inbox, the limit in ns, the rank, the number of all-reduces in the launch;
    /// - the inboxes of the other ranks in order.
    pub const SUMS: &'static str = "sums";

    /// The kernel for these distinct specs.
    ///
    /// # Errors
    /// A family that has no part in such a kernel, by name; more shared memory than a block has.
    pub fn new(
        specs: &[Spec],
        target: &Target,
        probe: Probe,
        inside: StepContext,
    ) -> Result<Persistent, SpecError> {
        let streams = inside.streams;
        require(streams || !inside.routed, NAME, || {
            format!("experts chosen by each block are not supported on {target}")
        })?;
        require(streams || target.vendor() == Vendor::Amd, NAME, || {
            format!("{target} has no bulk copies, or its launches overlap")
        })?;
        let steps =
            specs.iter().map(|s| s.inside(target, inside)).collect::<Result<Vec<_>, _>>()?;
        let declared: Vec<&[Declared]> = specs.iter().map(Spec::arguments).collect();
        let words = HEAD + declared.iter().map(|d| d.len()).max().unwrap_or(0);
        let pool = steps.iter().map(|s| s.pool as usize).max().unwrap_or(0).next_multiple_of(128);
        let have = target.arch().shared_per_block as usize;
        let ring = if inside.streams {
            Some(ring(&steps, have.saturating_sub(FIXED + pool), inside)?)
        } else {
            None
        };
        let shared = pool + ring.map_or(0, |ring| ring.slot * ring.slots);
        require(shared + FIXED <= have, NAME, || {
            format!("{} bytes of LDS are needed, but {target} has {have}", shared + FIXED)
        })?;
        let text = render(&steps, &declared, words, ring, inside.ranks);
        let entry = "persistent";
        let source = with_headers(Source::new(NAME, "persistent.hip", text)).entry(entry);
        let mut macros = Product::of(target, inside.wave).macros().set("KJ_BLOCK", inside.threads);
        macros = macros.set("KJ_DOT4", dot4(target)).set("KJ_MIN_BLOCKS", 1);
        let block = inside.threads + if inside.streams { LOADING_THREADS } else { 0 };
        if inside.streams {
            macros = macros.set("KJ_BESIDE", LOADING_THREADS);
        }
        if inside.ranks > 1 {
            macros = macros.set("KJ_RANKS", inside.ranks as i64);
        }
        match probe {
            Probe::None | Probe::Patient => {}
            Probe::Stamps => macros = macros.set("KJ_STAMPS", 1),
            Probe::Delays => macros = macros.set("KJ_DELAYS", 1),
            Probe::Stall => macros = macros.set("KJ_STALL", 1),
        }
        macros = KvLayout::macros(steps.iter().any(|s| s.paged), macros);
        let constants: Constants = macros.tell("STEPS", steps.len() as i64);
        let options = Options::wave(inside.wave);
        let kernel = Kernel { source, constants, options, entry, block, shared: shared as u32 };
        Ok(Persistent { kernel, steps, block, words })
    }
}

/// `KJ_DOT4` of a target.
fn dot4(target: &Target) -> i64 {
    match target.arch().dot {
        Dot::None | Dot::Dp4a => 0,
        Dot::Sdot4 => 1,
        Dot::Sudot4 => 2,
    }
}

/// Bytes of a slot that rows beginning anywhere in a line need in addition.
fn anywhere(record: &Record) -> usize {
    if record.bytes.is_multiple_of(LINE) { 0 } else { LINE - 16 }
}

/// A ring of weights in shared memory.
#[derive(Debug, Clone, Copy)]
struct Ring {
    /// Bytes of a slot.
    slot: usize,
    /// Number of slots.
    slots: usize,
    /// Waves that share a slot.
    share: usize,
}

/// Cost of a slot's rows for each byte that they fill, as in `StreamRows` of `gpu/stream.h`:
/// instructions of working lanes, and the idle time of other lanes and rows.
fn time(record: &Record, ring: Ring, wave: usize, waves: usize) -> f64 {
    let each = record.units.div_ceil(ring.share);
    let wide = each.next_power_of_two().min(wave);
    let lanes =
        if wide > 8 && 3 * each <= 2 * each.div_ceil(wide) * wide { wide / 2 } else { wide };
    let (deep, side, fit) =
        (each.div_ceil(lanes), wave / lanes, (ring.slot - anywhere(record)) / record.bytes);
    let times = (fit / side).clamp(1, lanes.min(4));
    let rows = fit.min(times * side);
    let filled = (rows * record.bytes) as f64;
    let idle = (deep * lanes * times * side) as f64 / (each * rows) as f64;
    // Reading the activations takes a tenth of the work of one row. It is done once for all rows of
    // a lane.
    let activations = 1.0 + 0.1 / times as f64;
    let under_way = filled * (ring.slots - waves / ring.share) as f64;
    idle * activations
        * (1.0 + SLOT_COST * ring.share as f64 / filled)
        * (1.0 + SHORT_RING_COST / under_way.max(1.0))
}

/// The fastest ring of at most `bytes` bytes for these rows.
fn ring(steps: &[Step], bytes: usize, inside: StepContext) -> Result<Ring, SpecError> {
    let records: Vec<&Record> = steps.iter().flat_map(|s| &s.records).collect();
    let largest =
        records.iter().map(|r| r.bytes + anywhere(r)).max().unwrap_or(LINE).next_multiple_of(LINE);
    let (wave, waves) = (inside.wave as usize, (inside.threads / inside.wave) as usize);
    // A slot belongs to the same team in each lap.
    let of = |slot: usize, share: usize| {
        let teams = waves / share;
        Ring { slot, slots: bytes / slot / teams * teams, share }
    };
    let all = |ring: &Ring| -> f64 { records.iter().map(|r| time(r, *ring, wave, waves)).sum() };
    let shares = (0..=waves.ilog2()).map(|n| 1 << n);
    // In a mixture of experts a block has few rows of each expert's matrix and of the router.
    let shares = shares.filter(|share| !inside.routed || *share == EXPERT_WAVES_PER_SLOT);
    let rings = shares
        .flat_map(|share| (largest..=bytes / SLOTS).step_by(LINE).map(move |slot| of(slot, share)));
    // Bytes beyond the memory that is reserved for a step.
    let sums = |r: &Ring| (SUMS * r.share * inside.sequences).saturating_sub(STEP);
    let room = |r: &Ring| r.slot * r.slots + sums(r) <= bytes;
    rings
        .filter(|r| r.slots >= SLOTS && room(r))
        .min_by(|a, b| all(a).total_cmp(&all(b)))
        .ok_or_else(|| SpecError::Unsupported {
            kernel: NAME,
            why: format!(
                "{SLOTS} rows of {largest} bytes do not fit in {bytes} bytes of shared memory"
            ),
        })
}

/// The kernel's source.
fn render(
    steps: &[Step],
    declared: &[&[Declared]],
    words: usize,
    ring: Option<Ring>,
    ranks: usize,
) -> String {
    let mut text = String::from(
        "// Rendered by kernel_src/src/persistent.rs; persist.h says what the arguments are.\n",
    );
    let mut headers: Vec<&str> = steps.iter().map(|s| s.header).collect();
    headers.sort_unstable();
    headers.dedup();
    let always: &[&str] = if ranks > 1 { &["persist.h", "sums.h"] } else { &["persist.h"] };
    for header in headers.iter().chain(always) {
        let _ = writeln!(text, "#include \"{header}\"");
    }
    text.push('\n');
    for (i, step) in steps.iter().enumerate() {
        let _ = writeln!(text, "{}", step.shape.render(&format!("Shape{i}")));
    }
    if let Some(Ring { slot, slots, share }) = ring {
        let weights = Shape::new()
            .number("SLOT", slot)
            .number("SLOTS", slots)
            .number("SHARE", share)
            .number("AHEAD", AHEAD);
        let _ = writeln!(text, "{}", weights.render("Weights"));
    }
    text.push_str("union Lds {\n    u32 none;\n");
    for (i, step) in steps.iter().enumerate() {
        if let Some(lds) = step.lds {
            let _ = writeln!(text, "    {} s{i};", named(lds, i));
        }
    }
    text.push_str("};\n\n");
    let streams = ring.is_some();
    let (more, given) = match streams {
        true => {
            (", Ring<Weights>::Shared& ring, const u8* memory, RingAt at", ", ring, memory, at")
        }
        false => ("", ""),
    };
    // The block's position in the ring.
    let (gives, keep, back) =
        if streams { ("RingAt", "at = ", "    return at;\n") } else { ("void", "", "") };
    let links = if streams { "    const Links links = links_of(c);\n" } else { "" };
    // Without a ring, `pool` is passed as a place (`persist.h`).
    let (pool, opens_pool) = match streams {
        true => ("u8* pool", ""),
        false => ("LdsPlace place", "    u8* const pool = lds_at(place);\n"),
    };
    let passed = if streams { "pool" } else { "place" };
    let takes_all =
        format!("(const u64* c, u32 blocks, {pool}, Lds& all{more}) {{\n{links}{opens_pool}");
    for (i, (step, declared)) in
        steps.iter().zip(declared).enumerate().filter(|(_, (s, _))| s.apart)
    {
        let _ = write!(text, "CALLED {gives} run{i}{takes_all}");
        work(&mut text, i, step, declared, "    ");
        let _ = writeln!(text, "{back}}}");
    }
    let _ = writeln!(text, "CALLED {gives} run{takes_all}    switch ((u32)same_in_all(c[0])) {{");
    for (i, (step, declared)) in steps.iter().zip(declared).enumerate() {
        let _ = writeln!(text, "    case {i}: {{");
        match step.apart {
            true => _ = writeln!(text, "        {keep}run{i}(c, blocks, {passed}, all{given});"),
            false => work(&mut text, i, step, declared, "        "),
        }
        text.push_str("        break;\n    }\n");
    }
    let _ = writeln!(text, "    }}\n{back}}}\n");
    if streams {
        text.push_str(
            "STEP void feed(const u64* c, u32 blocks, Ring<Weights>::Shared& ring, u8* \
            memory, RingAt& at) {\n    switch ((u32)c[0]) {\n",
        );
        for (i, (step, declared)) in steps.iter().zip(declared).enumerate() {
            let Some(beside) = step.beside else { continue };
            let _ = writeln!(text, "    case {i}: {{\n        {} a;", step.args);
            takes(&mut text, declared, "        ");
            let _ = writeln!(text, "        {}\n        break;\n    }}", named(beside, i));
        }
        text.push_str("    }\n}\n\n");
    }
    let _ = writeln!(text, "constexpr u32 WORDS = {words};\n");
    let (takes, opens, closes) = match ranks {
        0 | 1 => ("", "", ""),
        _ => (", const u64* sums", "Sums::open(sums), ", "\n    Sums::close();"),
    };
    let kernel = if streams { STREAMING } else { PLAIN };
    text.push_str(
        &kernel.replace("<takes>", takes).replace("<opens>", opens).replace("<closes>", closes),
    );
    text
}

/// The code of a step for an instruction.
fn work(text: &mut String, i: usize, step: &Step, declared: &[Declared], indent: &str) {
    let _ = writeln!(text, "{indent}{} a;", step.args);
    takes(text, declared, indent);
    if step.lds.is_some() {
        let _ = writeln!(text, "{indent}auto& lds = all.s{i};");
    }
    let call = named(step.call, i);
    if step.of_all_blocks {
        if call.contains("share") {
            let _ = writeln!(text, "{indent}const Share share{{block_id(), 0, 0}};");
        }
        let _ = writeln!(text, "{indent}{call}");
    } else {
        let _ = writeln!(
            text,
            "{indent}NO_UNROLL for (u32 i = block_id(); i < shares_of(c); i += blocks) {{\n\
             {indent}    if (i != block_id()) block_sync();\n\
             {indent}    const Share share = share_of(c, i);\n{indent}    {call}\n{indent}}}"
        );
    }
}

/// Reads arguments from an instruction's words.
fn takes(text: &mut String, declared: &[Declared], indent: &str) {
    for (n, d) in declared.iter().enumerate() {
        let _ = writeln!(text, "{indent}take(a.{}, c[{}]);", d.name, HEAD + n);
    }
}

/// A family's source with the name of its struct of constants.
fn named(text: &str, i: usize) -> String {
    text.replace("<S>", &format!("<Shape{i}>")).replace("<S,", &format!("<Shape{i},"))
}

/// The next instruction is loaded while one is executed.
const PLAIN: &str = "\
KERNEL persistent(const u64* program, u32 count, MeetingWords* words, u32* late, u32 blocks, u64 \
limit<takes>) {
    LDS_DYNAMIC(pool);
    LDS_ARRAY(Lds, all, 1);
    LDS_ARRAY(u64, code, 2 * WORDS);
    if (thread_id() < WORDS) code[thread_id()] = program[thread_id()];
    <opens>Meeting::open(words, late, limit, blocks, count);
    NO_UNROLL for (u32 i = 0; i < count; i++) {
        Meeting::begin(i);
        Meeting::stamp(0);
        u64 next = 0;
        const bool more = i + 1 < count && thread_id() < WORDS;
        if (more) next = program[(u64)(i + 1) * WORDS + thread_id()];
        run(code + i % 2 * WORDS, blocks, lds_place(pool), all[0]);
        Meeting::stamp(2);
        Meeting::wait();
        if (more) code[(i + 1) % 2 * WORDS + thread_id()] = next;
        Meeting::arrive();
        Meeting::stamp(3);
    }
    Meeting::begin(count);
    Meeting::leave();<closes>
}
";

/// The extra warp has its own instructions in shared memory; the next one is loaded while one is
/// executed. A load from device memory would queue after all loads of the ring.
const STREAMING: &str = "\
STEP void ask(const u64* program, u32 count, u32 blocks, u64* fed, Ring<Weights>::Shared& ring, \
u8* memory, RingAt& at) {
    constexpr u32 EACH = CEIL_DIV(WORDS, KJ_BESIDE);
    const u32 lane = thread_id() - KJ_BLOCK;
    u64 next[EACH];
    UNROLL for (u32 n = 0; n < EACH; n++)
        next[n] = n * KJ_BESIDE + lane < WORDS ? program[n * KJ_BESIDE + lane] : 0;
    NO_UNROLL for (u32 i = 0; i < count; i++) {
        u64* c = fed + i % 2 * WORDS;
        UNROLL for (u32 n = 0; n < EACH; n++)
            if (n * KJ_BESIDE + lane < WORDS) c[n * KJ_BESIDE + lane] = next[n];
        wave_sync();
        program += WORDS;
        if (i + 1 < count)
            UNROLL for (u32 n = 0; n < EACH; n++)
                if (n * KJ_BESIDE + lane < WORDS) next[n] = program[n * KJ_BESIDE + lane];
        feed(c, blocks, ring, memory, at);
        wave_sync();
    }
}

KERNEL persistent(const u64* program, u32 count, MeetingWords* words, u32* late, u32 blocks,
                  u64 limit<takes>) {
    LDS_DYNAMIC_LINES(memory);
    LDS_ARRAY(Lds, all, 1);
    LDS_ARRAY(u64, code, 2 * WORDS);
    LDS_ARRAY(u64, fed, 2 * WORDS);
    LDS_ARRAY(Ring<Weights>::Shared, ring, 1);
    u8* pool = memory + Ring<Weights>::BYTES;
    RingAt at{};
    if (thread_id() == KJ_BLOCK) Ring<Weights>::open(ring[0]);
    else if (thread_id() < KJ_BLOCK) <opens>Meeting::open(words, late, limit, blocks, count);
    __syncthreads();
    if (thread_id() >= KJ_BLOCK) {
        ask(program, count, blocks, fed, ring[0], memory, at);
        return;
    }
    if (thread_id() < WORDS) code[thread_id()] = program[thread_id()];
    block_sync();
    NO_UNROLL for (u32 i = 0; i < count; i++) {
        Meeting::begin(i);
        Meeting::stamp(0);
        u64 next = 0;
        const bool more = i + 1 < count && thread_id() < WORDS;
        if (more) next = program[(u64)(i + 1) * WORDS + thread_id()];
        at = run(code + i % 2 * WORDS, blocks, pool, all[0], ring[0], memory, at);
        Meeting::stamp(2);
        Meeting::wait();
        if (more) code[(i + 1) % 2 * WORDS + thread_id()] = next;
        if (meets_behind(code + i % 2 * WORDS)) Meeting::arrive();
        else block_sync();
        Meeting::stamp(3);
    }
    Meeting::begin(count);
    Meeting::leave();<closes>
}
";
