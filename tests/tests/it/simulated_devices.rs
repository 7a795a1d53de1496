//! Several simulated AMD devices in one process: their properties, memory copied between them,
//! failures confined to one device, and the vendor's matrix library beside the project's kernels.

use crate::common::{BLOCK, Bench, TEMPORARY, WORKER};
use kjit_engine::{Geometry, args};
use kjit_kernel_cases::Random;
use kjit_model::gguf::Gguf;
use kjit_model::gpu::prove;
use kjit_model::sample::SampleOptions;
use kjit_model::session::OpenOptions;
use kjit_tests::files::model_path;
use kjit_tests::launch::TestLaunch;
use kjit_tests::simulator::{Alive, Setup, Simulated, cache, engine};
use kjit_tests::solo_session::SoloSession;
use std::sync::Arc;

const TWO: &str = "gfx1100,gfx942:sramecc+:xnack-";

#[test]
fn both_property_layouts_report_equal_architectures() {
    let look = || {
        let engine = engine(&cache(TEMPORARY).join("real"), WORKER, "hiprtc");
        let ids: Vec<String> = engine.devices().devices.into_iter().map(|d| d.arch_id).collect();
        assert_eq!(ids, ["gfx90a:sramecc+:xnack-", "gfx1030"]);
        let (old, new) = (c"hipGetDeviceProperties", c"hipGetDevicePropertiesR0600");
        let calls = Simulated::here();
        (calls.calls(old), calls.calls(new))
    };
    let test = "simulated_devices::both_property_layouts_report_equal_architectures";
    let devices = Setup::devices("gfx90a:sramecc+:xnack-,gfx1030");
    // The struct layout in this process decides which calls are possible.
    match std::env::var("TEST_LAYOUT").as_deref() {
        Ok("5") => devices.rocm5().run(test, TEMPORARY, || assert!(matches!(look(), (2.., 0)))),
        Ok(_) => devices.run(test, TEMPORARY, || assert!(matches!(look(), (0, 2..)))),
        Err(_) => {
            devices.clone().rocm5().set("TEST_LAYOUT", "5").run(test, TEMPORARY, || {});
            devices.set("TEST_LAYOUT", "6").run(test, TEMPORARY, || {});
        }
    }
}

#[test]
fn copy_between_devices_works_with_and_without_peer_access() {
    Setup::devices(TWO).run(
        "simulated_devices::copy_between_devices_works_with_and_without_peer_access",
        TEMPORARY,
        || {
            let b = Bench::new("rocm:0");
            let (first, second) = (&b.device, b.engine.device("rocm:1").unwrap());
            let (here, there) = (first.stream().unwrap(), second.stream().unwrap());
            for reached in [false, true] {
                if reached {
                    assert!(first.reach(&second).unwrap() && second.reach(first).unwrap());
                    assert!(first.reach(&second).unwrap(), "two requests must not fail");
                }
                for n in [1usize, 63, 65, 1009] {
                    let data: Vec<f32> = (0..n).map(|i| i as f32 - 0.5).collect();
                    let from = here.upload(&data).unwrap();
                    here.synchronize().unwrap();
                    let to = second.buffer::<f32>(n).unwrap();
                    there.copy_from(&from, &to).unwrap();
                    drop(from);
                    assert_eq!(there.read(&to).unwrap(), data, "{n} values");
                    let back = first.buffer::<f32>(n).unwrap();
                    here.copy_from(&to, &back).unwrap();
                    assert_eq!(here.read(&back).unwrap(), data, "{n} values back");
                }
            }
            let (x, y) = (here.upload(&[1.0f32; 8]).unwrap(), second.buffer::<f32>(8).unwrap());
            let same =
                here.copy_from(&x, &first.buffer::<f32>(8).unwrap()).unwrap_err().to_string();
            assert!(same.contains("rocm:0 to rocm:0"), "{same}");
            assert!(here.copy(&x, &y).is_err(), "a copy within a device that leaves it");
            assert!(there.copy(&x, &y).is_err(), "a copy within a device that enters it");
            assert!(
                there.copy_from(&x, &second.buffer::<f32>(9).unwrap()).is_err(),
                "sizes differ"
            );
            Simulated::here().fail(c"hipMemcpyPeerAsync", 1, 1);
            assert!(
                there.copy_from(&x, &y).unwrap_err().to_string().contains("hipMemcpyPeerAsync")
            );
            there.copy_from(&x, &y).unwrap();
            assert_eq!(there.read(&y).unwrap(), [1.0f32; 8]);
        },
    );
}

