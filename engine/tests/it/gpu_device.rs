//! Tests the engine on a real GPU. Without a GPU every test prints a message and is skipped; with
//! `KJIT_REQUIRE_GPU=1` it fails.

use crate::common::{Random, gpu};
use kjit_engine::{
    Arena, Arg, Constants, Device, DeviceBuffer, Engine, Error, Geometry, Job, Kernel, Module,
    Options, Source, Stream, Target, Trace, args,
};
use std::sync::Arc;

/// Launches this file's own kernels.
trait TestLaunch {
    fn put(&self, kernel: &Kernel, shape: &Geometry, args: &[Arg<'_>]) -> kjit_engine::Result<()>;
}

impl TestLaunch for Stream {
    fn put(&self, kernel: &Kernel, shape: &Geometry, args: &[Arg<'_>]) -> kjit_engine::Result<()> {
        // SAFETY: the kernels below access only their buffers, whose sizes match their arguments.
        unsafe { self.launch(kernel, shape, args) }
    }
}

const BLOCK: u32 = 128;

const KERNELS: &str = r#"
#define KERNEL extern "C" __global__ void __launch_bounds__(BLOCK)
typedef unsigned int u32;

KERNEL saxpy(const float* x, float* y, float a, u32 n) {
    u32 i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}

// Writes the value after `cycles`, so that whoever does not wait for it sees the old one.
KERNEL late(u32* to, u32 value, long long cycles) {
    long long start = clock64();
    while (clock64() - start < cycles) {}
    to[0] = value;
}

KERNEL add_one(const u32* from, u32* to, u32 n) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    u32 i = blockIdx.x * BLOCK + threadIdx.x;
    // Another block's element, so that a missing order between kernels shows.
    if (i < n) to[i] = from[(i + BLOCK) % n] + 1;
}

// Every block adds its number; after a barrier of the whole grid all read the sum.
KERNEL together(u32* words, u32* out, u32 blocks) {
    if (threadIdx.x == 0) {
        atomicAdd(words + 1, blockIdx.x);
        __threadfence();
        atomicAdd(words, 1u);
        while (atomicAdd(words, 0u) < blocks) {}
        out[blockIdx.x] = atomicAdd(words + 1, 0u);
    }
}

KERNEL big_shared(float* out) {
    extern __shared__ float tile[];
    tile[threadIdx.x * 128] = (float)threadIdx.x;
    __syncthreads();
    out[threadIdx.x] = tile[(BLOCK - 1 - threadIdx.x) * 128];
}
"#;

fn job(device: &Device) -> Job {
    job_for(device.target().clone())
}

fn job_for(target: Target) -> Job {
    let source = Source::new("engine tests", "tests.hip", KERNELS).entry("saxpy").entry("together");
    Job::new(
        source,
        Constants::new().set("BLOCK", BLOCK),
        Options::wave(target.default_wave()),
        target,
    )
}

struct Bench {
    _dir: tempfile::TempDir,
    engine: Engine,
    device: Device,
    module: Module,
}

impl Bench {
    fn new(test: &str) -> Option<Bench> {
        let dir = tempfile::tempdir().unwrap();
        let (engine, device) = gpu(dir.path(), test)?;
        let module = engine.load(&device, &job(&device)).unwrap();
        Some(Bench { _dir: dir, engine, device, module })
    }

    fn kernel(&self, name: &str) -> Kernel {
        self.module.kernel(name).unwrap()
    }
}

#[test]
fn kernels_of_this_file_compile_without_gpu() {
    let dir = tempfile::tempdir().unwrap();
    let Some(engine) =
        crate::common::engine(dir.path(), "kernels_of_this_file_compile_without_gpu")
    else {
        return;
    };
    for target in ["sm_75", "sm_86", "sm_90"] {
        let code = engine.compile(&job_for(target.parse().unwrap())).unwrap();
        assert_eq!(code.kernels().len(), 5);
        // nvrtc 13.0 prints no spill counts for sm_90; no local memory means no spills.
        assert!(
            code.kernels().iter().all(|k| k.spills.unwrap_or(0) == 0 && k.local == 0),
            "{target}"
        );
    }
}

#[test]
#[ignore = "needs a GPU (scripts/gpu-suite)"]
fn saxpy_is_correct_at_odd_sizes() {
    let Some(b) = Bench::new("saxpy_is_correct_at_odd_sizes") else { return };
    let (stream, kernel) = (b.device.stream().unwrap(), b.kernel("saxpy"));
    let mut random = Random::new();
    for n in [1usize, 31, 33, 63, 65, 127, 128, 129, 1009, 1_000_003] {
        let (x, y, a) = (random.floats(n), random.floats(n), random.floats(1)[0]);
        let whole: DeviceBuffer<f32> = b.device.buffer(n + 64).unwrap();
        stream.fill(&whole, 0xff).unwrap(); // all values are NaN
        let (dx, dy) = (stream.upload(&x).unwrap(), whole.slice(32..32 + n).unwrap());
        stream.write(&dy, &y).unwrap();
        let grid = (n as u32).div_ceil(BLOCK);
        stream.put(&kernel, &Geometry::new(grid, BLOCK), &args![&dx, &dy, a, n as u32]).unwrap();
        let all = stream.read(&whole).unwrap();
        for (i, got) in all.iter().enumerate() {
            match i.checked_sub(32).filter(|i| *i < n) {
                // nvrtc contracts product and sum into one rounding, as `mul_add` does.
                Some(j) => assert_eq!(*got, a.mul_add(x[j], y[j]), "n {n} at {j}"),
                None => assert!(got.is_nan(), "n {n}: wrote outside at {i}"),
            }
        }
    }
}

#[test]
#[ignore = "needs a GPU (scripts/gpu-suite)"]
fn wrong_arguments_and_geometry_are_refused_before_launch() {
    let Some(b) = Bench::new("wrong_arguments_and_geometry_are_refused_before_launch") else {
        return;
    };
    let (stream, kernel) = (b.device.stream().unwrap(), b.kernel("saxpy"));
    let (x, y) = (stream.upload(&[1.0f32; 8]).unwrap(), stream.upload(&[1.0f32; 8]).unwrap());
    let good = Geometry::new(1, BLOCK);
    let before = b.device.counts().launches;
    let refused = |shape: &Geometry, args: &[kjit_engine::Arg<'_>], word: &str| {
        let error = stream.put(&kernel, shape, args).unwrap_err();
        assert!(matches!(error, Error::Launch { .. }), "{error:?}");
        assert!(error.to_string().contains("saxpy") && error.to_string().contains(word), "{error}");
    };
    refused(&good, &args![&x, &y, 2.0f32], "3 arguments given, but the code object has 4");
    refused(
        &good,
        &args![&x, &y, 2.0f64, 8u32],
        "argument 2 is f64 (8 bytes), but the code object expects 4 bytes",
    );
    refused(&good, &args![&x, 1u32, 2.0f32, 8u32], "argument 1 is u32");
    refused(&Geometry::new(1, BLOCK + 1), &args![&x, &y, 2.0f32, 8u32], "129 threads");
    refused(&Geometry::new(0, BLOCK), &args![&x, &y, 2.0f32, 8u32], "empty");
    refused(&good.shared(1 << 20), &args![&x, &y, 2.0f32, 8u32], "shared memory");
    refused(
        &Geometry::new(1 << 24, BLOCK).cooperative(true),
        &args![&x, &y, 2.0f32, 8u32],
        "cooperative",
    );
    assert_eq!(b.device.counts().launches, before);
    assert_eq!(stream.read(&y).unwrap(), [1.0; 8]);
    assert!(
        b.module
            .kernel("gone")
            .unwrap_err()
            .to_string()
            .contains("it has add_one, big_shared, late")
    );
}

#[test]
#[ignore = "needs a GPU (scripts/gpu-suite)"]
fn events_order_streams_and_measure_time() {
    let Some(b) = Bench::new("events_order_streams_and_measure_time") else { return };
    let (one, two) = (b.device.stream().unwrap(), b.device.urgent_stream().unwrap());
    let late = b.kernel("late");
    let add = b.kernel("add_one");
    let from = one.upload(&[0u32]).unwrap();
    let to: DeviceBuffer<u32> = b.device.buffer(1).unwrap();
    let written = b.device.event().unwrap();
    let shape = Geometry::new(1, 1);
    for round in 1..=20u32 {
        let (start, end) = (b.device.timed_event().unwrap(), b.device.timed_event().unwrap());
        one.record(&start).unwrap();
        one.put(&late, &shape, &args![&from, round * 7, 1_000_000i64]).unwrap();
        one.record(&end).unwrap();
        one.record(&written).unwrap();
        two.wait(&written).unwrap();
        two.put(&add, &shape, &args![&from, &to, 1u32]).unwrap();
        assert_eq!(two.read(&to).unwrap(), [round * 7 + 1]);
        assert!(end.is_done().unwrap());
        let ms = end.milliseconds_since(&start).unwrap();
        assert!(ms > 0.2 && ms < 1000.0, "{ms} ms for a million cycles");
        one.wait(&{
            let seen = b.device.event().unwrap();
            two.record(&seen).unwrap();
            seen
        })
        .unwrap();
    }
}

#[test]
#[ignore = "needs a GPU (scripts/gpu-suite)"]
fn host_write_is_visible_to_next_kernel() {
    let Some(b) = Bench::new("host_write_is_visible_to_next_kernel") else { return };
    let (one, two) = (b.device.stream().unwrap(), b.device.stream().unwrap());
    let n = 1 << 20;
    let (from, to) = (b.device.buffer::<u32>(n).unwrap(), b.device.buffer::<u32>(n).unwrap());
    let shape = Geometry::new((n as u32).div_ceil(BLOCK), BLOCK);
    for round in 0..20u32 {
        one.write(&from, &vec![round; n]).unwrap();
        two.put(&b.kernel("add_one"), &shape, &args![&from, &to, n as u32]).unwrap();
        assert!(two.read(&to).unwrap().iter().all(|v| *v == round + 1), "round {round}");
    }
}

#[test]
#[ignore = "needs a GPU (scripts/gpu-suite)"]
fn graph_replays_without_allocating_or_waiting() {
    let Some(b) = Bench::new("graph_replays_without_allocating_or_waiting") else { return };
    let stream = b.device.stream().unwrap();
    let (add, together) = (b.kernel("add_one"), b.kernel("together"));
    let n = 132 * BLOCK;
    let grid = n / BLOCK;
    let (a, c) = (
        stream.upload(&vec![0u32; n as usize]).unwrap(),
        stream.upload(&vec![0u32; n as usize]).unwrap(),
    );
    let (words, out) =
        (stream.upload(&[0u32; 2]).unwrap(), stream.upload(&vec![0u32; 4096]).unwrap());
    let token = b.device.pinned::<u32>(1).unwrap();
    let blocks = b.device.info().units.min(64);
    let chain = Geometry::new(grid, BLOCK).dependent(true);
    const STEPS: u32 = 40;
    let record = || {
        for _ in 0..STEPS / 2 {
            stream.put(&add, &chain, &args![&a, &c, n])?;
            stream.put(&add, &chain, &args![&c, &a, n])?;
        }
        stream.fill(&words, 0)?;
        stream.put(
            &together,
            &Geometry::new(blocks, BLOCK).cooperative(true),
            &args![&words, &out, blocks],
        )?;
        stream.copy_out(&a.slice(..1)?, &token)
    };
    let graph = stream.capture(record).unwrap();
    assert_eq!(graph.nodes(), STEPS as usize + 3);
    assert_eq!(stream.read(&a).unwrap()[0], 0, "capturing must not run anything");
    stream.replay(&graph).unwrap(); // The first replay also makes the token's event.
    let before = b.device.counts();
    for _ in 1..25 {
        stream.replay(&graph).unwrap();
    }
    let during = b.device.counts() - before;
    assert_eq!(
        (
            during.replays,
            during.allocations,
            during.synchronisations,
            during.launches,
            during.copies_in
        ),
        (24, 0, 0, 0, 0)
    );
    assert_eq!(token.read(|t| t[0]).unwrap(), 25 * STEPS);
    assert_eq!(token.peek(0).unwrap(), 25 * STEPS);
    assert!(stream.read(&a).unwrap().iter().all(|v| *v == 25 * STEPS));
    let sum = blocks * (blocks - 1) / 2;
    assert!(stream.read(&out).unwrap()[..blocks as usize].iter().all(|v| *v == sum));
}

#[test]
#[ignore = "needs a GPU (scripts/gpu-suite)"]
fn graph_accepts_new_arguments_but_not_new_shape() {
    let Some(b) = Bench::new("graph_accepts_new_arguments_but_not_new_shape") else { return };
    let (stream, add) = (b.device.stream().unwrap(), b.kernel("add_one"));
    let buffer = || stream.upload(&[10u32; 256]).unwrap();
    let (a, c, d) = (buffer(), buffer(), buffer());
    let shape = Geometry::new(2, BLOCK);
    let mut graph = stream.capture(|| stream.put(&add, &shape, &args![&a, &c, 256u32])).unwrap();
    stream.replay(&graph).unwrap();
    assert!(graph.update(&stream, || stream.put(&add, &shape, &args![&a, &d, 256u32])).unwrap());
    drop(c);
    stream.replay(&graph).unwrap();
    assert_eq!(stream.read(&d).unwrap(), [11; 256]);
    let twice = || {
        stream.put(&add, &shape, &args![&a, &d, 256u32])?;
        stream.put(&add, &shape, &args![&d, &a, 256u32])
    };
    assert!(!graph.update(&stream, twice).unwrap());
    stream.replay(&graph).unwrap();
    assert_eq!(stream.read(&a).unwrap(), [10; 256]);
}

#[test]
#[ignore = "needs a GPU (scripts/gpu-suite)"]
fn graph_keeps_its_buffers_and_kernels_alive() {
    let Some(b) = Bench::new("graph_keeps_its_buffers_and_kernels_alive") else { return };
    let stream = b.device.stream().unwrap();
    let to = stream.upload(&[0u32; 128]).unwrap();
    let before = b.device.counts().frees;
    let graph = {
        let module = b.engine.load(&b.device, &job(&b.device)).unwrap();
        let from = stream.upload(&[41u32; 128]).unwrap();
        let add = module.kernel("add_one").unwrap();
        stream
            .capture(|| stream.put(&add, &Geometry::new(1, BLOCK), &args![&from, &to, 128u32]))
            .unwrap()
    };
    assert_eq!(b.device.counts().frees, before);
    stream.replay(&graph).unwrap();
    assert_eq!(stream.read(&to).unwrap(), [42; 128]);
    drop(graph);
    assert_eq!(b.device.counts().frees, before + 1);
}

#[test]
#[ignore = "needs a GPU (scripts/gpu-suite)"]
fn failed_capture_is_an_error_and_stream_stays_usable() {
    let Some(b) = Bench::new("failed_capture_is_an_error_and_stream_stays_usable") else { return };
    let stream = b.device.stream().unwrap();
    let buffer = stream.upload(&[1u32; 4]).unwrap();
    let error = stream.capture(|| stream.read(&buffer).map(drop)).unwrap_err();
    assert!(error.to_string().contains("cannot be part of a captured graph"), "{error}");
    // A panic during a capture also ends the capture.
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _ = stream.capture(|| panic!("inside a capture"));
    }));
    assert!(panicked.is_err());
    // Buffers dropped during capture are freed afterwards.
    let mut dropped = Some(b.device.buffer::<u32>(1000).unwrap());
    let frees = b.device.counts().frees;
    let graph = stream.capture(|| {
        drop(dropped.take());
        assert_eq!(b.device.counts().frees, frees + 1);
        stream.fill(&buffer, 2)
    });
    let graph = graph.unwrap();
    let again = b.device.stream().unwrap();
    again.replay(&graph).unwrap();
    again.synchronize().unwrap();
}

