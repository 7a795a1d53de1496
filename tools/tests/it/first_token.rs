//! `run` before every kernel is compiled, and the output of `warm --emit`, on a simulated card with
//! a slow compiler.

use crate::support::model;
use kjit_engine::{CodeObject, Config, Digest, Engine, Geometry, args};
use kjit_tests::simulator::Setup;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

const TEMPORARY: &str = env!("CARGO_TARGET_TMPDIR");
/// These constants equal those in tests of whole models, so that kernels are compiled for the CPU
/// only once.
const SETUP: [&str; 4] = ["-c", "64", "--prefill-chunk", "32"];

fn setup() -> Setup {
    Setup::devices("gfx1030").set("HIPSIM_CLANG", "none").set("HIPSIM_OPTIMISE", "-Og")
}

fn kjit(command: &str, cache: &Path) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_kjit"));
    c.arg(command)
        .arg(model("tiny/tiny-llama-q4_k_m.gguf"))
        .args(SETUP)
        .arg("--cache-dir")
        .arg(cache);
    c.env("NO_COLOR", "1").env_remove("KJIT_CACHE_DIR").env_remove("KJIT_WAVE");
    c
}

/// A run with an empty cache. Compiling gemm takes this many seconds.
fn cold(slow: &str, refuse: &str, flags: &[&str]) -> Output {
    let cache = tempfile::tempdir().unwrap();
    let mut c = kjit("run", cache.path());
    c.args([
        "--device",
        "rocm:0",
        "--raw",
        "-p",
        "hello world, hello you",
        "-n",
        "6",
        "--json",
        "-v",
    ])
    .args(flags);
    let setup = setup().set("HIPSIM_SLOW", slow).set("HIPSIM_REFUSE", refuse);
    setup.apply(TEMPORARY, &mut c).output().unwrap()
}

fn document(out: &Output) -> Value {
    let text = String::from_utf8_lossy(&out.stdout);
    serde_json::from_str(&text)
        .unwrap_or_else(|e| panic!("{e}: {text:?}, {}", String::from_utf8_lossy(&out.stderr)))
}

