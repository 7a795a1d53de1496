//! `kjit bench --kernels`: measures the resources and the speed of each kernel. This includes
//! `--tune`.

mod device;
mod resources;
mod selection;
mod timeline;
mod tuning;

pub use tuning::{Tuning, tune_for};

use crate::args::{self, Shared};
use crate::engine::config;
use kjit_engine::Engine;
pub use selection::Filter;
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
