//! Tests the layers of a model in several stages on the CPU. The results are bit for bit equal to
//! the results with one stage.

use crate::it::support::files::{model_path, tiny_model};
use crate::it::support::story::{same, story};
use kjit_engine::{Config, Engine};
use kjit_model::gguf::Gguf;
use kjit_model::placement::{CutError, Layers, StageDevice};
use kjit_model::session::{OpenOptions, Session, SessionError};
use std::sync::Arc;

/// Sessions with one stage and with two or three stages on the CPU, and the file.
fn sessions(name: &str, options: &OpenOptions) -> Option<[Session; 2]> {
    let gguf = Arc::new(Gguf::open(model_path(name)?).unwrap());
    let graph = kjit_model::arch::build(&gguf).unwrap();
    let layers = Layers::of(&graph).unwrap().len();
    // The cuts are not in the middle. There are three stages if there are enough layers.
    let mut counts = vec![1, layers - 1];
    if layers > 2 {
        counts = vec![1, layers - 2, 1];
    }
    let stages: Vec<(StageDevice, usize)> =
        counts.into_iter().map(|n| (StageDevice::Cpu, n)).collect();
    let engine = Engine::new(Config::new());
    let one = Session::on_cpu(Arc::clone(&gguf), graph.clone(), options).unwrap();
    let many = Session::on_stages(&engine, &stages, &gguf, graph, options).unwrap();
    assert_eq!(
        (one.n_vocab(), one.context(), one.kv()),
        (many.n_vocab(), many.context(), many.kv())
    );
    Some([one, many])
}

fn options(sequences: usize) -> OpenOptions {
    OpenOptions { threads: 2, sequences, prefill_chunk: Some(6), ..OpenOptions::new(96) }
}

fn bit_for_bit(name: &str, options: &OpenOptions) {
    let Some([mut one, mut many]) = sessions(name, options) else { return };
    let (want, got) = (story(&mut one), story(&mut many));
    same(name, &want, &got);
}

#[test]
fn cpu_stages_are_bit_identical_to_one_session() {
    for name in ["llama-q4_k_m", "qwen2-q8_0", "qwen3-q4_k_m", "gemma3-q8_0", "moe-q4_k_m"] {
        bit_for_bit(&format!("tiny/tiny-{name}.gguf"), &options(2));
    }
    let precise = OpenOptions { precise: true, ..options(2) };
    bit_for_bit("tiny/tiny-llama-q4_0.gguf", &precise);
    // Recurrent states cannot be truncated, so the tokens are run again through the previous
    // stages.
    for arch in ["mamba2", "falcon-h1", "deepseek2-lite", "qwen3next"] {
        bit_for_bit(&format!("archs/{arch}.gguf"), &options(2));
    }
}

#[test]
fn unsplittable_model_error_names_crossing_values() {
    let cut = |name: &str| {
        let gguf = Gguf::open(model_path(name)?).unwrap();
        Some(Layers::of(&kjit_model::arch::build(&gguf).unwrap()).map(|l| l.len()))
    };
    if let Some(found) = cut("archs/rwkv7.gguf") {
        let error = found.unwrap_err();
        assert!(matches!(error, CutError::Crossing { .. }), "{error:?}");
        assert!(error.to_string().contains("runs only on one device"), "{error}");
    }
    if let Some(found) = cut("archs/bert.gguf") {
        assert!(matches!(found, Err(CutError::Encoder { .. })), "{found:?}");
    }
    if let Some(found) = cut("archs/gemma3n.gguf") {
        assert!(found.is_err(), "{found:?}");
    }
}

#[test]
fn stages_must_cover_all_layers() {
    let Some(path) = tiny_model("tiny-llama-q4_0.gguf") else { return };
    let gguf = Arc::new(Gguf::open(&path).unwrap());
    let graph = kjit_model::arch::build(&gguf).unwrap();
    let n = Layers::of(&graph).unwrap().len();
    let engine = Engine::new(Config::new());
    for wrong in [vec![n], vec![n - 1], vec![n + 1], vec![0, n], vec![n, n]] {
        let right = wrong == [n];
        let stages: Vec<(StageDevice, usize)> =
            wrong.iter().map(|&n| (StageDevice::Cpu, n)).collect();
        let opened = Session::on_stages(&engine, &stages, &gguf, graph.clone(), &options(1));
        match opened {
            Ok(_) => assert!(right, "{wrong:?}"),
            Err(SessionError::Device(why)) => {
                assert!(!right && why.contains("layers in total"), "{why}")
            }
            Err(other) => panic!("{other}"),
        }
    }
}
