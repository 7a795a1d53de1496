//! What is tuned, and in which company: parent and child make the same course from the same plan,
//! and speak of its parts by their texts.

use crate::measure::{Subject, of_plan};
use kjit_engine::Target;
use kjit_plan::Plan;

/// Kernels to measure.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Course {
    /// All kernels of the model, or those that were asked for.
    pub subjects: Vec<Subject>,
    /// The launches of a token, as indices of subjects: a kernel for one token is timed among them,
    /// since what wins in a chain of its own kind is not what wins in a layer. Empty: every kernel
    /// is timed in a chain of its own kind.
    pub token: Vec<usize>,
}

impl Course {
    /// That of a model's plan, with so many tokens in the cache.
    #[must_use]
    pub fn of_plan(plan: &Plan, depth: usize) -> Course {
        let subjects = of_plan(plan, depth);
        let index = |launch: &kjit_plan::Launch| {
            let job = plan.jobs.get(launch.job.0 as usize)?;
            subjects.iter().position(|s| s.program == "decode" && s.spec == job.spec)
        };
        let token = plan.decode.launches.iter().filter_map(index).collect();
        Course { subjects, token }
    }

    /// Those that have a choice, each once: where several programs launch it, at its largest size.
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