#[test]
fn memory_of_other_device_needs_peer_access() {
    Setup::devices(TWO).run(
        "simulated_devices::memory_of_other_device_needs_peer_access",
        TEMPORARY,
        || {
            let b = Bench::new("rocm:0");
            let other = b.engine.device("rocm:1").unwrap();
            let stream = b.device.stream().unwrap();
            let (x, y) = (other.buffer::<f32>(64).unwrap(), b.device.buffer::<f32>(64).unwrap());
            let launch = || {
                stream.put(
                    &b.kernel("saxpy"),
                    &Geometry::new(1, BLOCK),
                    &args![&x, &y, 1.0f32, 64u32],
                )
            };
            let error = launch().unwrap_err().to_string();
            assert!(error.contains("rocm:1") && error.contains("rocm:0"), "{error}");
        },
    );
}

#[test]
fn fault_on_one_device_leaves_other_usable() {
    Setup::devices(TWO).run(
        "simulated_devices::fault_on_one_device_leaves_other_usable",
        TEMPORARY,
        || {
            let (bad, good) = (Bench::new("rocm:0"), Bench::new("rocm:1"));
            let stream = bad.device.stream().unwrap();
            let y = bad.device.buffer::<u32>(BLOCK as usize).unwrap();
            stream
                .put(&bad.kernel("divergent"), &Geometry::new(1, BLOCK), &args![&y, 40u32])
                .unwrap();
            assert!(stream.synchronize().is_err());
            assert!(Simulated::here().fault(0).contains("divergent barrier"));
            assert_eq!(Simulated::here().fault(1), "");
            let stream = good.device.stream().unwrap();
            let (x, y) =
                (stream.upload(&[1.0f32; 64]).unwrap(), stream.upload(&[2.0f32; 64]).unwrap());
            stream
                .put(&good.kernel("saxpy"), &Geometry::new(1, BLOCK), &args![&x, &y, 3.0f32, 64u32])
                .unwrap();
            assert_eq!(stream.read(&y).unwrap(), vec![5.0; 64]);
        },
    );
}

#[test]
fn lane_and_block_order_is_random_per_seed() {
    const VARIABLE: &str = "TEST_ORDER";
    let test = "simulated_devices::lane_and_block_order_is_random_per_seed";
    let process = |seed: &str, file: &std::path::Path| {
        // With several CPU threads a seed does not decide the order of blocks.
        let setup = Setup::devices("gfx1100").set("HIPSIM_THREADS", "1").set("HIPSIM_SEED", seed);
        setup.set(VARIABLE, file.display().to_string()).run(test, TEMPORARY, || {
            let b = Bench::new("rocm:0");
            let stream = b.device.stream().unwrap();
            let orders: Vec<Vec<u32>> = (0..3)
                .map(|_| {
                    let (count, out) = (
                        stream.upload(&[0u32]).unwrap(),
                        b.device.buffer(4 * BLOCK as usize).unwrap(),
                    );
                    stream
                        .put(&b.kernel("in_turn"), &Geometry::new(4, BLOCK), &args![&count, &out])
                        .unwrap();
                    stream.read(&out).unwrap()
                })
                .collect();
            for order in &orders {
                let mut sorted = order.clone();
                sorted.sort_unstable();
                assert_eq!(sorted, (0..4 * BLOCK).collect::<Vec<u32>>(), "each thread once");
                assert_ne!(*order, sorted, "not one after the other");
            }
            assert!(
                orders[0] != orders[1] && orders[1] != orders[2],
                "another order at each launch"
            );
            std::fs::write(std::env::var_os(VARIABLE).unwrap(), format!("{orders:?}")).unwrap();
        });
        std::fs::read_to_string(file).unwrap_or_default()
    };
    let dir = tempfile::tempdir().unwrap();
    let inside = std::env::var_os(VARIABLE).map(std::path::PathBuf::from);
    let order =
        |seed: &str, name: &str| process(seed, inside.as_deref().unwrap_or(&dir.path().join(name)));
    let first = order("7", "first");
    if inside.is_none() {
        assert!(!first.is_empty());
        assert_eq!(first, order("7", "second"), "the same seed");
        assert_ne!(first, order("8", "third"), "another seed");
    }
}

