//! Rows of images in prompts on simulated AMD devices: the host's logits and answers, for chunks of
//! text and rows, several sequences in one pass, cached prefixes and the kernel that runs a whole
//! token.

use crate::common::{TEMPORARY, WORKER};
use kjit_model::gguf::Gguf;
use kjit_model::session::{OpenOptions, Persistence, Session};
use kjit_tests::files::model_path;
use kjit_tests::image_prompts;
use kjit_tests::paged::PAGE;
use kjit_tests::simulator::{Setup, Simulated, cache, engine};
use kjit_tests::solo_session::SoloSession;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// `most` bounds the rows of an image.
fn as_the_host(test: &str, name: &str, arch: &str, most: usize, options: OpenOptions) {
    let Some(path) = model_path(name) else { return };
    let setup = Setup::devices(arch).set("HIPSIM_CLANG", "none").set("HIPSIM_OPTIMISE", "-Og");
    setup.run(test, TEMPORARY, || {
        let gguf = Arc::new(Gguf::open(&path).unwrap());
        let graph = kjit_model::arch::build(&gguf).unwrap();
        let options = OpenOptions { threads: 2, ..options };
        let precise = OpenOptions { precise: true, paged: None, ..options.clone() };
        let mut host = SoloSession::cpu(&gguf, &graph, &precise);
        let engine = engine(&cache(TEMPORARY).join("none"), WORKER, "hiprtc");
        let device = engine.device("rocm:0").unwrap();
        let session = Session::on_gpu(&engine, &device, &gguf, graph.clone(), &options).unwrap();
        Simulated::here().poison(session.gpu().unwrap().plan());
        let seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
        // As for prompts of tokens: products and attention in f16.
        let (model, bounds, whole) = ((&*gguf, &graph), (most, 2e-2), options.image_rows > 0);
        image_prompts::assert_matches_host(session, &mut host, model, bounds, whole, seed);
        assert_eq!(Simulated::here().fault(0), "");
    });
}

#[test]
fn images_in_packed_prompts_match_host_on_gfx1100() {
    as_the_host(
        "simulated_images::images_in_packed_prompts_match_host_on_gfx1100",
        "tiny/tiny-llama-q4_k_m.gguf",
        "gfx1100",
        60,
        OpenOptions {
            sequences: 4,
            prefill_chunk: Some(256),
            paged: Some(12 * PAGE),
            ..OpenOptions::new(300)
        },
    );
}

#[test]
fn images_across_chunks_match_host_on_gfx942() {
    as_the_host(
        "simulated_images::images_across_chunks_match_host_on_gfx942",
        "tiny/tiny-gemma3-q8_0.gguf",
        "gfx942:sramecc+:xnack-",
        24,
        OpenOptions {
            sequences: 4,
            prefill_chunk: Some(16),
            persistent: Persistence::On,
            ..OpenOptions::new(128)
        },
    );
}

/// The rows of an image attend to each other, as in Gemma 3.
#[test]
fn whole_images_match_host_on_gfx1100() {
    as_the_host(
        "simulated_images::whole_images_match_host_on_gfx1100",
        "tiny/tiny-gemma3-q8_0.gguf",
        "gfx1100",
        20,
        OpenOptions {
            sequences: 4,
            prefill_chunk: Some(32),
            paged: Some(12 * PAGE),
            image_rows: 20,
            ..OpenOptions::new(128)
        },
    );
}
