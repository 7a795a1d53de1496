//! Tests that the time of tokenizing is proportional to the length of the text. The limits are
//! about ten times the measured times on two cores, and much smaller than the times of a quadratic
//! step (minutes for a megabyte).

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use crate::it::support::files::model_path;
use kjit_gguf::Gguf;
use kjit_tokenizer::{EncodeOptions, Limit, Stopped, Tokenizer};

const SMOLLM2: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
const FILES: [&str; 7] = [
    "vocab/ggml-vocab-nomic-bert-moe.gguf",
    SMOLLM2,
    "vocab/ggml-vocab-llama-bpe.gguf",
    "vocab/ggml-vocab-qwen2.gguf",
    "vocab/ggml-vocab-llama-spm.gguf",
    "vocab/ggml-vocab-deepseek-llm.gguf",
    "vocab/ggml-vocab-bert-bge.gguf",
];

fn each(check: impl Fn(&str, &Tokenizer)) {
    for name in FILES {
        let Some(path) = model_path(name) else { continue };
        check(name, &Tokenizer::from_gguf(&Gguf::open(path).unwrap()).unwrap());
    }
}

/// Processor time of this thread, so that other processes have little effect. Without Linux's /proc
/// it is wall time.
fn now() -> Duration {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    let spent = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanos = spent.and_then(|line| line.split(' ').next()?.parse().ok());
    nanos.map_or_else(|| START.elapsed(), Duration::from_nanos)
}

/// Tokenizes the text up to three times, and asserts that the best time is below a limit. Returns
/// the ids.
fn timed(what: &str, tokenizer: &Tokenizer, text: &[u8], limit: Duration) -> Vec<u32> {
    let mut times = Vec::new();
    loop {
        let start = now();
        let ids = tokenizer.encode(text, EncodeOptions::PROMPT);
        times.push(now() - start);
        if times.iter().any(|took| *took < limit) {
            return ids;
        }
        assert!(
            times.len() < 3,
            "{what}: {} bytes took {times:?}, more than {limit:?}",
            text.len()
        );
    }
}

/// Text with the frequencies of English letters, and with repeated words.
fn prose(bytes: usize) -> Vec<u8> {
    let mut seed = 0x2545_F491_4F6C_DD1Du64;
    let mut next = |n: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed >> 20) % n
    };
    let words: Vec<Vec<u8>> = (0..20_000)
        .map(|_| {
            (0..2 + next(9))
                .map(|_| b"eeetttaaoooiinnsshhrrdlucmfwypvbgkj"[next(35) as usize])
                .collect()
        })
        .collect();
    let mut text = Vec::with_capacity(bytes + 32);
    while text.len() < bytes {
        // A few words make up most of the text.
        let rank = next(20_000) * next(20_000) / 20_000;
        text.extend_from_slice(&words[rank as usize]);
        text.extend_from_slice(match next(20) {
            0 => b", ",
            1 => b".\n",
            2 => b" 1234 ",
            _ => b" ",
        });
    }
    text.truncate(bytes);
    text
}

#[test]
fn ten_megabytes_are_tokenized_below_two_seconds() {
    let text = prose(10_000_000);
    each(|name, tokenizer| {
        let ids = timed(name, tokenizer, &text, Duration::from_secs(2));
        assert!(ids.len() > 1_000_000, "{name}: {} ids", ids.len());
    });
}

#[test]
fn one_megabyte_word_is_not_quadratic() {
    let word: Vec<u8> =
        prose(1_300_000).into_iter().filter(u8::is_ascii_lowercase).take(1_000_000).collect();
    assert_eq!(word.len(), 1_000_000);
    let limit = Duration::from_secs(6);
    let same = |c: &str| c.repeat(1_000_000 / c.len()).into_bytes();
    each(|name, tokenizer| {
        timed(&format!("{name}, a word"), tokenizer, &word, limit);
        // The other runs use one byte-level and one SentencePiece vocabulary. Each represents its
        // kind.
        let runs: &[&str] = match name == SMOLLM2 || name.contains("spm") {
            true => &[
                " ",
                "\n",
                "a",
                "1",
                "\u{0}",
                "<|",
                "\u{3000}",
                "😀",
                "' ",
                "\u{301}",
                "<|im_end|>",
            ],
            false => &[" "],
        };
        for c in runs {
            let mut text = same(c);
            text.extend_from_slice(b"end");
            timed(&format!("{name}, {c:?}, then a word"), tokenizer, &text, limit);
        }
        timed(&format!("{name}, invalid UTF-8"), tokenizer, &[0xFF; 200_000], limit);
    });
}

#[test]
fn oversized_or_cancelled_text_is_refused_quickly() {
    let texts = [b" ".repeat(1 << 20), b"a".repeat(1 << 20), prose(1 << 20)];
    let (limit, left) = (Limit { most: Some(512), ..Limit::default() }, Limit::default());
    left.cancel.cancel();
    each(|name, tokenizer| {
        for (i, text) in texts.iter().enumerate() {
            let start = now();
            let got = tokenizer.encode_within(text, EncodeOptions::PROMPT, &limit);
            let took = now() - start;
            assert!(took < Duration::from_secs(1), "{name}, text {i}: {took:?}");
            match got {
                Err(Stopped::TooMany { least }) => {
                    assert!(least > 512, "{name}, text {i}: {least}")
                }
                // White space gives no tokens, and an unknown word gives one token.
                Ok(ids) => assert!(ids.len() < 10 && i < 2, "{name}, text {i}: {ids:?}"),
                stopped @ Err(_) => panic!("{stopped:?}"),
            }
        }
        for text in &texts[1..] {
            let start = now();
            assert_eq!(
                tokenizer.encode_within(text, EncodeOptions::PROMPT, &left),
                Err(Stopped::Cancelled),
                "{name}"
            );
            assert!(now() - start < Duration::from_secs(1), "{name}");
        }
    });
}

#[test]
fn vocabulary_of_128k_tokens_builds_below_0_3_seconds() {
    let Some(path) = model_path("vocab/ggml-vocab-llama-bpe.gguf") else { return };
    let best = (0..3).map(|_| {
        let start = now();
        let tokenizer = Tokenizer::from_gguf(&Gguf::open(&path).unwrap()).unwrap();
        assert_eq!(tokenizer.n_vocab(), 128_256);
        now() - start
    });
    let best = best.min().unwrap();
    assert!(best < Duration::from_millis(300), "{best:?}");
}
