//! The command on simulated AMD cards (`tests/hipsim`), as a user types it: `devices`, `doctor`,
//! `warm` and `run`. Each test runs in a new process with the simulated HIP runtime, hiprtc and
//! clang. The command that it starts also uses them.

use crate::support::{error_line, kjit, model, smollm2, stdout};
use kjit_tests::simulator::Setup;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

const TEMPORARY: &str = env!("CARGO_TARGET_TMPDIR");

/// Folder of compiled kernels of these tests, kept between runs.
fn cache() -> PathBuf {
    Path::new(TEMPORARY).join("hipsim/command")
}

fn json(c: &mut assert_cmd::Command) -> Value {
    serde_json::from_str(&stdout(c)).expect("one JSON document")
}

/// Eight greedy tokens after a plain prompt.
fn generate(model: &Path, device: &str, cache: &Path) -> assert_cmd::Command {
    let mut c = kjit();
    c.args(["--device", device, "--cache-dir"]).arg(cache).arg("run").arg(model);
    c.args([
        "--raw",
        "-p",
        "The capital of France is",
        "--temp",
        "0",
        "-n",
        "8",
        "-c",
        "64",
        "--prefill-chunk",
        "8",
        "--json",
    ]);
    c
}

fn ids(c: &mut assert_cmd::Command) -> (Value, Value) {
    let document = json(c);
    (document["ids"].clone(), document)
}

fn generates_the_hosts_tokens(test: &str, arch: &str, wave: Option<&str>) {
    let setup = Setup::devices(arch).set("HIPSIM_CLANG", "none");
    let setup = wave.map_or(setup.clone(), |wave| setup.set("KJIT_WAVE", wave));
    setup.run(test, TEMPORARY, || {
        let (want, _) = ids(generate(&smollm2(), "cpu", &cache()).arg("--precise"));
        assert_eq!(want.as_array().unwrap().len(), 8);
        let (got, document) = ids(&mut generate(&smollm2(), "rocm:0", &cache()));
        assert_eq!(got, want, "on {arch} and on the host");
        assert_eq!(
            (&document["device"]["kind"], &document["device"]["arch"]),
            (&"rocm".into(), &arch.into())
        );
        assert!(
            document["kernels"]["compiled"].as_u64().unwrap()
                + document["kernels"]["cached"].as_u64().unwrap()
                > 8
        );
        assert!(document["memory"]["weights"].as_u64().unwrap() > 90_000_000);
    });
}

#[test]
fn run_on_simulated_rx_7900_matches_host() {
    generates_the_hosts_tokens("simulated::run_on_simulated_rx_7900_matches_host", "gfx1100", None);
}

#[test]
fn run_on_simulated_rx_7900_wave_64_matches_host() {
    let test = "simulated::run_on_simulated_rx_7900_wave_64_matches_host";
    if !kjit_tests::all("smollm2") {
        eprintln!("SKIPPED: SmolLM2 on gfx1100 with waves of 64 (KJIT_TEST_ALL=smollm2)");
        return;
    }
    generates_the_hosts_tokens(test, "gfx1100", Some("64"));
}

#[test]
fn run_on_simulated_mi300_matches_host() {
    let test = "simulated::run_on_simulated_mi300_matches_host";
    generates_the_hosts_tokens(test, "gfx942:sramecc+:xnack-", None);
}

