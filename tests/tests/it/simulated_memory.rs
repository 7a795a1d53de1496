//! Memory of tensors on a simulated AMD device: shared through DLPack without copies, kept in the
//! pool, copied through page-locked memory; and the launches that an explanation counts.

use crate::common::{TEMPORARY, WORKER};
use kjit_ops::dlpack::{Foreign, ROCM};
use kjit_ops::pool::empty_cache;
use kjit_ops::{BinOp, DType, Device, Role, Scalar, Tensor};
use kjit_tests::simulator::{Setup, cache, engine};

fn on_one(test: &str, body: impl Fn(&Device)) {
    let setup = Setup::devices("gfx1100").set("HIPSIM_CLANG", "none").set("HIPSIM_OPTIMISE", "-Og");
    setup.run(test, TEMPORARY, || {
        let engine = engine(&cache(TEMPORARY).join("ops"), WORKER, "hiprtc");
        assert!(kjit_ops::device::use_engine(engine));
        body(&Device::open("rocm:0").unwrap());
    });
}

fn counted(rows: usize, columns: usize, device: &Device) -> Tensor {
    let n = Scalar::Int((rows * columns) as i128);
    let x = Tensor::arange(0.into(), n, 1.into(), Some(DType::F32), &Device::Cpu).unwrap();
    let shape = [rows as i64, columns as i64];
    x.reshape(&shape).unwrap().to_device(device).unwrap()
}

fn floats(x: &Tensor) -> Vec<f64> {
    x.to_scalars().unwrap().iter().map(|v| v.float()).collect()
}

#[test]
fn gpu_memory_is_exchanged_by_dlpack_without_a_copy() {
    on_one("simulated_memory::gpu_memory_is_exchanged_by_dlpack_without_a_copy", |device| {
        let x = counted(7, 13, device);
        let turned = x.flip(Some(&[0])).unwrap().matrix_transpose().unwrap();
        let shown = turned.to_dlpack(false).unwrap().versioned();
        let own = &shown.dl_tensor;
        assert_eq!((own.device_type, own.device_id, own.ndim), (ROCM, 0, 2));
        let before = device.pool_statistics().unwrap();
        let launched = device.launches();
        let shown = Box::into_raw(shown);
        // SAFETY: the struct is complete, and its memory stays until its deleter is called.
        #[allow(unsafe_code, reason = "DLPack is structs behind pointers")]
        let back = unsafe {
            let keep = Box::new(Foreign::Versioned(shown));
            Tensor::from_dltensor(&(*shown).dl_tensor, keep).unwrap()
        };
        let after = device.pool_statistics().unwrap();
        assert_eq!((after.live, device.launches()), (before.live, launched), "a copy was made");
        assert_eq!((back.shape(), back.device()), (&[13usize, 7][..], device));
        drop((x, turned));
        // The shared memory stays valid after the tensors that created it are dropped.
        let sum = back.binary(BinOp::Add, &back).unwrap();
        let want: Vec<f64> =
            (0..13).flat_map(|c| (0..7).rev().map(move |r| f64::from(2 * (r * 13 + c)))).collect();
        assert_eq!(floats(&sum), want);
        let copy = back.duplicate().unwrap();
        copy.eval().unwrap();
        let live = device.pool_statistics().unwrap().live;
        drop(back);
        drop(sum);
        assert!(device.pool_statistics().unwrap().live < live, "the deleter was not called");
        assert_eq!(floats(&copy).iter().sum::<f64>(), want.iter().sum::<f64>() / 2.0);
    });
}

#[test]
fn invalid_strides_and_foreign_devices_are_refused() {
    on_one("simulated_memory::invalid_strides_and_foreign_devices_are_refused", |device| {
        let x = counted(3, 5, device);
        for change in 0..4 {
            let mut shown = x.to_dlpack(false).unwrap().versioned();
            let given = &mut shown.dl_tensor;
            match change {
                0 => given.device_type = 7,
                1 => given.dtype.bits = 24,
                2 => given.dtype.lanes = 4,
                _ => given.ndim = -1,
            }
            // SAFETY: the memory is not read: each changed struct is refused before that.
            #[allow(unsafe_code, reason = "DLPack is structs behind pointers")]
            let refused = unsafe { Tensor::from_dltensor(given, Box::new(())) };
            assert!(refused.is_err(), "{change}");
            drop(Foreign::Versioned(Box::into_raw(shown)));
        }
    });
}