#[test]
#[ignore = "needs a GPU (scripts/gpu-suite)"]
fn cooperative_launch_synchronises_the_whole_grid() {
    let Some(b) = Bench::new("cooperative_launches") else { return };
    let (stream, kernel) = (b.device.stream().unwrap(), b.kernel("together"));
    let each = kernel.resident_blocks(BLOCK, 0).unwrap();
    let most = each * b.device.info().units;
    assert!(each >= 1 && most >= 2);
    for blocks in [1, 2, 31, most] {
        let (words, out) = (
            stream.upload(&[0u32; 2]).unwrap(),
            stream.upload(&vec![u32::MAX; blocks as usize]).unwrap(),
        );
        let shape = Geometry::new(blocks, BLOCK).cooperative(true);
        stream.put(&kernel, &shape, &args![&words, &out, blocks]).unwrap();
        let sum = (0..blocks).sum::<u32>();
        assert!(stream.read(&out).unwrap().iter().all(|v| *v == sum), "{blocks} blocks");
    }
    let shape = Geometry::new(most + 1, BLOCK).cooperative(true);
    let (words, out) = (
        stream.upload(&[0u32; 2]).unwrap(),
        stream.upload(&vec![0u32; most as usize + 1]).unwrap(),
    );
    let error = stream.put(&kernel, &shape, &args![&words, &out, most + 1]).unwrap_err();
    assert!(error.to_string().contains(&format!("{most} blocks can be resident")), "{error}");
}

