//! How long products with a few rows take on the device at hand (`gpu/strips.hip`), in a captured chain of dependent launches over distinct
//! matrices, as the layers of a model are. Prints µs a launch, GB/s of weights, and % of the rate named by `KJIT_READ_LIMIT` (GB/s; 4637 on
//! an H200). `KJIT_SWEEP=1` tries the whole tuning space and prints the best three; `KJIT_ONLY=WORD` takes shapes with the word in
//! their name.

#![allow(clippy::print_stdout, reason = "a bench prints")]

use kjit_engine::{Arg, Config, Device, DeviceBuffer, Engine, Isolation, Stream, args};
use kjit_kernels::format::Format;
use kjit_kernels::layout::Layout;
use kjit_kernels::segments::{Finish, Segment};
use kjit_kernels::strips::{StripsSpec, StripsTuning};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Weights are read round and round this much memory: far more than any last-level cache.
const POOL: usize = 2 << 30;

struct Bench {
    engine: Engine,
    device: Device,
    stream: Stream,
    pool: DeviceBuffer<u8>,
    scratch: DeviceBuffer<u8>,
    counters: DeviceBuffer<u32>,
}

impl Bench {
    /// Seconds of a launch, the best of a few chains; and the bytes of its weights.
    fn time(&self, spec: &StripsSpec, module: &kjit_engine::Module) -> Result<(f64, usize)> {
        let target = self.device.target();
        let kernel = spec.kernel(target)?;
        let entry = module.kernel(kernel.entry)?;
        let geometry = spec.geometry(target)?.dependent(true);
        let splits = spec.splits(target)?;
        let sizes: Vec<usize> = spec
            .segments
            .iter()
            .map(|s| Layout::new(s.format, spec.cols)?.bytes(s.rows, 1))
            .collect::<std::result::Result<_, _>>()?;
        let bytes: usize = sizes.iter().sum();
        let launches = (POOL / bytes).clamp(6, 40);
        let (mut at, s, tokens) = (0, &self.scratch, spec.tokens as u32);
        let graph = self.stream.capture(|| {
            for _ in 0..launches {
                let mut w = vec![];
                for &n in &sizes {
                    at = if at + n > self.pool.len() { 0 } else { at };
                    w.push(self.pool.slice(at..at + n)?);
                    at += n.next_multiple_of(256);
                }
                let [w0, w1, w2] = [0, 1, 2].map(|i| w.get(i).map_or(Arg::Null, Arg::from));
                let null = Arg::Null;
                let args = args![s, s, w0, null, s, w1, null, s, w2, null, s, s, &self.counters, tokens, splits];
                self.stream.launch(&entry, &geometry, &args)?;
            }
            Ok(())
        })?;
        let mut best = f64::INFINITY;
        for _ in 0..4 {
            let (from, to) = (self.device.timed_event()?, self.device.timed_event()?);
            self.stream.record(&from)?;
            self.stream.replay(&graph)?;
            self.stream.record(&to)?;
            self.stream.synchronize()?;
            best = best.min(f64::from(to.milliseconds_since(&from)?) / 1e3);
        }
        Ok((best / launches as f64, bytes))
    }
}

/// The products of an 8b model and of a small one.
fn shapes() -> Vec<(String, StripsSpec)> {
    let mut all = vec![];
    for (model, width, kv, wide) in [("8b", 4096, 1024, 14336), ("1b", 2048, 512, 8192)] {
        for name in ["Q4_K", "Q6_K", "Q8_0", "F16"] {
            let Some(format) = Format::by_name(name) else { continue };
            for tokens in [8, 16, 32, 64] {
                let s = |rows| Segment { format, rows, bias: false };
                let base = StripsSpec::new(format, width, width, tokens);
                let qkv = StripsSpec { segments: vec![s(width), s(kv), s(kv)], ..base.clone() };
                let gated =
                    StripsSpec { segments: vec![s(wide), s(wide)], finish: Finish::Silu, strips: true, ..base.clone() };
                let down = StripsSpec { cols: wide, finish: Finish::Add, ..base.clone() };
                let out = StripsSpec { finish: Finish::Add, ..base };
                let named = [("qkv", qkv), ("out", out), ("gate/up", gated), ("down", down)];
                all.extend(named.map(|(what, spec)| (format!("{name} {model} {what} × {tokens}"), spec)));
            }
        }
    }
    all
}

fn main() -> Result<()> {
    let engine = Engine::new(Config::new().isolation(Isolation::InProcess));
    let device = engine.device(&std::env::var("KJIT_TEST_DEVICE").unwrap_or_else(|_| "cuda:0".to_owned()))?;
    let stream = device.stream()?;
    let (pool, scratch): (DeviceBuffer<u8>, DeviceBuffer<u8>) = (device.buffer(POOL)?, device.buffer(256 << 20)?);
    let counters: DeviceBuffer<u32> = device.buffer(1 << 16)?;
    stream.fill(&pool, 0x11)?;
    stream.fill(&scratch, 0)?;
    stream.fill(&counters, 0)?;
    let limit = std::env::var("KJIT_READ_LIMIT").ok().and_then(|v| v.parse().ok()).unwrap_or(4637.0);
    let (sweep, only) = (std::env::var_os("KJIT_SWEEP").is_some(), std::env::var("KJIT_ONLY").unwrap_or_default());
    let bench = Bench { engine, device, stream, pool, scratch, counters };
    let target = bench.device.target();
    for (name, spec) in shapes().into_iter().filter(|(name, _)| name.contains(&only)) {
        let default = spec.tuning(target)?;
        let mut tunings = vec![default];
        if sweep {
            tunings.extend(StripsSpec::space().into_iter().filter(|t| *t != default));
        }
        let specs: Vec<StripsSpec> =
            tunings.into_iter().map(|t: StripsTuning| StripsSpec { tuning: Some(t), ..spec.clone() }).collect();
        let specs: Vec<StripsSpec> = specs.into_iter().filter(|s| s.kernel(target).is_ok()).collect();
        let jobs: Vec<_> = specs.iter().map(|s| Ok(s.kernel(target)?.job(target))).collect::<Result<Vec<_>>>()?;
        let mut times = vec![];
        for (spec, module) in specs.iter().zip(bench.engine.load_all(&bench.device, &jobs)) {
            let (seconds, bytes) = bench.time(spec, &module?)?;
            times.push((seconds, bytes, spec.tuning));
        }
        let show = |what: &str, (seconds, bytes, tuning): &(f64, usize, Option<StripsTuning>)| {
            let rate = *bytes as f64 / seconds / 1e9;
            let (us, part) = (seconds * 1e6, 100.0 * rate / limit);
            println!("{name:24} {what:8} {us:8.2} µs {rate:6.0} GB/s {part:5.1} % {tuning:?}");
        };
        if let Some(first) = times.first() {
            show("default", first);
        }
        times.sort_by(|a, b| a.0.total_cmp(&b.0));
        times.iter().take(if sweep { 3 } else { 0 }).for_each(|t| show("best", t));
    }
    Ok(())
}
