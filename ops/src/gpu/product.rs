//! Contractions on a GPU: `product.h` and `product_mma.h` specialised by text. The key has dtypes,
//! numbers of axes after merging, how the operands' elements lie, the size of tiles, and the
//! element-wise operations on the result. Extents and strides are arguments.

use super::Gpu;
use super::elementwise::{Work, longest};
use super::launch::Grid;
use super::render::{self, Rendered, Writer, stored, to_stored};
use crate::contract::{Contraction, Operand};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::memory::{Buffer, Store};
use crate::program::{Instr, Leaf, Map, Program, Step};
use crate::shape::numel;
use kjit_engine::{
    Arg, Constants, Job, Matrices, MatrixUnit, Options, Source, Target, TensorMap, Vendor,
};
use std::fmt::Write;
use std::sync::Arc;

/// How an operand's elements lie (`LIE_…` of product.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OperandLayout {
    Depths,
    Rows,
    Across,
    Along,
}

/// Multiplications beyond which operands are copied to aligned rows.
const WORTH_A_COPY: usize = 1 << 28;

/// The skeleton of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// `product.h`: multiplications and additions in f32, of f64 in f64.
    Fma,
    /// `product_mma.h`: matrix units of a wave.
    Mma,
    /// `product_wgmma.h`: those of four warps, operands by the copy engine (sm_90a).
    Wgmma,
}

/// The tiles of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tiles {
    kind: Kind,
    rows: u32,
    cols: u32,
    waves: (u32, u32),
    stages: u32,
    /// (Wgmma) Groups take tiles in turn (`APART`).
    apart: bool,
}

impl Tiles {
    const fn block(self, wave: u32) -> u32 {
        match self.kind {
            Kind::Fma => 256,
            Kind::Mma => self.waves.0 * self.waves.1 * wave,
            Kind::Wgmma => 384,
        }
    }

    const fn shared(self) -> u32 {
        let tiles = self.stages * (self.rows + self.cols) * 128;
        match self.kind {
            Kind::Fma => 0,
            Kind::Mma => tiles,
            // Room to align the tiles, and 64 × 64 results of each group.
            Kind::Wgmma => 1024 + tiles + 16384,
        }
    }

    fn blocks(self, c: &Contraction) -> usize {
        let tiles = |n: &[usize], of: u32| numel(n).div_ceil(of as usize);
        tiles(&c.rows, self.rows) * tiles(&c.cols, self.cols) * numel(&c.batch)
    }
}

/// Whether the matrix units of a target multiply a dtype (`mma.h`, families 1 to 5).
pub(super) fn has_units(target: &Target, dtype: DType) -> bool {
    let wave = target.default_wave();
    let unit = matches!(
        (target.arch().matrix, wave),
        (MatrixUnit::MmaSync | MatrixUnit::Wgmma, _)
            | (MatrixUnit::Mfma, 64)
            | (MatrixUnit::Wmma | MatrixUnit::Wmma12 | MatrixUnit::Wmma1250, 32)
    );
    match dtype {
        DType::F16 => unit,
        // Elsewhere `mma.h` has products of f16 alone.
        DType::BF16 => unit && target.vendor() == Vendor::Nvidia && copies_ahead(target),
        _ => false,
    }
}

/// sm_80 and later: asynchronous copies, products of bf16, and more than 64 KB for a block.
fn copies_ahead(target: &Target) -> bool {
    target.vendor() == Vendor::Nvidia && target.arch().shared_per_block > 64 << 10
}

const fn wgmma(cols: u32, stages: u32) -> Tiles {
    Tiles { kind: Kind::Wgmma, rows: 128, cols, waves: (1, 1), stages, apart: false }
}

const fn mma(rows: u32, cols: u32, waves: (u32, u32), stages: u32) -> Tiles {
    Tiles { kind: Kind::Mma, rows, cols, waves, stages, apart: false }
}

const fn fma(n: u32) -> Tiles {
    Tiles { kind: Kind::Fma, rows: n, cols: n, waves: (1, 1), stages: 1, apart: false }
}

