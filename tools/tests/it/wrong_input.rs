//! Wrong input gives one clear line and the right exit code: 1 for errors, 2 for wrong usage.

use crate::support::{error_after_output, error_line, kjit, smollm2, stdout};
use std::fs;

#[test]
fn missing_file_is_named() {
    let line = error_line(kjit().args(["run", "/no/such/model.gguf", "-p", "x"]), 1);
    assert!(line.contains("/no/such/model.gguf"), "{line}");
}

#[test]
fn invalid_model_is_refused_by_every_command() {
    let dir = tempfile::tempdir().unwrap();
    let (empty, text) = (dir.path().join("empty.gguf"), dir.path().join("text.gguf"));
    fs::write(&empty, b"").unwrap();
    fs::write(
        &text,
        b"This is a text file, and a rather long one, so that its length cannot be the reason.\n",
    )
    .unwrap();
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
fn model_truncated_at_any_byte_is_refused() {
    let bytes = fs::read(smollm2()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cut.gguf");
    for len in [
        3,
        4,
        8,
        23,
        24,
        100,
        5000,
        1_500_000,
        1_780_000,
        1_785_664,
        bytes.len() / 2,
        bytes.len() - 1,
    ] {
        fs::write(&path, &bytes[..len]).unwrap();
        let line = error_line(kjit().arg("run").arg(&path).args(["-p", "x"]), 1);
        assert!(line.contains("cut.gguf"), "{len} bytes: {line}");
    }
}

/// Files of Windows editors, and lists with an empty last line.
#[test]
fn byte_order_mark_and_blank_lines_are_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let answer = |prompt: &std::path::Path| {
        let mut command = kjit();
        command.arg("run").arg(smollm2()).arg("-f").arg(prompt);
        stdout(command.args(["--device", "cpu", "--temp", "0", "-n", "4", "-q"]))
    };
    let plain = file("plain.txt", b"Count to five.\nThen stop.\n");
    assert_eq!(
        answer(&file("bom.txt", b"\xEF\xBB\xBFCount to five.\nThen stop.\n")),
        answer(&plain)
    );
    let utf16 = file("utf16.txt", b"\xFF\xFEa\0");
    let line = error_line(kjit().arg("run").arg(smollm2()).arg("-f").arg(&utf16), 1);
    assert!(line.contains("utf16.txt is UTF-16: save it as UTF-8"), "{line}");
    let lines = |command: &str, text: &str| {
        stdout(
            kjit().arg(command).arg(smollm2()).arg("--jsonl").write_stdin(text.as_bytes().to_vec()),
        )
    };
    let chat = r#"[{"role":"user","content":"Hi"}]"#;
    for (command, line) in [("tokenize", "\"a\""), ("detokenize", "[64]"), ("template", chat)] {
        let want = lines(command, &format!("{line}\n"));
        assert_eq!(lines(command, &format!("\u{feff}{line}\r\n\r\n \n")), want, "{command}");
    }
    let own = file("own.jinja", "\u{feff}{{ messages[0].content }}".as_bytes());
    let mut command = kjit();
    command
        .arg("template")
        .arg(smollm2())
        .arg("--jsonl")
        .arg("--template")
        .arg(own)
        .write_stdin(chat);
    assert_eq!(stdout(&mut command), "\"Hi\"\n");
}

#[test]
fn more_threads_than_cores_give_a_warning() {
    let many = 4 * std::thread::available_parallelism().unwrap().get();
    let said = |threads: usize| {
        let mut command = kjit();
        command.arg("run").arg(smollm2()).args(["-p", "x", "-n", "1", "--device", "cpu"]);
        command.arg("--threads").arg(threads.to_string());
        String::from_utf8(command.output().unwrap().stderr).unwrap()
    };
    let line = said(many);
    assert!(line.contains(&format!("warning: {many} threads wait for each other on")), "{line}");
    assert!(!said(1).contains("warning"), "of one");
}

#[test]
fn ids_outside_vocabulary_are_named() {
    let line =
        error_line(kjit().arg("logits").arg(smollm2()).args(["--ids", "1,49152", "--json"]), 1);
    assert!(line.contains("49152"), "{line}");
    let line = error_line(
        kjit().arg("detokenize").arg(smollm2()).arg("--jsonl").write_stdin("[99999999]\n"),
        1,
    );
    assert!(line.contains("99999999"), "{line}");
}

#[test]
fn too_long_prompt_error_gives_advice() {
    let prompt = "word ".repeat(200);
    let line = error_line(kjit().arg("run").arg(smollm2()).args(["-c", "64", "-p", &prompt]), 1);
    assert!(line.contains("context of 64") && line.contains("-c"), "{line}");
}

#[test]
fn invalid_flag_values_are_usage_errors() {
    for args in [
        &["run", "m.gguf", "-p", "x", "--temp", "abc"][..],
        &["run", "m.gguf", "-p", "x", "--temp", "-1"],
        &["run", "m.gguf", "-p", "x", "--top-p", "1.5"],
        &["run", "m.gguf", "-p", "x", "--device", "banana"],
        &["run", "m.gguf", "-p", "x", "--device", "cuda:0,cuda:0"],
        &["run", "m.gguf", "-p", "x", "--device", "cuda:0,auto"],
        &["run", "m.gguf", "-p", "x", "--split", "rows"],
        &["run", "m.gguf", "-p", "x", "--host-layers", "-1"],
        &["run", "m.gguf", "-p", "x", "--host-ffn", "-1"],
        &["run", "m.gguf", "-p", "x", "--hot-experts", "1MB"],
        &["inspect", "m.gguf", "--host-ffn", "1", "--stream"],
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
fn unknown_driver_is_refused_by_name() {
    let output = kjit()
        .args(["run", "m.gguf", "-p", "x", "--device", "metal"])
        .assert()
        .code(2)
        .get_output()
        .clone();
    assert!(String::from_utf8_lossy(&output.stderr).contains("metal"));
}

#[test]
fn invalid_json_lines_are_named_by_number() {
    let line = error_after_output(
        kjit().arg("tokenize").arg(smollm2()).arg("--jsonl").write_stdin("\"a\"\nnope\n"),
    );
    assert!(line.contains("line 2"), "{line}");
}

#[test]
fn dequant_errors_name_unknown_format_and_partial_block() {
    let line = error_line(kjit().args(["dequant", "--type", "Q9_9", "--hex"]).write_stdin(""), 1);
    assert!(line.contains("Q9_9"), "{line}");
    let line =
        error_line(kjit().args(["dequant", "--type", "Q8_0", "--hex"]).write_stdin("abcd\n"), 1);
    assert!(line.contains("Q8_0") && line.contains("34"), "{line}");
    let line =
        error_line(kjit().args(["dequant", "--type", "Q8_0", "--hex"]).write_stdin("xyz\n"), 1);
    assert!(line.contains("line 1"), "{line}");
}

#[test]
fn out_of_range_number_error_names_the_flag() {
    for (flag, value, want) in [
        ("--tokens", "-1", "whole number"),
        ("--context", "-1", "above 0"),
        ("--temp", "-1", "at least 0"),
        ("--top-k", "-40", "whole number"),
        ("--top-p", "-0.5", "from 0 to 1"),
        ("--seed", "-1", "whole number"),
    ] {
        let line = error_line(kjit().args(["run", "model.gguf", "-p", "x", flag, value]), 2);
        assert!(line.contains(flag) && line.contains(value) && line.contains(want), "{line}");
    }
}

#[test]
fn negative_number_error_names_the_flag() {
    for args in [
        &["bench", "m.gguf", "-p", "-1"][..],
        &["bench", "m.gguf", "-d", "-1"],
        &["bench", "m.gguf", "-n", "-1"],
        &["bench", "m.gguf", "-r", "-1"],
        &["warm", "m.gguf", "--arch", "sm_90", "--prefill-chunk", "-1"],
        &["warm", "m.gguf", "--arch", "sm_90", "--jobs", "-1"],
        &["perplexity", "m.gguf", "-f", "t", "-c", "-1"],
        &["logits", "m.gguf", "--ids", "1", "--top", "-1"],
        &["run", "m.gguf", "--threads", "-1"],
    ] {
        let line = error_line(kjit().args(args), 2);
        assert!(line.starts_with("error: invalid value '-1' for '-"), "{args:?}: {line}");
    }
}

#[test]
fn vocabulary_only_file_is_identified() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("vocabulary.gguf");
    // A header with one key, the architecture, and without tensors.
    let (key, value) = ("general.architecture", "llama");
    let number = |n: usize| (n as u64).to_le_bytes();
    let mut bytes =
        [&b"GGUF\x03\0\0\0"[..], &number(0), &number(1), &number(key.len()), key.as_bytes()]
            .concat();
    bytes.extend([&8u32.to_le_bytes()[..], &number(value.len()), value.as_bytes()].concat());
    fs::write(&path, bytes).unwrap();
    let line = error_line(kjit().arg("run").arg(&path).args(["-p", "x"]), 1);
    assert!(line.contains("vocabulary.gguf") && line.contains("no tensors"), "{line}");
}

#[test]
fn unusable_configured_compiler_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let mut warm = kjit();
    warm.args(["warm", "--arch", "gfx1201", "--cache-dir"])
        .arg(dir.path())
        .env("KJIT_CLANG", "/bin/true");
    let line =
        String::from_utf8(warm.assert().failure().code(1).get_output().stderr.clone()).unwrap();
    assert!(line.contains("true: not a clang"), "{line}");
}

#[test]
fn endless_chat_template_is_an_error_without_crash() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("hostile.gguf");
    let mut bytes = fs::read(smollm2()).unwrap();
    let key = b"tokenizer.chat_template";
    // The key is followed by type, length and text.
    let at = bytes.windows(key.len()).position(|w| w == key).unwrap() + key.len() + 4;
    let room = usize::try_from(u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())).unwrap();
    let doubled =
        "{% set s=namespace(x='a') %}{% for i in range(60) %}{% set s.x=s.x+s.x %}{% endfor %}";
    let endless = "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}";
    for (template, said) in
        [(doubled, "need more than 64 MiB"), (endless, "more than 10000000 steps")]
    {
        bytes[at + 8..at + 8 + room].copy_from_slice(format!("{template:room$}").as_bytes());
        fs::write(&path, &bytes).unwrap();
        let mut c = kjit();
        c.arg("template")
            .arg(&path)
            .arg("--jsonl")
            .write_stdin("[{\"role\":\"user\",\"content\":\"Hi\"}]\n");
        let line = error_line(&mut c, 1);
        assert!(line.contains("chat template") && line.contains(said), "{line}");
        let line = error_line(kjit().arg("run").arg(&path).args(["-p", "x", "--device", "cpu"]), 1);
        assert!(line.contains("chat template") && line.contains(said), "{line}");
    }
}

