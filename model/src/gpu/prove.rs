//! Runs the kernels' cases on a device: whether what it computes is what the oracle computed.

use super::ours;
use super::process::Process;
use super::settle::settled;
use half::f16;
use kjit_engine::{Device, Engine, Job, Module, Target};
use kjit_kernel_cases::{self as cases, Case, Expect, HALF, Random, Storage};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, Write};
use std::process::Command;
use std::time::Duration;

/// What came of one case.
#[derive(Debug, Clone)]
pub struct Verdict {
    /// The case: family, sizes, formats, wave width.
    pub case: String,
    /// Nothing, or what was wrong.
    pub failure: Option<String>,
}

/// The cases of a device's target whose names contain a filter, at every wave width: the same list
/// in every process.
struct Cases {
    all: Vec<(u32, Case)>,
}

impl Cases {
    fn of(target: &Target, seed: u64, filter: &str) -> Result<Cases, String> {
        let mut all = vec![];
        for &wave in target.waves() {
            let made = cases::all(target, wave, seed).map_err(|e| e.to_string())?;
            all.extend(
                made.into_iter().filter(|case| case.name.contains(filter)).map(|case| (wave, case)),
            );
        }
        if all.is_empty() {
            Err(format!("no case's name contains '{filter}'"))
        } else {
            Ok(Cases { all })
        }
    }

    fn jobs(&self, target: &Target) -> Vec<Job> {
        self.all.iter().map(|(_, case)| case.kernel.job(target)).collect()
    }
}

/// What a child is asked for.
#[derive(Debug, Serialize, Deserialize)]
enum Ask {
    /// To make the cases, and to say when it is through.
    Begin,
    /// To run the one at this place in the list.
    Case(usize),
}

/// What it answers.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Ready,
    Right,
    Wrong(String),
    /// The device is lost: this process ends.
    Lost(String),
}

/// How long a child may take to make the cases: the oracle computes them all in f64.
const START: Duration = Duration::from_secs(180);
/// How long a case may take, its kernel's compile by a child that has no cache included.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs every case whose name contains `filter` at every wave width of the device, compiling what
/// is not in the cache first. The cases run in children that `spawn` starts and that call [`serve`]
/// on their standard input and output: a kernel that faults, hangs or takes its process down is one
/// wrong case, and the next child goes on behind it. `progress` gets the number of cases done and
/// in all.
///
/// # Errors
/// Cases that cannot be made for this device's target, none with that name, or children that do not
/// come up, as a sentence; what a case does wrong is in its verdict.
pub fn run_all(
    engine: &Engine,
    target: &Target,
    seed: u64,
    filter: &str,
    spawn: &dyn Fn() -> Command,
    progress: &dyn Fn(usize, usize),
) -> Result<Vec<Verdict>, String> {
    let target = &settled(engine, target);
    let cases = Cases::of(target, seed, filter)?;
    let compiled = engine.compile_all(&cases.jobs(target));
    let (mut verdicts, mut child) = (vec![], None::<Process<Answer>>);
    for (i, ((wave, case), code)) in cases.all.iter().zip(compiled).enumerate() {
        let failure = match code {
            Err(e) => Some(e.to_string()),
            Ok(_) => {
                let mut process = child.take().map_or_else(|| begin(spawn), Ok)?;
                match process.exchange(&Ask::Case(i), PATIENCE) {
                    Ok(Answer::Lost(why)) => Some(why),
                    Ok(answer) => {
                        child = Some(process);
                        if let Answer::Wrong(why) = answer { Some(why) } else { None }
                    }
                    Err(why) => {
                        Some(format!("the process that ran it fell: {}", process.end(&why)))
                    }
                }
            }
        };
        verdicts.push(Verdict { case: format!("{} at wave {wave}", case.name), failure });
        progress(i + 1, cases.all.len());
    }
    Ok(verdicts)
}

/// A child that has made the cases.
fn begin(spawn: &dyn Fn() -> Command) -> Result<Process<Answer>, String> {
    let mut process = Process::start(spawn())?;
    match process.exchange(&Ask::Begin, START) {
        Ok(_) => Ok(process),
        Err(why) => Err(format!(
            "the process that runs the cases ends before it has run any: {}",
            process.end(&why)
        )),
    }
}

/// Runs the cases that [`run_all`] in another process asks for, with the same seed and filter,
/// until it asks no more or the device is lost.
///
/// # Errors
/// Pipes that break, cases that cannot be made.
pub fn serve(
    engine: &Engine,
    device: &Device,
    (seed, filter): (u64, &str),
    questions: impl BufRead,
    mut answers: impl Write,
) -> std::io::Result<()> {
    let target = settled(engine, device.target());
    let cases = Cases::of(&target, seed, filter).map_err(std::io::Error::other)?;
    for line in questions.lines() {
        let answer = match serde_json::from_str(&line?)? {
            Ask::Begin => Answer::Ready,
            Ask::Case(i) => match cases.all.get(i) {
                None => Answer::Wrong(format!("there is no case {i}: another version?")),
                Some((_, case)) => answer(engine, device, case),
            },
        };
        serde_json::to_writer(&mut answers, &answer)?;
        answers.write_all(b"\n")?;
        answers.flush()?;
        if matches!(answer, Answer::Lost(_)) {
            break;
        }
    }
    Ok(())
}

fn answer(engine: &Engine, device: &Device, case: &Case) -> Answer {
    let module = engine.load(device, &case.kernel.job(device.target()));
    match module.map_err(|e| e.to_string()).and_then(|module| run(device, &module, case)) {
        Ok(()) => Answer::Right,
        Err(why) if matches!(device.memory(), Err(kjit_engine::Error::DeviceLost { .. })) => {
            Answer::Lost(why)
        }
        Err(why) => Answer::Wrong(why),
    }
}

/// One case: the launch, and every buffer held against what must be there afterwards.
fn run(device: &Device, module: &Module, case: &Case) -> Result<(), String> {
    let called = device.stream().and_then(|stream| {
        ours::call(&stream, &module.kernel(case.kernel.entry)?, &case.geometry, &case.host_args())
    });
    case.check(&called.map_err(|e| e.to_string())?)
}

/// One product by the vendor's matrix library, where the device has one (AMD: rocBLAS): the library
/// and the sizes, or what was wrong. None where there is no library: nothing depends on it.
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
    let mut halves =
        |n: usize| -> Vec<f16> { random.normals(n, 1.0).into_iter().map(f16::from_f32).collect() };
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
    let dot = |(w, x): (&[f16], &[f16])| {
        w.iter().zip(x).map(|(w, x)| w.to_f64() * x.to_f64()).sum::<f64>()
    };
    let want = x.chunks(k).flat_map(|x| w.chunks(k).map(move |w| dot((w, x)))).collect();
    let bytes: Vec<u8> = got.iter().flat_map(|v| v.to_le_bytes()).collect();
    // Some of its kernels round sums to halves in between.
    let expect = Expect::Real { storage: Storage::F32, want, tolerance: HALF };
    let verdict = expect.check(&vec![0; bytes.len()], &bytes);
    Some(verdict.map(|()| format!("{}: a product of {m} × {n} × {k} is right", blas.library())))
}
