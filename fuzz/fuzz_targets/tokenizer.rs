//! Any bytes as a text, by a small vocabulary of each algorithm and by every pre-tokenizer: ids of
//! the vocabulary come out, and they decode.

#![no_main]

use kjit_tokenizer::{EncodeOptions, SpecialIds, Tokenizer, Vocabulary};
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

const PRE: &str = "default minicpm5 llama3 jais-2 dbrx qwen2 qwen35 seed-coder ufakzeka laguna \
    exaone-moe kimi-k2 youtu tiny_aya superbpe \
    bloom viking chameleon tekken gpt-4o granite-embed-multi-97m falcon deepseek-llm \
    deepseek-coder deepseek-v3 spark2_5 afmoe gemma4 \
    sarvam-moe whitespace gpt-2 smollm";

static ALL: LazyLock<Vec<Tokenizer>> = LazyLock::new(|| {
    let bytes: Vec<String> = (0..=255u8).map(|b| format!("<0x{b:02X}>")).collect();
    let words = ["<s>", "</s>", "<unk>", "a", "b", "ab", "\u{2581}", "\u{2581}a", "the", "1", "12", "é", "日", "\\x00"];
    let tokens: Vec<&[u8]> = words.iter().copied().chain(bytes.iter().map(String::as_str)).map(str::as_bytes).collect();
    let types: Vec<i32> = (0..tokens.len()).map(|id| if id < 3 { 3 } else if id < words.len() { 1 } else { 6 }).collect();
    let scores: Vec<f32> = (0..tokens.len()).map(|id| -(id as f32)).collect();
    let special = SpecialIds { bos: Some(0), eos: Some(1), unk: Some(2), sep: Some(1), ..Default::default() };
    let base = Vocabulary {
        tokens,
        types: Some(types),
        scores: Some(scores),
        merges: Some(vec![b"a b", b"\xE2\x96\x81 a"]),
        special,
        ..Default::default()
    };
    let models = ["llama", "bert", "t5", "rwkv", "plamo2"].map(|model| Vocabulary { model, ..base.clone() });
    let pre = PRE.split_whitespace().map(|pre| Vocabulary { model: "gpt2", pre: Some(pre), ..base.clone() });
    models.into_iter().chain(pre).map(|v| Tokenizer::new(&v).expect("a vocabulary of ours")).collect()
});

fuzz_target!(|bytes: &[u8]| {
    for tokenizer in ALL.iter() {
        for options in [EncodeOptions::PLAIN, EncodeOptions::PROMPT] {
            let ids = tokenizer.encode(bytes, options);
            tokenizer.decode(&ids).expect("ids of the vocabulary");
        }
    }
});
