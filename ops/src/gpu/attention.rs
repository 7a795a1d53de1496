//! Attention in one launch (`attention.h`): scores stay in registers, so nothing of the size
//! queries × keys goes to memory.

use super::Gpu;
use super::launch::Grid;
use super::product::source;
use super::render::{self, Rendered, Writer, stored};
use super::tiles::has_units;
use crate::contract::strided;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::memory::{Buffer, Store};
use crate::node::Node;
use crate::program::Program;
use crate::shape::numel;
use crate::tensor::Tensor;
use crate::view::collapse;
use kjit_engine::{Arg, Constants, Job, Matrices, MatrixUnit, Options, Target, Vendor};
use std::sync::Arc;

/// The widest rows of queries, keys and values.
const WIDEST: usize = 128;

/// The constants of `attention.h`.
#[derive(Clone, Copy, Debug)]
struct Shape {
    width: u32,
    /// Products of sixteen queries in a wave.
    high: u32,
    stages: u32,
    wave: u32,
    /// Weights pass through shared memory.
    passes: bool,
    causal: bool,
    /// `attention_wgmma.h`: 128 queries of a block, operands by the copy engine.
    groups: bool,
}

impl Shape {
    /// `maps`: whether the copy engine can load the operands.
    fn of(width: usize, causal: bool, maps: bool, target: &Target) -> Shape {
        let width = if width <= 64 { 64 } else { 128 };
        let nvidia = target.vendor() == Vendor::Nvidia;
        let roomy = nvidia && target.arch().shared_per_block > 64 << 10;
        Shape {
            width,
            high: if nvidia && width == 64 { 2 } else { 1 },
            stages: if roomy { 2 } else { 1 },
            wave: target.default_wave(),
            passes: !nvidia,
            causal,
            groups: maps && target.arch().matrix == MatrixUnit::Wgmma,
        }
    }

    /// Queries of a block: of four waves, or of two groups of four waves.
    const fn queries(self) -> u32 {
        if self.groups { 128 } else { 64 * self.high }
    }

    const fn threads(self) -> u32 {
        if self.groups { 384 } else { 4 * self.wave }
    }

    const fn shared(self) -> u32 {
        if self.groups {
            // Room to align; queries, and two tiles each of keys and values.
            return 1024 + 2 * 5 * 128 * self.width;
        }
        let weights = if self.passes { self.queries() * 64 } else { 0 };
        2 * (self.queries() * self.width + self.stages * 128 * self.width + weights)
    }
}

/// Whether `attention.h` takes rows of this width and dtype.
fn takes(target: &Target, dtype: DType, width: usize) -> bool {
    let fits = width.is_multiple_of(8) && (8..=WIDEST).contains(&width);
    fits && has_units(target, dtype)
}

fn job(text: &str, of: Shape, target: &Target) -> Job {
    let mut constants = Constants::new().set("KJ_BLOCK", of.threads());
    for (name, value) in kjit_kernels::matrix_constants(target, of.wave).iter() {
        constants = constants.set(name.to_owned(), value.clone());
    }
    let source = source("attention", text);
    let options = Options::wave(of.wave).arch_specific(of.groups);
    Job::new(source, constants, options, target.clone())
}

