//! Runs the kernels' cases on a device: whether what it computes is what the oracle computed.

use kjit_engine::{Device, Engine, Job, Module};
use kjit_kernels::cases::{self, Case};

/// What came of one case.
#[derive(Debug, Clone)]
pub struct Verdict {
    /// The case: family, sizes, formats, wave width.
    pub case: String,
    /// Nothing, or what was wrong.
    pub failure: Option<String>,
}

/// Runs every case at every wave width of the device, compiling what is not in the cache. `progress` gets the number of cases done and
/// in all.
///
/// # Errors
/// Cases that cannot be made for this device's target, as a sentence; what a case does wrong is in its verdict.
pub fn run_all(
    engine: &Engine,
    device: &Device,
    seed: u64,
    progress: &dyn Fn(usize, usize),
) -> Result<Vec<Verdict>, String> {
    let mut verdicts = vec![];
    let mut all = vec![];
    for &wave in device.target().waves() {
        let made = cases::all(device.target(), wave, seed).map_err(|e| e.to_string())?;
        all.extend(made.into_iter().map(|case| (wave, case)));
    }
    let jobs: Vec<Job> = all.iter().map(|(_, case)| case.kernel.job(device.target())).collect();
    let modules = engine.load_all(device, &jobs);
    for (done, ((wave, case), module)) in all.iter().zip(modules).enumerate() {
        let result = module.map_err(|e| e.to_string()).and_then(|module| run(device, &module, case));
        verdicts.push(Verdict { case: format!("{} at wave {wave}", case.name), failure: result.err() });
        progress(done + 1, all.len());
    }
    Ok(verdicts)
}

/// One case: the launch, and every buffer held against what must be there afterwards.
fn run(device: &Device, module: &Module, case: &Case) -> Result<(), String> {
    let called = device
        .stream()
        .and_then(|stream| stream.call(&module.kernel(case.kernel.entry)?, &case.geometry, &case.host_args()));
    case.check(&called.map_err(|e| e.to_string())?)
}
