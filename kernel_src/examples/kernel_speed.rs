//! How fast the decode kernels read memory on the device at hand: a captured chain of dependent launches over distinct matrices, as a token
//! is. Prints µs a launch, GB/s, and % of the rate named by `KJIT_READ_LIMIT` (GB/s; 4637 on an H200). `KJIT_SWEEP=1` tries the whole tuning
//! space of each shape and prints the best five. `KJIT_ONLY=WORD` takes shapes with the word in their name, `KJIT_CSV=FILE` keeps every time.
//! `KJIT_LAYER=1` times the products of a layer one after the other instead; `KJIT_POOL=N` reads through N GiB of weights instead of one.

#![allow(clippy::print_stdout, reason = "a bench prints")]

use kjit_engine::{Config, Device, DeviceBuffer, Engine, Geometry, Isolation, Job, Stream, Target, args};
use kjit_kernels::Kernel;
use kjit_kernels::activations::Prologue;
use kjit_kernels::experts::{ExpertFinish, ExpertsSpec};
use kjit_kernels::format::Format;
use kjit_kernels::layout::Layout;
use kjit_kernels::matvec::{Finish, MatvecSpec, MatvecTuning, Segment};
use std::io::Write;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Weights are read round and round this much memory: far more than any last-level cache.
fn pool_bytes() -> usize {
    std::env::var("KJIT_POOL").ok().and_then(|p| p.parse::<usize>().ok()).unwrap_or(1) << 30
}
const LAUNCHES: usize = 48;

struct Bench {
    engine: Engine,
    device: Device,
    stream: Stream,
    pool: DeviceBuffer<u8>,
    limit: f64,
}

impl Bench {
    fn job(&self, kernel: &Kernel) -> Job {
        kernel.job(self.device.target())
    }

    /// Seconds that a captured chain takes, the best of a few.
    fn time(&self, chain: impl FnOnce() -> kjit_engine::Result<()>) -> Result<f64> {
        let graph = self.stream.capture(chain)?;
        let mut best = f64::INFINITY;
        for _ in 0..5 {
            let (from, to) = (self.device.timed_event()?, self.device.timed_event()?);
            self.stream.record(&from)?;
            self.stream.replay(&graph)?;
            self.stream.record(&to)?;
            self.stream.synchronize()?;
            best = best.min(f64::from(to.milliseconds_since(&from)?) / 1e3);
        }
        Ok(best)
    }

    fn report(&self, name: &str, seconds: f64, bytes: usize) -> String {
        let rate = bytes as f64 / seconds / 1e9;
        format!("{name:44} {:8.2} µs {rate:8.0} GB/s {:5.1} %", seconds * 1e6, 100.0 * rate / self.limit)
    }

    fn time_of(&self, shape: &Shape, module: &kjit_engine::Module) -> Result<f64> {
        let (target, units) = (self.device.target(), self.device.info().units);
        let (kernel, blocks) = (shape.kernel(target)?, shape.blocks(target, units)?);
        let entry = module.kernel(kernel.entry)?;
        let (widest, cols) = shape.widths();
        let x = self.stream.upload(&vec![0.5f32; widest])?;
        let weight = self.stream.upload(&vec![1.0f32; cols])?;
        let outs: Vec<DeviceBuffer<f32>> =
            (0..3).map(|_| self.device.buffer(widest)).collect::<kjit_engine::Result<_>>()?;
        let chosen = self.stream.upload(&(0..32u32).map(|i| i * 5 % EXPERTS as u32).collect::<Vec<_>>())?;
        let mut at = 0;
        let mut geometry = kernel.launch(blocks);
        geometry.dependent = true;
        let sizes = shape.pieces()?;
        let launches = ((4usize << 30) / shape.bytes()?).clamp(6, LAUNCHES);
        self.time(|| {
            for _ in 0..launches {
                let mut w = vec![];
                for &bytes in &sizes {
                    if at + bytes > self.pool.len() {
                        at = 0;
                    }
                    w.push(self.pool.slice(at..at + bytes)?);
                    at += bytes.next_multiple_of(256);
                }
                let get = |i: usize| w.get(i).unwrap_or(&w[0]);
                let (w0, w1, w2) = (get(0), get(1), get(2));
                let [y0, y1, y2] = [0, 1, 2].map(|i| &outs[i]);
                match shape {
                    Shape::Matrix(_) => self.stream.launch(
                        &entry,
                        &geometry,
                        &args![&x, &weight, &x, w0, &weight, y0, w1, &weight, y1, w2, &weight, y2, 1e-5f32, blocks],
                    )?,
                    Shape::Experts(_) => self.stream.launch(
                        &entry,
                        &geometry,
                        &args![&x, &weight, &chosen, &weight, &x, w0, w1, y0, 1e-5f32, blocks],
                    )?,
                }
            }
            Ok(())
        })
        .map(|s| s / launches as f64)
    }
}

