//! The rates of memory, LDS, matrices and copies, and the core's clock.

use super::{Bench, Figure, text};
use crate::measure::Limits;
use kjit_engine::{Arg, DeviceBuffer, Geometry};
use kjit_kernel_cases::Random;
use kjit_kernels::card;
use std::time::Instant;

/// Blocks of a unit that read.
const BLOCKS: u32 = 8;
/// Bytes of the pattern that fills the memory that is read.
const PATTERN: usize = 1 << 20;
/// Maximum number of bytes that are read.
const MAX_READ_BYTES: u64 = 1 << 30;
/// Minimum seconds of a launch for the computation of a rate.
const MIN_SECONDS: f64 = 1e-3;
/// Dependent products in a measurement of the clock. They must take fewer than 2^20 cycles, because
/// gfx11's counter has 20 bits.
const PRODUCTS: u32 = 20_000;
/// Maximum bytes of a copy.
const COPY: usize = 256 << 20;

pub(super) fn rates(bench: &Bench<'_>) -> Vec<Figure> {
    let mut all = vec![];
    match Limits::measure(bench.engine, bench.device) {
        Ok(limits) => {
            all.push(Figure::new("read, whole", limits.read / 1e9, "GB/s"));
            all.push(match limits.product {
                Some(product) => {
                    let name = "matrix product of halves";
                    Figure::new(name, product.rate / 1e12, "TFLOP/s").note(product.what)
                }
                None => {
                    Figure::none("matrix product of halves", "TFLOP/s", "no kernel for this device")
                }
            });
        }
        Err(why) => {
            all.push(Figure::none("read, whole", "GB/s", why.clone()));
            all.push(Figure::none("matrix product of halves", "TFLOP/s", why));
        }
    }
    let strides = [(1 << 10, "1 KB"), (4 << 10, "4 KB"), (16 << 10, "16 KB")];
    match Read::new(bench) {
        Ok(read) => {
            for (bytes, name) in strides {
                let rate = read.apart(bytes).map(|rate| rate / 1e9);
                all.push(Figure::of(&format!("read, waves {name} apart"), "GB/s", rate));
            }
            // The GPU has just been reading, so this is its clock under load.
            all.push(Figure::of("core clock at work", "MHz", clock(bench, Some(&read))));
        }
        Err(why) => {
            for (_, name) in strides {
                let name = format!("read, waves {name} apart");
                all.push(Figure::none(name, "GB/s", why.clone()));
            }
            all.push(Figure::none("core clock at work", "MHz", why));
        }
    }
    all.push(Figure::of("LDS read", "GB/s", lds(bench).map(|rate| rate / 1e9)));
    std::thread::sleep(std::time::Duration::from_secs_f64(bench.seconds()));
    all.push(Figure::of("core clock after a pause", "MHz", clock(bench, None)));
    all.extend(copies(bench));
    all
}

/// Memory with known content, and the memory for the sums of reading it.
struct Read<'b, 'e> {
    bench: &'b Bench<'e>,
    memory: DeviceBuffer<u32>,
    out: DeviceBuffer<u32>,
    blocks: u32,
    /// The exclusive or of all words.
    sum: u32,
}

impl<'b, 'e> Read<'b, 'e> {
    /// The largest memory that can be read in a reasonable time.
    fn new(bench: &'b Bench<'e>) -> Result<Read<'b, 'e>, String> {
        let (free, _) = bench.device.memory().map_err(text)?;
        let most = MAX_READ_BYTES.min(free / 4);
        let mut bytes = PATTERN;
        loop {
            let read = Read::of(bench, bytes)?;
            let more = 4 * bytes;
            if more as u64 > most || read.seconds(1 << 10)? > MIN_SECONDS {
                return Ok(read);
            }
            bytes = more;
        }
    }

