//! The process that measures. If it faults, hangs or is killed, the parent continues.

use super::TuningSet;
use super::protocol::{ChildRequest, ChildResponse};
use crate::measure::{LoadedCase, MeasuredKernel, Timing, time};
use crate::target_probe::settled;
use kjit_engine::{Device, Engine, Kernel, Stream, Target};
use kjit_kernel_cases::Random;
use kjit_kernels::spec::Spec;
use kjit_kernels::tuning::Tuning;
use std::collections::HashMap;
use std::io::{BufRead, Write};

/// The seed of the data.
const SEED: u64 = 20_261_121;
/// Replays of a variant.
const REPLAYS: usize = 11;

/// Answers requests until there are no more. If the device is lost, it reports that and ends. The
/// tuning set must be created from the same plan as in the parent.
///
/// # Errors
/// A broken pipe; a device without a stream.
pub fn serve(
    engine: &Engine,
    device: &Device,
    course: &TuningSet,
    questions: impl BufRead,
    mut answers: impl Write,
) -> std::io::Result<()> {
    let stream = device.stream().map_err(std::io::Error::other)?;
    let target = settled(engine, device.target());
    let mut child = Child { engine, device, target, course, stream, stations: HashMap::new() };
    for line in questions.lines() {
        let answer = match serde_json::from_str::<ChildRequest>(&line?) {
            Ok(ask) => child.answer(&ask),
            Err(e) => ChildResponse::Wrong { why: format!("invalid request: {e}") },
        };
        serde_json::to_writer(&mut answers, &answer)?;
        answers.write_all(b"\n")?;
        answers.flush()?;
        if matches!(answer, ChildResponse::Lost { .. }) {
            break;
        }
    }
    Ok(())
}

/// A subject on the device with its current variant.
struct DeviceSubject {
    placed: LoadedCase,
    spec: Spec,
    kernel: Kernel,
}

struct Child<'a> {
    engine: &'a Engine,
    device: &'a Device,
    /// The target that the parent uses.
    target: Target,
    course: &'a TuningSet,
    stream: Stream,
    stations: HashMap<usize, DeviceSubject>,
}

/// A failure.
enum Fault {
    /// The variant fails; other variants may work.
    Wrong(String),
    /// The device is lost.
    Lost(String),
}

impl From<kjit_engine::Error> for Fault {
    fn from(e: kjit_engine::Error) -> Fault {
        match e {
            // After a fault the driver returns the same error for every call.
            kjit_engine::Error::DeviceLost { .. } | kjit_engine::Error::Driver { .. } => {
                Fault::Lost(e.to_string())
            }
            other => Fault::Wrong(other.to_string()),
        }
    }
}

type Outcome<T> = Result<T, Fault>;