/// SmolLM2 with 64 MB of the card: its layers need 66 MB, and another 30 MB are always resident.
#[test]
fn run_with_partial_memory_matches_inspect_and_full_run() {
    let test = "simulated::run_with_partial_memory_matches_inspect_and_full_run";
    Setup::devices("gfx1100").set("HIPSIM_CLANG", "none").run(test, TEMPORARY, || {
        let inspect = |memory: &str| {
            let mut c = kjit();
            c.arg("inspect").arg(smollm2()).args([
                "--memory",
                memory,
                "-c",
                "64",
                "--prefill-chunk",
                "8",
                "--json",
            ]);
            c
        };
        // Plans for the card of this machine, and for another card.
        let placed = json(&mut inspect("64MB"))["placed"].clone();
        assert_eq!(placed, json(inspect("64MB").args(["--arch", "gfx1100"]))["placed"]);
        let (streamed, layers) =
            (placed["streamed_layers"].as_u64().unwrap(), placed["layers"].as_u64().unwrap());
        assert!(layers == 30 && (10..30).contains(&streamed), "{placed}");
        // Measured rates, which inspect does not have, may give parts to the CPU: the minimum
        // memory for that is printed too.
        assert_eq!(placed["rates_may_leave_to_the_cpu"], 30, "{placed}");
        let least = placed["least_on_device_then"].as_u64().unwrap();
        let parts = json(inspect(&format!("{least}")).args(["--host-ffn", "30"]))["placed"].clone();
        assert_eq!(
            (&parts["on_device"], &parts["rates_may_leave_to_the_cpu"]),
            (&least.into(), &Value::Null)
        );
        error_line(inspect(&format!("{}", least - 1)).args(["--host-ffn", "30"]), 1);
        // Without copies for prompts the ring needs no memory.
        let computed = inspect("1GB")
            .args(["--host-ffn", "30", "--host-prompts", "compute"])
            .output()
            .unwrap();
        let computed: Value = serde_json::from_slice(&computed.stdout).unwrap();
        let copied = json(inspect("1GB").args(["--host-ffn", "30"]))["placed"]["on_device"]
            .as_u64()
            .unwrap();
        assert!(computed["placed"]["on_device"].as_u64().unwrap() < copied, "{computed}");
        error_line(inspect("64MB").args(["--host-prompts", "compute"]), 2);
        let whole = json(&mut inspect("1GB"))["placed"].clone();
        assert_eq!(
            (&whole["streamed_layers"], &whole["rates_may_leave_to_the_cpu"]),
            (&0.into(), &Value::Null)
        );
        let line = error_line(&mut inspect("20MB"), 1);
        assert!(line.contains("with all layers streamed: --memory gives 19 MiB"), "{line}");
        let line = error_line(generate(&smollm2(), "cpu", &cache()).arg("--stream"), 1);
        assert!(line.contains("need a GPU"), "{line}");
        if !kjit_tests::all("streamed") {
            eprintln!(
                "SKIPPED {test}: the run takes half a minute of two cores (KJIT_TEST_ALL=streamed)"
            );
            return;
        }
        let (want, _) = ids(generate(&smollm2(), "cpu", &cache()).arg("--precise"));
        let mut run = generate(&smollm2(), "rocm:0", &cache());
        run.args(["--memory", "64MB", "--host-ffn", "0"]);
        let output = run.output().unwrap();
        let (said, out) =
            (String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
        assert!(output.status.success(), "{said}");
        let line = format!(
            "{} of 30 layers stay on the GPU, {streamed} are streamed: at most ",
            30 - streamed
        );
        assert!(said.contains(&line), "{said}");
        let document: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(document["ids"], want, "streamed and on the host");
        let (was, told) = (
            document["memory"]["on_device"].as_f64().unwrap(),
            placed["on_device"].as_f64().unwrap(),
        );
        assert!(
            was <= 64e6 && (was - told).abs() < 0.05 * was,
            "{told} bytes were reported, {was} are in use"
        );
        assert_eq!(document["memory"]["streamed"], placed["streamed"]);
    });
}

/// `kjit` with these arguments on a terminal.
fn on_a_terminal(arguments: &str) -> String {
    let line = format!("'{}' {arguments}", env!("CARGO_BIN_EXE_kjit"));
    let output =
        Command::new("script").args(["-qefc", &line, "/dev/null"]).env("TERM", "xterm").output();
    let output = output.expect("script (Debian: bsdutils)");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}");
    text
}

