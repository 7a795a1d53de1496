//! Helpers of the engine's tests on simulated devices: correct and faulty kernels, and a device
//! with them loaded.

pub mod plain;

use kjit_engine::{Constants, Device, Engine, Job, Kernel, Module, Options, Source};
use kjit_tests::simulator::{cache, engine};

/// The path of the compiler process.
pub const WORKER: &str = env!("CARGO_BIN_EXE_kjit-tests-cc");
/// Folder of built files.
pub const TEMPORARY: &str = env!("CARGO_TARGET_TMPDIR");
/// Threads in a block of each kernel here.
pub const BLOCK: u32 = 128;

const KERNELS: &str = r#"
#include "kjit.h"
KERNEL saxpy(const float* x, float* y, float a, u32 n) {
    u32 i = block_id() * KJ_BLOCK + thread_id();
    if (i < n) y[i] = a * x[i] + y[i];
}
KERNEL add_one(const u32* from, u32* to, u32 n) {
    u32 i = block_id() * KJ_BLOCK + thread_id();
    if (i < n) to[i] = from[(i + KJ_BLOCK) % n] + 1;
}
struct Pair { i32 first; float second[3]; };
KERNEL mixed(const float* in, float* out, Pair pair, u8 flag, double d) {
    LDS_ARRAY(float, part, KJ_BLOCK);
    part[thread_id()] = in[thread_id()];
    block_sync();
    out[thread_id()] = part[KJ_BLOCK - 1 - thread_id()] + pair.second[1] * flag + (float)d + pair.first;
}
// Every block adds its number; after a barrier of the whole grid all read the sum.
KERNEL together(u32* words, u32* out, u32 blocks) {
    if (thread_id() == 0) {
        atomic_add(words + 1, block_id());
        device_fence();
        atomic_add(words, 1u);
        while (atomic_load(words) < blocks) {}
        out[block_id()] = atomic_load(words + 1);
    }
}
KERNEL waves(u32* out) {
    u64 odd = wave_ballot(lane_id() % 2 == 1);
    u32 sum = (u32)group_sum((i32)lane_id(), KJ_WAVE);
    out[block_id() * KJ_BLOCK + thread_id()] = sum + 10000 * count_bits(odd) + 1000000 * wave_get(lane_id(), KJ_WAVE - 1);
}
KERNEL fresh_lds(float* out) {
    LDS_ARRAY(float, never_written, KJ_BLOCK);
    out[thread_id()] = never_written[thread_id()];
}
KERNEL reads_behind(const float* x, float* y, u32 at) { y[thread_id()] = x[at]; }
KERNEL follows_choice(const float* x, u32* y, u32 rows) { y[thread_id()] = as_u32(x[(u64)y[thread_id()] * rows]); }
KERNEL writes_before(float* x, u32 back) { if (thread_id() == 0) *(x - back) = 1.0f; }
KERNEL unaligned(const u8* x, u32* y, u32 at) { y[thread_id()] = load16(x + at).x; }
KERNEL unaligned_word(const u8* x, u32* y, u32 at) { y[thread_id()] = *(const u32*)(x + at); }
KERNEL divergent(u32* y, u32 some) { if (thread_id() < some) block_sync(); y[thread_id()] = 1; }
KERNEL lanes_missing(u32* y, u32 some) { if (lane_id() < some) y[thread_id()] = (u32)group_sum(1, KJ_WAVE); }
KERNEL other_operation(u32* y, u32 some) { y[thread_id()] = lane_id() < some ? (u32)wave_ballot(true) : (u32)wave_get(1u, 0); }
KERNEL behind_lds(u32* y, u32 at) {
    LDS_ARRAY(u32, words, KJ_BLOCK);
    words[thread_id()] = 0;
    block_sync();
    u32* p = words;
    y[thread_id()] = p[at];
}
KERNEL shifts_too_far(u32* y, u32 by) { y[thread_id()] = 1u << by; }
KERNEL in_turn(u32* count, u32* out) { out[atomic_add(count, 1u)] = block_id() * KJ_BLOCK + thread_id(); }
KERNEL never_ends(u32* flag) { while (atomic_load(flag) == 0) {} }
"#;

/// All kernels here, for a device at a wave width.
pub fn job(device: &Device, wave: u32) -> Job {
    let source = Source::new("engine tests", "tests.hip", KERNELS)
        .file("kjit.h", include_str!("../../../../kernel_src/gpu/kjit.h"))
        .entry("saxpy");
    Job::new(
        source,
        Constants::new().set("KJ_BLOCK", BLOCK),
        Options::wave(wave),
        device.target().clone(),
    )
}

/// A device with the kernels loaded.
pub struct Bench {
    pub engine: Engine,
    pub device: Device,
    pub module: Module,
}

impl Bench {
    pub fn new(device: &str) -> Bench {
        let engine = engine(&cache(TEMPORARY).join("real"), WORKER, "hiprtc");
        let device = engine.device(device).unwrap();
        let module = engine.load(&device, &job(&device, device.target().default_wave())).unwrap();
        Bench { engine, device, module }
    }

    pub fn kernel(&self, name: &str) -> Kernel {
        self.module.kernel(name).unwrap()
    }
}
