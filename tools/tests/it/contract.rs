//! The parts of the command's output on which scripts rely.

use crate::support::{error_line, kjit, smollm2, stdout};
use serde_json::Value;

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

#[test]
fn stdout_contains_only_the_answer() {
    let text = stdout(kjit().arg("run").arg(smollm2()).args([
        "-p",
        "Say hello.",
        "-n",
        "8",
        "--temp",
        "0",
    ]));
    assert!(!text.contains("tok/s") && !text.contains("device"), "{text}");
    assert!(text.trim().len() > 3, "{text:?}");
}

#[test]
fn quiet_run_writes_nothing_to_stderr() {
    let mut c = kjit();
    let out = c
        .arg("run")
        .arg(smollm2())
        .args(["-q", "-p", "Hi", "-n", "4", "--temp", "0"])
        .assert()
        .success();
    assert!(out.get_output().stderr.is_empty());
}

#[test]
fn greedy_and_seeded_runs_are_repeatable() {
    for flags in [&["--temp", "0"][..], &["--temp", "0.9", "--seed", "7"]] {
        let run = || {
            stdout(
                kjit()
                    .arg("run")
                    .arg(smollm2())
                    .args(["-p", "Tell me a story.", "-n", "16"])
                    .args(flags),
            )
        };
        assert_eq!(run(), run(), "{flags:?}");
    }
}

#[test]
fn run_json_has_every_documented_field() {
    let doc = json(&stdout(
        kjit().arg("run").arg(smollm2()).args(["-p", "Hi", "-n", "5", "--temp", "0", "--json"]),
    ));
    for path in [
        "/text",
        "/ids",
        "/prompt_tokens",
        "/generated_tokens",
        "/stop_reason",
        "/device/kind",
        "/device/name",
        "/device/arch",
        "/kernels/compiled",
        "/kernels/cached",
        "/kernels/seconds",
        "/timings/load_s",
        "/timings/first_token_s",
        "/timings/prompt_tok_s",
        "/timings/decode_tok_s",
        "/memory/weights",
        "/memory/kv",
        "/memory/peak",
        "/memory/laid_out",
    ] {
        assert!(doc.pointer(path).is_some(), "{path} is missing: {doc}");
    }
    assert_eq!(
        doc["ids"].as_array().unwrap().len() as u64,
        doc["generated_tokens"].as_u64().unwrap()
    );
    assert_eq!(doc["stop_reason"], "length");
    // Processors with suitable instructions keep repacked copies of SmolLM2's Q4_1 matrices, unless
    // that is switched off.
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let laid_out = doc["memory"]["laid_out"].as_u64().unwrap();
    assert_eq!(
        laid_out > 0,
        cpu.contains(" avx512_vnni") && cpu.contains(" avx512bw"),
        "{laid_out}"
    );
    let one = || {
        let mut c = kjit();
        c.arg("run")
            .arg(smollm2())
            .args(["--raw", "-p", "One two", "-n", "1", "--json", "--device", "cpu"]);
        c
    };
    for doc in [stdout(one().env("KJIT_LAID_OUT", "off")), stdout(one().arg("--precise"))] {
        assert_eq!(json(&doc)["memory"]["laid_out"], 0);
    }
}

#[test]
fn stop_text_ends_answer_and_is_not_printed() {
    let all = stdout(kjit().arg("run").arg(smollm2()).args([
        "-p",
        "Count to ten.",
        "-n",
        "40",
        "--temp",
        "0",
    ]));
    let word = all.split_whitespace().nth(3).expect("an answer of some words").to_string();
    let cut = stdout(kjit().arg("run").arg(smollm2()).args([
        "-p",
        "Count to ten.",
        "-n",
        "40",
        "--temp",
        "0",
        "--stop",
        &word,
    ]));
    assert!(!cut.contains(&word), "{cut:?} still has {word:?}");
    assert!(all.starts_with(cut.trim_end_matches('\n')), "{all:?} / {cut:?}");
}

#[test]
fn prompt_sources_give_equal_answers() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("prompt.txt");
    std::fs::write(&file, "What is 2+2?").unwrap();
    let tail = ["-n", "6", "--temp", "0"];
    let flag = stdout(kjit().arg("run").arg(smollm2()).args(["-p", "What is 2+2?"]).args(tail));
    let from_file = stdout(kjit().arg("run").arg(smollm2()).arg("-f").arg(&file).args(tail));
    let piped = stdout(kjit().arg("run").arg(smollm2()).args(tail).write_stdin("What is 2+2?"));
    let dash = stdout(
        kjit().arg("run").arg(smollm2()).args(["-p", "-"]).args(tail).write_stdin("What is 2+2?"),
    );
    assert_eq!([&from_file, &piped, &dash], [&flag; 3]);
}