#[test]
fn injected_error_occurs_at_the_counted_call() {
    let setup = Setup::devices("gfx1100").set("HIPSIM_FAIL", "hipMalloc:3:2");
    setup.run("simulated_devices::injected_error_occurs_at_the_counted_call", TEMPORARY, || {
        let device =
            engine(&cache(TEMPORARY).join("real"), WORKER, "hiprtc").device("rocm:0").unwrap();
        let made: Vec<bool> = (0..5).map(|_| device.buffer::<u8>(1000).is_ok()).collect();
        assert_eq!(made, [true, true, false, true, true]);
    });
}

#[test]
fn unknown_code_object_is_refused() {
    Setup::devices("gfx1100").run(
        "simulated_devices::unknown_code_object_is_refused",
        TEMPORARY,
        || {
            let b = Bench::new("rocm:0");
            let code = b.engine.compile(&crate::common::job(&b.device, 32)).unwrap();
            // A complete file with one flipped bit after the last section.
            let mut bytes = code.bytes().to_vec();
            let at = bytes.len() - 1;
            bytes[at] ^= 1;
            let digest = kjit_engine::Digest::of(&bytes);
            let foreign =
                kjit_engine::CodeObject::verified("foreign", "gfx1100", 32, bytes, digest);
            let error =
                foreign.and_then(|code| b.device.load(&code).map(drop)).unwrap_err().to_string();
            assert!(!error.is_empty());
            b.device.load(&code).unwrap();
        },
    );
}

#[test]
fn rocblas_product_matches_oracle_and_missing_library_is_reported() {
    let test = "simulated_devices::rocblas_product_matches_oracle_and_missing_library_is_reported";
    Setup::devices("gfx90a").run(test, TEMPORARY, || {
        let device =
            engine(&cache(TEMPORARY).join("real"), WORKER, "hiprtc").device("rocm:0").unwrap();
        let before = Simulated::here().alive();
        let blas = device.blas().unwrap();
        assert!(blas.library().contains("libhipsim"), "{}", blas.library());
        let stream = device.stream().unwrap();
        let mut random = Random::new(20_261_121);
        for [m, n, k] in [[1usize, 1, 1], [31, 33, 65], [127, 5, 63], [64, 64, 128]] {
            let mut halves = |n: usize| -> Vec<half::f16> {
                random.normals(n, 1.0).into_iter().map(half::f16::from_f32).collect()
            };
            let (w, x) = (halves(m * k), halves(n * k));
            let bits = |v: &[half::f16]| v.iter().map(|h| h.to_bits()).collect::<Vec<u16>>();
            let (dw, dx) = (stream.upload(&bits(&w)).unwrap(), stream.upload(&bits(&x)).unwrap());
            let out = device.buffer::<f32>(m * n).unwrap();
            blas.product(&stream, [m as u32, n as u32, k as u32], &dw, &dx, &out).unwrap();
            for (i, got) in stream.read(&out).unwrap().into_iter().enumerate() {
                let (row, col) = (i / m, i % m);
                let want: f64 =
                    (0..k).map(|l| x[row * k + l].to_f64() * w[col * k + l].to_f64()).sum();
                // A sum of k products in f32: the error is at most k · 2⁻²⁴ of the summed
                // magnitudes, and here about √k.
                assert!(
                    (f64::from(got) - want).abs() < 1e-4,
                    "{m}×{n}×{k}: {got} instead of {want}"
                );
            }
        }
        // The report of `kjit doctor` about the library.
        let said = prove::library(&device).unwrap().unwrap();
        assert!(said.contains("libhipsim") && said.contains("correct"), "{said}");
        let (w, x, out) =
            (stream.upload(&[0u16; 6]), stream.upload(&[0u16; 6]), device.buffer::<f32>(4));
        let (w, x, out) = (w.unwrap(), x.unwrap(), out.unwrap());
        assert!(
            blas.product(&stream, [2, 2, 4], &w, &x, &out)
                .unwrap_err()
                .to_string()
                .contains("2 × 4 are needed")
        );
        Simulated::here().fail(c"rocblas_gemm_ex", 1, 6);
        let error = blas.product(&stream, [2, 2, 3], &w, &x, &out).unwrap_err().to_string();
        assert!(
            error.contains("rocblas_gemm_ex") && error.contains("rocBLAS failed by itself"),
            "{error}"
        );
        let capture = stream.capture(|| blas.product(&stream, [2, 2, 3], &w, &x, &out));
        assert!(capture.is_err(), "the library may allocate");
        drop((blas, stream, w, x, out));
        assert_eq!(
            Alive { streams: 0, ..Simulated::here().alive() },
            Alive { streams: 0, ..before }
        );
    });
}

