//! Measures kernels on the current device. Each kernel is checked against its oracle, then timed in
//! a captured graph and compared with the device's limits from the same run.
//!
//! The launches of a chain use different buffers, if there is enough memory: data that a model
//! reads from memory must not come from caches. The launches depend on each other as in a token.
//! The time of a launch is the time of the chain divided by its launches: the median of some
//! replays, and the interquartile range.

mod content;
mod limits;
mod loaded_case;
mod measured_kernel;
mod sources;

pub use limits::Limits;
pub use loaded_case::{LoadedCase, Timing, time};
pub use measured_kernel::{MeasuredKernel, of_plan, representative};
pub(super) use sources::Sources;

use crate::target_probe::settled;
use kjit_engine::{Device, Engine, KernelReport};
use kjit_kernel_cases::Random;
use kjit_kernels::launch::Work;
use limits::SEED;

/// The measurement of one subject.
#[derive(Debug, Clone)]
pub struct Measurement {
    /// The kernel and size.
    pub subject: MeasuredKernel,
    /// The tuning in use, if the family has a choice.
    pub tuning: Option<String>,
    /// Registers and other resources of its code; `None` if unknown.
    pub report: Option<KernelReport>,
    /// Bytes of dynamic LDS for a block.
    pub shared: u32,
    /// The time, or the reason why there is none. A kernel with wrong results is not timed.
    pub outcome: Result<Timed, String>,
}

/// The time of a kernel with correct results.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Timed {
    /// The time of one launch.
    pub timing: Timing,
    /// Bytes that it must move and operations that it must compute.
    pub work: Work,
    /// Whether its buffers may fit in the L2 cache.
    pub cached: bool,
}

impl Timed {
    /// The fraction of the limit that the kernel reaches, and whether memory is the limit. The
    /// limit is the larger of two times: for its bytes, and for its operations at full rate.
    #[must_use]
    pub fn of_limit(&self, limits: &Limits) -> Option<(f64, bool)> {
        let memory = self.work.bytes as f64 / limits.read;
        let matrix = limits.product.as_ref().map_or(0.0, |p| self.work.operations as f64 / p.rate);
        let seconds = self.timing.median;
        (seconds > 0.0 && limits.read > 0.0)
            .then(|| (memory.max(matrix) / seconds, memory >= matrix))
    }
}

/// Checks and times each subject; `done` is called for each.
///
/// # Errors
/// There is no error as a whole. The failure of a subject is in its outcome.
pub fn measure(
    engine: &Engine,
    device: &Device,
    subjects: &[MeasuredKernel],
    done: &dyn Fn(&Measurement),
) -> Vec<Measurement> {
    let target = &settled(engine, device.target());
    let kernels: Vec<_> = subjects.iter().map(|s| s.spec.kernel(target)).collect();
    let jobs: Vec<_> = kernels.iter().flatten().map(|k| k.job(target)).collect();
    // The kernels are compiled in parallel before timing. Later loads find them in the cache.
    let mut modules = engine.load_all(device, &jobs).into_iter();
    let mut all = vec![];
    for (subject, kernel) in subjects.iter().zip(kernels) {
        let mut measured = Measurement {
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
            let (spec, mut random) = (&subject.spec, Random::new(SEED));
            let case = kjit_kernel_cases::case(spec, target, units, subject.size, &mut random);
            let (case, work) = (case.map_err(|e| e.to_string())?, subject.spec.work(subject.size));
            let entry = module.kernel(kernel.entry).map_err(|e| e.to_string())?;
            let mut placed = LoadedCase::new(device, case).map_err(|e| e.to_string())?;
            placed.check(&entry, true)?;
            let (timing, cached) = placed.alone(&entry).map_err(|e| e.to_string())?;
            Ok(Timed { timing, work, cached })
        });
        done(&measured);
        all.push(measured);
    }
    all
}
