//! Contractions on a GPU: `product.h` and `product_mma.h`, specialised by generated source. The key
//! has dtypes, numbers of axes after merging, the layouts of the operands, the size of tiles, and
//! the element-wise operations on the result. Extents and strides are arguments.

use super::Gpu;
use super::launch::Grid;
use super::render::{self, Rendered, Writer, stored, to_stored};
use super::tiles::{
    Kind, OperandLayout, Tiles, has_maps, has_units, layout_of, matrices, tiles, wgmma,
};
use crate::contract::{Contraction, Operand};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::hash::Words;
use crate::memory::{Buffer, Store};
use crate::program::{Instr, Leaf, Map, Program, Step};
use crate::shape::numel;
use kjit_engine::{
    Arg, Constants, DeviceBuffer, Job, Kernel, Matrices, MatrixUnit, Options, Source, Target,
    TensorMap,
};
use std::fmt::Write;
use std::hash::Hash;
use std::sync::{Arc, PoisonError};

/// Maximum number of prepared products of a device. When it is exceeded, they are dropped.
const MOST_PREPARED: usize = 4096;

/// Multiplications beyond which operands are copied to aligned rows.
const WORTH_A_COPY: usize = 1 << 28;

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
        layout_of: OperandLayout,
    ) {
        let mut batch = self.digits("batch", &c.batch, &o.batch);
        // The offset belongs to each batch.
        let offset = self.number(o.buffer.offset);
        batch = batch.replace("return ", &format!("return {offset} + "));
        let own = self.digits("own", own, &o.own);
        let depth = self.digits("depth", &c.depth, &o.depth);
        let layout_of = layout_of as u32;
        self.line(&format!(
            "struct {name} {{\n    static constexpr u32 LIE = {layout_of};\n{batch}{own}{depth}}};"
        ));
    }
}

/// The program that stores a result unchanged.
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

/// The source and the numbers of a launch with `blocks` blocks.
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
    w.operand("Left", &c.left, c, &c.rows, layout_of(&c.left, &c.rows, &c.depth, dtype, t));
    w.operand("Right", &c.right, c, &c.cols, layout_of(&c.right, &c.cols, &c.depth, dtype, t));
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

