//! `kjit bench --kernels` and `--tune` on a simulated AMD card: the format of the output, and the
//! use of tuning results by later commands. Simulated times have no meaning.

use crate::support::{error_line, kjit, model, stdout};
use kjit_tests::simulator::Setup;
use serde_json::Value;
use std::path::{Path, PathBuf};

const TEMPORARY: &str = env!("CARGO_TARGET_TMPDIR");

fn setup() -> Setup {
    Setup::devices("gfx1100").set("HIPSIM_CLANG", "none").set("HIPSIM_OPTIMISE", "-Og")
}

fn tiny() -> PathBuf {
    model("tiny/tiny-llama-q8_0.gguf")
}

fn on(cache: &Path) -> assert_cmd::Command {
    let mut c = kjit();
    c.args(["--device", "rocm:0", "--cache-dir"]).arg(cache);
    c
}

fn json(c: &mut assert_cmd::Command) -> Value {
    serde_json::from_str(&stdout(c)).expect("one JSON document")
}

#[test]
fn bench_kernels_prints_a_row_per_decode_kernel() {
    let test = "simulated_tuning::bench_kernels_prints_a_row_per_decode_kernel";
    setup().run(test, TEMPORARY, || {
        let cache = Path::new(TEMPORARY).join("hipsim/measured");
        let bench = |form: &str| {
            let mut c = on(&cache);
            c.arg("bench").arg(tiny()).args([
                "--kernels",
                "--filter",
                "^decode$",
                "-c",
                "64",
                "-d",
                "9",
                "-o",
                form,
            ]);
            c
        };
        let doc = json(&mut bench("json"));
        assert!(doc["limits"]["read_gb_s"].as_f64().unwrap() > 0.0);
        assert!(doc["limits"]["product"].as_str().unwrap().contains("halves"));
        let rows = doc["kernels"].as_array().unwrap();
        let families: Vec<&str> = rows.iter().map(|r| r["family"].as_str().unwrap()).collect();
        for family in ["embed", "matvec", "attend", "argmax", "draw"] {
            assert!(families.contains(&family), "{families:?}");
        }
        for row in rows {
            assert_eq!(row["error"], Value::Null, "{row}");
            assert!(
                row["us"].as_f64().unwrap() > 0.0 && row["bytes"].as_f64().unwrap() > 0.0,
                "{row}"
            );
            assert!(row["registers"].is_number() && row["occupancy_percent"].is_number(), "{row}");
        }
        let lines = |text: String| text.lines().map(str::to_owned).collect::<Vec<_>>();
        let csv = lines(stdout(&mut bench("csv")));
        assert_eq!(csv.len(), rows.len() + 1);
        let names = |line: &str| {
            line.split(',').map(str::to_owned).collect::<std::collections::BTreeSet<_>>()
        };
        assert_eq!(names(&csv[0]), rows[0].as_object().unwrap().keys().cloned().collect());
        let md = lines(stdout(&mut bench("md")));
        assert!(md[0].contains("GB/s read") && md.len() == rows.len() + 4, "{md:?}");
        let columns = |line: &String| line.matches(" | ").count();
        assert!(
            md[2..].iter().all(|l| l.starts_with('|')) && columns(&md[2]) == columns(&md[4]),
            "{md:?}"
        );
    });
}

