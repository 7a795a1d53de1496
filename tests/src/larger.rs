//! Helpers for tests with models that are larger than the memory of one simulated device: opening,
//! tracing, prompts.

use crate::several::Several;
use crate::simulator::cache;
use kjit_engine::{Config, Device, Engine, Isolation, Trace};
use kjit_model::sample::SampleOptions;
use kjit_model::session::{OpenOptions, Session, SessionError, Want};

impl Several {
    /// The first device.
    ///
    /// # Panics
    /// There is no device.
    #[must_use]
    pub fn device(&self) -> Device {
        self.engine.device("rocm:0").unwrap()
    }

    /// Opens the model on the first device.
    ///
    /// # Errors
    /// The errors of [`Session::on_gpu`].
    pub fn open(&self, options: &OpenOptions) -> Result<Session, SessionError> {
        Session::on_gpu(&self.engine, &self.device(), &self.gguf, self.graph.clone(), options)
    }
}

/// An engine that records a trace and uses the same cache.
#[must_use]
pub fn traced(temporary: &str, worker: &str) -> (Engine, Trace) {
    let trace = Trace::new();
    let config = Config::new()
        .cache(
            kjit_cache::Config::for_app("kjit")
                .ignore_environment()
                .dir(cache(temporary).join("none")),
        )
        .isolation(Isolation::Worker(worker.into()))
        .compiler_kind("hiprtc")
        .without_trial()
        .trace(trace.clone());
    (Engine::new(config), trace)
}

/// Spans in a row of a trace: name, begin, end.
///
/// # Panics
/// The trace does not have such a row.
#[must_use]
pub fn spans(trace: &Trace, row: &str) -> Vec<(String, f64, f64)> {
    let trace: serde_json::Value = serde_json::from_str(&trace.to_json()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let mut names = events.iter().filter(|e| e["ph"] == "M" && e["args"]["name"] == row);
    let tid = &names.next().unwrap_or_else(|| panic!("no row {row}"))["tid"];
    let of = events.iter().filter(|e| e["ph"] == "X" && e["tid"] == *tid);
    of.map(|e| {
        let (at, lasted) = (e["ts"].as_f64().unwrap(), e["dur"].as_f64().unwrap());
        (e["name"].as_str().unwrap().to_owned(), at, at + lasted)
    })
    .collect()
}

/// Bits of the logits after prompts of several chunks (16 tokens each), and of every row of one
/// prompt. No chunk is a single token, because the CPU may compute single tokens.
///
/// # Panics
/// A prompt cannot be computed.
pub fn prompts(session: &mut Session) -> Vec<Vec<u32>> {
    let vocab = session.n_vocab() as u32;
    let ids = |step: u32, n: u32| (0..n).map(|i| (i * step + 5) % vocab).collect::<Vec<u32>>();
    let id = session.add(SampleOptions::default()).unwrap();
    let mut rows = vec![];
    for (tokens, want) in
        [(ids(37, 37), Want::Last), (ids(11, 5), Want::All), (ids(3, 2), Want::Last)]
    {
        let logits = session.feed(id, &tokens, want).unwrap();
        rows.push(logits.iter().map(|x| x.to_bits()).collect());
    }
    session.remove(id).unwrap();
    rows
}
