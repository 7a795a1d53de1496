//! Sequences of a case: in slots of another order, some with an earlier state and some without.

use crate::case::{CaseArg, words};
use crate::data::Random;
use kjit_kernels::Size;

/// The owners of a launch's tokens.
#[derive(Debug, Clone)]
pub(crate) enum Sequences {
    /// One sequence.
    One {
        /// Tokens before.
        past: usize,
        /// Tokens.
        tokens: usize,
    },
    /// One token of each sequence, with the number of tokens before it.
    Several(Vec<usize>),
}

impl Sequences {
    /// The sequences of a size.
    pub(crate) fn of(one: bool, size: Size) -> Sequences {
        let tokens = size.tokens.max(1);
        if one {
            Sequences::One { past: size.past, tokens }
        } else {
            Sequences::Several(vec![size.past; tokens])
        }
    }

    /// Tokens of all sequences.
    pub(crate) fn rows(&self) -> usize {
        match self {
            Sequences::One { tokens, .. } => *tokens,
            Sequences::Several(pasts) => pasts.len(),
        }
    }
}

/// A sequence.
pub(crate) struct One<'a> {
    /// Its slot.
    pub slot: usize,
    /// Its first row.
    pub first: usize,
    /// Its rows.
    pub tokens: usize,
    /// Its state; empty at the beginning.
    pub kept: &'a [f32],
}

/// The states of slots before a launch. An unused slot, and one whose sequence begins, is poison.
pub(crate) struct Before {
    each: usize,
    one: bool,
    rows: usize,
    slot_of: Vec<usize>,
    /// By slot.
    pub positions: Vec<u32>,
    kept: Vec<Vec<f32>>,
}

impl Before {
    /// States of `each` numbers.
    pub(crate) fn of(sequences: &Sequences, each: usize, random: &mut Random) -> Before {
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
        Before { each, one, rows: sequences.rows(), slot_of, positions, kept }
    }

    /// The sequences in the order of their rows.
    pub(crate) fn each(&self) -> impl Iterator<Item = One<'_>> {
        self.slot_of.iter().enumerate().map(|(i, &slot)| {
            let (first, tokens) = if self.one { (0, self.rows) } else { (i, 1) };
            One { slot, first, tokens, kept: &self.kept[slot] }
        })
    }

    /// The expected contents of unwritten states.
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

    /// The list of slots; null for one.
    pub(crate) fn slots(&self) -> CaseArg {
        let slots: Vec<u32> = self.slot_of.iter().map(|&s| s as u32).collect();
        if slots.len() > 1 { words("slots", &slots) } else { CaseArg::Null }
    }
}
