//! Runs the kernels' cases on a device and compares the results with the oracle.

use super::launch;
use super::process::Process;
use super::target_probe::settled;
use half::f16;
use kjit_engine::{Device, Engine, Error, Job, Module, Target};
use kjit_kernel_cases::{self as cases, Case, Expect, HALF, Random, Storage};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, Write};
use std::process::Command;
use std::time::Duration;

/// The result of a case.
#[derive(Debug, Clone)]
pub struct CaseResult {
    /// The case: family, sizes, formats, wave width.
    pub case: String,
    /// The difference from the oracle, or `None`.
    pub failure: Option<String>,
}

/// The cases of a target whose names contain a filter, at every wave width. The list is equal in
/// every process.
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

    /// The name and the kernel of each case.
    fn named(&self, target: &Target) -> Vec<(String, Job)> {
        let name = |(wave, case): &(u32, Case)| {
            (format!("{} at wave {wave}", case.name), case.kernel.job(target))
        };
        self.all.iter().map(name).collect()
    }
}

/// A request to a child.
#[derive(Debug, Serialize, Deserialize)]
enum ChildRequest {
    /// Creates the cases and reports when it is done.
    Begin,
    /// Runs the case at this index.
    Case(usize),
}

/// An answer of a child.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ChildResponse {
    Ready,
    Right,
    /// The result is outside the tolerance of the case, but within the tolerance of proofs.
    Near(String),
    /// The case was not run, for this reason.
    NotRun(String),
    Wrong(String),
    /// The device is lost, and this process ends.
    Lost(String),
}

/// The time limit for creating the cases. The oracle computes all of them in f64.
const START: Duration = Duration::from_secs(180);
/// The time limit of a case, including its compilation if the child has no cache.
const CASE_TIMEOUT: Duration = Duration::from_secs(60);

/// Runs every case whose name contains `filter` at every wave width of the device. Missing kernels
/// are compiled first. Cases run in child processes that `spawn` starts and that call [`serve`] on
/// their standard input and output. If a kernel faults, hangs or kills its process, this is one
/// failed case, and the next child continues after it. `progress` gets the number of finished cases
/// and the total.
///
/// # Errors
/// The cause as text: the cases cannot be created for this target, no case has such a name, or
/// children do not start. The failure of a case is in its verdict.
pub fn run_all(
    engine: &Engine,
    target: &Target,
    seed: u64,
    filter: &str,
    spawn: &dyn Fn() -> Command,
    progress: &dyn Fn(usize, usize),
) -> Result<Vec<CaseResult>, String> {
    let target = &settled(engine, target);
    let cases = Cases::of(target, seed, filter)?;
    let run = run_each(engine, cases.named(target), spawn, progress)?;
    let verdict = |(case, response)| match response {
        ChildResponse::Ready | ChildResponse::Right => CaseResult { case, failure: None },
        ChildResponse::Near(why)
        | ChildResponse::NotRun(why)
        | ChildResponse::Wrong(why)
        | ChildResponse::Lost(why) => CaseResult { case, failure: Some(why) },
    };
    Ok(run.into_iter().map(verdict).collect())
}

/// Compiles these kernels and runs each one's case, by its number, in child processes. Returns the
/// names with the answers.
///
/// # Errors
/// Children that do not start.
pub(super) fn run_each(
    engine: &Engine,
    cases: Vec<(String, Job)>,
    spawn: &dyn Fn() -> Command,
    progress: &dyn Fn(usize, usize),
) -> Result<Vec<(String, ChildResponse)>, String> {
    let jobs: Vec<Job> = cases.iter().map(|(_, job)| job.clone()).collect();
    let (compiled, all) = (engine.compile_all(&jobs), cases.len());
    let (mut verdicts, mut child) = (vec![], None::<Process<ChildResponse>>);
    for (i, ((name, _), code)) in cases.into_iter().zip(compiled).enumerate() {
        let answer = match code {
            // A machine without a compiler says nothing about the kernel.
            Err(e @ (Error::Miss { .. } | Error::NoProcess { .. })) => {
                ChildResponse::NotRun(e.to_string())
            }
            Err(e) => ChildResponse::Wrong(e.to_string()),
            Ok(_) => {
                let mut process = child.take().map_or_else(|| begin(spawn), Ok)?;
                match process.exchange(&ChildRequest::Case(i), CASE_TIMEOUT) {
                    Ok(lost @ ChildResponse::Lost(_)) => lost,
                    Ok(answer) => {
                        child = Some(process);
                        answer
                    }
                    Err(why) => ChildResponse::Wrong(format!(
                        "the process that ran it failed: {}",
                        process.end(&why)
                    )),
                }
            }
        };
        verdicts.push((name, answer));
        progress(i + 1, all);
    }
    Ok(verdicts)
}

