//! The parent process: sends variants to a child, restarts the child if it ends, and saves the
//! results.

use super::protocol::{ChildRequest, ChildResponse};
use super::{StoredTunings, TuningSet};
use crate::measure::{MeasuredKernel, Timing};
use crate::process::Process;
use crate::target_probe::settled;
use kjit_engine::{Device, Engine, Target, TuningSubject};
use kjit_exec::NonExhaustive;
use kjit_kernels::spec::Spec;
use kjit_kernels::tuning::{Choices, Tuning};
use serde_json::json;
use std::process::Command;
use std::time::Duration;

/// Options of tuning.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// The time limit of a variant. A child that does not answer is killed.
    pub patience: Duration,
    /// The time limit in which a new child creates the data.
    pub start: Duration,
    /// Rounds in which the default and the best variant are timed alternately.
    pub rounds: usize,
    /// Maximum number of variants of a kernel, spread over all its variants.
    pub variants: usize,
    #[doc(hidden)]
    pub _more: NonExhaustive,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            patience: Duration::from_secs(20),
            start: Duration::from_secs(180),
            rounds: 7,
            variants: usize::MAX,
            _more: NonExhaustive::default(),
        }
    }
}

/// A tried variant.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    /// Text of the tuning.
    pub tuning: String,
    /// Seconds of the chain, or the failure.
    pub outcome: Result<Timing, String>,
}

/// The result of tuning a subject.
#[derive(Debug, Clone, PartialEq)]
pub struct Tuned {
    /// The subject.
    pub subject: MeasuredKernel,
    /// Text of the default tuning.
    pub default: String,
    /// All tried variants, the default first.
    pub candidates: Vec<Candidate>,
    /// The tuning used from now on.
    pub chosen: String,
    /// Seconds with the default, seconds with the best variant, and the difference that may be
    /// random. They are measured in alternating rounds. `None` if no variant was faster than the
    /// default.
    pub duel: Option<(f64, f64, f64)>,
    /// A description of the timed launches.
    pub context: String,
}

/// The progress of tuning.
#[derive(Debug, Clone, Copy)]
pub struct Progress<'a> {
    /// The current subject.
    pub subject: &'a MeasuredKernel,
    /// The result of the subject when it is done.
    pub tuned: Option<&'a Tuned>,
    /// Number of variants that were tried.
    pub done: usize,
    /// Number of variants to try.
    pub all: usize,
}

/// Tunes the subjects of the tuning set that have a choice and that `wanted` selects, and saves the
/// results. `spawn` starts a child that calls [`serve`](super::serve) with the same tuning set on
/// its standard input and output. `told` is called for each subject and variant.
///
/// # Errors
/// A child that cannot be started, or that always ends before its first answer.
pub fn tune(
    engine: &Engine,
    device: &Device,
    course: &TuningSet,
    wanted: &dyn Fn(&MeasuredKernel) -> bool,
    options: &Options,
    spawn: &dyn Fn() -> Command,
    told: &dyn Fn(&Progress<'_>),
) -> Result<Vec<Tuned>, String> {
    let target = settled(engine, device.target());
    let mut parent =
        Parent { engine, device, target, course, options, spawn, child: None, used: vec![] };
    let mut all = vec![];
    for index in course.tunable(&parent.target) {
        let Some(subject) = course.subjects.get(index).filter(|s| wanted(s)) else { continue };
        let tuned = parent.subject(index, subject, told)?;
        let all_of_them = tuned.candidates.len();
        told(&Progress { subject, tuned: Some(&tuned), done: all_of_them, all: all_of_them });
        all.push(tuned);
    }
    Ok(all)
}

struct Parent<'a> {
    engine: &'a Engine,
    device: &'a Device,
    /// The device's target with its compiler's properties, as plans use it.
    target: Target,
    course: &'a TuningSet,
    options: &'a Options,
    spawn: &'a dyn Fn() -> Command,
    child: Option<Process<ChildResponse>>,
    /// Requests that a new child gets again.
    used: Vec<ChildRequest>,
}

/// Number of consecutive children that may end before their first answer.
const MAX_EARLY_EXITS: usize = 3;

