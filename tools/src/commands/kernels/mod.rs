//! `kjit bench --kernels`: what every kernel costs and how fast it is; and `--tune`.

mod device;
mod resources;
mod timeline;
mod tuning;

pub use tuning::{Tuning, tune_for};

use crate::args::{self, Shared};
use crate::engine::config;
use anyhow::{Context, bail};
use kjit_engine::{Engine, Target};
use kjit_model::DeviceChoice;
use kjit_model::gguf::Gguf;
use kjit_model::gpu::measure::Subject;
use kjit_model::gpu::plan::{Plan, Request, plan};
use kjit_model::gpu::settled;
use kjit_model::gpu::tune::Kept;
use regex_lite::Regex;
use std::path::Path;
use std::process::ExitCode;

pub fn kernels(args: &args::Bench, shared: &Shared) -> anyhow::Result<ExitCode> {
    let engine = Engine::new(args.compiler.choose(config(shared)));
    if let Some(file) = &args.timeline {
        return timeline::timeline(args, file, shared);
    }
    let filter = Filter(args.filter.clone());
    if !args.arch.is_empty() {
        return resources::resources(&engine, args, &filter);
    }
    if args.tune || args.measure_for_parent {
        return tuning::tuning(&engine, args, &filter, shared);
    }
    device::device(&engine, args, &filter, shared)
}

/// Tokens in the cache where none were asked for: beyond what a first question has.
const DEPTH: usize = 1024;

/// Which kernels.
pub struct Filter(Option<Regex>);

impl Filter {
    fn takes(&self, name: &str) -> bool {
        self.0.as_ref().is_none_or(|r| r.is_match(name))
    }

    /// By its name, what it computes, or its program.
    pub fn wants(&self, subject: &Subject) -> bool {
        self.takes(&subject.name)
            || self.takes(&subject.spec.to_string())
            || self.takes(&subject.program)
    }

    /// Says that nothing is left.
    fn nothing(&self) -> anyhow::Error {
        let filter = self.0.as_ref().map_or(String::new(), ToString::to_string);
        anyhow::anyhow!("no kernel's name is found by '{filter}'")
    }
}

/// The plan of a model for a target, as `run` has it.
///
/// With programs for up to so many sequences side by side, where that is more than one.
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
    let target = &settled(engine, target);
    let request =
        Request { graph: &graph, target, options: &options, keep: &[], tuned: &Kept::of(engine) };
    plan(&request).with_context(|| format!("{} for {target}", model.display()))
}

/// The device that the flags name; the first one, if they name none.
fn open_device(
    engine: &Engine,
    shared: &Shared,
    flag: &str,
) -> anyhow::Result<kjit_engine::Device> {
    if shared.device == DeviceChoice::Cpu {
        bail!("{flag} is about a GPU's kernels: --device cpu has none");
    }
    if let DeviceChoice::Several(_) = shared.device {
        bail!("{flag} is about one GPU: --device {} names several", shared.device);
    }
    engine.device(&shared.device.to_string()).with_context(|| match flag {
        "--kernels" => {
            "--kernels needs a GPU; --arch shows what kernels take without one, untimed".to_string()
        }
        _ => format!("{flag} needs a GPU"),
    })
}
