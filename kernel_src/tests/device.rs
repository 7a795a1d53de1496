//! Every case on a real device (`KJIT_TEST_DEVICE`, by default whichever is there), held against the same
//! oracles as on the simulated one.
//!
//! Without a device it is skipped, and says so; `KJIT_REQUIRE_GPU=1` forbids that.

use kjit_engine::{Config, Device, Engine, Error, Isolation, Job};
use kjit_kernels::cases::{self, Case};

fn run(engine: &Engine, device: &Device, case: &Case) -> Result<(), String> {
    let module = engine.load(device, &case.kernel.job(device.target()));
    let called = module.and_then(|module| {
        device.stream()?.call(&module.kernel(case.kernel.entry)?, &case.geometry, &case.host_args())
    });
    case.check(&called.map_err(|e| format!("{}: {e}", case.name))?)
}

#[test]
#[ignore = "needs a GPU (scripts/gpu-suite)"]
fn every_case_is_right_on_the_device() {
    let folder = std::env::temp_dir().join(format!("kjit-cases-{}", std::process::id()));
    let engine = Engine::new(Config::new().cache_dir(&folder).isolation(Isolation::InProcess));
    let asked = std::env::var("KJIT_TEST_DEVICE").unwrap_or_else(|_| "auto".to_owned());
    let mut device = match engine.device(&asked) {
        Ok(device) => device,
        Err(e) => {
            assert!(std::env::var_os("KJIT_REQUIRE_GPU").is_none(), "{e}");
            eprintln!("SKIPPED: no device, so no case ran on one: {e}");
            return;
        }
    };
    let seed = std::env::var("KJIT_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(20261121);
    let only = std::env::var("KJIT_CASES").unwrap_or_default();
    let (part, parts) = std::env::var("KJIT_SHARD").map_or((0, 1), |shard| {
        let (part, parts) = shard.split_once('/').expect("KJIT_SHARD is PART/PARTS, as in 0/8");
        (part.parse::<usize>().unwrap(), parts.parse::<usize>().unwrap())
    });
    assert!(part < parts, "KJIT_SHARD: parts are counted from 0");
    let mut failed = vec![];
    let waves = device.target().waves();
    for &wave in waves {
        let mut cases = cases::all(device.target(), wave, seed).unwrap();
        cases.retain(|c| c.name.contains(&only));
        let mut number = 0..;
        cases.retain(|_| number.next().is_some_and(|n: usize| n % parts == part));
        let jobs: Vec<Job> = cases.iter().map(|c| c.kernel.job(device.target())).collect();
        drop(engine.compile_all(&jobs));
        for case in &cases {
            failed.extend(run(&engine, &device, case).err());
            if let Err(Error::DeviceLost { .. }) = device.memory() {
                // Of what comes next there is a verdict only on a device opened anew.
                drop(device);
                device = engine.device(&asked).unwrap_or_else(|e| panic!("{e}, after:\n{}", failed.join("\n")));
            }
        }
        eprintln!("{}: {} cases at wave {wave}", device.label(), cases.len());
    }
    let _ = std::fs::remove_dir_all(&folder);
    assert!(failed.is_empty(), "seed {seed}: {} failed:\n{}", failed.len(), failed.join("\n"));
}