#[test]
fn logits_prints_top_scores_and_logsumexp() {
    let doc = json(&stdout(
        kjit().arg("logits").arg(smollm2()).args(["--ids", "1,2,3", "--top", "5", "--json"]),
    ));
    assert_eq!(doc["n_vocab"], 49152);
    let top = doc["top"].as_array().unwrap();
    assert_eq!(top.len(), 5);
    let scores: Vec<f64> = top.iter().map(|t| t[1].as_f64().unwrap()).collect();
    assert!(scores.windows(2).all(|w| w[0] >= w[1]), "{scores:?}");
    assert!(doc["logsumexp"].as_f64().unwrap() >= scores[0]);
}

#[test]
fn detokenize_inverts_tokenize_for_each_line() {
    let lines = "\"Hello, world\"\n\"\"\n\"héllo 世界 😀\"\n";
    let ids = stdout(
        kjit().arg("tokenize").arg(smollm2()).args(["--jsonl", "--plain"]).write_stdin(lines),
    );
    let back =
        stdout(kjit().arg("detokenize").arg(smollm2()).arg("--jsonl").write_stdin(ids.as_str()));
    assert_eq!(back, lines);
    let hex = stdout(
        kjit()
            .arg("detokenize")
            .arg(smollm2())
            .args(["--jsonl", "--hex"])
            .write_stdin(ids.as_str()),
    );
    assert_eq!(hex.lines().next(), Some("48656c6c6f2c20776f726c64"));
}

#[test]
fn template_renders_with_generation_prompt() {
    let out = stdout(
        kjit()
            .arg("template")
            .arg(smollm2())
            .arg("--jsonl")
            .write_stdin("[{\"role\":\"user\",\"content\":\"Hi\"}]\n"),
    );
    let text = json(&out);
    assert!(
        text.as_str().unwrap().ends_with("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"),
        "{text}"
    );
}

#[test]
fn dequant_prints_little_endian_floats() {
    let out = stdout(kjit().args(["dequant", "--type", "F16", "--hex"]).write_stdin("003c00c0\n"));
    assert_eq!(out, "0000803f000000c0\n");
}

#[test]
fn inspect_graph_lists_every_operation() {
    let out = stdout(kjit().args(["inspect", "--graph"]).arg(smollm2()));
    assert_eq!(out.lines().filter(|l| l.contains(" = attention(")).count(), 30);
    assert!(out.contains("logits: real[T, 49152] = matmul(output_norm, token_embd.weight)"));
}

#[test]
fn inspect_json_has_numbers_and_complete_values() {
    let doc = json(&stdout(kjit().args(["inspect", "--json"]).arg(smollm2())));
    let value = |key: &str| {
        let all = doc["metadata"].as_array().unwrap();
        all.iter().find(|line| line["key"] == key).map_or(&Value::Null, |line| &line["value"])
    };
    assert_eq!(value("general.architecture"), "llama");
    assert_eq!(value("llama.block_count").as_u64(), Some(30));
    let epsilon = value("llama.attention.layer_norm_rms_epsilon");
    assert_eq!(epsilon.to_string(), "0.00001");
    let tokens = value("tokenizer.ggml.tokens").as_array().unwrap();
    assert!(tokens.len() == 49_152 && tokens.iter().all(Value::is_string), "{}", tokens.len());
    let types = value("tokenizer.ggml.token_type").as_array().unwrap();
    assert!(types.len() == 49_152 && types.iter().all(Value::is_i64));
    assert!(value("tokenizer.chat_template").as_str().unwrap().len() > 100);
    assert_eq!(doc["bytes"].as_u64(), Some(smollm2().metadata().unwrap().len()));
    for sizes in [&doc["memory"]["weights"], &doc["tensors"][0]["bytes"], &doc["parameters"]] {
        assert!(sizes.is_u64(), "{sizes}");
    }
}