#[test]
fn empty_prompt_is_refused() {
    for arguments in
        [&["-p", ""][..], &["-p", " \n"], &["--system", "Be brief."], &["--raw", "-p", ""]]
    {
        let line = error_line(kjit().arg("run").arg(smollm2()).args(arguments).write_stdin(""), 1);
        assert!(line.contains("the prompt is empty"), "{arguments:?}: {line}");
    }
}

#[test]
fn empty_or_oversized_benchmark_is_refused() {
    for (arguments, word) in [
        (&["-p", "0", "-n", "0"][..], "nothing to measure"),
        (&["-p", "8", "-n", "4", "-d", "18446744073709551615"], "use a smaller -c"),
        (&["-p", "8", "-n", "4", "-c", "4"], "a context of 8 tokens"),
    ] {
        let line = error_line(
            kjit().arg("bench").arg(smollm2()).args(["--device", "cpu"]).args(arguments),
            1,
        );
        assert!(line.contains(word), "{arguments:?}: {line}");
    }
}

#[test]
fn folder_without_bundle_is_refused_once() {
    let dir = tempfile::tempdir().unwrap();
    let line = error_line(kjit().args(["doctor", "--bundle"]).arg(dir.path()), 1);
    assert!(line.contains("not a proof bundle"), "{line}");
    let target = dir.path().join("none");
    let export = ["--arch", "gfx1100", "--filter", "no such kernel"];
    let line = error_line(kjit().args(["doctor", "--export"]).arg(&target).args(export), 1);
    assert!(line.contains("no such kernel") && !target.exists(), "{line}");
}

