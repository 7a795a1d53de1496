//! Compares the vocabulary of a folder's `tokenizer.json` with the GGUF file of the same model.

use crate::it::oracle::{oracle, unhex};
use crate::it::support::as_folder::tokenizer;
use crate::it::support::files::model_path;
use crate::it::support::folder::{Folder, post_processor};
use crate::it::support::opened::{refused, written};
use kjit_gguf::Gguf;
use kjit_tokenizer::{EncodeOptions, Tokenizer};
use serde_json::{Value, json};

/// Asserts that the vocabularies of the folder and the file give the same ids for the texts of the
/// tokenizers' oracle.
fn same_ids(name: &str) {
    let Some(path) = model_path(name) else { return };
    let file = Gguf::open(path).unwrap();
    let (json, config) = tokenizer(&file);
    let tokens = file.strings("tokenizer.ggml.tokens").unwrap().len() as u64;
    let mut folder = Folder::small("llama");
    // One head of two elements: everything except the vocabulary is as small as possible.
    for key in ["num_attention_heads", "num_key_value_heads", "num_hidden_layers"] {
        folder.config[key] = json!(1);
    }
    for key in ["hidden_size", "head_dim", "intermediate_size"] {
        folder.config[key] = json!(2);
    }
    (folder.config["vocab_size"], folder.config["tie_word_embeddings"]) =
        (json!(tokens), json!(true));
    folder.config.as_object_mut().unwrap().remove("eos_token_id");
    folder.tensors.retain(|(name, ..)| !name.contains("layers.1.") && name != "lm_head.weight");
    for (name, _, shape, bytes) in &mut folder.tensors {
        let rows = if name.contains("embed") { tokens } else { 2 };
        *shape = if shape.len() == 2 { vec![rows, 2] } else { vec![2] };
        *bytes = vec![0; shape.iter().product::<u64>() as usize * 2];
    }
    (folder.tokenizer, folder.others) = (json, vec![("tokenizer_config.json", config)]);
    let (_dir, opened) = written(&folder, 1);
    let [theirs, ours] = [&file, &*opened].map(|file| Tokenizer::from_gguf(file).unwrap());
    assert_eq!(ours.n_vocab(), theirs.n_vocab());
    assert_eq!(
        (ours.bos(), ours.eos(), ours.add_bos()),
        (theirs.bos(), theirs.eos(), theirs.add_bos()),
        "{name}"
    );
    let strings = oracle("strings.json");
    let mut ids = 0;
    for string in strings["strings"].as_array().unwrap() {
        let text = unhex(string["hex"].as_str().unwrap());
        for how in [EncodeOptions::PLAIN, EncodeOptions::PROMPT] {
            let want = theirs.encode(&text, how);
            assert_eq!(
                ours.encode(&text, how),
                want,
                "{name}: {:?}",
                String::from_utf8_lossy(&text)
            );
            assert_eq!(ours.decode(&want).unwrap(), theirs.decode(&want).unwrap(), "{name}");
            ids += want.len();
        }
    }
    assert!(ids > 1000, "{ids}");
}

#[test]
fn llama_2_tokenizer_json_has_reference_ids() {
    same_ids("vocab/ggml-vocab-llama-spm.gguf");
}

#[test]
fn llama_3_tokenizer_json_has_reference_ids() {
    same_ids("vocab/ggml-vocab-llama-bpe.gguf");
}

#[test]
fn qwen_2_tokenizer_json_has_reference_ids() {
    same_ids("vocab/ggml-vocab-qwen2.gguf");
}

#[test]
fn gpt_2_and_smollm2_tokenizer_jsons_have_reference_ids() {
    same_ids("vocab/ggml-vocab-gpt-2.gguf");
    same_ids("SmolLM2-135M-Instruct.Q4_1.gguf");
}

