//! Messages between parent and child, one line of JSON each.

use crate::measure::Timing;
use serde::{Deserialize, Serialize};

/// A request to the child.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum ChildRequest {
    /// Creates and uploads the data of a subject, and of the subjects among which it is timed. Does
    /// not run kernels.
    Prepare { subject: usize, spec: String },
    /// Checks and times a variant.
    Measure { subject: usize, spec: String, tuning: String },
    /// Times two variants alternately for a number of rounds.
    Comparison { subject: usize, spec: String, tunings: [String; 2], rounds: usize },
    /// Uses this variant when other subjects are timed.
    Use { subject: usize, spec: String, tuning: String },
}

/// The child's answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum ChildResponse {
    /// Seconds of a token, or of a launch if it is timed in its own chain.
    Timed { median: f64, spread: f64 },
    /// Medians of each round, for the first and the second variant.
    Duelled { first: Vec<f64>, second: Vec<f64> },
    /// Done.
    Ready,
    /// The variant fails; other variants may work.
    Wrong { why: String },
    /// The device is lost, and this process ends.
    Lost { why: String },
}

impl From<Timing> for ChildResponse {
    fn from(t: Timing) -> ChildResponse {
        ChildResponse::Timed { median: t.median, spread: t.spread }
    }
}