/// Tiles and their speed on a full device, as a share of the fastest of their kind (H100, 4096³,
/// 2026-11-27: 726, 648, 273, 217 TFLOP/s of halves; 42, 32 of f32; the others are estimates).
const MAPS: &[(Tiles, u64)] = &[(wgmma(256, 4), 100), (wgmma(128, 6), 89), (wgmma(64, 8), 70)];
/// With functions of many operations after the product, which a group computes while the other
/// multiplies.
const APART: &[(Tiles, u64)] =
    &[(Tiles { apart: true, ..wgmma(128, 6) }, 100), (wgmma(128, 6), 80), (wgmma(64, 8), 65)];
const AHEAD: &[(Tiles, u64)] =
    &[(mma(128, 128, (2, 4), 3), 37), (mma(64, 128, (2, 4), 3), 33), (mma(64, 64, (2, 2), 3), 30)];
const UNITS: &[(Tiles, u64)] = &[(mma(64, 64, (2, 2), 2), 100)];
const WIDE: &[(Tiles, u64)] = &[(fma(64), 100)];
const PLAIN: &[(Tiles, u64)] = &[(fma(128), 100), (fma(64), 76), (fma(32), 45)];

/// The tiles that take the least time: rounds of blocks on all compute units, times their size.
fn tiles(c: &Contraction, program: &Program, target: &Target, units: usize) -> Tiles {
    let maps: &[(Tiles, u64)] = match has_maps(c, target) {
        true if longest(program) > Work::Short => APART,
        true => MAPS,
        false => &[],
    };
    let list = match has_units(target, c.dtype) {
        true if copies_ahead(target) => AHEAD,
        true => UNITS,
        false if c.dtype == DType::F64 => WIDE,
        false => PLAIN,
    };
    let time = |(t, speed): &&(Tiles, u64)| {
        let rounds = t.blocks(c).div_ceil(units.max(1)) as u64;
        rounds.saturating_mul(u64::from(t.rows * t.cols) * 1000) / speed
    };
    maps.iter().chain(list).min_by_key(time).map_or(fma(32), |(t, _)| *t)
}

/// Whether the copy engine of sm_90a can bring both operands.
fn has_maps(c: &Contraction, target: &Target) -> bool {
    let map = |o: &Operand, own: &[usize]| {
        let strides = [&o.batch[..], &o.own, &o.depth];
        matches!(
            lie(o, own, &c.depth, c.dtype, wgmma(128, 6)),
            OperandLayout::Depths | OperandLayout::Rows
        ) && strides.iter().all(|s| s.len() <= 1)
            && strides.iter().all(|s| s.iter().all(|s| (0..1 << 38).contains(s)))
            && [&o.own, &o.depth].iter().all(|s| !s.contains(&0))
    };
    target.arch().matrix == MatrixUnit::Wgmma
        && has_units(target, c.dtype)
        && map(&c.left, &c.rows)
        && map(&c.right, &c.cols)
        && numel(&c.depth) >= 64
}

/// The description of an operand for the copy engine, of which a box has `tile` rows.
fn matrices(
    o: &Operand,
    own: &[usize],
    c: &Contraction,
    lie: OperandLayout,
    tile: u32,
) -> Matrices {
    let first = |list: &[i64]| list.first().map_or(0, |s| s.unsigned_abs());
    let (across, deep) = (numel(own) as u64, numel(&c.depth) as u64);
    let step = first(&o.batch);
    let (width, rows, row, tile) = match lie {
        OperandLayout::Rows => (across, deep, first(&o.depth), 64),
        _ => (deep, across, first(&o.own), tile),
    };
    // A matrix of one row, or one matrix, has no distance to the next.
    let bytes = |step: u64, count: u64| if count > 1 { step * 2 } else { 16 };
    let count = if step == 0 { 1 } else { numel(&c.batch) as u64 };
    let (row_bytes, matrix_bytes) = (bytes(row, rows), bytes(step, count));
    Matrices { width, rows, count, row_bytes, matrix_bytes, tile }
}

