//! Whatever a kernel does wrong is one sentence that names the kernel, the wrong, the block and the thread; and after it nothing
//! works on that device any more.

mod common;

use common::{BLOCK, Bench, TEMPORARY};
use kjit_engine::{Geometry, args};
use kjit_tests::simulator::{Setup, Simulated};

/// Runs one kernel that does something wrong; the sentence that comes of it.
fn wrong(name: &str, argument: u32, buffers: usize) -> String {
    let b = Bench::new("rocm:0");
    let stream = b.device.stream().unwrap();
    let x = b.device.buffer::<f32>(101).unwrap();
    let y = b.device.buffer::<u32>(BLOCK as usize).unwrap();
    stream.fill(&x, 0).unwrap();
    stream.fill(&y, 0).unwrap();
    let shape = Geometry::new(1, BLOCK);
    match buffers {
        0 => stream.launch(&b.kernel(name), &shape, &args![&x]),
        1 => stream.launch(&b.kernel(name), &shape, &args![&y, argument]),
        _ => stream.launch(&b.kernel(name), &shape, &args![&x, &y, argument]),
    }
    .unwrap();
    let error = stream.read(&y).unwrap_err().to_string();
    assert!(error.contains("rocm:0"), "{error}");
    // And nothing works on that device any more.
    assert!(b.device.buffer::<u32>(1).is_err());
    Simulated::here().fault(0)
}

macro_rules! wrongs {
    ($($test:ident: $kernel:literal, $argument:expr, $buffers:expr, $word:literal;)*) => {$(
        #[test]
        fn $test() {
            Setup::devices("gfx1100").set("KJIT_HIPSIM_TIMEOUT", "1").run(stringify!($test), TEMPORARY, || {
                let why = wrong($kernel, $argument, $buffers);
                assert!(why.contains($kernel) && why.contains($word), "{why}");
            });
        }
    )*};
}
wrongs! {
    a_read_one_element_behind_a_buffer_is_a_fault: "reads_behind", 101, 2, "reads outside of any buffer";
    a_read_far_behind_a_buffer_is_a_fault: "reads_behind", 1 << 20, 2, "memory that is not there";
    a_write_before_a_buffer_is_a_fault: "writes_before", 1, 1, "writes outside of any buffer";
    a_vector_load_off_its_alignment_is_a_fault: "unaligned", 8, 2, "unaligned";
    a_word_load_off_its_alignment_is_a_fault: "unaligned_word", 2, 2, "unaligned";
    a_barrier_that_some_threads_miss_is_a_fault: "divergent", 40, 1, "divergent barrier";
    a_wave_operation_that_some_lanes_miss_is_a_fault: "lanes_missing", 5, 1, "not all lanes reach";
    lanes_at_different_wave_operations_are_a_fault: "other_operation", 5, 1, "different wave operations";
    a_read_behind_a_blocks_array_is_a_fault: "behind_lds", 128, 1, "reads outside of any buffer";
    a_shift_by_too_many_bits_is_a_fault: "shifts_too_far", 32, 1, "shift";
}

#[test]
fn a_kernel_that_never_ends_is_a_fault_after_the_time_given() {
    let test = "a_kernel_that_never_ends_is_a_fault_after_the_time_given";
    Setup::devices("gfx1100").set("KJIT_HIPSIM_TIMEOUT", "0.5").run(test, TEMPORARY, || {
        let b = Bench::new("rocm:0");
        let stream = b.device.stream().unwrap();
        let flag = stream.upload(&[0u32]).unwrap();
        stream.launch(&b.kernel("never_ends"), &Geometry::new(1, BLOCK), &args![&flag]).unwrap();
        assert!(stream.synchronize().is_err());
        assert!(Simulated::here().fault(0).contains("does not end"));
    });
}
