//! How fast attention runs on the device at hand, in captured chains of dependent launches over distinct caches.
//!
//! For one new token: µs a launch, GB/s of keys and values, % of the read limit (`KJIT_READ_LIMIT`, GB/s; 4637 on an H200). For prompts:
//! TFLOP/s, counting what a causal mask (and window) leaves. `KJIT_ONLY=WORD` takes lines with the word in their name, `KJIT_SWEEP=1` tries
//! other tunings, too.

#![allow(clippy::print_stdout, reason = "a bench prints")]

use kjit_engine::{Config, Device, DeviceBuffer, Engine, Isolation, Job, Stream, args};
use kjit_kernels::Kernel;
use kjit_kernels::attend::{AttendSpec, AttendTuning, HeadsForm, RopeForm};
use kjit_kernels::flash::{FlashSpec, FlashTuning};
use kjit_kernels::kv::{KvLayout, KvStorage};
use kjit_kernels::product::tiled_bytes;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Caches are taken from this much memory, one after the other.
const POOL: usize = 2 << 30;

/// Head size, heads, storage, window, cap, tokens, past.
type PromptShape = (usize, usize, KvStorage, Option<usize>, Option<f32>, usize, usize);

struct Bench {
    engine: Engine,
    device: Device,
    stream: Stream,
    pool: DeviceBuffer<u8>,
    limit: f64,
    only: String,
    sweep: bool,
}

impl Bench {
    fn load(&self, kernel: &Kernel) -> Result<kjit_engine::Kernel> {
        let k = kernel.clone();
        let job = Job::new(k.source, k.constants, k.options, self.device.target().clone());
        Ok(self.engine.load(&self.device, &job)?.kernel(kernel.entry)?)
    }

    /// Seconds that a captured chain takes, the best of a few.
    fn time(&self, chain: impl FnOnce() -> kjit_engine::Result<()>) -> Result<f64> {
        let graph = self.stream.capture(chain)?;
        let mut best = f64::INFINITY;
        for _ in 0..7 {
            let (from, to) = (self.device.timed_event()?, self.device.timed_event()?);
            self.stream.record(&from)?;
            self.stream.replay(&graph)?;
            self.stream.record(&to)?;
            self.stream.synchronize()?;
            best = best.min(f64::from(to.milliseconds_since(&from)?) / 1e3);
        }
        Ok(best)
    }

    fn wanted(&self, name: &str) -> bool {
        name.contains(&self.only)
    }

    /// Seconds of a launch for one new token after `context - 1`.
    fn one(&self, spec: &AttendSpec, context: usize) -> Result<f64> {
        let target = self.device.target();
        let (form, kv) = (spec.form, spec.form.kv);
        let (kernel, splits) = (spec.kernel(target)?, spec.splits(target, self.device.info().units, 1)?);
        let entry = self.load(&kernel)?;
        let bytes = kv.bytes(context).unwrap_or(0);
        let q = self.stream.upload(&vec![0.1f32; form.heads * kv.head_dim])?;
        let out: DeviceBuffer<f32> = self.device.buffer(form.heads * kv.head_dim)?;
        let table: DeviceBuffer<f32> = self.device.buffer(context * kv.head_dim)?;
        self.stream.fill(&table, 0)?;
        let position = self.stream.upload(&[context as u32 - 1])?;
        let part: DeviceBuffer<u8> = self.device.buffer(spec.part_bytes(splits, 1))?;
        let counters = self.stream.upload(&vec![0u32; spec.counters(1)])?;
        let mut g = kernel.launch(1);
        g.grid = spec.geometry(target, splits, 1)?.grid;
        // More than the second cache holds where that takes a few hundred launches, else as many as there are.
        let launches = ((256 << 20) / (2 * bytes)).clamp(16, 400).min(POOL / (2 * bytes)).max(1);
        let seconds = self.time(|| {
            for l in 0..launches {
                let keys = self.pool.slice(2 * l * bytes..(2 * l + 1) * bytes)?;
                let values = self.pool.slice((2 * l + 1) * bytes..(2 * l + 2) * bytes)?;
                let heads = args![&q, &q, &q, &q, &q, &table, kjit_engine::Arg::Null, &position, &keys, &values];
                let rest = args![&part, &counters, &out, 0.088f32, 1e-5f32, context as u32, splits, bytes as u64];
                self.stream.launch(&entry, &g, &heads.into_iter().chain(rest).collect::<Vec<_>>())?;
            }
            Ok(())
        })?;
        Ok(seconds / launches as f64)
    }

