//! The engine on simulated AMD devices: memory, streams, events, graphs, leaks, and a runtime in
//! which any call may fail. Each test runs in a new process with the simulated HIP runtime.

#[path = "../../../engine/examples/saxpy.rs"]
#[allow(dead_code, reason = "the example's own main is for people")]
mod example;

use crate::common::{BLOCK, Bench, TEMPORARY, WORKER, job};
use kjit_engine::{Arena, DeviceBuffer, Geometry, args};
use kjit_tests::launch::TestLaunch;
use kjit_tests::simulator::{Alive, Setup, Simulated, cache, engine};

#[test]
fn saxpy_is_correct_at_odd_sizes_with_intact_neighbours() {
    Setup::devices("gfx1100,gfx90a:sramecc+:xnack-").run(
        "simulated_engine::saxpy_is_correct_at_odd_sizes_with_intact_neighbours",
        TEMPORARY,
        || {
            for name in ["rocm:0", "rocm:1"] {
                let b = Bench::new(name);
                let stream = b.device.stream().unwrap();
                for n in [1usize, 31, 33, 63, 65, 127, 128, 129, 1009, 65_537] {
                    let x: Vec<f32> = (0..n).map(|i| i as f32 * 0.5 - 7.0).collect();
                    let y: Vec<f32> = (0..n).map(|i| 100.0 - i as f32).collect();
                    let (dx, dy) = (stream.upload(&x).unwrap(), stream.upload(&y).unwrap());
                    let grid = (n as u32).div_ceil(BLOCK);
                    stream
                        .put(
                            &b.kernel("saxpy"),
                            &Geometry::new(grid, BLOCK),
                            &args![&dx, &dy, 3.0f32, n as u32],
                        )
                        .unwrap();
                    let got = stream.read(&dy).unwrap();
                    let want: Vec<f32> = x.iter().zip(&y).map(|(x, y)| 3.0 * x + y).collect();
                    assert_eq!(got, want, "{name} n {n}");
                }
            }
        },
    );
}

#[test]
fn embedding_example_compiles_once_and_computes_correctly() {
    let test = "simulated_engine::embedding_example_compiles_once_and_computes_correctly";
    Setup::devices("gfx1100").run(test, TEMPORARY, || {
        let fresh = tempfile::tempdir().unwrap();
        for compiled in [1, 0] {
            let engine = engine(fresh.path(), WORKER, "hiprtc");
            assert_eq!(example::saxpy(&engine, "auto", 1009).unwrap(), 0);
            assert_eq!(engine.counts().compiled, compiled);
        }
    });
}

#[test]
fn copy_by_stream_of_other_device_is_refused() {
    let test = "simulated_engine::copy_by_stream_of_other_device_is_refused";
    Setup::devices("gfx1100,gfx1100").run(test, TEMPORARY, || {
        let engine = engine(&cache(TEMPORARY).join("real"), WORKER, "hiprtc");
        let (here, there) = (engine.device("rocm:0").unwrap(), engine.device("rocm:1").unwrap());
        let stream = here.stream().unwrap();
        let near = stream.upload(&[1u32; 4]).unwrap();
        let far = there.stream().unwrap().upload(&[2u32; 4]).unwrap();
        let (near_host, far_host) =
            (here.pinned::<u32>(4).unwrap(), there.pinned::<u32>(4).unwrap());
        for refused in [
            stream.write(&far, &[3; 4]),
            stream.read(&far).map(drop),
            stream.fill(&far, 0),
            stream.copy(&far, &near),
            stream.copy(&near, &far),
            stream.copy_in(&near_host, &far),
            stream.copy_in(&far_host, &near),
            stream.copy_out(&far, &near_host),
            stream.copy_out(&near, &far_host),
        ] {
            let error = refused.unwrap_err().to_string();
            assert!(error.contains("is on rocm:1, but the stream is on rocm:0"), "{error}");
        }
        assert_eq!(stream.read(&near).unwrap(), [1; 4]);
    });
}

