//! Runs the kernels' cases on a device: whether what it computes is what the oracle computed.

use kjit_engine::{Arg, Device, DeviceBuffer, Engine, Job, Module};
use kjit_kernels::cases::{self, Case, CaseArg};

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
    let jobs: Vec<Job> = all.iter().map(|(_, case)| job(case, device)).collect();
    let modules = engine.load_all(device, &jobs);
    for (done, ((wave, case), module)) in all.iter().zip(modules).enumerate() {
        let result = module.map_err(|e| e.to_string()).and_then(|module| run(device, &module, case));
        verdicts.push(Verdict { case: format!("{} at wave {wave}", case.name), failure: result.err() });
        progress(done + 1, all.len());
    }
    Ok(verdicts)
}

/// The compile job of a case on a device.
fn job(case: &Case, device: &Device) -> Job {
    let k = &case.kernel;
    Job::new(k.source.clone(), k.constants.clone(), k.options.clone(), device.target().clone())
}

/// One case: buffers as it wants them, the launch, and everything held against what must be there afterwards.
fn run(device: &Device, module: &Module, case: &Case) -> Result<(), String> {
    let text = |e: kjit_engine::Error| e.to_string();
    let stream = device.stream().map_err(text)?;
    let kernel = module.kernel(case.kernel.entry).map_err(text)?;
    let buffers: Vec<Option<DeviceBuffer<u8>>> = case
        .args
        .iter()
        .map(|arg| match arg {
            CaseArg::Buffer { before, .. } => stream.upload(before).map(Some),
            _ => Ok(None),
        })
        .collect::<Result<_, _>>()
        .map_err(text)?;
    let args: Vec<Arg<'_>> = case
        .args
        .iter()
        .zip(&buffers)
        .map(|(arg, buffer)| match (arg, buffer) {
            (CaseArg::U32(v), _) => Arg::from(*v),
            (CaseArg::U64(v), _) => Arg::from(*v),
            (CaseArg::F32(v), _) => Arg::from(*v),
            (_, Some(buffer)) => Arg::from(buffer),
            _ => Arg::Null,
        })
        .collect();
    stream.launch(&kernel, &case.geometry, &args).map_err(text)?;
    let after = buffers.iter().flatten().map(|b| stream.read(b)).collect::<Result<Vec<_>, _>>().map_err(text)?;
    case.check(&after)
}