#[test]
fn missing_compiler_is_one_line_for_all_kernels() {
    let dir = tempfile::tempdir().unwrap();
    let mut warm = kjit();
    warm.args(["warm", "--arch", "sm_90,sm_90", "--compiler", "hiprtc", "--cache-dir"])
        .arg(dir.path());
    let output = warm.assert().failure().code(1).get_output().clone();
    let text = String::from_utf8(output.stderr).unwrap();
    let errors: Vec<&str> = text.lines().filter(|l| l.starts_with("error")).collect();
    assert!(
        matches!(errors.as_slice(), [one] if one.contains("sm_90") && one.contains("hiprtc")),
        "{text}"
    );
}

#[test]
fn full_disk_under_stdout_is_named() {
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let run = std::process::Command::new(env!("CARGO_BIN_EXE_kjit"))
        .arg("inspect")
        .arg(smollm2())
        .stdout(full)
        .output()
        .unwrap();
    let text = String::from_utf8(run.stderr).unwrap();
    assert!(
        run.status.code() == Some(1) && text.starts_with("error: cannot write to stdout: "),
        "{text}"
    );
}

#[test]
fn impossible_context_is_refused_with_flag() {
    let dir = tempfile::tempdir().unwrap();
    let (smollm2, huge) = (smollm2(), u64::MAX.to_string());
    for command in [
        &["run", "--device", "cpu", "-p", "x"][..],
        &["logits", "--device", "cpu", "--ids", "1"],
        &["bench", "--device", "cpu"],
        &["warm", "--arch", "gfx1100"],
    ] {
        let mut c = kjit();
        c.args(command).arg(&smollm2).args(["-c", &huge, "--cache-dir"]).arg(dir.path());
        let line = error_line(&mut c, 1);
        assert!(
            line.contains(&huge) && line.contains("use ") && line.contains(" -c"),
            "{command:?}: {line}"
        );
    }
}