/// How an operand lies. `own` are the sizes of its rows or columns.
fn lie(o: &Operand, own: &[usize], depth: &[usize], dtype: DType, tiles: Tiles) -> OperandLayout {
    let wide = 16 / dtype.size() as i64;
    let vectors = tiles.kind != Kind::Fma || dtype == DType::F32;
    let aligned = |list: &[i64]| list.iter().all(|s| s % wide == 0);
    let base = match &o.buffer.store {
        Store::Gpu(_, memory) => memory.address() % 16 == 0,
        Store::Host(_) => true,
    };
    let whole = base && o.buffer.offset % wide == 0 && aligned(&o.batch);
    // The copy engine leaves out what is behind the end.
    let whole_runs = |n: usize| tiles.kind == Kind::Wgmma || n as i64 % wide == 0;
    // Neighbours in the last axis, in whole vectors; other axes start at vectors.
    let runs = |sizes: &[usize], strides: &[i64]| match (sizes, strides) {
        ([n], [1]) => whole_runs(*n),
        ([.., n], [rest @ .., 1]) => *n as i64 % wide == 0 && aligned(rest),
        _ => false,
    };
    if vectors && whole && runs(depth, &o.depth) && aligned(&o.own) {
        return OperandLayout::Depths;
    }
    if vectors && whole && runs(own, &o.own) && aligned(&o.depth) {
        return OperandLayout::Rows;
    }
    // Neighbours along the depth, at least a sector of 32 bytes of them.
    match (depth.last(), o.depth.last(), o.own.last()) {
        (Some(16..), Some(1), last) if last != Some(&1) => OperandLayout::Along,
        _ => OperandLayout::Across,
    }
}

impl Writer<'_> {
    /// `STEP i64 NAME(…, u32 rest)`: the sum of the digits of `rest`, the last axis first, times
    /// the strides.
    pub(super) fn digits(&mut self, name: &str, sizes: &[usize], strides: &[i64]) -> String {
        let mut text = format!("    STEP i64 {name}(const Numbers& p, u32 rest) {{\n");
        let mut sum = "0".to_owned();
        for (k, (n, s)) in sizes.iter().zip(strides).enumerate().rev() {
            let digit = match k {
                0 => "rest".to_owned(),
                _ => {
                    let n = self.number(*n as i64);
                    _ = writeln!(text, "        const u32 q{k} = rest / (u32){n};");
                    _ = writeln!(text, "        const u32 d{k} = rest - q{k} * (u32){n};");
                    _ = writeln!(text, "        rest = q{k};");
                    format!("d{k}")
                }
            };
            match s {
                0 => {}
                1 => _ = write!(sum, " + (i64){digit}"),
                s => {
                    let stride = self.number(*s);
                    _ = write!(sum, " + (i64){digit} * {stride}");
                }
            }
            if k > 0 {
                // The first axis is rendered last and reads what is left.
                _ = writeln!(text, "        const i64 s{k} = {sum};");
                sum = format!("s{k}");
            }
        }
        text + &format!("        (void)p, (void)rest;\n        return {sum};\n    }}\n")
    }

    fn operand(
        &mut self,
        name: &str,
        o: &Operand,
        c: &Contraction,
        own: &[usize],
        lie: OperandLayout,
    ) {
        let mut batch = self.digits("batch", &c.batch, &o.batch);
        // The offset belongs to each batch.
        let offset = self.number(o.buffer.offset);
        batch = batch.replace("return ", &format!("return {offset} + "));
        let own = self.digits("own", own, &o.own);
        let depth = self.digits("depth", &c.depth, &o.depth);
        let lie = lie as u32;
        self.line(&format!(
            "struct {name} {{\n    static constexpr u32 LIE = {lie};\n{batch}{own}{depth}}};"
        ));
    }
}