#[test]
fn kernels_warmed_for_three_cards_run_without_compiler() {
    let test = "simulated::kernels_warmed_for_three_cards_run_without_compiler";
    // There is only clang, as on a laptop without ROCm. The simulator's clang stores the sources,
    // so that the code can run here.
    let setup = Setup::devices("gfx1100").set("KJIT_HIPRTC_LIBRARY", "/nowhere/libhiprtc.so");
    setup.set("HIPSIM_OPTIMISE", "-Og").run(test, TEMPORARY, || {
        let found = json(kjit().args(["devices", "--json"]));
        if !found["compilers"].as_array().unwrap().iter().any(|c| c["vendor"] == "AMD") {
            eprintln!("SKIPPED {test}: no clang with the AMDGPU target (Debian: clang-19 lld-19)");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let (model, home) =
            (model("tiny/tiny-llama-q4_k_m.gguf"), dir.path().display().to_string());
        const ARCHS: &str = "gfx1100,gfx942,gfx1201";
        let seen = on_a_terminal(&format!(
            "--cache-dir '{home}' warm '{}' --arch {ARCHS} -c 64 --prefill-chunk 8",
            model.display()
        ));
        for part in
            ["kernels, ", " hits, ", "gfx1201: ", "clang", " compiled, 0 already cached, 0 failed"]
        {
            assert!(seen.contains(part), "{part}: {seen}");
        }
        let mut again = kjit();
        again.args(["--cache-dir", &home, "warm"]).arg(&model).args([
            "--arch",
            ARCHS,
            "-c",
            "64",
            "--prefill-chunk",
            "8",
            "--json",
        ]);
        let again = json(&mut again);
        assert_eq!((&again["compiled"], &again["failed"]), (&0.into(), &0.into()), "{again}");
        assert!(again["cached"].as_u64().unwrap() > 36, "{}", again["cached"]);
        assert!(again["seconds"].is_number(), "{again}");
        let fields = [
            "name",
            "arch",
            "wave",
            "compiler",
            "seconds",
            "bytes",
            "registers",
            "spills",
            "lds",
            "occupancy",
        ];
        for kernel in again["kernels"].as_array().unwrap() {
            assert!(fields.iter().all(|f| !kernel[f].is_null()), "{kernel}");
        }
        // The simulator needs a compiler and an assembler to run kernels on the CPU. This PATH has
        // no clang.
        let bin = dir.path().join("bin");
        std::fs::create_dir(&bin).unwrap();
        ["as", "ld"].iter().for_each(|p| {
            std::os::unix::fs::symlink(format!("/usr/bin/{p}"), bin.join(p)).unwrap()
        });
        let mut run = generate(&model, "rocm:0", dir.path());
        run.env("KJIT_CLANG", "/nowhere/clang").env("PATH", &bin).env("HIPSIM_CXX", "/usr/bin/c++");
        run.env_remove("ROCM_PATH");
        let (got, document) = ids(&mut run);
        assert_eq!(document["kernels"]["compiled"], 0, "{document}");
        assert_eq!(got, ids(generate(&model, "cpu", dir.path()).arg("--precise")).0);
    });
}

#[test]
fn devices_lists_cards_hiding_variables_and_missing_libraries() {
    let test = "simulated::devices_lists_cards_hiding_variables_and_missing_libraries";
    Setup::devices("gfx1100,gfx942:sramecc+:xnack-").run(test, TEMPORARY, || {
        let found = json(kjit().args(["devices", "--json"]));
        let cards = found["devices"].as_array().unwrap();
        assert_eq!(cards.len(), 3, "two and the CPU: {found}");
        assert_eq!((&cards[0]["device"], &cards[0]["arch"]), (&"rocm:0".into(), &"gfx1100".into()));
        assert_eq!(cards[0]["waves"], serde_json::json!([32, 64]));
        assert_eq!(
            (&cards[1]["device"], &cards[1]["arch"]),
            (&"rocm:1".into(), &"gfx942:sramecc+:xnack-".into())
        );
        for card in &cards[..2] {
            let of = |key: &str| card[key].as_u64().unwrap();
            assert_eq!(of("memory_total"), of("memory_free") + of("memory_used"));
            assert!(of("units") > 0 && !card["pci"].as_str().unwrap().is_empty());
        }
        assert_eq!(found["warnings"], serde_json::json!([]));
        let set = [
            ("HSA_OVERRIDE_GFX_VERSION", "11.0.0"),
            ("HIP_VISIBLE_DEVICES", "-1"),
            ("ROCR_VISIBLE_DEVICES", "0"),
        ];
        let text = stdout(kjit().arg("devices").envs(set));
        for (name, value) in set {
            assert!(text.contains(&format!("set: {name}={value}")), "{text}");
            assert!(text.lines().any(|l| l.starts_with("warning: ") && l.contains(name)), "{text}");
        }
        assert!(
            text.lines().any(|l| l.starts_with("not found: ") && l.contains("libcuda")),
            "{text}"
        );
        // The doctor reports it too. A card with a wrong name does not pass.
        let output = kjit()
            .args(["doctor", "--json"])
            .envs(set)
            .assert()
            .failure()
            .code(1)
            .get_output()
            .clone();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let bad: Vec<&Value> =
            report["checks"].as_array().unwrap().iter().filter(|c| c["ok"] == false).collect();
        assert_eq!(bad.len(), 1, "{report}");
        assert!(
            bad[0]["detail"].as_str().unwrap().contains("HSA_OVERRIDE_GFX_VERSION=11.0.0"),
            "{report}"
        );
        assert!(report.to_string().contains("libcuda"), "{report}");
        // There is no third card, and the card does not support this wave width.
        let error = error_line(generate(&smollm2(), "rocm:2", &cache()).env_remove("KJIT_WAVE"), 1);
        assert!(error.contains("rocm:2"), "{error}");
        let error = error_line(generate(&smollm2(), "rocm:0", &cache()).env("KJIT_WAVE", "48"), 1);
        assert!(error.contains("KJIT_WAVE") && error.contains("32 or 64"), "{error}");
    });
}

/// Returns the doctor's verdicts. Its exit code must match them.
fn doctor(arguments: &[&str], good: bool) -> Value {
    let mut c = kjit();
    let output = c
        .arg("--cache-dir")
        .arg(cache())
        .arg("doctor")
        .args(arguments)
        .arg("--json")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(i32::from(!good)), "{text}");
    let report: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {text}"));
    assert_eq!(report["ok"], good, "{text}");
    report
}

