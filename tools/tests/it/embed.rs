//! `kjit embed`: reads texts and prints vectors.

use crate::support::{error_after_output, error_line, kjit, model, smollm2, stdout};
use serde_json::Value;
use std::path::PathBuf;

/// A tiny encoder with a vocabulary. `None`, with a SKIPPED line, if it was not made.
fn encoder(name: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("KJIT_TEST_MODELS").map_or_else(
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.models")),
        PathBuf::from,
    );
    let path = folder.join("archs").join(name);
    if !path.exists() {
        eprintln!("SKIPPED: {} is not there (scripts/fetch-test-models --archs)", path.display());
        return None;
    }
    Some(path)
}

fn vectors(model: &PathBuf, more: &[&str], lines: &str) -> Vec<Vec<f64>> {
    let mut c = kjit();
    c.arg("embed")
        .arg(model)
        .args(["--jsonl", "--device", "cpu", "-q"])
        .args(more)
        .write_stdin(lines);
    let numbers = |line: &str| -> Vec<f64> {
        let line: Value = serde_json::from_str(line).unwrap();
        line.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
    };
    stdout(&mut c).lines().map(numbers).collect()
}

fn length(v: &[f64]) -> f64 {
    v.iter().map(|x| x * x).sum::<f64>().sqrt()
}

fn cosine(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>() / length(a) / length(b)
}

#[test]
fn embedding_depends_only_on_its_line() {
    let smollm2 = smollm2();
    let texts = [
        "\"The cat sits on the mat.\"",
        "\"A cat is sitting on a mat.\"",
        "\"Interest rates rose by a quarter of a percent.\"",
    ];
    let mean = ["--pooling", "mean"];
    let all = vectors(&smollm2, &mean, &texts.join("\n"));
    assert_eq!(all.iter().map(Vec::len).collect::<Vec<_>>(), [576; 3]);
    for (text, vector) in texts.iter().zip(&all) {
        assert_eq!(&vectors(&smollm2, &mean, text)[0], vector, "{text}");
    }
    // Vectors of texts with the same meaning are closer.
    assert!(
        cosine(&all[0], &all[1]) > cosine(&all[0], &all[2]) + 0.1,
        "{} {}",
        cosine(&all[0], &all[1]),
        cosine(&all[0], &all[2])
    );
    let normalised = vectors(&smollm2, &["--pooling", "mean", "--normalise"], &texts.join("\n"));
    for (n, v) in normalised.iter().zip(&all) {
        assert!(
            (length(n) - 1.0).abs() < 1e-6
                && (cosine(n, v) - 1.0).abs() < 1e-9
                && (length(v) - 1.0).abs() > 0.1
        );
    }
    let [first, last] =
        ["first", "last"].map(|how| vectors(&smollm2, &["--pooling", how], texts[0]));
    assert!(cosine(&first[0], &last[0]) < 0.99 && cosine(&last[0], &all[0]) < 0.99);
}

#[test]
fn encoder_uses_its_own_pooling_and_cannot_generate() {
    let Some(bert) = encoder("bert.gguf") else { return };
    let asked = vectors(&bert, &[], "\"abc\"\n\"\"\n");
    assert!(asked.len() == 2 && asked[0].len() == asked[1].len() && asked[0] != asked[1]);
    let ways = ["mean", "first", "last"].map(|how| vectors(&bert, &["--pooling", how], "\"abc\""));
    assert_eq!(
        ways.iter().filter(|v| v[0] == asked[0]).count(),
        1,
        "one of three ways is the model's"
    );
    let line =
        error_line(kjit().arg("run").arg(&bert).args(["--raw", "-p", "x", "--device", "cpu"]), 1);
    assert!(line.contains("'bert' is an encoder"), "{line}");
}

#[test]
fn embed_errors_name_line_or_choices() {
    let tiny = model("tiny/tiny-llama-q8_0.gguf");
    let embed = |more: &[&str], lines: &str| {
        let mut c = kjit();
        c.arg("embed")
            .arg(&tiny)
            .args(["--jsonl", "--device", "cpu", "-q"])
            .args(more)
            .write_stdin(lines.to_owned());
        c
    };
    let line = error_line(&mut embed(&[], "\"a\"\n"), 1);
    assert!(line.contains("'llama'") && line.contains("pooling_type"), "{line}");
    let mean = ["--pooling", "mean", "-c", "16"];
    for (lines, words) in [
        ("\"a\"\nnope\n", ["line 2", "not JSON"]),
        ("\"a\"\n[1]\n", ["line 2", "not a JSON string"]),
        (
            "\"a\"\n\"b b b b b b b b b b b b b b b b b b b b b b b b b b b b b b b b b b b b b b \
             b b b\"\n",
            ["line 2", "16"],
        ),
    ] {
        let line = error_after_output(&mut embed(&mean, lines));
        assert!(words.iter().all(|w| line.contains(w)), "{line}");
    }
    let wrong = embed(&["--pooling", "max"], "").assert().code(2).get_output().clone();
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("max"));
}
