//! Kernels of folds. A block is divided into rows of lanes: a row of lanes reduces one result (or
//! a chunk of it) and joins its lanes in a fixed tree. A long result is divided into chunks over
//! blocks; the block that ends last joins the chunks' partial results in their order. All of that
//! follows from the index space, so a result does not depend on the device or on timing.

use super::elementwise::in_flight;
use super::render::{self, BLOCK, Rendered, Writer, computed, stored, to_stored};
use crate::dtype::{DType, Kind};
use crate::element::FoldOp;
use crate::program::{Instr, Program};
use crate::shape::numel;

/// Blocks that keep a large GPU busy.
const ENOUGH: usize = 1024;
/// Elements that a lane reduces at least before a result is divided into chunks.
const CHUNK: usize = 16;
/// Groups of results that can be divided; each has a counter of its finished chunks.
pub(super) const COUNTERS: usize = ENOUGH;

/// The division of a fold over blocks and lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Division {
    /// Lanes that reduce one result: a power of two, [`BLOCK`] at most.
    pub lanes: usize,
    /// Whether neighbouring threads belong to neighbouring results, not to one result.
    pub across: bool,
    /// Chunks of a result.
    pub chunks: usize,
    /// Elements of a chunk.
    pub chunk: usize,
    /// Groups of `BLOCK / lanes` results.
    pub groups: usize,
}

impl Division {
    pub(super) fn of(program: &Program) -> Division {
        let (kept, folded) = program.sizes();
        let block = BLOCK as usize;
        let across = is_across(program);
        let lanes = match across {
            // A wave reads at least 32 neighbours.
            true if folded < 32 => 1,
            true => block / 32,
            false => folded.div_ceil(loads(program)).next_power_of_two().min(block),
        };
        let groups = kept.div_ceil(block / lanes).max(1);
        let most = folded / (lanes * CHUNK);
        let chunks = match lanes == block || across {
            true if groups < ENOUGH => (ENOUGH / groups).min(most).max(1),
            _ => 1,
        };
        let chunk = folded.div_ceil(chunks).next_multiple_of(lanes);
        Division { lanes, across, chunks: folded.div_ceil(chunk).max(1), chunk, groups }
    }
}

/// Elements that a lane has in flight: twice the number of its accumulators, because an addition is
/// faster than a load. (On an H100 a sum of f16 with eight of each had 1,980 GB/s, torch 2,545.)
fn loads(program: &Program) -> usize {
    match in_flight(program) {
        1 => 1,
        n => 2 * n,
    }
}

/// Whether neighbouring results are neighbours in memory rather than the elements of one.
fn is_across(program: &Program) -> bool {
    let kept = program.shape.len() - program.folded.min(program.shape.len());
    let (mut across, mut along) = (0usize, 0usize);
    for step in &program.steps {
        let (Instr::Load(_, map) | Instr::Gather { map, .. }) = step.instr else { continue };
        let Some(map) = program.maps.get(map) else { continue };
        let (head, tail) = map.strides.split_at(kept.min(map.strides.len()));
        across += usize::from(head.last() == Some(&1));
        along += usize::from(tail.last() == Some(&1));
    }
    across > along && numel(program.shape.get(..kept).unwrap_or_default()) >= 32
}

/// The fold of two values: the type of the accumulator, its initial value, and the expression of
/// `a` and `b`.
fn joining(op: FoldOp, dtype: DType) -> (&'static str, &'static str, &'static str) {
    let wide = match dtype.kind() {
        Kind::Float => "f64",
        _ => computed(dtype),
    };
    match op {
        FoldOp::Sum => (wide, "0", "op_add(a, b)"),
        FoldOp::Prod => (wide, "1", "op_multiply(a, b)"),
        FoldOp::Max => (computed(dtype), "", "op_maximum(a, b)"),
        _ => (computed(dtype), "", "op_minimum(a, b)"),
    }
}

/// Bytes of a partial result, at most.
pub(super) const STATE: usize = 24;

/// The struct of a partial result with `join`, `none` and `one`.
fn state(op: FoldOp, dtype: DType) -> String {
    let c = computed(dtype);
    if matches!(op, FoldOp::ArgMax | FoldOp::ArgMin) {
        let sign = if op == FoldOp::ArgMax { ">" } else { "<" };
        // NaN first, then the greater (or lesser) value, then the lower index.
        return format!(
            "struct State {{ {c} v; u32 any; i64 at; }};\n\
             STEP State join(State x, State y) {{\n\
             \x20   if (!y.any) return x;\n    if (!x.any) return y;\n\
             \x20   const bool a = op_isnan(x.v), b = op_isnan(y.v);\n\
             \x20   if (a != b) return a ? x : y;\n\
             \x20   if (!a && x.v != y.v) return x.v {sign} y.v ? x : y;\n\
             \x20   return x.at <= y.at ? x : y;\n}}\n\
             STEP State none() {{ return State{{({c})0, 0, 0}}; }}\n\
             STEP State one({c} v, i64 at) {{ return State{{v, 1, at}}; }}\n"
        );
    }
    let (acc, start, join) = joining(op, dtype);
    if !start.is_empty() {
        return format!(
            "struct State {{ {acc} v; }};\n\
             STEP State join(State x, State y) {{\n\
             \x20   const {acc} a = x.v, b = y.v;\n    return State{{{join}}};\n}}\n\
             STEP State none() {{ return State{{({acc}){start}}}; }}\n\
             STEP State one({c} v, i64) {{ return State{{({acc})v}}; }}\n"
        );
    }
    // Max and min have no initial value, so the state has whether there is one.
    format!(
        "struct State {{ {acc} v; u32 any; }};\n\
         STEP State join(State x, State y) {{\n\
         \x20   if (!y.any) return x;\n    if (!x.any) return y;\n\
         \x20   const {acc} a = x.v, b = y.v;\n    return State{{{join}, 1}};\n}}\n\
         STEP State none() {{ return State{{({acc})0, 0}}; }}\n\
         STEP State one({c} v, i64) {{ return State{{({acc})v, 1}}; }}\n"
    )
}

