//! The command's answers as scripts rely on them.

mod support;

use serde_json::Value;
use support::{kjit, smollm2, stdout};

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

#[test]
fn the_answer_alone_goes_to_stdout() {
    let text = stdout(kjit().arg("run").arg(smollm2()).args(["-p", "Say hello.", "-n", "8", "--temp", "0"]));
    assert!(!text.contains("tok/s") && !text.contains("device"), "{text}");
    assert!(text.trim().len() > 3, "{text:?}");
}

#[test]
fn a_quiet_run_says_nothing_on_stderr() {
    let mut c = kjit();
    let out = c.arg("run").arg(smollm2()).args(["-q", "-p", "Hi", "-n", "4", "--temp", "0"]).assert().success();
    assert!(out.get_output().stderr.is_empty());
}

#[test]
fn greedy_runs_repeat_themselves_and_so_do_seeded_ones() {
    for flags in [&["--temp", "0"][..], &["--temp", "0.9", "--seed", "7"]] {
        let run = || stdout(kjit().arg("run").arg(smollm2()).args(["-p", "Tell me a story.", "-n", "16"]).args(flags));
        assert_eq!(run(), run(), "{flags:?}");
    }
}

#[test]
fn run_json_has_every_field_of_the_contract() {
    let doc = json(&stdout(kjit().arg("run").arg(smollm2()).args(["-p", "Hi", "-n", "5", "--temp", "0", "--json"])));
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
    ] {
        assert!(doc.pointer(path).is_some(), "{path} is missing: {doc}");
    }
    assert_eq!(doc["ids"].as_array().unwrap().len() as u64, doc["generated_tokens"].as_u64().unwrap());
    assert_eq!(doc["stop_reason"], "length");
}

#[test]
fn a_stop_text_ends_the_answer_and_is_not_in_it() {
    let all = stdout(kjit().arg("run").arg(smollm2()).args(["-p", "Count to ten.", "-n", "40", "--temp", "0"]));
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
fn the_prompt_comes_from_a_flag_a_file_or_a_pipe_alike() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("prompt.txt");
    std::fs::write(&file, "What is 2+2?").unwrap();
    let tail = ["-n", "6", "--temp", "0"];
    let flag = stdout(kjit().arg("run").arg(smollm2()).args(["-p", "What is 2+2?"]).args(tail));
    let from_file = stdout(kjit().arg("run").arg(smollm2()).arg("-f").arg(&file).args(tail));
    let piped = stdout(kjit().arg("run").arg(smollm2()).args(tail).write_stdin("What is 2+2?"));
    let dash = stdout(kjit().arg("run").arg(smollm2()).args(["-p", "-"]).args(tail).write_stdin("What is 2+2?"));
    assert_eq!([&from_file, &piped, &dash], [&flag; 3]);
}

#[test]
fn logits_prints_the_best_and_the_normaliser() {
    let doc = json(&stdout(kjit().arg("logits").arg(smollm2()).args(["--ids", "1,2,3", "--top", "5", "--json"])));
    assert_eq!(doc["n_vocab"], 49152);
    let top = doc["top"].as_array().unwrap();
    assert_eq!(top.len(), 5);
    let scores: Vec<f64> = top.iter().map(|t| t[1].as_f64().unwrap()).collect();
    assert!(scores.windows(2).all(|w| w[0] >= w[1]), "{scores:?}");
    assert!(doc["logsumexp"].as_f64().unwrap() >= scores[0]);
}

#[test]
fn tokenize_and_detokenize_are_inverse_line_by_line() {
    let lines = "\"Hello, world\"\n\"\"\n\"héllo 世界 😀\"\n";
    let ids = stdout(kjit().arg("tokenize").arg(smollm2()).args(["--jsonl", "--plain"]).write_stdin(lines));
    let back = stdout(kjit().arg("detokenize").arg(smollm2()).arg("--jsonl").write_stdin(ids.as_str()));
    assert_eq!(back, lines);
    let hex = stdout(kjit().arg("detokenize").arg(smollm2()).args(["--jsonl", "--hex"]).write_stdin(ids.as_str()));
    assert_eq!(hex.lines().next(), Some("48656c6c6f2c20776f726c64"));
}

#[test]
fn template_renders_with_the_generation_prompt() {
    let out = stdout(
        kjit().arg("template").arg(smollm2()).arg("--jsonl").write_stdin("[{\"role\":\"user\",\"content\":\"Hi\"}]\n"),
    );
    let text = json(&out);
    assert!(text.as_str().unwrap().ends_with("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"), "{text}");
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
fn help_of_every_command_has_an_example() {
    for command in
        ["run", "inspect", "devices", "tokenize", "detokenize", "template", "logits", "perplexity", "dequant", "bench"]
    {
        let help = stdout(kjit().args([command, "--help"]));
        assert!(help.contains("Example"), "{command}");
    }
}
