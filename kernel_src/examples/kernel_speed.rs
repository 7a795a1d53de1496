//! How fast the decode kernels read memory on the device at hand: a captured chain of dependent launches over distinct matrices, as a token
//! is. Prints µs a launch, GB/s, and % of the rate named by `KJIT_READ_LIMIT` (GB/s; 4637 on an H200). `KJIT_SWEEP=1` tries the whole tuning
//! space of each shape and prints the best five. `KJIT_ONLY=WORD` takes shapes with the word in their name.

#![allow(clippy::print_stdout, reason = "a bench prints")]

use kjit_engine::{Config, Device, DeviceBuffer, Engine, Isolation, Job, Stream, args};
use kjit_kernels::Kernel;
use kjit_kernels::activations::Prologue;
use kjit_kernels::attend::{AttendSpec, AttendTuning, HeadsForm, RopeForm};
use kjit_kernels::format::Format;
use kjit_kernels::kv::{KvLayout, KvStorage};
use kjit_kernels::matvec::{Finish, MatvecSpec, MatvecTuning, Segment};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Weights are read round and round this much memory: far more than any last-level cache.
const POOL: usize = 1 << 30;
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
        let k = kernel.clone();
        Job::new(k.source, k.constants, k.options, self.device.target().clone())
    }

    /// Seconds that a captured chain takes, the best of a few.
    fn time(&self, chain: impl FnOnce() -> kjit_engine::Result<()>) -> Result<f64> {
        let graph = self.stream.capture(chain)?;
        let mut best = f64::INFINITY;
        for _ in 0..8 {
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

    fn matvec(&self, spec: &MatvecSpec, module: &kjit_engine::Module) -> Result<f64> {
        let target = self.device.target();
        let kernel = spec.kernel(target)?;
        let blocks = spec.blocks(target, self.device.info().units)?;
        let entry = module.kernel(kernel.entry)?;
        let widest = spec.segments.iter().map(|s| s.rows).max().unwrap_or(0).max(spec.cols) * spec.columns;
        let x = self.stream.upload(&vec![0.5f32; widest])?;
        let weight = self.stream.upload(&vec![1.0f32; spec.cols])?;
        let outs: Vec<DeviceBuffer<f32>> =
            (0..3).map(|_| self.device.buffer(widest)).collect::<kjit_engine::Result<_>>()?;
        let mut at = 0;
        let mut shape = kernel.launch(blocks);
        shape.dependent = true;
        let mut sizes = vec![];
        for s in &spec.segments {
            sizes.push(MatvecSpec { segments: vec![*s], finish: Finish::Store, ..spec.clone() }.weight_bytes()?);
        }
        self.time(|| {
            for _ in 0..LAUNCHES {
                let mut w = vec![];
                for &bytes in &sizes {
                    if at + bytes > POOL {
                        at = 0;
                    }
                    w.push(self.pool.slice(at..at + bytes)?);
                    at += bytes.next_multiple_of(256);
                }
                let get = |i: usize| w.get(i).unwrap_or(&w[0]);
                self.stream.launch(
                    &entry,
                    &shape,
                    &args![
                        &x,
                        &weight,
                        &x,
                        get(0),
                        &weight,
                        &outs[0],
                        get(1),
                        &weight,
                        &outs[1],
                        get(2),
                        &weight,
                        &outs[2],
                        1e-5f32,
                        blocks
                    ],
                )?;
            }
            Ok(())
        })
        .map(|s| s / LAUNCHES as f64)
    }
}

fn shapes() -> Vec<(String, MatvecSpec)> {
    let mut all = vec![];
    for name in ["Q4_K", "Q6_K", "Q8_0", "Q4_0", "F16"] {
        let Some(f) = Format::by_name(name) else { continue };
        let s = |rows| Segment { format: f, rows, bias: false };
        let base = MatvecSpec::new(f, 4096, 4096);
        let norm = Prologue::Norm;
        let qkv = MatvecSpec { prologue: norm, segments: vec![s(4096), s(1024), s(1024)], ..base.clone() };
        let gated =
            MatvecSpec { prologue: norm, segments: vec![s(14336), s(14336)], finish: Finish::Silu, ..base.clone() };
        all.push((format!("{name} 8b qkv 6144×4096"), qkv));
        all.push((format!("{name} 8b out 4096×4096"), MatvecSpec { finish: Finish::Add, ..base.clone() }));
        all.push((format!("{name} 8b gate/up 28672×4096"), gated));
        all.push((
            format!("{name} 8b down 4096×14336"),
            MatvecSpec { finish: Finish::Add, cols: 14336, ..base.clone() },
        ));
        all.push((
            format!("{name} 8b head 128256×4096"),
            MatvecSpec { prologue: norm, segments: vec![s(128_256)], ..base },
        ));
    }
    for name in ["Q8_0", "Q4_0"] {
        let Some(f) = Format::by_name(name) else { continue };
        let s = |rows| Segment { format: f, rows, bias: false };
        let norm = Prologue::Norm;
        let base = MatvecSpec::new(f, 576, 576);
        let qkv = MatvecSpec { prologue: norm, segments: vec![s(576), s(192), s(192)], ..base.clone() };
        let gated =
            MatvecSpec { prologue: norm, segments: vec![s(1536), s(1536)], finish: Finish::Silu, ..base.clone() };
        all.push((format!("{name} 135m qkv 960×576"), qkv));
        all.push((format!("{name} 135m gate/up 3072×576"), gated));
        all.push((format!("{name} 135m down 576×1536"), MatvecSpec { finish: Finish::Add, cols: 1536, ..base }));
    }
    all
}

fn attention(b: &Bench) -> Result<()> {
    for (context, storage) in [
        (512usize, KvStorage::F16),
        (4096, KvStorage::F16),
        (16384, KvStorage::F16),
        (16384, KvStorage::Q8_0),
        (131_072, KvStorage::F16),
    ] {
        let kv = KvLayout { heads: 8, head_dim: 128, storage };
        let form = HeadsForm { heads: 32, kv, qk_norm: false, rope: RopeForm { dims: 128, halves: false } };
        let target = b.device.target();
        let tries = [None].into_iter().chain([1u32, 2, 3, 4].into_iter().flat_map(|n| {
            [2, 4].map(|tile| {
                Some(AttendTuning {
                    wave: target.default_wave(),
                    block: 4 * target.default_wave(),
                    tile,
                    blocks_per_unit: n,
                })
            })
        }));
        for tuning in tries {
            let spec = AttendSpec { form, window: None, soft_cap: None, tuning };
            let (Ok(kernel), Ok(splits)) = (spec.kernel(target), spec.splits(target, b.device.info().units, 1)) else {
                continue;
            };
            let entry = b.engine.load(&b.device, &b.job(&kernel))?.kernel(kernel.entry)?;
            let bytes = kv.bytes(context).unwrap_or(0);
            let q = b.stream.upload(&vec![0.1f32; 32 * 128])?;
            let out: DeviceBuffer<f32> = b.device.buffer(32 * 128)?;
            let angles = b.stream.upload(&vec![0.7f32; 128])?.slice(0..128)?;
            // Every position turns by the table's row of position 0: the table would be as large as the cache's heads else.
            let table: DeviceBuffer<f32> = b.device.buffer(context * 128)?;
            b.stream.fill(&table, 0)?;
            let position = b.stream.upload(&[context as u32 - 1])?;
            let part: DeviceBuffer<u8> = b.device.buffer(spec.part_bytes(splits, 1))?;
            let counters = b.stream.upload(&vec![0u32; spec.counters(1)])?;
            let mut g = kernel.launch(1);
            g.grid = [splits, 8, 1];
            let layers = (POOL / (2 * bytes)).clamp(1, 16);
            let seconds = b.time(|| {
                for l in 0..layers {
                    let keys = b.pool.slice(2 * l * bytes..(2 * l + 1) * bytes)?;
                    let values = b.pool.slice((2 * l + 1) * bytes..(2 * l + 2) * bytes)?;
                    b.stream.launch(
                        &entry,
                        &g,
                        &args![
                            &q,
                            &q,
                            &q,
                            &angles,
                            &angles,
                            &table,
                            &position,
                            &keys,
                            &values,
                            &part,
                            &counters,
                            &out,
                            0.088f32,
                            1e-5f32,
                            context as u32,
                            splits,
                            bytes as u64
                        ],
                    )?;
                }
                Ok(())
            })? / layers as f64;
            let name = format!("attend 32/8×128 {storage:?} at {context}, {tuning:?}").replace("AttendTuning ", "");
            println!("{}", b.report(&name, seconds, 2 * bytes));
        }
    }
    Ok(())
}

fn main() -> Result<()> {
    let folder = std::env::temp_dir().join("kjit-kernel-speed");
    let engine = Engine::new(Config::new().cache_dir(&folder).isolation(Isolation::InProcess));
    let device = engine.device(&std::env::var("KJIT_TEST_DEVICE").unwrap_or_else(|_| "auto".to_owned()))?;
    let stream = device.stream()?;
    let pool = device.buffer::<u8>(POOL)?;
    let mut seed = 1u64;
    let random: Vec<u64> = std::iter::repeat_with(|| {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        // No half in it has an exponent above 2⁻¹ or below 2⁻¹⁵, so that sums stay finite.
        (seed ^ (seed >> 29)) & 0xb7ff_b7ff_b7ff_b7ff
    })
    .take(8 << 20)
    .collect();
    for at in (0..POOL).step_by(64 << 20) {
        stream.write(&pool.slice(at..at + (64 << 20))?.cast::<u64>()?, &random)?;
    }
    let limit = std::env::var("KJIT_READ_LIMIT").ok().and_then(|l| l.parse().ok()).unwrap_or(4637.0);
    let b = Bench { engine, device, stream, pool, limit };
    let only = std::env::var("KJIT_ONLY").unwrap_or_default();
    let sweep = std::env::var_os("KJIT_SWEEP").is_some();
    println!("{}", b.device.label());
    for (name, spec) in shapes().into_iter().filter(|(n, _)| n.contains(&only)) {
        let target = b.device.target();
        let mut tries = vec![spec.clone()];
        if sweep {
            tries.extend(
                MatvecTuning::space(target).into_iter().map(|t| MatvecSpec { tuning: Some(t), ..spec.clone() }),
            );
        }
        tries.retain(|s| s.kernel(target).is_ok());
        let jobs: Vec<Job> = tries.iter().filter_map(|s| s.kernel(target).ok()).map(|k| b.job(&k)).collect();
        let mut times = vec![];
        for (spec, module) in tries.iter().zip(b.engine.load_all(&b.device, &jobs)) {
            times.push((b.matvec(spec, &module?)?, spec.tuning(target)));
        }
        let bytes = spec.weight_bytes().unwrap_or(0);
        println!("{}", b.report(&name, times[0].0, bytes));
        times.sort_by(|a, b| a.0.total_cmp(&b.0));
        for (seconds, t) in times.iter().take(if sweep { 5 } else { 0 }) {
            let t = t.clone().map_or_else(
                |e| e.to_string(),
                |t| {
                    format!(
                        "  block {} team {} rows {} batch {} × {}",
                        t.block, t.team, t.rows, t.batch, t.blocks_per_unit
                    )
                },
            );
            println!("{}", b.report(&t, *seconds, bytes));
        }
    }
    if "attend".contains(&only) {
        attention(&b)?;
    }
    Ok(())
}
