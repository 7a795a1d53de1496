//! Tensor split in one process: several devices compute each layer together. Each device has a
//! runner for its shard of the graph.
//!
//! All runners make the same calls, each on its own thread, so they launch the same work in the
//! same order. Launches depend only on tokens. The tokens are equal because each device has all
//! logits, bit for bit equal. Their kernels exchange data during the launches
//! (`kjit_kernels::reduce`). The results of the first device are returned.

use super::GpuRunner;
use super::OtherDevices;
use super::shared_devices::SharedDevices;
use crate::exchange::{Exchange, InboxMemory};
use crate::loaded_plan::{Persistent, SlotScope};
use crate::open::plan_for;
use crate::source::Source;
use kjit_engine::{Device, Engine, Stream};
use kjit_exec::Sampler;
use kjit_exec::{DecodeControl, MaskCallback, OpenOptions, SessionError, StepOutput, Task, Want};
use kjit_graph::Graph;
use kjit_plan::{Bind, Choice, ExchangeSizes};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

/// The reason why devices cannot compute together.
pub enum DevicesIncompatible {
    /// The devices differ in kind, or data sent between them does not arrive.
    Link(String),
    /// Any other error.
    Other(SessionError),
}

impl<E: Into<SessionError>> From<E> for DevicesIncompatible {
    fn from(error: E) -> DevicesIncompatible {
        DevicesIncompatible::Other(error.into())
    }
}

/// A task with its own copy of the sampler.
struct FollowerSampler<'a> {
    slot: usize,
    first: usize,
    tokens: &'a [u32],
    want: Want,
    sampler: Sampler,
}

impl<'a> FollowerSampler<'a> {
    fn of(task: &Task<'a>) -> FollowerSampler<'a> {
        let &Task { slot, first, tokens, want, .. } = task;
        FollowerSampler { slot, first, tokens, want, sampler: task.sampler.clone() }
    }

    fn task(&mut self) -> Task<'_> {
        let FollowerSampler { slot, first, tokens, want, sampler } = self;
        Task { slot: *slot, first: *first, tokens, want: *want, sampler }
    }
}

