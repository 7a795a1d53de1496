//! Renders a program to a kernel's text. Extents, strides, offsets and constants are arguments. The
//! text, and so the cache key, depends on the expression, the dtypes, the number of axes after
//! merging, and on strides that are 0 or 1.

use crate::dtype::{DType, Kind};
use crate::element::{BinOp, FoldOp, UnOp};
use crate::program::{Instr, Map, Program, Step};
use std::fmt::Write;

/// Threads of a block.
pub(crate) const BLOCK: u32 = 256;

/// A kernel's text and the numbers of its launch; its buffers are separate.
pub(super) struct Rendered {
    pub text: String,
    /// The contents of the struct `Numbers`.
    pub numbers: Vec<i64>,
}

/// The C++ type of an element in memory.
pub(crate) const fn stored(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool | DType::U8 => "u8",
        DType::I8 => "i8",
        DType::I16 => "i16",
        DType::I32 => "i32",
        DType::I64 => "i64",
        DType::U16 => "u16",
        DType::U32 => "u32",
        DType::U64 => "u64",
        DType::F16 => "f16",
        DType::BF16 => "bf16",
        DType::F32 | DType::C64 => "float",
        DType::F64 | DType::C128 => "f64",
    }
}

/// The C++ type of a register.
pub(super) const fn computed(dtype: DType) -> &'static str {
    stored(dtype.computed())
}

/// Converts a register value to an element in memory.
pub(super) fn to_stored(dtype: DType, value: &str) -> String {
    match dtype {
        DType::F16 => format!("round_f16({value})"),
        DType::BF16 => format!("round_bf16({value})"),
        _ => value.to_owned(),
    }
}

/// Text and numbers during rendering.
pub(super) struct Writer<'a> {
    program: &'a Program,
    text: String,
    numbers: Vec<i64>,
}

