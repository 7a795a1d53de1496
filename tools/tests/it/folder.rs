//! Folders of safetensors in all commands that take a model.

use crate::support::folder::Folder;
use crate::support::{error_line, kjit, stdout};
use serde_json::{Value, json};

#[test]
fn folder_is_accepted_by_every_command() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("Small-0.6B");
    let mut folder = Folder::small("gemma3_text");
    folder.tensor("vision_tower.a", "F32", &[1], vec![0; 4]);
    folder.write(&path, 2);
    let run = |args: &[&str]| {
        let mut c = kjit();
        c.arg(args[0]).arg(&path).args(&args[1..]).env("KJIT_CACHE_DIR", dir.path().join("cache"));
        c
    };
    let text = stdout(&mut run(&["inspect"]));
    for words in [
        "folder of safetensors",
        "in 2 files",
        "gemma3.attention.sliding_window",
        "blk.1.post_ffw_norm.weight",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let doc = |args: &[&str]| -> Value { serde_json::from_str(&stdout(&mut run(args))).unwrap() };
    assert_eq!(doc(&["inspect", "--json"])["tensors"].as_array().unwrap().len(), 2 + 2 * 13);
    let ids = stdout(run(&["tokenize", "--jsonl", "--plain"]).write_stdin("\"hello\"\n"));
    assert_eq!(ids.trim(), "[259,75,78]".replace("75", &letter('l')).replace("78", &letter('o')));
    assert_eq!(
        stdout(
            run(&["template", "--jsonl"]).write_stdin("[{\"role\":\"user\",\"content\":\"Hi\"}]\n")
        )
        .trim(),
        "\"<s>Hi</s>\""
    );
    let logits = doc(&["logits", "--ids", "256,5,6", "--device", "cpu", "--json"]);
    assert_eq!(logits["n_vocab"], 300);
    let answer =
        run(&["run", "-p", "hello", "-n", "4", "--temp", "0", "--device", "cpu", "--json"])
            .assert()
            .success();
    let said = String::from_utf8(answer.get_output().stderr.clone()).unwrap();
    assert!(said.contains("note: 1 tensors of vision_tower are ignored"), "{said}");
    let answer: Value = serde_json::from_slice(&answer.get_output().stdout).unwrap();
    assert!(!answer["ids"].as_array().unwrap().is_empty());
    // The jobs of a card of another machine.
    let plan = stdout(&mut run(&["inspect", "--memory", "64MB", "-c", "64", "--arch", "gfx1100"]));
    assert!(plan.contains("on gfx1100"), "{plan}");
}

fn letter(c: char) -> String {
    crate::support::folder::letters().iter().position(|l| *l == c).unwrap().to_string()
}

#[test]
fn bad_folder_is_a_one_line_error() {
    let dir = tempfile::tempdir().unwrap();
    let mut folder = Folder::small("llama");
    folder.config["quantization_config"] = json!({ "quant_method": "awq" });
    folder.write(dir.path(), 1);
    for command in [
        &["run", "-p", "x"][..],
        &["inspect"],
        &["warm", "--arch", "gfx1100"],
        &["bench"],
        &["perplexity", "-f", "/dev/null"],
    ] {
        let line = error_line(kjit().arg(command[0]).arg(dir.path()).args(&command[1..]), 1);
        assert!(line.contains("config.json") && line.contains("'awq'"), "{line}");
    }
}

/// Invalid JSON in a folder is refused in one line, and needs at most the memory of the largest
/// valid file.
#[test]
fn folder_json_memory_is_limited() {
    let dir = tempfile::tempdir().unwrap();
    Folder::small("qwen3").write(dir.path(), 1);
    let filled = |begin: &str, piece: &str, end: &str, bytes: usize| {
        format!("{begin}{}{end}", piece.repeat((bytes - begin.len() - end.len()) / piece.len()))
    };
    let vocabulary: String = (0..5_000_000).map(|n| format!("\"{n:x}\":1,")).collect();
    let many = |what: &str| format!("{{\"model\": {{\"type\": \"BPE\", {what}}}}}");
    for (name, text) in [
        ("config.json", filled("{\"a\": [", "0,", "0]}", 40 << 20)),
        ("tokenizer_config.json", filled("{\"bos_token\": 7, \"a\": [", "[],", "0]}", 16 << 20)),
        (
            "tokenizer.json",
            filled(
                "{\"normalizer\": [",
                "[],",
                "0], \"model\": {\"vocab\": {}, \"merges\": []}}",
                60 << 20,
            ),
        ),
        (
            "tokenizer.json",
            many(&filled("\"vocab\": {}, \"merges\": [", "\"a b\",", "\"a b\"]", 60 << 20)),
        ),
        ("tokenizer.json", many(&filled("\"vocab\": {}, \"merges\": [[", "[],", "0]]", 60 << 20))),
        (
            "tokenizer.json",
            many(&format!("\"vocab\": {{{vocabulary}\"last\": 1}}, \"merges\": []")),
        ),
    ] {
        let path = dir.path().join(name);
        let good = std::fs::read(&path).unwrap();
        std::fs::write(&path, &text).unwrap();
        let mut command = assert_cmd::Command::new("sh");
        // The program needs 100 MB of these 450 MB of address space, most of them unused.
        command.args([
            "-c",
            "ulimit -v 450000; exec \"$0\" inspect \"$1\" --threads 1",
            env!("CARGO_BIN_EXE_kjit"),
        ]);
        command.arg(dir.path());
        let line = error_line(&mut command, 1);
        assert!(line.contains(name) && line.chars().count() <= 500, "{line}");
        std::fs::write(&path, good).unwrap();
    }
}
