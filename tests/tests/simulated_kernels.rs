//! Every kernel case, through the engine, on simulated AMD devices: compiled, cached, loaded, launched, read back and held
//! against its oracle in f64. Wave 32 and wave 64, RDNA and CDNA.

use kjit_engine::{Arg, Device, DeviceBuffer, Job, Stream};
use kjit_kernels::cases::{self, Case, CaseArg};
use kjit_tests::simulator::{Setup, Simulated, cache, engine};

const WORKER: &str = env!("CARGO_BIN_EXE_kjit-tests-cc");
const TEMPORARY: &str = env!("CARGO_TARGET_TMPDIR");

fn seed() -> u64 {
    std::env::var("KJIT_TEST_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(20_261_121)
}

/// Runs one case; what is wrong, as a sentence.
fn run(device: &Device, stream: &Stream, module: &kjit_engine::Module, case: &Case) -> Result<(), String> {
    let say = |e: kjit_engine::Error| format!("{}: {e}", case.name);
    let kernel = module.kernel(case.kernel.entry).map_err(say)?;
    // Each buffer an allocation of its own: whatever touches a byte beside it is caught.
    let mut buffers: Vec<DeviceBuffer<u8>> = vec![];
    for arg in &case.args {
        if let CaseArg::Buffer { before, .. } = arg {
            let buffer = device.buffer(before.len()).map_err(say)?;
            stream.write(&buffer, before).map_err(say)?;
            buffers.push(buffer);
        }
    }
    let mut next = buffers.iter();
    let args: Vec<Arg<'_>> = case
        .args
        .iter()
        .map(|a| match a {
            CaseArg::Buffer { .. } => next.next().map_or(Arg::Null, Arg::from),
            CaseArg::Null => Arg::Null,
            CaseArg::U32(v) => Arg::from(*v),
            CaseArg::U64(v) => Arg::from(*v),
            CaseArg::F32(v) => Arg::from(*v),
        })
        .collect();
    stream.launch(&kernel, &case.geometry, &args).map_err(say)?;
    let after = buffers.iter().map(|b| stream.read(b)).collect::<Result<Vec<_>, _>>().map_err(say)?;
    case.check(&after)
}

/// With `real` code objects where a clang is found (its argument lists and resources are checked then too), else with those
/// of the simulated hiprtc alone, which takes half the time.
fn all(test: &str, arch: &str, wave: u32, real: bool) {
    let setup = Setup::devices(arch).set("KJIT_HIPSIM_OPTIMISE", "-O1");
    let setup = if real { setup } else { setup.set("KJIT_HIPSIM_CLANG", "none") };
    setup.run(test, TEMPORARY, || {
        let device = engine(&cache(TEMPORARY), WORKER, "hiprtc").device("rocm:0").unwrap();
        assert_eq!(device.target().to_string(), arch);
        let only = std::env::var("KJIT_CASES").unwrap_or_default();
        let seed = seed();
        let cases: Vec<Case> = cases::all(device.target(), wave, seed).unwrap();
        let cases: Vec<Case> = cases.into_iter().filter(|c| c.name.contains(&only)).collect();
        assert!(!cases.is_empty(), "no case has '{only}' in its name");
        let dir = cache(TEMPORARY).join(if real { "real" } else { "none" });
        let engine = engine(&dir, WORKER, "hiprtc");
        let jobs: Vec<Job> = cases
            .iter()
            .map(|c| {
                let k = &c.kernel;
                Job::new(k.source.clone(), k.constants.clone(), k.options.clone(), device.target().clone())
            })
            .collect();
        let modules = engine.load_all(&device, &jobs);
        let stream = device.stream().unwrap();
        let mut failed = vec![];
        for (case, module) in cases.iter().zip(modules) {
            let answer =
                module.map_err(|e| format!("{}: {e}", case.name)).and_then(|m| run(&device, &stream, &m, case));
            if let Err(why) = answer {
                let fault = Simulated::here().fault(0);
                failed.push(format!("{why} {fault}"));
                if !fault.is_empty() {
                    break; // as on a real device, nothing works after a fault
                }
            }
        }
        eprintln!("{} cases on {arch} wave {wave}: {:?}", cases.len(), engine.counts());
        assert!(failed.is_empty(), "seed {seed}: {} of {} failed:\n{}", failed.len(), cases.len(), failed.join("\n"));
    });
}

#[test]
fn every_case_is_right_on_gfx1100_with_waves_of_32() {
    all("every_case_is_right_on_gfx1100_with_waves_of_32", "gfx1100", 32, true);
}

#[test]
fn every_case_is_right_on_gfx1100_with_waves_of_64() {
    all("every_case_is_right_on_gfx1100_with_waves_of_64", "gfx1100", 64, false);
}

#[test]
fn every_case_is_right_on_gfx942_with_waves_of_64() {
    all("every_case_is_right_on_gfx942_with_waves_of_64", "gfx942", 64, false);
}