#[test]
fn vocabulary_and_embedding_size_mismatch_is_refused() {
    // The text of the last token is appended to the token before it: one token less in the same
    // number of bytes.
    let mut bytes = fs::read(smollm2()).unwrap();
    let key = b"tokenizer.ggml.tokens";
    let count = bytes.windows(key.len()).position(|w| w == key).unwrap() + key.len() + 8;
    let number =
        |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let tokens = number(&bytes, count);
    let (mut at, mut before) = (count + 8, 0);
    for _ in 1..tokens {
        before = at;
        at += 8 + number(&bytes, at) as usize;
    }
    let longer = number(&bytes, before) + 8 + number(&bytes, at);
    bytes[before..before + 8].copy_from_slice(&longer.to_le_bytes());
    bytes[count..count + 8].copy_from_slice(&(tokens - 1).to_le_bytes());
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("shorter.gguf");
    fs::write(&path, bytes).unwrap();
    let line = error_line(kjit().arg("run").arg(&path).args(["-p", "x", "--device", "cpu"]), 1);
    let said =
        format!("the vocabulary has {} tokens, but the model has {tokens} logits", tokens - 1);
    assert!(line.contains("shorter.gguf") && line.contains(&said), "{line}");
}

#[test]
fn nan_scores_are_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let (path, text) = (dir.path().join("damaged.gguf"), dir.path().join("text.txt"));
    let doc: serde_json::Value =
        serde_json::from_str(&stdout(kjit().args(["inspect", "--json"]).arg(smollm2()))).unwrap();
    let norm = doc["tensors"]
        .as_array()
        .unwrap()
        .iter()
        .find(|t| t["name"] == "output_norm.weight")
        .unwrap();
    let at = usize::try_from(norm["offset"].as_u64().unwrap()).unwrap();
    let mut bytes = fs::read(smollm2()).unwrap();
    bytes[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(&path, bytes).unwrap();
    fs::write(&text, "word ".repeat(40)).unwrap();
    for command in [
        &["logits", "--ids", "1,2", "--json"][..],
        &["run", "-p", "x", "--temp", "0"],
        &["run", "-p", "x", "--json"],
        &["perplexity", "-c", "16", "-f", text.to_str().unwrap(), "--json"],
    ] {
        let line = error_line(kjit().args(command).arg(&path).args(["--device", "cpu"]), 1);
        assert!(line.contains("the logit of token") && line.contains("NaN"), "{command:?}: {line}");
    }
}

#[test]
fn custom_template_is_used_and_unreadable_one_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("own.jinja");
    fs::write(&path, "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}").unwrap();
    let mut c = kjit();
    c.arg("template").arg(smollm2()).args(["--jsonl", "--template"]).arg(&path);
    let output = c
        .write_stdin("[{\"role\":\"user\",\"content\":\"Hi\"}]\n")
        .assert()
        .success()
        .get_output()
        .clone();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "\"<user>Hi\"\n");
    for (text, said) in [
        (&b"{% if %}"[..], "line 1"),
        (b"\xFF", "cannot be read"),
        (&[b'x'; (1 << 20) + 1], "1 MiB"),
    ] {
        fs::write(&path, text).unwrap();
        for command in [&["template", "--jsonl"][..], &["run", "-p", "x", "--device", "cpu"]] {
            let mut c = kjit();
            c.args(command).arg(smollm2()).arg("--template").arg(&path).write_stdin("");
            let line = error_line(&mut c, 1);
            assert!(line.contains("own.jinja") && line.contains(said), "{line}");
        }
    }
}