impl Parent<'_> {
    fn subject(
        &mut self,
        index: usize,
        subject: &MeasuredKernel,
        told: &dyn Fn(&Progress<'_>),
    ) -> Result<Tuned, String> {
        let (target, spec) = (self.target.clone(), subject.spec.with(None));
        let what = spec.to_string();
        let space = spread(spec.space(&target), self.options.variants);
        let default = space.first().map(ToString::to_string).unwrap_or_default();
        self.compile(&spec, &space);
        let mut candidates: Vec<Candidate> = vec![];
        for (i, tuning) in space.iter().enumerate() {
            told(&Progress { subject, tuned: None, done: i, all: space.len() });
            let tuning = tuning.to_string();
            let ask = ChildRequest::Measure {
                subject: index,
                spec: what.clone(),
                tuning: tuning.clone(),
            };
            let outcome = match self.ask(&ask)? {
                Ok(ChildResponse::Timed { median, spread }) => Ok(Timing { median, spread }),
                Ok(ChildResponse::Wrong { why } | ChildResponse::Lost { why }) | Err(why) => {
                    Err(why)
                }
                Ok(other) => Err(format!("an answer to a different request: {other:?}")),
            };
            candidates.push(Candidate { tuning, outcome });
        }
        let mut ranked: Vec<(f64, &str)> = candidates
            .iter()
            .filter_map(|c| Some((c.outcome.as_ref().ok()?.median, c.tuning.as_str())))
            .collect();
        ranked.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (mut chosen, mut duel) = (default.clone(), None);
        if let Some((_, best)) = ranked.first().filter(|(_, best)| *best != default) {
            let tunings = [default.clone(), (*best).to_owned()];
            let ask = ChildRequest::Comparison {
                subject: index,
                spec: what.clone(),
                tunings,
                rounds: self.options.rounds,
            };
            // If the default fails, there is no comparison. If a variant fails in the comparison,
            // it is not chosen.
            if let Ok(ChildResponse::Duelled { first, second }) = self.ask(&ask)? {
                let (usual, other, chance) = decide(first, second);
                duel = Some((usual, other, chance));
                if usual - other > chance {
                    chosen = (*best).to_owned();
                }
            }
        }
        let alone = !self.course.token.contains(&index);
        let context = match alone {
            true => {
                format!("a launch, in a chain of its own launches ({} tokens)", subject.size.tokens)
            }
            false => {
                format!(
                    "a token: {} launches, {} tokens in the cache",
                    self.course.token.len(),
                    subject.size.past
                )
            }
        };
        let tuned = Tuned { subject: subject.clone(), default, candidates, chosen, duel, context };
        self.keep(&tuned, &spec, &space)?;
        if tuned.chosen != tuned.default {
            let ask =
                ChildRequest::Use { subject: index, spec: what, tuning: tuned.chosen.clone() };
            // If the child ends here, the next child gets the request again.
            let _ = self.ask(&ask)?;
            self.used.push(ask);
        }
        Ok(tuned)
    }

    /// Compiles all variants in parallel. The child reports variants that do not compile.
    fn compile(&self, spec: &Spec, space: &[Tuning]) {
        let target = &self.target;
        let kernels = space.iter().filter_map(|t| spec.with(Some(*t)).kernel(target).ok());
        let jobs: Vec<_> = kernels.map(|k| k.job(target)).collect();
        drop(self.engine.compile_all(&jobs));
    }

    /// Saves all timings and the chosen tuning.
    fn keep(&self, tuned: &Tuned, spec: &Spec, space: &[Tuning]) -> Result<(), String> {
        let (device, target) = (self.device.info(), &self.target);
        let candidate = |c: &Candidate| match &c.outcome {
            Ok(t) => json!({ "tuning": c.tuning, "seconds": t.median, "spread": t.spread }),
            Err(why) => json!({ "tuning": c.tuning, "failed": why }),
        };
        let record = json!({
            "device": device.name, "driver": format!("{}.{}", device.driver.0, device.driver.1), "spec": spec.to_string(),
            "context": tuned.context, "default": tuned.default, "chosen": tuned.chosen,
            "duel": tuned.duel.map(|(usual, other, chance)| json!({ "default": usual, "best": other, "chance": chance })),
            "candidates": tuned.candidates.iter().map(candidate).collect::<Vec<_>>(),
        });
        let (what, kernel) = (spec.to_string(), spec.kernel(target).map_err(|e| e.to_string())?);
        let subject = TuningSubject { target, source: &kernel.source, what: &what };
        let bytes = record.to_string().into_bytes();
        self.engine
            .keep_tuning_timings(&subject, device.driver, &bytes)
            .map_err(|e| e.to_string())?;
        let kept = StoredTunings::of(self.engine);
        let known = kept.choice(spec, target);
        let chosen = space.iter().find(|t| t.to_string() == tuned.chosen).copied();
        match chosen {
            // The default needs no record, but it must replace an older choice.
            Some(t) if tuned.chosen != tuned.default || known.is_some_and(|k| k != t) => {
                kept.keep(spec, target, t, &tuned.measured(&device.name))
            }
            _ => Ok(()),
        }
    }

    /// Sends a request to the child. The child is started if needed. The inner error is a failure
    /// of the variant. The outer error means that no child starts.
    fn ask(&mut self, ask: &ChildRequest) -> Result<Result<ChildResponse, String>, String> {
        let mut last = String::new();
        for _ in 0..MAX_EARLY_EXITS {
            let (mut process, fresh) = match self.child.take() {
                Some(process) => (process, false),
                None => (Process::start((self.spawn)())?, true),
            };
            // A new child gets extra time for creating the data, but not for the variant.
            let ready = match (fresh, ask) {
                (false, _) => Ok(()),
                (
                    true,
                    ChildRequest::Prepare { subject, spec }
                    | ChildRequest::Measure { subject, spec, .. }
                    | ChildRequest::Comparison { subject, spec, .. }
                    | ChildRequest::Use { subject, spec, .. },
                ) => {
                    let prepare = ChildRequest::Prepare { subject: *subject, spec: spec.clone() };
                    let told = std::iter::once((&prepare, self.options.start));
                    let used = self.used.iter().map(|used| (used, self.options.patience));
                    told.chain(used)
                        .try_for_each(|(ask, patience)| process.exchange(ask, patience).map(drop))
                }
            };
            if let Err(why) = ready {
                last = process.end(&why);
                continue;
            }
            // A comparison consists of many measurements.
            let times = if let ChildRequest::Comparison { rounds, .. } = ask {
                2 * u32::try_from(*rounds).unwrap_or(u32::MAX)
            } else {
                1
            };
            let patience = self.options.patience.saturating_mul(times.max(1));
            return Ok(match process.exchange(ask, patience) {
                Ok(answer @ ChildResponse::Lost { .. }) => {
                    process.end("the device is lost");
                    Ok(answer)
                }
                Ok(answer) => {
                    self.child = Some(process);
                    Ok(answer)
                }
                Err(why) => Err(process.end(&why)),
            });
        }
        Err(format!("the process that measures ended before its first measurement: {last}"))
    }
}

