//! Tests compiling for AMD without a GPU. They use the real hiprtc if it is installed (Debian 12's
//! ROCm 5.2), any clang with the AMDGPU target (Debian's clang-19 and lld-19), and the reader of
//! code objects. A test without its compiler prints a message and is skipped.

use crate::common::config;
use kjit_engine::arch::ARCHS;
use kjit_engine::code_object::inspect;
use kjit_engine::{
    ArgInfo, ArgKind, CodeObject, Constants, Engine, Error, Job, Options, Source, Target, Vendor,
};
use std::path::Path;

/// The two kernels of the nvrtc tests, with builtins that hiprtc and plain clang both support.
const SOURCE: &str = r#"
#include "words.h"
KERNEL saxpy(const float* x, float* y, float a, unsigned n) {
    unsigned i = __builtin_amdgcn_workgroup_id_x() * BLOCK + __builtin_amdgcn_workitem_id_x();
    if (i < n) y[i] = a * x[i] + y[i] * SCALE;
}
struct Pair { int first; float second[3]; };
KERNEL mixed(const float* in, float* out, Pair pair, unsigned char flag, double d) {
    static LDS float part[BLOCK];
    unsigned t = __builtin_amdgcn_workitem_id_x();
    part[t] = in[t];
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
    out[t] = part[BLOCK - 1 - t] + pair.second[1] * flag + (float)d + pair.first;
}
"#;

const WORDS: &str = "#define KERNEL extern \"C\" __attribute__((global)) \
    __attribute__((amdgpu_flat_work_group_size(BLOCK, BLOCK))) void\n\
                     #define LDS __attribute__((shared))\n";

fn source(text: &'static str) -> Source {
    Source::new("saxpy", "saxpy.hip", text).file("words.h", WORDS)
}

fn job(target: &str, wave: u32) -> Job {
    let constants = Constants::new().set("BLOCK", 128).set("SCALE", 1.0f32);
    let source = source(SOURCE).entry("saxpy").entry("mixed");
    Job::new(source, constants, Options::wave(wave), Target::parse(target).unwrap())
}

/// An engine with one kind of compiler; `None` if it is not installed.
fn engine(dir: &Path, kind: &str, test: &str) -> Option<Engine> {
    let engine = Engine::new(config(dir).compiler_kind(kind));
    let report = engine.compilers(Vendor::Amd);
    if report.found.is_empty() {
        eprintln!(
            "SKIPPED {test}: no {kind} ({} places tried, {:?})",
            report.tried.len(),
            report.unusable
        );
        return None;
    }
    Some(engine)
}

fn check(target: &Target, wave: u32, code: &CodeObject) {
    let find = |name: &str| code.kernels().iter().find(|k| k.name == name).unwrap();
    let arg = |offset, size, kind| ArgInfo { offset, size, kind: Some(kind) };
    let (buffer, value) = (ArgKind::Buffer, ArgKind::Value);
    let saxpy = find("saxpy");
    let what = format!("{target} wave {wave}: {saxpy:?}");
    assert_eq!(
        saxpy.args,
        [arg(0, 8, buffer), arg(8, 8, buffer), arg(16, 4, value), arg(20, 4, value)],
        "{what}"
    );
    assert_eq!(
        (saxpy.shared, saxpy.spills, saxpy.local, saxpy.max_threads),
        (0, Some(0), 0, Some(128)),
        "{what}"
    );
    assert_eq!(saxpy.wave, Some(wave), "{what}");
    assert!((3..=32).contains(&saxpy.registers) && (6..=104).contains(&saxpy.sgprs), "{what}");
    let mixed = find("mixed");
    let args = [
        arg(0, 8, buffer),
        arg(8, 8, buffer),
        arg(16, 16, value),
        arg(32, 1, value),
        arg(40, 8, value),
    ];
    assert_eq!(mixed.args, args, "{what}");
    assert_eq!(mixed.shared, 512, "{what}");
    for row in code.report(target, 0) {
        assert_eq!((row.wave, row.threads, row.spills), (wave, 128, Some(0)), "{row:?}");
        assert!(row.occupancy.fraction() > 0.9 && row.bytes > 1000 && row.seconds > 0.0, "{row:?}");
    }
}

