//! Every kernel case on simulated AMD devices, run by the engine: compiled, cached, loaded,
//! launched, read back and compared with its oracle in f64. Wave 32 and wave 64, RDNA and CDNA.

use crate::common::{TEMPORARY, WORKER};
use kjit_engine::{Job, Module, Stream, Target};
use kjit_kernel_cases::{self as cases, Case};
use kjit_tests::launch::TestLaunch;
use kjit_tests::simulator::{Setup, Simulated, cache, engine};

fn seed() -> u64 {
    std::env::var("KJIT_TEST_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(20_261_121)
}

/// Runs one case; an error is one sentence.
fn run(stream: &Stream, module: &Module, case: &Case) -> Result<(), String> {
    let kernel = module.kernel(case.kernel.entry);
    let called =
        kernel.and_then(|kernel| stream.try_out(&kernel, &case.geometry, &case.host_args()));
    case.check(&called.map_err(|e| format!("{}: {e}", case.name))?)
}

/// Runs all cases. If `real`, code objects are compiled by clang if it is installed, which also
/// checks argument lists and resources. If not, the simulated hiprtc makes them, which takes half
/// the time.
fn all(test: &str, arch: &str, wave: u32, real: bool) {
    some(test, arch, wave, real, &[""]);
}

/// Runs the cases whose names contain one of `few`. `KJIT_TEST_ONLY=…` selects other names,
/// `KJIT_TEST_ONLY=` all.
fn some(test: &str, arch: &str, wave: u32, real: bool, few: &[&str]) {
    some_as(test, arch, wave, real, few, Target::clone);
}

/// Like [`some`], for another variant of the device.
fn some_as(
    test: &str,
    arch: &str,
    wave: u32,
    real: bool,
    few: &[&str],
    variant: fn(&Target) -> Target,
) {
    let setup = Setup::devices(arch).set("HIPSIM_OPTIMISE", "-Og");
    let setup = if real { setup } else { setup.set("HIPSIM_CLANG", "none") };
    setup.run(test, TEMPORARY, || {
        let device = engine(&cache(TEMPORARY), WORKER, "hiprtc").device("rocm:0").unwrap();
        assert_eq!(device.target().to_string(), arch);
        let only = std::env::var("KJIT_TEST_ONLY").ok();
        let wanted = |name: &str| match &only {
            Some(only) => name.contains(only),
            None => few.iter().any(|part| name.contains(part)),
        };
        if only.is_none() && few != [""] {
            eprintln!(
                "SKIPPED: {arch}: all cases but those of {} (KJIT_TEST_ONLY= runs all)",
                few.join(", ")
            );
        }
        let seed = seed();
        let target = variant(device.target());
        let cases: Vec<Case> = cases::all(&target, wave, seed).unwrap();
        let cases: Vec<Case> = cases.into_iter().filter(|c| wanted(&c.name)).collect();
        assert!(!cases.is_empty(), "no case has {only:?} in its name");
        let missing: Vec<_> =
            few.iter().filter(|part| !cases.iter().any(|c| c.name.contains(**part))).collect();
        assert!(only.is_some() || missing.is_empty(), "no case has {missing:?} in its name");
        let dir = cache(TEMPORARY).join(if real { "real" } else { "none" });
        let engine = engine(&dir, WORKER, "hiprtc");
        let jobs: Vec<Job> = cases.iter().map(|c| c.kernel.job(&target)).collect();
        let modules = engine.load_all(&device, &jobs);
        let stream = device.stream().unwrap();
        let mut failed = vec![];
        for (case, module) in cases.iter().zip(modules) {
            let answer = module
                .map_err(|e| format!("{}: {e}", case.name))
                .and_then(|m| run(&stream, &m, case));
            if let Err(why) = answer {
                let fault = Simulated::here().fault(0);
                failed.push(format!("{why} {fault}"));
                if !fault.is_empty() {
                    break; // as on a real device, nothing works after a fault
                }
            }
        }
        eprintln!("{} cases on {target} wave {wave}: {:?}", cases.len(), engine.counts());
        assert!(
            failed.is_empty(),
            "seed {seed}: {} of {} failed:\n{}",
            failed.len(),
            cases.len(),
            failed.join("\n")
        );
    });
}

#[test]
fn every_case_is_correct_on_gfx1100_at_wave_32() {
    all("simulated_kernels::every_case_is_correct_on_gfx1100_at_wave_32", "gfx1100", 32, false);
}

/// One case of each kind: gfx942 covers waves of 64, and the 32-lane tests cover the other
/// properties of the card.
#[test]
fn selected_cases_are_correct_on_gfx1100_at_wave_64() {
    let few = [
        "softmax",
        "norm_rows Rms · 3 × 576",
        "matvec Q8_0×43",
        "matvec Q4_K×49",
        "attend 4/2 × 64 F16",
        "gemm Q8_0×67",
        "gemm Q4_K×51",
        "flash 4/2 heads of 64, F16",
        "route 6 of ",
        "argmax 4",
        "draw",
    ];
    some(
        "simulated_kernels::selected_cases_are_correct_on_gfx1100_at_wave_64",
        "gfx1100",
        64,
        true,
        &few,
    );
}

#[test]
fn every_case_is_correct_on_gfx942_at_wave_64() {
    all("simulated_kernels::every_case_is_correct_on_gfx942_at_wave_64", "gfx942", 64, false);
}

/// The only matrix unit with products of depth 32.
#[test]
fn matrix_products_are_correct_on_gfx1250() {
    let few = ["gemm Q8_0×67", "gemm Q4_K×51", "flash 4/2 heads of 64, F16"];
    some("simulated_kernels::matrix_products_are_correct_on_gfx1250", "gfx1250", 32, false, &few);
}

/// GCN: waves of 64, no matrix unit, no dot products of bytes or f16.
#[test]
fn selected_cases_are_correct_on_gfx900() {
    let few = ["matvec Q8_0×43", "gemm Q4_K×51", "flash 4/2 heads of 64, F16", "draw"];
    some("simulated_kernels::selected_cases_are_correct_on_gfx900", "gfx900", 64, false, &few);
}

/// A card without packed f16 instructions.
#[test]
fn selected_cases_are_correct_on_gfx803() {
    some(
        "simulated_kernels::selected_cases_are_correct_on_gfx803",
        "gfx803",
        64,
        false,
        &["gemm Q8_0×67", "attend 4/2 × 64 F16"],
    );
}

/// The last variant that is tried on a card: no matrix unit, no dot products, no f16 arithmetic.
#[test]
fn selected_cases_are_correct_in_f32_alone() {
    if std::env::var_os("KJIT_TEST_ONLY").is_none() {
        eprintln!(
            "SKIPPED: cases in f32 alone (KJIT_TEST_ONLY= runs all); \
             simulated_trust.rs runs a model so"
        );
        return;
    }
    some_as(
        "simulated_kernels::selected_cases_are_correct_in_f32_alone",
        "gfx1100",
        32,
        false,
        &[],
        |target| target.f32_alone(),
    );
}