fn detail<'r>(report: &'r Value, check: &str) -> &'r str {
    let found = report["checks"].as_array().unwrap().iter().find(|c| c["check"] == check);
    found.and_then(|c| c["detail"].as_str()).unwrap_or_else(|| panic!("no check {check}: {report}"))
}

#[test]
fn doctor_checks_both_wave_widths_and_reports_broken_kernel() {
    let test = "simulated::doctor_checks_both_wave_widths_and_reports_broken_kernel";
    let setup = Setup::devices("gfx1100").set("HIPSIM_CLANG", "none").set("HIPSIM_OPTIMISE", "-Og");
    setup.run(test, TEMPORARY, || {
        let report = doctor(&["--run", "--device", "rocm:0", "--filter", "norm_rows"], true);
        let said = detail(&report, "kernels");
        let (right, rest) = said.split_once(" of ").unwrap();
        assert!(
            right.parse::<u32>().unwrap() >= 8
                && rest.starts_with(&format!("{right} cases right on rocm:0")),
            "{said}"
        );
        assert!(detail(&report, "compiler for gfx1100").starts_with("hiprtc"), "{report}");
        // A runtime whose third launch fails.
        let mut c = kjit();
        c.env("HIPSIM_FAIL", "hipModuleLaunchKernel:3:719").arg("--cache-dir").arg(cache());
        let dir = tempfile::tempdir().unwrap();
        c.args([
            "doctor",
            "--run",
            "--device",
            "rocm:0",
            "--filter",
            "norm_rows",
            "--report",
            "report.txt",
        ]);
        c.current_dir(dir.path());
        let output = c.assert().failure().code(1).get_output().clone();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.lines().any(|l| l.starts_with("FAIL norm_rows")), "{text}");
        // The report contains it too.
        let report = std::fs::read_to_string(dir.path().join("report.txt")).unwrap();
        assert!(report.contains(&text) && report.contains("rocm:0: "), "{report}");
        // The table that is made from such reports. A file that is not a report is named.
        std::fs::write(dir.path().join("letter.txt"), "It does not work.").unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/cards");
        let table = Command::new(script)
            .args(["report.txt", "letter.txt"])
            .current_dir(dir.path())
            .output()
            .unwrap();
        let (rows, said) =
            (String::from_utf8_lossy(&table.stdout), String::from_utf8_lossy(&table.stderr));
        assert_eq!(table.status.code(), Some(1), "{said}");
        assert!(said.contains("letter.txt: no device"), "{said}");
        let row: Vec<&str> = rows.lines().nth(2).unwrap().split(" | ").collect();
        assert!(
            row[1].starts_with("gfx1100")
                && row[5].contains(" of ")
                && row[6].contains("norm_rows"),
            "{rows}"
        );
    });
}

#[test]
fn doctor_reports_every_kernel_despite_crashes() {
    let test = "simulated::doctor_reports_every_kernel_despite_crashes";
    let setup = Setup::devices("gfx1100").set("HIPSIM_CLANG", "none").set("HIPSIM_OPTIMISE", "-Og");
    setup.run(test, TEMPORARY, || {
        // The routing kernel has blocks of one wave: with 32 lanes it fails, with 64 it is correct.
        // After a fault the process cannot use the device, and AMD's runtime may abort the process.
        for (how, word) in [("fault", "rocm:0 is lost"), ("abort", "signal 6")] {
            let mut c = kjit();
            c.env("HIPSIM_BREAK", format!("route:32:{how}")).env("HIPSIM_FAULTS", "stay");
            c.arg("--cache-dir").arg(cache()).args([
                "doctor",
                "--run",
                "--device",
                "rocm:0",
                "--filter",
                "route 6 of ",
            ]);
            let dir = tempfile::tempdir().unwrap();
            let output = c.current_dir(dir.path()).assert().failure().code(1).get_output().clone();
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(text.contains("FAIL kernels: 3 of 6 cases right on rocm:0"), "{how}: {text}");
            let wrong: Vec<&str> = text.lines().filter(|l| l.starts_with("FAIL route")).collect();
            assert!(
                wrong.len() == 3 && wrong.iter().all(|l| l.contains("wave 32") && l.contains(word)),
                "{how}: {text}"
            );
        }
    });
}

