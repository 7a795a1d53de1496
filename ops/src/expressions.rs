//! Kernels from expressions of the user, with CuPy's syntax: element-wise and reductions.

use crate::device::Device;
use crate::dtype::{DTYPES, DType, Kind};
use crate::error::{Error, Result};
use crate::eval;
use crate::gpu::Gpu;
use crate::kernels::Value;
use crate::memory::Buffer;
use crate::node::Node;
use crate::promotion::promote;
use crate::shape::{broadcast, show};
use crate::tensor::Tensor;
use std::sync::Arc;

/// A typed parameter: `float32 x`, or `T x` with a letter that the arguments determine.
#[derive(Clone, Debug)]
struct Typed {
    dtype: Option<DType>,
    letter: String,
    name: String,
}

fn typed(op: &'static str, list: &str) -> Result<Vec<Typed>> {
    list.split(',')
        .map(str::trim)
        .filter(|p| !p.is_empty())
        .map(|p| match p.split_whitespace().collect::<Vec<_>>().as_slice() {
            [kind, name] => {
                let dtype = DTYPES.into_iter().find(|d| d.name() == *kind);
                if dtype.is_none() && kind.len() != 1 {
                    return Err(Error::value(
                        op,
                        format!("'{kind}' is neither a dtype nor a letter"),
                    ));
                }
                Ok(Typed { dtype, letter: (*kind).to_owned(), name: (*name).to_owned() })
            }
            _ => Err(Error::value(op, format!("'{p}' is not 'dtype name'"))),
        })
        .collect()
}

/// A kernel that computes an expression for each element. Inputs broadcast; CuPy's syntax.
#[derive(Clone, Debug)]
pub struct ElementwiseKernel {
    ins: Vec<Typed>,
    outs: Vec<Typed>,
    operation: String,
    name: String,
}

/// A kernel that reduces an expression of each element and maps the result. CuPy's syntax.
#[derive(Clone, Debug)]
pub struct ReductionKernel {
    input: Typed,
    out: Typed,
    map: String,
    reduce: String,
    post: String,
    identity: String,
    name: String,
}

/// The dtype of each letter.
fn dtypes_of_letters(
    op: &'static str,
    params: &[Typed],
    args: &[Tensor],
) -> Result<Vec<(String, DType)>> {
    let mut known: Vec<(String, DType)> = Vec::new();
    for (p, a) in params.iter().zip(args).filter(|(p, _)| p.dtype.is_none()) {
        match known.iter_mut().find(|(l, _)| *l == p.letter) {
            Some((_, d)) => *d = promote(op, *d, a.dtype())?,
            None => known.push((p.letter.clone(), a.dtype())),
        }
    }
    Ok(known)
}

fn dtype_of(op: &'static str, p: &Typed, known: &[(String, DType)]) -> Result<DType> {
    let found = p.dtype.or_else(|| known.iter().find(|(l, _)| *l == p.letter).map(|k| k.1));
    match found {
        Some(d) if d.is_complex() => Err(Error::takes(op, "real numbers", d)),
        Some(d) => Ok(d),
        None => {
            Err(Error::value(op, format!("no argument determines the dtype of '{}'", p.letter)))
        }
    }
}

/// The type of a variable, an element converted to it, and the conversion back.
fn words(d: DType) -> (&'static str, &'static str, &'static str) {
    match d {
        DType::F16 => ("float", "load", "round_f16"),
        DType::BF16 => ("float", "load", "round_bf16"),
        DType::Bool => ("bool", "", "(u8)"),
        other => (crate::gpu::stored(other), "", ""),
    }
}

fn check_name(op: &'static str, name: &str) -> Result<()> {
    let fits = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && !name.is_empty();
    if fits {
        Ok(())
    } else {
        Err(Error::value(op, format!("'{name}' is not a valid kernel name")))
    }
}

/// The kernel's name in the source. CUDA has functions of its own called `norm`, `max` and the
/// like.
fn entry(name: &str) -> String {
    format!("{name}_kernel")
}

/// Defines C's function names for compilers without them.
const FUNCTIONS: &str = "#include \"ops.h\"\n#ifndef KJ_NVIDIA\n#define exp op_exp\n\
    #define log op_log\n#define sqrt op_sqrt\n#define sin op_sin\n#define cos op_cos\n\
    #define tanh op_tanh\n#define pow op_pow\n#define abs op_abs\n#define fabs op_abs\n\
    #define floor op_floor\n#define ceil op_ceil\n#define erf op_erf\n#endif\n\
    #define max op_maximum\n#define min op_minimum\n";

