//! `kjit doctor --run MODEL`: models against the precise CPU, on the CPU alone and on simulated AMD
//! cards. Speeds mean nothing on simulated cards.

use crate::support::machine::{Machine, document, err, simulated};
use crate::support::{error_line, kjit, model};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Output;

const TEMPORARY: &str = env!("CARGO_TARGET_TMPDIR");

/// Checks of one row by name: verdict and text.
#[track_caller]
fn check<'r>(row: &'r Value, name: &str) -> (&'r str, &'r str) {
    let found = row["checks"].as_array().unwrap().iter().find(|c| c["check"] == name);
    let found = found.unwrap_or_else(|| panic!("no check {name}: {row}"));
    (found["verdict"].as_str().unwrap(), found["said"].as_str().unwrap())
}

fn row<'r>(report: &'r Value, model: &str, device: &str) -> &'r Value {
    let rows = report["models"].as_array().unwrap();
    let found = rows.iter().find(|r| r["model"] == model && r["device"] == device);
    found.unwrap_or_else(|| panic!("no {model} on {device}: {report}"))
}

/// The report of a run that ended with this code.
#[track_caller]
fn report(output: &Output, code: i32) -> Value {
    assert_eq!(output.status.code(), Some(code), "{}", err(output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn the_cpu_alone_is_compared_with_the_precise_cpu() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a&b.gguf"), "not a model").unwrap();
    let mut c = kjit();
    c.env("CUDA_VISIBLE_DEVICES", "").env("KJIT_HIP_LIBRARY", "/nowhere/libamdhip64.so");
    c.args(["doctor", "--json", "--junit", "verdicts.xml", "--run"]);
    c.args(["tiny/tiny-llama-q4_k_m.gguf", "archs/mamba.gguf", "archs/bert.gguf"].map(model));
    let output = c.arg("a&b.gguf").current_dir(dir.path()).output().unwrap();
    // A model that ran nowhere fails.
    let report = report(&output, 1);
    assert_eq!(report["ok"], false);
    assert!(report["notes"].to_string().contains("the HIP runtime"), "{report}");
    for (name, checks) in [
        ("tiny-llama-q4_k_m.gguf", &["open", "tokens", "perplexity", "state"][..]),
        ("mamba.gguf", &["open", "tokens", "perplexity", "state"]),
        ("bert.gguf", &["open", "vectors"]),
    ] {
        let row = row(&report, name, "cpu");
        for name in checks {
            let (verdict, said) = check(row, name);
            assert!(verdict == "right" || verdict == "near", "{name}: {said}");
        }
        assert_eq!(row["checks"].as_array().unwrap().len(), checks.len(), "{row}");
    }
    assert!(check(row(&report, "mamba.gguf", "cpu"), "state").1.contains("recurrent"), "{report}");
    let speed = &row(&report, "mamba.gguf", "cpu")["decode_tok_s"];
    assert!(speed.as_f64().is_some_and(|s| s > 0.0 && s.is_finite()), "{speed}");
    let broken = row(&report, "a&b.gguf", "cpu");
    assert_eq!((&broken["verdict"], check(broken, "open").0), (&"refused".into(), "refused"));
    let xml = std::fs::read_to_string(dir.path().join("verdicts.xml")).unwrap();
    assert!(xml.contains("tests=\"11\" failures=\"0\" errors=\"0\" skipped=\"1\""), "{xml}");
    assert!(xml.contains("a&amp;b.gguf on cpu") && !xml.contains("a&b"), "{xml}");
}

#[test]
fn wrong_words_are_named() {
    let mut c = kjit();
    let file = model("tiny/tiny-llama-q4_k_m.gguf");
    c.args(["doctor", "--run", "-c", "20", "--device", "cpu"]).arg(&file);
    let line = error_line(&mut c, 1);
    assert!(line.contains("-c 20") && line.contains("64"), "{line}");
    // A device that a flag names must exist.
    let mut c = kjit();
    c.env("KJIT_HIP_LIBRARY", "/nowhere/libamdhip64.so");
    let line = error_line(c.args(["doctor", "--run", "--device", "rocm:0"]).arg(&file), 1);
    assert!(line.contains("/nowhere/libamdhip64.so"), "{line}");
    error_line(kjit().arg("doctor").arg(&file), 2);
}

fn machine(devices: &'static str) -> Machine {
    Machine::new(devices, Path::new(TEMPORARY).join("hipsim/command"))
}

/// The arguments of a test of these models. Small sizes: kernels run on the CPU.
fn arguments(device: &str, models: &[&str]) -> Vec<PathBuf> {
    let words = ["doctor", "--json", "-c", "128", "--prefill-chunk", "16", "--device", device];
    let words = words.into_iter().chain(["--run"]).map(PathBuf::from);
    words.chain(models.iter().map(|name| model(name))).collect()
}

#[test]
fn a_model_on_a_simulated_card_is_right_in_every_test() {
    let test = "doctor_models::a_model_on_a_simulated_card_is_right_in_every_test";
    if !simulated(test) {
        return;
    }
    let output = machine("gfx1100").kjit(arguments("auto", &["tiny/tiny-llama-q4_k_m.gguf"]));
    let report = document(&output);
    let found = row(&report, "tiny-llama-q4_k_m.gguf", "rocm:0");
    for name in ["open", "kernels", "fp16", "tokens", "perplexity", "state", "memory"] {
        let (verdict, said) = check(found, name);
        assert!(verdict == "right" || verdict == "near", "{name}: {verdict}: {said}");
    }
    // Its own kernels, each once.
    let (right, all) =
        check(found, "kernels").1.split_once(" right").unwrap().0.split_once(" of ").unwrap();
    assert!(right == all && all.parse::<usize>().unwrap() > 8, "{found}");
    assert!(check(found, "memory").1.contains("estimated"), "{found}");
    assert!(found["form"].is_string() && found["product"].to_string().contains("gfx1100"));
    assert!(found["first_token_s"].as_f64().is_some_and(|s| s > 0.0), "{found}");
    assert_eq!(row(&report, "tiny-llama-q4_k_m.gguf", "cpu")["verdict"], "right");
}

/// A kernel that computes wrongly makes its row wrong, and the other tests still run.
#[test]
fn a_broken_kernel_and_a_lost_device_are_wrong() {
    let test = "doctor_models::a_broken_kernel_and_a_lost_device_are_wrong";
    if !simulated(test) {
        return;
    }
    let ask = arguments("rocm:0", &["tiny/tiny-llama-q4_k_m.gguf"]);
    let mut c = machine("gfx1100").command();
    c.env("HIPSIM_BREAK", "matvec:wave32:abort").env("HIPSIM_FAULTS", "abort");
    let output = c.args(&ask).output().unwrap();
    let report = report(&output, 1);
    let found = row(&report, "tiny-llama-q4_k_m.gguf", "rocm:0");
    let (verdict, said) = check(found, "kernels");
    assert!(verdict == "wrong" && said.contains("matvec"), "{said}");
    assert_eq!(check(found, "fp16").0, "right", "{found}");
    assert_eq!(found["verdict"], "wrong");
}

/// No compiler and no room are refusals with their reason. The CPU does not take the card's place.
#[test]
fn no_compiler_and_no_room_are_refused_with_the_reason() {
    let test = "doctor_models::no_compiler_and_no_room_are_refused_with_the_reason";
    if !simulated(test) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let ask = arguments("rocm:0", &["tiny/tiny-llama-q4_k_m.gguf"]);
    let mut bare = Machine::new("gfx1100", dir.path().join("cache"));
    bare.compilers = false;
    let refused = report(&bare.kjit(&ask), 1);
    let found = row(&refused, "tiny-llama-q4_k_m.gguf", "rocm:0");
    for name in ["kernels", "open"] {
        let (verdict, said) = check(found, name);
        assert!(verdict == "refused" && said.contains("cannot be compiled here"), "{name}: {said}");
    }
    let mut small = machine("gfx1100").command();
    let output = small.env("HIPSIM_MEMORY", "300000").args(&ask).output().unwrap();
    let refused = report(&output, 1);
    let found = row(&refused, "tiny-llama-q4_k_m.gguf", "rocm:0");
    let (verdict, said) = check(found, "open");
    assert!(verdict == "refused" && said.contains("MiB"), "{said}");
    assert_eq!(found["decode_tok_s"], Value::Null);
}
