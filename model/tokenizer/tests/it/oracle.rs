//! Compares ids and texts of every reference vocabulary with llama.cpp
//! (tests/data/oracle/README.md).

use std::path::PathBuf;

use crate::it::support::files::model_path;
use kjit_gguf::Gguf;
use kjit_tokenizer::{DecodeOptions, EncodeOptions, Limit, Stopped, Tokenizer, Vocabulary};
use serde_json::Value;

/// Reads a file of the oracle.
pub fn oracle(name: &str) -> Value {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/data/oracle/tokenizer")
        .join(name);
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Decodes hexadecimal digits.
pub fn unhex(hex: &str) -> Vec<u8> {
    (0..hex.len() / 2).map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap()).collect()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// Compares all data that the oracle has for a vocabulary.
fn check(name: &str, file: &str) {
    let Some(path) = model_path(file) else { return };
    let tokenizer = Tokenizer::from_gguf(&Gguf::open(path).unwrap()).unwrap();
    let expected = oracle(&format!("{name}.json"));
    let id = |key: &str| expected[key].as_i64().and_then(|id| u32::try_from(id).ok());
    assert_eq!(tokenizer.n_vocab() as u64, expected["n_vocab"].as_u64().unwrap());
    assert_eq!(tokenizer.add_bos(), expected["add_bos"].as_bool().unwrap());
    assert_eq!(tokenizer.add_eos(), expected["add_eos"].as_bool().unwrap());
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (id("bos"), id("eos")));
    assert_eq!(tokenizer.eog_ids(), ids(&expected["eog_ids"]));
    // If the end of turn could be several tokens, the reference uses the first token of its hash
    // table.
    assert_eq!(tokenizer.eot().is_some(), id("eot").is_some());
    assert!(tokenizer.eot().is_none_or(|eot| tokenizer.is_eog(eot)));

    let strings = oracle("strings.json");
    let cases = expected["cases"].as_array().unwrap();
    // The vocabulary-only files lack the two renderings of `special`. If they exist, they differ by
    // BOS only.
    let has_special_texts =
        cases.iter().any(|case| case.get("detok_special_rendered_hex").is_some());
    assert_eq!(cases.len(), strings["strings"].as_array().unwrap().len());
    for (case, string) in cases.iter().zip(strings["strings"].as_array().unwrap()) {
        assert_eq!(case["id"], string["id"]);
        let text = unhex(string["hex"].as_str().unwrap());
        let what = format!("{name}, string {}: {:?}", case["id"], String::from_utf8_lossy(&text));
        let (plain, special) = (ids(&case["plain"]), ids(&case["special"]));
        assert_eq!(tokenizer.encode(&text, EncodeOptions::PLAIN), plain, "plain, {what}");
        assert_eq!(tokenizer.encode(&text, EncodeOptions::PROMPT), special, "special, {what}");

        // A text within the limit is accepted, by its bytes and by its number of tokens. With a
        // limit of one token less it is refused.
        for (options, ids) in [(EncodeOptions::PLAIN, &plain), (EncodeOptions::PROMPT, &special)] {
            let within = |most| {
                tokenizer.encode_within(
                    &text,
                    options,
                    &Limit { most: Some(most), ..Limit::default() },
                )
            };
            assert_eq!(within(ids.len()).as_ref(), Ok(ids), "within, {what}");
            if let Some(fewer) = ids.len().checked_sub(1) {
                let least = within(fewer);
                assert!(
                    matches!(least, Err(Stopped::TooMany { least }) if least > fewer),
                    "{least:?}, {what}"
                );
            }
        }

        let same_unless = |key: &str| case[key].as_str().map_or(text.clone(), unhex);
        let decoded = tokenizer.decode(&plain).unwrap();
        assert_eq!(decoded, same_unless("detok_plain_hex"), "detok_plain, {what}");
        if !has_special_texts {
            continue;
        }
        let stripped = DecodeOptions { remove_special: true, ..DecodeOptions::default() };
        let decoded = tokenizer.decode_with(&special, stripped).unwrap();
        assert_eq!(
            decoded,
            same_unless("detok_special_stripped_hex"),
            "detok_special_stripped, {what}"
        );
        let decoded = tokenizer.decode(&special).unwrap();
        assert_eq!(
            decoded,
            same_unless("detok_special_rendered_hex"),
            "detok_special_rendered, {what}"
        );
    }
}

#[test]
fn smollm2_matches_reference_ids() {
    check("smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf");
}

#[test]
fn gemma_3_matches_reference_ids() {
    check("gemma3", "gemma-3-270m-q4_k_m.gguf");
}

#[test]
fn gpt_2_matches_reference_ids() {
    check("vocab_gpt_2", "vocab/ggml-vocab-gpt-2.gguf");
}

#[test]
fn llama_3_matches_reference_ids() {
    check("vocab_llama_bpe", "vocab/ggml-vocab-llama-bpe.gguf");
}

#[test]
fn deepseek_llm_matches_reference_ids() {
    check("vocab_deepseek_llm", "vocab/ggml-vocab-deepseek-llm.gguf");
}

#[test]
fn llama_2_matches_reference_ids() {
    check("vocab_llama_spm", "vocab/ggml-vocab-llama-spm.gguf");
}

#[test]
fn phi_3_matches_reference_ids() {
    check("vocab_phi_3", "vocab/ggml-vocab-phi-3.gguf");
}

#[test]
fn bert_bge_matches_reference_ids() {
    check("vocab_bert_bge", "vocab/ggml-vocab-bert-bge.gguf");
}

