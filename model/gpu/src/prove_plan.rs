//! Runs the kernels of a model's plan on a device, each at its own shapes, and compares the results
//! with the oracle. One more case tries FP16.

use super::launch;
use super::measure::LoadedCase;
use super::plan::Plan;
use super::prove::{ChildResponse, run_each, serve_each};
use super::verify::BOUNDS;
use kjit_engine::{Device, Engine, Error, Job, Target};
use kjit_kernel_cases::{Case, Random, SharedData};
use kjit_kernels::format::Format;
use kjit_kernels::gemm::GemmSpec;
use kjit_kernels::kv::PAGE;
use kjit_kernels::spec::Spec;
use kjit_kernels::{Family, Size};
use std::io::{BufRead, Write};
use std::process::Command;
use std::sync::Arc;

/// The verdict on a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KernelVerdict {
    /// The result is within the tolerance of the kernel's cases.
    Right,
    /// The result is outside that tolerance, but within the tolerance of proofs at the first start.
    Near(String),
    /// Any other result, a fault, or a kernel that does not compile.
    Wrong(String),
    /// The kernel was not run, for this reason: no compiler, no memory.
    NotRun(String),
}

/// A kernel of a plan with its verdict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelResult {
    /// The kernel, with its shapes and formats.
    pub kernel: String,
    /// The verdict.
    pub verdict: KernelVerdict,
}

/// The verdicts on a plan's kernels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanResults {
    /// Each kernel of the plan.
    pub kernels: Vec<KernelResult>,
    /// A product of FP16 matrices.
    pub fp16: KernelResult,
}

/// The seed of the inputs, fixed so that a report can be repeated.
const SEED: u64 = 20_261_128;
/// Rows and columns of the FP16 product's matrix, and its tokens.
const FP16: [usize; 3] = [256, 256, 64];

/// The most tokens of a case: few rows are enough.
const TOKENS: usize = 3;

/// Tokens of a case of a kernel.
pub(super) fn rows_of(spec: &Spec) -> usize {
    spec.timed_at(0).tokens.min(TOKENS)
}

/// A kernel to run, with the spec of its case.
struct Item {
    name: String,
    job: Job,
    entry: &'static str,
    spec: Spec,
    size: Size,
}

/// The kernels of the plan. The last one is the FP16 product.
fn items(plan: &Plan) -> Result<Vec<Item>, String> {
    let mut all: Vec<Item> = plan
        .jobs
        .iter()
        .map(|job| {
            let tokens = rows_of(&job.spec);
            Item {
                name: job.spec.to_string(),
                job: job.job.clone(),
                entry: job.entry,
                spec: job.spec.clone(),
                // The last token is the first one of the second page of keys.
                size: Size { tokens, past: PAGE + 1 - tokens },
            }
        })
        .collect();
    let [rows, cols, tokens] = FP16;
    let format = Format::by_name("F16").ok_or("the format F16 is not in the table")?;
    let spec = GemmSpec::new(format, rows, cols, tokens);
    let kernel = spec.kernel(&plan.target).map_err(|e| e.to_string())?;
    all.push(Item {
        name: format!("FP16 product of {rows} × {cols} × {tokens}"),
        job: kernel.job(&plan.target),
        entry: kernel.entry,
        spec: spec.into(),
        size: Size { tokens, past: 0 },
    });
    Ok(all)
}

/// Runs every kernel of `plan`, each in a child process that `spawn` starts and that calls
/// [`serve`] with the same plan. Missing kernels are compiled first. `progress` gets the number of
/// finished kernels and the total.
///
/// # Errors
/// Children that do not start, as text. A failure of a kernel is in its verdict.
pub fn run(
    engine: &Engine,
    plan: &Plan,
    spawn: &dyn Fn() -> Command,
    progress: &dyn Fn(usize, usize),
) -> Result<PlanResults, String> {
    let named = items(plan)?.into_iter().map(|item| (item.name, item.job)).collect();
    let verdict = |(kernel, answer)| {
        let verdict = match answer {
            ChildResponse::Ready | ChildResponse::Right => KernelVerdict::Right,
            ChildResponse::Near(why) => KernelVerdict::Near(why),
            ChildResponse::NotRun(why) => KernelVerdict::NotRun(why),
            ChildResponse::Wrong(why) | ChildResponse::Lost(why) => KernelVerdict::Wrong(why),
        };
        KernelResult { kernel, verdict }
    };
    let mut kernels: Vec<KernelResult> =
        run_each(engine, named, spawn, progress)?.into_iter().map(verdict).collect();
    let fp16 = kernels.pop().ok_or("no kernel was run")?;
    Ok(PlanResults { kernels, fp16 })
}

/// Runs the kernels that [`run`] in another process requests, until the input ends or the device is
/// lost.
///
/// # Errors
/// A broken pipe.
pub fn serve(
    engine: &Engine,
    device: &Device,
    plan: &Plan,
    questions: impl BufRead,
    answers: impl Write,
) -> std::io::Result<()> {
    let items = items(plan).map_err(std::io::Error::other)?;
    // Cases are created one by one, because the cases of a large model do not fit in memory
    // together.
    let shared = Arc::default();
    serve_each(questions, answers, &mut |i| {
        Some(answer(engine, device, &plan.target, items.get(i)?, &shared))
    })
}

fn answer(
    engine: &Engine,
    device: &Device,
    target: &Target,
    item: &Item,
    shared: &Arc<SharedData>,
) -> ChildResponse {
    match judged(engine, device, target, item, shared) {
        Ok(answer) => answer,
        Err(why) if matches!(device.memory(), Err(Error::DeviceLost { .. })) => {
            ChildResponse::Lost(why.to_string())
        }
        Err(why @ (Error::OutOfMemory { .. } | Error::Miss { .. })) => {
            ChildResponse::NotRun(why.to_string())
        }
        Err(why) => ChildResponse::Wrong(why.to_string()),
    }
}

fn judged(
    engine: &Engine,
    device: &Device,
    target: &Target,
    item: &Item,
    shared: &Arc<SharedData>,
) -> Result<ChildResponse, Error> {
    let mut random = Random::new(SEED).sharing(shared);
    let units = device.info().units;
    let case = kjit_kernel_cases::case(&item.spec, target, units, item.size, &mut random);
    let case = match case {
        Ok(case) => case,
        Err(why) => return Ok(ChildResponse::NotRun(format!("it has no test case: {why}"))),
    };
    let (bytes, (free, _)) = (LoadedCase::bytes(&case) as u64, device.memory()?);
    if bytes > free {
        let (bytes, free) = (bytes >> 20, free >> 20);
        return Ok(ChildResponse::NotRun(format!("its case needs {bytes} MiB, {free} are free")));
    }
    let kernel = engine.load(device, &item.job)?.kernel(item.entry)?;
    let after = launch::call(&device.stream()?, &kernel, &case.geometry, &case.host_args())?;
    Ok(verdict(case, &after))
}

fn verdict(case: Case, after: &[Vec<u8>]) -> ChildResponse {
    let Err(why) = case.check(after) else { return ChildResponse::Right };
    match case.with_bounds(BOUNDS).check(after) {
        Ok(()) => ChildResponse::Near(why),
        Err(why) => ChildResponse::Wrong(why),
    }
}
