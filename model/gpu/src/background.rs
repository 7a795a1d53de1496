//! Early start: a model opens before every kernel is compiled.
//!
//! A model has few kernels for single tokens, and many for prompts that take longer to compile.
//! Llama 3.1 8B Q4_K_M on sm_90a has 15 and 16 kernels, which take 2.7 and 4.3 s of one core. The
//! kernels for single tokens can also run a prompt, token by token. So if prompt kernels are
//! missing, a model opens when the other kernels are ready. The missing kernels are compiled in the
//! background. They are used between two tokens of a prompt or from the next prompt on. Decoding
//! does not change then: no graph is captured again.
//!
//! The exception is a persistent kernel (`--persistent on`), which takes the longest time to
//! compile. Until it is ready, ordinary launches compute tokens. The switch is between two tokens,
//! and the token's graph is captured again (`runner/takeover.rs`).
//!
//! On an H200 with 16 cores the first token of a cold start came after 0.82 s instead of 1.19; with
//! two cores, after 1.59 s instead of 3.77 (docs/run.md#the-first-token).
//!
//! The results of the two methods differ in the last bits, and the time of the change depends on
//! the clock. For reproducible tokens, opening must wait for all kernels: do not set
//! [`OpenOptions::early`](kjit_exec::OpenOptions::early).
//!
//! Rejected alternatives, with their cost (nvrtc 13.5, the same model; all 31 kernels take 7.0 s of
//! one core):
//!
//! - *Compile the same sources fast first*: `-O1` 6.7 s, `-O0` 7.1 s. `--Ofast-compile=min` and
//!   higher reject matvec ("unsupported operation"). clang's `-O1` on gfx1100 takes 90 % of the
//!   time of `-O3`; most of it is start-up and linking.
//! - *Kernels with run-time shapes*, compiled once for all models: every kernel would need a second
//!   version to write, tune and check on every GPU. It would save one second at the first start
//!   with a new shape.

use super::plan::{Job, JobId, Launch, PersistentKernel, Plan};
use super::verify::Proofs;
use kjit_engine::{BackgroundCompiles, CodeObject, Device, Engine, Kernel};
use kjit_exec::SessionError;
use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The state of an early start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BackgroundStatus {
    /// Prompt kernels that were compiled in the background.
    pub late: usize,
    /// Prompt tokens that ran one by one before the kernels were ready.
    pub single: usize,
    /// Tokens in the sequence when the prompt kernels took over; `None` before that.
    pub swapped_at: Option<usize>,
    /// Whether the persistent kernel was compiled in the background.
    pub one_launch_late: bool,
    /// Tokens in the sequence when the persistent kernel took over; `None` before that.
    pub one_launch_at: Option<usize>,
    /// The reason why the persistent kernel was not used after its compile.
    pub one_launch_refused: Option<String>,
}

/// The background compiles of an open model and their state. Clones share them.
#[derive(Clone)]
pub struct BackgroundCompiling(Arc<Mutex<BackgroundState>>);