#[test]
fn arguments_of_every_size_and_shared_memory_work() {
    Setup::devices("gfx942").run(
        "simulated_engine::arguments_of_every_size_and_shared_memory_work",
        TEMPORARY,
        || {
            let b = Bench::new("rocm:0");
            let stream = b.device.stream().unwrap();
            let x: Vec<f32> = (0..BLOCK).map(|i| i as f32).collect();
            let (dx, dy) =
                (stream.upload(&x).unwrap(), b.device.buffer::<f32>(BLOCK as usize).unwrap());
            #[repr(C)]
            #[derive(Clone, Copy)]
            struct Pair(i32, [f32; 3]);
            let pair = Pair(-5, [0.0, 0.25, 0.0]);
            let bytes: Vec<u8> = pair
                .0
                .to_le_bytes()
                .into_iter()
                .chain(pair.1.into_iter().flat_map(f32::to_le_bytes))
                .collect();
            let all = args![&dx, &dy, kjit_engine::Arg::Bytes(&bytes), 4u8, 0.5f64];
            stream.put(&b.kernel("mixed"), &Geometry::new(1, BLOCK), &all).unwrap();
            let want: Vec<f32> =
                (0..BLOCK).map(|i| (BLOCK - 1 - i) as f32 + 1.0 + 0.5 - 5.0).collect();
            assert_eq!(stream.read(&dy).unwrap(), want);
        },
    );
}

#[test]
fn wave_width_follows_the_kernel_on_each_family() {
    Setup::devices("gfx1100,gfx942,gfx1030").run(
        "simulated_engine::wave_width_follows_the_kernel_on_each_family",
        TEMPORARY,
        || {
            for (name, wave) in
                [("rocm:0", 32), ("rocm:0", 64), ("rocm:1", 64), ("rocm:2", 32), ("rocm:2", 64)]
            {
                let engine = engine(&cache(TEMPORARY).join("real"), WORKER, "hiprtc");
                let device = engine.device(name).unwrap();
                let module = engine.load(&device, &job(&device, wave)).unwrap();
                let stream = device.stream().unwrap();
                let out = device.buffer::<u32>(3 * BLOCK as usize).unwrap();
                stream
                    .put(&module.kernel("waves").unwrap(), &Geometry::new(3, BLOCK), &args![&out])
                    .unwrap();
                let want = wave * (wave - 1) / 2 + 10_000 * (wave / 2) + 1_000_000 * (wave - 1);
                assert!(
                    stream.read(&out).unwrap().iter().all(|v| *v == want),
                    "{name} wave {wave}"
                );
            }
        },
    );
}

#[test]
fn persistent_kernel_with_grid_barrier_ends() {
    let test = "simulated_engine::persistent_kernel_with_grid_barrier_ends";
    Setup::devices("gfx1100").run(test, TEMPORARY, || {
        let b = Bench::new("rocm:0");
        let (stream, kernel) = (b.device.stream().unwrap(), b.kernel("together"));
        let blocks = b.device.info().units * kernel.resident_blocks(BLOCK, 0).unwrap();
        for round in 0..20 {
            let words = stream.upload(&[0u32; 2]).unwrap();
            let out = b.device.buffer::<u32>(blocks as usize).unwrap();
            let shape = Geometry::new(blocks, BLOCK).cooperative(true);
            stream.put(&kernel, &shape, &args![&words, &out, blocks]).unwrap();
            let want = blocks * (blocks - 1) / 2;
            assert_eq!(stream.read(&out).unwrap(), vec![want; blocks as usize], "round {round}");
        }
        // One block more than fits is refused before the launch.
        let words = stream.upload(&[0u32; 2]).unwrap();
        let out = b.device.buffer::<u32>(blocks as usize + 1).unwrap();
        let shape = Geometry::new(blocks + 1, BLOCK).cooperative(true);
        let error =
            stream.put(&kernel, &shape, &args![&words, &out, blocks + 1]).unwrap_err().to_string();
        assert!(error.contains("8 blocks can be resident"), "{error}");
    });
}

#[test]
fn lds_and_new_memory_are_poisoned() {
    Setup::devices("gfx1100").run(
        "simulated_engine::lds_and_new_memory_are_poisoned",
        TEMPORARY,
        || {
            let b = Bench::new("rocm:0");
            let stream = b.device.stream().unwrap();
            let out = b.device.buffer::<f32>(BLOCK as usize).unwrap();
            assert!(stream.read(&out).unwrap().iter().all(|v| v.is_nan()));
            stream.fill(&out, 0).unwrap();
            stream.put(&b.kernel("fresh_lds"), &Geometry::new(1, BLOCK), &args![&out]).unwrap();
            assert!(stream.read(&out).unwrap().iter().all(|v| v.is_nan()));
        },
    );
}

