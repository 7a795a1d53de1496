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
use crate::node::{Node, Sight};
use crate::program::Program;
use crate::shape::numel;
use crate::tensor::Tensor;
use crate::view::collapse;
use kjit_engine::{Arg, Constants, Job, Matrices, MatrixUnit, Options, Target, Vendor};
use std::sync::Arc;

/// The widest rows of queries, keys and values.
const WIDEST: usize = 256;

/// A mask of an attention: its elements, by strides of (batch…, rows, keys).
struct Mask<'a> {
    buffer: &'a Buffer,
    dtype: DType,
}

/// The constants of `attention.h`.
#[derive(Clone, Copy, Debug)]
struct Shape {
    width: u32,
    /// Keys of a tile.
    tile: u32,
    /// Products of sixteen queries in a wave.
    high: u32,
    waves: u32,
    stages: u32,
    wave: u32,
    /// Weights pass through shared memory.
    passes: bool,
    /// `attention_wgmma.h`: 128 queries of a block, operands by the copy engine.
    groups: bool,
}

impl Shape {
    /// `maps`: whether the copy engine can bring the operands.
    fn of(width: usize, maps: bool, target: &Target) -> Shape {
        let width = width.next_multiple_of(64) as u32;
        // Wider rows than 128: smaller tiles, so that 64 KB of shared memory are enough.
        let wide = width > 128;
        let nvidia = target.vendor() == Vendor::Nvidia;
        let roomy = nvidia && target.arch().shared_per_block > 64 << 10;
        Shape {
            width,
            tile: if wide { 32 } else { 64 },
            high: if nvidia && width == 64 { 2 } else { 1 },
            waves: if wide && !nvidia { 2 } else { 4 },
            stages: if roomy { 2 } else { 1 },
            wave: target.default_wave(),
            passes: !nvidia,
            groups: maps && !wide && target.arch().matrix == MatrixUnit::Wgmma,
        }
    }

    /// Queries of a block: those of its waves, or of two groups of four.
    const fn queries(self) -> u32 {
        if self.groups { 128 } else { 16 * self.waves * self.high }
    }

    const fn threads(self) -> u32 {
        if self.groups { 384 } else { self.waves * self.wave }
    }

