//! `kjit quantize` and `kjit imatrix`.

use crate::support::folder::Folder;
use crate::support::{error_line, kjit, smollm2, stdout};
use serde_json::Value;
use std::path::Path;

fn document(path: &Path) -> Value {
    serde_json::from_str(&stdout(kjit().arg("inspect").arg(path).arg("--json"))).unwrap()
}

fn key(document: &Value, name: &str) -> Value {
    let keys = document["metadata"].as_array().unwrap();
    keys.iter().find(|k| k["key"] == name).unwrap()["value"].clone()
}

#[test]
fn a_folder_becomes_a_file_with_its_metadata_and_nearly_its_scores() {
    let dir = tempfile::tempdir().unwrap();
    let (source, out) = (dir.path().join("Small"), dir.path().join("small.gguf"));
    Folder::small("llama").write(&source, 2);
    stdout(kjit().arg("quantize").arg(&source).arg(&out).args([
        "--type",
        "Q8_0",
        "--set",
        "general.name=Mine",
    ]));
    let (before, after) = (document(&source), document(&out));
    assert_eq!(key(&after, "general.name"), "Mine");
    let tokens = "tokenizer.ggml.tokens";
    assert_eq!(key(&before, tokens), key(&after, tokens));
    assert_eq!(key(&after, "general.file_type"), 7);
    let top = |path: &Path| -> f64 {
        let mut c = kjit();
        c.arg("logits").arg(path).args(["--ids", "256,5,6", "--device", "cpu", "--json"]);
        serde_json::from_str::<Value>(&stdout(&mut c)).unwrap()["logsumexp"].as_f64().unwrap()
    };
    let (before, after) = (top(&source), top(&out));
    assert!((before - after).abs() < 0.05, "{before} and {after}");
    let again =
        error_line(kjit().arg("quantize").arg(&source).arg(&out).args(["--type", "Q8_0"]), 1);
    assert!(again.contains("--force"), "{again}");
}

#[test]
fn wrong_input_is_named_in_one_line_and_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.gguf");
    let fails = |args: &[&str], code: i32, words: &str| {
        let mut c = kjit();
        c.arg("quantize").arg(smollm2()).arg(&out).args(args);
        if code == 1 {
            let line = error_line(&mut c, code);
            assert!(line.contains(words), "{args:?}: {line}");
        } else {
            c.assert().code(code);
        }
    };
    fails(&["--type", "Q9_K"], 2, "");
    fails(&["--type", "Q4_0", "--keep", "nothing=Q8_0"], 1, "matches no matrix");
    fails(&["--type", "Q4_0", "--keep", "attn_k=Q4_K"], 1, "576");
    fails(&["--type", "Q2_K_S"], 1, "--imatrix");
    fails(&["--type", "Q4_0", "--unset", "no.key"], 1, "no.key");
    fails(&["--type", "Q4_0", "--imatrix", "/dev/null"], 1, "is not a regular file");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}
