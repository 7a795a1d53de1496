//! Tests of the pre-tokenizers.

use super::*;
use crate::chars::normalize;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

fn pieces(name: &str, text: &str) -> Vec<String> {
    let mut out = Vec::new();
    let text = normalize(text.as_bytes());
    Pretokenizer::find(name)
        .unwrap()
        .split(&text, &mut |piece| out.push(String::from_utf8(piece.to_vec()).unwrap()));
    out
}

#[test]
fn gpt_2_keeps_space_with_the_following_word() {
    assert_eq!(
        pieces("gpt-2", "I'll go  to 12 x's, OK?\n\n "),
        ["I", "'ll", " go", " ", " to", " 12", " x", "'s", ",", " OK", "?", "\n\n "]
    );
}

#[test]
fn llama_3_splits_numbers_in_threes_qwen_2_singly() {
    assert_eq!(
        pieces("llama-bpe", "a 12345 'S\r\n x"),
        ["a", " ", "123", "45", " '", "S", "\r\n", " x"]
    );
    assert_eq!(pieces("qwen2", "a 12345"), ["a", " ", "1", "2", "3", "4", "5"]);
}

#[test]
fn gpt_4o_splits_before_capital_after_lowercase() {
    assert_eq!(pieces("gpt-4o", "camelCaseXYZ don'T"), ["camel", "Case", "XYZ", " don'T"]);
    assert_eq!(pieces("tekken", "ABCdéF 12"), ["ABCdé", "F", " ", "1", "2"]);
    assert_eq!(pieces("tekken", "ÀBC"), ["À", "BC"]);
}

#[test]
fn pre_tokenizers_preserve_every_byte() {
    let alphabet: Vec<char> =
        "aZé好9½ \t\n\r\u{3000}\u{85}.'sl$~\u{301}\u{0}\u{FFFD}😀-”".chars().collect();
    let mut seed = 88172645463325252u64;
    for name in Pretokenizer::names() {
        for len in 0..200 {
            let text: String = (0..len)
                .map(|_| {
                    seed ^= seed << 13;
                    seed ^= seed >> 7;
                    seed ^= seed << 17;
                    alphabet[(seed >> 32) as usize % alphabet.len()]
                })
                .collect();
            let pieces = pieces(name, &text);
            assert_eq!(pieces.concat(), text, "{name}");
            assert!(pieces.iter().all(|piece| !piece.is_empty()), "{name}: {text:?}");
        }
    }
}

#[test]
fn pre_tokenizer_names_are_unique() {
    let mut names: Vec<_> = Pretokenizer::names().collect();
    let n = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), n);
}

/// The pieces of all reference texts (tests/data/oracle/tokenizer/make_llama.py).
#[test]
fn pieces_match_reference() {
    let path =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/oracle/tokenizer/pieces.json");
    let oracle: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let unhex = |hex: &str| -> Vec<u8> {
        (0..hex.len() / 2)
            .map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap())
            .collect()
    };
    let texts: Vec<Vec<u8>> =
        oracle["texts"].as_array().unwrap().iter().map(|t| unhex(t.as_str().unwrap())).collect();
    let mut wrong = Vec::new();
    for (name, all) in oracle["lengths"].as_object().unwrap() {
        let all = all.as_array().unwrap();
        assert_eq!(all.len(), texts.len());
        for (text, lengths) in texts.iter().zip(all) {
            let text = normalize(text);
            let mut ours = Vec::new();
            Pretokenizer::find(name).unwrap().split(&text, &mut |piece| ours.push(piece.len()));
            let lengths: Vec<usize> =
                lengths.as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as usize).collect();
            if ours != lengths {
                wrong.push(format!(
                    "{name}: {:?}: got {ours:?}, expected {lengths:?}",
                    String::from_utf8_lossy(&text)
                ));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} differ:\n{}",
        wrong.len(),
        wrong[..wrong.len().min(40)].join("\n")
    );
}

#[test]
fn every_reference_name_is_known() {
    let names: std::collections::HashSet<_> = Pretokenizer::names().collect();
    assert_eq!(names.len(), Pretokenizer::names().count(), "a name occurs twice");
    let newer = "minicpm5 spark2_5 youtu \
        jais-2 granite-embed-multi-311m sarvam-moe whitespace megrez poro-chat \
        viking bloom gpt3-finnish exaone-moe chameleon granite-embed-multi-97m tiny_aya cohere2moe \
        superbpe bailingmoe bailingmoe2 llada-moe seed-coder kimi-k2 ufakzeka afmoe laguna";
    for name in newer.split_whitespace() {
        assert!(names.contains(name), "{name}");
    }
    assert!(names.len() >= 91);
}

/// Processor time of this thread, so other work on the machine has no effect. Systems without /proc
/// use the time of day.
fn now() -> Duration {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    let spent = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanos = spent.and_then(|line| line.split(' ').next()?.parse().ok());
    nanos.map_or_else(|| START.elapsed(), Duration::from_nanos)
}

/// Tests that no stage is quadratic. A stage that scans to the end of a run at each of its pieces
/// would take a thousand times as long.
#[test]
fn pre_tokenizer_stages_are_not_quadratic() {
    for name in Pretokenizer::names() {
        for run in [
            "1",
            " ",
            "\n",
            "a",
            "A",
            "'",
            "中",
            "é",
            "(",
            "<sentinel:",
            "IMGIMG",
            "\u{301}",
            "a b ",
            "  \n",
        ] {
            let time = |bytes: usize| {
                let text = run.repeat(bytes / run.len());
                (0..3)
                    .map(|_| {
                        let start = now();
                        let mut n = 0;
                        Pretokenizer::find(name)
                            .unwrap()
                            .split(text.as_bytes(), &mut |piece| n += piece.len());
                        assert_eq!(n, text.len());
                        now() - start
                    })
                    .min()
                    .unwrap()
            };
            let (short, long) = (time(20_000), time(400_000));
            assert!(
                long < short * 120 + Duration::from_millis(60),
                "{name}, {run:?}: {short:?}, then {long:?}"
            );
        }
    }
}
