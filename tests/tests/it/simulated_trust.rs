//! Kernels are tested before use. On simulated cards with one wrong instruction the tokens still
//! match the host's, the report names the wrong kernel and its replacement, and a second start does
//! not test again.

use crate::common::{TEMPORARY, WORKER};
use half::f16;
use kjit_engine::{Constants, Geometry, Job, Options, Source, args};
use kjit_model::gguf::Gguf;
use kjit_model::sample::SampleOptions;
use kjit_model::session::{KvType, OpenOptions, SessionError};
use kjit_tests::files::model_path;
use kjit_tests::launch::TestLaunch;
use kjit_tests::simulator::{Setup, Simulated, cache, engine};
use kjit_tests::solo_session::SoloSession;
use std::sync::Arc;

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
        .set("HIPSIM_CLANG", "none")
        .set("HIPSIM_OPTIMISE", "-Og")
        .set("HIPSIM_WRONG", wrong)
}

/// Opens a small llama twice on a card with a wrong instruction: the tokens are right, computed by
/// `variant`.
fn right_tokens(test: &str, arch: &str, wrong: &str, variant: &str) {
    let Some(path) = model_path(MODEL) else { return };
    setup(arch, wrong).run(test, TEMPORARY, || {
        let gguf = Arc::new(Gguf::open(&path).unwrap());
        let graph = kjit_model::arch::build(&gguf).unwrap();
        let precise = OpenOptions { precise: true, ..options() };
        let want = SoloSession::cpu(&gguf, &graph, &precise).generate(
            PROMPT,
            TOKENS,
            SampleOptions::default(),
        );
        // Results of the tests are in a separate folder, because the card of another test is
        // correct.
        let folder = cache(TEMPORARY).join(format!("trust-{arch}-{wrong}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        let launches = || Simulated::here().calls(c"hipModuleLaunchKernel");
        let mut counted = vec![];
        for start in 0..2 {
            let engine = engine(&folder, WORKER, "hiprtc");
            let before = launches();
            let mut gpu = SoloSession::gpu(
                &engine,
                &engine.device("rocm:0").unwrap(),
                &gguf,
                &graph,
                &options(),
            );
            counted.push(launches() - before);
            let remarks = gpu.on_gpu().remarks().to_vec();
            assert!(
                remarks.iter().any(|r| r.contains("gives wrong results on rocm:0")),
                "start {start}: {remarks:?}"
            );
            let last = remarks.last().unwrap();
            assert!(last.ends_with(&format!("trying {variant}")), "start {start}: {remarks:?}");
            assert_eq!(
                gpu.generate(PROMPT, TOKENS, SampleOptions::default()),
                want,
                "{arch} with {wrong} wrong"
            );
            assert_eq!(Simulated::here().fault(0), "");
        }
        // The second start repacks weights and runs no tests.
        assert!(counted[1] < counted[0], "launches to open: {counted:?}");
        let _ = std::fs::remove_dir_all(&folder);
    });
}

#[test]
fn wrong_matrix_unit_of_gfx1100_is_not_used() {
    right_tokens(
        "simulated_trust::wrong_matrix_unit_of_gfx1100_is_not_used",
        "gfx1100",
        "matrix",
        "gfx1100:wave64",
    );
}

#[test]
fn wrong_byte_dot_product_of_gfx1100_is_not_used() {
    right_tokens(
        "simulated_trust::wrong_byte_dot_product_of_gfx1100_is_not_used",
        "gfx1100",
        "dot4",
        "gfx1100:no-dot",
    );
}

#[test]
fn wrong_wave_32_exchange_of_gfx1100_selects_wave_64() {
    right_tokens(
        "simulated_trust::wrong_wave_32_exchange_of_gfx1100_selects_wave_64",
        "gfx1100",
        "exchange32",
        "gfx1100:wave64",
    );
}

#[test]
fn wrong_matrix_unit_of_gfx942_is_not_used() {
    right_tokens(
        "simulated_trust::wrong_matrix_unit_of_gfx942_is_not_used",
        "gfx942",
        "matrix",
        "gfx942:no-matrix",
    );
}

/// On a card without a matrix unit and without dot products of bytes, only f16 instructions can be
/// avoided. `packed`: two f16 in a register.
#[test]
fn wrong_packed_f16_arithmetic_of_gfx900_selects_f32() {
    right_tokens(
        "simulated_trust::wrong_packed_f16_arithmetic_of_gfx900_selects_f32",
        "gfx900",
        "packed",
        "gfx900:f32",
    );
}

/// Whether the expensive tests run.
fn all(what: &str) -> bool {
    let all = kjit_tests::all("trust");
    if !all {
        eprintln!("SKIPPED: {what} (KJIT_TEST_ALL=trust runs it)");
    }
    all
}

#[test]
fn wrong_f16_to_f32_conversion_selects_f32() {
    if all("a card that widens halves wrongly") {
        right_tokens(
            "simulated_trust::wrong_f16_to_f32_conversion_selects_f32",
            "gfx900",
            "widen",
            "gfx900:f32",
        );
    }
}

#[test]
fn wrong_f32_to_f16_conversion_selects_f32() {
    if all("a card that narrows to halves wrongly") {
        right_tokens(
            "simulated_trust::wrong_f32_to_f16_conversion_selects_f32",
            "gfx803",
            "narrow",
            "gfx803:f32",
        );
    }
}

/// All variants: the last one is used if every other needs the wrong instruction.
#[test]
fn wrong_gfx1100_conversion_selects_f32_as_last_variant() {
    if all("a card of RDNA 3 that widens halves wrongly") {
        let test = "simulated_trust::wrong_gfx1100_conversion_selects_f32_as_last_variant";
        right_tokens(test, "gfx1100", "widen", "gfx1100:f32");
    }
}

/// The variant with only f32: integer operations convert f32 and f16. Tested with all f16 and with
/// the f32 near their rounding limits.
#[test]
fn integer_f16_conversions_match_the_instructions() {
    let test = "simulated_trust::integer_f16_conversions_match_the_instructions";
    setup("gfx900", "widen").run(test, TEMPORARY, || {
        const TEXT: &str = r#"
#include "kjit.h"
KERNEL both(const f16* halves, float* wide, const float* singles, f16* narrow, u32 n) {
    u32 i = block_id() * KJ_BLOCK + thread_id();
    if (i < 65536) wide[i] = load(halves[i]);
    if (i < n) narrow[i] = round_f16(singles[i]);
}"#;
        let engine = engine(&cache(TEMPORARY), WORKER, "hiprtc");
        let device = engine.device("rocm:0").unwrap();
        let source = Source::new("both", "both.hip", TEXT)
            .file("kjit.h", include_str!("../../../kernel_src/gpu/kjit.h"));
        let constants = Constants::new().set("KJ_BLOCK", 256).set("KJ_F32", 1);
        let job =
            Job::new(source.entry("both"), constants, Options::wave(64), device.target().clone());
        let kernel = engine.load(&device, &job).unwrap().kernel("both").unwrap();

        let halves: Vec<u16> = (0..=u16::MAX).collect();
        // Each f16, the midpoint to the next one, and the neighbours of both.
        let mut singles: Vec<f32> = vec![1e-30, 1e30, f32::from_bits(1), f32::MAX, 65519.996];
        for half in halves.iter().map(|&bits| f16::from_bits(bits)).filter(|h| h.is_finite()) {
            let next = f16::from_bits(half.to_bits() + 1);
            let next = if next.is_finite() {
                next.to_f64()
            } else {
                half.to_f64() * 2.0 - f16::from_bits(half.to_bits() - 1).to_f64()
            };
            for middle in [half.to_f32(), ((half.to_f64() + next) / 2.0) as f32] {
                singles.extend([middle.next_down(), middle, middle.next_up()]);
            }
        }
        singles.extend([f32::INFINITY, f32::NEG_INFINITY, f32::NAN]);
        let stream = device.stream().unwrap();
        let (from, wide) = (stream.upload(&halves).unwrap(), device.buffer::<f32>(65536).unwrap());
        let (to, n) = (device.buffer::<u16>(singles.len()).unwrap(), singles.len());
        let given = stream.upload(&singles).unwrap();
        let grid = Geometry::new((n as u32).div_ceil(256), 256);
        stream.put(&kernel, &grid, &args![&from, &wide, &given, &to, n as u32]).unwrap();
        for (&bits, got) in halves.iter().zip(stream.read(&wide).unwrap()) {
            let want = f16::from_bits(bits).to_f32();
            assert!(
                got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(),
                "{bits:#06x}: {got} for {want}"
            );
        }
        for (&single, got) in singles.iter().zip(stream.read(&to).unwrap()) {
            let (got, want) = (f16::from_bits(got), f16::from_f32(single));
            assert!(
                got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(),
                "{single:e}: {got} for {want}"
            );
        }
    });
}

#[test]
fn device_failing_every_variant_is_refused_with_reason() {
    let test = "simulated_trust::device_failing_every_variant_is_refused_with_reason";
    let Some(path) = model_path(MODEL) else { return };
    setup("gfx900", "exchange64").run(test, TEMPORARY, || {
        let gguf = Arc::new(Gguf::open(&path).unwrap());
        let graph = kjit_model::arch::build(&gguf).unwrap();
        let folder = cache(TEMPORARY).join(format!("trust-none-{}", std::process::id()));
        let engine = engine(&folder, WORKER, "hiprtc");
        let device = engine.device("rocm:0").unwrap();
        let refused =
            kjit_model::session::Session::on_gpu(&engine, &device, &gguf, graph, &options());
        match refused.map(|_| ()) {
            Err(SessionError::Wrong(lines)) => {
                assert!(
                    lines.iter().all(|l| l.contains("gives wrong results on rocm:0")),
                    "{lines:?}"
                );
                assert!(lines.last().unwrap().ends_with("there are no more variants"), "{lines:?}");
            }
            other => panic!("{other:?}"),
        }
        let _ = std::fs::remove_dir_all(&folder);
    });
}