#[test]
#[ignore = "needs a GPU (scripts/gpu-suite)"]
fn dynamic_shared_memory_above_static_limit_works() {
    let Some(b) = Bench::new("dynamic_shared_memory_above_static_limit_works") else { return };
    let (stream, kernel) = (b.device.stream().unwrap(), b.kernel("big_shared"));
    let out: DeviceBuffer<f32> = b.device.buffer(BLOCK as usize).unwrap();
    let bytes = BLOCK * 128 * 4; // 64 KiB
    stream.put(&kernel, &Geometry::new(1, BLOCK).shared(bytes), &args![&out]).unwrap();
    let want: Vec<f32> = (0..BLOCK).rev().map(|i| i as f32).collect();
    assert_eq!(stream.read(&out).unwrap(), want);
}

#[test]
#[ignore = "needs a GPU (scripts/gpu-suite)"]
fn pool_reuses_returned_memory_and_does_not_grow() {
    let Some(b) = Bench::new("pool_reuses_returned_memory_and_does_not_grow") else { return };
    let (stream, other) = (b.device.stream().unwrap(), b.device.stream().unwrap());
    let before = b.device.counts();
    let pool = stream.pool();
    let late = b.kernel("late");
    let one = Geometry::new(1, 1);
    for round in 0..50u32 {
        let (a, c) = (pool.buffer::<u32>(1000).unwrap(), pool.buffer::<u32>(70_000).unwrap());
        stream.put(&late, &one, &args![&a, round, 20_000i64]).unwrap();
        // Another stream uses the buffer as well. It returns to the pool after the work of that
        // stream, whose late write must not reach the next owner.
        other.put(&late, &one, &args![&c, 77u32, 200_000i64]).unwrap();
        assert_eq!(pool.stats().live, 2);
        drop((a, c));
        let again = pool.buffer::<u32>(70_000).unwrap();
        stream.put(&late, &one, &args![&again, round, 0i64]).unwrap();
        other.synchronize().unwrap();
        assert_eq!(stream.read(&again.slice(..1).unwrap()).unwrap(), [round]);
    }
    let stats = pool.stats();
    assert_eq!((stats.hits, stats.misses, stats.live, stats.in_use), (148, 2, 0, 0));
    assert!(stats.peak >= 284_000 && stats.held == stats.peak, "{stats:?}");
    assert_eq!(pool.trim(), stats.held);
    assert_eq!(pool.stats().held, 0);
    let during = b.device.counts() - before;
    assert_eq!((during.allocations, during.frees), (2, 2));
}