    fn decoding(&self) -> Result<()> {
        use KvStorage::{F16, Q8_0};
        let models = [
            ("8b", 32, 8, 128),
            ("1b", 32, 8, 64),
            ("0.5b", 14, 2, 64),
            ("135m", 9, 3, 64),
            ("30b", 32, 4, 128),
            ("9b", 16, 8, 256),
        ];
        let target = self.device.target();
        for (model, heads, kv_heads, head_dim) in models {
            for storage in [F16, Q8_0] {
                for context in [64usize, 256, 512, 1024, 4096, 16384, 131_072] {
                    let name = format!("attend {model} {heads}/{kv_heads}×{head_dim} {storage:?} at {context}");
                    if !self.wanted(&name) {
                        continue;
                    }
                    let kv = KvLayout { heads: kv_heads, head_dim, storage };
                    let rope = RopeForm { dims: head_dim, halves: false };
                    let form = HeadsForm { heads, kv, qk_norm: false, rope };
                    let mut tries = vec![None];
                    if self.sweep {
                        tries.extend(AttendTuning::space(target).into_iter().map(Some));
                    }
                    for tuning in tries {
                        let spec = AttendSpec { form, window: None, soft_cap: None, tuning };
                        if spec.kernel(target).is_err() {
                            continue;
                        }
                        let seconds = self.one(&spec, context)?;
                        let bytes = 2 * kv_heads * context * (kv.bytes(64).unwrap_or(0) / 64 / kv_heads);
                        let rate = bytes as f64 / seconds / 1e9;
                        let what = tuning.map_or(String::new(), |t| format!("{t:?}"));
                        let (us, share) = (seconds * 1e6, 100.0 * rate / self.limit);
                        println!("{name:38} {us:8.2} µs {rate:6.0} GB/s {share:5.1} % {what}");
                    }
                }
            }
        }
        Ok(())
    }

    /// Seconds of attention of a prompt's tokens after `past`.
    fn prompt(&self, spec: &FlashSpec, tokens: usize, past: usize) -> Result<f64> {
        let target = self.device.target();
        let kernel = spec.kernel(target)?;
        let entry = self.load(&kernel)?;
        let g = spec.geometry(target, tokens as u32)?;
        let (kv, capacity) = (spec.kv, past + tokens);
        let bytes = kv.bytes(capacity).unwrap_or(0);
        let values: Vec<f32> = (0..1 << 16).map(|i| (i as f32 * 0.7).sin()).collect();
        let q: DeviceBuffer<f32> = self.device.buffer(tokens * spec.heads * kv.head_dim)?;
        for at in (0..q.len()).step_by(values.len()) {
            let n = values.len().min(q.len() - at);
            self.stream.write(&q.slice(at..at + n)?, values.get(..n).unwrap_or_default())?;
        }
        let y: DeviceBuffer<u8> = self.device.buffer(tiled_bytes(tokens, spec.heads * kv.head_dim))?;
        let position = self.stream.upload(&[past as u32])?;
        let (keys, values) = (self.pool.slice(0..bytes)?, self.pool.slice(bytes..2 * bytes)?);
        let launches = 4;
        let seconds = self.time(|| {
            for _ in 0..launches {
                let args = args![&q, &keys, &values, &y, &position, tokens as u32, capacity as u32];
                self.stream.launch(&entry, &g, &args)?;
            }
            Ok(())
        })?;
        Ok(seconds / f64::from(launches))
    }

    fn prompts(&self) -> Result<()> {
        use KvStorage::{F16, Q8_0};
        let target = self.device.target();
        let shapes: [PromptShape; 15] = [
            (64, 32, F16, None, None, 2048, 0),
            (64, 32, F16, None, None, 8192, 0),
            (80, 32, F16, None, None, 2048, 0),
            (80, 32, F16, None, None, 8192, 0),
            (96, 32, F16, None, None, 2048, 0),
            (96, 32, F16, None, None, 8192, 0),
            (128, 32, F16, None, None, 512, 0),
            (128, 32, F16, None, None, 2048, 0),
            (128, 32, F16, None, None, 8192, 0),
            (128, 32, F16, None, None, 2048, 14336),
            (128, 32, Q8_0, None, None, 2048, 14336),
            (128, 32, F16, Some(1024), None, 8192, 0),
            (256, 16, F16, None, None, 2048, 0),
            (256, 16, F16, None, None, 8192, 0),
            (256, 16, F16, Some(4096), Some(50.0), 8192, 0),
        ];
        for (dim, heads, storage, window, soft_cap, tokens, past) in shapes {
            let name =
                format!("prompt {heads}×{dim} {storage:?} {tokens} after {past}, window {window:?}, cap {soft_cap:?}");
            if !self.wanted(&name) {
                continue;
            }
            let kv = KvLayout { heads: heads / 4, head_dim: dim, storage };
            let seen: f64 = (0..tokens).map(|t| (past + t + 1).min(window.unwrap_or(usize::MAX)) as f64).sum();
            let mut tries = vec![None];
            if self.sweep {
                tries.extend(FlashTuning::space(target).into_iter().map(Some));
            }
            for tuning in tries {
                let spec = FlashSpec { heads, kv, scale: 0.1, window, soft_cap, tuning };
                if spec.kernel(target).is_err() {
                    continue;
                }
                let seconds = self.prompt(&spec, tokens, past)?;
                let rate = 4.0 * (heads * dim) as f64 * seen / seconds / 1e12;
                let what = spec.tuning(target)?;
                println!("{name:64} {:9.1} µs {rate:6.1} TFLOP/s {what:?}", seconds * 1e6);
            }
        }
        Ok(())
    }
}

fn main() -> Result<()> {
    let folder = std::env::temp_dir().join("kjit-attention-speed");
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
    let only = std::env::var("KJIT_ONLY").unwrap_or_default();
    let b = Bench { engine, device, stream, pool, limit, only, sweep: std::env::var_os("KJIT_SWEEP").is_some() };
    println!("{}", b.device.label());
    b.decoding()?;
    b.prompts()
}