struct Piece {
    entry: kjit_engine::Kernel,
    geometry: Geometry,
    sizes: Vec<usize>,
    blocks: u32,
}

impl Bench {
    /// µs of a layer's products one after the other, as they follow each other in a token.
    fn layer(&self, shapes: &[Shape], dependent: bool) -> Result<f64> {
        let (target, units) = (self.device.target(), self.device.info().units);
        let mut pieces = vec![];
        for shape in shapes {
            let kernel = shape.kernel(target)?;
            let blocks = shape.blocks(target, units)?;
            let entry = self.engine.load(&self.device, &self.job(&kernel))?.kernel(kernel.entry)?;
            let mut geometry = kernel.launch(blocks);
            geometry.dependent = dependent;
            pieces.push(Piece { entry, geometry, sizes: shape.pieces()?, blocks });
        }
        let x = self.stream.upload(&vec![0.5f32; 1 << 18])?;
        let y: Vec<DeviceBuffer<f32>> =
            (0..3).map(|_| self.device.buffer(1 << 18)).collect::<kjit_engine::Result<_>>()?;
        let mut at = 0;
        let layers = 32;
        let seconds = self.time(|| {
            for _ in 0..layers {
                for p in &pieces {
                    let mut w = vec![];
                    for &bytes in &p.sizes {
                        if at + bytes > self.pool.len() {
                            at = 0;
                        }
                        w.push(self.pool.slice(at..at + bytes)?);
                        at += bytes.next_multiple_of(256);
                    }
                    let get = |i: usize| w.get(i).unwrap_or(&w[0]);
                    let (w0, w1, w2) = (get(0), get(1), get(2));
                    let args = args![&x, &x, &x, w0, &x, &y[0], w1, &x, &y[1], w2, &x, &y[2], 1e-5f32, p.blocks];
                    self.stream.launch(&p.entry, &p.geometry, &args)?;
                }
            }
            Ok(())
        })?;
        Ok(seconds / f64::from(layers))
    }
}

/// Experts in the pool; a launch reads the chosen eight.
const EXPERTS: usize = 128;

#[derive(Clone)]
enum Shape {
    Matrix(MatvecSpec),
    Experts(ExpertsSpec),
}

impl Shape {
    fn with(&self, tuning: MatvecTuning) -> Shape {
        match self {
            Shape::Matrix(s) => Shape::Matrix(MatvecSpec { tuning: Some(tuning), ..s.clone() }),
            Shape::Experts(s) => Shape::Experts(ExpertsSpec { tuning: Some(tuning), ..s.clone() }),
        }
    }

    fn space(&self, target: &Target) -> Vec<MatvecTuning> {
        let spec: kjit_kernels::spec::Spec = match self {
            Shape::Matrix(s) => s.clone().into(),
            Shape::Experts(s) => s.clone().into(),
        };
        spec.space(target).into_iter().filter_map(|t| t.try_into().ok()).collect()
    }

    fn kernel(&self, target: &Target) -> Result<Kernel> {
        Ok(match self {
            Shape::Matrix(s) => s.kernel(target)?,
            Shape::Experts(s) => s.kernel(target)?,
        })
    }

    fn tuning(&self, target: &Target) -> Result<MatvecTuning> {
        Ok(match self {
            Shape::Matrix(s) => s.tuning(target)?,
            Shape::Experts(s) => s.tuning(target)?,
        })
    }

    fn blocks(&self, target: &Target, units: u32) -> Result<u32> {
        Ok(match self {
            Shape::Matrix(s) => s.blocks(target, units)?,
            Shape::Experts(s) => s.blocks(target, units)?,
        })
    }

