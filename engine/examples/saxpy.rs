//! Embeds the engine: compiles its own kernel for the GPU of this machine, keeps it on disk, and
//! launches it.
//!
//! Run it twice: the second time nothing is compiled.

use std::process::ExitCode;

use kjit_engine::{Config, Constants, Engine, Error, Geometry, Job, Options, Source, args};

const BLOCK: u32 = 256;

const TEXT: &str = r#"
#include "words.h"
extern "C" __global__ void __launch_bounds__(BLOCK) saxpy(const float* x, float* y, float a, unsigned n) {
    unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < n) y[i] += a * x[i];
}
"#;

fn main() -> ExitCode {
    // Compilers run in a child process: this program, started again.
    kjit_engine::child_main();

    let engine = Engine::new(Config::new());
    let n = 1_000_003u32;
    match saxpy(&engine, "auto", n) {
        Ok(wrong) => {
            let counts = engine.counts();
            eprintln!(
                "{wrong} wrong of {n}; compiled {}, cached {}",
                counts.compiled, counts.cached
            );
            ExitCode::from(u8::from(wrong > 0))
        }
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}

/// Computes `y + 2 x` of `n` values on a device (`auto`, `cuda:0`, `rocm:1`). Returns the number of
/// wrong values.
pub fn saxpy(engine: &Engine, device: &str, n: u32) -> Result<usize, Error> {
    let device = engine.device(device)?;
    let target = device.target().clone();

    let source = Source::new("saxpy", "saxpy.cu", TEXT).words().entry("saxpy");
    let options = Options::wave(target.default_wave());
    let job = Job::new(source, Constants::new().set("BLOCK", BLOCK), options, target);
    let kernel = engine.load(&device, &job)?.kernel("saxpy")?;

    let x: Vec<f32> = (0..n).map(|i| i as f32).collect();
    let stream = device.stream()?;
    let (dx, dy) = (stream.upload(&x)?, stream.upload(&vec![1.0f32; x.len()])?);
    let shape = Geometry::new(n.div_ceil(BLOCK), BLOCK);
    // SAFETY: both buffers have n values, and the kernel accesses only these.
    unsafe { stream.launch(&kernel, &shape, &args![&dx, &dy, 2.0f32, n])? };
    let y = stream.read(&dy)?;
    Ok(x.iter().zip(&y).filter(|(x, y)| **y != 2.0f32.mul_add(**x, 1.0)).count())
}