/// A chain of launches over two streams, with or without the event between them.
fn two_streams(b: &Bench, ordered: bool) -> bool {
    const N: usize = 300;
    let (first, second) = (b.device.stream().unwrap(), b.device.stream().unwrap());
    // Both streams use one arena. The engine does not know about this shared memory, so an explicit
    // event is needed.
    let arena: Arena = b.device.arena(8192).unwrap();
    let [x, y, z]: [DeviceBuffer<u32>; 3] = [0; 3].map(|_| arena.buffer(N).unwrap());
    for buffer in [&x, &y, &z] {
        first.fill(buffer, 0).unwrap();
    }
    first.synchronize().unwrap();
    let shape = Geometry::new((N as u32).div_ceil(BLOCK), BLOCK);
    let event = b.device.event().unwrap();
    first.put(&b.kernel("add_one"), &shape, &args![&x, &y, N as u32]).unwrap();
    first.record(&event).unwrap();
    if ordered {
        second.wait(&event).unwrap();
    }
    second.put(&b.kernel("add_one"), &shape, &args![&y, &z, N as u32]).unwrap();
    second.synchronize().unwrap();
    first.synchronize().unwrap();
    first.read(&z).unwrap().iter().all(|v| *v == 2)
}

#[test]
fn missing_event_between_streams_is_detected() {
    let test = "simulated_engine::missing_event_between_streams_is_detected";
    Setup::devices("gfx1100").run(test, TEMPORARY, || {
        let b = Bench::new("rocm:0");
        assert!((0..50).all(|_| two_streams(&b, true)));
        assert!(
            (0..50).any(|_| !two_streams(&b, false)),
            "50 unordered pairs all ran in the order of the calls"
        );
    });
}

#[test]
fn graph_replays_captured_work_with_new_parameters() {
    Setup::devices("gfx942").run(
        "simulated_engine::graph_replays_captured_work_with_new_parameters",
        TEMPORARY,
        || {
            let b = Bench::new("rocm:0");
            let stream = b.device.stream().unwrap();
            let (x, y) =
                (stream.upload(&[1.0f32; 200]).unwrap(), stream.upload(&[0.0f32; 200]).unwrap());
            let (kernel, shape) = (b.kernel("saxpy"), Geometry::new(2, BLOCK));
            let record = |a: f32| {
                let (stream, kernel, x, y) = (&stream, &kernel, &x, &y);
                move || {
                    stream.put(kernel, &shape, &args![x, y, a, 200u32])?;
                    stream.put(kernel, &shape, &args![x, y, 10.0 * a, 200u32])
                }
            };
            let mut graph = stream.capture(record(1.0)).unwrap();
            assert_eq!(graph.nodes(), 2);
            assert_eq!(stream.read(&y).unwrap()[199], 0.0, "captured work does not run");
            let before = b.device.counts();
            for _ in 0..3 {
                stream.replay(&graph).unwrap();
            }
            assert_eq!((b.device.counts() - before).allocations, 0);
            assert_eq!(stream.read(&y).unwrap(), vec![33.0; 200]);
            assert!(graph.update(&stream, record(2.0)).unwrap());
            stream.replay(&graph).unwrap();
            assert_eq!(stream.read(&y).unwrap(), vec![55.0; 200]);
            let other = |_: ()| stream.put(&kernel, &shape, &args![&x, &y, 1.0f32, 200u32]);
            assert!(!graph.update(&stream, || other(())).unwrap(), "another shape");
        },
    );
}