#[test]
#[ignore = "needs a GPU (scripts/gpu-suite)"]
fn dropped_pool_returns_all_memory_to_driver() {
    let Some(b) = Bench::new("dropped_pool_returns_all_memory_to_driver") else { return };
    let stream = b.device.stream().unwrap();
    let before = b.device.counts();
    let kept = {
        let pool = stream.pool();
        let all: Vec<DeviceBuffer<u8>> = (0..20).map(|i| pool.buffer(1 << i).unwrap()).collect();
        let stats = pool.stats();
        assert_eq!(stats.live, 20);
        assert!(stats.in_use >= (1 << 20) - 1 && stats.in_use <= 3 << 20, "{stats:?}");
        all.into_iter().next_back().unwrap()
    };
    // The last buffer keeps the pool alive.
    assert!((b.device.counts() - before).frees < 20);
    stream.fill(&kept, 1).unwrap();
    drop(kept);
    let after = b.device.counts() - before;
    assert_eq!((after.allocations, after.frees), (20, 20));
}

#[test]
#[ignore = "needs a GPU (scripts/gpu-suite)"]
fn arena_gives_aligned_buffers_and_reports_remaining_bytes() {
    let Some(b) = Bench::new("arena_gives_aligned_buffers_and_reports_remaining_bytes") else {
        return;
    };
    let stream = b.device.stream().unwrap();
    let room = Arena::room::<f32>(33).unwrap()
        + Arena::room::<u8>(1).unwrap()
        + Arena::room::<u64>(100).unwrap();
    assert_eq!(room, 256 + 256 + 1024);
    let arena = b.device.arena(room).unwrap();
    let (one, two, three) = (
        arena.buffer::<f32>(33).unwrap(),
        arena.buffer::<u8>(1).unwrap(),
        arena.buffer::<u64>(100).unwrap(),
    );
    for address in [one.address(), two.address(), three.address()] {
        assert_eq!(address % 256, 0);
    }
    assert_eq!(arena.usage(), (room, room));
    let error = arena.buffer::<u8>(1).unwrap_err().to_string();
    assert!(error.contains("0 of 1536 bytes are free"), "{error}");
    drop(arena);
    stream.write(&three, &[5u64; 100]).unwrap();
    assert_eq!(stream.read(&three).unwrap(), [5; 100]);
}

