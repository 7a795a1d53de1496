//! The kernels that are measured, and the device.

use crate::args;
use crate::args::Shared;
use anyhow::Context;
use anyhow::bail;
use kjit_engine::{Engine, Target};
use kjit_model::DeviceChoice;
use kjit_model::gguf::Gguf;
use kjit_model::gpu::measure::MeasuredKernel;
use kjit_model::gpu::plan::{Plan, Request, plan};
use kjit_model::gpu::settled;
use kjit_model::gpu::tune::StoredTunings;
use kjit_model::model::with_adapters;
use regex_lite::Regex;
use std::path::Path;

/// Default number of tokens in the KV cache: more than at a first question.
pub(super) const DEPTH: usize = 1024;

/// A filter of kernels.
pub struct Filter(pub(super) Option<Regex>);

impl Filter {
    pub(super) fn takes(&self, name: &str) -> bool {
        self.0.as_ref().is_none_or(|r| r.is_match(name))
    }

    /// Whether the filter matches the kernel's name, its specification or its program.
    pub fn wants(&self, subject: &MeasuredKernel) -> bool {
        self.takes(&subject.name)
            || self.takes(&subject.spec.to_string())
            || self.takes(&subject.program)
    }

    /// The error if no kernel matches.
    pub(super) fn nothing(&self) -> anyhow::Error {
        let filter = self.0.as_ref().map_or(String::new(), ToString::to_string);
        anyhow::anyhow!("no kernel matches '{filter}'")
    }
}

/// The plan of a model for a target, as in `run`.
///
/// If this number of sequences is above 1, the plan has programs for up to this number of
/// sequences.
pub fn plan_of(
    engine: &Engine,
    model: &Path,
    setup: &args::Setup,
    sequences: usize,
    target: &Target,
) -> anyhow::Result<Plan> {
    let gguf = Gguf::open(model)?;
    let graph = kjit_model::arch::build(&gguf).with_context(|| model.display().to_string())?;
    let options = kjit_model::OpenOptions { sequences, ..setup.options() };
    let (graph, _) = with_adapters(graph, gguf, &options)?;
    let target = &settled(engine, target);
    let request = Request {
        graph: &graph,
        target,
        options: &options,
        keep: &[],
        tuned: &StoredTunings::of(engine),
    };
    plan(&request).with_context(|| format!("{} for {target}", model.display()))
}

/// The device of the flags, or the first device.
pub(super) fn open_device(
    engine: &Engine,
    shared: &Shared,
    flag: &str,
) -> anyhow::Result<kjit_engine::Device> {
    if shared.device == DeviceChoice::Cpu {
        bail!("{flag} needs a GPU: --device cpu has no kernels");
    }
    if let DeviceChoice::Several(_) = shared.device {
        bail!("{flag} takes one GPU: --device {} names several", shared.device);
    }
    engine.device(&shared.device.to_string()).with_context(|| match flag {
        "--kernels" => {
            "--kernels needs a GPU; with --arch it shows resources without a GPU and without times"
                .to_string()
        }
        _ => format!("{flag} needs a GPU"),
    })
}
