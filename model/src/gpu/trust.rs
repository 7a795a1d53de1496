//! Trust after proof: before a code object is used on a device for the first time, it is run there
//! once, at its own sizes on a few rows of chosen numbers, and held against the host's.
//!
//! The verdict is kept in the cache by the device, its driver and the build: a start that finds
//! them all runs nothing. A kernel that computes wrongly is reported, and the model is planned for
//! the next variant of the device ([`ladder`]). What is being run is written down first, so a
//! kernel that takes the process down is known at the next start. Only AMD's devices are proven,
//! unless the engine was told otherwise ([`Engine::proves`]).
//!
//! What the host must compute is made by some threads for all kernels of an opening, from rows that
//! all of its matrices share ([`SharedData`]). One copy brings what buffers begin with to the device,
//! which makes all of them itself ([`Sources`]). Runs are one after the other, in one stretch of
//! memory; no further matrix sets out meanwhile ([`Proofs::give_way`]).

use super::measure::{Placed, Sources};
use super::plan::Job;
use crate::session::SessionError;
use kjit_engine::Verdicts;
use kjit_engine::{
    CodeObject, Device, DeviceBuffer, Engine, Error, Kernel, Module, ProofSubject, Stream, Target,
};
use kjit_kernels::Size;
use kjit_kernel_cases::{Case, SharedData, Random};
use kjit_kernels::kv::PAGE;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Tokens of a proof at most: few rows.
const TOKENS: usize = 3;
/// Of the chosen numbers.
const SEED: u64 = 0x6b6a_6974;
/// A proof's bounds are so many times those of the kernels' cases: it looks for instructions that
/// compute something else, which are off by a tenth and more, and must refuse no kernel that is
/// right. Over the sizes of all models some come out just beside the cases' bounds (1.1e-4 of its
/// norm where 1e-4 is allowed).
const BOUNDS: f64 = 16.0;
/// Threads that make cases at most: a model has some dozens.
const THREADS: usize = 16;
const RIGHT: &str = "right";

/// What the proofs of an opening took.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Proven {
    /// Kernels that were run.
    pub run: usize,
    /// Those whose verdict was known.
    pub known: usize,
    /// Seconds in which proofs were under way, whoever waited for them.
    pub seconds: f64,
    /// Of these, as sums over the threads that load kernels: until the host had its cases, until
    /// the device had what they begin with, and the runs.
    pub parts: [f64; 3],
    /// Of the runs: until what a kernel reads lay in its place, the kernels themselves, reading
    /// back, and holding it against the oracle's; what is missing to all are the marks.
    pub runs: [f64; 4],
    /// The longest run.
    pub longest: f64,
}

/// The proofs of one opening.
pub(super) struct Proofs<'e> {
    engine: &'e Engine,
    device: &'e Device,
    target: &'e Target,
    /// Bytes of the device's memory that they may take, beside what the model is to have.
    room: u64,
    /// What their cases have in common.
    few: Arc<SharedData>,
    /// None where kernels are not proven. Runs take turns: a mark is of one.
    state: Option<Mutex<State>>,
    clock: Clock,
}

struct State {
    verdicts: Verdicts,
    /// Where they run, once one did.
    stream: Option<Stream>,
    memory: Option<DeviceBuffer<u8>>,
    /// Bytes that the largest case takes, of those that fit.
    most: usize,
    proven: Proven,
}

/// The time in which somebody was at it.
#[derive(Default)]
struct Clock {
    ticks: Mutex<Ticks>,
    /// Nobody is any more.
    free: Condvar,
}

#[derive(Default)]
struct Ticks {
    at_it: usize,
    since: Option<Instant>,
    seconds: f64,
}

/// Whose time counts.
struct Ticking<'c>(&'c Clock);

/// What came of a proof.
enum Verdict {
    /// It may be used.
    Right,
    /// It may be used, and was not proven: why.
    Unproven(String),
    /// It must not be used: what is wrong, in a line.
    Wrong(String),
}

/// What a kernel is to do; or why that cannot be had.
type Made = Result<Case, String>;

