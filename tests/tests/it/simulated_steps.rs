//! Several steps of different shapes in one translation unit and in one kernel: two products of
//! different sizes, formats and activations, and an attention over the same shared memory. The
//! kernel that runs a whole token depends on this (`gpu/kjit.h`, "step").

use crate::common::{TEMPORARY, WORKER};
use kjit_engine::{
    Arg, Config, Constants, Engine, Geometry, HostArg, Isolation, Job, Options, Source, Target,
    Value, Vendor,
};
use kjit_kernel_cases::{self as cases, Case, CaseArg};
use kjit_tests::launch::TestLaunch;
use kjit_tests::simulator::{Setup, cache, engine};

const BLOCK: u32 = 256;
/// Fewer blocks than shares of any step, so that each block runs more than one share of an
/// attention.
const BLOCKS: u32 = 3;

const TEXT: &str = r#"
#include "attend.h"
#include "matvec.h"
#include "first.h"
#include "second.h"
#include "third.h"

union Lds {
    Matvec<First>::Shared first;
    Matvec<Second>::Shared second;
    Attend<Third>::Shared third;
};

// Nothing is waited for: what comes before is the same kernel's.
struct Nothing {
    STEP void release() {}
    STEP void wait() {}
};

#define PRODUCT(n)                                                                                                            \
    const float *x##n, const float *aux##n, const float *residual##n, const u8 *w0##n, const float *b0##n, float *y0##n,      \
        const u8 *w1##n, const float *b1##n, float *y1##n, const u8 *w2##n, const float *b2##n, float *y2##n, float eps##n,   \
        u32 alone##n
#define ARGS(n) \
    MatvecArgs { x##n, aux##n, residual##n, w0##n, w1##n, w2##n, b0##n, b1##n, b2##n, y0##n, y1##n, y2##n, eps##n, blocks }

KERNEL three_steps(PRODUCT(A), PRODUCT(B), const float* q, const float* k, const float* v, const float* q_norm, const float* k_norm,
                   const float* sinks, const u32x2* angles, const u32* slots, const u32* position, u8* keys, u8* values, float* part, u32* counters,
                   float* out, float scale, float eps, u32 capacity, u32 splits, u64 sequence_bytes, u32 heads, u32 all, u32 blocks) {
    LDS_DYNAMIC(pool);
    LDS_ARRAY(Lds, lds, 1);
    Share share{block_id(), 0, 0};
    Matvec<First>::step<LaunchBefore>(ARGS(A), share, pool, lds[0].first);
    block_sync();
    Matvec<Second>::step<Nothing>(ARGS(B), share, pool, lds[0].second);
    AttendArgs args{q, k, v, q_norm, k_norm, sinks, angles, slots, position, keys, values, part, counters, out, scale, eps, capacity, splits,
                    sequence_bytes};
    for (u32 i = share.x; i < all; i += blocks) {
        block_sync();
        Attend<Third>::step(args, Share{i % splits, i / splits % heads, i / splits / heads}, lds[0].third);
    }
}
"#;

/// The value of a constant in the shape of a case.
fn told<'c>(case: &'c Case, name: &str) -> Option<&'c Value> {
    case.kernel.constants.told().find(|(n, _)| *n == name).map(|(_, v)| v)
}

/// Two products and an attention: quantized weights after a norm, f32 or f16 weights of other
/// sizes, and 8-bit keys if the target supports them.
fn three(target: &Target, wave: u32) -> [Case; 3] {
    let all = cases::all(target, wave, 20_261_122).unwrap();
    let fits = |c: &&Case| {
        let team =
            |v: Option<&Value>| matches!(v, Some(Value::Int(team)) if *team <= i64::from(BLOCK));
        c.kernel.options.wave == wave && (c.kernel.entry != "matvec" || team(told(c, "TEAM")))
    };
    let is =
        |c: &Case, name: &str, value: &str| told(c, name) == Some(&Value::Text(value.to_owned()));
    let pick = |what: &str, wanted: &dyn Fn(&Case) -> bool| {
        all.iter()
            .filter(fits)
            .find(|c| wanted(c))
            .unwrap_or_else(|| panic!("{target}: no case with {what}"))
            .clone()
    };
    [
        pick("a quantised product behind a norm", &|c| {
            c.kernel.entry == "matvec"
                && is(c, "FORM", "Form::Quantised")
                && is(c, "PROLOGUE", "Prologue::Norm")
        }),
        pick("a plain product", &|c| c.kernel.entry == "matvec" && is(c, "FORM", "Form::Plain")),
        pick("an attention", &|c| c.kernel.entry == "attend"),
    ]
}