    fn of(bench: &'b Bench<'e>, bytes: usize) -> Result<Read<'b, 'e>, String> {
        let stream = &bench.stream;
        let mut random = Random::new(1);
        let pattern: Vec<u32> =
            random.normals(PATTERN / 4, 1.0).into_iter().map(f32::to_bits).collect();
        let words = bytes / 4;
        let memory = bench.device.buffer::<u32>(words).map_err(text)?;
        let fill = || {
            let mut full = pattern.len();
            stream.write(&memory.slice(..full)?, &pattern)?;
            while full < words {
                stream.copy(&memory.slice(..full)?, &memory.slice(full..2 * full)?)?;
                full *= 2;
            }
            // One word differs. The other words cancel out, or their result is the pattern's own
            // sum.
            stream.write(&memory.slice(words / 2..words / 2 + 1)?, &[OTHER_WORD])
        };
        fill().map_err(text)?;
        let once = pattern.iter().fold(0, |sum, word| sum ^ word);
        let was = pattern.get(words / 2 % pattern.len()).copied().unwrap_or(0);
        let sum = if words == pattern.len() { once } else { 0 } ^ was ^ OTHER_WORD;
        let blocks = BLOCKS * bench.units();
        let out = bench.device.buffer((blocks * card::BLOCK) as usize).map_err(text)?;
        Ok(Read { bench, memory, out, blocks, sum })
    }

    fn launch(&self, apart: usize) -> Result<(), String> {
        let piece = bench_wave(self.bench) as usize * card::VECTOR;
        let pieces = self.memory.bytes() / piece;
        let apart_bits = (apart / piece).max(1).ilog2();
        let row_bits = pieces.max(1).ilog2().saturating_sub(apart_bits);
        let args = [
            Arg::from(&self.memory),
            Arg::from(&self.out),
            row_bits.into(),
            apart_bits.into(),
            self.blocks.into(),
        ];
        let shape = Geometry::new(self.blocks, card::BLOCK);
        self.bench.launch(&self.bench.stream, card::STRIDE, &shape, &args).map_err(text)
    }

    /// Seconds of a launch, after its result was checked.
    fn seconds(&self, apart: usize) -> Result<f64, String> {
        let stream = &self.bench.stream;
        stream.fill(&self.out, 0xff).map_err(text)?;
        self.launch(apart)?;
        let got = stream.read(&self.out).map_err(text)?.iter().fold(0, |sum, word| sum ^ word);
        if got != self.sum {
            return Err(format!("reading gave {got:#010x} instead of {:#010x}", self.sum));
        }
        let timed = |n: usize| {
            let began = Instant::now();
            (0..n).try_for_each(|_| self.launch(apart))?;
            stream.synchronize().map_err(text)?;
            Ok::<f64, String>(began.elapsed().as_secs_f64() / n as f64)
        };
        let once = timed(1)?;
        timed(((self.bench.seconds() / once.max(1e-7)) as usize).clamp(1, 200))
    }

    fn apart(&self, bytes: usize) -> Result<f64, String> {
        self.seconds(bytes).map(|seconds| self.memory.bytes() as f64 / seconds)
    }
}

/// A word that differs from the pattern.
const OTHER_WORD: u32 = 0x9e37_79b9;

fn bench_wave(bench: &Bench<'_>) -> u32 {
    bench.device.target().default_wave()
}

/// Bytes of LDS per second, over all units.
fn lds(bench: &Bench<'_>) -> Result<f64, String> {
    let (stream, blocks) = (&bench.stream, BLOCKS * bench.units());
    let out = bench.device.buffer::<u32>((blocks * card::BLOCK) as usize).map_err(text)?;
    let shape = Geometry::new(blocks, card::BLOCK);
    let timed = |rounds: u32| {
        stream.fill(&out, 0xff).and_then(|()| stream.synchronize()).map_err(text)?;
        let began = Instant::now();
        let args = [Arg::from(&out), rounds.into()];
        bench.launch(stream, card::LDS, &shape, &args).map_err(text)?;
        stream.synchronize().map_err(text)?;
        let seconds = began.elapsed().as_secs_f64();
        let right = stream.read(&out).map_err(text)?;
        let right = right
            .chunks(card::BLOCK as usize)
            .all(|block| block.iter().zip(0..).all(|(sum, t)| *sum == card::lds_sum(t, rounds)));
        if right { Ok(seconds) } else { Err("LDS gave wrong sums".to_owned()) }
    };
    timed(1)?;
    let mut rounds = 4;
    let mut seconds = timed(rounds)?;
    while seconds < 4.0 * MIN_SECONDS && rounds < 1 << 20 {
        rounds *= 4;
        seconds = timed(rounds)?;
    }
    seconds = seconds.min(timed(rounds)?);
    let reads = f64::from(blocks * card::BLOCK) * f64::from(rounds * card::LDS_VECTORS);
    Ok(reads * card::VECTOR as f64 / seconds)
}

