//! Verification (*proofs*) of kernels. Before a code object is first used on a device, it runs
//! there once, with its own sizes on a few rows of pseudo-random numbers, and the result is
//! compared with the host's result.
//!
//! Verdicts are cached by device, driver and build. If all verdicts are cached, no kernel is run at
//! startup. A kernel with wrong results is reported, and the model is planned for the next variant
//! of the device ([`ladder`]). A kernel is recorded before it runs, so the next start knows a
//! kernel that killed the process. By default only the kernels of AMD devices are verified
//! ([`Engine::proves`]).
//!
//! Several threads compute the host's results for all kernels of an opening, from rows that all
//! matrices share ([`SharedData`]). One copy uploads the source data, and the device creates the
//! initial contents of all buffers from it ([`Sources`]). Kernels run one after another in one
//! allocation. Meanwhile the upload starts no further matrix ([`Proofs::give_way`]).

use super::measure::{LoadedCase, Sources};
use super::plan::Job;
use super::prove_plan::rows_of;
use kjit_engine::Verdicts;
use kjit_engine::{
    CodeObject, Device, DeviceBuffer, Engine, Error, Kernel, Module, ProofSubject, Stream, Target,
};
use kjit_exec::SessionError;
use kjit_kernel_cases::{Case, Random, SharedData};
use kjit_kernels::Size;
use kjit_kernels::kv::PAGE;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The seed of the input numbers.
const SEED: u64 = 0x6b6a_6974;
/// Tolerances are the tolerances of the kernels' cases times this factor. Verification detects
/// instructions that compute a different operation (errors of a tenth or more), and must not reject
/// a correct kernel. Over the sizes of all models, some results are slightly outside the cases'
/// tolerances (1.1e-4 of the norm, with 1e-4 allowed).
pub(super) const BOUNDS: f64 = 16.0;
/// Maximum number of threads that create cases: a model has a few dozen cases.
const THREADS: usize = 16;
const RIGHT: &str = "right";

/// Counts and times of the verification of one opening.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct VerifyStatistics {
    /// Kernels that were run.
    pub run: usize,
    /// Kernels with a cached verdict.
    pub known: usize,
    /// Seconds during which any thread was verifying.
    pub seconds: f64,
    /// Parts of this time, summed over loading threads: the host's cases, the upload of sources,
    /// and the runs.
    pub parts: [f64; 3],
    /// Parts of the runs: preparing inputs, the kernels, reading back, comparing. The rest is the
    /// recording of kernels before they run.
    pub runs: [f64; 4],
    /// Seconds of the longest run.
    pub longest: f64,
}

/// The verification of one opening.
pub(super) struct Proofs<'e> {
    engine: &'e Engine,
    device: &'e Device,
    target: &'e Target,
    /// Bytes of device memory for verification, in addition to the model's memory.
    room: u64,
    /// Rows that all cases share.
    few: Arc<SharedData>,
    /// `None` if kernels are not verified. Runs are serial, because only one kernel at a time is
    /// recorded as running.
    state: Option<Mutex<VerifyState>>,
    clock: Clock,
}

struct VerifyState {
    verdicts: Verdicts,
    /// The stream of the runs, created by the first run.
    stream: Option<Stream>,
    memory: Option<DeviceBuffer<u8>>,
    /// Bytes of the largest case that fits.
    most: usize,
    proven: VerifyStatistics,
}

/// Measures the time during which any thread was verifying.
#[derive(Default)]
struct Clock {
    ticks: Mutex<VerifyClock>,
    /// Signals that no thread is verifying.
    free: Condvar,
}

#[derive(Default)]
struct VerifyClock {
    at_it: usize,
    since: Option<Instant>,
    seconds: f64,
}

/// Counts a thread as verifying while this value exists.
struct VerifyTimer<'c>(&'c Clock);

/// The result of a verification.
enum VerifyResult {
    /// The kernel may be used.
    Right,
    /// The kernel may be used without verification, for this reason.
    Unproven(String),
    /// The kernel must not be used, for this reason.
    Wrong(String),
}

/// A kernel's case, or the reason why it cannot be created.
type PreparedCase = Result<Case, String>;

/// The variants of a device that are tried, best first:
///
/// - unchanged;
/// - without the known properties of its compiler;
/// - with its other wave width;
/// - without its matrix unit;
/// - without its byte dot product;
/// - without both;
/// - with f32 arithmetic only.
pub(super) fn ladder(target: &Target) -> Vec<Target> {
    let mut all = vec![target.clone()];
    let target = &target.without_sound_copies();
    if target.vendor() != kjit_engine::Vendor::Amd {
        return all;
    }
    let other = |target: &Target| {
        let wave = target.waves().iter().copied().find(|w| *w != target.default_wave());
        wave.and_then(|wave| target.at_wave(wave))
    };
    let weaker = [(true, false), (false, true), (true, true)]
        .map(|(matrix, dot)| target.without(matrix, dot));
    let least = [target.without(true, true), target.f32_alone()];
    let last = [other(&least[0]), Some(least[1].clone()), other(&least[1])];
    let next = std::iter::once(target.clone())
        .chain(other(target))
        .chain(weaker)
        .chain(last.into_iter().flatten());
    for next in next {
        if !all.contains(&next) {
            all.push(next);
        }
    }
    all
}

