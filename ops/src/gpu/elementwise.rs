//! Kernels of element-wise groups. A thread computes several elements at a distance of a block's
//! threads, so that each access of a wave is contiguous and several are in flight.

use super::render::{self, BLOCK, Rendered, Writer, computed, stored, to_stored};
use crate::dtype::DType;
use crate::element::{BinOp, UnOp};
use crate::program::{Instr, Map, Program};

/// How much a step computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Work {
    /// A few operations.
    Short,
    /// A function of f32 (`math32.h`): some twenty to fifty operations.
    Function,
    /// Some fifty operations or more, or functions in f64.
    Long,
}

fn work(instr: &Instr, dtype: DType) -> Work {
    let narrow = matches!(dtype, DType::F32 | DType::F16 | DType::BF16);
    match instr {
        Instr::Random { .. } => Work::Long,
        Instr::Unary(op, _) if !op.is_float() => Work::Short,
        Instr::Unary(UnOp::SignBit | UnOp::Sqrt, _) => Work::Short,
        Instr::Unary(
            UnOp::Asin | UnOp::Acos | UnOp::Atan | UnOp::Asinh | UnOp::Acosh | UnOp::Atanh,
            _,
        ) => Work::Long,
        Instr::Unary(..) | Instr::Binary(BinOp::LogAddExp, ..) if narrow => Work::Function,
        Instr::Unary(..) => Work::Long,
        Instr::Binary(BinOp::Div, ..) if dtype.is_float() => Work::Short,
        Instr::Binary(op, ..) => {
            let short = matches!(
                op,
                BinOp::Add | BinOp::Sub | BinOp::Mul | BinOp::Min | BinOp::Max | BinOp::CopySign
            );
            if short || op.compares() || op.is_bits() { Work::Short } else { Work::Long }
        }
        _ => Work::Short,
    }
}

/// The work of a program's longest step.
pub(super) fn longest(program: &Program) -> Work {
    program.steps.iter().map(|s| work(&s.instr, s.dtype)).max().unwrap_or(Work::Short)
}

/// Number of elements that a thread has in flight: 16 bytes, fewer if the program is long.
pub(super) fn in_flight(program: &Program) -> usize {
    let longest = longest(program);
    if program.steps.len() > 32 || longest == Work::Long {
        return 1;
    }
    let widest = program.leaves.iter().map(|l| l.dtype.size()).max();
    let many = (16 / widest.unwrap_or(program.dtype().size()).max(2)).clamp(2, 8);
    // Each element needs its own registers.
    if longest == Work::Function || program.steps.len() > 16 { many.min(4) } else { many }
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
