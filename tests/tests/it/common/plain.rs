//! CUDA and HIP source that clang compiles with the engine's `words.h`. There is one line for each
//! group of its functions. The kernels run as machine code on the emulator, and results are
//! compared with Rust and f64.

use gfxemu::machine::{Launch, Machine};
use gfxemu::object::Kernel;
use gfxemu::region::Region;
use gfxemu::target::Target as Emulated;
use kjit_engine::{Constants, Job, Options, Source, Target, Vendor};
use kjit_tests::simulator::engine;
use std::time::Instant;

const BLOCK: usize = 128;
const ALL: usize = 2 * BLOCK;

/// `K(name, value)` is a kernel that stores `value` for each thread. `v` is the float of the
/// thread, `i` its number, `t` its number in the block, `a` are u32 that all threads share.
const TEXT: &str = r#"
#include "words.h"
__device__ void put(unsigned* y, unsigned v) { *y = v; }
__device__ void put(unsigned* y, int v) { *y = (unsigned)v; }
__device__ void put(unsigned* y, float v) { *y = __float_as_uint(v); }
__device__ __forceinline__ unsigned fold(unsigned long long v) { return (unsigned)v ^ (unsigned)(v >> 32); }
#define K(name, value)                                                                                               \
    extern "C" __global__ void __launch_bounds__(128) name(unsigned* __restrict__ y, const float* __restrict__ x, unsigned* a) { \
        const unsigned t = threadIdx.x, i = blockIdx.x * blockDim.x + t; const float v = x[i]; put(y + i, value); }
K(grid, gridDim.x * 100000 + blockDim.x * 100 + gridDim.y * 10 + blockDim.z)
K(shuffle, __shfl((int)t, 5) * 1000 + __shfl_sync(~0ull, (int)t, t + 3, 8))
K(shuffle_up, __shfl_up(t, 3) * 1000 + __shfl_up_sync(~0ull, t, 5, 16))
K(shuffle_down, __shfl_down(t, 3) * 1000 + __shfl_down_sync(~0ull, t, 5, 32))
K(shuffle_xor, __shfl_xor(t, KJ_WAVE / 2) * 1000 + __shfl_xor_sync(~0ull, t, 17, 32))
K(shuffle_double, (float)__shfl_xor((double)v + 1e9, KJ_WAVE / 2 + 1))
K(ballot, fold(__ballot(t % 3 == 0)) + 2 * fold(__ballot_sync(0xf0f0f0f0full, t % 5 == 0)))
K(any_all, __any(t == 40) + 2 * __all(t < 64) + 4 * __any_sync(~0ull, t > 500) + 8 * __all_sync(~0ull, t < 500) + 16 * __popcll(__activemask()))
K(counters, (atomicAdd((int*)a, 1), atomicSub(a + 1, 2u), atomicAdd((unsigned long long*)(a + 2), 3ull), atomicAdd((float*)a + 4, 0.5f), atomicAdd((double*)(a + 6), 0.25), atomicInc(a + 8, 9u), atomicDec(a + 9, 9u)) < 10)
K(choices, (atomicMin((int*)a, 100 - (int)i), atomicMax(a + 1, i), atomicAnd(a + 2, ~i), atomicOr(a + 3, i), atomicXor(a + 4, i), atomicExch(a + 5, 7u), atomicCAS(a + 6, 0u, 9u)) == 9u || i >= 0)
K(exp_, expf(v)) K(exp2_, exp2f(v)) K(exp10_, exp10f(v / 4)) K(log_, logf(v * v)) K(log2_, log2f(v * v)) K(log10_, log10f(v * v))
K(sqrt_, sqrtf(v * v + v)) K(rsqrt_, rsqrtf(v * v)) K(sin_, sinf(v * 100)) K(cos_, cosf(v * 100)) K(tanh_, tanhf(v / 8)) K(pow_, powf(v, 3) + powf(fabsf(v), v))
K(mod_, fmodf(v * 1e6f, 0.7f)) K(fma_, fmaf(v, v, -1.5f) + __fmaf_rn(v, 2, 1)) K(ends, fmaxf(v, 1) + fminf(v, -1) + fabsf(v))
K(floor_, floorf(v) + 100 * ceilf(v)) K(trunc_, truncf(v) + 100 * roundf(v)) K(rint_, rintf(v) + __float2int_rn(v * 2)) K(double_, (float)(fma((double)v, (double)v, 2.0) + floor((double)v)))
K(quick_exp, __expf(v)) K(quick_log, __logf(v * v)) K(quick_sin, __sinf(v / 8)) K(quick_div, __fdividef(v, 3))
K(half_, __half2float(__float2half((float)t) * __float2half(2) + __hfma(__float2half(0.5f), __float2half((float)t), __float2half(1))))
K(half2_, __half22float2(__hfma2(__floats2half2_rn(t, 1), __float2half2_rn(2), __float2half2_rn(3))).x + __high2float(__hadd2(half2{1, 2}, half2{3, 4})))
K(widths, (uint32_t)(sizeof(int8_t) + 10 * sizeof(uint16_t) + 100 * sizeof(int32_t) + 1000 * sizeof(uint64_t) + 10000 * sizeof(size_t)))
K(bits, __popc(i) + 100 * __clz((int)i) + 10000 * __ffs((int)i) + (int)(__brev(i) >> 24))
K(products, __mul24(-3, (int)i) + __dp4a((int)0xff02fe04, (int)i, 7) + (int)__umulhi(i << 24, 1000))
K(least, min((int)i - 9, 5) + 10 * max(i, 7u) + abs(3 - (int)i) + __ldg((const int*)x + i) * 0)
K(vectors, make_float4(v, 1, 2, 3).x + make_int2(3, 4).y + make_uint4(1, 2, 3, 4).w + make_float2(v, v).y + dim3(5).y)
extern "C" __global__ void __launch_bounds__(128, 2) turned(unsigned* y, const float* x, unsigned* a) { extern __shared__ unsigned s[]; s[threadIdx.x] = threadIdx.x; __syncthreads(); y[blockIdx.x * blockDim.x + threadIdx.x] = s[blockDim.x - 1 - threadIdx.x]; __threadfence(); }
__constant__ unsigned table[4] = {3, 1, 4, 1};
K(constant, table[t % 4] + __float_as_uint(1.0f) * 0)
"#;

