//! Limits of a device, measured with kjit's kernels in the same run: the rates of reading memory
//! and of matrix products.

use super::LoadedCase;
use kjit_engine::{Device, Engine};
use kjit_kernel_cases::Random;
use kjit_kernels::format::Format;
use kjit_kernels::gemm::GemmSpec;
use kjit_kernels::read::ReadSpec;
use kjit_kernels::spec::Spec;
use kjit_kernels::{Family, Size};

/// The measured limits.
#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    /// Bytes per second of reading memory.
    pub read: f64,
    /// The fastest matrix product; `None` if no kernel could run.
    pub product: Option<Product>,
}

/// A measured matrix product.
#[derive(Debug, Clone, PartialEq)]
pub struct Product {
    /// Floating-point operations per second.
    pub rate: f64,
    /// The shape and the kernel.
    pub what: String,
}

/// Minimum seconds of a launch for the computation of a rate.
const MIN_SECONDS: f64 = 0.2e-3;

impl Limits {
    /// Measures the limits. The work grows until a launch takes long enough.
    ///
    /// # Errors
    /// A device or kernel failure, as text.
    pub fn measure(engine: &Engine, device: &Device) -> Result<Limits, String> {
        let (free, _) = device.memory().map_err(|e| e.to_string())?;
        let mut read = 0.0f64;
        for mebibytes in [1usize, 16, 128, 1024] {
            if (mebibytes as u64) << 20 > free / 4 {
                break;
            }
            // The best number of loads in flight depends on the memory latency.
            let mut longest = 0.0f64;
            let mut here = 0.0f64;
            for in_flight in [4, 8] {
                let size = Size { tokens: mebibytes, past: 0 };
                let seconds = seconds(engine, device, &ReadSpec { in_flight }.into(), size)?;
                longest = longest.max(seconds);
                here = here.max((mebibytes << 20) as f64 / seconds);
            }
            // The rate of a larger buffer replaces the rate of a smaller buffer, which may have
            // been in a cache.
            read = here;
            if longest > MIN_SECONDS {
                break;
            }
        }
        Ok(Limits { read, product: product(engine, device)? })
    }
}

fn product(engine: &Engine, device: &Device) -> Result<Option<Product>, String> {
    let Some(format) = Format::by_name("F16") else { return Ok(None) };
    let mut best: Option<Product> = None;
    for (rows, cols, tokens) in
        [(256, 256, 64), (2048, 2048, 512), (8192, 4096, 2048), (8192, 8192, 4096)]
    {
        let spec = GemmSpec::new(format, rows, cols, tokens);
        let seconds = seconds(engine, device, &spec.clone().into(), Size { tokens, past: 0 })?;
        let rate = spec.operations(tokens) / seconds;
        if best.as_ref().is_none_or(|b| rate > b.rate) {
            let name = spec.kernel(device.target()).map_or("gemm", |k| k.entry);
            best = Some(Product {
                rate,
                what: format!("our {name}, halves, {rows} × {cols} × {tokens}"),
            });
        }
        if seconds > MIN_SECONDS {
            break;
        }
    }
    Ok(best)
}

/// Seconds of a launch of a kernel whose result is right.
fn seconds(engine: &Engine, device: &Device, spec: &Spec, size: Size) -> Result<f64, String> {
    let target = device.target();
    let kernel = spec.kernel(target).map_err(|e| e.to_string())?;
    let module = engine.load(device, &kernel.job(target)).map_err(|e| e.to_string())?;
    let entry = module.kernel(kernel.entry).map_err(|e| e.to_string())?;
    let (units, mut random) = (device.info().units, Random::new(SEED));
    let case = kjit_kernel_cases::case(spec, target, units, size, &mut random);
    let case = case.map_err(|e| e.to_string())?;
    let mut placed = LoadedCase::new(device, case).map_err(|e| e.to_string())?;
    placed.check(&entry, false)?;
    let (timing, _) = placed.alone(&entry).map_err(|e| e.to_string())?;
    if timing.median > 0.0 {
        Ok(timing.median)
    } else {
        Err(format!("{spec} took no measurable time"))
    }
}

/// The seed of the data. It is fixed, so that runs are comparable.
pub(super) const SEED: u64 = 20_261_121;