#[test]
fn run_uses_tuned_kernels_without_recompiling() {
    let test = "simulated_tuning::run_uses_tuned_kernels_without_recompiling";
    // Blocks of 512 threads abort the process that measures them.
    setup().set("HIPSIM_BREAK", "matvec:512:abort").run(test, TEMPORARY, || {
        let cache = Path::new(TEMPORARY).join(test);
        let _ = std::fs::remove_dir_all(&cache);
        let sizes = ["-c", "64", "--prefill-chunk", "8"];
        let mut tune = on(&cache);
        tune.arg("warm").arg(tiny()).args(["--tune", "--tries", "2", "--json"]).args(sizes);
        let doc = json(&mut tune);
        assert_eq!(doc["failed"], 0, "{doc}");
        let stat = json(on(&cache).args(["cache", "stat", "--json"]));
        assert!(stat["layers"][0]["records"].as_u64().unwrap() > 5, "{stat}");
        let mut run = on(&cache);
        run.arg("run")
            .arg(tiny())
            .args(["--raw", "-p", "a b c", "--temp", "0", "-n", "3", "--json"])
            .args(sizes);
        let doc = json(&mut run);
        assert_eq!(doc["kernels"]["compiled"], 0, "{doc}");
        // Without a card: the same plan is compiled completely.
        let mut warm = kjit();
        warm.arg("--cache-dir")
            .arg(&cache)
            .arg("warm")
            .arg(tiny())
            .args(["--arch", "gfx1100", "--json"])
            .args(sizes);
        assert_eq!(json(&mut warm)["compiled"], 0);

        // On another machine with an empty cache, from a pack: tuning results come with the kernels
        // and go into the next pack.
        let dir = tempfile::tempdir().unwrap();
        let (first, second) =
            (dir.path().join("first.kjitpack"), dir.path().join("second.kjitpack"));
        let export = |cache: &Path, packs: Option<&Path>, to: &Path| {
            let mut c = kjit();
            c.arg("--cache-dir")
                .arg(cache)
                .args(["cache", "export", "--arch", "gfx1100", "--json", "-o"])
                .arg(to);
            json(
                c.arg("--model")
                    .arg(tiny())
                    .args(sizes)
                    .envs(packs.map(|packs| ("KJIT_PACK_PATH", packs))),
            )
        };
        let exported = export(&cache, None, &first);
        assert!(exported["records"].as_u64().unwrap() > 3, "{exported}");
        let mut elsewhere = on(&dir.path().join("elsewhere"));
        elsewhere
            .env("KJIT_PACK_PATH", &first)
            .env("KJIT_HIPRTC_LIBRARY", "/nowhere")
            .env("KJIT_CLANG", "/nowhere");
        elsewhere
            .arg("run")
            .arg(tiny())
            .args(["--raw", "-p", "a b c", "--temp", "0", "-n", "1", "--json"])
            .args(sizes);
        assert_eq!(json(&mut elsewhere)["kernels"]["compiled"], 0);
        let again = export(&dir.path().join("elsewhere"), Some(&first), &second);
        assert_eq!(
            (&again["records"], &again["entries"]),
            (&exported["records"], &exported["entries"])
        );
        assert_eq!(std::fs::read(&first).unwrap(), std::fs::read(&second).unwrap());
        // The record has all measurements: for each variant, with the driver's version, and without
        // the identity of a device.
        let home =
            kjit_cache::Config::for_app("kjit").ignore_environment().dir(dir.path().join("third"));
        let third = kjit_cache::Cache::open(home);
        third.import(&second, &[]).unwrap();
        let all = third.records();
        let timings: Vec<_> =
            all.iter().filter(|(key, _)| key.domain() == "kjit tuning timings").collect();
        assert!(timings.len() > 3, "{} of {}", timings.len(), all.len());
        for (key, value) in timings {
            let labels: Vec<String> =
                key.fields().iter().map(|field| field.label.to_string()).collect();
            for label in ["arch", "what", "driver"] {
                assert!(labels.iter().any(|l| l == label), "{label}: {labels:?}");
            }
            let text = String::from_utf8_lossy(value);
            let record: Value = serde_json::from_str(&text).unwrap();
            let candidates = record["candidates"].as_array().unwrap();
            assert!((1..=2).contains(&candidates.len()), "{text}");
            assert!(
                candidates.iter().all(|c| c["seconds"].is_number() != c["failed"].is_string()),
                "{text}"
            );
            assert!(!text.contains("rocm:") && record["driver"].is_string(), "{text}");
        }
    });
}

#[test]
fn bench_kernels_without_gpu_names_the_arch_flag() {
    let mut c = kjit();
    c.env("KJIT_HIP_LIBRARY", "/nowhere")
        .env("CUDA_VISIBLE_DEVICES", "")
        .args(["bench", "--kernels"]);
    let line = error_line(&mut c, 1);
    assert!(line.contains("--arch"), "{line}");
    let mut c = kjit();
    c.args(["bench", "--kernels", "--device", "cpu"]);
    assert!(error_line(&mut c, 1).contains("cpu"));
}