fn render(
    (q, k, v): (&Buffer, &Buffer, &Buffer),
    (rows, keys, width): (usize, usize, usize),
    batch: &[usize],
    (scale, dtype, of): (f32, DType, Shape),
) -> Rendered {
    let program = Program::empty();
    let mut w = Writer::new(&program, false);
    for n in [rows, keys, width, numel(batch)] {
        w.number(n as i64);
    }
    w.number(i64::from(scale.to_bits()));
    if of.groups {
        // The number of a batch in a map is that of the batch, or 0.
        for b in [q, k, v] {
            let shared = b.strides.iter().take(batch.len()).all(|s| *s == 0);
            w.number(i64::from(!shared));
        }
    }
    let rank = batch.len();
    let part = |b: &Buffer| b.strides.get(..rank).unwrap_or_default().to_vec();
    let mut lists = [part(q), part(k), part(v)];
    let merged = collapse(batch, &mut lists);
    for ((name, b), list) in [("Query", q), ("Key", k), ("Value", v)].into_iter().zip(&lists) {
        let offset = w.number(b.offset);
        let batch = w.digits("batch", &merged, list);
        let batch = batch.replace("return ", &format!("return {offset} + "));
        let own = w.digits("own", &[rows], &[b.strides.get(rank).copied().unwrap_or(0)]);
        w.line(&format!("struct {name} {{\n{batch}{own}}};"));
    }
    let of_type = stored(dtype);
    let Shape { width, high, stages, causal, .. } = of;
    w.line(&format!(
        "struct Shape {{\n    using In = {of_type};\n    static constexpr u32 WIDTH = {width}, \
         MI = {high}, STAGES = {stages};\n    static constexpr bool CAUSAL = {causal};\n}};"
    ));
    let start = format!(
        "KERNEL attention(Numbers p, {of_type}* to, const {of_type}* q, const {of_type}* k,\n\
         \x20                const {of_type}* v"
    );
    let kernel = match of.groups {
        false => format!(
            "#include \"attention.h\"\n{start}) {{\n    LDS_DYNAMIC(pool);\n\
             \x20   Attention<Shape>::run(p, to, q, k, v, pool);\n}}\n"
        ),
        true => format!(
            "#include \"attention_wgmma.h\"\n{start}, const __grid_constant__ TensorMap x,\n\
             \x20                const __grid_constant__ TensorMap y,\n\
             \x20                const __grid_constant__ TensorMap z) {{\n\
             \x20   LDS_DYNAMIC(pool);\n    LDS_ARRAY(AttentionWgmma<Shape>::Shared, lds, 1);\n\
             \x20   AttentionWgmma<Shape>::run(p, to, &x, &y, &z, pool, lds[0]);\n}}\n"
        ),
    };
    let blocks = rows.div_ceil(of.queries() as usize).saturating_mul(numel(batch));
    render::whole(w, &kernel, blocks)
}

/// The rows of (batch…, rows, width) for the copy engine, 128 in a box; `None` if several axes of a
/// batch have no common distance.
fn matrices(batch: &[usize], rows: usize, width: usize, strides: &[i64]) -> Option<Matrices> {
    let mut lists = [strides.get(..batch.len())?.to_vec()];
    let merged = collapse(batch, &mut lists);
    let [list] = lists;
    let (step, row) = (list.first().copied().unwrap_or(0), *strides.get(batch.len())?);
    let fits = |s: i64, n: usize| n == 1 || (1..1 << 38).contains(&s);
    if merged.len() > 1 || !fits(row, rows) {
        return None;
    }
    let count = if step == 0 { 1 } else { numel(batch) };
    // One row, or one matrix, has no distance to the next.
    let bytes = |s: i64, n: usize| if n > 1 { s.unsigned_abs() * 2 } else { 16 };
    fits(step, count).then(|| Matrices {
        width: width as u64,
        rows: rows as u64,
        count: count as u64,
        row_bytes: bytes(row, rows),
        matrix_bytes: bytes(step, count),
        tile: 128,
    })
}