/// The program that leaves a result as it is.
fn plain(dtype: DType, elements: usize) -> Program {
    Program {
        shape: vec![elements],
        folded: 0,
        steps: vec![Step { instr: Instr::Given(0), dtype }],
        leaves: Vec::new(),
        maps: Vec::new(),
        out: 0,
    }
}

/// The dtype of a product's sums.
const fn summed(dtype: DType) -> DType {
    if matches!(dtype, DType::F64) { DType::F64 } else { DType::F32 }
}

/// The text and the numbers; `blocks` are those of the launch.
fn render(c: &Contraction, program: &Program, t: Tiles, blocks: usize) -> Rendered {
    let mut w = Writer::new(program, render::narrow(program, &[]));
    for n in [&c.rows, &c.cols, &c.depth] {
        w.number(numel(n) as i64);
    }
    if t.kind == Kind::Wgmma {
        // The number of a batch in an operand's map is that of the batch, or 0.
        let steps = [&c.left, &c.right].map(|o| i64::from(o.batch.iter().any(|s| *s != 0)));
        for n in [t.blocks(c) as i64, blocks as i64].into_iter().chain(steps) {
            w.number(n);
        }
    }
    // A result that nothing follows is rounded once, where it is stored.
    let bare = matches!(program.steps.get(program.out), Some(s) if s.instr == Instr::Given(0));
    if !bare {
        let sizes = [numel(&c.batch), numel(&c.rows), numel(&c.cols)];
        w.value(summed(c.dtype), sizes, ["1", "p.n[0]", "p.n[1]"]);
    }
    let (Tiles { rows, cols, stages, waves: (down, across), apart, .. }, dtype) = (t, c.dtype);
    w.operand("Left", &c.left, c, &c.rows, lie(&c.left, &c.rows, &c.depth, dtype, t));
    w.operand("Right", &c.right, c, &c.cols, lie(&c.right, &c.cols, &c.depth, dtype, t));
    w.line(&format!(
        "struct Shape {{\n    static constexpr u32 BM = {rows}, BN = {cols};\n\
         \x20   static constexpr u32 WAVES_M = {down}, WAVES_N = {across}, STAGES = {stages};\n\
         \x20   static constexpr bool APART = {apart};\n\
         \x20   using In = {};\n    using Left = ::Left;\n    using Right = ::Right;\n}};",
        stored(dtype)
    ));
    let (types, names) = (render::buffers(program, true), render::buffers(program, false));
    let (out, of) = (program.dtype(), stored(dtype));
    let value = match bare {
        true => to_stored(out, "v"),
        false => to_stored(out, &format!("value(p{names}, z, row, col, v)")),
    };
    let (out, value) = (stored(out), value.replace("round_bf16(", "narrow_bf16("));
    let start = format!("KERNEL product(Numbers p, {out}* to, const {of}* left, const {of}* right");
    let sum = stored(summed(dtype));
    let put = format!(
        "[&](u32 z, u32 row, u32 col, {sum} v) -> {out} {{\n\
         \x20       (void)z, (void)row, (void)col;\n        return {value};\n    }});\n}}\n"
    );
    let kernel = match t.kind {
        Kind::Fma => format!(
            "#include \"product.h\"\n{start}{types}) {{\n\
             \x20   ProductFma<Shape>::run(p, left, right, to, {put}"
        ),
        Kind::Mma => format!(
            "#include \"product_mma.h\"\n{start}{types}) {{\n    LDS_DYNAMIC(pool);\n\
             \x20   ProductMma<Shape>::run(p, left, right, pool, to, {put}"
        ),
        Kind::Wgmma => format!(
            "#include \"product_wgmma.h\"\n{start}, const __grid_constant__ TensorMap x,\n\
             \x20              const __grid_constant__ TensorMap y{types}) {{\n\
             \x20   LDS_DYNAMIC(pool);\n    LDS_ARRAY(ProductWgmma<Shape>::Shared, lds, 1);\n\
             \x20   ProductWgmma<Shape>::run(p, &x, &y, to, pool, lds[0], {put}"
        ),
    };
    render::whole(w, &kernel, blocks)
}