/// A message is split at each position inside a control token's text, because templates join parts.
#[test]
fn literal_text_ignores_control_tokens() {
    let plain = EncodeOptions::PLAIN;
    let files = [
        "vocab/ggml-vocab-gpt-2.gguf",
        "vocab/ggml-vocab-llama-bpe.gguf",
        "vocab/ggml-vocab-llama-spm.gguf",
        "vocab/ggml-vocab-phi-3.gguf",
        "vocab/ggml-vocab-bert-bge.gguf",
        "gemma-3-270m-q4_k_m.gguf",
    ];
    let mut seen = 0;
    for file in files {
        let Some(path) = model_path(file) else { continue };
        let tokenizer = Tokenizer::from_gguf(&Gguf::open(path).unwrap()).unwrap();
        let read = |prompt: &str| {
            let ids = tokenizer.encode_literal_chat_within(prompt, &Limit::default()).unwrap();
            let bos = tokenizer.bos().filter(|bos| tokenizer.add_bos() && ids[0] == *bos);
            ids[usize::from(bos.is_some())..].to_vec()
        };
        let controls = (0..tokenizer.n_vocab() as u32)
            .filter(|&id| tokenizer.is_control(id).unwrap())
            .filter_map(|id| String::from_utf8(tokenizer.token_text(id).unwrap().to_vec()).ok());
        for spelling in controls.take(300) {
            let text = format!("Say {spelling}{spelling} now {spelling}");
            let expected = tokenizer.encode(text.as_bytes(), plain);
            for at in (0..=text.len()).filter(|&at| text.is_char_boundary(at)) {
                let (a, b) = text.split_at(at);
                let prompt = format!("{}{}", tokenizer.literal(a), tokenizer.literal(b));
                assert_eq!(read(&prompt), expected, "{file}: {a:?} + {b:?}");
                seen += 1;
            }
            // The marks around literal text are interpreted. A mark in the text of a user is not
            // interpreted.
            let open = tokenizer.literal("\u{FDD1}a");
            assert_eq!(read(&format!("{open}")), tokenizer.encode("\u{FFFD}a".as_bytes(), plain));
            let marked = format!("{spelling}{}", tokenizer.literal(&spelling));
            let count = |ids: &[u32]| {
                ids.iter()
                    .filter(|id| tokenizer.token_text(**id).unwrap() == spelling.as_bytes())
                    .count()
            };
            let all = tokenizer.encode_literal_chat_within(&marked, &Limit::default()).unwrap();
            let markup = tokenizer.encode_chat(&spelling);
            assert_eq!(count(&all), count(&markup), "{marked:?}");
        }
    }
    if seen == 0 {
        eprintln!("SKIPPED: no vocabulary was found (scripts/fetch-test-models)");
    }
}

/// Vocabularies of other kinds that were created for this test
/// (tests/data/oracle/tokenizer/make_llama.py), and T5's real vocabulary.
#[test]
fn unigram_rwkv_and_plamo_match_reference_ids() {
    let oracle = oracle("models.json");
    let texts: Vec<Vec<u8>> =
        oracle["texts"].as_array().unwrap().iter().map(|t| unhex(t.as_str().unwrap())).collect();
    let check = |name: &str, tokenizer: &Tokenizer, expected: &Value| {
        let list = |key: &str| expected[key].as_array().unwrap().clone();
        let mut wrong = Vec::new();
        for (((text, plain), special), decoded) in
            texts.iter().zip(list("plain")).zip(list("special")).zip(list("decoded"))
        {
            let ours = tokenizer.encode(text, EncodeOptions::PLAIN);
            let what = String::from_utf8_lossy(text).into_owned();
            if ours != ids(&plain) {
                wrong.push(format!("{what:?}: got {ours:?}, expected {plain}"));
            } else if tokenizer.decode(&ours).unwrap() != unhex(decoded.as_str().unwrap()) {
                wrong.push(format!(
                    "{what:?}: got {:?}, expected {decoded}",
                    String::from_utf8_lossy(&tokenizer.decode(&ours).unwrap())
                ));
            }
            let ours = tokenizer.encode(text, EncodeOptions::PROMPT);
            if ours != ids(&special) {
                wrong.push(format!("special, {what:?}: got {ours:?}, expected {special}"));
            }
        }
        assert!(
            wrong.is_empty(),
            "{name}: {} differ\n{}",
            wrong.len(),
            wrong[..wrong.len().min(20)].join("\n")
        );
    };
    for model in oracle["models"].as_array().unwrap() {
        let texts: Vec<&str> =
            model["tokens"].as_array().unwrap().iter().map(|t| t.as_str().unwrap()).collect();
        let numbers = |key: &str| model[key].as_array().cloned();
        let vocabulary = Vocabulary {
            model: model["name"].as_str().unwrap(),
            tokens: texts.iter().map(|t| t.as_bytes()).collect(),
            types: numbers("types")
                .map(|all| all.iter().map(|n| n.as_i64().unwrap() as i32).collect()),
            scores: numbers("scores")
                .map(|all| all.iter().map(|x| x.as_f64().unwrap() as f32).collect()),
            ..Default::default()
        };
        check(vocabulary.model, &Tokenizer::new(&vocabulary).unwrap(), model);
    }
    let Some(path) = model_path("vocab/ggml-vocab-nomic-bert-moe.gguf") else { return };
    check(
        "nomic-bert-moe",
        &Tokenizer::from_gguf(&Gguf::open(path).unwrap()).unwrap(),
        &oracle["nomic_bert_moe"],
    );
}
