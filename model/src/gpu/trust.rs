//! Trust after proof: before a code object is used on a device for the first time, it is run there once, at
//! its own sizes on a few rows of chosen numbers, and held against the host's.
//!
//! The verdict is kept in the cache by the device, its driver and the build: a start that finds them all runs
//! nothing. A kernel that computes wrongly is reported, and the model is planned for the next variant of the
//! device ([`ladder`]). What is being run is written down first, so a kernel that takes the process down is
//! known at the next start. Only AMD's devices are proven, unless the engine was told otherwise
//! ([`Engine::proves`]).
//!
//! What the host must compute is made by some threads for all kernels of an opening; a matrix repeats a few
//! rows, of which the device makes all ([`Placed::within`]). Runs are one after the other, in one stretch of
//! memory.

use super::measure::Placed;
use super::plan::Job;
use crate::session::SessionError;
use kjit_engine::{CodeObject, Device, DeviceBuffer, Engine, Error, Kernel, ProofSubject, Stream, Target, Verdicts};
use kjit_kernels::Size;
use kjit_kernels::cases::{Case, Random};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Tokens of a proof at most: few rows.
const TOKENS: usize = 3;
/// Tokens in the cache before them.
const PAST: usize = 37;
/// Of the chosen numbers.
const SEED: u64 = 0x6b6a_6974;
/// A proof's bounds are so many times those of the kernels' cases: it looks for instructions that compute
/// something else, which are off by a tenth and more, and must refuse no kernel that is right. Over the sizes
/// of all models some come out just beside the cases' bounds (1.1e-4 of its norm where 1e-4 is allowed).
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
    /// Seconds: the cases, the runs and the verdicts' record, as far as somebody waited for them.
    pub seconds: f64,
}

/// What came of a proof.
enum Verdict {
    /// It may be used.
    Right,
    /// It may be used, and was not proven: why.
    Unproven(String),
    /// It must not be used: what is wrong, in a line.
    Wrong(String),
}

/// The proofs of one opening.
pub(super) struct Proofs<'e> {
    engine: &'e Engine,
    device: &'e Device,
    target: &'e Target,
    /// Bytes of the device's memory that they may take, beside what the model is to have.
    room: u64,
    /// None where kernels are not proven. Runs take turns: a mark is of one.
    state: Option<Mutex<State>>,
}

struct State {
    verdicts: Verdicts,
    /// Where they run, once one did.
    bench: Option<(Stream, DeviceBuffer<u8>)>,
    /// Bytes that the largest case takes, of those that fit.
    most: usize,
    proven: Proven,
}

type Made = Result<Case, String>;

/// The targets that a device is tried as, best first: as it is; as if nothing were known of its compiler; by
/// its other wave width; without its matrix unit; without its byte dot product; without either; by arithmetic
/// in f32 alone.
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
    let weaker = [(true, false), (false, true), (true, true)].map(|(matrix, dot)| target.without(matrix, dot));
    let least = [target.without(true, true), target.f32_alone()];
    let last = [other(&least[0]), Some(least[1].clone()), other(&least[1])];
    let next = std::iter::once(target.clone()).chain(other(target)).chain(weaker).chain(last.into_iter().flatten());
    for next in next {
        if !all.contains(&next) {
            all.push(next);
        }
    }
    all
}

impl<'e> Proofs<'e> {
    /// Of the kernels of a plan for `target`.
    pub(super) fn of(engine: &'e Engine, device: &'e Device, target: &'e Target, room: u64) -> Proofs<'e> {
        let wanted = engine.proves(device.info());
        let state = wanted.then(|| {
            let began = Instant::now();
            let verdicts = engine.verdicts(device.info());
            let proven = Proven { seconds: began.elapsed().as_secs_f64(), ..Proven::default() };
            Mutex::new(State { verdicts, bench: None, most: 0, proven })
        });
        Proofs { engine, device, target, room, state }
    }

    /// Loads what was compiled of jobs, and proves what has no verdict; with what could not be proven.
    ///
    /// # Errors
    /// [`SessionError::Wrong`] at the first that computes wrongly: the others of this variant are not looked
    /// at any more. What does not compile or load; a device that is lost.
    pub(super) fn load(
        &self,
        jobs: &[&Job],
        codes: Vec<kjit_engine::Result<CodeObject>>,
    ) -> Result<(Vec<Kernel>, Vec<String>), SessionError> {
        let codes = codes.into_iter().collect::<kjit_engine::Result<Vec<_>>>()?;
        let made = self.prepare(jobs, &codes)?;
        let (mut kernels, mut remarks) = (vec![], vec![]);
        for ((job, code), made) in jobs.iter().zip(&codes).zip(made) {
            let module = self.engine.load_code(self.device, &job.job, code)?;
            let kernel = module.kernel(job.entry)?;
            match self.verdict(job, module.code(), &kernel, made)? {
                Verdict::Right => {}
                Verdict::Unproven(why) => remarks.push(why),
                Verdict::Wrong(why) => return Err(SessionError::Wrong(vec![why])),
            }
            kernels.push(kernel);
        }
        // Weights are on their way for minutes perhaps: who ends the process meanwhile need not wait for this again.
        if let Some(mut state) = self.lock() {
            state.verdicts.save();
        }
        Ok((kernels, remarks))
    }

    /// What was done, once all is: keeps the verdicts, gives the memory back.
    pub(super) fn end(self) -> Proven {
        let Some(state) = self.state else { return Proven::default() };
        let state = state.into_inner().unwrap_or_else(PoisonError::into_inner);
        let began = Instant::now();
        let State { verdicts, bench, proven, .. } = state;
        drop((verdicts, bench));
        Proven { seconds: proven.seconds + began.elapsed().as_secs_f64(), ..proven }
    }

    fn lock(&self) -> Option<MutexGuard<'_, State>> {
        self.state.as_ref().map(|state| state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The cases of those jobs that have no verdict, in the order of the jobs. One that is known to be wrong
    /// ends this variant before anything else of it is run.
    fn prepare(&self, jobs: &[&Job], codes: &[CodeObject]) -> Result<Vec<Option<Made>>, SessionError> {
        let began = Instant::now();
        let slots: Vec<Mutex<Option<Made>>> = jobs.iter().map(|_| Mutex::default()).collect();
        let Some(state) = self.lock() else { return Ok(jobs.iter().map(|_| None).collect()) };
        let mut open = vec![];
        for (i, (job, code)) in jobs.iter().zip(codes).enumerate() {
            match state.verdicts.of(&ProofSubject { code, what: &what(job) }) {
                None => open.push(i),
                Some(RIGHT) => {}
                Some(why) => return Err(SessionError::Wrong(vec![self.wrong(job, why)])),
            }
        }
        drop(state);
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some(&i) = open.get(next.fetch_add(1, Ordering::Relaxed)) {
                if let (Some(job), Some(slot)) = (jobs.get(i), slots.get(i)) {
                    *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(self.case(job));
                }
            }
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            (1..cores.min(THREADS).min(open.len())).for_each(|_| drop(scope.spawn(work)));
            work();
        });
        let made = slots.into_iter().map(|slot| slot.into_inner().unwrap_or_else(PoisonError::into_inner));
        let made: Vec<Option<Made>> = made.collect();
        if let Some(mut state) = self.lock() {
            let bytes = made.iter().flatten().flatten().map(Placed::bytes).filter(|&n| n as u64 <= self.room);
            state.most = bytes.max().unwrap_or(0).max(state.most);
            state.proven.seconds += began.elapsed().as_secs_f64();
        }
        Ok(made)
    }