impl Child<'_> {
    fn answer(&mut self, ask: &ChildRequest) -> ChildResponse {
        let done = match ask {
            ChildRequest::Prepare { subject, spec } => {
                self.prepare(*subject, spec).map(|()| ChildResponse::Ready)
            }
            ChildRequest::Measure { subject, spec, tuning } => {
                self.measure(*subject, spec, tuning).map(ChildResponse::from)
            }
            ChildRequest::Use { subject, spec, tuning } => {
                self.put(*subject, spec, tuning).map(|_| ChildResponse::Ready)
            }
            ChildRequest::Comparison { subject, spec, tunings, rounds } => {
                self.duel(*subject, spec, tunings, *rounds)
            }
        };
        match done {
            Ok(answer) => answer,
            Err(Fault::Wrong(why)) => ChildResponse::Wrong { why },
            Err(Fault::Lost(why)) => ChildResponse::Lost { why },
        }
    }

    fn subject(&self, index: usize, spec: &str) -> Outcome<&MeasuredKernel> {
        let found = self.course.subjects.get(index).filter(|s| s.spec.to_string() == spec);
        found.ok_or_else(|| {
            Fault::Wrong(format!(
                "subject {index} is not '{spec}': is this a different model or version of kjit?"
            ))
        })
    }

    fn prepare(&mut self, index: usize, spec: &str) -> Outcome<()> {
        self.subject(index, spec)?;
        self.station(index)?;
        if self.course.token.contains(&index) {
            self.course.token.iter().try_for_each(|&i| self.station(i))?;
        }
        Ok(())
    }

    /// Places a subject in device memory, with memory for each of its variants.
    fn station(&mut self, index: usize) -> Outcome<()> {
        if self.stations.contains_key(&index) {
            return Ok(());
        }
        let Some(subject) = self.course.subjects.get(index) else {
            return Err(Fault::Wrong(format!("subject {index} does not exist")));
        };
        let (target, units) = (&self.target, self.device.info().units);
        let wrong = |e: kjit_kernels::SpecError| Fault::Wrong(e.to_string());
        let mut case = kjit_kernel_cases::case(
            &subject.spec,
            target,
            units,
            subject.size,
            &mut Random::new(SEED),
        )
        .map_err(wrong)?;
        let space = subject.spec.space(target);
        for tuning in &space {
            case.vary(&subject.spec.with(Some(*tuning)), target, units, subject.size)
                .map_err(wrong)?;
        }
        if !space.is_empty() {
            case.vary(&subject.spec, target, units, subject.size).map_err(wrong)?;
        }
        let kernel = self.kernel(&subject.spec)?;
        let mut placed = LoadedCase::new(self.device, case)?;
        let launches = self.course.token.iter().filter(|&&i| i == index).count();
        let (free, _) = self.device.memory()?;
        placed.spread_out(launches, free / 8)?;
        self.stations.insert(index, DeviceSubject { placed, spec: subject.spec.clone(), kernel });
        Ok(())
    }

    fn kernel(&self, spec: &Spec) -> Outcome<Kernel> {
        let target = &self.target;
        let kernel = spec.kernel(target).map_err(|e| Fault::Wrong(e.to_string()))?;
        Ok(self.engine.load(self.device, &kernel.job(target))?.kernel(kernel.entry)?)
    }

    fn variant(&self, index: usize, spec: &str, tuning: &str) -> Outcome<(Spec, Tuning)> {
        let subject = self.subject(index, spec)?;
        let named = subject.spec.named(&self.target, tuning);
        let tuning = named
            .ok_or_else(|| Fault::Wrong(format!("'{tuning}' is not a variant of '{spec}'")))?;
        Ok((subject.spec.with(Some(tuning)), tuning))
    }

    /// Selects a variant after checking it against the oracle. Returns the previous variant.
    fn put(&mut self, index: usize, spec: &str, tuning: &str) -> Outcome<Spec> {
        let (variant, _) = self.variant(index, spec, tuning)?;
        self.station(index)?;
        let size = self.subject(index, spec)?.size;
        let kernel = self.kernel(&variant)?;
        let Some(station) = self.stations.get_mut(&index) else {
            return Err(Fault::Wrong(format!("subject {index} does not exist")));
        };
        station.placed.vary(&variant, &self.target, size).map_err(Fault::Wrong)?;
        station.kernel = kernel;
        let before = std::mem::replace(&mut station.spec, variant);
        let checked = station.placed.check(&station.kernel.clone(), false);
        if let Err(why) = checked {
            // A wrong variant does not stay current. This check also detects a lost device
            // immediately.
            self.restore(index, &before)?;
            self.stream.synchronize()?;
            self.device.memory()?;
            return Err(Fault::Wrong(why));
        }
        Ok(before)
    }

    fn restore(&mut self, index: usize, spec: &Spec) -> Outcome<()> {
        let kernel = self.kernel(spec)?;
        let size = self.course.subjects.get(index).map(|s| s.size);
        if let (Some(station), Some(size)) = (self.stations.get_mut(&index), size) {
            station.placed.vary(spec, &self.target, size).map_err(Fault::Wrong)?;
            station.kernel = kernel;
            station.spec = spec.clone();
        }
        Ok(())
    }

    fn measure(&mut self, index: usize, spec: &str, tuning: &str) -> Outcome<Timing> {
        let before = self.put(index, spec, tuning)?;
        let timed = self.timed(index, REPLAYS);
        self.restore(index, &before)?;
        timed
    }

    fn duel(
        &mut self,
        index: usize,
        spec: &str,
        tunings: &[String; 2],
        rounds: usize,
    ) -> Outcome<ChildResponse> {
        let mut medians = [vec![], vec![]];
        let mut first = None;
        for _ in 0..rounds {
            for (tuning, medians) in tunings.iter().zip(&mut medians) {
                let before = self.put(index, spec, tuning)?;
                first.get_or_insert(before);
                medians.push(self.timed(index, REPLAYS)?.median);
            }
        }
        if let Some(first) = first {
            self.restore(index, &first)?;
        }
        let [first, second] = medians;
        Ok(ChildResponse::Duelled { first, second })
    }

    /// Times the current variant of a subject: in a whole token if the subject is part of one,
    /// otherwise in a chain of its own launches.
    fn timed(&mut self, index: usize, replays: usize) -> Outcome<Timing> {
        if !self.course.token.contains(&index) {
            let Some(station) = self.stations.get_mut(&index) else {
                return Err(Fault::Wrong(format!("subject {index} does not exist")));
            };
            let kernel = station.kernel.clone();
            return Ok(station.placed.alone(&kernel)?.0);
        }
        for &i in &self.course.token {
            self.station(i)?;
        }
        let stations = &mut self.stations;
        let stream = &self.stream;
        let graph = stream.capture(|| {
            self.course.token.iter().try_for_each(|i| match stations.get_mut(i) {
                Some(s) => s.placed.chain(stream, &s.kernel),
                None => Ok(()),
            })
        })?;
        Ok(Timing::of(time(stream, &graph, replays)?))
    }
}