impl ElementwiseKernel {
    /// `ElementwiseKernel::new("T x, T y", "T z", "z = (x - y) * (x - y)", "squared_diff")`.
    ///
    /// # Errors
    /// [`Error::Value`] for parameters that cannot be parsed.
    pub fn new(ins: &str, outs: &str, operation: &str, name: &str) -> Result<ElementwiseKernel> {
        const OP: &str = "ElementwiseKernel";
        check_name(OP, name)?;
        Ok(ElementwiseKernel {
            ins: typed(OP, ins)?,
            outs: typed(OP, outs)?,
            operation: operation.to_owned(),
            name: name.to_owned(),
        })
    }

    /// Computes the outputs.
    ///
    /// # Errors
    /// [`Error::Value`] on the CPU, for which kernels cannot be compiled, and for arguments that do
    /// not match; [`Error::Engine`] with the compiler's message.
    #[allow(unsafe_code, reason = "a kernel may write anywhere")]
    pub fn call(&self, args: &[Tensor]) -> Result<Vec<Tensor>> {
        const OP: &str = "ElementwiseKernel";
        let (gpu, first) = on_gpu(OP, args)?;
        if args.len() != self.ins.len() {
            let why = format!(
                "{}: {} arguments for {} parameters",
                self.name,
                args.len(),
                self.ins.len()
            );
            return Err(Error::value(OP, why));
        }
        let known = dtypes_of_letters(OP, &self.ins, args)?;
        let mut shape = first.shape().to_vec();
        for a in args {
            Device::same(OP, first.device(), a.device())?;
            shape = broadcast(OP, &shape, a.shape())?;
        }
        let n = crate::shape::numel(&shape);
        let (mut params, mut reads, mut writes) = (String::new(), String::new(), String::new());
        let mut values = Vec::new();
        for (i, (p, a)) in self.ins.iter().zip(args).enumerate() {
            let dtype = dtype_of(OP, p, &known)?;
            let node = eval::packed(&a.astype(dtype)?.broadcast_to(&shape)?.re)?;
            let (kind, read, _) = words(dtype);
            params += &format!(", const {}* in{i}", crate::gpu::stored(dtype));
            reads += &format!("    const {kind} {} = {read}(in{i}[i]);\n", p.name);
            values.push(Value::Memory(eval::value(&node)?, node));
        }
        let mut outs = Vec::new();
        for (i, p) in self.outs.iter().enumerate() {
            let dtype = dtype_of(OP, p, &known)?;
            let (kind, _, write) = words(dtype);
            params += &format!(", {}* out{i}", crate::gpu::stored(dtype));
            reads += &format!("    {kind} {};\n", p.name);
            writes += &format!("    out{i}[i] = {write}({});\n", p.name);
            let buffer = Buffer::packed(gpu.store(n * dtype.size())?, &shape);
            let node = Node::leaf(dtype, shape.clone(), buffer.clone());
            outs.push(Tensor::real(Arc::clone(&node)));
            values.push(Value::Memory(buffer, node));
        }
        if n == 0 {
            return Ok(outs);
        }
        values.insert(0, Value::Bytes((n as i64).to_le_bytes().to_vec()));
        let letters: String =
            known.iter().map(|(l, d)| format!("typedef {} {l};\n", words(*d).0)).collect();
        let text = format!(
            "{FUNCTIONS}{letters}KERNEL {}(i64 n{params}) {{\n\
             \x20   const i64 i = (i64)block_id() * KJ_BLOCK + thread_id();\n\
             \x20   if (i >= n) return;\n{reads}\
             #line 1 \"{}\"\n    {};\n{writes}}}\n",
            entry(&self.name),
            self.name,
            self.operation
        );
        let block = crate::gpu::BLOCK;
        let grid = [n.div_ceil(block as usize) as u32, 1, 1];
        // SAFETY: the generated code reads and writes only element i of each; the expression has no
        // addresses.
        unsafe { gpu.own(&entry(&self.name), &text, grid, [block, 1, 1], 0, &values)? };
        Ok(outs)
    }
}

fn on_gpu<'a>(op: &'static str, args: &'a [Tensor]) -> Result<(Arc<Gpu>, &'a Tensor)> {
    let first = args.first().ok_or_else(|| Error::value(op, "needs at least one tensor"))?;
    match first.device() {
        Device::Gpu(gpu) => Ok((Arc::clone(gpu), first)),
        Device::Cpu => Err(Error::value(op, "needs a GPU: kernels cannot be compiled for the CPU")),
    }
}