/// The targets that a device is tried as, best first: as it is; as if nothing were known of its
/// compiler; by its other wave width; without its matrix unit; without its byte dot product;
/// without either; by arithmetic in f32 alone.
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
    /// Of the kernels of a plan for `target`.
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
            let proven = Proven { seconds: began.elapsed().as_secs_f64(), ..Proven::default() };
            Mutex::new(State { verdicts, stream: None, memory: None, most: 0, proven })
        });
        Proofs { engine, device, target, room, few: Arc::default(), state, clock: Clock::default() }
    }

    /// Loads what was compiled of jobs, and proves what has no verdict; with what could not be
    /// proven.
    ///
    /// # Errors
    /// [`SessionError::Wrong`] at the first that computes wrongly: the others of this variant are
    /// not looked at any more. What does not compile or load; a device that is lost.
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

    /// Waits while another thread proves kernels. On an H200 runs beside weights on their way took
    /// as long as those did, however little there was to run.
    pub(super) fn give_way(&self) {
        let mut now = self.clock.lock();
        while now.at_it > 0 {
            now = self.clock.free.wait(now).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Keeps the verdicts. Weights are on their way for minutes perhaps: who ends the process
    /// meanwhile need not wait for this again.
    pub(super) fn keep(&self) {
        if let Some(mut state) = self.lock() {
            let _ticking = Ticking::of(&self.clock);
            state.verdicts.save();
        }
    }

    /// What was done, once all is: keeps the verdicts, gives the memory back.
    pub(super) fn end(self) -> Proven {
        let Some(state) = self.state else { return Proven::default() };
        let state = state.into_inner().unwrap_or_else(PoisonError::into_inner);
        let began = Instant::now();
        let State { verdicts, memory, proven, .. } = state;
        drop((verdicts, memory));
        let ticks = self.clock.ticks.into_inner().unwrap_or_else(PoisonError::into_inner);
        Proven { seconds: proven.seconds + ticks.seconds + began.elapsed().as_secs_f64(), ..proven }
    }

    fn lock(&self) -> Option<MutexGuard<'_, State>> {
        self.state.as_ref().map(|state| state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Proves what has no verdict; with what could not be proven. One that is known to be wrong
    /// ends this variant before anything else of it is run.
    fn prove(&self, loaded: &[(&Job, Module, Kernel)]) -> Result<Vec<String>, SessionError> {
        let Some(mut state) = self.lock() else { return Ok(vec![]) };
        let ticking = Ticking::of(&self.clock);
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

    /// A case of each job, by some threads.
    fn cases(&self, jobs: &[&Job]) -> Vec<Made> {
        let slots: Vec<Mutex<Option<Made>>> = jobs.iter().map(|_| Mutex::default()).collect();
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
        let none = || Err("its case was not made".to_owned());
        let made =
            slots.into_iter().map(|slot| slot.into_inner().unwrap_or_else(PoisonError::into_inner));
        made.map(|made| made.unwrap_or_else(none)).collect()
    }

    /// Runs the kernels one after the other; with what could not be proven.
    fn run(
        &self,
        state: &mut State,
        open: &[(&Job, &Module, &Kernel)],
        cases: Vec<Made>,
    ) -> Result<Vec<String>, SessionError> {
        let (mut remarks, mut ready) = (vec![], vec![]);
        let unproven = |job: &Job, why: &str| format!("{} could not be proven: {why}", job.spec);
        for (&(job, module, kernel), case) in open.iter().zip(cases) {
            let bytes = case.as_ref().map_or(0, Placed::bytes);
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
            ready.iter().map(|(.., case)| Placed::bytes(case)).fold(state.most, usize::max);
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
                Verdict::Right => {}
                Verdict::Unproven(why) => remarks.push(unproven(job, &why)),
                Verdict::Wrong(why) => {
                    return Err(SessionError::Wrong(vec![self.wrong(job, &why)]));
                }
            }
        }
        state.proven.parts[2] += began.elapsed().as_secs_f64();
        Ok(remarks)
    }

    fn wrong(&self, job: &Job, why: &str) -> String {
        format!("{} computes wrongly on {}: {why}", job.spec, self.device.label())
    }

    fn case(&self, job: &Job) -> Made {
        let tokens = job.spec.timed_at(0).tokens.min(TOKENS);
        // The last of the tokens is the first of the second page of keys.
        let size = Size { tokens, past: PAGE + 1 - tokens };
        let mut random = Random::new(SEED).sharing(&self.few);
        let units = self.device.info().units;
        let case = kjit_kernel_cases::case(&job.spec, self.target, units, size, &mut random);
        case.map(|case| case.with_bounds(BOUNDS)).map_err(|why| why.to_string())
    }

    /// The verdict on a kernel, by running its case now.
    fn verdict(
        &self,
        state: &mut State,
        (job, code, kernel): (&Job, &CodeObject, &Kernel),
        sources: &Sources,
        case: Case,
    ) -> Result<Verdict, Error> {
        let began = Instant::now();
        let _span = self.device.trace().map(|t| t.span("prove", job.spec.to_string()));
        let memory = state.memory(self.device, Placed::bytes(&case));
        let placed =
            memory.and_then(|(stream, memory)| Placed::within(&stream, &memory, sources, case));
        let mut placed = match placed {
            Ok(placed) => placed,
            Err(lost @ Error::DeviceLost { .. }) => return Err(lost),
            Err(why) => return Ok(Verdict::Unproven(why.to_string())),
        };
        // What happens before the launch is not the kernel's doing.
        match placed.settle() {
            Ok(()) => {}
            Err(lost @ Error::DeviceLost { .. }) => return Err(lost),
            Err(why) => return Ok(Verdict::Unproven(why.to_string())),
        }
        let here = began.elapsed().as_secs_f64();
        let judged = state.verdicts.prove(&ProofSubject { code, what: &what(job) }, || {
            let judged = placed.judge(kernel, false);
            let verdict = match &judged {
                Ok(Ok(())) => Some(RIGHT.to_owned()),
                Ok(Err(why)) => Some(why.clone()),
                // A fault is the kernel's doing. A launch that is refused, for lack of memory, is
                // not.
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
            Ok(Ok(())) => Ok(Verdict::Right),
            Ok(Err(why)) => Ok(Verdict::Wrong(why)),
            Err(why) if self.device.memory().is_ok() => Ok(Verdict::Unproven(why.to_string())),
            // A fault ends all on the device: the verdict is kept, and the next start takes the
            // next variant.
            Err(fault) => {
                self.device.memory()?;
                Ok(Verdict::Wrong(fault.to_string()))
            }
        }
    }
}

impl State {
    fn stream(&mut self, device: &Device) -> Result<Stream, Error> {
        let stream = self.stream.take().map_or_else(|| device.stream(), Ok)?;
        Ok(self.stream.insert(stream).clone())
    }

    /// Where to run, with so much memory at least; at first with what the largest takes, since the
    /// driver's own allocations wait for what is under way.
    fn memory(
        &mut self,
        device: &Device,
        bytes: usize,
    ) -> Result<(Stream, DeviceBuffer<u8>), Error> {
        let stream = self.stream(device)?;
        // What is too small goes first: there may be no room for both.
        let memory = match self.memory.take().filter(|memory| memory.len() >= bytes) {
            Some(memory) => memory,
            None => device.buffer(bytes.max(self.most)).or_else(|_| device.buffer(bytes))?,
        };
        Ok((stream, self.memory.insert(memory).clone()))
    }
}

impl Clock {
    fn lock(&self) -> MutexGuard<'_, Ticks> {
        self.ticks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<'c> Ticking<'c> {
    fn of(clock: &'c Clock) -> Ticking<'c> {
        let mut now = clock.lock();
        now.at_it += 1;
        now.since.get_or_insert_with(Instant::now);
        Ticking(clock)
    }
}

impl Drop for Ticking<'_> {
    fn drop(&mut self) {
        let mut now = self.0.lock();
        now.at_it -= 1;
        if now.at_it == 0 {
            now.seconds += now.since.take().map_or(0.0, |since| since.elapsed().as_secs_f64());
            self.0.free.notify_all();
        }
    }
}

/// What a kernel is to compute: the same text every time.
fn what(job: &Job) -> String {
    format!("{}: {}", job.entry, job.spec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variants_of_a_device_are_what_it_has_and_can_do_without() {
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
