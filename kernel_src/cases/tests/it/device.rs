//! Every case on a real device (`KJIT_TEST_DEVICE`, by default any), compared with the same oracles
//! as on the simulated one.
//!
//! Also sums in host memory, with both ranks on one device. Without a device the test reports that
//! it was skipped; `KJIT_REQUIRE_GPU=1` forbids that.

use kjit_engine::{
    Arg, Config, Device, DeviceBuffer, Engine, Error, Geometry, Isolation, Job, Result,
};
use kjit_kernel_cases::{self as cases, Case};
use kjit_kernels::Family;
use kjit_kernels::reduce::{ReduceSpec, STRETCH, WORDS, words_of_stretches};
use std::time::Instant;

fn run(engine: &Engine, device: &Device, case: &Case) -> Result<(), String> {
    let module = engine.load(device, &case.kernel.job(device.target()));
    let called = module.and_then(|module| {
        let (stream, kernel) = (device.stream()?, module.kernel(case.kernel.entry)?);
        // SAFETY: the kernel of the case, with buffers of the sizes of its spec.
        unsafe { stream.call(&kernel, &case.geometry, &case.host_args()) }
    });
    case.check(&called.map_err(|e| format!("{}: {e}", case.name))?)
}

#[test]
#[ignore = "needs a GPU (scripts/gpu-suite)"]
fn every_case_is_correct_on_device() {
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
    let seed =
        std::env::var("KJIT_TEST_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(20261121);
    let only = std::env::var("KJIT_TEST_ONLY").unwrap_or_default();
    let (part, parts) = std::env::var("KJIT_TEST_SHARD").map_or((0, 1), |shard| {
        let (part, parts) =
            shard.split_once('/').expect("KJIT_TEST_SHARD is PART/PARTS, as in 0/8");
        (part.parse::<usize>().unwrap(), parts.parse::<usize>().unwrap())
    });
    assert!(part < parts, "KJIT_TEST_SHARD: parts are counted from 0");
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
                // Later cases need the device to be opened again.
                drop(device);
                device = engine
                    .device(&asked)
                    .unwrap_or_else(|e| panic!("{e}, after:\n{}", failed.join("\n")));
            }
        }
        eprintln!("{}: {} cases at wave {wave}", device.label(), cases.len());
    }
    let _ = std::fs::remove_dir_all(&folder);
    assert!(failed.is_empty(), "seed {seed}: {} failed:\n{}", failed.len(), failed.join("\n"));
}

/// Two ranks in two streams of one device, with `rounds` sums each in a captured graph. Returns µs
/// per sum, the minimum of some replays. Inboxes by rank.
fn sums(
    engine: &Engine,
    device: &Device,
    (rows, stretches, rounds): (usize, bool, usize),
    inboxes: [[DeviceBuffer<u32>; 2]; 2],
) -> Result<f64> {
    let (cols, blocks) = (4096, if stretches { 48 } else { 16u32 });
    let count = rows * cols;
    let spec =
        ReduceSpec { ranks: 2, cols, join: false, residual: true, stretches, gathered: false };
    let kernel = spec.kernel(device.target()).unwrap();
    let job = Job::new(kernel.source, kernel.constants, kernel.options, device.target().clone());
    let ready = engine.load(device, &job)?.kernel(kernel.entry)?;
    let values = |from: usize| -> Vec<f32> {
        (0..count).map(|i| ((i * 7919 + from * 104_729) % 1009) as f32 / 7.0 - 71.0).collect()
    };
    let mut ranks = vec![];
    for (rank, [inbox, to]) in inboxes.iter().enumerate() {
        let (stream, words, late) =
            (device.stream()?, device.buffer::<u32>(WORDS)?, device.pinned::<u32>(1)?);
        stream.fill(inbox, 0)?;
        stream.fill(&words, 0)?;
        late.write(|to| to.fill(0))?;
        let [x, residual, y] =
            [stream.upload(&values(1 + rank))?, stream.upload(&values(0))?, device.buffer(count)?];
        stream.synchronize()?;
        let word = late.on_device();
        let graph = stream.capture(|| {
            for _ in 0..rounds {
                let mut args = [&x, &residual, &y].map(Arg::from).to_vec();
                args.extend([&words, &word, inbox, to].map(Arg::from));
                args.extend([Arg::Null; 6]);
                args.extend([count as u64, count as u64, 10_000_000_000].map(Arg::from));
                args.extend([rank as u32, blocks].map(Arg::from));
                // SAFETY: the buffers have as many values as the counts.
                unsafe { stream.launch(&ready, &Geometry::new(blocks, kernel.block), &args)? };
            }
            Ok(())
        })?;
        ranks.push((stream, graph, y, late));
    }
    let mut least = f64::INFINITY;
    for _ in 0..5 {
        let start = Instant::now();
        for (stream, graph, ..) in &ranks {
            stream.replay(graph)?;
        }
        for (stream, ..) in &ranks {
            stream.synchronize()?;
        }
        least = least.min(start.elapsed().as_secs_f64() * 1e6 / rounds as f64);
    }
    let (a, b) = (values(1), values(2));
    let want: Vec<f32> =
        values(0).iter().zip(a.iter().zip(&b)).map(|(r, (a, b))| r + (a + b)).collect();
    for (rank, (stream, _, y, late)) in ranks.iter().enumerate() {
        assert_eq!(late.peek(0)?, 0, "rank {rank}: a wait timed out");
        assert!(stream.read(y)? == want, "rank {rank}: the sums of {rows} rows are wrong");
    }
    Ok(least)
}

#[test]
#[ignore = "needs a GPU (scripts/gpu-suite)"]
fn two_streams_reduce_in_device_and_host_memory() {
    if std::env::var_os("KJIT_TEST_SHARD").is_some() {
        eprintln!(
            "SKIPPED: shards run under tools that serialise kernels, but these kernels wait for each other"
        );
        return;
    }
    let folder = std::env::temp_dir().join(format!("kjit-sums-{}", std::process::id()));
    let engine = Engine::new(Config::new().cache_dir(&folder).isolation(Isolation::InProcess));
    let asked = std::env::var("KJIT_TEST_DEVICE").unwrap_or_else(|_| "auto".to_owned());
    let device = match engine.device(&asked) {
        Ok(device) => device,
        Err(e) => {
            assert!(std::env::var_os("KJIT_REQUIRE_GPU").is_none(), "{e}");
            eprintln!("SKIPPED: no device: {e}");
            return;
        }
    };
    for (rows, stretches, rounds) in [(1, false, 200), (16, false, 100), (512, true, 20)] {
        let room = (rows * 4096usize).next_multiple_of(STRETCH);
        let words = if stretches { words_of_stretches(2, room) } else { 2 * 2 * 2 * room };
        let own = [(); 2].map(|()| device.shared_buffer::<u32>(words).unwrap());
        let [a, b] = &own;
        let near = [[a.clone(), b.clone()], [b.clone(), a.clone()]];
        let near = sums(&engine, &device, (rows, stretches, rounds), near).unwrap();
        // One inbox for both, as for devices without peer access.
        let views =
            Device::shared_in_host::<u32>(&[device.clone(), device.clone()], words).unwrap();
        let [a, b] = &views[..] else { panic!("a view for each") };
        let far = [[a.clone(), a.clone()], [b.clone(), b.clone()]];
        let far = sums(&engine, &device, (rows, stretches, rounds), far).unwrap();
        eprintln!(
            "{}: {rows} rows of 4096: {near:.1} us in its memory, {far:.1} us in the host's",
            device.label()
        );
    }
    let _ = std::fs::remove_dir_all(&folder);
}