#[test]
#[ignore = "needs a GPU (scripts/gpu-suite)"]
fn pinned_copies_are_ordered_and_host_access_waits() {
    let Some(b) = Bench::new("pinned_copies_are_ordered_and_host_access_waits") else { return };
    let stream = b.device.stream().unwrap();
    let late = b.kernel("late");
    let mut random = Random::new();
    for n in [1usize, 31, 65, 4097, 1_000_003] {
        let data = random.floats(n);
        let (staging, back) =
            (b.device.pinned_for_writing::<f32>(n).unwrap(), b.device.pinned::<f32>(n).unwrap());
        let buffer = b.device.buffer::<f32>(n).unwrap();
        staging.write(|to| to.copy_from_slice(&data)).unwrap();
        let syncs = b.device.counts().synchronisations;
        stream.copy_in(&staging, &buffer).unwrap();
        stream.copy_out(&buffer, &back).unwrap();
        assert_eq!(b.device.counts().synchronisations, syncs, "async copies must not wait");
        // `write` waits for the copy that still reads the memory.
        staging.write(|to| to.fill(f32::NAN)).unwrap();
        assert_eq!(back.read(<[f32]>::to_vec).unwrap(), data, "n {n}");
    }
    // A kernel writes to pinned memory; the host polls without waiting for the stream.
    let word = b.device.pinned::<u32>(3).unwrap();
    let seen = word.slice(1..2).unwrap();
    stream
        .put(&late, &Geometry::new(1, 1), &args![&seen.on_device(), 99u32, 10_000_000i64])
        .unwrap();
    let mut polls = 0u64;
    while word.peek(1).unwrap() == 0 {
        polls += 1;
        assert!(polls < 1 << 32);
    }
    assert_eq!(word.read(<[u32]>::to_vec).unwrap(), [0, 99, 0]);
    assert!(word.peek(3).is_err());
}

