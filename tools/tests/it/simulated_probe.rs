//! `kjit probe` on a simulated card: every figure has a value, and nothing private is in the
//! report. Values mean nothing there.

use crate::support::kjit;
use kjit_tests::simulator::Setup;
use serde_json::Value;
use std::path::Path;
use std::process::Command;

const TEMPORARY: &str = env!("CARGO_TARGET_TMPDIR");

fn probe(format: &[&str]) -> assert_cmd::Command {
    let mut c = kjit();
    c.env("USER", "annabel").arg("--cache-dir");
    c.arg(Path::new(TEMPORARY).join("hipsim/command"));
    // The device's flag behind the command, as people type it.
    c.args(["probe", "--device", "rocm:0", "--quick", "--filter", "norm_rows"]).args(format);
    c
}

#[test]
fn a_probe_fills_every_line_and_cards_makes_a_table_of_it() {
    let test = "simulated_probe::a_probe_fills_every_line_and_cards_makes_a_table_of_it";
    let setup = Setup::devices("gfx1100").set("HIPSIM_CLANG", "none").set("HIPSIM_OPTIMISE", "-Og");
    setup.set("HIPSIM_MEMORY", "67108864").run(test, TEMPORARY, || {
        let output = probe(&["--json"]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stdout));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let figures = report["figures"].as_array().unwrap();
        // The simulated card has no files in sysfs.
        let told = |f: &Value| f["note"] != "not reported by the system";
        for figure in figures.iter().filter(|f| told(f)) {
            let value = figure["value"].as_f64();
            assert!(value.is_some_and(|v| v.is_finite() && v >= 0.0), "{figure}");
        }
        let named = |part: &str| {
            figures.iter().filter(|f| f["name"].as_str().unwrap().contains(part)).count()
        };
        for (part, n) in [
            ("launch in a row", 1),
            ("graph node", 1),
            ("grid barrier", 1),
            ("behind an event", 1),
            ("apart", 3),
            ("LDS", 1),
            ("matrix", 1),
            ("core clock at work", 1),
            ("page-locked", 3),
            ("allocated", 1),
            (": launches", 3),
            (": graph", 3),
            (": one launch", 3),
        ] {
            assert_eq!(named(part), n, "{part}: {report}");
        }
        assert!(report["about"]["card"].as_str().unwrap().contains("(gfx1100)"), "{report}");
        assert!(report["kernels"]["said"].as_str().unwrap().ends_with("cases right"), "{report}");
        let whole = report.to_string();
        assert!(!whole.contains("annabel") && !whole.contains(TEMPORARY), "{whole}");
        // The table, and the measured bounds.
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("card.json"), &output.stdout).unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/cards");
        let run = |arguments: &[&str]| {
            let made = Command::new(&script).args(arguments).current_dir(dir.path()).output();
            let made = made.unwrap();
            assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
            String::from_utf8(made.stdout).unwrap()
        };
        let table = run(&["card.json"]);
        let row: Vec<&str> = table.lines().nth(2).unwrap().split(" | ").collect();
        assert!(row.len() == 11 && row[1] == "gfx1100", "{table}");
        let rows = run(&["--bounds", "card.json"]);
        let row: Vec<&str> = rows.lines().last().unwrap().split('\t').collect();
        assert!(row.len() == 5 && row[0] == "gfx1100", "{rows}");
        assert!(row[1..].iter().all(|n| n.parse::<f64>().is_ok_and(|n| n >= 0.0)), "{rows}");
    });
}

/// If the runtime refuses a measurement, its line has the error, and the other lines have values.
#[test]
fn what_the_runtime_refuses_is_a_line_with_its_reason() {
    let test = "simulated_probe::what_the_runtime_refuses_is_a_line_with_its_reason";
    let setup = Setup::devices("gfx1100").set("HIPSIM_CLANG", "none").set("HIPSIM_OPTIMISE", "-Og");
    let setup = setup.set("HIPSIM_MEMORY", "67108864");
    setup.set("HIPSIM_FAIL", "hipStreamBeginCapture:*:900").run(test, TEMPORARY, || {
        let output = probe(&[]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        assert!(output.stdout.len() <= 4096 && !text.contains("annabel"), "{text}");
        let line = |name: &str| {
            let found = text.lines().find(|l| l.starts_with(name) || l.contains(name));
            found.unwrap_or_else(|| panic!("no {name}: {text}")).to_owned()
        };
        assert!(line("graph node: ").contains("– ("), "{text}");
        assert!(line("1 layers: graph").contains("– (refused by the runtime"), "{text}");
        assert!(line("1 layers: launches").contains(" tok/s"), "{text}");
        assert!(line("launch in a row: ").contains(" µs"), "{text}");
    });
}

#[test]
fn without_a_card_there_is_one_error_line() {
    let mut c = kjit();
    c.env("CUDA_VISIBLE_DEVICES", "").env("KJIT_HIP_LIBRARY", "/nowhere/libamdhip64.so");
    let line = crate::support::error_line(c.args(["probe", "--device", "rocm:0"]), 1);
    assert!(line.contains("/nowhere/libamdhip64.so"), "{line}");
}

/// Traps of machines with AMD GPUs that show in the architectures. Each note says what to do.
#[test]
fn the_doctor_names_the_traps_of_a_processors_gpu_and_of_an_old_card() {
    let test = "simulated_probe::the_doctor_names_the_traps_of_a_processors_gpu_and_of_an_old_card";
    let setup = Setup::devices("gfx90c:xnack-,gfx1012:xnack-").set("HIPSIM_INTEGRATED", "0");
    setup.set("AMD_COMGR_CACHE_DIR", "/nowhere/comgr").run(test, TEMPORARY, || {
        let output = kjit().arg("doctor").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        for (name, mend) in [
            ("gfx90c", "kjit compiles for this chip"),
            ("gfx101x", "kjit does not need these libraries"),
            ("two GPUs", "HIP_VISIBLE_DEVICES"),
            ("comgr's cache", "unset the variable"),
        ] {
            let line = text.lines().find(|l| l.starts_with(&format!("note {name}: ")));
            assert!(line.is_some_and(|l| l.contains(mend)), "{name}: {text}");
        }
    });
}

/// A runtime that ends the process in one launch: the next start uses launches of a graph.
#[test]
fn a_process_that_one_launch_ended_is_the_last_one() {
    let test = "simulated_probe::a_process_that_one_launch_ended_is_the_last_one";
    let setup = Setup::devices("gfx1100").set("HIPSIM_CLANG", "none").set("HIPSIM_OPTIMISE", "-Og");
    let setup = setup.set("HIPSIM_BREAK", "persistent:wave32:abort").set("KJIT_PROVE", "");
    setup.set("HIPSIM_FAULTS", "abort").run(test, TEMPORARY, || {
        let dir = tempfile::tempdir().unwrap();
        let run = || {
            let mut c = kjit();
            c.args(["--device", "rocm:0", "--cache-dir"]).arg(dir.path()).arg("run");
            c.arg(crate::support::model("tiny/tiny-llama-q4_k_m.gguf"));
            c.args(["--raw", "-p", "hello", "-n", "3", "--temp", "0", "-c", "64"]);
            c.args(["--prefill-chunk", "8", "-v"]).output().unwrap()
        };
        let first = run();
        let said = String::from_utf8_lossy(&first.stderr).into_owned();
        assert!(!first.status.success(), "{said}");
        let second = run();
        let said = String::from_utf8_lossy(&second.stderr).into_owned();
        assert!(second.status.success() && said.contains("tokens run as: graph"), "{said}");
    });
}
