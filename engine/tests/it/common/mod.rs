//! Helpers of the engine's tests: a small kernel source, an engine with its own cache, and messages
//! for skipped tests.

use kjit_engine::{
    Config, Constants, Device, Engine, Isolation, Job, Options, Source, Target, Vendor,
};
use std::path::{Path, PathBuf};

/// Two kernels and a header: the smallest source with arguments, shared memory and constants.
pub const SAXPY: &str = r#"
#include "words.h"
KERNEL saxpy(const float* x, float* y, float a, unsigned n) {
    unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i] * SCALE;
}
struct Pair { int first; float second[3]; };
KERNEL mixed(const float* in, float* out, Pair pair, unsigned char flag, double d) {
    __shared__ float part[BLOCK];
    part[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = part[BLOCK - 1 - threadIdx.x] + pair.second[1] * flag + (float)d + pair.first;
}
"#;

pub const WORDS: &str = "#define KERNEL extern \"C\" __global__ void __launch_bounds__(BLOCK)\n";

pub fn saxpy() -> Source {
    Source::new("saxpy", "saxpy.hip", SAXPY).file("words.h", WORDS).entry("saxpy").entry("mixed")
}

pub fn constants() -> Constants {
    Constants::new().set("BLOCK", 128).set("SCALE", 1.0f32)
}

pub fn job(target: &str) -> Job {
    Job::new(saxpy(), constants(), Options::wave(32), Target::parse(target).unwrap())
}

/// The `kjit-cc` to use: the one in the folder of this test if the build was copied, otherwise the
/// one that cargo built.
pub fn worker() -> Isolation {
    let beside = std::env::current_exe()
        .ok()
        .and_then(|exe| exe.parent().map(|folder| folder.join("kjit-cc")));
    match beside.filter(|file| file.is_file()) {
        Some(file) => Isolation::Worker(file),
        None => Isolation::Worker(PathBuf::from(env!("CARGO_BIN_EXE_kjit-cc"))),
    }
}

pub fn config(dir: &Path) -> Config {
    Config::new()
        .cache(kjit_cache::Config::for_app("kjit").ignore_environment().dir(dir))
        .isolation(worker())
        .jobs(2)
}

/// An engine with an empty cache. Without nvrtc a message is printed and the result is `None`.
pub fn engine(dir: &Path, test: &str) -> Option<Engine> {
    let engine = Engine::new(config(dir));
    let report = engine.compilers(Vendor::Nvidia);
    if report.found.is_empty() {
        eprintln!(
            "SKIPPED {test}: no nvrtc ({} places tried, {:?}); pip install nvidia-cuda-nvrtc",
            report.tried.len(),
            report.unusable
        );
        return None;
    }
    Some(engine)
}

/// An engine and the first GPU. Without a GPU or a compiler for it, a message is printed and the
/// result is `None`. With `KJIT_REQUIRE_GPU` set that is a failure: the suite of a GPU machine must
/// not pass by skipping.
pub fn gpu(dir: &Path, test: &str) -> Option<(Engine, Device)> {
    let engine = Engine::new(config(dir));
    let device = match engine.device("auto") {
        Ok(device) => device,
        Err(error) => {
            assert!(std::env::var_os("KJIT_REQUIRE_GPU").is_none(), "{error}");
            eprintln!("SKIPPED {test}: no GPU ({error})");
            return None;
        }
    };
    let report = engine.compilers(device.target().vendor());
    assert!(!report.found.is_empty(), "a GPU without a compiler: {report:?}");
    Some((engine, device))
}

/// A random number generator. A failing test prints its seed; `KJIT_TEST_SEED` sets the seed.
pub struct Random(u64);

impl Random {
    pub fn new() -> Random {
        let given = std::env::var("KJIT_TEST_SEED").ok().and_then(|s| s.parse().ok());
        let clock = || std::time::UNIX_EPOCH.elapsed().map_or(1, |d| d.as_nanos() as u64);
        let seed = given.unwrap_or_else(clock) | 1;
        eprintln!("KJIT_TEST_SEED={seed}");
        Random(seed)
    }

    pub fn word(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| (self.word() >> 40) as f32 / (1u64 << 23) as f32 - 1.0).collect()
    }
}
