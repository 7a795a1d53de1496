//! A tuning set: the kernels to tune, and the launches among which they are timed. Parent and child
//! create the same tuning set from the same plan, and identify its parts by their texts.

use crate::measure::{MeasuredKernel, of_plan};
use kjit_engine::Target;
use kjit_plan::Plan;

/// The kernels of a tuning set.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TuningSet {
    /// All kernels of the model, or the requested kernels.
    pub subjects: Vec<MeasuredKernel>,
    /// The launches of a token, as indices of subjects. A one-token kernel is timed among them,
    /// because the best variant in a chain of its own launches is not the best in a layer. If
    /// empty, every kernel is timed in a chain of its own launches.
    pub token: Vec<usize>,
}

impl TuningSet {
    /// The tuning set of a plan, with `depth` tokens in the cache.
    #[must_use]
    pub fn of_plan(plan: &Plan, depth: usize) -> TuningSet {
        let subjects = of_plan(plan, depth);
        let index = |launch: &kjit_plan::Launch| {
            let job = plan.jobs.get(launch.job.0 as usize)?;
            subjects.iter().position(|s| s.program == "decode" && s.spec == job.spec)
        };
        let token = plan.decode.launches.iter().filter_map(index).collect();
        TuningSet { subjects, token }
    }

    /// The subjects with tunings, each once. If a subject is in several programs, its largest size
    /// is used.
    #[must_use]
    pub fn tunable(&self, target: &Target) -> Vec<usize> {
        let mut all: Vec<usize> = vec![];
        for (i, subject) in self.subjects.iter().enumerate() {
            if subject.spec.tuning(target).is_none() {
                continue;
            }
            let text = subject.spec.to_string();
            let same =
                |&&j: &&usize| self.subjects.get(j).is_some_and(|s| s.spec.to_string() == text);
            match all.iter().find(same).copied() {
                None => all.push(i),
                Some(j) => {
                    let tokens = |k: usize| self.subjects.get(k).map_or(0, |s| s.size.tokens);
                    if tokens(i) > tokens(j) {
                        all.retain(|&k| k != j);
                        all.push(i);
                    }
                }
            }
        }
        all
    }
}