#[test]
#[ignore = "needs a GPU (scripts/gpu-suite)"]
fn mapped_file_can_be_registered_and_copied_from() {
    let Some(b) = Bench::new("mapped_file_can_be_registered_and_copied_from") else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("weights");
    let bytes: Vec<u8> =
        (0..3_000_017u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    std::fs::write(&path, &bytes).unwrap();
    let file = std::fs::File::open(&path).unwrap();
    // SAFETY: no process changes the file while the test runs.
    let map = Arc::new(unsafe { memmap2::Mmap::map(&file) }.unwrap());
    let stream = b.device.stream().unwrap();
    let host = match b.device.register(map) {
        Ok(host) => host,
        Err(error) => {
            // The contract allows this error: the caller then stages copies. The message shows on
            // which systems it happens.
            eprintln!(
                "NOT REGISTERED: {error} (the device says it can: {})",
                b.device.info().registers_read_only
            );
            assert!(!b.device.info().registers_read_only || matches!(error, Error::Driver { .. }));
            return;
        }
    };
    let buffer = b.device.buffer::<u8>(1_000_003).unwrap();
    stream.copy_in_mapped(&host, 4097..1_004_100, &buffer).unwrap();
    drop(host); // Waits for the copy.
    assert_eq!(stream.read(&buffer).unwrap(), bytes[4097..1_004_100]);
}

#[test]
#[ignore = "needs a GPU (scripts/gpu-suite)"]
fn second_start_after_string_target_compiles_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let Some((first, device)) =
        gpu(dir.path(), "second_start_after_string_target_compiles_nothing")
    else {
        return;
    };
    // Compiled for the target as text that a user would type, without a device in the job.
    let mut warm = job(&device);
    warm.target = device.target().id().parse().unwrap();
    first.compile(&warm).unwrap();
    assert_eq!(first.counts().compiled, 1);
    let second = Engine::new(crate::common::config(dir.path()));
    let device = second.device("auto").unwrap();
    let module = second.load(&device, &job(&device)).unwrap();
    assert_eq!((second.counts().compiled, second.counts().cached), (0, 1));
    let stream = device.stream().unwrap();
    let (a, c) = (stream.upload(&[1u32; 128]).unwrap(), stream.upload(&[0u32; 128]).unwrap());
    stream
        .put(&module.kernel("add_one").unwrap(), &Geometry::new(1, BLOCK), &args![&a, &c, 128u32])
        .unwrap();
    assert_eq!(stream.read(&c).unwrap(), [2; 128]);
}