struct BackgroundState {
    engine: Engine,
    /// Missing prompt kernels.
    jobs: Vec<(JobId, Job)>,
    prompts: CompileStage,
    /// The persistent kernels, for one sequence and for more.
    one_launch: Vec<(kjit_engine::Job, &'static str)>,
    whole: CompileStage,
    /// Whether the persistent kernel was requested. If so, its failure is an error. Otherwise
    /// ordinary launches continue.
    asked: bool,
    status: BackgroundStatus,
}

enum CompileStage {
    Compiling(BackgroundCompiles),
    /// All kernels are loaded, or none was missing.
    Done,
    /// A kernel does not compile or load. Later calls fail with this text, as opening would have
    /// failed.
    Failed(String),
}

impl BackgroundCompiling {
    /// Starts background compiles of the plan's prompt kernels, and of the persistent kernels
    /// `ones`, that are not in the cache. `None` if nothing is missing. `asked`: the persistent
    /// kernel was requested.
    pub(super) fn begin(
        engine: &Engine,
        plan: &Plan,
        ones: &[PersistentKernel],
        asked: bool,
    ) -> Result<Option<BackgroundCompiling>, SessionError> {
        // A kernel that cannot be compiled on this machine does not count as missing. The caller
        // that needs it fails.
        let missing = |job: &kjit_engine::Job| matches!(engine.cached(job), Ok(None));
        let jobs: Vec<_> = for_prompts_alone(plan)
            .into_iter()
            .filter_map(|id| Some((id, plan.jobs.get(id.0 as usize)?.clone())))
            .filter(|(_, job)| missing(&job.job))
            .collect();
        // All persistent kernels are loaded together.
        let mut one_launch: Vec<_> = ones.iter().map(|one| (one.job.clone(), one.entry)).collect();
        if !one_launch.iter().any(|(job, _)| missing(job)) {
            one_launch.clear();
        }
        if jobs.is_empty() && one_launch.is_empty() {
            return Ok(None);
        }
        let begin = |jobs: Vec<kjit_engine::Job>| match jobs.is_empty() {
            true => Ok(CompileStage::Done),
            false => engine.compile_in_background(jobs).map(CompileStage::Compiling),
        };
        // Prompt kernels come first, because prompts wait for them.
        let prompts = begin(jobs.iter().map(|(_, job)| job.job.clone()).collect())?;
        let whole = begin(one_launch.iter().map(|(job, _)| job.clone()).collect())?;
        let (late, one_launch_late) = (jobs.len(), !one_launch.is_empty());
        let status = BackgroundStatus { late, one_launch_late, ..BackgroundStatus::default() };
        let state = BackgroundState {
            engine: engine.clone(),
            jobs,
            prompts,
            one_launch,
            whole,
            asked,
            status,
        };
        Ok(Some(BackgroundCompiling(Arc::new(Mutex::new(state)))))
    }

    /// The current state.
    pub fn status(&self) -> BackgroundStatus {
        self.lock().status.clone()
    }

    /// Whether compiles are still running.
    pub fn compiles(&self) -> bool {
        let state = self.lock();
        [&state.prompts, &state.whole].into_iter().any(|stage| match stage {
            CompileStage::Compiling(behind) => behind.progress().0 < behind.progress().1,
            CompileStage::Done | CompileStage::Failed(_) => false,
        })
    }

    /// Starts no further compiles, and waits up to `at_most` for the running compiles, so that the
    /// next start finds their kernels in the cache. The model must not be used afterwards.
    ///
    /// # Errors
    /// A kernel that does not compile.
    pub fn finish(&self, at_most: Duration) -> Result<(), SessionError> {
        let stages = {
            let mut state = self.lock();
            let prompts = std::mem::replace(&mut state.prompts, CompileStage::Done);
            [
                (prompts, true),
                (std::mem::replace(&mut state.whole, CompileStage::Done), state.asked),
            ]
        };
        let end = Instant::now() + at_most;
        let mut failed = None;
        for (stage, matters) in stages {
            let why = match stage {
                CompileStage::Compiling(behind) => {
                    let left = end.saturating_duration_since(Instant::now());
                    behind
                        .finish(left)
                        .into_iter()
                        .flatten()
                        .find_map(Result::err)
                        .map(|e| e.to_string())
                }
                CompileStage::Failed(why) => Some(why),
                CompileStage::Done => None,
            };
            failed = failed.or(why.filter(|_| matters));
        }
        failed.map_or(Ok(()), |why| Err(SessionError::Device(why)))
    }

    /// The jobs of the missing prompt kernels.
    pub(super) fn jobs(&self) -> HashSet<JobId> {
        self.lock().jobs.iter().map(|(id, _)| *id).collect()
    }

    /// Whether the persistent kernels are missing.
    pub(super) fn lacks_one_launch(&self) -> bool {
        !self.lock().one_launch.is_empty()
    }

    /// The loaded prompt kernels when all are compiled; `None` before.
    pub(super) fn arrived(
        &self,
        device: &Device,
        at: usize,
    ) -> Result<Option<Vec<(JobId, Kernel)>>, SessionError> {
        let mut state = self.lock();
        let Some(codes) = state.prompts.codes()? else { return Ok(None) };
        match state.load(device, codes) {
            Ok(kernels) => {
                state.prompts = CompileStage::Done;
                state.status.swapped_at = Some(at);
                Ok(Some(kernels))
            }
            Err(error) => {
                state.prompts = CompileStage::Failed(error.to_string());
                Err(error)
            }
        }
    }

