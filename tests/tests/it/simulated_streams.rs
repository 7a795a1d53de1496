//! Streams, events and tuning of tensors on simulated AMD devices with waves of 32 and of 64 lanes.

use crate::common::{TEMPORARY, WORKER};
use kjit_ops::tuning::{self, Measured};
use kjit_ops::{DType, Device, Event, Scalar, Stream, Tensor};
use kjit_tests::simulator::{Setup, Simulated, cache, engine};

/// Runs `body` with a device of waves of 32 lanes, and with one of 64.
fn on_both(test: &str, body: impl Fn(&Device)) {
    let setup = Setup::devices("gfx1100,gfx942:sramecc+:xnack-")
        .set("HIPSIM_CLANG", "none")
        .set("HIPSIM_OPTIMISE", "-Og");
    setup.run(test, TEMPORARY, || {
        let engine = engine(&cache(TEMPORARY).join("ops"), WORKER, "hiprtc");
        assert!(kjit_ops::device::use_engine(engine));
        for (i, name) in ["rocm:0", "rocm:1"].into_iter().enumerate() {
            body(&Device::open(name).unwrap());
            assert_eq!(Simulated::here().fault(i as i32), "");
        }
    });
}

fn count(n: i64, device: &Device) -> Tensor {
    let count = Tensor::arange(0.into(), n.into(), 1.into(), Some(DType::F32), device).unwrap();
    count.eval().unwrap();
    count
}

fn list(t: &Tensor) -> Vec<f64> {
    t.to_scalars().unwrap().iter().map(|v| v.float()).collect()
}

#[test]
fn tensors_are_ordered_between_streams() {
    on_both("simulated_streams::tensors_are_ordered_between_streams", |device| {
        let one = Tensor::full(&[], Scalar::Int(1), DType::F32, device).unwrap();
        let streams = [false, true, false].map(|urgent| Stream::new(device, urgent).unwrap());
        let own = Stream::current(device);
        assert!(streams.iter().all(|s| *s != own && s.handle() != 0));
        let mut x = count(70_001, device);
        for round in 1..=9u32 {
            let stream = &streams[round as usize % 3];
            let (next, sum) = stream
                .run(|| {
                    assert_eq!(Stream::current(device), *stream);
                    // A fold in chunks, whose counters belong to the stream.
                    let next = x.add(&one)?;
                    let sum = next.sum(None, false, None)?;
                    Ok((next, sum))
                })
                .unwrap();
            // The end of `run` has computed both.
            let launches = device.launches();
            next.eval().unwrap();
            sum.eval().unwrap();
            assert_eq!(device.launches(), launches);
            let want = 70_001.0 * 70_000.0 / 2.0 + 70_001.0 * f64::from(round);
            let got = sum.item().unwrap().float();
            assert!((got - want).abs() <= want * 2.0f64.powi(-24), "{round}: {got} for {want}");
            // The memory of the last tensor returns to its pool while others use it.
            x = next;
        }
        assert_eq!(Stream::current(device), own);
        let again = Stream::new(device, false).unwrap();
        assert!(streams.iter().all(|s| *s != again));
        let handle = again.handle();
        drop(again);
        assert_eq!(Stream::new(device, false).unwrap().handle(), handle, "streams are reused");
    });
}

#[test]
fn events_order_and_measure_streams() {
    on_both("simulated_streams::events_order_and_measure_streams", |device| {
        let (a, b) = (Stream::new(device, false).unwrap(), Stream::new(device, false).unwrap());
        let (start, end) = (Event::new(device, true), Event::new(device, true));
        assert!(start.milliseconds_until(&end).is_err() && start.is_done().unwrap());
        let x = count(4000, device);
        let y = a
            .run(|| {
                start.record(&a)?;
                let y = x.mul(&x)?;
                // `record` computes what the block has made so far.
                let before = device.launches();
                end.record(&a)?;
                assert_eq!(device.launches(), before + 1);
                Ok(y)
            })
            .unwrap();
        b.wait_event(&end).unwrap();
        b.wait_stream(&a).unwrap();
        b.synchronize().unwrap();
        assert!(end.is_done().unwrap() && b.is_idle().unwrap());
        assert!(start.milliseconds_until(&end).unwrap() >= 0.0);
        assert!(start.milliseconds_until(&start).unwrap() == 0.0);
        assert_eq!(list(&y)[3999], 3999.0 * 3999.0);
        let other = Event::new(&Device::Cpu, true);
        assert!(b.wait_event(&other).unwrap_err().to_string().contains("cpu"));
        assert!(a.leave(true).unwrap_err().to_string().contains("has not entered"));
    });
}

#[test]
fn measured_tilings_agree_and_are_kept() {
    on_both("simulated_streams::measured_tilings_agree_and_are_kept", |device| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("verdicts");
        assert_eq!(tuning::set_file(Some(&path)).unwrap(), 0);
        // Sums of integers are exact in every order.
        let (m, k, n) = (67, 41, 53);
        let matrix = |rows: i64, cols: i64| {
            let all = count(rows * cols, device);
            let seven = Tensor::full(&[], Scalar::Int(7), DType::F32, device).unwrap();
            let small = all.binary(kjit_ops::BinOp::Rem, &seven);
            let out = small.unwrap().reshape(&[rows, cols]).unwrap();
            out.eval().unwrap();
            out
        };
        let (a, b) = (matrix(m, k), matrix(k, n));
        let want = list(&a.matmul(&b).unwrap());
        tuning::exhaustive(true);
        let measured = list(&a.matmul(&b).unwrap());
        tuning::exhaustive(false);
        assert_eq!(measured, want);
        assert_eq!(tuning::set_file(Some(&path)).unwrap(), 1);
        let arch = device.info().architecture;
        let arch = arch.split(':').next().unwrap();
        let own = |v: &&tuning::Verdict| v.device == arch && v.subject.contains("67 × 53 × 41");
        let all = tuning::verdicts();
        let verdict = all.iter().find(own).unwrap();
        assert_eq!(verdict.measured.len(), 3, "{verdict:?}");
        assert!(verdict.measured.iter().all(|(_, m)| matches!(m, Measured::Microseconds(_))));
        // Each tiling that a file names is used; another name is an error.
        let text = std::fs::read_to_string(&path).unwrap();
        for name in verdict.measured.iter().map(|(name, _)| name.as_str()).chain(["other"]) {
            let line = text.replace(&format!("\t{}\t", verdict.choice), &format!("\t{name}\t"));
            std::fs::write(&path, line).unwrap();
            assert_eq!(tuning::set_file(Some(&path)).unwrap(), 1);
            match a.matmul(&b).unwrap().to_scalars() {
                Ok(_) if name != "other" => {
                    assert_eq!(list(&a.matmul(&b).unwrap()), want, "{name}")
                }
                got => {
                    let error = got.unwrap_err().to_string();
                    assert!(name == "other" && error.contains("candidate 'other'"), "{error}");
                }
            }
        }
        tuning::set_file(None).unwrap();
    });
}