impl Tuned {
    /// A readable description of the choice: the GPU and the gain.
    #[must_use]
    pub fn measured(&self, device: &str) -> String {
        match self.duel {
            Some((usual, other, chance)) => format!(
                "{device}: {:.2} µs instead of {:.2} (random difference {:.2}) for {}",
                other * 1e6,
                usual * 1e6,
                chance * 1e6,
                self.context
            ),
            None => format!("{device}: the default was the fastest for {}", self.context),
        }
    }
}

/// At most `most` variants spread over the list, including the first.
fn spread(all: Vec<Tuning>, most: usize) -> Vec<Tuning> {
    let (n, most) = (all.len(), most.max(1));
    if n <= most { all } else { (0..most).filter_map(|i| all.get(i * n / most).copied()).collect() }
}

/// Both medians, and the difference that may be random: the larger spread of the rounds, without
/// the slowest round of each.
fn decide(mut first: Vec<f64>, mut second: Vec<f64>) -> (f64, f64, f64) {
    first.sort_by(f64::total_cmp);
    second.sort_by(f64::total_cmp);
    let median = |v: &[f64]| v.get(v.len() / 2).copied().unwrap_or(f64::INFINITY);
    let apart = |v: &[f64]| {
        let last = v.len().saturating_sub(2).max(1);
        v.get(last).or(v.last()).copied().unwrap_or(f64::INFINITY)
            - v.first().copied().unwrap_or(0.0)
    };
    (median(&first), median(&second), apart(&first).max(apart(&second)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn difference_below_round_noise_is_not_significant() {
        let (usual, other, chance) =
            decide(vec![1.00, 1.02, 1.01, 1.00, 5.0], vec![0.99, 1.00, 1.01, 0.99, 0.98]);
        assert!(usual > other && usual - other <= chance, "{usual} {other} {chance}");
        let (usual, other, chance) =
            decide(vec![1.00, 1.02, 1.01, 1.00, 1.01], vec![0.90, 0.91, 0.91, 0.90, 0.92]);
        assert!(usual - other > chance, "{usual} {other} {chance}");
    }

    #[test]
    fn decision_without_rounds_is_undecided() {
        let (usual, other, chance) = decide(vec![], vec![]);
        assert!((usual - other).partial_cmp(&chance) != Some(std::cmp::Ordering::Greater));
    }
}
