//! Renders a program to a kernel's source. Extents, strides, offsets and constants are arguments.
//! The source, and so the cache key, depends on the expression, the dtypes, the number of axes
//! after merging, and on strides that are 0 or 1.

use crate::dtype::{DType, Kind};
use crate::element::{BinOp, UnOp};
use crate::program::{Instr, Map, Program, Reg, Step};
use std::fmt::Write;

/// Threads of a block.
pub(crate) const BLOCK: u32 = 256;

/// A kernel's source, the numbers of its launch and its blocks; its buffers are separate.
pub(super) struct Rendered {
    pub text: String,
    /// The contents of the struct `Numbers`.
    pub numbers: Vec<i64>,
    /// The number that each constant's bits are passed as, and the constant's step.
    pub constants: Vec<(usize, Reg)>,
    /// Look-ups: the number that is the slot of a wrong index, the axis, and its size.
    pub lookups: Vec<(usize, usize, usize)>,
    pub blocks: usize,
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

/// Source and numbers during rendering.
pub(super) struct Writer<'a> {
    pub program: &'a Program,
    pub text: String,
    pub numbers: Vec<i64>,
    /// The number that each constant's bits are passed as, and the constant's step.
    pub constants: Vec<(usize, Reg)>,
    /// Look-ups: the number that is the slot of a wrong index, the axis, and its size.
    pub lookups: Vec<(usize, usize, usize)>,
    /// Whether every index and position fits 32 bits.
    pub narrow: bool,
}

impl<'a> Writer<'a> {
    pub(super) fn new(program: &'a Program, narrow: bool) -> Writer<'a> {
        let (text, numbers, constants) = (String::new(), Vec::new(), Vec::new());
        Writer { program, text, numbers, constants, lookups: Vec::new(), narrow }
    }

    /// The type of an index or a position.
    pub(super) fn index(&self) -> &'static str {
        if self.narrow { "i32" } else { "i64" }
    }

    /// Adds a number that fits [`Writer::index`]; returns the expression that reads it.
    pub(super) fn size(&mut self, value: i64) -> String {
        let number = self.number(value);
        if self.narrow { format!("(i32){number}") } else { number }
    }

    /// Adds a number of the launch; returns the expression that reads it.
    pub(super) fn number(&mut self, value: i64) -> String {
        self.numbers.push(value);
        format!("p.n[{}]", self.numbers.len() - 1)
    }