#[test]
#[ignore = "needs a GPU (scripts/gpu-suite)"]
fn entry_refused_by_driver_is_quarantined_and_recompiled_once() {
    let dir = tempfile::tempdir().unwrap();
    let Some((first, device)) =
        gpu(dir.path(), "entry_refused_by_driver_is_quarantined_and_recompiled_once")
    else {
        return;
    };
    let job = job(&device);
    let good = first.compile(&job).unwrap();
    // Machine code of another architecture is stored under this key with a correct hash, so only
    // the driver can detect the error.
    let mut foreign = job.clone();
    foreign.target =
        if device.target().id() == "sm_80" { "sm_90" } else { "sm_80" }.parse().unwrap();
    let foreign = first.compile(&foreign).unwrap();
    let found = first
        .cache()
        .find(&job.source_key().unwrap(), kjit_cache::Scope::Everywhere, |_| true)
        .unwrap();
    first.cache().put(
        found.entry.key(),
        &kjit_cache::Artefact::new(foreign.bytes()).meta("compiler", "somebody"),
    );
    let second = Engine::new(crate::common::config(dir.path()));
    let device = second.device("auto").unwrap();
    let module = second.load(&device, &job).unwrap();
    assert_eq!(second.counts().compiled, 1);
    assert_eq!(module.code().bytes(), good.bytes());
}