/// The engine's source of a kernel for matrix units.
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
pub(super) fn job(text: &str, t: Tiles, target: &Target) -> Job {
    let wave = target.default_wave();
    let source = source("product", text);
    let mut constants = Constants::new().set("KJ_BLOCK", t.block(wave));
    match t.kind {
        Kind::Fma => {}
        Kind::Mma | Kind::Wgmma => {
            // Room for two blocks: with 128 registers one loads while the other multiplies (H100,
            // 4096³ f16: 273 TFLOP/s, 236 with one).
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

/// A product that is ready to be launched: its kernel, and the numbers of its launch.
#[derive(Clone)]
pub(super) struct PreparedProduct {
    kernel: Kernel,
    tiles: Tiles,
    blocks: usize,
    numbers: Vec<i64>,
    /// Numbers that are constants of the program: number, step.
    constants: Vec<(usize, usize)>,
    /// Whether it reports wrong indices.
    looks_up: bool,
}

/// What a prepared product depends on: everything but the memory and the program's constants.
fn key(c: &Contraction, program: &Program) -> Box<[u64]> {
    let mut words = Words(Vec::with_capacity(128));
    (crate::tuning::generation(), c.dtype, &c.batch, &c.rows, &c.cols, &c.depth).hash(&mut words);
    for o in [&c.left, &c.right] {
        (odd(&o.buffer), o.buffer.offset, &o.batch, &o.own, &o.depth).hash(&mut words);
    }
    (&program.shape, program.out, &program.maps).hash(&mut words);
    for step in &program.steps {
        match step.instr {
            Instr::Constant(_) => (Instr::Constant(0), step.dtype).hash(&mut words),
            _ => step.hash(&mut words),
        }
    }
    for leaf in &program.leaves {
        (leaf.dtype, odd(&leaf.buffer)).hash(&mut words);
    }
    words.0.into_boxed_slice()
}

/// Whether a buffer's memory starts at an odd place: memory of another library.
fn odd(buffer: &Buffer) -> bool {
    matches!(&buffer.store, Store::Gpu(_, memory) if !memory.address().is_multiple_of(16))
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
        let own = program.is_none().then(|| plain(c.dtype, elements));
        let Some(program) = program.or(own.as_ref()) else {
            return Err(Error::Inside("a product without a program"));
        };
        let words = key(c, program);
        let products = || self.products.lock().unwrap_or_else(PoisonError::into_inner);
        let known = products().get(&words).cloned();
        for (n, what) in [(&c.rows, "rows"), (&c.cols, "columns"), (&c.depth, "products")] {
            if numel(n) >= 1 << 31 {
                let why = format!("{} {what} exceed the limit of one launch", numel(n));
                return Err(Error::value("matmul", why));
            }
        }
        let to = self.memory(elements * program.dtype().size())?;
        if let Some(prepared) = known {
            self.launch_product(&prepared, c, program, &to)?;
        } else {
            let copy = self.product_of_aligned_copies(c, self.device.target())?;
            let whole = copy.as_ref().unwrap_or(c);
            let tiles = self.chosen(whole, program, &to)?;
            let prepared = Arc::new(self.prepare_product(whole, program, tiles)?);
            self.launch_product(&prepared, whole, program, &to)?;
            // Copies have other strides, and the time of such products is not the host's.
            if copy.is_none() {
                let mut products = products();
                if products.len() >= MOST_PREPARED {
                    products.clear();
                }
                products.insert(words, prepared);
            }
        }
        Ok(Buffer::packed(Store::Gpu(Arc::clone(self), to), shape))
    }

    /// The text of a product's kernel with some tiles.
    pub(super) fn product_text(&self, c: &Contraction, program: &Program, tiles: Tiles) -> String {
        render(c, program, tiles, 1).text
    }

    /// Renders, compiles and loads a product's kernel.
    pub(super) fn prepare_product(
        &self,
        c: &Contraction,
        program: &Program,
        tiles: Tiles,
    ) -> Result<PreparedProduct> {
        let target = self.device.target();
        let units = self.device.info().units as usize;
        let blocks = match tiles.kind {
            Kind::Wgmma => tiles.blocks(c).min(units.max(1)),
            _ => tiles.blocks(c),
        };
        let mut rendered = render(c, program, tiles, blocks);
        let kernel = self.kernel("product", &rendered.text, |text| job(text, tiles, target))?;
        let looks_up = self.lookups(&mut rendered)?.is_some();
        let Rendered { numbers, constants, .. } = rendered;
        Ok(PreparedProduct { kernel, tiles, blocks, numbers, constants, looks_up })
    }

    /// Launches a prepared product, whose results go to `to`.
    pub(super) fn launch_product(
        &self,
        prepared: &PreparedProduct,
        c: &Contraction,
        program: &Program,
        to: &DeviceBuffer<u8>,
    ) -> Result<()> {
        let t = prepared.tiles;
        let mut args = Vec::with_capacity(6 + program.leaves.len());
        args.push(Arg::from(to));
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
        if prepared.looks_up {
            args.push(Arg::from(self.error_slots()?));
        }
        for leaf in &program.leaves {
            args.push(Arg::from(self.own_memory(&leaf.buffer)?));
        }
        let threads = t.block(self.device.target().default_wave());
        let grid = Grid { blocks: prepared.blocks, threads, shared: t.shared() };
        if prepared.constants.is_empty() {
            return self.send(&prepared.kernel, grid, &prepared.numbers, &args);
        }
        let mut numbers = prepared.numbers.clone();
        for (number, reg) in &prepared.constants {
            if let (Some(n), Some(Step { instr: Instr::Constant(bits), .. })) =
                (numbers.get_mut(*number), program.steps.get(*reg))
            {
                *n = *bits as i64;
            }
        }
        self.send(&prepared.kernel, grid, &numbers, &args)
    }

    /// A large product of f16 or bf16 with rows that are not aligned to 16 bytes: such operands are
    /// copied to aligned rows (H100: 4095³ f16 25 TFLOP/s without).
    fn product_of_aligned_copies(
        self: &Arc<Self>,
        c: &Contraction,
        target: &Target,
    ) -> Result<Option<Contraction>> {
        let simple = [&c.batch, &c.rows, &c.cols, &c.depth].iter().all(|a| a.len() <= 1);
        let size =
            [&c.rows, &c.cols, &c.depth].iter().fold(1, |n: usize, a| n.saturating_mul(numel(a)));
        let maps = target.arch().matrix == MatrixUnit::Wgmma && has_units(target, c.dtype);
        if !simple || !maps || size < WORTH_A_COPY || has_maps(c, target) {
            return Ok(None);
        }
        let aligned = |o: &Operand, own: &[usize]| {
            layout_of(o, own, &c.depth, c.dtype, wgmma(128, 6)) as u32 <= OperandLayout::Rows as u32
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
        self.map_of(&o.buffer, &matrices(o, own, c, layout_of(o, own, &c.depth, c.dtype, t), tile))
    }

    /// The description of f16 or bf16 matrices that start at a buffer's first element.
    pub(super) fn map_of(&self, buffer: &Buffer, of: &Matrices) -> Result<TensorMap> {
        let from = usize::try_from(buffer.offset).unwrap_or(usize::MAX).saturating_mul(2);
        let part = self.own_memory(buffer)?.slice(from..)?;
        self.device.tensor_map(&part, of)?.ok_or(Error::Inside("a driver without tensor maps"))
    }
}