/// Starts a child and waits until it has created the cases.
fn begin(spawn: &dyn Fn() -> Command) -> Result<Process<ChildResponse>, String> {
    let mut process = Process::start(spawn())?;
    match process.exchange(&ChildRequest::Begin, START) {
        Ok(_) => Ok(process),
        Err(why) => Err(format!(
            "the process that runs the cases ended before the first case: {}",
            process.end(&why)
        )),
    }
}

/// Runs the cases that [`run_all`] in another process requests, with the same seed and filter,
/// until the input ends or the device is lost.
///
/// # Errors
/// A broken pipe; the cases cannot be created.
pub fn serve(
    engine: &Engine,
    device: &Device,
    (seed, filter): (u64, &str),
    questions: impl BufRead,
    answers: impl Write,
) -> std::io::Result<()> {
    let target = settled(engine, device.target());
    let cases = Cases::of(&target, seed, filter).map_err(std::io::Error::other)?;
    serve_each(questions, answers, &mut |i| Some(answer(engine, device, &cases.all.get(i)?.1)))
}

/// Runs the cases that [`run_each`] in another process requests, by `run`, until the input ends or
/// the device is lost. `run` returns `None` for a number without a case.
///
/// # Errors
/// A broken pipe.
pub(super) fn serve_each(
    questions: impl BufRead,
    mut answers: impl Write,
    run: &mut dyn FnMut(usize) -> Option<ChildResponse>,
) -> std::io::Result<()> {
    for line in questions.lines() {
        let answer = match serde_json::from_str(&line?)? {
            ChildRequest::Begin => ChildResponse::Ready,
            ChildRequest::Case(i) => run(i).unwrap_or_else(|| {
                ChildResponse::Wrong(format!("there is no case {i}: another version?"))
            }),
        };
        serde_json::to_writer(&mut answers, &answer)?;
        answers.write_all(b"\n")?;
        answers.flush()?;
        if matches!(answer, ChildResponse::Lost(_)) {
            break;
        }
    }
    Ok(())
}

fn answer(engine: &Engine, device: &Device, case: &Case) -> ChildResponse {
    let module = engine.load(device, &case.kernel.job(device.target()));
    match module.map_err(|e| e.to_string()).and_then(|module| run(device, &module, case)) {
        Ok(()) => ChildResponse::Right,
        Err(why) if matches!(device.memory(), Err(Error::DeviceLost { .. })) => {
            ChildResponse::Lost(why)
        }
        Err(why) => ChildResponse::Wrong(why),
    }
}

/// Runs a case and compares every buffer with its expected content.
fn run(device: &Device, module: &Module, case: &Case) -> Result<(), String> {
    let called = device.stream().and_then(|stream| {
        launch::call(&stream, &module.kernel(case.kernel.entry)?, &case.geometry, &case.host_args())
    });
    case.check(&called.map_err(|e| e.to_string())?)
}

/// Tests the vendor's matrix library with one product (AMD: rocBLAS). Returns the library and the
/// sizes, or the failure. `None` if there is no library, because kjit does not need it.
#[must_use]
pub fn library(device: &Device) -> Option<Result<String, String>> {
    let blas = match device.blas() {
        Ok(blas) => blas,
        Err(Error::NoLibrary { .. }) => return None,
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
    // Some of its kernels round intermediate sums to f16.
    let expect = Expect::Real { storage: Storage::F32, want, tolerance: HALF };
    let verdict = expect.check(&vec![0; bytes.len()], &bytes);
    Some(verdict.map(|()| format!("{}: a product of {m} × {n} × {k} is correct", blas.library())))
}