/// If a model does not fit, measured rates may place parts of it on the CPU, except if the same
/// answer is promised each time.
#[test]
fn reproducible_run_measures_no_rates() {
    let test = "simulated::reproducible_run_measures_no_rates";
    Setup::devices("gfx1100").set("HIPSIM_CLANG", "none").run(test, TEMPORARY, || {
        let file = model("tiny/tiny-gemma3-f16.gguf");
        let sizes = ["-c", "64", "--prefill-chunk", "8", "--memory"];
        let whole = json(kjit().arg("inspect").arg(&file).args(sizes).args(["1GB", "--json"]));
        let less = (whole["placed"]["on_device"].as_u64().unwrap() - 1).to_string();
        let promised = |more: &[&str]| {
            let mut c = kjit();
            c.args(["--device", "rocm:0", "--cache-dir"])
                .arg(cache())
                .arg("run")
                .arg(&file)
                .args(sizes)
                .arg(&less);
            let out = c
                .args(["--raw", "-p", "a", "-n", "2", "--wait-compile"])
                .args(more)
                .output()
                .unwrap();
            let said = String::from_utf8(out.stderr).unwrap();
            assert!(out.status.success(), "{more:?}: {said}");
            said.contains("so all streamed weights are copied to the GPU")
        };
        assert!(promised(&["--temp", "0"]) && promised(&["--temp", "0.8", "--seed", "7"]));
        assert!(!promised(&["--temp", "0.8"]) && !promised(&["--temp", "0", "--host-ffn", "1"]));
    });
}

/// A token in one launch, measured by time stamps of its blocks: a row for each kind of step, and a
/// page with all of them.
#[test]
fn timeline_has_every_step_of_persistent_kernel() {
    let test = "simulated::timeline_has_every_step_of_persistent_kernel";
    let setup = Setup::devices("gfx1100").set("HIPSIM_CLANG", "none").set("HIPSIM_OPTIMISE", "-Og");
    setup.run(test, TEMPORARY, || {
        let dir = tempfile::tempdir().unwrap();
        let page = dir.path().join("timeline.html");
        let mut c = kjit();
        c.args(["--device", "rocm:0", "--cache-dir"]).arg(cache()).arg("bench");
        c.arg(model("tiny/tiny-llama-q4_k_m.gguf")).args(["--kernels", "--timeline"]).arg(&page);
        let rows = json(c.args(["--prefill-chunk", "8", "-o", "json"]));
        let rows = rows.as_array().unwrap();
        let page = std::fs::read_to_string(page).unwrap();
        let figures =
            page.lines().find_map(|l| l.strip_prefix("const F = ")).unwrap().trim_end_matches(';');
        let figures: Value = serde_json::from_str(figures).unwrap();
        let (blocks, names) =
            (figures["blocks"].as_u64().unwrap() as usize, figures["names"].as_array().unwrap());
        assert!(blocks > 1 && names.len() > rows.len(), "{blocks} blocks, {} steps", names.len());
        // Each step of the token is counted in exactly one row.
        let times: u64 = rows.iter().map(|r| r["times"].as_u64().unwrap()).sum();
        assert_eq!(times as usize, names.len());
        for word in ["embed", "attn_q", "ffn_glu", "logits"] {
            assert!(
                rows.iter().any(|r| r["step"].as_str().unwrap().contains(word)),
                "no {word}: {rows:?}"
            );
        }
        // Each block ran all steps in order, and each took some time.
        let ns = figures["ns"].as_array().unwrap();
        assert_eq!(ns.len(), blocks * names.len());
        for block in ns.chunks_exact(names.len()) {
            let of = block.iter().flat_map(|s| s.as_array().unwrap()).map(|t| t.as_u64().unwrap());
            let of: Vec<u64> = of.collect();
            assert!(of.is_sorted() && of.first() < of.last(), "{of:?}");
        }
        // A model for which one launch per token is impossible is refused with the reason.
        let mut c = kjit();
        c.args(["--device", "rocm:0", "--cache-dir"]).arg(cache()).arg("bench");
        c.arg(model("archs/mamba.gguf"))
            .args(["--kernels", "--timeline"])
            .arg(dir.path().join("no.html"));
        let line = error_line(c.args(["--prefill-chunk", "8"]), 1);
        assert!(line.contains("is not one launch: "), "{line}");
    });
}