#[test]
fn help_has_an_example_and_own_flags_first() {
    for command in [
        "run",
        "warm",
        "bench",
        "devices",
        "doctor",
        "pull",
        "list",
        "rm",
        "inspect",
        "tokenize",
        "detokenize",
        "template",
        "embed",
        "logits",
        "perplexity",
        "imatrix",
        "quantize",
        "dequant",
        "cache",
        "cache stat",
        "cache list",
        "cache verify",
        "cache clear",
        "cache export",
        "cache import",
        "cache push",
        "cache pull",
        "serve",
        "ps",
        "completions",
        "notices",
        "man",
    ] {
        let help = stdout(kjit().args(command.split(' ')).arg("--help"));
        assert!(help.contains("Example"), "{command}");
        let (own, shared) = help
            .split_once("Options of every command:")
            .unwrap_or_else(|| panic!("{command}: {help}"));
        for flag in ["--device", "--cache-dir", "--no-cache", "--verbose", "--quiet", "--threads"] {
            assert!(
                !own.contains(&format!(" {flag}")) && shared.contains(&format!(" {flag}")),
                "{command} {flag}"
            );
        }
    }
    let help = stdout(kjit().args(["run", "--help"]));
    for flag in [
        "-n, --tokens",
        "-c, --context",
        "-p, --prompt",
        "-f, --file",
        "--system",
        "--raw",
        "--temp",
        "--top-k",
        "--top-p",
        "--min-p",
        "--repeat-penalty",
        "--presence-penalty",
        "--frequency-penalty",
        "--seed",
        "--stop",
        "--kv-type",
        "--trace",
        "--json",
        "--precise",
    ] {
        assert!(help.contains(flag), "{flag}");
    }
}

#[test]
fn last_id_is_end_of_generation_without_text() {
    let doc =
        json(&stdout(kjit().arg("run").arg(smollm2()).args(["-p", "Hi", "--temp", "0", "--json"])));
    assert_eq!(doc["stop_reason"], "end_of_generation");
    assert_eq!(doc["ids"].as_array().unwrap().last(), Some(&Value::from(2)), "{doc}");
    let (text, ids) = (doc["text"].as_str().unwrap(), doc["ids"].as_array().unwrap());
    let words = Value::from(ids[..ids.len() - 1].to_vec()).to_string();
    let decoded = stdout(kjit().arg("detokenize").arg(smollm2()).arg("--jsonl").write_stdin(words));
    assert_eq!(json(&decoded), text);
}

#[test]
fn tokenize_parses_special_tokens_except_with_plain_or_raw() {
    let ids = |flags: &[&str]| {
        let mut c = kjit();
        c.arg("tokenize")
            .arg(smollm2())
            .arg("--jsonl")
            .args(flags)
            .write_stdin("\"<|im_start|>\"\n");
        json(&stdout(&mut c)).as_array().unwrap().clone()
    };
    assert_eq!(ids(&[]), [1]);
    let plain = ids(&["--plain"]);
    assert!(plain.len() > 1 && !plain.contains(&1.into()), "{plain:?}");
    let raw = ["--raw", "-p", "<|im_start|>", "-n", "1", "--temp", "0", "--json"];
    let doc = json(&stdout(kjit().arg("run").arg(smollm2()).args(raw)));
    assert_eq!(doc["prompt_tokens"], plain.len());
}

#[test]
fn vocabulary_of_unsupported_architecture_is_usable() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("other.gguf");
    let mut bytes = std::fs::read(smollm2()).unwrap();
    let at = bytes.windows(20).position(|w| w == b"general.architecture").unwrap();
    let name = at + bytes[at..].windows(5).position(|w| w == b"llama").unwrap();
    bytes[name..name + 5].copy_from_slice(b"zebra");
    std::fs::write(&path, bytes).unwrap();
    let hello =
        stdout(kjit().arg("tokenize").arg(&path).arg("--jsonl").write_stdin("\"Hello, world\"\n"));
    assert_eq!(hello, "[19556,28,905]\n");
    assert!(
        stdout(kjit().arg("inspect").arg(&path)).contains("architecture 'zebra' is not supported")
    );
    let line = error_line(kjit().arg("run").arg(&path).args(["-p", "x"]), 1);
    assert!(line.contains("'zebra'") && line.contains("supported: llama, "), "{line}");
}

#[test]
fn perplexity_drops_partial_window_and_counts_tokens() {
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("text.txt");
    // Two windows of 16 tokens and a rest of 3, which does not change the result.
    let run = |last: &str| {
        std::fs::write(&text, format!("{}{last}", "word ".repeat(32))).unwrap();
        let mut c = kjit();
        c.arg("perplexity")
            .arg(smollm2())
            .arg("-f")
            .arg(&text)
            .args(["-c", "16", "--json", "--device", "cpu"]);
        json(&stdout(&mut c))
    };
    let (one, other) = (run("one two three"), run("four"));
    assert_eq!(one["perplexity"], other["perplexity"]);
    assert!(one["tokens"].as_u64().unwrap() > other["tokens"].as_u64().unwrap(), "{one} {other}");
    assert!(one["perplexity"].as_f64().unwrap() > 1.0);
}

