//! Starting before every kernel is there.
//!
//! A model has few kernels for single tokens and many, slower to compile, for prompts: 15 and 16
//! for llama-3.1-8b Q4_K_M on sm_90a, 2.7 and 4.3 s of one core. With the first a prompt can go
//! token by token. So, where the latter are missing, a model opens as soon as the former are there;
//! the others are compiled behind the work, and take over between two tokens of a prompt, or at the
//! next prompt. What decodes is final from the first token on: no captured graph is ever made anew.
//!
//! But where a token is to be one launch (`--persistent on`) and its kernel is missing, which is
//! the longest compile of all: then tokens are launches until it is there, and it takes over
//! between two of them. What was captured of a token is captured once more (`runner/takeover.rs`).
//!
//! On an H200 with 16 cores the first token of a cold start came after 0.82 s instead of 1.19, on
//! two of its cores after 1.59 instead of 3.77 (docs/compile-service.md).
//!
//! Numbers differ in their last bits between the two ways, and when the change comes depends on the
//! clock. So who was promised the same tokens twice must wait for all kernels: without
//! [`OpenOptions::early`](kjit_exec::OpenOptions::early) opening does.
//!
//! Rejected, by what they cost (nvrtc 13.5, that model, seconds of one core for all 31 kernels:
//! 7.0):
//! - *the same sources compiled fast first*: `-O1` 6.7 s, `-O0` 7.1; `--Ofast-compile=min` refuses
//!   matvec ("unsupported operation"), as do its higher levels. clang's `-O1` on gfx1100 takes 90 %
//!   of `-O3`'s time: starting it and linking is most of it.
//! - *kernels with run-time shapes*, compiled once for all models: a second set of every kernel to
//!   write, tune and hold against the oracle on every card, for the second that the first ever
//!   start with a new shape takes.

use super::plan::{Job, JobId, Launch, OneLaunch, Plan};
use super::trust::Proofs;
use kjit_engine::{Behind, CodeObject, Device, Engine, Kernel};
use kjit_exec::SessionError;
use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How a start without all kernels went.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EarlyStatus {
    /// Kernels for prompts that had to be compiled, and were not waited for.
    pub late: usize,
    /// Tokens of prompts that went one by one for want of them.
    pub single: usize,
    /// Tokens that were in the sequence when they took over; none as long as they have not.
    pub swapped_at: Option<usize>,
    /// The kernel of a whole token had to be compiled, and was not waited for.
    pub one_launch_late: bool,
    /// Tokens that were in the sequence when it took over; none as long as it has not.
    pub one_launch_at: Option<usize>,
    /// Why it was not taken when it was there.
    pub one_launch_refused: Option<String>,
}

/// What is still to come for an opened model, and how that went. Clones are the same.
#[derive(Clone)]
pub struct Early(Arc<Mutex<State>>);

struct State {
    engine: Engine,
    /// The jobs for prompts that are late.
    jobs: Vec<(JobId, Job)>,
    prompts: Stage,
    /// The kernels of a whole token, of one sequence and more.
    one_launch: Vec<(kjit_engine::Job, &'static str)>,
    whole: Stage,
    /// Somebody asked for it; else launches go on where it cannot be had.
    asked: bool,
    status: EarlyStatus,
}

enum Stage {
    Compiling(Behind),
    /// It came, or was there before.
    Done,
    /// A kernel does not compile or load: from then on nothing works, as if it had been waited for.
    Failed(String),
}

impl Early {
    /// Begins to compile what a plan has for prompts alone, and the kernels of a whole token if
    /// there are to be any, as far as they are not in the cache; none if nothing is missing.
    /// `asked`: somebody asked for those kernels.
    pub(super) fn begin(
        engine: &Engine,
        plan: &Plan,
        ones: &[OneLaunch],
        asked: bool,
    ) -> Result<Option<Early>, SessionError> {
        // What cannot be compiled here at all is no matter of time: it is left to those who wait,
        // and fail.
        let missing = |job: &kjit_engine::Job| matches!(engine.cached(job), Ok(None));
        let jobs: Vec<_> = for_prompts_alone(plan)
            .into_iter()
            .filter_map(|id| Some((id, plan.jobs.get(id.0 as usize)?.clone())))
            .filter(|(_, job)| missing(&job.job))
            .collect();
        // They take over together.
        let mut one_launch: Vec<_> = ones.iter().map(|one| (one.job.clone(), one.entry)).collect();
        if !one_launch.iter().any(|(job, _)| missing(job)) {
            one_launch.clear();
        }
        if jobs.is_empty() && one_launch.is_empty() {
            return Ok(None);
        }
        let begin = |jobs: Vec<kjit_engine::Job>| match jobs.is_empty() {
            true => Ok(Stage::Done),
            false => engine.compile_behind(jobs).map(Stage::Compiling),
        };
        // Prompts first: their tokens are those that wait.
        let prompts = begin(jobs.iter().map(|(_, job)| job.job.clone()).collect())?;
        let whole = begin(one_launch.iter().map(|(job, _)| job.clone()).collect())?;
        let (late, one_launch_late) = (jobs.len(), !one_launch.is_empty());
        let status = EarlyStatus { late, one_launch_late, ..EarlyStatus::default() };
        let state =
            State { engine: engine.clone(), jobs, prompts, one_launch, whole, asked, status };
        Ok(Some(Early(Arc::new(Mutex::new(state)))))
    }