impl<'e> Proofs<'e> {
    /// The verification of a plan's kernels on `target`.
    pub(super) fn of(
        engine: &'e Engine,
        device: &'e Device,
        target: &'e Target,
        room: u64,
    ) -> Proofs<'e> {
        let wanted = engine.proves(device.info());
        let state = wanted.then(|| {
            let began = Instant::now();
            let verdicts = engine.verdicts(device.info());
            let proven = VerifyStatistics {
                seconds: began.elapsed().as_secs_f64(),
                ..VerifyStatistics::default()
            };
            Mutex::new(VerifyState { verdicts, stream: None, memory: None, most: 0, proven })
        });
        Proofs { engine, device, target, room, few: Arc::default(), state, clock: Clock::default() }
    }

    /// Loads compiled jobs and verifies kernels without a verdict. Returns the kernels, and
    /// warnings about kernels that could not be verified.
    ///
    /// # Errors
    /// [`SessionError::Wrong`] for the first kernel with wrong results; the rest of this variant is
    /// skipped. A kernel that does not compile or load, and a lost device, are errors too.
    pub(super) fn load(
        &self,
        jobs: &[&Job],
        codes: Vec<kjit_engine::Result<CodeObject>>,
    ) -> Result<(Vec<Kernel>, Vec<String>), SessionError> {
        let mut loaded = vec![];
        for (job, code) in jobs.iter().zip(codes) {
            let module = self.engine.load_code(self.device, &job.job, &code?)?;
            let kernel = module.kernel(job.entry)?;
            loaded.push((*job, module, kernel));
        }
        let remarks = self.prove(&loaded)?;
        Ok((loaded.into_iter().map(|(_, _, kernel)| kernel).collect(), remarks))
    }

    /// Waits while another thread verifies kernels. On an H200, even short runs took as long as the
    /// upload if both ran at the same time.
    pub(super) fn give_way(&self) {
        let mut now = self.clock.lock();
        while now.at_it > 0 {
            now = self.clock.free.wait(now).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Saves the verdicts now. The upload may take minutes, and the verdicts must not be lost if
    /// the process ends during it.
    pub(super) fn keep(&self) {
        if let Some(mut state) = self.lock() {
            let _ticking = VerifyTimer::of(&self.clock);
            state.verdicts.save();
        }
    }

    /// Ends the verification: saves the verdicts and frees the memory.
    pub(super) fn end(self) -> VerifyStatistics {
        let Some(state) = self.state else { return VerifyStatistics::default() };
        let state = state.into_inner().unwrap_or_else(PoisonError::into_inner);
        let began = Instant::now();
        let VerifyState { verdicts, memory, proven, .. } = state;
        drop((verdicts, memory));
        let ticks = self.clock.ticks.into_inner().unwrap_or_else(PoisonError::into_inner);
        VerifyStatistics {
            seconds: proven.seconds + ticks.seconds + began.elapsed().as_secs_f64(),
            ..proven
        }
    }

    fn lock(&self) -> Option<MutexGuard<'_, VerifyState>> {
        self.state.as_ref().map(|state| state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Verifies kernels without a verdict. Returns warnings about kernels that could not be
    /// verified. If a kernel is known to be wrong, this variant ends before any run.
    fn prove(&self, loaded: &[(&Job, Module, Kernel)]) -> Result<Vec<String>, SessionError> {
        let Some(mut state) = self.lock() else { return Ok(vec![]) };
        let ticking = VerifyTimer::of(&self.clock);
        let mut open = vec![];
        for (job, module, kernel) in loaded {
            match state.verdicts.of(&ProofSubject { code: module.code(), what: &what(job) }) {
                None => open.push((*job, module, kernel)),
                Some(RIGHT) => state.proven.known += 1,
                Some(why) => return Err(SessionError::Wrong(vec![self.wrong(job, why)])),
            }
        }
        drop(state);
        if open.is_empty() {
            return Ok(vec![]);
        }
        let began = Instant::now();
        let jobs: Vec<&Job> = open.iter().map(|(job, ..)| *job).collect();
        let cases = std::thread::scope(|scope| {
            scope.spawn(|| self.lock().into_iter().for_each(|mut state| state.verdicts.begin()));
            self.cases(&jobs)
        });
        let made = began.elapsed();
        let Some(mut state) = self.lock() else { return Ok(vec![]) };
        state.proven.parts[0] += made.as_secs_f64();
        let remarks = self.run(&mut state, &open, cases);
        drop(ticking);
        remarks
    }

    /// Creates the cases of all jobs on several threads.
    fn cases(&self, jobs: &[&Job]) -> Vec<PreparedCase> {
        let slots: Vec<Mutex<Option<PreparedCase>>> =
            jobs.iter().map(|_| Mutex::default()).collect();
        let next = AtomicUsize::new(0);
        let work = || {
            let one = || {
                let i = next.fetch_add(1, Ordering::Relaxed);
                jobs.get(i).zip(slots.get(i))
            };
            while let Some((job, slot)) = one() {
                *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(self.case(job));
            }
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            (1..cores.min(THREADS).min(jobs.len())).for_each(|_| drop(scope.spawn(work)));
            work();
        });
        let none = || Err("its test case was not created".to_owned());
        let made =
            slots.into_iter().map(|slot| slot.into_inner().unwrap_or_else(PoisonError::into_inner));
        made.map(|made| made.unwrap_or_else(none)).collect()
    }

    /// Runs the kernels one after another. Returns warnings about kernels that could not be
    /// verified.
    fn run(
        &self,
        state: &mut VerifyState,
        open: &[(&Job, &Module, &Kernel)],
        cases: Vec<PreparedCase>,
    ) -> Result<Vec<String>, SessionError> {
        let (mut remarks, mut ready) = (vec![], vec![]);
        let unproven = |job: &Job, why: &str| format!("{} could not be proven: {why}", job.spec);
        for (&(job, module, kernel), case) in open.iter().zip(cases) {
            let bytes = case.as_ref().map_or(0, LoadedCase::bytes);
            match case {
                Ok(_) if bytes as u64 > self.room => {
                    remarks.push(unproven(
                        job,
                        &format!("{} MiB do not fit beside the model", bytes >> 20),
                    ));
                }
                Ok(case) => ready.push((job, module, kernel, case)),
                Err(why) => remarks.push(unproven(job, &why)),
            }
        }
        let began = Instant::now();
        state.most =
            ready.iter().map(|(.., case)| LoadedCase::bytes(case)).fold(state.most, usize::max);
        let sources = state
            .stream(self.device)
            .and_then(|s| Sources::of(&s, ready.iter().map(|(.., case)| case)));
        state.proven.parts[1] += began.elapsed().as_secs_f64();
        let sources = match sources {
            Ok(sources) => sources,
            Err(lost @ Error::DeviceLost { .. }) => return Err(lost.into()),
            Err(why) => {
                remarks.extend(ready.iter().map(|(job, ..)| unproven(job, &why.to_string())));
                return Ok(remarks);
            }
        };
        let began = Instant::now();
        for (job, module, kernel, case) in ready {
            match self.verdict(state, (job, module.code(), kernel), &sources, case)? {
                VerifyResult::Right => {}
                VerifyResult::Unproven(why) => remarks.push(unproven(job, &why)),
                VerifyResult::Wrong(why) => {
                    return Err(SessionError::Wrong(vec![self.wrong(job, &why)]));
                }
            }
        }
        state.proven.parts[2] += began.elapsed().as_secs_f64();
        Ok(remarks)
    }

    fn wrong(&self, job: &Job, why: &str) -> String {
        format!("{} gives wrong results on {}: {why}", job.spec, self.device.label())
    }

    fn case(&self, job: &Job) -> PreparedCase {
        let tokens = rows_of(&job.spec);
        // The last token is the first one of the second page of keys.
        let size = Size { tokens, past: PAGE + 1 - tokens };
        let mut random = Random::new(SEED).sharing(&self.few);
        let units = self.device.info().units;
        let case = kjit_kernel_cases::case(&job.spec, self.target, units, size, &mut random);
        case.map(|case| case.with_bounds(BOUNDS)).map_err(|why| why.to_string())
    }

    /// Runs a kernel's case for its verdict.
    fn verdict(
        &self,
        state: &mut VerifyState,
        (job, code, kernel): (&Job, &CodeObject, &Kernel),
        sources: &Sources,
        case: Case,
    ) -> Result<VerifyResult, Error> {
        let began = Instant::now();
        let _span = self.device.trace().map(|t| t.span("prove", job.spec.to_string()));
        let memory = state.memory(self.device, LoadedCase::bytes(&case));
        let placed =
            memory.and_then(|(stream, memory)| LoadedCase::within(&stream, &memory, sources, case));
        let mut placed = match placed {
            Ok(placed) => placed,
            Err(lost @ Error::DeviceLost { .. }) => return Err(lost),
            Err(why) => return Ok(VerifyResult::Unproven(why.to_string())),
        };
        // Faults before the launch are not caused by the kernel.
        match placed.settle() {
            Ok(()) => {}
            Err(lost @ Error::DeviceLost { .. }) => return Err(lost),
            Err(why) => return Ok(VerifyResult::Unproven(why.to_string())),
        }
        let here = began.elapsed().as_secs_f64();
        let judged = state.verdicts.prove(&ProofSubject { code, what: &what(job) }, || {
            let judged = placed.judge(kernel, false);
            let verdict = match &judged {
                Ok(Ok(())) => Some(RIGHT.to_owned()),
                Ok(Err(why)) => Some(why.clone()),
                // A fault is caused by the kernel; a launch that fails for lack of memory is not.
                Err(fault) => self.device.memory().is_err().then(|| fault.to_string()),
            };
            (judged, verdict)
        });
        let [run, read, held] = placed.took();
        for (sum, part) in state.proven.runs.iter_mut().zip([here, run, read, held]) {
            *sum += part;
        }
        state.proven.longest = state.proven.longest.max(began.elapsed().as_secs_f64());
        state.proven.run += 1;
        match judged {
            Ok(Ok(())) => Ok(VerifyResult::Right),
            Ok(Err(why)) => Ok(VerifyResult::Wrong(why)),
            Err(why) if self.device.memory().is_ok() => Ok(VerifyResult::Unproven(why.to_string())),
            // A fault ends all work on the device. The verdict is kept, so the next start uses the
            // next variant.
            Err(fault) => {
                self.device.memory()?;
                Ok(VerifyResult::Wrong(fault.to_string()))
            }
        }
    }
}

impl VerifyState {
    fn stream(&mut self, device: &Device) -> Result<Stream, Error> {
        let stream = self.stream.take().map_or_else(|| device.stream(), Ok)?;
        Ok(self.stream.insert(stream).clone())
    }

    /// The stream and at least `bytes` of memory. The first allocation is large enough for the
    /// largest case, since allocations wait for work in flight.
    fn memory(
        &mut self,
        device: &Device,
        bytes: usize,
    ) -> Result<(Stream, DeviceBuffer<u8>), Error> {
        let stream = self.stream(device)?;
        // A buffer that is too small is freed first: memory may not suffice for both.
        let memory = match self.memory.take().filter(|memory| memory.len() >= bytes) {
            Some(memory) => memory,
            None => device.buffer(bytes.max(self.most)).or_else(|_| device.buffer(bytes))?,
        };
        Ok((stream, self.memory.insert(memory).clone()))
    }
}

impl Clock {
    fn lock(&self) -> MutexGuard<'_, VerifyClock> {
        self.ticks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<'c> VerifyTimer<'c> {
    fn of(clock: &'c Clock) -> VerifyTimer<'c> {
        let mut now = clock.lock();
        now.at_it += 1;
        now.since.get_or_insert_with(Instant::now);
        VerifyTimer(clock)
    }
}

impl Drop for VerifyTimer<'_> {
    fn drop(&mut self) {
        let mut now = self.0.lock();
        now.at_it -= 1;
        if now.at_it == 0 {
            now.seconds += now.since.take().map_or(0.0, |since| since.elapsed().as_secs_f64());
            self.0.free.notify_all();
        }
    }
}

/// A kernel's identity in the cache: always the same text.
fn what(job: &Job) -> String {
    format!("{}: {}", job.entry, job.spec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verify_variants_match_target_features() {
        let names = |id: &str| -> Vec<String> {
            ladder(&Target::parse(id).unwrap()).iter().map(ToString::to_string).collect()
        };
        assert_eq!(
            names("gfx1100"),
            [
                "gfx1100",
                "gfx1100:wave64",
                "gfx1100:no-matrix",
                "gfx1100:no-dot",
                "gfx1100:no-matrix:no-dot",
                "gfx1100:no-matrix:no-dot:wave64",
                "gfx1100:f32",
                "gfx1100:f32:wave64"
            ]
        );
        assert_eq!(names("gfx942:xnack-").len(), 5);
        assert_eq!(names("gfx942:xnack-").last().unwrap(), "gfx942:f32:xnack-");
        assert_eq!(
            names("gfx908:sound-copies"),
            [
                "gfx908:sound-copies",
                "gfx908",
                "gfx908:no-matrix",
                "gfx908:no-dot",
                "gfx908:no-matrix:no-dot",
                "gfx908:f32"
            ]
        );
        assert_eq!(names("gfx900"), ["gfx900", "gfx900:f32"]);
        assert_eq!(names("sm_90a"), ["sm_90a"]);
    }
}