#[test]
fn warm_pool_allocates_nothing_and_can_be_cleared() {
    on_one("simulated_memory::warm_pool_allocates_nothing_and_can_be_cleared", |device| {
        device.warm_up(&[4 * 1000, 4 * 1000, 4 * 1000, 1 << 20]).unwrap();
        let before = device.pool_statistics().unwrap();
        assert_eq!(before.live, 0);
        let x = counted(10, 100, device);
        let y = x.binary(BinOp::Mul, &x).unwrap();
        y.eval().unwrap();
        let after = device.pool_statistics().unwrap();
        assert_eq!((after.misses, after.held), (before.misses, before.held));
        assert!(after.hits > before.hits && after.in_use > 0);
        drop((x, y));
        assert_eq!(empty_cache(), before.held);
        assert_eq!(device.pool_statistics().unwrap().held, 0);
        let refused = device.warm_up(&[1 << 60]).unwrap_err().to_string();
        assert!(refused.contains("rocm:0"), "{refused}");
        for refused in [Device::Cpu.warm_up(&[1]).err(), Device::Cpu.clear_pool().err()] {
            assert!(refused.unwrap().to_string().contains("the CPU has no memory pool"));
        }
    });
}

#[test]
fn copies_use_page_locked_blocks() {
    on_one("simulated_memory::copies_use_page_locked_blocks", |device| {
        device.warm_up_pinned(&[1 << 12, 1 << 16]).unwrap();
        let held = 2 * (4096 + 65536);
        for (rows, hits, misses) in [(10, 2, 0), (150, 4, 0)] {
            let x = counted(rows, 100, device);
            let total: f64 = floats(&x).iter().sum();
            let n = (rows * 100) as f64;
            assert_eq!(total, n * (n - 1.0) / 2.0);
            let stats = device.pinned_statistics().unwrap();
            assert_eq!((stats.hits, stats.misses, stats.held), (hits, misses, held));
        }
        // There is no block of this size yet: the copy allocates one and leaves it.
        let _large = counted(1000, 100, device);
        let stats = device.pinned_statistics().unwrap();
        assert_eq!((stats.hits, stats.misses, stats.held), (4, 1, held + (512 << 10)));
        assert_eq!(device.clear_pinned().unwrap(), held + (512 << 10));
        assert_eq!(device.pinned_statistics().unwrap().held, 0);
        let refused = device.warm_up_pinned(&[1 << 30; 300]).unwrap_err().to_string();
        assert!(refused.contains("exceed the limit"), "{refused}");
    });
}

#[test]
fn explain_counts_the_launches() {
    on_one("simulated_memory::explain_counts_the_launches", |device| {
        let x = counted(31, 33, device);
        let chain = x.binary(BinOp::Mul, &x).unwrap().relu().unwrap();
        let told = chain.explain().unwrap();
        assert_eq!((told.launches, told.device.as_str()), (1, "rocm:0"));
        let stored: Vec<usize> =
            (0..told.parts.len()).filter(|i| told.parts[*i].role == Role::Stored).collect();
        assert_eq!(stored.len(), 1);
        let names: Vec<&str> =
            told.group(stored[0]).iter().map(|i| told.parts[*i].operation.as_str()).collect();
        assert!(names.contains(&"multiply") && names.last() != Some(&"multiply"), "{names:?}");
        assert_eq!(chain.explain().unwrap().launches, 0);
    });
}

/// Without page-locked memory the driver copies; the values must be equal.
#[test]
fn copies_work_without_page_locked_memory() {
    let setup = Setup::devices("gfx1100")
        .set("HIPSIM_CLANG", "none")
        .set("HIPSIM_OPTIMISE", "-Og")
        .set("HIPSIM_FAIL", "hipHostMalloc:*:2");
    let test = "simulated_memory::copies_work_without_page_locked_memory";
    setup.run(test, TEMPORARY, || {
        let engine = engine(&cache(TEMPORARY).join("ops"), WORKER, "hiprtc");
        assert!(kjit_ops::device::use_engine(engine));
        let device = Device::open("rocm:0").unwrap();
        for rows in [1, 31, 3000] {
            let x = counted(rows, 100, &device);
            let want: Vec<f64> = (0..rows * 100).map(|n| n as f64).collect();
            assert_eq!(floats(&x), want);
        }
    });
}
