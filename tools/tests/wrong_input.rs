//! Wrong input gets one clear line and the right exit code: 1 for what cannot be done, 2 for wrong usage.

mod support;

use std::fs;
use support::{error_after_output, error_line, kjit, smollm2};

#[test]
fn a_file_that_is_not_there_is_named() {
    let line = error_line(kjit().args(["run", "/no/such/model.gguf", "-p", "x"]), 1);
    assert!(line.contains("/no/such/model.gguf"), "{line}");
}

#[test]
fn what_is_no_model_is_refused_by_every_command() {
    let dir = tempfile::tempdir().unwrap();
    let (empty, text) = (dir.path().join("empty.gguf"), dir.path().join("text.gguf"));
    fs::write(&empty, b"").unwrap();
    fs::write(&text, b"This is a text file, and a rather long one, so that its length is no reason.\n").unwrap();
    for path in [dir.path(), &empty, &text] {
        for command in [
            &["run", "-p", "x"][..],
            &["inspect"],
            &["inspect", "--graph"],
            &["tokenize", "--jsonl"],
            &["logits", "--ids", "1"],
        ] {
            let line = error_line(kjit().arg(command[0]).arg(path).args(&command[1..]), 1);
            assert!(line.contains(path.file_name().unwrap().to_str().unwrap()), "{line}");
        }
    }
}

#[test]
fn a_truncated_model_is_refused_wherever_it_was_cut() {
    let bytes = fs::read(smollm2()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cut.gguf");
    for len in [3, 4, 8, 23, 24, 100, 5000, 1_500_000, 1_780_000, 1_785_664, bytes.len() / 2, bytes.len() - 1] {
        fs::write(&path, &bytes[..len]).unwrap();
        let line = error_line(kjit().arg("run").arg(&path).args(["-p", "x"]), 1);
        assert!(line.contains("cut.gguf"), "{len} bytes: {line}");
    }
}

#[test]
fn ids_outside_the_vocabulary_are_named() {
    let line = error_line(kjit().arg("logits").arg(smollm2()).args(["--ids", "1,49152", "--json"]), 1);
    assert!(line.contains("49152"), "{line}");
    let line = error_line(kjit().arg("detokenize").arg(smollm2()).arg("--jsonl").write_stdin("[99999999]\n"), 1);
    assert!(line.contains("99999999"), "{line}");
}

#[test]
fn a_prompt_longer_than_the_context_says_what_to_do() {
    let prompt = "word ".repeat(200);
    let line = error_line(kjit().arg("run").arg(smollm2()).args(["-c", "64", "-p", &prompt]), 1);
    assert!(line.contains("context of 64") && line.contains("-c"), "{line}");
}

#[test]
fn values_that_a_flag_cannot_take_are_wrong_usage() {
    for args in [
        &["run", "m.gguf", "-p", "x", "--temp", "abc"][..],
        &["run", "m.gguf", "-p", "x", "--temp", "-1"],
        &["run", "m.gguf", "-p", "x", "--top-p", "1.5"],
        &["run", "m.gguf", "-p", "x", "--device", "banana"],
        &["run", "m.gguf", "-p", "x", "--device", "metal"],
        &["run", "m.gguf", "-p", "x", "--device", "opencl:0"],
        &["run", "m.gguf", "-p", "x", "--kv-type", "q3"],
        &["run", "m.gguf", "-p", "x", "-c", "0"],
        &["run", "m.gguf", "-p", "x", "--threads", "0"],
        &["run"],
        &["frobnicate"],
        &["tokenize", "m.gguf"],
    ] {
        let output = kjit().args(args).assert().code(2).get_output().clone();
        assert!(output.stdout.is_empty(), "{args:?}");
        assert!(!output.stderr.is_empty(), "{args:?}");
    }
}

#[test]
fn a_driver_that_kjit_has_not_is_refused_by_name() {
    let output = kjit().args(["run", "m.gguf", "-p", "x", "--device", "metal"]).assert().code(2).get_output().clone();
    assert!(String::from_utf8_lossy(&output.stderr).contains("metal"));
}

#[test]
fn lines_that_are_no_json_are_numbered() {
    let line = error_after_output(kjit().arg("tokenize").arg(smollm2()).arg("--jsonl").write_stdin("\"a\"\nnope\n"));
    assert!(line.contains("line 2"), "{line}");
}

#[test]
fn dequant_names_an_unknown_format_and_a_partial_block() {
    let line = error_line(kjit().args(["dequant", "--type", "Q9_9", "--hex"]).write_stdin(""), 1);
    assert!(line.contains("Q9_9"), "{line}");
    let line = error_line(kjit().args(["dequant", "--type", "Q8_0", "--hex"]).write_stdin("abcd\n"), 1);
    assert!(line.contains("Q8_0") && line.contains("34"), "{line}");
    let line = error_line(kjit().args(["dequant", "--type", "Q8_0", "--hex"]).write_stdin("xyz\n"), 1);
    assert!(line.contains("line 1"), "{line}");
}
