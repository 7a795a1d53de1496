//! Trust after proof: on simulated cards that compute one instruction wrong the tokens are the host's all the
//! same, the wrong kernel and what was taken instead are told, and a second start proves nothing.

use kjit_model::gguf::Gguf;
use kjit_model::sample::SampleOptions;
use kjit_model::session::{KvType, OpenOptions, SessionError};
use kjit_tests::files::model_path;
use kjit_tests::one::One;
use kjit_tests::simulator::{Setup, Simulated, cache, engine};
use std::sync::Arc;

const WORKER: &str = env!("CARGO_BIN_EXE_kjit-tests-cc");
const TEMPORARY: &str = env!("CARGO_TARGET_TMPDIR");
const MODEL: &str = "tiny/tiny-llama-q8_0.gguf";
const PROMPT: &[u32] = &[5, 42, 79, 116, 153, 190, 227, 264, 301];
const TOKENS: usize = 4;

fn options() -> OpenOptions {
    OpenOptions {
        context: Some(32),
        kv: KvType::F16,
        precise: false,
        threads: 2,
        prefill_chunk: Some(8),
        ..OpenOptions::default()
    }
}

fn setup(arch: &str, wrong: &str) -> Setup {
    Setup::devices(arch)
        .set("KJIT_HIPSIM_CLANG", "none")
        .set("KJIT_HIPSIM_OPTIMISE", "-Og")
        .set("KJIT_HIPSIM_WRONG", wrong)
}

/// Opens a small llama twice on a card with that instruction wrong: right tokens, by that variant.
fn right_tokens(test: &str, arch: &str, wrong: &str, variant: &str) {
    let Some(path) = model_path(MODEL) else { return };
    setup(arch, wrong).run(test, TEMPORARY, || {
        let gguf = Arc::new(Gguf::open(&path).unwrap());
        let graph = kjit_model::arch::build(&gguf).unwrap();
        let precise = OpenOptions { precise: true, ..options() };
        let want = One::cpu(&gguf, &graph, &precise).generate(PROMPT, TOKENS, SampleOptions::default());
        // Verdicts of its own: another test's card computes right.
        let folder = cache(TEMPORARY).join(format!("trust-{arch}-{wrong}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        let launches = || Simulated::here().calls(c"hipModuleLaunchKernel");
        let mut counted = vec![];
        for start in 0..2 {
            let engine = engine(&folder, WORKER, "hiprtc");
            let before = launches();
            let mut gpu = One::gpu(&engine, &engine.device("rocm:0").unwrap(), &gguf, &graph, &options());
            counted.push(launches() - before);
            let remarks = gpu.on_gpu().remarks().to_vec();
            assert!(remarks.iter().any(|r| r.contains("computes wrongly on rocm:0")), "start {start}: {remarks:?}");
            let last = remarks.last().unwrap();
            assert!(last.ends_with(&format!("it goes on as {variant}")), "start {start}: {remarks:?}");
            assert_eq!(gpu.generate(PROMPT, TOKENS, SampleOptions::default()), want, "{arch} with {wrong} wrong");
            assert_eq!(Simulated::here().fault(0), "");
        }
        // The second start lays weights out and proves nothing.
        assert!(counted[1] < counted[0], "launches to open: {counted:?}");
        let _ = std::fs::remove_dir_all(&folder);
    });
}

#[test]
fn a_wrong_matrix_unit_of_gfx1100_is_not_used() {
    right_tokens("a_wrong_matrix_unit_of_gfx1100_is_not_used", "gfx1100", "matrix", "gfx1100:wave64");
}

#[test]
fn a_wrong_byte_dot_product_of_gfx1100_is_not_used() {
    right_tokens("a_wrong_byte_dot_product_of_gfx1100_is_not_used", "gfx1100", "dot4", "gfx1100:no-dot");
}

#[test]
fn wrong_exchanges_of_gfx1100s_waves_of_32_leave_waves_of_64() {
    right_tokens(
        "wrong_exchanges_of_gfx1100s_waves_of_32_leave_waves_of_64",
        "gfx1100",
        "exchange32",
        "gfx1100:wave64",
    );
}

#[test]
fn a_wrong_matrix_unit_of_gfx942_is_not_used() {
    right_tokens("a_wrong_matrix_unit_of_gfx942_is_not_used", "gfx942", "matrix", "gfx942:no-matrix");
}

#[test]
fn what_no_variant_can_do_without_is_refused_with_what_is_wrong() {
    let test = "what_no_variant_can_do_without_is_refused_with_what_is_wrong";
    let Some(path) = model_path(MODEL) else { return };
    setup("gfx900", "exchange64").run(test, TEMPORARY, || {
        let gguf = Arc::new(Gguf::open(&path).unwrap());
        let graph = kjit_model::arch::build(&gguf).unwrap();
        let folder = cache(TEMPORARY).join(format!("trust-none-{}", std::process::id()));
        let engine = engine(&folder, WORKER, "hiprtc");
        let device = engine.device("rocm:0").unwrap();
        let refused = kjit_model::session::Session::on_gpu(&engine, &device, &gguf, graph, &options());
        match refused.map(|_| ()) {
            Err(SessionError::Wrong(lines)) => {
                assert!(lines.iter().all(|l| l.contains("computes wrongly on rocm:0")), "{lines:?}");
                assert!(lines.last().unwrap().ends_with("nothing is left to try"), "{lines:?}");
            }
            other => panic!("{other:?}"),
        }
        let _ = std::fs::remove_dir_all(&folder);
    });
}