impl Tensor {
    /// The engine's compile job of [`Tensor::attention`] without a mask, for a target whose kernel
    /// takes these tensors: (…, rows, width) of f16 or bf16, at most 128 wide. Needs no GPU.
    ///
    /// # Errors
    /// [`Error::Value`] if the target's kernel does not take them; errors of computing them.
    pub fn attention_job(
        &self,
        k: &Tensor,
        v: &Tensor,
        causal: bool,
        target: &Target,
    ) -> Result<Job> {
        let (q, k, v) = (strided(&self.re)?, strided(&k.re)?, strided(&v.re)?);
        let [batch @ .., rows, width] = self.shape() else {
            return Err(Error::value("attention_job", "takes (…, rows, width)"));
        };
        if !takes(target, self.dtype(), *width) {
            let why = format!(
                "no attention kernel for {} of width {width} on {}",
                self.dtype(),
                target.id()
            );
            return Err(Error::value("attention_job", why));
        }
        let maps = matrices(batch, *rows, *width, &q.strides).is_some();
        let of = Shape::of(*width, causal, maps, target);
        let sizes = (*rows, *rows, *width);
        let text = render((&q, &k, &v), sizes, batch, (1.0, self.dtype(), of)).text;
        Ok(job(&text, of, target))
    }
}

impl Gpu {
    /// Whether [`Gpu::attention`] takes rows of this width and dtype.
    pub(crate) fn has_attention(&self, dtype: DType, width: usize) -> bool {
        takes(self.device.target(), dtype, width)
    }

    /// The elements of a node with neighbouring elements of a row that start at a multiple of
    /// sixteen bytes: its own, or a copy.
    fn aligned(self: &Arc<Self>, node: &Arc<Node>) -> Result<Buffer> {
        let own = strided(node)?;
        let (last, rest) = own.strides.split_last().ok_or(Error::Inside("rows without axes"))?;
        let base = self.own_memory(&own)?.address() % 16 == 0 && own.offset % 8 == 0;
        if base && *last == 1 && rest.iter().all(|s| s % 8 == 0) {
            return Ok(own);
        }
        let copy = self.duplicate(node)?;
        crate::eval::value(&copy)
    }

    /// softmax(q kᵀ scale) v of nodes (batch…, rows, width) with equal batches.
    pub(crate) fn attention(
        self: &Arc<Self>,
        [q, k, v]: [&Arc<Node>; 3],
        causal: bool,
        scale: f32,
    ) -> Result<Buffer> {
        const WRONG: Error = Error::Inside("attention of other shapes");
        let ([batch @ .., rows, width], [.., keys, _]) = (&q.shape[..], &k.shape[..]) else {
            return Err(WRONG);
        };
        if let Some(n) = [*rows, *keys].into_iter().find(|n| *n >= 1 << 31) {
            let why = format!("{n} rows exceed the limit of one launch");
            return Err(Error::value("scaled_dot_product_attention", why));
        }
        let target = self.device.target().clone();
        let (x, y, z) = (self.aligned(q)?, self.aligned(k)?, self.aligned(v)?);
        let described = [(&x, *rows), (&y, *keys), (&z, *keys)]
            .map(|(b, rows)| matrices(batch, rows, *width, &b.strides));
        let maps = described.iter().all(Option::is_some);
        let of = Shape::of(*width, causal, maps, &target);
        let sizes = (*rows, *keys, *width);
        let rendered = render((&x, &y, &z), sizes, batch, (scale, q.dtype, of));
        let kernel = self.kernel("attention", &rendered.text, |text| job(text, of, &target))?;
        let to = self.memory(q.numel() * q.dtype.size())?;
        let mut args = vec![Arg::from(&to)];
        let mut maps = Vec::new();
        for (buffer, matrices) in [&x, &y, &z].into_iter().zip(described.iter().flatten()) {
            if of.groups {
                maps.push(self.map_of(buffer, matrices)?);
            }
        }
        for buffer in [&x, &y, &z] {
            args.push(Arg::from(self.own_memory(buffer)?));
        }
        args.extend(maps.iter().map(|m| Arg::Bytes(m.bytes())));
        let grid = Grid { blocks: rendered.blocks, threads: of.threads(), shared: of.shared() };
        self.send(&kernel, grid, &rendered.numbers, &args)?;
        Ok(Buffer::packed(Store::Gpu(Arc::clone(self), to), &q.shape))
    }
}