/// The core's clock in MHz: the core's cycle counter compared with the real-time counter. With
/// `busy`: after reads that take a while.
fn clock(bench: &Bench<'_>, busy: Option<&Read<'_, '_>>) -> Result<f64, String> {
    let (stream, blocks) = (&bench.stream, 2 * bench.units());
    let out = stream.upload(&[u64::MAX; 2]).map_err(text)?;
    let kept = bench.device.buffer::<f32>((blocks * card::BLOCK) as usize).map_err(text)?;
    let args = [Arg::from(&out), Arg::from(&kept), PRODUCTS.into()];
    if let Some(read) = busy {
        let once = read.seconds(1 << 10)?;
        let n = ((bench.seconds() / once.max(1e-7)) as usize).clamp(1, 400);
        (0..n).try_for_each(|_| read.launch(1 << 10))?;
    }
    let shape = Geometry::new(blocks, card::BLOCK);
    bench.launch(stream, card::CLOCK, &shape, &args).map_err(text)?;
    match *stream.read(&out).map_err(text)? {
        [cycles, ns] if ns > 0 && ns < u64::MAX && cycles > 0 => {
            Ok(cycles as f64 * 1e3 / ns as f64)
        }
        _ => Err("the counters of the GPU do not advance".to_owned()),
    }
}

/// The rates of copies from and to page-locked memory, and from memory that is not locked.
fn copies(bench: &Bench<'_>) -> Vec<Figure> {
    let names = ["copy in, page-locked", "copy out, page-locked", "copy in, not locked"];
    let none = |why: String| {
        names.into_iter().map(move |name| Figure::none(name, "GB/s", why.clone())).collect()
    };
    let (stream, device) = (&bench.stream, bench.device);
    let best = |bytes: usize| -> Result<[f64; 3], String> {
        let mut host = vec![0u8; bytes];
        host.iter_mut().zip(0u32..).for_each(|(to, i)| *to = (i.wrapping_mul(0x9e37) >> 8) as u8);
        let locked = device.pinned::<u8>(bytes).map_err(text)?;
        locked.write(|to| to.copy_from_slice(&host)).map_err(text)?;
        let memory = device.buffer::<u8>(bytes).map_err(text)?;
        let timed = |work: &dyn Fn() -> kjit_engine::Result<()>| {
            let mut least = f64::INFINITY;
            for _ in 0..3 {
                let began = Instant::now();
                work().and_then(|()| stream.synchronize()).map_err(text)?;
                least = least.min(began.elapsed().as_secs_f64());
            }
            Ok::<f64, String>(least)
        };
        let into = timed(&|| stream.copy_in(&locked, &memory))?;
        let back = device.pinned::<u8>(bytes).map_err(text)?;
        let out = timed(&|| stream.copy_out(&memory, &back))?;
        if !back.read(|got| *got == *host).map_err(text)? {
            return Err("a copy to the GPU and back changed the bytes".to_owned());
        }
        Ok([into, out, timed(&|| stream.write(&memory, &host))?])
    };
    let free = device.memory().map_or(0, |(free, _)| free);
    let most = if bench.quick { COPY / 4 } else { COPY };
    let most = most.min(usize::try_from(free / 4).unwrap_or(most));
    let mut bytes = PATTERN.min(most.max(1));
    loop {
        let seconds = match best(bytes) {
            Ok(seconds) => seconds,
            Err(why) => return none(why),
        };
        if 4 * bytes > most || seconds.iter().all(|s| *s > 0.1) {
            let rate = |(name, s): (&str, f64)| Figure::new(name, bytes as f64 / s / 1e9, "GB/s");
            return names.into_iter().zip(seconds).map(rate).collect();
        }
        bytes *= 4;
    }
}
