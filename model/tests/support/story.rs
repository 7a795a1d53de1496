//! Runs a fixed sequence of operations on a session, to compare two sessions of a model bit for
//! bit.

use kjit_model::sample::SampleOptions;
use kjit_model::session::{Session, StepOutput, Want, Work};

fn ids(n: usize, step: u32) -> Vec<u32> {
    (0..n as u32).map(|i| (i * step * 7 + 11) % 200).collect()
}

/// Runs prompts in pieces, several sequences in one step, truncation, forks, and single tokens.
/// Returns the rows of each step.
pub fn story(session: &mut Session) -> Vec<Vec<f32>> {
    let mut rows = vec![];
    let (a, b) = (
        session.add(SampleOptions::default()).unwrap(),
        session.add(SampleOptions::default()).unwrap(),
    );
    let (first, second) = (ids(17, 3), ids(9, 5));
    let work = [
        Work { sequence: a, tokens: &first, want: Want::Last },
        Work { sequence: b, tokens: &second, want: Want::All },
    ];
    let given = session.step(&work).unwrap();
    rows.extend(given.into_iter().map(|g| match g {
        StepOutput::Logits(rows) => rows,
        other => panic!("{other:?}"),
    }));
    for t in [3, 1, 4] {
        rows.push(session.feed(a, &[t], Want::Last).unwrap());
    }
    // Truncates to a position at which recurrent states have no copy, so that the tokens in between
    // are run again.
    rows.push(session.feed(b, &ids(40, 9), Want::Last).unwrap());
    let kept = session.truncate(b, 45).unwrap();
    rows.push(session.feed(b, &ids(45, 5)[kept.min(45)..], Want::Nothing).unwrap());
    rows.push(session.feed(b, &ids(7, 2), Want::Last).unwrap());
    session.remove(a).unwrap();
    let c = session.fork(b, 48, SampleOptions::default()).unwrap();
    let at = session.len(c).unwrap();
    rows.push(vec![at as f32]);
    rows.push(session.feed(c, &ids(5, 13), Want::Last).unwrap());
    rows.push(session.feed(b, &[7], Want::Last).unwrap());
    session.truncate(c, 2).unwrap();
    rows.push(session.feed(c, &[9, 8, 7], Want::All).unwrap());
    rows
}

/// Asserts that two runs have bit-for-bit equal results.
pub fn same(name: &str, want: &[Vec<f32>], got: &[Vec<f32>]) {
    assert_eq!(want.len(), got.len());
    for (i, (want, got)) in want.iter().zip(got).enumerate() {
        let differ = want.iter().zip(got).position(|(a, b)| a.to_bits() != b.to_bits());
        assert!(
            want.len() == got.len() && differ.is_none(),
            "{name}, answer {i}: differs at {differ:?}"
        );
    }
}
