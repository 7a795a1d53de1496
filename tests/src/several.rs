//! What the tests of several simulated devices set up alike.

use crate::files::model_path;
use crate::simulator::{Setup, cache, engine};
use kjit_engine::{Device, Engine};
use kjit_model::gguf::Gguf;
use kjit_model::graph::Graph;
use kjit_model::session::{KvType, OpenOptions};
use std::path::Path;
use std::sync::Arc;

/// As the tests of sequences side by side have it, so that the kernels are theirs.
#[must_use]
pub fn options(kv: KvType) -> OpenOptions {
    OpenOptions {
        context: Some(96),
        kv,
        precise: false,
        threads: 2,
        prefill_chunk: Some(16),
        sequences: 3,
        ..OpenOptions::default()
    }
}

/// These devices, comma-separated, whose kernels the host's compiler makes.
#[must_use]
pub fn setup(devices: &str) -> Setup {
    Setup::devices(devices).set("HIPSIM_CLANG", "none").set("HIPSIM_OPTIMISE", "-Og")
}

/// A model and an engine.
pub struct Several {
    /// The model's file.
    pub gguf: Arc<Gguf>,
    /// What it computes.
    pub graph: Graph,
    /// Over an empty cache.
    pub engine: Engine,
}

impl Several {
    /// Of this model, which is there; `temporary` and `worker` are the calling test's.
    ///
    /// # Panics
    /// When it is not, or is none.
    #[must_use]
    pub fn new(name: &str, temporary: &str, worker: &str) -> Several {
        Several::of(&model_path(name).unwrap(), temporary, worker)
    }

    /// The same of the model in this file.
    ///
    /// # Panics
    /// When it is none.
    #[must_use]
    pub fn of(path: &Path, temporary: &str, worker: &str) -> Several {
        let gguf = Arc::new(Gguf::open(path).unwrap());
        let graph = kjit_model::arch::build(&gguf).unwrap();
        Several { gguf, graph, engine: engine(&cache(temporary).join("none"), worker, "hiprtc") }
    }

    /// The first so many devices.
    ///
    /// # Panics
    /// When there are fewer.
    #[must_use]
    pub fn devices(&self, n: usize) -> Vec<Device> {
        (0..n).map(|i| self.engine.device(&format!("rocm:{i}")).unwrap()).collect()
    }
}