/// Runs the independent reader of bundles.
fn check_bundle(arguments: &[&Path]) -> (bool, String) {
    let output = Command::new("python3")
        .arg(arguments[0].join("check_bundle.py"))
        .args(arguments)
        .output()
        .expect("python3");
    (
        output.status.success(),
        String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr),
    )
}

#[test]
fn bundle_describes_its_code_objects_and_runs() {
    let test = "simulated::bundle_describes_its_code_objects_and_runs";
    Setup::devices("gfx1201").set("HIPSIM_OPTIMISE", "-Og").run(test, TEMPORARY, || {
        let found = json(kjit().args(["devices", "--json"]));
        if !found["compilers"].as_array().unwrap().iter().any(|c| c["kind"] == "clang") {
            eprintln!("SKIPPED {test}: no clang with the AMDGPU target (Debian: clang-19 lld-19)");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("bundle");
        let text = folder.display().to_string();
        let report = doctor(&["--export", &text, "--arch", "gfx1201", "--filter", "moe"], true);
        assert!(detail(&report, "bundle for gfx1201").contains("18 cases"), "{report}");
        let report = doctor(&["--bundle", &text, "--device", "rocm:0"], true);
        assert_eq!(detail(&report, "kernels"), "18 of 18 cases right on rocm:0");
        let (fine, said) = check_bundle(&[&folder]);
        assert!(fine && said.contains("18 cases") && said.contains("all claims hold"), "{said}");
        // Results of another runner: the expected results pass, and any changed byte fails.
        let manifest: Value =
            serde_json::from_slice(&std::fs::read(folder.join("manifest.json")).unwrap()).unwrap();
        let data = std::fs::read(folder.join("data.bin")).unwrap();
        let case = &manifest["cases"][0];
        let results = dir.path().join("results");
        std::fs::create_dir_all(results.join("0")).unwrap();
        let (mut last, mut content) = (0, vec![]);
        for (i, buffer) in case["buffers"].as_array().unwrap().iter().enumerate() {
            if buffer["after"]["must_be"] == "exactly" {
                let at =
                    usize::try_from(buffer["after"]["content"]["at"].as_u64().unwrap()).unwrap();
                let bytes = usize::try_from(buffer["bytes"].as_u64().unwrap()).unwrap();
                (last, content) = (i, data[at..at + bytes].to_vec());
                std::fs::write(results.join(format!("0/{i}.bin")), &content).unwrap();
            }
        }
        let (fine, said) = check_bundle(&[&folder, &results]);
        assert!(fine && said.contains("1 of 1 cases with results are right"), "{said}");
        content[0] ^= 1;
        std::fs::write(results.join(format!("0/{last}.bin")), &content).unwrap();
        let (fine, said) = check_bundle(&[&folder, &results]);
        assert!(!fine && said.contains("byte 0 is"), "{said}");
        // A manifest that contradicts its code object is detected by the reader, also with correct
        // checksums.
        let honest = manifest.to_string();
        let kernarg = case["kernarg_bytes"].to_string();
        for (from, to, word) in [
            ("\"wave\":32".to_owned(), "\"wave\":64".to_owned(), "wave"),
            (
                format!("\"kernarg_bytes\":{kernarg}"),
                "\"kernarg_bytes\":4096".to_owned(),
                "4096 in the manifest",
            ),
            ("\"static_lds\":".to_owned(), "\"static_lds\":1".to_owned(), "static LDS"),
            (
                "\"code_object_version\":5".to_owned(),
                "\"code_object_version\":4".to_owned(),
                "code-object version",
            ),
        ] {
            let lie = honest.replacen(&from, &to, usize::MAX);
            assert_ne!(lie, honest, "{from}");
            std::fs::write(folder.join("manifest.json"), lie).unwrap();
            let (fine, said) = check_bundle(&[&folder]);
            assert!(!fine && said.contains(word), "{from}: {said}");
        }
    });
}