    /// The loaded persistent kernels when all are compiled; `None` before.
    pub(super) fn one_launch(&self, device: &Device) -> Result<Option<Vec<Kernel>>, SessionError> {
        let mut state = self.lock();
        let Some(codes) = state.whole.codes()? else { return Ok(None) };
        let load =
            |((job, entry), code): (&(kjit_engine::Job, &str), kjit_engine::Result<CodeObject>)| {
                state.engine.load_code(device, job, &code?)?.kernel(entry)
            };
        let loaded: kjit_engine::Result<Vec<Kernel>> =
            state.one_launch.iter().zip(codes).map(load).collect();
        state.whole = match &loaded {
            Err(error) if state.asked => CompileStage::Failed(error.to_string()),
            Ok(_) | Err(_) => CompileStage::Done,
        };
        if let (Err(error), false) = (&loaded, state.asked) {
            state.status.one_launch_refused = Some(error.to_string());
            return Ok(None);
        }
        Ok(Some(loaded?))
    }

    /// Records the switch to the persistent kernel with the tokens in the sequence, or the reason
    /// why it was not used.
    pub(super) fn one_launch_taken(&self, taken: Result<usize, String>) {
        let mut state = self.lock();
        match taken {
            Ok(at) => state.status.one_launch_at = Some(at),
            Err(why) => state.status.one_launch_refused = Some(why),
        }
    }

    /// Counts a prompt token that ran as a single token.
    pub(super) fn count_single(&self) {
        self.lock().status.single += 1;
    }

    fn lock(&self) -> MutexGuard<'_, BackgroundState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CompileStage {
    /// The results when all compiles have ended; `None` before.
    fn codes(&self) -> Result<Option<Vec<kjit_engine::Result<CodeObject>>>, SessionError> {
        match self {
            CompileStage::Compiling(behind) => Ok(behind.take()),
            CompileStage::Done => Ok(None),
            CompileStage::Failed(why) => Err(SessionError::Device(why.clone())),
        }
    }
}

impl BackgroundState {
    fn load(
        &self,
        device: &Device,
        codes: Vec<kjit_engine::Result<CodeObject>>,
    ) -> Result<Vec<(JobId, Kernel)>, SessionError> {
        let Some((_, first)) = self.jobs.first() else { return Ok(vec![]) };
        let proofs = Proofs::of(&self.engine, device, &first.job.target, device.memory()?.0);
        let jobs: Vec<&Job> = self.jobs.iter().map(|(_, job)| job).collect();
        match proofs.load(&jobs, codes) {
            Ok((kernels, _)) => Ok(self.jobs.iter().map(|(id, _)| *id).zip(kernels).collect()),
            // The verdict is cached, so the next start uses another variant.
            Err(SessionError::Wrong(why)) => Err(SessionError::Wrong(
                why.iter()
                    .map(|why| format!("{why}; the next start uses another variant"))
                    .collect(),
            )),
            Err(other) => Err(other),
        }
    }
}

/// Jobs that only prompt programs launch.
fn for_prompts_alone(plan: &Plan) -> Vec<JobId> {
    let launched = |launches: &[Launch]| launches.iter().map(|l| l.job).collect::<Vec<_>>();
    let mut now: HashSet<JobId> = launched(&plan.decode.launches).into_iter().collect();
    now.extend([&plan.adjust, &plan.greedy, &plan.draw].into_iter().flatten().map(|l| l.job));
    let own = plan.persistent.iter().filter_map(|one| one.own.as_deref());
    for rows in plan.batches.iter().chain(&plan.drafts).chain(own) {
        now.extend(launched(&rows.program.launches));
        now.extend([&rows.adjust, &rows.greedy, &rows.draw].into_iter().flatten().map(|l| l.job));
    }
    // Images do not wait for the background.
    now.extend(plan.image.iter().flat_map(|p| launched(&p.launches)));
    now.extend(plan.matrices.iter().filter_map(|(_, job)| *job));
    let mut late: Vec<JobId> = plan.prompts.iter().flat_map(|p| launched(&p.launches)).collect();
    late.sort_unstable();
    late.dedup();
    late.retain(|id| !now.contains(id));
    late
}
