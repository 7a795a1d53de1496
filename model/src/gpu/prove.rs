//! Runs the kernels' cases on a device: whether what it computes is what the oracle computed.

use half::f16;
use kjit_engine::{Device, Engine, Job, Module};
use kjit_kernels::cases::{self, Case, Expect, HALF, Random, Storage};

/// What came of one case.
#[derive(Debug, Clone)]
pub struct Verdict {
    /// The case: family, sizes, formats, wave width.
    pub case: String,
    /// Nothing, or what was wrong.
    pub failure: Option<String>,
}

/// Runs every case whose name contains `filter` at every wave width of the device, compiling what is not in the cache. `progress` gets the
/// number of cases done and in all.
///
/// # Errors
/// Cases that cannot be made for this device's target, or none with that name, as a sentence; what a case does wrong is in its verdict.
pub fn run_all(
    engine: &Engine,
    device: &Device,
    seed: u64,
    filter: &str,
    progress: &dyn Fn(usize, usize),
) -> Result<Vec<Verdict>, String> {
    let mut verdicts = vec![];
    let mut all = vec![];
    for &wave in device.target().waves() {
        let made = cases::all(device.target(), wave, seed).map_err(|e| e.to_string())?;
        all.extend(made.into_iter().filter(|case| case.name.contains(filter)).map(|case| (wave, case)));
    }
    if all.is_empty() {
        return Err(format!("no case's name contains '{filter}'"));
    }
    let jobs: Vec<Job> = all.iter().map(|(_, case)| case.kernel.job(device.target())).collect();
    let modules = engine.load_all(device, &jobs);
    for (done, ((wave, case), module)) in all.iter().zip(modules).enumerate() {
        let result = module.map_err(|e| e.to_string()).and_then(|module| run(device, &module, case));
        verdicts.push(Verdict { case: format!("{} at wave {wave}", case.name), failure: result.err() });
        progress(done + 1, all.len());
    }
    Ok(verdicts)
}

/// One case: the launch, and every buffer held against what must be there afterwards.
fn run(device: &Device, module: &Module, case: &Case) -> Result<(), String> {
    let called = device
        .stream()
        .and_then(|stream| stream.call(&module.kernel(case.kernel.entry)?, &case.geometry, &case.host_args()));
    case.check(&called.map_err(|e| e.to_string())?)
}

/// One product by the vendor's matrix library, where the device has one (AMD: rocBLAS): the library and the sizes, or what was wrong. None
/// where there is no library: nothing depends on it.
#[must_use]
pub fn library(device: &Device) -> Option<Result<String, String>> {
    let blas = match device.blas() {
        Ok(blas) => blas,
        Err(kjit_engine::Error::NoLibrary { .. }) => return None,
        Err(e) => return Some(Err(e.to_string())),
    };
    const SIZES: [u32; 3] = [65, 33, 127];
    let [m, n, k] = SIZES.map(|n| n as usize);
    let mut random = Random::new(1);
    let mut halves = |n: usize| -> Vec<f16> { random.normals(n, 1.0).into_iter().map(f16::from_f32).collect() };
    let (w, x) = (halves(m * k), halves(n * k));
    let bits = |values: &[f16]| values.iter().map(|v| v.to_bits()).collect::<Vec<u16>>();
    let product = || {
        let stream = device.stream()?;
        let (w, x) = (stream.upload(&bits(&w))?, stream.upload(&bits(&x))?);
        let out = stream.upload(&vec![f32::NAN; m * n])?;
        blas.product(&stream, SIZES, &w, &x, &out)?;
        stream.read(&out)
    };
    let got = match product() {
        Ok(got) => got,
        Err(e) => return Some(Err(e.to_string())),
    };
    let dot = |(w, x): (&[f16], &[f16])| w.iter().zip(x).map(|(w, x)| w.to_f64() * x.to_f64()).sum::<f64>();
    let want = x.chunks(k).flat_map(|x| w.chunks(k).map(move |w| dot((w, x)))).collect();
    let bytes: Vec<u8> = got.iter().flat_map(|v| v.to_le_bytes()).collect();
    // Some of its kernels round sums to halves in between.
    let expect = Expect::Real { storage: Storage::F32, want, tolerance: HALF };
    let verdict = expect.check(&vec![0; bytes.len()], &bytes);
    Some(verdict.map(|()| format!("{}: a product of {m} × {n} × {k} is right", blas.library())))
}