/// The work of a device other than the first.
type FollowerTask<'a> =
    Box<dyn FnMut(&mut GpuRunner, &mut [Task<'_>]) -> Result<(), SessionError> + Send + 'a>;

impl GpuRunner {
    /// Opens the shards of a model on these devices. The first one returns the results.
    pub fn together(
        engine: &Engine,
        devices: &[Device],
        source: Source<'_>,
        shards: Vec<Graph>,
        options: &OpenOptions,
    ) -> Result<GpuRunner, DevicesIncompatible> {
        let mut unreached = None;
        for a in devices {
            for b in devices.iter().filter(|b| !b.same(a)) {
                if a.target() != b.target() {
                    // The rounding of sums would differ between kinds of devices, so the tokens
                    // could differ, too.
                    return Err(DevicesIncompatible::Link(format!(
                        "{} and {} are not of one kind",
                        a.label(),
                        b.label()
                    )));
                }
                if !a.reach(b)? {
                    unreached.get_or_insert_with(|| {
                        format!("{} cannot reach the memory of {}", a.label(), b.label())
                    });
                }
            }
        }
        let (Some(first), Some(device)) = (shards.first(), devices.first()) else {
            return Err(SessionError::Device("there is no device".to_owned()).into());
        };
        let room = plan_for(engine, first, device.target(), options)?.room().unwrap_or_default();
        let places = match unreached {
            None => Exchange::of(devices, room, InboxMemory::Devices)?,
            Some(_) => in_host(devices, room, unreached.as_deref())?,
        };
        let opened: Vec<Result<GpuRunner, SessionError>> = std::thread::scope(|scope| {
            let parts = devices.iter().zip(shards).zip(places);
            let opening = parts.map(|((device, graph), place)| {
                scope.spawn(move || {
                    GpuRunner::open_at(engine, device, source, graph, options, (Some(place), None))
                })
            });
            let opening: Vec<_> = opening.collect();
            opening.into_iter().map(|one| one.join().unwrap_or_else(|_| Err(ended()))).collect()
        });
        let mut runners = opened.into_iter().collect::<Result<Vec<_>, _>>()?;
        // Either all devices or none must use the persistent kernel, because these kernels wait for
        // each other.
        let has = |r: &GpuRunner| r.loaded.persistent.len();
        let everywhere = runners.iter().all(|r| has(r) == runners.first().map_or(0, has));
        let sole = SharedDevices::on(devices)?;
        if !everywhere || sole.shared() {
            runners.iter_mut().try_for_each(GpuRunner::launch_tokens)?;
        }
        let proven = |runners: &[GpuRunner]| {
            prove(runners, 0, runners.len()).map_err(|error| match error {
                lost @ SessionError::Lost(_) if devices.iter().any(|d| d.memory().is_err()) => {
                    DevicesIncompatible::Other(lost)
                }
                other => DevicesIncompatible::Link(other.to_string()),
            })
        };
        match proven(&runners) {
            Err(DevicesIncompatible::Link(why)) if unreached.is_none() => {
                // Kernels that still wait use memory that is about to be freed.
                runners.iter().try_for_each(|r| r.loaded.stream.synchronize())?;
                for (runner, place) in runners.iter_mut().zip(in_host(devices, room, Some(&why))?) {
                    // Captured graphs use the old buffers.
                    runner.recordings.clear();
                    runner.loaded.meeting = Some(place);
                    Persistent::again(&mut runner.loaded)?;
                }
                in_host_too(&why, proven(&runners))?;
                unreached = Some(why);
            }
            done => in_host_too(unreached.as_deref().unwrap_or_default(), done)?,
        }
        let streams: Vec<Stream> = runners.iter().map(|r| r.loaded.stream.clone()).collect();
        sole.opened(&streams, runners.iter().filter(|r| has(r) > 0).count());
        runners.iter_mut().for_each(|r| r.sole = Some(Arc::clone(&sole)));
        let mut leader = runners.remove(0);
        leader.others = OtherDevices { runners, streams };
        leader.remark(
            unreached
                .map(|why| format!("sums go through the host's memory: {why}"))
                .into_iter()
                .collect(),
        );
        Ok(leader)
    }

    /// The number of devices.
    pub fn ranks(&self) -> usize {
        1 + self.others.runners.len()
    }

    /// The path of sums between the devices: `from device to device`, `through the host's memory`,
    /// or `by the vendor's library`.
    pub fn sums_go(&self) -> Option<&'static str> {
        self.loaded.meeting.as_ref().map(|place| match place.way() {
            InboxMemory::Devices => "from device to device",
            InboxMemory::Host => "through the host's memory",
            InboxMemory::Own => "by the vendor's library",
        })
    }

    /// Runs `ours` on the first device and `theirs` on the others, at the same time.
    fn all<T>(
        &mut self,
        tasks: &[Task<'_>],
        mut theirs: Vec<FollowerTask<'_>>,
        ours: impl FnOnce(&mut GpuRunner) -> Result<T, SessionError>,
    ) -> Result<T, SessionError> {
        let _busy = self.sole.as_ref().map(SharedDevices::begin);
        let mut others = std::mem::take(&mut self.others.runners);
        let mut own: Vec<Vec<FollowerSampler<'_>>> =
            others.iter().map(|_| tasks.iter().map(FollowerSampler::of).collect()).collect();
        let (mine, rest) = std::thread::scope(|scope| {
            let parts = others.iter_mut().zip(&mut own).zip(&mut theirs);
            let running = parts.map(|((runner, own), does)| {
                scope.spawn(move || {
                    let mut tasks: Vec<Task<'_>> =
                        own.iter_mut().map(FollowerSampler::task).collect();
                    let done = does(runner, &mut tasks);
                    runner.end_unless_well(&done);
                    done
                })
            });
            let running: Vec<_> = running.collect();
            let mine = ours(self);
            self.end_unless_well(&mine);
            let rest: Vec<_> = running
                .into_iter()
                .map(|one| one.join().unwrap_or_else(|_| Err(ended())))
                .collect();
            (mine, rest)
        });
        self.others.runners = others;
        let failed: Vec<SessionError> = rest.into_iter().filter_map(Result::err).collect();
        match mine {
            Ok(done) if failed.is_empty() => Ok(done),
            // All devices return this error, and none of them has changed.
            Err(SessionError::NothingAllowed)
                if failed.iter().all(|e| matches!(e, SessionError::NothingAllowed)) =>
            {
                Err(SessionError::NothingAllowed)
            }
            mine => {
                // The states of the devices are no longer equal. The error of a lost device
                // explains more than the error of a waiting device.
                let mut all: Vec<SessionError> = mine.err().into_iter().chain(failed).collect();
                let second = |e: &SessionError| {
                    e.to_string().contains("with it: ") || e.to_string().contains("has failed")
                };
                all.sort_by_key(second);
                let why = all.into_iter().next().unwrap_or_else(ended);
                Err(SessionError::Lost(why.to_string()))
            }
        }
    }

    /// Ends the other devices' waits if this device has failed.
    fn end_unless_well<T>(&self, done: &Result<T, SessionError>) {
        if let (Err(error), Some(meeting)) = (done, &self.loaded.meeting)
            && !matches!(error, SessionError::NothingAllowed)
        {
            meeting.end();
        }
    }

    /// Runs a step on all devices.
    pub(super) fn step_together(
        &mut self,
        tasks: &mut [Task<'_>],
        late: Option<MaskCallback<'_>>,
    ) -> Result<Vec<StepOutput>, SessionError> {
        // The other devices also need the masks.
        if let Some(late) = late {
            late(tasks);
        }
        let copies: Vec<FollowerSampler<'_>> = tasks.iter().map(FollowerSampler::of).collect();
        let mut copies = copies;
        let given: Vec<Task<'_>> = copies.iter_mut().map(FollowerSampler::task).collect();
        let theirs = self.others.runners.iter().map(|_| {
            let does = |runner: &mut GpuRunner, tasks: &mut [Task<'_>]| {
                runner.step_alone(tasks, None).map(drop)
            };
            Box::new(does) as Box<_>
        });
        let theirs = theirs.collect();
        self.all(&given, theirs, |runner| runner.step_alone(tasks, None))
    }

    /// Decodes on all devices, which choose the same tokens. The tokens of the first device are
    /// passed on.
    pub(super) fn decode_together(
        &mut self,
        tasks: &mut [Task<'_>],
        sink: &mut dyn FnMut(usize, u32) -> DecodeControl,
    ) -> (Vec<usize>, Result<(), SessionError>) {
        let mut copies: Vec<FollowerSampler<'_>> = tasks.iter().map(FollowerSampler::of).collect();
        let given: Vec<Task<'_>> = copies.iter_mut().map(FollowerSampler::task).collect();
        let mut to = vec![];
        let mut theirs: Vec<FollowerTask<'_>> = vec![];
        for _ in &self.others.runners {
            let (tell, told) = channel::<(usize, u32, DecodeControl)>();
            to.push(tell);
            theirs.push(Box::new(move |runner, tasks| follow(runner, tasks, &told)));
        }
        let mut lens: Vec<usize> = tasks.iter().map(|t| t.first).collect();
        let done = self.all(&given, theirs, |runner| {
            let mut tell = |index: usize, token: u32| {
                let after = sink(index, token);
                // A follower that has ended returns its own error.
                for to in &to {
                    let _ = to.send((index, token, after));
                }
                after
            };
            let (all, done) = runner.decode_alone(tasks, &mut tell);
            to.clear();
            lens = all;
            done
        });
        (lens, done)
    }

    /// Copies a slot on the other devices.
    pub(super) fn copy_others(
        &mut self,
        from: usize,
        to: usize,
        len: usize,
    ) -> Result<(), SessionError> {
        self.others.runners.iter_mut().try_for_each(|other| other.copy(from, to, len).map(drop))
    }
}

/// Exchange buffers in host memory. The error also gives the reason why device memory is not used.
fn in_host(
    devices: &[Device],
    room: ExchangeSizes,
    why: Option<&str>,
) -> Result<Vec<Exchange>, DevicesIncompatible> {
    Exchange::of(devices, room, InboxMemory::Host).map_err(|error| match error {
        // A failed call does not mean a lost device if the devices still respond.
        lost @ SessionError::Lost(_) if devices.iter().any(|d| d.memory().is_err()) => {
            DevicesIncompatible::Other(lost)
        }
        error => DevicesIncompatible::Link(format!(
            "{}, and in the host's memory {error}",
            why.unwrap_or_default()
        )),
    })
}

/// Adds to a link error the reason why device memory is not used.
fn in_host_too(
    why: &str,
    done: Result<(), DevicesIncompatible>,
) -> Result<(), DevicesIncompatible> {
    done.map_err(|apart| match apart {
        DevicesIncompatible::Link(second) => {
            DevicesIncompatible::Link(format!("{why}, and in the host's memory {second}"))
        }
        other => other,
    })
}

/// Decodes in step with the first device, whose sink decides after each token.
fn follow(
    runner: &mut GpuRunner,
    tasks: &mut [Task<'_>],
    told: &Receiver<(usize, u32, DecodeControl)>,
) -> Result<(), SessionError> {
    let mut apart = None;
    let label = runner.opened().label().to_owned();
    let (_, done) = runner.decode_alone(tasks, &mut |index, token| match told.recv() {
        Ok((at, same, after)) if (at, same) == (index, token) => after,
        Ok((_, other, _)) => {
            apart =
                Some(format!("{label} chose token {token} where the first device chose {other}"));
            DecodeControl::Pause
        }
        // The first device has failed.
        Err(_) => DecodeControl::Pause,
    });
    apart.map_or(done, |why| Err(SessionError::Lost(why)))
}

/// Number of patterns with the largest number of rows of a pass. There is one for each half of the
/// inboxes, so that every value of them is tested. (8B in chunks of 2048: 34 MB each.)
const LARGEST_PATTERNS: u32 = 2;
/// Maximum number of rows of the other patterns.
const ROWS: u32 = 64;

/// Tests that data between devices arrives: reduces patterns with the kernels, memory and links
/// that are used later, for decoding and for prompts, in both halves of the inboxes. `runners` are
/// ranks `first..` of `ranks`; the others are in other processes.
pub(super) fn prove(runners: &[GpuRunner], first: usize, ranks: usize) -> Result<(), SessionError> {
    let kinds = runners.iter().map(|r| r.loaded.plan.sums().len()).min().unwrap_or(0);
    if kinds == 0 {
        return Err(SessionError::Device("the reduction has no buffers".to_owned()));
    }
    (0..kinds).try_for_each(|kind| {
        (1..=3).try_for_each(|seed| arrives(runners, (first, ranks), kind, seed))
    })
}

/// Tests one kind of reduction with one pattern.
fn arrives(
    runners: &[GpuRunner],
    (lowest, ranks): (usize, usize),
    kind: usize,
    seed: u32,
) -> Result<(), SessionError> {
    let mut placed = vec![];
    for (rank, runner) in runners.iter().enumerate() {
        let r = &runner.loaded;
        let missing = || SessionError::Device("the devices' reductions differ".to_owned());
        let sum = r.plan.sums().into_iter().nth(kind).ok_or_else(missing)?;
        let rows = if seed <= LARGEST_PATTERNS {
            sum.program.tokens
        } else {
            sum.program.tokens.min(ROWS)
        };
        let values = rows as usize * sum.cols;
        let buffer = |at: usize| match sum.launch.args.get(at) {
            Some(Bind::Buffer(id)) => {
                Ok(r.buffer(sum.program, *id)?.cast::<f32>()?.slice(..values)?)
            }
            _ => Err(missing()),
        };
        r.stream.write(&buffer(0)?, &pattern(lowest + rank + 1, seed, values))?;
        if sum.residual {
            r.stream.write(&buffer(1)?, &pattern(0, seed, values))?;
        }
        let y = buffer(2)?;
        placed.push((sum, rows, y));
    }
    for (runner, (sum, rows, _)) in runners.iter().zip(&placed) {
        let (program, launch) = (sum.program, sum.launch);
        let now = runner.now(program, *rows as usize, Choice::Greedy)?;
        runner.loaded.launch(program, launch, &now, SlotScope::Slot(0))?;
    }
    // All devices must get the same sum.
    let Some((sum, _, y)) = placed.first() else { return Ok(()) };
    let mut want = vec![0f32; y.len()];
    for from in usize::from(!sum.residual)..=ranks {
        want.iter_mut().zip(pattern(from, seed, y.len())).for_each(|(w, v)| *w += v);
    }
    for (runner, (_, _, y)) in runners.iter().zip(&placed) {
        // With ranks in other processes the result may never arrive; this wait has a time limit.
        runner.loaded.settle()?;
        let came = runner.loaded.stream.read(y)?;
        runner.loaded.check()?;
        if let Some(at) = came.iter().zip(&want).position(|(came, want)| came != want) {
            let label = runner.opened().label().to_owned();
            return Err(SessionError::Device(format!(
                "value {at} of a pattern did not arrive on {label}"
            )));
        }
    }
    Ok(())
}

/// Integers whose sums are exact.
fn pattern(from: usize, seed: u32, len: usize) -> Vec<f32> {
    let word = |i: u32| {
        i.wrapping_add(from as u32 * 7919).wrapping_mul(2_654_435_761).rotate_left(seed) & 0xffff
    };
    (0..len as u32).map(|i| word(i) as f32).collect()
}

fn ended() -> SessionError {
    SessionError::Device("a thread of a device ended early".to_owned())
}
