//! Kernels of element-wise groups: a thread computes several elements that lie a block's threads
//! apart, so that each access of a wave is contiguous and several are in flight.

use super::render::{self, BLOCK, Rendered, Writer, computed, stored, to_stored};
use crate::dtype::DType;
use crate::element::{BinOp, UnOp};
use crate::program::{Instr, Map, Program};

/// Whether a step is a call of some ten operations or more.
fn is_long(instr: &Instr, dtype: DType) -> bool {
    match instr {
        Instr::Random { .. } => true,
        Instr::Unary(op, _) => op.is_float() && !matches!(op, UnOp::SignBit | UnOp::Sqrt),
        Instr::Binary(op, ..) => {
            !matches!(
                op,
                BinOp::Add | BinOp::Sub | BinOp::Mul | BinOp::Min | BinOp::Max | BinOp::CopySign
            ) && !op.compares()
                && !op.is_bits()
                && (*op != BinOp::Div || !dtype.is_float())
        }
        _ => false,
    }
}

/// Number of elements that a thread has in flight: 16 bytes, unless the program is long.
pub(super) fn in_flight(program: &Program) -> usize {
    if program.steps.len() > 16 || program.steps.iter().any(|s| is_long(&s.instr, s.dtype)) {
        return 1;
    }
    let widest = program.leaves.iter().map(|l| l.dtype.size()).max();
    (16 / widest.unwrap_or(program.dtype().size()).max(2)).clamp(2, 8)
}

/// Threads for the elements of a program's index space; `to` maps it to the position in the output.
pub(super) fn each(program: &Program, to: &Map) -> Rendered {
    let mut w = Writer::new(program, render::narrow(program, &[to]));
    let (count, _) = program.sizes();
    let many = in_flight(program);
    let n = w.size(count as i64);
    w.item("");
    let dtype = program.dtype();
    let rank = program.shape.len();
    // If the output is packed, the position is the index.
    let packed = crate::shape::strides(&program.shape) == to.strides && to.offset == 0;
    let axes = w.split(0..rank);
    let (again, place) = match packed {
        true => (String::new(), "at".to_owned()),
        false => (format!("        {} rest = at;\n{axes}", w.index()), w.place(to)),
    };
    let kernel = format!(
        "KERNEL each(Numbers p, {out}* to{types}) {{\n\
         \x20   const {index} n = {n}, first = ({index})block_id() * {step} + thread_id();\n\
         \x20   {computed} values[{many}];\n\
         \x20   UNROLL for (u32 u = 0; u < {many}; u++) {{\n\
         \x20       const {index} at = first + u * KJ_BLOCK;\n\
         \x20       {index} rest = at < n ? at : n - 1;\n{axes}\
         \x20       (void)rest;\n\
         \x20       values[u] = {call};\n\
         \x20   }}\n\
         \x20   UNROLL for (u32 u = 0; u < {many}; u++) {{\n\
         \x20       const {index} at = first + u * KJ_BLOCK;\n\
         \x20       if (at >= n) return;\n{again}\
         \x20       to[{place}] = {value};\n\
         \x20   }}\n}}\n",
        out = stored(dtype),
        types = render::buffers(program, true),
        index = w.index(),
        step = many * BLOCK as usize,
        computed = computed(dtype),
        call = w.call(""),
        value = to_stored(dtype, "values[u]"),
    );
    render::whole(w, &kernel, count.div_ceil(many * BLOCK as usize).max(1))
}
