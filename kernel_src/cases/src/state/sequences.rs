//! Sequences of a case. They are in permuted slots, with and without an earlier state.

use crate::case::{CaseArg, words};
use crate::data::Random;
use kjit_kernels::Size;

/// The sequences of the tokens of a launch.
#[derive(Debug, Clone)]
pub(crate) enum Sequences {
    /// One sequence.
    One {
        /// Number of tokens before the launch.
        past: usize,
        /// Number of tokens in the launch.
        tokens: usize,
    },
    /// One token of each sequence, with the number of tokens before it.
    Several(Vec<usize>),
}

impl Sequences {
    /// The sequences of a launch size.
    pub(crate) fn of(one: bool, size: Size) -> Sequences {
        let tokens = size.tokens.max(1);
        if one {
            Sequences::One { past: size.past, tokens }
        } else {
            Sequences::Several(vec![size.past; tokens])
        }
    }

    /// Number of tokens of all sequences.
    pub(crate) fn rows(&self) -> usize {
        match self {
            Sequences::One { tokens, .. } => *tokens,
            Sequences::Several(pasts) => pasts.len(),
        }
    }
}

/// A sequence.
pub(crate) struct TestSequence<'a> {
    /// Slot of the sequence.
    pub slot: usize,
    /// First row of the sequence.
    pub first: usize,
    /// Number of rows of the sequence.
    pub tokens: usize,
    /// State of the sequence; empty at its beginning.
    pub kept: &'a [f32],
}

/// The states of slots before a launch. Unused slots, and slots whose sequence begins, contain
/// poison.
pub(crate) struct InitialStates {
    each: usize,
    one: bool,
    rows: usize,
    slot_of: Vec<usize>,
    /// Position of each slot.
    pub positions: Vec<u32>,
    kept: Vec<Vec<f32>>,
}

impl InitialStates {
    /// States of `each` numbers.
    pub(crate) fn of(sequences: &Sequences, each: usize, random: &mut Random) -> InitialStates {
        let (one, pasts) = match sequences {
            Sequences::One { past, .. } => (true, vec![*past]),
            Sequences::Several(pasts) => (false, pasts.clone()),
        };
        let places = if pasts.len() > 1 { pasts.len() + 1 } else { 1 };
        let slot_of: Vec<usize> = (0..pasts.len()).map(|s| places - 1 - s).collect();
        let (mut positions, mut kept) = (vec![u32::MAX; places], vec![vec![]; places]);
        for (&slot, &past) in slot_of.iter().zip(&pasts) {
            positions[slot] = past as u32;
            if past > 0 {
                kept[slot] = random.normals(each, 1.0);
            }
        }
        InitialStates { each, one, rows: sequences.rows(), slot_of, positions, kept }
    }

    /// The sequences in the order of their rows.
    pub(crate) fn each(&self) -> impl Iterator<Item = TestSequence<'_>> {
        self.slot_of.iter().enumerate().map(|(i, &slot)| {
            let (first, tokens) = if self.one { (0, self.rows) } else { (i, 1) };
            TestSequence { slot, first, tokens, kept: &self.kept[slot] }
        })
    }

    /// The expected contents of states that are not written.
    pub(crate) fn poison(&self) -> Vec<f64> {
        vec![f64::NAN; self.each * self.positions.len()]
    }

    /// The states' bytes.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let of = |kept: &Vec<f32>| match kept.is_empty() {
            true => vec![0xff; 4 * self.each],
            false => kept.iter().flat_map(|v| v.to_le_bytes()).collect(),
        };
        self.kept.iter().flat_map(of).collect()
    }

    /// The list of slots; null for one sequence.
    pub(crate) fn slots(&self) -> CaseArg {
        let slots: Vec<u32> = self.slot_of.iter().map(|&s| s as u32).collect();
        if slots.len() > 1 { words("slots", &slots) } else { CaseArg::Null }
    }
}
