//! What kernels cost on the device at hand: each checked against its oracle, then timed in a
//! captured graph, beside the device's own limits measured in the same run.
//!
//! A launch of a chain has buffers of its own, as far as memory allows, so that no cache serves
//! what a model would read from memory; the launches depend on each other as in a token. The time
//! of a launch is the chain's by the number of its launches: the median of some replays, and how
//! far a quarter of them lie to either side.

mod limits;
mod placed;
mod sources;
mod subject;

pub use limits::Limits;
pub use placed::{Placed, Timing, time};
pub(super) use sources::Sources;
pub use subject::{Subject, of_plan, representative};

use crate::gpu::settle::settled;
use kjit_engine::{Device, Engine, KernelReport};
use kjit_kernels::cases::Random;
use kjit_kernels::launch::Work;

/// What came of one subject.
#[derive(Debug, Clone)]
pub struct Measured {
    /// What was asked.
    pub subject: Subject,
    /// The tuning in force, if the family has a choice.
    pub tuning: Option<String>,
    /// What its code takes; none if it could not be had.
    pub report: Option<KernelReport>,
    /// Bytes of LDS that a launch adds for a block.
    pub shared: u32,
    /// The time, or why there is none: a kernel that is wrong is not timed.
    pub outcome: Result<Timed, String>,
}

/// The time of a kernel that is right.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Timed {
    /// Of one launch.
    pub timing: Timing,
    /// What it must move and compute.
    pub work: Work,
    /// Whether its buffers were too few to get past the second cache.
    pub cached: bool,
}

impl Timed {
    /// The part of the limit that it reaches, and whether the limit is the memory's: of bytes read
    /// at full rate and operations done at full rate, whichever takes longer.
    #[must_use]
    pub fn of_limit(&self, limits: &Limits) -> Option<(f64, bool)> {
        let memory = self.work.bytes as f64 / limits.read;
        let matrix = limits.product.as_ref().map_or(0.0, |p| self.work.operations as f64 / p.rate);
        let seconds = self.timing.median;
        (seconds > 0.0 && limits.read > 0.0)
            .then(|| (memory.max(matrix) / seconds, memory >= matrix))
    }
}

/// Seeds of the data: the same every time, so that two runs time the same.
const SEED: u64 = 20_261_121;

/// Checks and times each subject; `done` is told of each.
///
/// # Errors
/// None as a whole: what is wrong with a subject is in its outcome.
pub fn measure(
    engine: &Engine,
    device: &Device,
    subjects: &[Subject],
    done: &dyn Fn(&Measured),
) -> Vec<Measured> {
    let target = &settled(engine, device.target());
    let kernels: Vec<_> = subjects.iter().map(|s| s.spec.kernel(target)).collect();
    let jobs: Vec<_> = kernels.iter().flatten().map(|k| k.job(target)).collect();
    // In parallel, before anything is timed; the second look is a hit.
    let mut modules = engine.load_all(device, &jobs).into_iter();
    let mut all = vec![];
    for (subject, kernel) in subjects.iter().zip(kernels) {
        let mut measured = Measured {
            subject: subject.clone(),
            tuning: subject.spec.tuning(target).map(|t| t.to_string()),
            report: None,
            shared: 0,
            outcome: Err(String::new()),
        };
        measured.outcome = kernel.map_err(|e| e.to_string()).and_then(|kernel| {
            let module = modules.next().unwrap_or_else(|| engine.load(device, &kernel.job(target)));
            let module = module.map_err(|e| e.to_string())?;
            let reports = module.code().report(target, kernel.shared);
            measured.shared = kernel.shared;
            measured.report = reports.into_iter().find(|r| r.kernel == kernel.entry);
            let units = device.info().units;
            let case = subject.spec.case(target, units, subject.size, &mut Random::new(SEED));
            let (case, work) = (case.map_err(|e| e.to_string())?, subject.spec.work(subject.size));
            let entry = module.kernel(kernel.entry).map_err(|e| e.to_string())?;
            let mut placed = Placed::new(device, case).map_err(|e| e.to_string())?;
            placed.check(&entry, true)?;
            let (timing, cached) = placed.alone(&entry).map_err(|e| e.to_string())?;
            Ok(Timed { timing, work, cached })
        });
        done(&measured);
        all.push(measured);
    }
    all
}