#[test]
fn clang_compiles_every_known_amd_target_at_both_widths() {
    let dir = tempfile::tempdir().unwrap();
    let Some(engine) =
        engine(dir.path(), "clang", "clang_compiles_every_known_amd_target_at_both_widths")
    else {
        return;
    };
    let clang = &engine.compilers(Vendor::Amd).found[0];
    let mut jobs = Vec::new();
    for target in ARCHS.iter().filter(|a| a.vendor == Vendor::Amd).map(|a| a.id) {
        if !clang.knows.iter().any(|id| id == target) {
            eprintln!("NOT COMPILED: clang {:?} does not know {target}", clang.version);
            continue;
        }
        for wave in Target::parse(target).unwrap().waves() {
            jobs.push(job(target, *wave));
        }
    }
    assert!(jobs.len() >= 25, "the compiler knows only {:?}", clang.knows);
    for (job, code) in jobs.iter().zip(engine.compile_all(&jobs)) {
        let code = code.unwrap_or_else(|e| panic!("{}: {e}", job.target));
        assert!(code.compiler().starts_with("clang "), "{}", code.compiler());
        check(&job.target, job.options.wave, &code);
    }
}

#[test]
fn hiprtc_compiles_every_target_of_its_comgr() {
    let dir = tempfile::tempdir().unwrap();
    let Some(engine) = engine(dir.path(), "hiprtc", "hiprtc_compiles_every_target_of_its_comgr")
    else {
        return;
    };
    let jobs = [job("gfx90a", 64), job("gfx1030", 32), job("gfx1030", 64)];
    for (job, code) in jobs.iter().zip(engine.compile_all(&jobs)) {
        let code = code.unwrap_or_else(|e| panic!("{}: {e}", job.target));
        assert!(code.compiler().starts_with("hiprtc "), "{}", code.compiler());
        check(&job.target, job.options.wave, &code);
        eprintln!(
            "{}",
            code.report(&job.target, 0).iter().map(|r| format!("{r:?}\n")).collect::<String>()
        );
    }
}

#[test]
fn plain_hip_is_equal_for_hiprtc_and_clang() {
    let dir = tempfile::tempdir().unwrap();
    let text = r#"
        #include "words.h"
        static __device__ __forceinline__ float twice(float x) { return x + x; }
        extern "C" __global__ void __launch_bounds__(BLOCK) turn(const float* x, float* y) {
            __shared__ float part[BLOCK];
            part[threadIdx.x] = x[blockIdx.x * BLOCK + threadIdx.x];
            __syncthreads();
            y[blockIdx.x * BLOCK + threadIdx.x] = twice(part[BLOCK - 1 - threadIdx.x]) + threadIdx.y + blockIdx.z;
        }"#;
    for kind in ["clang", "hiprtc"] {
        let test = "plain_hip_is_equal_for_hiprtc_and_clang";
        let Some(engine) = engine(dir.path(), kind, test) else { continue };
        for (target, wave) in [("gfx90a", 64), ("gfx1030", 32)] {
            let source = Source::new("turn", "turn.hip", text).words().entry("turn");
            let target = Target::parse(target).unwrap();
            let job = Job::new(
                source,
                Constants::new().set("BLOCK", 128),
                Options::wave(wave),
                target.clone(),
            );
            let code = engine.compile(&job).unwrap_or_else(|e| panic!("{kind} {target}: {e}"));
            let [turn] = code.kernels() else { panic!("{:?}", code.kernels()) };
            assert_eq!(
                (turn.shared, turn.spills, turn.max_threads),
                (512, Some(0), Some(128)),
                "{kind} {target}: {turn:?}"
            );
        }
    }
}