/// The kernel of a reduction, with the buffers `to`, `parts` (partial results) and `counters` (zero
/// before and after).
pub(super) fn fold(program: &Program, op: FoldOp, by: &Division) -> Rendered {
    let mut w = Writer::new(program, render::narrow(program, &[]));
    let (kept, folded) = program.sizes();
    let (rows, count) = (w.size(kept as i64), w.size(folded as i64));
    let (chunk, chunks) = (w.size(by.chunk as i64), w.number(by.chunks as i64));
    let (lanes, across) = (w.number(by.lanes as i64), w.number(i64::from(by.across)));
    w.item("");
    let dtype = program.dtype();
    let rank = program.shape.len();
    let split = rank - program.folded.min(rank);
    let (head, tail) = (w.split(0..split), w.split(split..rank));
    let (out, value) = match op {
        FoldOp::ArgMax | FoldOp::ArgMin => ("i64", "sum.at".to_owned()),
        _ => (stored(dtype), to_stored(dtype, &format!("({})sum.v", computed(dtype)))),
    };
    let many = loads(program);
    let sums = many.min(4);
    let kernel = format!(
        "{state}\
         // The first lane's value joined with those of the others, of each row of lanes.\n\
         STEP State tree(State* all, State own, u32 t, u32 lane, u32 lanes, u32 step) {{\n\
         \x20   all[t] = own;\n\
         \x20   block_sync();\n\
         \x20   for (u32 n = lanes / 2; n > 0; n /= 2) {{\n\
         \x20       if (lane < n) all[t] = join(all[t], all[t + n * step]);\n\
         \x20       block_sync();\n\
         \x20   }}\n\
         \x20   return all[t];\n}}\n\
         KERNEL fold(Numbers p, {out}* to, State* parts, u32* counters{types}) {{\n\
         \x20   LDS_ARRAY(State, all, KJ_BLOCK);\n\
         \x20   const {index} rows = {rows}, count = {count}, chunk = {chunk};\n\
         \x20   const u32 chunks = (u32){chunks}, lanes = (u32){lanes}, t = thread_id();\n\
         \x20   const u32 wide = KJ_BLOCK / lanes, step = {across} ? wide : 1;\n\
         \x20   const u32 lane = {across} ? t / wide : t % lanes;\n\
         \x20   const u32 group = block_id() / chunks, part = block_id() % chunks;\n\
         \x20   const {index} own = ({index})group * wide + ({across} ? t % wide : t / lanes);\n\
         \x20   const {index} row = own < rows ? own : rows - 1;\n\
         \x20   {index} rest = row;\n{head}\
         \x20   const {index} from = part * chunk;\n\
         \x20   const {index} end = from + chunk < count ? from + chunk : count;\n\
         \x20   State sums[{sums}];\n\
         \x20   UNROLL for (u32 u = 0; u < {sums}; u++) sums[u] = none();\n\
         \x20   {index} k = from + lane;\n\
         \x20   for (; k < end; k += ({index}){many} * lanes) {{\n\
         \x20       {computed} values[{many}];\n\
         \x20       UNROLL for (u32 u = 0; u < {many}; u++) {{\n\
         \x20           const {index} at = k + ({index})u * lanes;\n\
         \x20           rest = at < end ? at : end - 1;\n{tail}\
         \x20           values[u] = {call};\n\
         \x20       }}\n\
         \x20       UNROLL for (u32 u = 0; u < {many}; u++) {{\n\
         \x20           const {index} at = k + ({index})u * lanes;\n\
         \x20           if (at < end)\n\
         \x20               sums[u % {sums}] = join(sums[u % {sums}], one(values[u], at));\n\
         \x20       }}\n\
         \x20   }}\n\
         \x20   State sum = sums[0];\n\
         \x20   UNROLL for (u32 u = 1; u < {sums}; u++) sum = join(sum, sums[u]);\n\
         \x20   sum = tree(all, sum, t, lane, lanes, step);\n\
         \x20   if (chunks > 1) {{\n\
         \x20       if (lane == 0) parts[own * chunks + part] = sum;\n\
         \x20       if (!last_block(&counters[group], chunks)) return;\n\
         \x20       sum = none();\n\
         \x20       for (u32 c = lane; c < chunks; c += lanes)\n\
         \x20           sum = join(sum, parts[own * chunks + c]);\n\
         \x20       sum = tree(all, sum, t, lane, lanes, step);\n\
         \x20   }}\n\
         \x20   if (lane == 0 && own < rows) to[own] = {value};\n}}\n",
        state = state(op, dtype),
        types = render::buffers(program, true),
        index = w.index(),
        computed = computed(dtype),
        call = w.call(""),
    );
    render::whole(w, &kernel, by.groups * by.chunks)
}