    const fn shared(self) -> u32 {
        if self.groups {
            // Room to align; queries, and two tiles each of keys and values.
            return 1024 + 2 * 5 * 128 * self.width;
        }
        let weights = if self.passes { self.queries() * 64 } else { 0 };
        2 * ((self.queries() + self.stages * 2 * self.tile) * self.width + weights)
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
    mask: Option<&Mask<'_>>,
    (rows, keys, width): (usize, usize, usize),
    batch: &[usize],
    (sight, dtype, of): (Sight, DType, Shape),
) -> Rendered {
    let program = Program::empty();
    let mut w = Writer::new(&program, false);
    for n in [rows, keys, width, numel(batch)] {
        w.number(n as i64);
    }
    w.number(i64::from(sight.scale));
    for b in [q, k, v] {
        // (groups) The number of a batch in a map is that of the batch, or 0.
        let shared = b.strides.iter().take(batch.len()).all(|s| *s == 0);
        w.number(i64::from(!shared));
    }
    for n in [sight.right, sight.left] {
        w.number(i64::from(n.unwrap_or(0)));
    }
    let rank = batch.len();
    let part = |b: &Buffer| b.strides.get(..rank).unwrap_or_default().to_vec();
    let stride = |b: &Buffer, axis: usize| b.strides.get(axis).copied().unwrap_or(0);
    let mut lists = vec![part(q), part(k), part(v)];
    lists.extend(mask.map(|m| part(m.buffer)));
    let merged = collapse(batch, &mut lists);
    for ((name, b), list) in [("Query", q), ("Key", k), ("Value", v)].into_iter().zip(&lists) {
        let offset = w.number(b.offset);
        let batch = w.digits("batch", &merged, list);
        let batch = batch.replace("return ", &format!("return {offset} + "));
        let own = w.digits("own", &[rows], &[stride(b, rank)]);
        w.line(&format!("struct {name} {{\n{batch}{own}}};"));
    }
    match (mask, lists.get(3)) {
        (Some(Mask { buffer, .. }), Some(list)) => {
            let offset = w.number(buffer.offset);
            let batch = w.digits("batch", &merged, list);
            let batch = batch.replace("return ", &format!("return {offset} + "));
            let row = w.digits("row", &[rows], &[stride(buffer, rank)]);
            let key = w.digits("key", &[keys], &[stride(buffer, rank + 1)]);
            w.line(&format!(
                "struct Mask {{\n{batch}{row}{key}\
                 \x20   STEP i64 at(const Numbers& p, u32 i, u32 j) {{\n\
                 \x20       return row(p, i) + key(p, j);\n    }}\n}};"
            ));
        }
        _ => w.line(
            "struct Mask {\n    STEP i64 batch(const Numbers&, u32) { return 0; }\n\
             \x20   STEP i64 at(const Numbers&, u32, u32) { return 0; }\n};",
        ),
    }
    let (of_type, cell) = (stored(dtype), stored(mask.map_or(DType::U8, |m| m.dtype)));
    let Shape { width, tile, high, stages, .. } = of;
    let (left, right) = (sight.left.is_some(), sight.right.is_some());
    w.line(&format!(
        "struct Shape {{\n    using In = {of_type};\n    using Mask = ::Mask;\n\
         \x20   using Cell = {cell};\n\
         \x20   static constexpr u32 WIDTH = {width}, BK = {tile}, MI = {high}, STAGES = {stages};\n\
         \x20   static constexpr bool LEFT = {left}, RIGHT = {right}, MASKED = {};\n}};",
        mask.is_some()
    ));
    let start = format!(
        "KERNEL attention(Numbers p, {of_type}* to, const {of_type}* q, const {of_type}* k,\n\
         \x20                const {of_type}* v, const {cell}* mask"
    );
    let kernel = match of.groups {
        false => format!(
            "#include \"attention.h\"\n{start}) {{\n    LDS_DYNAMIC(pool);\n\
             \x20   Attention<Shape>::run(p, to, q, k, v, mask, pool);\n}}\n"
        ),
        true => format!(
            "#include \"attention_wgmma.h\"\n{start}, const __grid_constant__ TensorMap x,\n\
             \x20                const __grid_constant__ TensorMap y,\n\
             \x20                const __grid_constant__ TensorMap z) {{\n\
             \x20   LDS_DYNAMIC(pool);\n    LDS_ARRAY(AttentionWgmma<Shape>::Shared, lds, 1);\n\
             \x20   AttentionWgmma<Shape>::run(p, to, &x, &y, &z, mask, pool, lds[0]);\n}}\n"
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
    /// The engine's compile job of [`Tensor::attention`] for a target whose kernel takes these
    /// tensors: (…, rows, width) of halves, at most 256 wide, and a mask (…, rows, rows) of bools
    /// or of their dtype. Needs no GPU.
    ///
    /// # Errors
    /// [`Error::Value`] if the target's kernel does not take them; errors of computing them.
    pub fn attention_job(
        &self,
        k: &Tensor,
        v: &Tensor,
        mask: Option<&Tensor>,
        window: (Option<u32>, Option<u32>),
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
        let of = Shape::of(*width, maps, target);
        let sizes = (*rows, *rows, *width);
        let sight = Sight { left: window.0, right: window.1, scale: 1.0f32.to_bits() };
        let cells = mask.map(|m| strided(&m.re)).transpose()?;
        let dtype = mask.map_or(DType::Bool, Tensor::dtype);
        let mask = cells.as_ref().map(|buffer| Mask { buffer, dtype });
        let text =
            render((&q, &k, &v), mask.as_ref(), sizes, batch, (sight, self.dtype(), of)).text;
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

    /// softmax(q kᵀ scale + mask) v of nodes (batch…, rows, width) with equal batches, and of a
    /// mask (batch…, rows, keys) of bools or of their dtype.
    pub(crate) fn attention(
        self: &Arc<Self>,
        [q, k, v]: [&Arc<Node>; 3],
        mask: Option<&Arc<Node>>,
        sight: Sight,
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
        let cells = mask.map(|m| Ok::<_, Error>((strided(m)?, m.dtype))).transpose()?;
        let mask = cells.as_ref().map(|(buffer, dtype)| Mask { buffer, dtype: *dtype });
        let described = [(&x, *rows), (&y, *keys), (&z, *keys)]
            .map(|(b, rows)| matrices(batch, rows, *width, &b.strides));
        let maps = described.iter().all(Option::is_some);
        let of = Shape::of(*width, maps, &target);
        let sizes = (*rows, *keys, *width);
        let rendered = render((&x, &y, &z), mask.as_ref(), sizes, batch, (sight, q.dtype, of));
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
        // Without a mask nothing is read there.
        args.push(Arg::from(self.own_memory(mask.as_ref().map_or(&x, |m| m.buffer))?));
        args.extend(maps.iter().map(|m| Arg::Bytes(m.bytes())));
        let grid = Grid { blocks: rendered.blocks, threads: of.threads(), shared: of.shared() };
        self.send(&kernel, grid, &rendered.numbers, &args)?;
        Ok(Buffer::packed(Store::Gpu(Arc::clone(self), to), &q.shape))
    }
}
