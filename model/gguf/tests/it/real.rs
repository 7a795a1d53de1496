//! The reader on the real model that most other tests use.

use crate::it::support::files::model_path;
use kjit_gguf::Gguf;

const SMOLLM2: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

#[test]
fn smollm2_matches_its_inventory() {
    let Some(path) = model_path(SMOLLM2) else { return };
    let g = Gguf::open(&path).unwrap();
    assert_eq!((g.version(), g.alignment(), g.file_bytes()), (3, 32, 98_362_432));
    assert_eq!(g.architecture().unwrap(), "llama");
    assert_eq!(g.require_u32("llama.block_count").unwrap(), 30);
    assert_eq!(g.require_f32("llama.attention.layer_norm_rms_epsilon").unwrap(), 1e-5);
    assert_eq!(g.per_layer_u32("llama.attention.head_count_kv", 30).unwrap(), vec![3; 30]);
    assert!(!g.require_bool("tokenizer.ggml.add_space_prefix").unwrap());
    let tokens: Vec<&[u8]> = g.strings("tokenizer.ggml.tokens").unwrap().collect();
    assert_eq!((tokens.len(), tokens[1]), (49152, &b"<|im_start|>"[..]));
    assert_eq!(g.i32s("tokenizer.ggml.token_type").unwrap().len(), 49152);
    assert_eq!(g.strs("tokenizer.ggml.merges").unwrap().len(), 48900);

    assert_eq!(g.tensors().len(), 272);
    let embeddings = g.tensor("token_embd.weight").unwrap();
    assert_eq!((embeddings.dims, embeddings.ty.name), (&[576, 49152][..], "Q8_0"));
    assert_eq!(embeddings.data.len(), 576 / 32 * 34 * 49152);
    assert!(embeddings.data.as_ptr().addr().is_multiple_of(32));
    let norm = g.tensor("output_norm.weight").unwrap();
    let values = norm.data.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()));
    assert_eq!(values.clone().count(), 576);
    assert!(values.into_iter().all(|v| v.is_finite() && v != 0.0));

    let summary = g.summary();
    assert_eq!(summary.data_start, 1_785_664);
    let mix: Vec<(String, usize)> =
        summary.mix.iter().map(|m| (m.ty.to_string(), m.tensors)).collect();
    assert_eq!(mix, [("Q4_1".to_owned(), 210), ("Q8_0".into(), 1), ("F32".into(), 61)]);
    assert_eq!(summary.elements, 134_515_008);
}