#[test]
fn unknown_target_is_refused_before_compiling() {
    let dir = tempfile::tempdir().unwrap();
    let Some(engine) = engine(dir.path(), "hiprtc", "unknown_target_is_refused_before_compiling")
    else {
        return;
    };
    if engine.compilers(Vendor::Amd).found[0].knows.contains(&"gfx1201".to_owned()) {
        eprintln!("SKIPPED: this hiprtc knows gfx1201");
        return;
    }
    match engine.compile(&job("gfx1201", 32)) {
        Err(error @ Error::Miss { .. }) => {
            let text = error.to_string();
            assert!(text.contains("hiprtc") && text.contains("does not know gfx1201"), "{text}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(engine.counts().compiled, 0);
}

#[test]
fn target_uses_first_supporting_compiler() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::new(config(dir.path()));
    let report = engine.compilers(Vendor::Amd);
    let kinds: Vec<&str> = report.found.iter().map(|c| c.kind.as_str()).collect();
    if kinds != ["hiprtc", "clang"] || report.found[0].knows.contains(&"gfx1100".to_owned()) {
        eprintln!("SKIPPED: here are {kinds:?}, not an old hiprtc and a clang");
        return;
    }
    let choice = |target: &str| engine.compiler_for(&Target::parse(target).unwrap());
    let old = choice("gfx90a:sramecc+:xnack-").unwrap();
    assert_eq!(old.compiler.kind, "hiprtc");
    assert!(old.reason.contains("the vendor's run-time compiler comes first"), "{}", old.reason);
    let new = choice("gfx1100").unwrap();
    assert_eq!(new.compiler.kind, "clang");
    assert!(
        new.reason.contains("hiprtc") && new.reason.contains("does not know gfx1100"),
        "{}",
        new.reason
    );
    assert!(engine.compile(&job("gfx1100", 32)).unwrap().compiler().starts_with("clang "));
    assert!(engine.compile(&job("gfx90a", 64)).unwrap().compiler().starts_with("hiprtc "));
    let asked = Engine::new(config(dir.path()).compiler_kind("clang"))
        .compiler_for(&Target::parse("gfx90a").unwrap());
    assert!(asked.unwrap().reason.ends_with("clang was requested"));
}

#[test]
fn compile_error_names_source_line_for_each_compiler() {
    for kind in ["clang", "hiprtc"] {
        let dir = tempfile::tempdir().unwrap();
        let Some(engine) =
            engine(dir.path(), kind, "compile_error_names_source_line_for_each_compiler")
        else {
            continue;
        };
        let mut bad = job("gfx90a", 64);
        bad.source =
            source("#include \"words.h\"\n\nKERNEL bad(float* y) {\n    y[0] = nonsense;\n}\n");
        let Err(Error::Compile(failure)) = engine.compile(&bad) else {
            panic!("{kind}: it compiled")
        };
        let text = failure.to_string();
        assert!(text.contains("saxpy.hip:4") && text.contains("nonsense"), "{kind}: {text}");
        let kept = failure.kept.clone().unwrap();
        assert!(kept.join("options.txt").is_file());
        std::fs::remove_dir_all(kept).unwrap();
    }
}

#[test]
fn code_object_reports_spills_and_scratch() {
    let dir = tempfile::tempdir().unwrap();
    let Some(engine) = engine(dir.path(), "clang", "code_object_reports_spills_and_scratch") else {
        return;
    };
    let mut greedy = job("gfx1030", 32);
    // 120 live floats in each thread with a limit of 64 registers (16 waves on each SIMD): the
    // compiler must spill.
    greedy.source = source(
        "#include \"words.h\"\nextern \"C\" __attribute__((global)) \
         __attribute__((amdgpu_flat_work_group_size(BLOCK, BLOCK), \
         amdgpu_waves_per_eu(16, 16))) void greedy(volatile float* x) {\n float v[120];\n \
         _Pragma(\"clang loop unroll(full)\") for (int i = 0; i < 120; ++i) v[i] = x[i * 64];\n \
         _Pragma(\"clang loop unroll(full)\") for (int i = 0; i < 120; ++i) x[i * 64] = v[119 - \
         i] * v[i];\n}\n",
    );
    let code = engine.compile(&greedy).unwrap();
    let row = code.report(&greedy.target, 0).remove(0);
    assert!(row.spills > Some(0) && row.scratch > 0, "{row:?}");
}

#[test]
fn damaged_code_object_is_an_error_without_panic() {
    let dir = tempfile::tempdir().unwrap();
    let Some(engine) = engine(dir.path(), "clang", "damaged_code_object_is_an_error_without_panic")
    else {
        return;
    };
    let code = engine.compile(&job("gfx942", 64)).unwrap();
    let whole = code.bytes();
    assert_eq!(inspect("whole", whole).unwrap(), code.kernels());
    for len in (0..whole.len()).step_by(61) {
        let cut = inspect("cut", &whole[..len]);
        assert!(
            !matches!(&cut, Ok(kernels) if kernels.is_empty()),
            "{len} of {} bytes",
            whole.len()
        );
    }
    for at in (0..whole.len()).step_by(7) {
        for bit in [1, 0x80] {
            let mut bytes = whole.to_vec();
            bytes[at] ^= bit;
            if let Ok(kernels) = inspect("changed", &bytes) {
                for kernel in kernels {
                    assert!(
                        kernel
                            .args
                            .iter()
                            .all(|a| u64::from(a.offset) + u64::from(a.size) < 1 << 33),
                        "byte {at}"
                    );
                }
            }
        }
    }
}

#[test]
fn compiled_code_is_identical_across_folders_and_processes() {
    for (kind, target) in [("clang", "gfx1100"), ("hiprtc", "gfx1030")] {
        let make = || {
            let dir = tempfile::tempdir().unwrap();
            let engine = engine(
                dir.path(),
                kind,
                "compiled_code_is_identical_across_folders_and_processes",
            )?;
            let code = engine.compile(&job(target, 32)).unwrap();
            Some((code.bytes().to_vec(), code.digest()))
        };
        let (Some(first), Some(second)) = (make(), make()) else { continue };
        assert!(first == second, "{kind}");
    }
}