/// The source of a text for matrix units.
pub(super) fn source(entry: &str, text: &str) -> Source {
    super::launch::source(entry, text)
        .file("product.h", include_str!("../../gpu/product.h"))
        .file("product_mma.h", include_str!("../../gpu/product_mma.h"))
        .file("product_wgmma.h", include_str!("../../gpu/product_wgmma.h"))
        .file("attention.h", include_str!("../../gpu/attention.h"))
        .file("attention_wgmma.h", include_str!("../../gpu/attention_wgmma.h"))
        .file("hopper.h", kjit_kernels::HOPPER)
        .file("mma.h", kjit_kernels::MATRICES)
}

/// The engine's compile job of a product.
fn job(text: &str, t: Tiles, target: &Target) -> Job {
    let wave = target.default_wave();
    let source = source("product", text);
    let mut constants = Constants::new().set("KJ_BLOCK", t.block(wave));
    match t.kind {
        Kind::Fma => {}
        Kind::Mma | Kind::Wgmma => {
            // Room for two blocks: with 128 registers one loads while the other multiplies (H100,
            // 4096³ halves: 273 TFLOP/s, 236 with one).
            if t.kind == Kind::Mma && t.rows == 128 && target.arch().unit.shared >= 2 * t.shared() {
                constants = constants.set("KJ_MIN_BLOCKS", 2u32);
            }
            for (name, value) in kjit_kernels::matrix_constants(target, wave).iter() {
                constants = constants.set(name.to_owned(), value.clone());
            }
        }
    }
    let options = Options::wave(wave).arch_specific(t.kind == Kind::Wgmma);
    Job::new(source, constants, options, target.clone())
}

/// The compile job of a contraction and of the operations on its result, with the largest tiles.
pub(super) fn product_job(c: &Contraction, program: Option<&Program>, target: &Target) -> Job {
    let elements = numel(&c.batch) * numel(&c.rows) * numel(&c.cols);
    let own = plain(c.dtype, elements);
    let program = program.unwrap_or(&own);
    let t = tiles(c, program, target, 1);
    job(&render(c, program, t, 1).text, t, target)
}

impl Gpu {
    /// Computes a contraction and, with a program, element-wise operations on its result, which the
    /// program's `Given(0)` is.
    pub(crate) fn product(
        self: &Arc<Self>,
        c: &Contraction,
        program: Option<&Program>,
        shape: &[usize],
    ) -> Result<Buffer> {
        let elements = numel(shape);
        let own = plain(c.dtype, elements);
        let program = program.unwrap_or(&own);
        for (n, what) in [(&c.rows, "rows"), (&c.cols, "columns"), (&c.depth, "products")] {
            if numel(n) >= 1 << 31 {
                let why = format!("{} {what} are more than one launch takes", numel(n));
                return Err(Error::value("matmul", why));
            }
        }
        let target = self.device.target().clone();
        let units = self.device.info().units as usize;
        let copy = self.pitched(c, &target)?;
        let c = copy.as_ref().unwrap_or(c);
        let t = tiles(c, program, &target, units);
        let blocks = match t.kind {
            Kind::Wgmma => t.blocks(c).min(units.max(1)),
            _ => t.blocks(c),
        };
        let mut rendered = render(c, program, t, blocks);
        let kernel = self.kernel("product", &rendered.text, |text| job(text, t, &target))?;
        let to = self.memory(elements * program.dtype().size())?;
        let mut args = vec![Arg::from(&to)];
        for operand in [&c.left, &c.right] {
            args.push(Arg::from(self.own_memory(&operand.buffer)?));
        }
        let maps = match t.kind {
            Kind::Wgmma => {
                let left = self.map(&c.left, &c.rows, c, t, t.rows)?;
                vec![left, self.map(&c.right, &c.cols, c, t, t.cols)?]
            }
            _ => Vec::new(),
        };
        args.extend(maps.iter().map(|m| Arg::Bytes(m.bytes())));
        args.extend(self.lookups(&mut rendered)?.map(Arg::from));
        for leaf in &program.leaves {
            args.push(Arg::from(self.own_memory(&leaf.buffer)?));
        }
        let threads = t.block(target.default_wave());
        let grid = Grid { blocks, threads, shared: t.shared() };
        self.send(&kernel, grid, &rendered.numbers, &args)?;
        Ok(Buffer::packed(Store::Gpu(Arc::clone(self), to), shape))
    }

