//! Every fault of a kernel gives one line with the kernel, the fault, the block and the thread.
//! After a fault the device refuses all work.

use crate::common::{BLOCK, Bench, TEMPORARY, WORKER};
use kjit_engine::{Geometry, args};
use kjit_kernel_cases::CaseArg;
use kjit_tests::launch::TestLaunch;
use kjit_tests::simulator::{Setup, Simulated, cache, engine};

/// Runs a faulty kernel. Returns the message.
fn wrong(name: &str, argument: u32, buffers: usize) -> String {
    let b = Bench::new("rocm:0");
    let stream = b.device.stream().unwrap();
    let x = b.device.buffer::<f32>(101).unwrap();
    let y = b.device.buffer::<u32>(BLOCK as usize).unwrap();
    stream.fill(&x, 0).unwrap();
    stream.fill(&y, 0).unwrap();
    let shape = Geometry::new(1, BLOCK);
    match buffers {
        0 => stream.put(&b.kernel(name), &shape, &args![&x]),
        1 => stream.put(&b.kernel(name), &shape, &args![&y, argument]),
        _ => stream.put(&b.kernel(name), &shape, &args![&x, &y, argument]),
    }
    .unwrap();
    let error = stream.read(&y).unwrap_err().to_string();
    assert!(error.contains("rocm:0"), "{error}");
    // The device refuses all work afterwards.
    assert!(b.device.buffer::<u32>(1).is_err());
    Simulated::here().fault(0)
}

macro_rules! wrongs {
    ($($test:ident: $kernel:literal, $argument:expr, $buffers:expr, $word:literal;)*) => {$(
        #[test]
        fn $test() {
            let test = concat!("simulated_faults::", stringify!($test));
            Setup::devices("gfx1100").set("HIPSIM_TIMEOUT", "1").run(test, TEMPORARY, || {
                let why = wrong($kernel, $argument, $buffers);
                assert!(why.contains($kernel) && why.contains($word), "{why}");
            });
        }
    )*};
}
wrongs! {
    a_read_one_element_behind_a_buffer_is_a_fault: "reads_behind", 101, 2, "reads outside of what \
        it was given";
    a_read_far_behind_a_buffer_is_a_fault: "reads_behind", 1 << 20, 2, "reads outside of what \
        it was given";
    a_write_before_a_buffer_is_a_fault: "writes_before", 1, 1, "writes outside of what \
        it was given";
    a_vector_load_off_its_alignment_is_a_fault: "unaligned", 8, 2, "unaligned";
    a_word_load_off_its_alignment_is_a_fault: "unaligned_word", 2, 2, "unaligned";
    a_barrier_that_some_threads_miss_is_a_fault: "divergent", 40, 1, "divergent barrier";
    a_wave_operation_that_some_lanes_miss_is_a_fault: "lanes_missing", 5, 1, "not all lanes reach";
    lanes_at_different_wave_operations_are_a_fault: "other_operation", 5, 1, "different wave operations";
    a_read_behind_a_blocks_array_is_a_fault: "behind_lds", 128, 1, "reads outside of what \
        it was given";
    a_shift_by_too_many_bits_is_a_fault: "shifts_too_far", 32, 1, "shift";
}

#[test]
fn access_to_unpassed_buffer_is_a_fault() {
    let test = "simulated_faults::access_to_unpassed_buffer_is_a_fault";
    Setup::devices("gfx1100").run(test, TEMPORARY, || {
        let b = Bench::new("rocm:0");
        let stream = b.device.stream().unwrap();
        let (x, other) = (stream.upload(&[1f32; 8]).unwrap(), stream.upload(&[2f32; 64]).unwrap());
        let y = stream.upload(&[0f32; BLOCK as usize]).unwrap();
        let shape = Geometry::new(1, BLOCK);
        let reads = b.kernel("reads_behind");
        // If the buffer is an argument of the launch, the read is allowed.
        stream.put(&reads, &shape, &args![&other, &y, 63u32]).unwrap();
        assert_eq!(stream.read(&y).unwrap(), [2.0; BLOCK as usize]);
        let away = (other.address().wrapping_sub(x.address()) as i64 / 4) as u32;
        let (first, second) =
            if other.address() > x.address() { (&x, away) } else { (&other, away.wrapping_neg()) };
        stream.put(&reads, &shape, &args![first, &y, second]).unwrap();
        stream.read(&y).unwrap_err();
        let why = Simulated::here().fault(0);
        assert!(
            why.contains("reads outside of what it was given")
                && why.contains("from the start of argument 0"),
            "{why}"
        );
    });
}

/// Unwritten memory is poisoned. An index that is read from it is poisoned, too.
#[test]
fn index_from_unwritten_memory_is_a_fault() {
    Setup::devices("gfx1100").run(
        "simulated_faults::index_from_unwritten_memory_is_a_fault",
        TEMPORARY,
        || {
            let b = Bench::new("rocm:0");
            let stream = b.device.stream().unwrap();
            let (x, y) = (
                b.device.buffer::<f32>(1 << 20).unwrap(),
                b.device.buffer::<u32>(BLOCK as usize).unwrap(),
            );
            stream.fill(&x, 0).unwrap();
            stream
                .put(&b.kernel("follows_choice"), &Geometry::new(1, BLOCK), &args![&x, &y, 16u32])
                .unwrap();
            stream.synchronize().unwrap_err();
            let why = Simulated::here().fault(0);
            assert!(why.contains("outside of what it was given"), "{why}");
        },
    );
}

