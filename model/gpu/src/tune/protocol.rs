//! What parent and child say to each other: a line of JSON each.

use crate::measure::Timing;
use serde::{Deserialize, Serialize};

/// A question.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Ask {
    /// Make the data, of a subject and of those it is timed among, and upload it: nothing runs yet.
    Prepare { subject: usize, spec: String },
    /// Check and time a variant.
    Measure { subject: usize, spec: String, tuning: String },
    /// Time two variants in turn, so often.
    Duel { subject: usize, spec: String, tunings: [String; 2], rounds: usize },
    /// From now on this variant is in the company of others.
    Use { subject: usize, spec: String, tuning: String },
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Answer {
    /// Seconds of a token, or of a launch where it was timed alone.
    Timed { median: f64, spread: f64 },
    /// The medians of each round, of the first and of the second.
    Duelled { first: Vec<f64>, second: Vec<f64> },
    /// Done.
    Ready,
    /// The variant is wrong, or cannot be: the next one may be right.
    Wrong { why: String },
    /// The device is lost: this process ends.
    Lost { why: String },
}

impl From<Timing> for Answer {
    fn from(t: Timing) -> Answer {
        Answer::Timed { median: t.median, spread: t.spread }
    }
}
