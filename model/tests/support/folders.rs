//! Compares a folder of safetensors of each type on a device with the CPU. Tests of simulated
//! devices use this module as well.

use super::folder::Folder;
use super::near::off;
use super::side_by_side;
use super::solo_session::SoloSession;
use kjit_engine::{Device, Engine};
use kjit_model::gguf::Gguf;
use kjit_model::sample::SampleOptions;
use kjit_model::session::{KvType, OpenOptions, Want};
use std::sync::Arc;

/// Compares prompts, tokens and greedy answers of each type of folder with the CPU: once with all
/// weights on the device, and once with layers streamed from the files.
pub fn assert_matches_host(engine: &Engine, device: &Device) {
    for (model_type, files, stream) in [
        ("llama", 1, false),
        ("mistral", 3, true),
        ("qwen2", 2, false),
        ("qwen3", 1, true),
        ("gemma3_text", 3, false),
        ("gemma3_text", 2, true),
    ] {
        let dir = tempfile::tempdir().unwrap();
        // The matrices are large enough for matrix units, so that prompts use them.
        Folder::wide(model_type, 64).write(dir.path(), files);
        let file = Arc::new(Gguf::open(dir.path()).unwrap());
        let graph = kjit_model::arch::build(&file).unwrap();
        let options = OpenOptions {
            context: Some(64),
            kv: KvType::F16,
            threads: 2,
            prefill_chunk: Some(16),
            ..OpenOptions::default()
        };
        let precise = OpenOptions { precise: true, ..options.clone() };
        let mut host = SoloSession::cpu(&file, &graph, &precise);
        let mut gpu =
            SoloSession::gpu(engine, device, &file, &graph, &OpenOptions { stream, ..options });
        let ids: Vec<u32> = (0..24).map(|i| (i * 37 + 11) % 256).collect();
        let want = host.feed(&ids, Want::All).unwrap();
        let prompt = off(&gpu.feed(&ids, Want::All).unwrap(), &want);
        gpu.truncate(0);
        let rows: Vec<f32> =
            ids.iter().flat_map(|id| gpu.feed(&[*id], Want::All).unwrap()).collect();
        let tokens = off(&rows, &want);
        gpu.truncate(0);
        let answer = gpu.generate(&ids, 8, SampleOptions::default());
        let gap = side_by_side::gap(&mut host, &[ids, answer].concat(), 24);
        let found = format!(
            "{model_type} in {files} files, streamed {stream}: \
             off by {prompt:.1e} as a prompt, {tokens:.1e} token by token, a token {gap:.1e} below"
        );
        eprintln!("{found}");
        assert!(prompt < 6e-3 && tokens < 6e-3 && gap < 0.1, "{found}");
    }
}