#[test]
fn trace_is_in_chrome_format() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("trace.json");
    let tail = ["-p", "Hi", "-n", "2", "--temp", "0", "--trace"];
    stdout(kjit().arg("run").arg(smollm2()).args(tail).arg(&file));
    let doc = json(&std::fs::read_to_string(&file).unwrap());
    let events = doc.as_array().or_else(|| doc["traceEvents"].as_array()).unwrap();
    assert!(!events.is_empty() && events.iter().all(|e| e["ph"].is_string()), "{doc}");
}

#[test]
fn output_without_terminal_has_no_colour_or_bar() {
    for args in [
        &["run", "-p", "Hi", "-n", "1", "--no-such-flag"][..],
        &["run", "/no/such/file", "-p", "Hi"],
        &["--help"],
    ] {
        let output = kjit().env_remove("NO_COLOR").args(args).output().unwrap();
        let all = [output.stdout, output.stderr].concat();
        assert!(
            !all.contains(&0x1b) && !all.contains(&b'\r'),
            "{args:?}: {}",
            String::from_utf8_lossy(&all)
        );
    }
}

#[test]
fn empty_path_elements_start_nothing_from_working_directory() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    for name in ["python3", "python", "clang", "clang-19", "ld.lld"] {
        let file = dir.path().join(name);
        std::fs::write(&file, "#!/bin/sh\ntouch \"$TEST_STARTED\"\n").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    for name in ["libcuda.so.1", "libamdhip64.so", "libhiprtc.so", "libnvrtc.so"] {
        std::fs::write(dir.path().join(name), "no library").unwrap();
    }
    let started = dir.path().join("started");
    for list in [":/nowhere", "/nowhere:", ".:/nowhere", "/nowhere::/else"] {
        let mut c = kjit();
        c.args(["devices", "-v"])
            .current_dir(dir.path())
            .env("TEST_STARTED", &started)
            .env_remove("KJIT_NVRTC_LIBRARY");
        let out = c
            .env("PATH", list)
            .env("LD_LIBRARY_PATH", list)
            .env("HOME", dir.path())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&out.stdout).into_owned()
            + &String::from_utf8_lossy(&out.stderr);
        assert!(!started.exists(), "{list}: {said}");
        assert!(
            !said.contains("invalid ELF") && !said.contains("file too short"),
            "{list}: {said}"
        );
    }
}

#[test]
fn devices_and_doctor_report_cpu_and_missing_libraries() {
    let doc = json(&stdout(kjit().args(["devices", "--json"])));
    let cpu = doc["devices"].as_array().unwrap().last().unwrap();
    assert_eq!(cpu["device"], "cpu");
    for field in ["devices", "drivers", "compilers", "visibility", "warnings", "missing"] {
        assert!(doc[field].is_array(), "{field}: {doc}");
    }
    let dir = tempfile::tempdir().unwrap();
    let mut doctor = kjit();
    doctor
        .args(["doctor", "--cache-dir", "cache"])
        .env("KJIT_COMPILE_SECONDS", "77")
        .env("KJIT_RANKS_SECRET", "never shown to other clients")
        .current_dir(dir.path());
    let output = doctor.output().unwrap();
    let verdicts = String::from_utf8(output.stdout).unwrap();
    let marks = ["ok   ", "note ", "FAIL "];
    assert!(verdicts.lines().all(|l| marks.iter().any(|m| l.starts_with(m))), "{verdicts}");
    assert!(!verdicts.contains("ok   not "), "{verdicts}");
    assert_eq!(verdicts.lines().filter(|l| l[5..].starts_with("cache: ")).count(), 1, "{verdicts}");
    let failed = verdicts.lines().any(|l| l.starts_with("FAIL "));
    assert_eq!(output.status.code(), Some(i32::from(failed)), "{verdicts}");
    let left = |dir: &std::path::Path| -> Vec<_> {
        std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name()).collect()
    };
    assert!(
        left(dir.path()).iter().all(|name| name == "cache"),
        "nothing is written unasked: {:?}",
        left(dir.path())
    );
    let again = doctor.args(["--report", "report.txt", "-q"]).output().unwrap();
    assert_eq!(String::from_utf8(again.stdout).unwrap(), verdicts);
    let report = std::fs::read_to_string(dir.path().join("report.txt")).unwrap();
    for part in [
        verdicts.as_str(),
        "[devices]\ncpu: ",
        "[system]\n/proc/version: ",
        "KJIT_COMPILE_SECONDS=77",
    ] {
        assert!(report.contains(part), "no {part:?} in {report}");
    }
    assert!(
        !report.contains("\nHOME=") && !report.contains("never told"),
        "documents without a client are not shown"
    );
}