#[test]
fn post_processor_appends_eos_token() {
    let mut folder = Folder::small("qwen3");
    folder.tokenizer["post_processor"] = post_processor(None, Some("<end>"));
    folder.added(json!({ "id": 260, "content": "<end>", "special": true }));
    let (_dir, file) = written(&folder, 1);
    let tokenizer = Tokenizer::from_gguf(&file).unwrap();
    assert_eq!((tokenizer.eos(), tokenizer.eog_ids()), (Some(260), &[257, 260][..]));
    assert_eq!(tokenizer.encode(b"he", EncodeOptions::PROMPT), [256, 258, 260]);
    assert!(file.remarks()[0].starts_with("'<end>' is the eos token"), "{:?}", file.remarks());
    // The flag in tokenizer_config.json has priority.
    folder.others[0].1["add_eos_token"] = json!(false);
    let (_dir, file) = written(&folder, 1);
    let tokenizer = Tokenizer::from_gguf(&file).unwrap();
    assert_eq!((tokenizer.eos(), tokenizer.add_eos(), file.remarks().len()), (Some(257), false, 0));
}

#[test]
fn added_tokens_strip_whitespace_by_their_flags() {
    for (lstrip, rstrip, want) in [(false, false, 5), (true, false, 4), (true, true, 3)] {
        let mut folder = Folder::small("qwen3");
        folder.added(json!({ "id": 260, "content": "<x>", "lstrip": lstrip, "rstrip": rstrip }));
        let (_dir, file) = written(&folder, 1);
        let ids = Tokenizer::from_gguf(&file).unwrap().encode(b"he <x> he", EncodeOptions::PLAIN);
        assert_eq!((ids.len(), ids[0], ids[ids.len() - 1]), (want, 258, 258), "{ids:?}");
        assert_eq!(
            ids.iter().position(|id| *id == 260),
            Some(if lstrip { 1 } else { 2 }),
            "{ids:?}"
        );
    }
}

/// A SentencePiece vocabulary: bytes, and these pieces from id 258 on.
fn pieces(texts: &[&str], merges: &[[&str; 2]]) -> Folder {
    let mut folder = Folder::small("llama");
    let mut vocab: serde_json::Map<String, Value> =
        (0..256).map(|b| (format!("<0x{b:02X}>"), json!(b))).collect();
    texts
        .iter()
        .zip(258..)
        .for_each(|(text, id)| drop(vocab.insert((*text).to_owned(), json!(id))));
    folder.tokenizer["normalizer"] =
        json!({ "type": "Replace", "pattern": { "String": " " }, "content": "\u{2581}" });
    folder.tokenizer["pre_tokenizer"] = Value::Null;
    folder.tokenizer["model"] =
        json!({ "type": "BPE", "byte_fallback": true, "vocab": vocab, "merges": merges });
    folder
}

#[test]
fn only_merges_join_pieces() {
    let texts = ["a", "b", "c", "ab", "abc", "ca", "bc"];
    let folder = pieces(&texts, &[["a", "b"], ["ab", "c"], ["b", "c"]]);
    let (_dir, file) = written(&folder, 1);
    let tokenizer = Tokenizer::from_gguf(&file).unwrap();
    // "ca" is a token, but no merge produces it.
    for (text, want) in
        [("abc", &[262][..]), ("cab", &[260, 261]), ("ca", &[260, 258]), ("bca", &[264, 258])]
    {
        assert_eq!(tokenizer.encode(text.as_bytes(), EncodeOptions::PLAIN), want, "{text}");
    }
    // Two merges that produce one token, with the merge of another token between them.
    for (merges, good) in [
        ([["a", "b"], ["b", "c"], ["ab", "c"], ["a", "bc"]], true),
        ([["a", "b"], ["ab", "c"], ["b", "c"], ["a", "bc"]], false),
    ] {
        let dir = tempfile::tempdir().unwrap();
        pieces(&texts, &merges).write(dir.path(), 1);
        match good {
            true => drop(Gguf::open(dir.path()).unwrap()),
            false => {
                let line = refused(dir.path());
                assert!(
                    line.contains(
                        "token 'abc' has the id 262: its merges are not adjacent (merge 3)"
                    ),
                    "{line}"
                );
            }
        }
    }
    // Settings that kjit does not follow are reported.
    let mut folder = pieces(&texts, &[["a", "b"]]);
    folder.tokenizer["added_tokens"][0]["normalized"] = json!(true);
    let (_dir, file) = written(&folder, 1);
    assert!(file.remarks()[0].contains("1 added tokens, such as '<s>',"), "{:?}", file.remarks());
}