    /// How it went so far.
    pub fn status(&self) -> EarlyStatus {
        self.lock().status.clone()
    }

    /// Whether something is still being compiled.
    pub fn compiles(&self) -> bool {
        let state = self.lock();
        [&state.prompts, &state.whole].into_iter().any(|stage| match stage {
            Stage::Compiling(behind) => behind.progress().0 < behind.progress().1,
            Stage::Done | Stage::Failed(_) => false,
        })
    }

    /// At the end of the work: begins no further compile, waits so long at most for those that have
    /// begun, so that the next start finds them. The model must not be fed any more.
    ///
    /// # Errors
    /// A kernel that does not compile.
    pub fn finish(&self, at_most: Duration) -> Result<(), SessionError> {
        let stages = {
            let mut state = self.lock();
            let prompts = std::mem::replace(&mut state.prompts, Stage::Done);
            [(prompts, true), (std::mem::replace(&mut state.whole, Stage::Done), state.asked)]
        };
        let end = Instant::now() + at_most;
        let mut failed = None;
        for (stage, matters) in stages {
            let why = match stage {
                Stage::Compiling(behind) => {
                    let left = end.saturating_duration_since(Instant::now());
                    behind
                        .finish(left)
                        .into_iter()
                        .flatten()
                        .find_map(Result::err)
                        .map(|e| e.to_string())
                }
                Stage::Failed(why) => Some(why),
                Stage::Done => None,
            };
            failed = failed.or(why.filter(|_| matters));
        }
        failed.map_or(Ok(()), |why| Err(SessionError::Device(why)))
    }

    /// The jobs for prompts that are late.
    pub(super) fn jobs(&self) -> HashSet<JobId> {
        self.lock().jobs.iter().map(|(id, _)| *id).collect()
    }

    /// Whether kernels of a whole token are late.
    pub(super) fn lacks_one_launch(&self) -> bool {
        !self.lock().one_launch.is_empty()
    }

    /// The late kernels for prompts, loaded, once all are there; none before.
    pub(super) fn arrived(
        &self,
        device: &Device,
        at: usize,
    ) -> Result<Option<Vec<(JobId, Kernel)>>, SessionError> {
        let mut state = self.lock();
        let Some(codes) = state.prompts.codes()? else { return Ok(None) };
        match state.load(device, codes) {
            Ok(kernels) => {
                state.prompts = Stage::Done;
                state.status.swapped_at = Some(at);
                Ok(Some(kernels))
            }
            Err(error) => {
                state.prompts = Stage::Failed(error.to_string());
                Err(error)
            }
        }
    }

    /// The kernels of a whole token, loaded, once all are there; none before.
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
            Err(error) if state.asked => Stage::Failed(error.to_string()),
            Ok(_) | Err(_) => Stage::Done,
        };
        if let (Err(error), false) = (&loaded, state.asked) {
            state.status.one_launch_refused = Some(error.to_string());
            return Ok(None);
        }
        Ok(Some(loaded?))
    }

    /// It took over, with so many tokens in the sequence; or why it was not taken.
    pub(super) fn one_launch_taken(&self, taken: Result<usize, String>) {
        let mut state = self.lock();
        match taken {
            Ok(at) => state.status.one_launch_at = Some(at),
            Err(why) => state.status.one_launch_refused = Some(why),
        }
    }

    /// A token of a prompt went on its own.
    pub(super) fn count_single(&self) {
        self.lock().status.single += 1;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stage {
    /// What was compiled, once all of it is there.
    fn codes(&self) -> Result<Option<Vec<kjit_engine::Result<CodeObject>>>, SessionError> {
        match self {
            Stage::Compiling(behind) => Ok(behind.take()),
            Stage::Done => Ok(None),
            Stage::Failed(why) => Err(SessionError::Device(why.clone())),
        }
    }
}

impl State {
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
            // The verdict is kept: the next start takes another variant from the beginning.
            Err(SessionError::Wrong(why)) => Err(SessionError::Wrong(
                why.iter().map(|why| format!("{why}; the next start goes without it")).collect(),
            )),
            Err(other) => Err(other),
        }
    }
}

/// Jobs that only the programs for many tokens launch.
fn for_prompts_alone(plan: &Plan) -> Vec<JobId> {
    let launched = |launches: &[Launch]| launches.iter().map(|l| l.job).collect::<Vec<_>>();
    let mut now: HashSet<JobId> = launched(&plan.decode.launches).into_iter().collect();
    now.extend([&plan.adjust, &plan.greedy, &plan.draw].into_iter().flatten().map(|l| l.job));
    let own = plan.persistent.iter().filter_map(|one| one.own.as_deref());
    for rows in plan.batches.iter().chain(&plan.drafts).chain(own) {
        now.extend(launched(&rows.program.launches));
        now.extend([&rows.adjust, &rows.greedy, &rows.draw].into_iter().flatten().map(|l| l.job));
    }
    now.extend(plan.matrices.iter().filter_map(|(_, job)| *job));
    let mut late: Vec<JobId> = plan.prompts.iter().flat_map(|p| launched(&p.launches)).collect();
    late.sort_unstable();
    late.dedup();
    late.retain(|id| !now.contains(id));
    late
}