impl<'a> Writer<'a> {
    pub(super) fn new(program: &'a Program) -> Writer<'a> {
        Writer { program, text: String::new(), numbers: Vec::new() }
    }

    /// Adds a number of the launch; returns the expression that reads it.
    pub(super) fn number(&mut self, value: i64) -> String {
        self.numbers.push(value);
        format!("p.n[{}]", self.numbers.len() - 1)
    }

    /// The position that a map gives for the axes' indices `x0`, `x1`, …
    pub(super) fn place(&mut self, map: &Map) -> String {
        let mut sum = self.number(map.offset);
        for (k, &s) in map.strides.iter().enumerate() {
            match s {
                0 => {}
                1 => _ = write!(sum, " + x{k}"),
                s => {
                    let stride = self.number(s);
                    _ = write!(sum, " + x{k} * {stride}");
                }
            }
        }
        sum
    }

    pub(super) fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// Renders `STEP T value(…, i64 at)`: the program's value at a position of its index space.
    /// `given` are parameters for the values that the kernel around it gives.
    pub(super) fn value(&mut self, given: &str) {
        let program = self.program;
        let out = program.dtype();
        let buffers = buffers(program, true);
        self.line(&format!(
            "STEP {} value(const Numbers& p{buffers}, i64 at{given}) {{",
            computed(out)
        ));
        self.line("    i64 rest = at;");
        // The last axis varies fastest.
        for (k, n) in program.shape.iter().enumerate().rev() {
            if k == 0 {
                self.line("    const i64 x0 = rest;");
            } else {
                let n = self.number(*n as i64);
                self.line(&format!("    const i64 x{k} = index_rest(rest, {n});"));
            }
        }
        for (at, step) in program.steps.iter().enumerate() {
            let value = self.rounded(step);
            self.line(&format!("    const {} v{at} = {value};", computed(step.dtype)));
        }
        self.line(&format!("    return v{};\n}}", program.out));
    }

    /// The value of a step, rounded to its dtype.
    pub(super) fn rounded(&mut self, step: &Step) -> String {
        let value = self.step(step);
        match step.dtype {
            DType::F16 if !is_read(step) => format!("round_half({value})"),
            DType::BF16 if !is_read(step) => format!("round_bfloat({value})"),
            _ => value,
        }
    }

    fn step(&mut self, step: &Step) -> String {
        let program = self.program;
        let map = |id: usize| program.maps.get(id).cloned();
        let none = || Map { offset: 0, strides: Vec::new() };
        let read = |dtype: DType, text: String| match dtype {
            DType::F16 | DType::BF16 => format!("load({text})"),
            _ => text,
        };
        match step.instr {
            Instr::Constant(bits) => {
                let number = self.number(bits as i64);
                match step.dtype.computed() {
                    DType::F32 => format!("as_f32((u32){number})"),
                    DType::F64 => format!("m_from((u64){number})"),
                    dtype => format!("({}){number}", computed(dtype)),
                }
            }
            Instr::Load(leaf, id) => {
                let place = self.place(&map(id).unwrap_or_else(none));
                let dtype = program.leaves.get(leaf).map_or(DType::F32, |l| l.dtype);
                read(dtype, format!("b{leaf}[{place}]"))
            }
            Instr::Gather { leaf, map: id, index, stride, size } => {
                let place = self.place(&map(id).unwrap_or_else(none));
                let (stride, size) = (self.number(stride), self.number(size));
                let dtype = program.leaves.get(leaf).map_or(DType::F32, |l| l.dtype);
                read(dtype, format!("b{leaf}[{place} + nearest(v{index}, {size}) * {stride}]"))
            }
            Instr::Index(id) => self.place(&map(id).unwrap_or_else(none)),
            Instr::Random { key, first, map: id } => {
                let place = self.place(&map(id).unwrap_or_else(none));
                let (key, first) = (self.number(key as i64), self.number(first as i64));
                format!("random_bits((u64){key}, (u64){first} + (u64)({place}))")
            }
            Instr::Given(i) => format!("g{i}"),
            // Kernels of rows have computed it before.
            Instr::Fold(..) => "0".to_owned(),
            Instr::Unary(op, x) => unary(op, program.dtype_of(x), x),
            Instr::Binary(op, a, b) => binary(op, program.dtype_of(a), a, b),
            Instr::Where(c, a, b) => format!("v{c} != 0 ? v{a} : v{b}"),
            Instr::Cast(x) => cast(program.dtype_of(x), step.dtype, x),
        }
    }
}

/// Whether memory has the value already in its own format.
fn is_read(step: &Step) -> bool {
    matches!(
        step.instr,
        Instr::Load(..) | Instr::Gather { .. } | Instr::Constant(_) | Instr::Where(..)
    )
}

fn unary(op: UnOp, dtype: DType, x: usize) -> String {
    let float = dtype.kind() == Kind::Float;
    match op {
        UnOp::Not if dtype == DType::Bool => format!("op_not(v{x})"),
        // These do not change integers.
        UnOp::Floor | UnOp::Ceil | UnOp::Trunc | UnOp::Round if !float => format!("v{x}"),
        UnOp::IsFinite if !float => "1".to_owned(),
        UnOp::IsNan | UnOp::IsInf | UnOp::SignBit if !float => "0".to_owned(),
        _ => format!("op_{}(v{x})", op.name()),
    }
}

fn binary(op: BinOp, dtype: DType, a: usize, b: usize) -> String {
    let sign = match op {
        BinOp::Eq => "==",
        BinOp::Ne => "!=",
        BinOp::Lt => "<",
        BinOp::Le => "<=",
        BinOp::Gt => ">",
        BinOp::Ge => ">=",
        _ => {
            debug_assert!(!dtype.is_complex());
            return format!("op_{}(v{a}, v{b})", op.name());
        }
    };
    format!("v{a} {sign} v{b}")
}

fn cast(from: DType, into: DType, x: usize) -> String {
    let float = from.kind() == Kind::Float;
    match into {
        DType::Bool => format!("v{x} != 0"),
        // Rounds once: through f64, not through f32.
        _ if into.is_int() && float => {
            format!("from_float<{}>((f64)v{x})", computed(into))
        }
        _ => format!("({})v{x}", computed(into)),
    }
}

/// The parameters of the buffers that are read, or the arguments for them.
pub(super) fn buffers(program: &Program, types: bool) -> String {
    let mut out = String::new();
    for (i, leaf) in program.leaves.iter().enumerate() {
        match types {
            true => _ = write!(out, ", const {}* b{i}", stored(leaf.dtype)),
            false => _ = write!(out, ", b{i}"),
        }
    }
    out
}

/// Adds the text before the kernel. The struct of numbers is known only after the kernel.
pub(super) fn whole(writer: Writer<'_>, kernel: &str) -> Rendered {
    let numbers = writer.numbers.len().max(1);
    let text = format!(
        "#include \"ops.h\"\nstruct Numbers {{ i64 n[{numbers}]; }};\n\
         // The index in the last axis of what is left; what is left of the others.\n\
         STEP i64 index_rest(i64& rest, i64 n) {{\n\
         \x20   if ((u64)rest >> 32 == 0 && (u64)n >> 32 == 0) {{\n\
         \x20       u32 q = (u32)rest / (u32)n, r = (u32)rest - q * (u32)n;\n\
         \x20       rest = q;\n\
         \x20       return r;\n\
         \x20   }}\n\
         \x20   i64 q = rest / n, r = rest - q * n;\n\
         \x20   rest = q;\n\
         \x20   return r;\n}}\n\
         // An index counted from the front; one outside is the nearest that is inside.\n\
         STEP i64 nearest(i64 i, i64 n) {{\n\
         \x20   if (i < 0) i += n;\n\
         \x20   return i < 0 ? 0 : i >= n ? n - 1 : i;\n}}\n{}{kernel}",
        writer.text
    );
    let mut list = writer.numbers;
    list.resize(numbers, 0);
    Rendered { text, numbers: list }
}

/// A thread for each element of the program's index space; `to` maps it to the position in the
/// output.
pub(super) fn each(program: &Program, to: &Map) -> Rendered {
    let mut w = Writer::new(program);
    let (count, _) = program.sizes();
    let n = w.number(count as i64);
    w.value("");
    let dtype = program.dtype();
    let mut axes = String::new();
    for (k, size) in program.shape.iter().enumerate().rev() {
        match k {
            0 => axes.push_str("    const i64 x0 = rest;\n"),
            _ => {
                let size = w.number(*size as i64);
                _ = writeln!(axes, "    const i64 x{k} = index_rest(rest, {size});");
            }
        }
    }
    // If the output is packed, the position is the index.
    let packed = crate::shape::strides(&program.shape) == to.strides && to.offset == 0;
    let (axes, place) = match packed {
        true => (String::new(), "at".to_owned()),
        false => (axes, w.place(to)),
    };
    let (out, value) = (stored(dtype), to_stored(dtype, "v"));
    let kernel = format!(
        "KERNEL each(Numbers p, {out}* to{types}) {{\n\
         \x20   const i64 at = (i64)block_id() * KJ_BLOCK + thread_id();\n\
         \x20   if (at >= {n}) return;\n\
         \x20   i64 rest = at;\n{axes}\
         \x20   const {computed} v = value(p{names}, at);\n\
         \x20   (void)rest;\n\
         \x20   to[{place}] = {value};\n}}\n",
        types = buffers(program, true),
        names = buffers(program, false),
        computed = computed(dtype),
    );
    whole(w, &kernel)
}

/// The fold of two values: the type of the accumulator, its initial value, and the expression of
/// `a` and `b`.
fn joining(op: FoldOp, dtype: DType) -> (&'static str, &'static str, &'static str) {
    let kept = match dtype.kind() {
        Kind::Float => "f64",
        _ => computed(dtype),
    };
    match op {
        FoldOp::Sum => (kept, "0", "op_add(a, b)"),
        FoldOp::Prod => (kept, "1", "op_multiply(a, b)"),
        FoldOp::Max => (kept, "", "op_maximum(a, b)"),
        _ => (kept, "", "op_minimum(a, b)"),
    }
}

/// A block for each result, or a thread for each if few elements are reduced.
pub(super) fn fold(program: &Program, op: FoldOp, thin: bool) -> Rendered {
    let mut w = Writer::new(program);
    let (kept, folded) = program.sizes();
    let (rows, count) = (w.number(kept as i64), w.number(folded as i64));
    w.value("");
    let dtype = program.dtype();
    let (types, names) = (buffers(program, true), buffers(program, false));
    let place = matches!(op, FoldOp::ArgMax | FoldOp::ArgMin);
    let (acc, start, join) = joining(op, dtype);
    let (out, value) = match place {
        true => ("i64", "best.at".to_owned()),
        false => (stored(dtype), to_stored(dtype, &format!("({})sum.v", computed(dtype)))),
    };
    // An accumulator stores whether it has a value, because max and min have no initial value.
    let (first, test) = match start {
        "" => ("0", "if (!y.any) return x;\n    if (!x.any) return y;\n    "),
        start => (start, ""),
    };
    let sign = if op == FoldOp::ArgMax { ">" } else { "<" };
    let state = match place {
        false => format!(
            "struct State {{ {acc} v; u32 any; }};\n\
             STEP State join(State x, State y) {{\n    {test}const {acc} a = x.v, b = y.v;\n\
             \x20   return State{{{join}, 1}};\n}}\n\
             STEP State none() {{ return State{{({acc}){first}, 0}}; }}\n\
             STEP State one({c} v, i64) {{ return State{{({acc})v, 1}}; }}\n",
            c = computed(dtype)
        ),
        // NaN first, then the greater (or lesser) value, then the lower index.
        true => format!(
            "struct State {{ {c} v; u32 any; i64 at; }};\n\
             STEP State join(State x, State y) {{\n\
             \x20   if (!y.any) return x;\n    if (!x.any) return y;\n\
             \x20   const bool a = op_isnan(x.v), b = op_isnan(y.v);\n\
             \x20   if (a != b) return a ? x : y;\n\
             \x20   if (!a && x.v != y.v) return x.v {sign} y.v ? x : y;\n\
             \x20   return x.at <= y.at ? x : y;\n}}\n\
             STEP State none() {{ return State{{({c})0, 0, 0}}; }}\n\
             STEP State one({c} v, i64 at) {{ return State{{v, 1, at}}; }}\n",
            c = computed(dtype)
        ),
    };
    let value = value.replace("best", "sum");
    let kernel = match thin {
        true => format!(
            "{state}KERNEL fold(Numbers p, {out}* to{types}) {{\n\
             \x20   const i64 row = (i64)block_id() * KJ_BLOCK + thread_id();\n\
             \x20   if (row >= {rows}) return;\n\
             \x20   State sum = none();\n\
             \x20   for (i64 k = 0; k < {count}; k++)\n\
             \x20       sum = join(sum, one(value(p{names}, row * {count} + k), k));\n\
             \x20   to[row] = {value};\n}}\n"
        ),
        false => format!(
            "{state}KERNEL fold(Numbers p, {out}* to{types}) {{\n\
             \x20   LDS_ARRAY(State, lanes, KJ_BLOCK);\n\
             \x20   const i64 row = (i64)block_id();\n\
             \x20   const u32 t = thread_id();\n\
             \x20   State sum = none();\n\
             \x20   for (i64 k = t; k < {count}; k += KJ_BLOCK)\n\
             \x20       sum = join(sum, one(value(p{names}, row * {count} + k), k));\n\
             \x20   lanes[t] = sum;\n\
             \x20   block_sync();\n\
             \x20   for (u32 n = KJ_BLOCK / 2; n > 0; n /= 2) {{\n\
             \x20       if (t < n) lanes[t] = join(lanes[t], lanes[t + n]);\n\
             \x20       block_sync();\n\
             \x20   }}\n\
             \x20   sum = lanes[0];\n\
             \x20   if (t == 0 && row < {rows}) to[row] = {value};\n}}\n"
        ),
    };
    whole(w, &kernel)
}