#[test]
fn run_answers_before_compile_ends_unless_reproducible() {
    // All kernels are compiled for the CPU before, so that only the sleep is slow.
    let first = document(&cold("", "", &["--wait-compile"]));
    assert!(first["kernels"]["compiled"].as_u64().unwrap() > 10, "{first}");
    let out = cold("gemm:20", "", &[]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let early = document(&out);
    let (kernels, prompt) = (&early["kernels"], early["prompt_tokens"].as_u64().unwrap());
    assert!(kernels["late"].as_u64().unwrap() > 0 && kernels["swapped_at"].is_null(), "{early}");
    assert_eq!(kernels["single"].as_u64().unwrap(), prompt - 1, "{early}");
    assert_eq!(early["generated_tokens"], 6);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(
        said.lines().any(|l| l.contains("kernels for prompts were not ready in time")),
        "{said}"
    );
    for flags in [&["--wait-compile"][..], &["--temp", "0"], &["--seed", "5"]] {
        let waited = document(&cold("gemm:0.5", "", flags));
        assert_eq!(
            (&waited["kernels"]["late"], &waited["kernels"]["single"]),
            (&0.into(), &0.into()),
            "{flags:?}"
        );
    }
}

/// These options equal those in the test of one launch per token, so that its kernel is compiled
/// for the CPU only once.
fn whole(command: &str, cache: &Path, slow: &str, flags: &[&str]) -> Output {
    let mut c = Command::new(env!("CARGO_BIN_EXE_kjit"));
    c.arg(command).arg(model("tiny/tiny-gemma3-q8_0.gguf")).args([
        "-c",
        "64",
        "--prefill-chunk",
        "8",
    ]);
    c.args(["--persistent", "on", "--json", "-v", "--cache-dir"]).arg(cache).args(flags);
    c.env("NO_COLOR", "1").env_remove("KJIT_CACHE_DIR").env_remove("KJIT_WAVE");
    let setup = Setup::devices("gfx942:sramecc+:xnack-").set("HIPSIM_CLANG", "none");
    let setup = setup.set("HIPSIM_OPTIMISE", "-Og").set("HIPSIM_SLOW", slow);
    setup.apply(TEMPORARY, &mut c).output().unwrap()
}

#[test]
fn warm_compiles_persistent_kernel_and_run_does_not_wait() {
    let run = ["--device", "rocm:0", "--raw", "-p", "hello", "-n", "4"];
    let (warm, none) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let flags = ["--arch", "gfx942:sramecc+:xnack-", "--compiler", "hiprtc"];
    let made = document(&whole("warm", warm.path(), "", &flags));
    let names: Vec<&Value> =
        made["kernels"].as_array().unwrap().iter().map(|k| &k["name"]).collect();
    assert!(names.contains(&&"persistent".into()), "{made}");
    // With --seed or --temp 0 all kernels are used from the first token on.
    let out = whole("run", warm.path(), "", &[&run[..], &["--temp", "0"]].concat());
    let (found, said) = (document(&out), String::from_utf8_lossy(&out.stderr).into_owned());
    assert_eq!(
        (&found["kernels"]["compiled"], &found["kernels"]["one_launch_late"]),
        (&0.into(), &false.into())
    );
    assert!(said.contains("a token is one launch of"), "{said}");
    // The kernel is compiled in the background, and the answer ends first.
    let out = whole("run", none.path(), "persistent:20", &run);
    let (early, said) = (document(&out), String::from_utf8_lossy(&out.stderr).into_owned());
    let kernels = &early["kernels"];
    assert!(kernels["one_launch_late"] == true && kernels["one_launch_at"].is_null(), "{early}");
    assert!(
        said.contains("many launches until the kernel") && said.contains("was not ready in time"),
        "{said}"
    );
}

#[test]
fn kernel_failing_after_answer_gives_exit_1() {
    // All kernels are compiled for the CPU before, because the end of a run waits only a few
    // seconds for background compiles.
    assert!(cold("", "", &["--wait-compile"]).status.success());
    let out = cold("", "flash", &[]);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    let errors: Vec<&str> = said.lines().filter(|l| l.starts_with("error: ")).collect();
    assert_eq!((out.status.code(), errors.len()), (Some(1), 1), "{said}");
    assert!(errors[0].contains("'flash' for gfx1030") && errors[0].contains("refused"), "{said}");
}

#[test]
fn emitted_kernels_can_be_launched_from_their_manifest() {
    let test = "first_token::emitted_kernels_can_be_launched_from_their_manifest";
    let dir = tempfile::tempdir().unwrap();
    // The outer and the inner process write this folder; the inner one reads it.
    let out = dir.path().join("emitted");
    let mut c = kjit("warm", &dir.path().join("cache"));
    c.args(["--arch", "gfx1030", "--compiler", "hiprtc", "-q", "--emit"]).arg(&out);
    let done = setup().apply(TEMPORARY, &mut c).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    setup().run(test, TEMPORARY, || {
        let text = std::fs::read_to_string(out.join("manifest.json")).unwrap();
        let manifest: Vec<Value> = serde_json::from_str(&text).unwrap();
        let plan = std::fs::read_to_string(out.join("plan-gfx1030.txt")).unwrap();
        assert!(plan.contains("plan for gfx1030") && plan.contains("blk.0.attn_q"), "{plan}");
        for entry in &manifest {
            let file = out.join(entry["file"].as_str().unwrap());
            assert_eq!(
                Digest::of(&std::fs::read(file).unwrap()).hex(),
                entry["sha256"].as_str().unwrap()
            );
            let source = out.join(entry["source"].as_str().unwrap());
            assert!(source.is_file() && source.with_file_name("kjit.h").is_file(), "{entry}");
            assert!(entry["block"].as_u64().unwrap() >= 32);
            assert!(!entry["kernels"].as_array().unwrap().is_empty(), "{entry}");
        }
        assert!(manifest.len() > 10);
        // Finds the position of the largest logit with argmax, launched from the manifest.
        let entry = manifest.iter().find(|e| e["name"] == "argmax").unwrap();
        let kernel = &entry["kernels"][0];
        let sizes: Vec<u64> = kernel["arguments"]
            .as_array()
            .unwrap()
            .iter()
            .map(|a| a["size"].as_u64().unwrap())
            .collect();
        assert_eq!(
            sizes,
            [8, 8, 8, 8, 8, 8, 4, 4],
            "logits, part, counters, slots, tokens, position, capacity, blocks"
        );
        let vocab = usize::try_from(entry["shape"]["VOCAB"].as_u64().unwrap()).unwrap();
        let block = u32::try_from(entry["block"].as_u64().unwrap()).unwrap();
        let wave = u32::try_from(entry["wave"].as_u64().unwrap()).unwrap();
        let bytes = std::fs::read(out.join(entry["file"].as_str().unwrap())).unwrap();
        let digest = Digest::of(&bytes);
        let code =
            CodeObject::verified("argmax", entry["arch"].as_str().unwrap(), wave, bytes, digest)
                .unwrap();
        let device = Engine::new(Config::new().no_cache()).device("rocm:0").unwrap();
        let argmax = device.load(&code).unwrap().kernel(kernel["entry"].as_str().unwrap()).unwrap();
        let stream = device.stream().unwrap();
        let logits: Vec<f32> =
            (0..vocab).map(|i| if i == 1234 { 9.0 } else { (i % 7) as f32 }).collect();
        let logits = stream.upload(&logits).unwrap();
        let (part, counters) =
            (stream.upload(&[0u64; 4]).unwrap(), stream.upload(&[0u32]).unwrap());
        let (slots, tokens) = (stream.upload(&[0u32]).unwrap(), stream.upload(&[0u32; 8]).unwrap());
        let position = stream.upload(&[2u32]).unwrap();
        let shape = Geometry::new(4, block);
        let given = args![&logits, &part, &counters, &slots, &tokens, &position, 8u32, 4u32];
        // SAFETY: the buffers have the sizes that the kernel's arguments require.
        unsafe { stream.launch(&argmax, &shape, &given) }.unwrap();
        assert_eq!(stream.read(&tokens).unwrap(), [0, 0, 0, 1234, 0, 0, 0, 0]);
        assert_eq!(stream.read(&position).unwrap(), [3]);
    });
}