    fn wrong(&self, job: &Job, why: &str) -> String {
        format!("{} computes wrongly on {}: {why}", job.spec, self.device.label())
    }

    fn case(&self, job: &Job) -> Made {
        let size = job.spec.timed_at(PAST);
        let size = Size { tokens: size.tokens.min(TOKENS), past: size.past };
        let case = job.spec.case(self.target, self.device.info().units, size, &mut Random::new(SEED).few());
        case.map(|case| case.with_bounds(BOUNDS)).map_err(|why| why.to_string())
    }

    /// The verdict on a kernel: the one that was kept, else that of a run now, of `made` where that is there.
    fn verdict(&self, job: &Job, code: &CodeObject, kernel: &Kernel, made: Option<Made>) -> Result<Verdict, Error> {
        let what = what(job);
        let subject = ProofSubject { code, what: &what };
        let unproven = |why: String| Verdict::Unproven(format!("{} could not be proven: {why}", job.spec));
        let Some(mut state) = self.lock() else { return Ok(Verdict::Right) };
        match state.verdicts.of(&subject) {
            Some(RIGHT) => {
                state.proven.known += 1;
                return Ok(Verdict::Right);
            }
            Some(why) => return Ok(Verdict::Wrong(self.wrong(job, why))),
            None => {}
        }
        let began = Instant::now();
        let case = match made.unwrap_or_else(|| self.case(job)) {
            Ok(case) => case,
            Err(why) => return Ok(unproven(why)),
        };
        let bytes = Placed::bytes(&case);
        if bytes as u64 > self.room {
            return Ok(unproven(format!("{} MiB do not fit beside the model", bytes >> 20)));
        }
        let mut placed = match state.bench(self.device, bytes).and_then(|(s, memory)| Placed::within(s, memory, case)) {
            Ok(placed) => placed,
            Err(lost @ Error::DeviceLost { .. }) => return Err(lost),
            Err(why) => return Ok(unproven(why.to_string())),
        };
        let judged = state.verdicts.prove(&subject, || {
            let judged = placed.judge(kernel, false);
            let verdict = match &judged {
                Ok(Ok(())) => Some(RIGHT.to_owned()),
                Ok(Err(why)) => Some(why.clone()),
                // A fault is the kernel's doing. A launch that is refused, for lack of memory, is not.
                Err(fault) => self.device.memory().is_err().then(|| fault.to_string()),
            };
            (judged, verdict)
        });
        state.proven.run += 1;
        state.proven.seconds += began.elapsed().as_secs_f64();
        let why = match judged {
            Ok(Ok(())) => return Ok(Verdict::Right),
            Ok(Err(why)) => why,
            Err(why) if self.device.memory().is_ok() => return Ok(unproven(why.to_string())),
            Err(fault) => fault.to_string(),
        };
        // A fault ends all on the device: the verdict is kept, and the next start takes the next variant.
        self.device.memory()?;
        Ok(Verdict::Wrong(self.wrong(job, &why)))
    }
}

impl State {
    /// Where to run, with so much memory at least; at first with what the largest takes, since the driver's
    /// own allocations wait for what is under way.
    fn bench(&mut self, device: &Device, bytes: usize) -> Result<&(Stream, DeviceBuffer<u8>), Error> {
        // What is too small goes first: there may be no room for both.
        let old = self.bench.take();
        let stream = old.as_ref().map(|(stream, _)| stream.clone());
        let fits = old.filter(|(_, memory)| memory.len() >= bytes);
        let bench = match fits {
            Some(bench) => bench,
            None => {
                let memory = device.buffer(bytes.max(self.most)).or_else(|_| device.buffer(bytes))?;
                (stream.map_or_else(|| device.stream(), Ok)?, memory)
            }
        };
        Ok(self.bench.insert(bench))
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
        let names =
            |id: &str| -> Vec<String> { ladder(&Target::parse(id).unwrap()).iter().map(ToString::to_string).collect() };
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