#[test]
fn capture_forks_and_joins_streams_and_refuses_waits() {
    let test = "simulated_engine::capture_forks_and_joins_streams_and_refuses_waits";
    Setup::devices("gfx1100").run(test, TEMPORARY, || {
        let b = Bench::new("rocm:0");
        let (main, side) = (b.device.stream().unwrap(), b.device.stream().unwrap());
        let arena = b.device.arena(8192).unwrap();
        let [x, y, z]: [DeviceBuffer<u32>; 3] = [0; 3].map(|_| arena.buffer(100).unwrap());
        main.fill(&x, 0).unwrap();
        let (fork, join) = (b.device.event().unwrap(), b.device.event().unwrap());
        let (kernel, shape) = (b.kernel("add_one"), Geometry::new(1, BLOCK));
        let graph = main
            .capture_across(&[&side], || {
                main.put(&kernel, &shape, &args![&x, &y, 100u32])?;
                main.record(&fork)?;
                side.wait(&fork)?;
                side.put(&kernel, &shape, &args![&y, &z, 100u32])?;
                side.record(&join)?;
                main.wait(&join)?;
                main.put(&kernel, &shape, &args![&z, &y, 100u32])
            })
            .unwrap();
        for _ in 0..20 {
            main.fill(&y, 0xff).unwrap();
            main.fill(&z, 0xff).unwrap();
            main.replay(&graph).unwrap();
            assert_eq!(main.read(&y).unwrap(), vec![3; 100]);
        }
        assert!(main.capture(|| main.synchronize()).is_err());
        assert!(main.capture(|| main.read(&y).map(drop)).is_err());
        main.synchronize().unwrap();
    });
}

#[test]
fn dropped_objects_release_all_resources() {
    Setup::devices("gfx1100").run(
        "simulated_engine::dropped_objects_release_all_resources",
        TEMPORARY,
        || {
            let b = Bench::new("rocm:0");
            let work = |b: &Bench| {
                let stream = b.device.stream().unwrap();
                let pool = stream.pool();
                for n in [10usize, 1000, 100_000] {
                    let x: DeviceBuffer<f32> = pool.buffer(n).unwrap();
                    stream.fill(&x, 0).unwrap();
                }
                let pinned = b.device.pinned::<f32>(1000).unwrap();
                let buffer = b.device.buffer::<f32>(1000).unwrap();
                stream.copy_in(&pinned, &buffer).unwrap();
                stream.copy_out(&buffer, &pinned).unwrap();
                let module = b.engine.load(&b.device, &job(&b.device, 32)).unwrap();
                let (x, y) =
                    (stream.upload(&[1.0f32; 64]).unwrap(), stream.upload(&[1.0f32; 64]).unwrap());
                let kernel = module.kernel("saxpy").unwrap();
                let launch =
                    || stream.put(&kernel, &Geometry::new(1, BLOCK), &args![&x, &y, 1.0f32, 64u32]);
                let graph = stream.capture(launch).unwrap();
                stream.replay(&graph).unwrap();
            };
            work(&b);
            let before = Simulated::here().alive();
            for _ in 0..5 {
                work(&b);
            }
            assert_eq!(Simulated::here().alive(), before);
            drop(b);
            assert_eq!(Simulated::here().alive(), Alive::default());
        },
    );
}

#[test]
fn out_of_memory_reports_sizes_and_loses_nothing() {
    let test = "simulated_engine::out_of_memory_reports_sizes_and_loses_nothing";
    Setup::devices("gfx1100").set("HIPSIM_MEMORY", "1000000").run(test, TEMPORARY, || {
        let b = Bench::new("rocm:0");
        let before = Simulated::here().alive();
        let held = b.device.buffer::<u8>(600_000).unwrap();
        let error = b.device.buffer::<u8>(600_000).unwrap_err();
        let kjit_engine::Error::OutOfMemory { asked: 600_000, free, total: 1_000_000, .. } = error
        else {
            panic!("{error}")
        };
        assert!(free < 600_000);
        drop(held);
        drop(b.device.buffer::<u8>(600_000).unwrap());
        assert_eq!(Simulated::here().alive(), before);
    });
}