#[test]
#[ignore = "needs a GPU (scripts/gpu-suite)"]
fn out_of_memory_reports_sizes_and_device_stays_usable() {
    let Some(b) = Bench::new("out_of_memory_reports_sizes_and_device_stays_usable") else { return };
    let asked = usize::try_from(b.device.info().memory_total).unwrap() * 2;
    match b.device.buffer::<u8>(asked) {
        Err(Error::OutOfMemory { asked: said, free, total, .. }) => {
            assert_eq!(said, asked as u64);
            assert!(free > 0 && free <= total);
        }
        other => panic!("{other:?}"),
    }
    let stream = b.device.stream().unwrap();
    assert!(stream.pool().buffer::<u8>(asked).unwrap_err().to_string().contains("GiB"));
    assert_eq!(stream.read(&stream.upload(&[3u8]).unwrap()).unwrap(), [3]);
}

#[test]
#[ignore = "needs a GPU (scripts/gpu-suite)"]
fn eight_threads_with_own_streams_share_a_device() {
    let Some(b) = Bench::new("eight_threads") else { return };
    std::thread::scope(|scope| {
        for t in 0..8u32 {
            let b = &b;
            scope.spawn(move || {
                let (stream, add) = (b.device.stream().unwrap(), b.kernel("add_one"));
                let (x, y) =
                    (stream.upload(&[t; 256]).unwrap(), stream.upload(&[0u32; 256]).unwrap());
                for _ in 0..100 {
                    stream.put(&add, &Geometry::new(2, BLOCK), &args![&x, &y, 256u32]).unwrap();
                    stream.put(&add, &Geometry::new(2, BLOCK), &args![&y, &x, 256u32]).unwrap();
                }
                assert_eq!(stream.read(&x).unwrap(), [t + 200; 256]);
            });
        }
    });
}

#[test]
#[ignore = "needs a GPU (scripts/gpu-suite)"]
fn trace_aligns_device_and_host_time() {
    let Some(b) = Bench::new("trace_aligns_device_and_host_time") else { return };
    let trace = Trace::new();
    let stream = b.device.stream().unwrap();
    let out = stream.upload(&[0u32]).unwrap();
    let clock = trace.device_clock(&stream).unwrap();
    let (start, end) = (b.device.timed_event().unwrap(), b.device.timed_event().unwrap());
    stream.record(&start).unwrap();
    stream.put(&b.kernel("late"), &Geometry::new(1, 1), &args![&out, 1u32, 2_000_000i64]).unwrap();
    stream.record(&end).unwrap();
    stream.synchronize().unwrap();
    clock.span("late", &start, &end).unwrap();
    assert!(trace.to_json().contains("\"name\":\"late\""), "{}", trace.to_json());
}

#[test]
#[ignore = "needs a GPU (scripts/gpu-suite)"]
fn device_info_is_complete() {
    let Some(b) = Bench::new("device_info_is_complete") else { return };
    let info = b.device.info();
    eprintln!("{info:#?}");
    assert!(
        !info.name.is_empty()
            && info.units > 0
            && info.memory_total > 1 << 30
            && info.driver.0 >= 12
    );
    assert!(
        info.pci.len() >= 7 && info.uuid.starts_with("GPU-") && info.uuid.len() == 40,
        "{info:?}"
    );
    let (free, total) = b.device.memory().unwrap();
    assert!(free > 0 && free <= total);
    let inventory = b.engine.devices();
    assert!(inventory.devices.iter().any(|d| d.uuid == info.uuid) && !inventory.drivers.is_empty());
    let error = b.engine.device("cuda:99").unwrap_err().to_string();
    assert!(error.contains("cuda:99") && error.contains("device(s)"), "{error}");
}
