//! Set-up of tests that run a model on several simulated devices.

use crate::files::model_path;
use crate::simulator::{Setup, cache, engine};
use kjit_engine::{Device, Engine};
use kjit_model::gguf::Gguf;
use kjit_model::graph::Graph;
use kjit_model::session::{KvType, OpenOptions};
use std::path::Path;
use std::sync::Arc;

/// These options equal the options of the batch tests (`side_by_side`), so that both use the same
/// compiled kernels.
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

/// A set-up with these devices (comma-separated). Kernels are compiled for the host with `-Og`.
#[must_use]
pub fn setup(devices: &str) -> Setup {
    Setup::devices(devices).set("HIPSIM_CLANG", "none").set("HIPSIM_OPTIMISE", "-Og")
}

/// A model and an engine.
pub struct Several {
    /// The model file.
    pub gguf: Arc<Gguf>,
    /// The graph of the model.
    pub graph: Graph,
    /// An engine with an empty cache.
    pub engine: Engine,
}

impl Several {
    /// Opens the model `name` with the folder and the compiler process of the calling test.
    ///
    /// # Panics
    /// The file is missing or is not a model.
    #[must_use]
    pub fn new(name: &str, temporary: &str, worker: &str) -> Several {
        Several::of(&model_path(name).unwrap(), temporary, worker)
    }

    /// Opens the model in this file.
    ///
    /// # Panics
    /// The file is not a model.
    #[must_use]
    pub fn of(path: &Path, temporary: &str, worker: &str) -> Several {
        let gguf = Arc::new(Gguf::open(path).unwrap());
        let graph = kjit_model::arch::build(&gguf).unwrap();
        Several { gguf, graph, engine: engine(&cache(temporary).join("none"), worker, "hiprtc") }
    }

    /// The first `n` devices.
    ///
    /// # Panics
    /// There are fewer devices.
    #[must_use]
    pub fn devices(&self, n: usize) -> Vec<Device> {
        (0..n).map(|i| self.engine.device(&format!("rocm:{i}")).unwrap()).collect()
    }
}