impl ReductionKernel {
    /// `ReductionKernel::new("T x", "T y", "x * x", "a + b", "y = sqrt(a)", "0", "l2norm")`.
    ///
    /// # Errors
    /// [`Error::Value`] for parameters that cannot be parsed.
    pub fn new(
        ins: &str,
        outs: &str,
        map: &str,
        reduce: &str,
        post: &str,
        identity: &str,
        name: &str,
    ) -> Result<ReductionKernel> {
        const OP: &str = "ReductionKernel";
        check_name(OP, name)?;
        let (ins, outs) = (typed(OP, ins)?, typed(OP, outs)?);
        let ([input], [out]) = (ins.as_slice(), outs.as_slice()) else {
            return Err(Error::value(
                OP,
                format!("{name}: exactly one input and one output are needed"),
            ));
        };
        Ok(ReductionKernel {
            input: input.clone(),
            out: out.clone(),
            map: map.to_owned(),
            reduce: reduce.to_owned(),
            post: post.to_owned(),
            identity: identity.to_owned(),
            name: name.to_owned(),
        })
    }

    /// Reduces the axes (`None`: all).
    ///
    /// # Errors
    /// As [`ElementwiseKernel::call`].
    #[allow(unsafe_code, reason = "a kernel may write anywhere")]
    pub fn call(&self, x: &Tensor, at: Option<&[i64]>, keep: bool) -> Result<Tensor> {
        const OP: &str = "ReductionKernel";
        let (gpu, _) = on_gpu(OP, std::slice::from_ref(x))?;
        let known =
            dtypes_of_letters(OP, std::slice::from_ref(&self.input), std::slice::from_ref(x))?;
        let (din, dout) = (dtype_of(OP, &self.input, &known)?, dtype_of(OP, &self.out, &known)?);
        let (turned, folded, short, long) = x.folding(OP, at)?;
        let shape = if keep { long } else { short };
        let node = eval::packed(&turned.astype(din)?.re)?;
        let split = turned.rank() - folded;
        let k = crate::shape::numel(turned.shape().get(split..).unwrap_or_default());
        let rows = crate::shape::numel(&shape);
        let buffer = Buffer::packed(gpu.store(rows * dout.size())?, &shape);
        let out = Node::leaf(dout, shape.clone(), buffer.clone());
        if rows == 0 {
            return Ok(Tensor::real(out));
        }
        if k == 0 && self.identity.is_empty() {
            return Err(Error::value(OP, format!("{} has no elements to reduce", show(x.shape()))));
        }
        let ((kind, read, _), (result, _, write)) = (words(din), words(dout));
        let acc = if din.kind() == Kind::Float { kind } else { result };
        let text = format!(
            "{FUNCTIONS}KERNEL {name}(i64 n, const {stored}* from, {to}* to) {{\n\
             \x20   LDS_ARRAY({acc}, lanes, KJ_BLOCK);\n\
             \x20   const u32 t = thread_id();\n\
             \x20   const i64 row = (i64)block_id() * n;\n\
             \x20   {acc} sum = {identity};\n\
             \x20   for (i64 k = t; k < n; k += KJ_BLOCK) {{\n\
             \x20       const {kind} {x} = {read}(from[row + k]);\n\
             \x20       const {acc} a = sum, b = {map};\n\
             \x20       sum = {reduce};\n    }}\n\
             \x20   lanes[t] = sum;\n    block_sync();\n\
             \x20   for (u32 half = KJ_BLOCK / 2; half > 0; half /= 2) {{\n\
             \x20       if (t < half) {{ const {acc} a = lanes[t], b = lanes[t + half]; lanes[t] = \
             {reduce}; }}\n\
             \x20       block_sync();\n    }}\n\
             \x20   if (t != 0) return;\n\
             \x20   const {acc} a = lanes[0];\n    {result} {y};\n    {post};\n\
             \x20   to[block_id()] = {write}({y});\n}}\n",
            name = entry(&self.name),
            stored = crate::gpu::stored(din),
            to = crate::gpu::stored(dout),
            identity = if self.identity.is_empty() { "0" } else { &self.identity },
            x = self.input.name,
            map = self.map,
            reduce = self.reduce,
            y = self.out.name,
            post = self.post,
        );
        let values = [
            Value::Bytes((k as i64).to_le_bytes().to_vec()),
            Value::Memory(eval::value(&node)?, node),
            Value::Memory(buffer, Arc::clone(&out)),
        ];
        let grid = [u32::try_from(rows).unwrap_or(u32::MAX), 1, 1];
        // SAFETY: the generated code reads its row and writes its element; the expressions have no
        // addresses.
        unsafe { gpu.own(&entry(&self.name), &text, grid, [crate::gpu::BLOCK, 1, 1], 0, &values)? };
        Ok(Tensor::real(out))
    }
}