/// A thread of a kernel.
#[derive(Clone, Copy)]
struct Thread {
    v: f64,
    i: i64,
    t: i64,
    wave: i64,
}

impl Thread {
    /// `t` of another lane in the same wave.
    fn of(self, lane: i64) -> i64 {
        self.t / self.wave * self.wave + lane
    }
    fn lane(self) -> i64 {
        self.t % self.wave
    }
    fn votes(self, yes: impl Fn(i64) -> bool) -> u64 {
        (0..self.wave).filter(|&l| yes(self.of(l))).map(|l| 1 << l).sum()
    }
}

/// The expected bits, or a number with a tolerance in units in the last place.
enum Want {
    Word(i64),
    Near(f64, f64),
}
use Want::{Near, Word};

type Answer = (&'static str, fn(Thread) -> Want);

fn fold(v: u64) -> i64 {
    i64::from(v as u32 ^ (v >> 32) as u32)
}

fn up(p: Thread, by: i64, width: i64) -> i64 {
    let from = p.lane() - by;
    p.of(if from < p.lane() / width * width { p.lane() } else { from })
}

fn down(p: Thread, by: i64, width: i64) -> i64 {
    let from = p.lane() + by;
    p.of(if from >= (p.lane() / width + 1) * width { p.lane() } else { from })
}

fn f(v: f64) -> f64 {
    f64::from(v as f32)
}

fn answers() -> Vec<Answer> {
    vec![
        ("grid", |_| Word(212_811)),
        ("shuffle", |p| Word(p.of(5) * 1000 + p.of(p.lane() / 8 * 8 + (p.t + 3) % 8))),
        ("shuffle_up", |p| Word(up(p, 3, p.wave) * 1000 + up(p, 5, 16))),
        ("shuffle_down", |p| Word(down(p, 3, p.wave) * 1000 + down(p, 5, 32))),
        ("shuffle_xor", |p| Word(p.of(p.lane() ^ (p.wave / 2)) * 1000 + p.of(p.lane() ^ 17))),
        ("shuffle_double", |p| {
            let other = p.of(p.lane() ^ (p.wave / 2 + 1)) - p.t + p.i;
            Near(number(other as usize) + 1e9, 0.5)
        }),
        ("ballot", |p| {
            Word(fold(p.votes(|t| t % 3 == 0)) + 2 * fold(p.votes(|t| t % 5 == 0) & 0xf_0f0f_0f0f))
        }),
        ("any_all", |p| {
            let (any, all) = (p.votes(|t| t == 40) > 0, p.of(p.wave - 1) < 64);
            Word(i64::from(any) + 2 * i64::from(all) + 8 + 16 * p.wave)
        }),
        ("counters", |_| Word(1)),
        ("choices", |_| Word(1)),
        ("exp_", |p| Near(p.v.exp(), 1.0)),
        ("exp2_", |p| Near(p.v.exp2(), 1.0)),
        ("exp10_", |p| Near(10f64.powf(p.v / 4.0), 1.0)),
        ("log_", |p| Near(f(p.v * p.v).ln(), 1.0)),
        ("log2_", |p| Near(f(p.v * p.v).log2(), 1.0)),
        ("log10_", |p| Near(f(p.v * p.v).log10(), 1.0)),
        ("sqrt_", |p| Near(f(f(p.v * p.v) + p.v).sqrt(), 0.5)),
        ("rsqrt_", |p| Near(1.0 / f(p.v * p.v).sqrt(), 1.0)),
        ("sin_", |p| Near(f(p.v * 100.0).sin(), 2.0)),
        ("cos_", |p| Near(f(p.v * 100.0).cos(), 2.0)),
        ("tanh_", |p| Near((p.v / 8.0).tanh(), 1.0)),
        ("pow_", |p| Near(f(p.v.powi(3)) + f(p.v.abs().powf(p.v)), 2.0)),
        ("mod_", |p| Near(f(p.v * 1e6) % f(0.7), 0.0)),
        ("fma_", |p| Near(f(p.v * p.v - 1.5) + f(p.v * 2.0 + 1.0), 0.5)),
        ("ends", |p| Near(f(p.v.max(1.0) + p.v.min(-1.0)) + p.v.abs(), 1.0)),
        ("floor_", |p| Near(p.v.floor() + 100.0 * p.v.ceil(), 0.0)),
        ("trunc_", |p| Near(p.v.trunc() + 100.0 * p.v.round(), 0.0)),
        ("rint_", |p| Near(p.v.round_ties_even() + (p.v * 2.0).round_ties_even(), 0.0)),
        ("double_", |p| Near(p.v * p.v + 2.0 + p.v.floor(), 0.5)),
        ("quick_exp", |p| Near(p.v.exp(), 40.0)),
        ("quick_log", |p| Near((p.v * p.v).ln(), 400.0)),
        ("quick_sin", |p| Near((p.v / 8.0).sin(), 2000.0)),
        ("quick_div", |p| Near(p.v / 3.0, 2.0)),
        ("half_", |p| Near(2.5 * p.t as f64 + 1.0, 0.0)),
        ("half2_", |p| Near(2.0 * p.t as f64 + 3.0 + 6.0, 0.0)),
        ("widths", |_| Word(88_421)),
        ("bits", |p| {
            let i = p.i as u32;
            let first = if i == 0 { 0 } else { i.trailing_zeros() + 1 };
            Word(i64::from(
                i.count_ones()
                    + 100 * i.leading_zeros()
                    + 10_000 * first
                    + (i.reverse_bits() >> 24),
            ))
        }),
        ("products", |p| {
            let (low, high) = (i64::from(p.i as u8 as i8), i64::from((p.i >> 8) as u8 as i8));
            Word(-3 * p.i + 4 * low - 2 * high + 7 + (((p.i << 24) * 1000) >> 32))
        }),
        ("least", |p| Word((p.i - 9).min(5) + 10 * p.i.max(7) + (3 - p.i).abs())),
        ("vectors", |p| Near(f(f(p.v + 4.0) + 4.0) + p.v + 1.0, 2.0)),
        ("turned", |p| Word(BLOCK as i64 - 1 - p.t)),
        ("constant", |p| Word([3, 1, 4, 1][p.t as usize % 4])),
    ]
}

/// The float of a thread: a nonzero multiple of 1/8 from −8 to 8.
fn number(i: usize) -> f64 {
    (i % 128) as f64 / 8.0 - 8.0 + 1.0 / 16.0
}

fn near(got: f32, want: f64, ulp: f64) -> bool {
    let right = want as f32;
    let unit = f64::from(right.abs().next_up()) - f64::from(right.abs());
    (f64::from(got) - want).abs() <= ulp.max(0.5) * unit
}

/// Launches two blocks. Returns the u32 of each thread and the shared u32.
fn launched(arch: &str, object: &[u8], name: &str) -> (Vec<u32>, Vec<u32>) {
    let kernel = Kernel::read(object, name).unwrap();
    let mut machine =
        Machine::new(Emulated::new(arch, kernel.wave).unwrap(), kernel, 0x1000).unwrap();
    let place = |n: u64| 0x10_0000_0000 * n;
    let mut block: Vec<u8> =
        [place(1), place(2), place(3)].iter().flat_map(|p| p.to_le_bytes()).collect();
    // Hidden arguments: numbers of blocks as u32, threads of a block as u16.
    block.extend([2u32, 1, 1].iter().flat_map(|n| n.to_le_bytes()));
    block.extend([BLOCK as u16, 1, 1, 0].iter().flat_map(|n| n.to_le_bytes()));
    block.resize(24 + 256, 0);
    let x: Vec<u8> = (0..ALL).flat_map(|i| (number(i) as f32).to_le_bytes()).collect();
    let (at, image) = machine.image();
    let regions = vec![
        Region::new("y", place(1), vec![0; 4 * ALL], true),
        Region::new("x", place(2), x, false),
        Region::new("a", place(3), vec![0; 64], true),
        Region::new("arguments", place(4), block, false),
        Region::new("code", at, image.to_vec(), false),
    ];
    let lds = machine.static_lds() + 4 * BLOCK;
    let launch = Launch {
        grid: [2, 1, 1],
        block: [BLOCK as u32, 1, 1],
        lds,
        cooperative: false,
        arguments: place(4),
        seed: 7,
        limit: 50_000_000,
    };
    let (memory, _) =
        machine.run(&launch, regions).unwrap_or_else(|fault| panic!("{arch}: {name}: {fault}"));
    let words = |what: &str| {
        let region = memory.regions.iter().find(|r| r.what == what).unwrap();
        let (all, rest) = region.bytes.as_chunks::<4>();
        assert!(rest.is_empty());
        all.iter().map(|w| u32::from_le_bytes(*w)).collect::<Vec<_>>()
    };
    (words("y"), words("a"))
}

fn double(words: &[u32]) -> f64 {
    f64::from_bits(u64::from(words[0]) | u64::from(words[1]) << 32)
}

#[test]
fn plain_kernels_compile_with_clang_and_run_correctly() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(&folder.path().join("cache"), super::WORKER, "clang");
    if let Err(why) = gfxemu::llvm::available() {
        eprintln!("SKIPPED: {why}");
        return;
    }
    if engine.compilers(Vendor::Amd).found.is_empty() {
        eprintln!("SKIPPED: no clang");
        return;
    }
    let answers = answers();
    let targets =
        [("gfx1100", 32), ("gfx1100", 64), ("gfx942", 64), ("gfx1030", 32), ("gfx1030", 64)];
    let job = |(arch, wave): &(&str, u32)| {
        let source = Source::new("plain", "plain.hip", TEXT).words();
        let source = answers.iter().fold(source, |source, (name, _)| source.entry(*name));
        Job::new(source, Constants::new(), Options::wave(*wave), Target::parse(arch).unwrap())
    };
    let jobs: Vec<Job> = targets.iter().map(job).collect();
    for ((arch, wave), code) in targets.iter().zip(engine.compile_all(&jobs)) {
        let (code, begun) =
            (code.unwrap_or_else(|e| panic!("{arch} wave {wave}: {e}")), Instant::now());
        for (name, answer) in &answers {
            let (y, a) = launched(arch, code.bytes(), name);
            for (i, got) in y.iter().enumerate() {
                let thread = Thread {
                    v: number(i),
                    i: i as i64,
                    t: (i % BLOCK) as i64,
                    wave: i64::from(*wave),
                };
                let said = format!("{name} on {arch}, wave {wave}, thread {i}");
                match answer(thread) {
                    Word(want) => assert_eq!(*got as i32, want as i32, "{said}"),
                    Near(want, ulp) => {
                        let got = f32::from_bits(*got);
                        let right = near(got, want, ulp) || want.is_nan() && got.is_nan();
                        assert!(right, "{said}: {got}, not {want}");
                    }
                }
            }
            let n = ALL as u32;
            match *name {
                "counters" => {
                    assert_eq!(
                        (a[0], a[1], a[2], a[3]),
                        (n, (2 * n).wrapping_neg(), 3 * n, 0),
                        "{arch}"
                    );
                    assert_eq!(
                        (f32::from_bits(a[4]), double(&a[6..8])),
                        (n as f32 / 2.0, f64::from(n) / 4.0),
                        "{arch}"
                    );
                    assert_eq!((a[8], a[9]), (n % 10, 4), "{arch}");
                }
                "choices" => {
                    assert_eq!(
                        a[..7],
                        [(100 - (n as i32 - 1)) as u32, n - 1, 0, n - 1, 0, 7, 9],
                        "{arch}"
                    );
                }
                _ => {}
            }
        }
        eprintln!("{} kernels on {arch}, wave {wave}: {:.1?}", answers.len(), begun.elapsed());
    }
}

#[test]
fn printf_with_plain_clang_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(&folder.path().join("cache"), super::WORKER, "clang");
    if engine.compilers(Vendor::Amd).found.is_empty() {
        eprintln!("SKIPPED: no clang");
        return;
    }
    let text =
        "#include \"words.h\"\nextern \"C\" __global__ void said(int* y) { printf(\"%d\", *y); }\n";
    let source = Source::new("said", "said.hip", text).words().entry("said");
    let job =
        Job::new(source, Constants::new(), Options::wave(32), Target::parse("gfx1100").unwrap());
    let error = engine.compile_all(&[job]).pop().unwrap().unwrap_err().to_string();
    assert!(error.contains("printf") && error.contains("write values to a buffer"), "{error}");
}