#[test]
fn failure_of_any_runtime_call_is_named_without_leaks() {
    let test = "simulated_engine::failure_of_any_runtime_call_is_named_without_leaks";
    Setup::devices("gfx1100").run(test, TEMPORARY, || {
        let b = Bench::new("rocm:0");
        let simulated = Simulated::here();
        let work = || -> Result<Vec<f32>, kjit_engine::Error> {
            let stream = b.device.stream()?;
            let module = b.engine.load(&b.device, &job(&b.device, 32))?;
            let kernel = module.kernel("saxpy")?;
            let (x, y) = (stream.upload(&[1.0f32; 64])?, stream.upload(&[2.0f32; 64])?);
            let launch =
                || stream.put(&kernel, &Geometry::new(1, BLOCK), &args![&x, &y, 1.0f32, 64u32]);
            let graph = stream.capture(launch)?;
            stream.replay(&graph)?;
            let event = b.device.event()?;
            stream.record(&event)?;
            event.synchronize()?;
            stream.read(&y)
        };
        assert_eq!(work().unwrap(), vec![3.0; 64]);
        let before = simulated.alive();
        for call in [
            c"hipStreamCreateWithPriority",
            c"hipModuleGetFunction",
            c"hipMalloc",
            c"hipMemcpyHtoDAsync",
            c"hipStreamBeginCapture",
            c"hipModuleLaunchKernel",
            c"hipStreamEndCapture",
            c"hipGraphInstantiate",
            c"hipGraphLaunch",
            c"hipEventCreateWithFlags",
            c"hipEventRecord",
            c"hipEventSynchronize",
            c"hipMemcpyDtoHAsync",
        ] {
            let counted = simulated.calls(call);
            assert_eq!(work().unwrap().len(), 64);
            let times = simulated.calls(call) - counted;
            assert!(times > 0, "{call:?} is not called");
            for n in 1..=times {
                simulated.fail(call, n, 1);
                let error = work().unwrap_err().to_string();
                // The error of a failed launch contains the name of its kernel.
                let named = error.contains(call.to_str().unwrap())
                    || error.starts_with("launch of 'saxpy'");
                assert!(named, "{call:?} {n}: {error}");
                assert_eq!(simulated.alive().allocations, before.allocations, "{call:?} {n}");
                assert_eq!(work().unwrap(), vec![3.0; 64], "after {call:?} {n}");
            }
        }
        assert_eq!(simulated.alive(), before);
    });
}

#[test]
fn rocm_5_without_newer_calls_works() {
    let setup = Setup::devices("gfx906:sramecc+:xnack-").rocm5();
    setup.run("simulated_engine::rocm_5_without_newer_calls_works", TEMPORARY, || {
        let b = Bench::new("rocm:0");
        assert_eq!(b.device.info().arch_id, "gfx906:sramecc+:xnack-");
        assert!(!b.device.info().cooperative);
        let stream = b.device.stream().unwrap();
        let (x, y) = (stream.upload(&[1.0f32; 64]).unwrap(), stream.upload(&[2.0f32; 64]).unwrap());
        let kernel = b.kernel("saxpy");
        let graph = stream
            .capture(|| {
                stream.put(&kernel, &Geometry::new(1, BLOCK), &args![&x, &y, 1.0f32, 64u32])
            })
            .unwrap();
        stream.replay(&graph).unwrap();
        assert_eq!(stream.read(&y).unwrap(), vec![3.0; 64]);
    });
}

#[test]
fn missing_device_is_a_clean_error() {
    Setup::devices("").run("simulated_engine::missing_device_is_a_clean_error", TEMPORARY, || {
        let engine = engine(&cache(TEMPORARY), WORKER, "hiprtc");
        let error = engine.device("rocm:0").unwrap_err().to_string();
        assert!(error.contains("no AMD GPU"), "{error}");
    });
}

#[test]
fn clang_code_runs_from_cache_without_compiler() {
    let test = "simulated_engine::clang_code_runs_from_cache_without_compiler";
    Setup::devices("gfx1201").run(test, TEMPORARY, || {
        let dir = tempfile::tempdir().unwrap();
        let once = |kind: &str| {
            let engine = engine(dir.path(), WORKER, kind);
            let device = engine.device("rocm:0").unwrap();
            let module = engine.load(&device, &job(&device, 32)).unwrap();
            let stream = device.stream().unwrap();
            let (x, y) =
                (stream.upload(&[1.0f32; 64]).unwrap(), stream.upload(&[2.0f32; 64]).unwrap());
            let shape = Geometry::new(1, BLOCK);
            stream
                .put(&module.kernel("saxpy").unwrap(), &shape, &args![&x, &y, 1.0f32, 64u32])
                .unwrap();
            assert_eq!(stream.read(&y).unwrap(), vec![3.0; 64]);
            engine.counts()
        };
        if engine(dir.path(), WORKER, "clang").compilers(kjit_engine::Vendor::Amd).found.is_empty()
        {
            eprintln!("SKIPPED {test}: no clang with the AMDGPU target (Debian: clang-19 lld-19)");
            return;
        }
        assert_eq!(once("clang").compiled, 1);
        // A compiler kind that does not exist, as on a server without a compiler.
        let again = once("no such compiler");
        assert_eq!((again.compiled, again.cached), (0, 1));
    });
}