    /// A large product of halves whose rows start at odd places, with copies of such operands whose
    /// rows start at multiples of sixteen bytes (H100: 4095³ halves 25 TFLOP/s without).
    fn pitched(self: &Arc<Self>, c: &Contraction, target: &Target) -> Result<Option<Contraction>> {
        let simple = [&c.batch, &c.rows, &c.cols, &c.depth].iter().all(|a| a.len() <= 1);
        let size =
            [&c.rows, &c.cols, &c.depth].iter().fold(1, |n: usize, a| n.saturating_mul(numel(a)));
        let maps = target.arch().matrix == MatrixUnit::Wgmma && has_units(target, c.dtype);
        if !simple || !maps || size < WORTH_A_COPY || has_maps(c, target) {
            return Ok(None);
        }
        let aligned = |o: &Operand, own: &[usize]| {
            lie(o, own, &c.depth, c.dtype, wgmma(128, 6)) as u32 <= OperandLayout::Rows as u32
        };
        let copy = |o: &Operand, own: &[usize]| -> Result<Operand> {
            if aligned(o, own) {
                return Ok(o.clone());
            }
            let shared = o.batch.iter().all(|s| *s == 0);
            let (rows, deep) = (numel(own), numel(&c.depth));
            let count = if shared { 1 } else { numel(&c.batch) };
            let pitch = deep.next_multiple_of(8) as i64;
            let first = |list: &[i64]| list.first().copied().unwrap_or(0);
            let strides = vec![first(&o.batch), first(&o.own), first(&o.depth)];
            let program = Program {
                shape: vec![count, rows, deep],
                steps: vec![Step { instr: Instr::Load(0, 0), dtype: c.dtype }],
                leaves: vec![Leaf { buffer: o.buffer.clone(), dtype: c.dtype }],
                maps: vec![Map { offset: o.buffer.offset, strides }],
                ..Program::empty()
            };
            let step = pitch * rows as i64;
            let to = self.memory(count * rows * pitch as usize * c.dtype.size())?;
            let map = Map { offset: 0, strides: vec![step, pitch, 1] };
            self.copy_to(&program, &map, &to)?;
            let store = Store::Gpu(Arc::clone(self), to);
            let buffer = Buffer { store, offset: 0, strides: Vec::new() };
            let batch = o.batch.iter().map(|s| if *s == 0 { 0 } else { step }).collect();
            Ok(Operand {
                buffer,
                batch,
                own: vec![pitch; own.len()],
                depth: vec![1; c.depth.len()],
            })
        };
        let (left, right) = (copy(&c.left, &c.rows)?, copy(&c.right, &c.cols)?);
        Ok(Some(Contraction { left, right, ..c.clone() }))
    }

    /// An operand's description for the copy engine.
    fn map(
        &self,
        o: &Operand,
        own: &[usize],
        c: &Contraction,
        t: Tiles,
        tile: u32,
    ) -> Result<TensorMap> {
        self.map_of(&o.buffer, &matrices(o, own, c, lie(o, own, &c.depth, c.dtype, t), tile))
    }

    /// The description of matrices of halves that start at a buffer's first element.
    pub(super) fn map_of(&self, buffer: &Buffer, of: &Matrices) -> Result<TensorMap> {
        let from = usize::try_from(buffer.offset).unwrap_or(usize::MAX).saturating_mul(2);
        let part = self.own_memory(buffer)?.slice(from..)?;
        self.device.tensor_map(&part, of)?.ok_or(Error::Inside("a driver without tensor maps"))
    }
}