    /// The position that a map gives for the axes' indices `x0`, `x1`, …
    pub(super) fn place(&mut self, map: &Map) -> String {
        let mut sum = self.size(map.offset);
        for (k, &s) in map.strides.iter().enumerate() {
            match s {
                0 => {}
                1 => _ = write!(sum, " + x{k}"),
                s => {
                    let stride = self.size(s);
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

    /// Renders `STEP T item(…, x0, x1, …)`: the program's value at an index for each axis of its
    /// index space. `given` are parameters for the values that the kernel around it gives.
    pub(super) fn item(&mut self, given: &str) {
        let program = self.program;
        let mut axes = String::new();
        for k in 0..program.shape.len() {
            _ = write!(axes, ", const {} x{k}", self.index());
        }
        let (out, buffers) = (program.dtype(), buffers(program, true));
        self.line(&format!(
            "STEP {} item(const Numbers& p{buffers}{axes}{given}) {{",
            computed(out)
        ));
        for (at, step) in program.steps.iter().enumerate() {
            let value = self.rounded(at, step);
            self.line(&format!("    const {} v{at} = {value};", computed(step.dtype)));
        }
        self.line(&format!("    return v{};\n}}", program.out));
    }

    /// Renders `STEP T value(…, u32 z, u32 row, u32 col, T given)`: the program's value for the
    /// result of a product in its batch, row and column, and `given`, its `Given(0)`. `sizes`: of
    /// batch, rows and columns; `numbers`: the expressions that read them.
    pub(super) fn value(&mut self, given: DType, sizes: [usize; 3], numbers: [&str; 3]) {
        let given = computed(given);
        self.item(&format!(", const {given} g0"));
        let index = self.index();
        let (shape, names) = (&self.program.shape, ["z", "row", "col"]);
        let mut runs = Vec::new();
        let (mut axis, mut group) = (0, 0);
        while let Some(size) = shape.get(axis) {
            // The fewest axes and groups that have the same number of elements.
            let (first, mut elements, mut of, mut at) = (axis, *size, 1, "0".to_owned());
            axis += 1;
            loop {
                match (sizes.get(group), shape.get(axis)) {
                    (Some(n), _) if of < elements => {
                        let name = names.get(group).copied().unwrap_or("0");
                        let count = numbers.get(group).copied().unwrap_or("1");
                        at = match (*n, at.as_str()) {
                            (1, _) => at,
                            (_, "0") => format!("({index}){name}"),
                            _ => format!("({at} * ({index}){count} + ({index}){name})"),
                        };
                        of *= n;
                        group += 1;
                    }
                    (_, Some(n)) if elements < of => {
                        elements *= n;
                        axis += 1;
                    }
                    _ => break,
                }
            }
            runs.push((first..axis, at));
        }
        let mut text = String::new();
        for (run, at) in runs {
            match run.len() {
                1 => _ = writeln!(text, "    const {index} x{} = {at};", run.start),
                _ => {
                    let rest = format!("rest{}", run.start);
                    _ = writeln!(text, "    {index} {rest} = {at};");
                    let split = self.split(run);
                    text += &split
                        .replace("rest;", &format!("{rest};"))
                        .replace("index_rest(rest,", &format!("index_rest({rest},"));
                }
            }
        }
        self.line(&format!(
            "STEP {out} value(const Numbers& p{types}, u32 z, u32 row, u32 col, {given} g0) {{\n\
             {text}    (void)z, (void)row, (void)col;\n    return {call};\n}}",
            out = computed(self.program.dtype()),
            types = buffers(self.program, true),
            call = self.call(", g0"),
        ));
    }

    /// Renders the lines that split `rest`, a row-major index over these axes, into `x{k}`.
    pub(super) fn split(&mut self, axes: std::ops::Range<usize>) -> String {
        let mut text = String::new();
        let index = self.index();
        // The last axis varies fastest.
        for k in axes.clone().rev() {
            if k == axes.start {
                _ = writeln!(text, "        const {index} x{k} = rest;");
                continue;
            }
            let size = self.program.shape.get(k).copied().unwrap_or(1);
            let size = self.size(size as i64);
            _ = writeln!(text, "        const {index} x{k} = index_rest(rest, {size});");
        }
        text
    }

    /// The call of `item` for the axes' indices and the given values.
    pub(super) fn call(&self, given: &str) -> String {
        let axes: String = (0..self.program.shape.len()).map(|k| format!(", x{k}")).collect();
        format!("item(p{}{axes}{given})", buffers(self.program, false))
    }

    /// The value of a step, rounded to its dtype.
    pub(super) fn rounded(&mut self, at: Reg, step: &Step) -> String {
        let value = self.step(at, step);
        match step.dtype {
            DType::F16 if !is_read(step) => format!("round_half({value})"),
            DType::BF16 if !is_read(step) => format!("round_bfloat({value})"),
            _ => value,
        }
    }

    fn step(&mut self, at: Reg, step: &Step) -> String {
        let program = self.program;
        let map = |id: usize| program.maps.get(id).cloned();
        let none = || Map { offset: 0, strides: Vec::new() };
        let read = |dtype: DType, text: String| match dtype {
            DType::F16 | DType::BF16 => format!("load({text})"),
            _ => text,
        };
        match step.instr {
            Instr::Constant(bits) => {
                self.constants.push((self.numbers.len(), at));
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
            Instr::Gather { leaf, map: id, index, stride, size, axis } => {
                let place = self.place(&map(id).unwrap_or_else(none));
                self.lookups.push((self.numbers.len(), axis, size as usize));
                let slot = self.number(0);
                let (stride, size) = (self.number(stride), self.number(size));
                let dtype = program.leaves.get(leaf).map_or(DType::F32, |l| l.dtype);
                let index = format!("nearest(v{index}, {size}, wrong + {slot})");
                read(dtype, format!("b{leaf}[{place} + {index} * {stride}]"))
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
    if program.steps.iter().any(|s| matches!(s.instr, Instr::Gather { .. })) {
        out.push_str(if types { ", i64* wrong" } else { ", wrong" });
    }
    for (i, leaf) in program.leaves.iter().enumerate() {
        match types {
            true => _ = write!(out, ", const {}* b{i}", stored(leaf.dtype)),
            false => _ = write!(out, ", b{i}"),
        }
    }
    out
}

/// Whether every index and position of a program fits 32 bits, also the positions of an incomplete
/// last block.
pub(super) fn narrow(program: &Program, others: &[&Map]) -> bool {
    const MOST: i128 = (1 << 31) - (1 << 16);
    let reach = |map: &Map| -> i128 {
        let axes = map.strides.iter().zip(&program.shape);
        axes.map(|(s, n)| i128::from(*s).abs() * *n as i128).sum::<i128>()
            + i128::from(map.offset).abs()
    };
    let (kept, folded) = program.sizes();
    (kept as i128) * (folded as i128) < MOST
        && program.maps.iter().chain(others.iter().copied()).all(|m| reach(m) < MOST)
}

/// Adds the source before the kernel. The struct of numbers is known only after the kernel.
pub(super) fn whole(mut writer: Writer<'_>, kernel: &str, blocks: usize) -> Rendered {
    let numbers = writer.numbers.len().max(1);
    let (index, rest) = match writer.narrow {
        true => ("i32", "u32 q = (u32)rest / (u32)n, r = (u32)rest - q * (u32)n;"),
        false => ("i64", "i64 q = rest / n, r = rest - q * n;"),
    };
    let text = format!(
        "#include \"ops.h\"\nstruct Numbers {{ i64 n[{numbers}]; }};\n\
         // The index in the last axis of what is left; what is left of the others.\n\
         STEP {index} index_rest({index}& rest, {index} n) {{\n\
         \x20   {rest}\n\
         \x20   rest = q;\n\
         \x20   return r;\n}}\n\
         // An index counted from the front. One outside is reported and replaced by the nearest.\n\
         STEP i64 nearest(i64 i, i64 n, i64* wrong) {{\n\
         \x20   const i64 at = i < 0 ? i + n : i;\n\
         \x20   if (at >= 0 && at < n) return at;\n\
         \x20   *wrong = i;\n\
         \x20   return at < 0 ? 0 : n - 1;\n}}\n{}{kernel}",
        writer.text
    );
    let mut list = std::mem::take(&mut writer.numbers);
    list.resize(numbers, 0);
    let Writer { constants, lookups, .. } = writer;
    Rendered { text, numbers: list, constants, lookups, blocks }
}