/// The job of all three cases: the headers and shapes of each case with different names.
fn job(target: &Target, wave: u32, three: &[Case; 3]) -> Job {
    let mut source = Source::new("three_steps", "three_steps.hip", TEXT).entry("three_steps");
    for (case, (file, name)) in
        three.iter().zip([("first.h", "First"), ("second.h", "Second"), ("third.h", "Third")])
    {
        for (header, text) in case.kernel.source.reached().unwrap() {
            source = match header {
                "shape.h" => {
                    source.file(file, text.replace("struct Shape {", &format!("struct {name} {{")))
                }
                _ => source.file(header.to_owned(), text.to_owned()),
            };
        }
    }
    let mut constants = Constants::new().set("KJ_BLOCK", BLOCK);
    if let Some(Value::Int(dot4)) = three[0].kernel.constants.get("KJ_DOT4") {
        constants = constants.set("KJ_DOT4", *dot4);
    }
    Job::new(source, constants, Options::wave(wave), target.clone())
}

fn right(test: &str, arch: &str, wave: u32) {
    Setup::devices(arch).set("HIPSIM_OPTIMISE", "-Og").set("HIPSIM_CLANG", "none").run(
        test,
        TEMPORARY,
        || {
            let engine = engine(&cache(TEMPORARY), WORKER, "hiprtc");
            let device = engine.device("rocm:0").unwrap();
            let three = three(device.target(), wave);
            assert_ne!(told(&three[0], "COLS"), told(&three[1], "COLS"), "products of two sizes");
            let module = engine.load(&device, &job(device.target(), wave, &three)).unwrap();
            let grid = three[2].geometry.grid;
            let mut args: Vec<HostArg<'_>> = three.iter().flat_map(Case::host_args).collect();
            args.extend(
                [grid[1], grid.iter().product(), BLOCKS].map(|n| HostArg::Value(Arg::from(n))),
            );
            let shared = three.iter().map(|c| c.kernel.shared).max().unwrap_or(0);
            let stream = device.stream().unwrap();
            let kernel = module.kernel("three_steps").unwrap();
            let after = stream
                .try_out(&kernel, &Geometry::new(BLOCKS, BLOCK).shared(shared), &args)
                .unwrap();
            let mut rest = after.as_slice();
            for case in &three {
                let buffers =
                    case.args.iter().filter(|a| matches!(a, CaseArg::Buffer { .. })).count();
                let (its, others) = rest.split_at(buffers);
                case.check(its).unwrap();
                rest = others;
            }
            assert!(rest.is_empty());
        },
    );
}

#[test]
fn fused_products_and_attention_are_correct_at_wave_32() {
    right("simulated_steps::fused_products_and_attention_are_correct_at_wave_32", "gfx1100", 32);
}

#[test]
fn fused_products_and_attention_are_correct_at_wave_64() {
    right("simulated_steps::fused_products_and_attention_are_correct_at_wave_64", "gfx942", 64);
}

#[test]
fn fused_products_and_attention_compile_for_every_vendor() {
    for (vendor, kind, archs) in
        [(Vendor::Nvidia, "nvrtc", &["sm_90a"][..]), (Vendor::Amd, "clang", &["gfx1100", "gfx942"])]
    {
        let engine = Engine::new(
            Config::new().no_cache().isolation(Isolation::InProcess).compiler_kind(kind),
        );
        if engine.compilers(vendor).found.is_empty() {
            eprintln!("SKIPPED: no {kind} here");
            continue;
        }
        for arch in archs {
            let target = Target::parse(arch).unwrap();
            let wave = target.default_wave();
            let code = engine.compile(&job(&target, wave, &three(&target, wave))).unwrap();
            let kernel = code.kernels().iter().find(|k| k.name == "three_steps").unwrap();
            assert_eq!((kernel.spills, kernel.local), (Some(0), 0), "{arch}: spills");
            eprintln!(
                "{arch}: {} registers, {} bytes of static shared memory",
                kernel.all_registers(),
                kernel.shared
            );
        }
    }
}