#[test]
fn rocblas_is_optional() {
    let setup = Setup::devices("gfx90a").set("KJIT_ROCBLAS_LIBRARY", "/nowhere/librocblas.so");
    setup.run("simulated_devices::rocblas_is_optional", TEMPORARY, || {
        let b = Bench::new("rocm:0");
        let error = b.device.blas().err().unwrap().to_string();
        assert!(error.contains("optional") && error.contains("/nowhere/librocblas.so"), "{error}");
        assert!(prove::library(&b.device).is_none(), "nothing to prove");
    });
}

#[test]
fn integrated_gpu_is_chosen_last_and_uses_host_memory() {
    let test = "simulated_devices::integrated_gpu_is_chosen_last_and_uses_host_memory";
    let devices = Setup::devices("gfx1036,gfx1100").set("HIPSIM_INTEGRATED", "0");
    devices.set("HIPSIM_MEMORY", "1048576").run(test, TEMPORARY, || {
        let engine = engine(&cache(TEMPORARY).join("real"), WORKER, "hiprtc");
        let found = engine.devices();
        assert_eq!(found.preferred().unwrap().label(), "rocm:1");
        assert!(found.skipped_devices().unwrap().starts_with("rocm:0 is not used"));
        assert_eq!(engine.device("auto").unwrap().label(), "rocm:1");
        // Four times the memory of each device.
        let n = 1 << 20;
        let data: Vec<f32> = (0..n).map(|i| i as f32).collect();
        let (own, card) = (engine.device("rocm:0").unwrap(), engine.device("rocm:1").unwrap());
        let (stream, place) = (own.stream().unwrap(), own.buffer::<f32>(n).unwrap());
        stream.write(&place, &data).unwrap();
        assert_eq!(stream.read(&place).unwrap(), data);
        assert!(
            card.buffer::<f32>(n)
                .unwrap_err()
                .to_string()
                .contains("out of device memory on rocm:1")
        );
    });
}

/// The memory of an integrated GPU is the host's: kernels read the weights there to repack them,
/// and no copy to the device is needed.
#[test]
fn integrated_gpu_reads_weights_without_a_copy() {
    let test = "simulated_devices::integrated_gpu_reads_weights_without_a_copy";
    let Some(path) = model_path("tiny/tiny-llama-q8_0.gguf") else { return };
    let devices = Setup::devices("gfx1100,gfx1100").set("HIPSIM_INTEGRATED", "1");
    devices.set("HIPSIM_CLANG", "none").set("HIPSIM_OPTIMISE", "-Og").run(test, TEMPORARY, || {
        let gguf = Arc::new(Gguf::open(&path).unwrap());
        let graph = kjit_model::arch::build(&gguf).unwrap();
        let options = OpenOptions {
            context: Some(32),
            prefill_chunk: Some(8),
            threads: 2,
            ..OpenOptions::default()
        };
        let engine = engine(&cache(TEMPORARY).join("none"), WORKER, "hiprtc");
        let mut seen = vec![];
        // The first opening tests the kernels, and its byte count includes copies for these tests.
        for name in ["rocm:0", "rocm:0", "rocm:1", "rocm:1"] {
            let device = engine.device(name).unwrap();
            let before = device.counts();
            let mut gpu = SoloSession::gpu(&engine, &device, &gguf, &graph, &options);
            let weights = gpu.on_gpu().statistics().weights;
            let copied = (device.counts() - before).bytes_in;
            seen.push((weights, copied, gpu.generate(&[5, 42, 79], 3, SampleOptions::default())));
        }
        let [_, (weights, copied, tokens), _, (same, shared, own)] = &seen[..] else {
            panic!("{seen:?}")
        };
        assert_eq!((weights, tokens), (same, own));
        assert!(
            copied > &(weights / 2),
            "{copied} bytes were copied for {weights} of weights: all weights were copied"
        );
        assert!(
            shared * 8 < *copied,
            "{shared} bytes were copied to the processor's own GPU, {copied} to the card"
        );
    });
}