    /// Elements of the widest activations, and columns of the matrix.
    fn widths(&self) -> (usize, usize) {
        match self {
            Shape::Matrix(s) => (s.segments.iter().map(|s| s.rows).max().unwrap_or(0).max(s.cols) * s.columns, s.cols),
            Shape::Experts(s) => (s.rows.max(s.cols) * s.top, s.cols),
        }
    }

    /// Bytes that each weight takes in the pool.
    fn pieces(&self) -> Result<Vec<usize>> {
        match self {
            Shape::Matrix(s) => {
                let one = |&segment| MatvecSpec { segments: vec![segment], finish: Finish::Store, ..s.clone() };
                Ok(s.segments.iter().map(|s| one(s).weight_bytes()).collect::<std::result::Result<_, _>>()?)
            }
            Shape::Experts(s) => {
                let lists = if s.finish == ExpertFinish::Silu { 2 } else { 1 };
                Ok(vec![Layout::new(s.format, s.cols)?.bytes(s.rows, EXPERTS)?; lists])
            }
        }
    }

    /// Bytes that a launch reads.
    fn bytes(&self) -> Result<usize> {
        let all: usize = self.pieces()?.iter().sum();
        Ok(match self {
            Shape::Matrix(_) => all,
            Shape::Experts(s) => all / EXPERTS * s.top,
        })
    }
}

/// The projections of a dense model: `(name, width, key/value rows, feed-forward width, vocabulary)`.
const MODELS: [(&str, usize, usize, usize, usize); 3] =
    [("8b", 4096, 1024, 14336, 128_256), ("1b", 2048, 512, 8192, 128_256), ("135m", 576, 192, 1536, 49152)];

fn shapes() -> Vec<(String, Shape)> {
    let mut all = vec![];
    for (model, width, kv, wide, vocab) in MODELS {
        for name in ["F16", "Q4_K", "Q6_K", "Q8_0", "Q4_0"] {
            let Some(f) = Format::by_name(name).filter(|f| Layout::new(f, width).is_ok()) else { continue };
            let s = |rows| Segment { format: f, rows, bias: false };
            let base = MatvecSpec::new(f, width, width);
            let norm = MatvecSpec { prologue: Prologue::Norm, ..base.clone() };
            let add = MatvecSpec { finish: Finish::Add, ..base };
            let mut push = |what: &str, rows: usize, spec: MatvecSpec| {
                all.push((format!("{name} {model} {what} {rows}×{}", spec.cols), Shape::Matrix(spec)));
            };
            push("qkv", width + 2 * kv, MatvecSpec { segments: vec![s(width), s(kv), s(kv)], ..norm.clone() });
            push("out", width, add.clone());
            let gated = MatvecSpec { segments: vec![s(wide), s(wide)], finish: Finish::Silu, ..norm.clone() };
            push("gate/up", 2 * wide, gated);
            push("down", width, MatvecSpec { cols: wide, ..add });
            push("head", vocab, MatvecSpec { segments: vec![s(vocab)], ..norm });
        }
    }
    for name in ["Q4_K", "Q6_K"] {
        let Some(format) = Format::by_name(name) else { continue };
        let gated = ExpertsSpec {
            format,
            rows: 768,
            cols: 2048,
            tokens: 1,
            top: 8,
            per_slot: false,
            prologue: Prologue::Norm,
            prepared: false,
            finish: ExpertFinish::Silu,
            tuning: None,
        };
        let down = ExpertsSpec {
            rows: 2048,
            cols: 768,
            per_slot: true,
            prologue: Prologue::None,
            finish: ExpertFinish::Sum { residual: true },
            ..gated.clone()
        };
        all.push((format!("{name} 30b experts gate/up 8×1536×2048"), Shape::Experts(gated)));
        all.push((format!("{name} 30b experts down 8×2048×768"), Shape::Experts(down)));
    }
    all
}