/// An illegal access that happened on an H200: there were fewer sequences than rows of the program,
/// and the expert kernel used all rows.
#[test]
fn expert_index_of_unused_rows_is_a_fault() {
    Setup::devices("gfx942").run(
        "simulated_faults::expert_index_of_unused_rows_is_a_fault",
        TEMPORARY,
        || {
            let engine = engine(&cache(TEMPORARY).join("none"), WORKER, "hiprtc");
            let device = engine.device("rocm:0").unwrap();
            let all = kjit_kernel_cases::all(device.target(), 64, 1).unwrap();
            let mut case = all
                .into_iter()
                .find(|c| c.name.starts_with("experts Q8_0") && c.name.contains("2 of 3 tokens"))
                .unwrap();
            let kernel = engine
                .load(&device, &case.kernel.job(device.target()))
                .unwrap()
                .kernel(case.kernel.entry)
                .unwrap();
            let stream = device.stream().unwrap();
            let right = stream.try_out(&kernel, &case.geometry, &case.host_args()).unwrap();
            case.check(&right).unwrap();
            let used = case.args.iter_mut().rev().nth(1).unwrap();
            assert!(matches!(used, CaseArg::U32(2)), "{used:?}");
            *used = CaseArg::U32(3);
            stream.try_out(&kernel, &case.geometry, &case.host_args()).unwrap_err();
            let why = Simulated::here().fault(0);
            assert!(
                why.contains("experts: ") && why.contains("outside of what it was given"),
                "{why}"
            );
        },
    );
}

/// A long-lived program survives a fault: the error has a type, and the device can be opened again
/// after all its objects are dropped.
#[test]
fn lost_device_is_reported_and_reopened() {
    Setup::devices("gfx1100").run(
        "simulated_faults::lost_device_is_reported_and_reopened",
        TEMPORARY,
        || {
            let lost = |error: kjit_engine::Error| {
                assert!(matches!(error, kjit_engine::Error::DeviceLost { .. }), "{error}");
                assert!(error.to_string().contains("rocm:0 is lost"), "{error}");
                error.to_string()
            };
            let b = Bench::new("rocm:0");
            let stream = b.device.stream().unwrap();
            let x = b.device.buffer::<f32>(101).unwrap();
            let pinned = b.device.pinned::<u32>(4).unwrap();
            let saxpy = b.kernel("saxpy");
            stream
                .put(&b.kernel("reads_behind"), &Geometry::new(1, BLOCK), &args![&x, &x, 999u32])
                .unwrap();
            lost(stream.synchronize().unwrap_err());
            lost(b.device.buffer::<u32>(1).unwrap_err());
            lost(
                stream
                    .put(&saxpy, &Geometry::new(1, BLOCK), &args![&x, &x, 1f32, 1u32])
                    .unwrap_err(),
            );
            // Page-locked memory must not be freed while its owner uses it.
            assert!(
                lost(b.engine.device("rocm:0").unwrap_err()).contains("drop all of its objects")
            );
            pinned.write(|to| to.fill(7)).unwrap();
            drop((b, stream, x, pinned, saxpy));
            let b = Bench::new("rocm:0");
            assert_eq!(Simulated::here().alive().bytes, 0, "what was lost is given back");
            let stream = b.device.stream().unwrap();
            let (x, y) = (stream.upload(&[2f32; 33]).unwrap(), stream.upload(&[1f32; 33]).unwrap());
            stream
                .put(&b.kernel("saxpy"), &Geometry::new(1, BLOCK), &args![&x, &y, 3f32, 33u32])
                .unwrap();
            assert_eq!(stream.read(&y).unwrap(), [7.0; 33]);
        },
    );
}

#[test]
fn permanently_lost_device_is_reported_at_every_open() {
    let test = "simulated_faults::permanently_lost_device_is_reported_at_every_open";
    Setup::devices("gfx1100").set("HIPSIM_FAULTS", "stay").run(test, TEMPORARY, || {
        let b = Bench::new("rocm:0");
        let stream = b.device.stream().unwrap();
        let x = b.device.buffer::<f32>(101).unwrap();
        stream
            .put(&b.kernel("reads_behind"), &Geometry::new(1, BLOCK), &args![&x, &x, 999u32])
            .unwrap();
        stream.synchronize().unwrap_err();
        let engine = b.engine.clone();
        drop((b, stream, x));
        for _ in 0..3 {
            let error = engine.device("rocm:0").unwrap_err();
            assert!(matches!(error, kjit_engine::Error::DeviceLost { .. }), "{error}");
        }
    });
}

#[test]
fn endless_kernel_is_a_fault_after_its_timeout() {
    let test = "simulated_faults::endless_kernel_is_a_fault_after_its_timeout";
    Setup::devices("gfx1100").set("HIPSIM_TIMEOUT", "0.5").run(test, TEMPORARY, || {
        let b = Bench::new("rocm:0");
        let stream = b.device.stream().unwrap();
        let flag = stream.upload(&[0u32]).unwrap();
        stream.put(&b.kernel("never_ends"), &Geometry::new(1, BLOCK), &args![&flag]).unwrap();
        assert!(stream.synchronize().is_err());
        assert!(Simulated::here().fault(0).contains("does not end"));
    });
}
