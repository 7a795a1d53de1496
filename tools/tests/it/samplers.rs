//! Samplers of `kjit run` that the CPU applies.

use crate::support::{kjit, smollm2, stdout};
use serde_json::Value;

/// A text whose usual continuation repeats it.
const REPEATED: &str = "apple pie, apple pie, apple pie, apple pie, apple";

/// The ids of a short answer.
fn ids(flags: &[&str]) -> Value {
    let mut c = kjit();
    c.arg("run").arg(smollm2()).args(["--raw", "-p", REPEATED, "-n", "3", "--json"]).args(flags);
    let doc: Value = serde_json::from_str(&stdout(&mut c)).unwrap();
    assert_eq!(doc["ids"].as_array().unwrap().len(), 3, "{doc}");
    doc["ids"].clone()
}

#[test]
fn samplers_change_answers_as_their_options_say() {
    let greedy = ids(&["--temp", "0"]);
    // At this temperature tokens are drawn almost evenly.
    let hot = ["--temp", "50", "--top-k", "0", "--top-p", "1", "--min-p", "0", "--seed", "7"];
    let hot = |more: &[&str]| ids(&[&hot, more].concat());
    let drawn = hot(&[]);
    assert_ne!(drawn, greedy);
    // Cuts that leave only the most likely token.
    assert_eq!(hot(&["--top-nsigma", "0.0001"]), greedy);
    assert_eq!(hot(&["--mirostat", "2", "--mirostat-ent", "0", "--mirostat-lr", "0"]), greedy);
    assert_ne!(hot(&["--typical", "0.01"]), drawn);
    // A temperature from 0 to 4 that is near 0, as the entropy's tenth power is.
    let warm = ["--temp", "2", "--top-k", "0", "--top-p", "1", "--min-p", "0", "--seed", "7"];
    let follows = ["--dynatemp-range", "2", "--dynatemp-exp", "10"];
    assert_eq!(ids(&[&warm[..], &follows].concat()), greedy);
    let two = ["--temp", "1", "--top-k", "2", "--top-p", "1", "--min-p", "0", "--seed", "7"];
    let two = |more: &[&str]| ids(&[&two, more].concat());
    // Of two likely tokens the most likely one is removed.
    let cut = two(&["--xtc-probability", "1", "--xtc-threshold", "0"]);
    assert_ne!(cut[0], greedy[0]);
    assert_eq!(two(&["--xtc-probability", "1", "--xtc-threshold", "0.6"]), two(&[]));
}

#[test]
fn dry_ends_repetitions_but_not_after_its_breakers() {
    let dry = |more: &[&str]| {
        ids(&[&["--temp", "0", "--dry-multiplier", "100", "--dry-allowed-length", "1"], more]
            .concat())
    };
    let greedy = ids(&["--temp", "0"]);
    assert_ne!(dry(&[])[0], greedy[0]);
    assert_eq!(dry(&["--dry-penalty-last-n", "0"]), greedy);
    assert_eq!(dry(&["--dry-sequence-breaker", "apple"])[0], greedy[0]);
    assert_ne!(dry(&["--dry-sequence-breaker", "none"])[0], greedy[0]);
}