fn main() -> Result<()> {
    let folder = std::env::temp_dir().join("kjit-kernel-speed");
    let engine = Engine::new(Config::new().cache_dir(&folder).isolation(Isolation::InProcess));
    let device = engine.device(&std::env::var("KJIT_TEST_DEVICE").unwrap_or_else(|_| "auto".to_owned()))?;
    let stream = device.stream()?;
    let pool = device.buffer::<u8>(pool_bytes())?;
    let mut seed = 1u64;
    let random: Vec<u64> = std::iter::repeat_with(|| {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        // No half in it has an exponent above 2⁻¹ or below 2⁻¹⁵, so that sums stay finite.
        (seed ^ (seed >> 29)) & 0xb7ff_b7ff_b7ff_b7ff
    })
    .take(8 << 20)
    .collect();
    for at in (0..pool_bytes()).step_by(64 << 20) {
        stream.write(&pool.slice(at..at + (64 << 20))?.cast::<u64>()?, &random)?;
    }
    let limit = std::env::var("KJIT_READ_LIMIT").ok().and_then(|l| l.parse().ok()).unwrap_or(4637.0);
    let b = Bench { engine, device, stream, pool, limit };
    let only = std::env::var("KJIT_ONLY").unwrap_or_default();
    let sweep = std::env::var_os("KJIT_SWEEP").is_some();
    println!("{}", b.device.label());
    if std::env::var_os("KJIT_LAYER").is_some() {
        let all = shapes();
        for model in ["F16 8b", "Q8_0 8b", "Q4_K 8b", "Q4_K 1b"] {
            let four: Vec<Shape> =
                all.iter().filter(|(n, _)| n.starts_with(model)).take(4).map(|(_, s)| s.clone()).collect();
            let target = b.device.target();
            let changed = |f: &dyn Fn(&mut MatvecTuning)| -> Result<Vec<Shape>> {
                four.iter()
                    .map(|s| {
                        let mut t = s.tuning(target)?;
                        f(&mut t);
                        Ok(s.with(t))
                    })
                    .collect()
            };
            let bytes: usize = four.iter().map(|s| s.bytes().unwrap_or(0)).sum();
            let tries: [(&str, Vec<Shape>, bool); 4] = [
                ("default", four.clone(), true),
                ("independent", four.clone(), false),
                ("one block a unit", changed(&|t| t.blocks_per_unit = 1)?, true),
                ("two blocks a unit", changed(&|t| t.blocks_per_unit = 2)?, true),
            ];
            for (what, shapes, dependent) in tries {
                match b.layer(&shapes, dependent) {
                    Ok(s) => println!("{}", b.report(&format!("{model} layer, {what}"), s, bytes)),
                    Err(e) => println!("{model} {what}: {e}"),
                }
            }
        }
        return Ok(());
    }
    let mut csv = match std::env::var_os("KJIT_CSV") {
        Some(file) => Some(std::fs::File::options().create(true).append(true).open(file)?),
        None => None,
    };
    for (name, shape) in shapes().into_iter().filter(|(n, _)| n.contains(&only)) {
        let target = b.device.target();
        let mut tries = vec![shape.clone()];
        if sweep {
            tries.extend(shape.space(target).into_iter().map(|t| shape.with(t)));
        }
        tries.retain(|s| s.kernel(target).is_ok());
        let jobs: Vec<Job> = tries.iter().filter_map(|s| s.kernel(target).ok()).map(|k| b.job(&k)).collect();
        let bytes = shape.bytes()?;
        let mut times = vec![];
        for (shape, module) in tries.iter().zip(b.engine.load_all(&b.device, &jobs)) {
            let (t, seconds) = (shape.tuning(target)?, b.time_of(shape, &module?)?);
            if let Some(csv) = &mut csv {
                let (micros, rate) = (seconds * 1e6, bytes as f64 / seconds / 1e9);
                let MatvecTuning { block, team, rows, batch, blocks_per_unit, alone, .. } = t;
                writeln!(csv, "{name},{block},{team},{rows},{batch},{blocks_per_unit},{alone},{micros:.3},{rate:.0}")?;
            }
            times.push((seconds, t));
        }
        println!("{}", b.report(&name, times[0].0, bytes));
        times.sort_by(|a, b| a.0.total_cmp(&b.0));
        for (seconds, t) in times.iter().take(if sweep { 5 } else { 0 }) {
            let alone = if t.alone { " alone" } else { "" };
            let MatvecTuning { block, team, rows, batch, blocks_per_unit, .. } = t;
            let t = format!("  block {block} team {team} rows {rows} batch {batch} × {blocks_per_unit}{alone}");
            println!("{}", b.report(&t, *seconds, bytes));
        }
    }
    Ok(())
}
