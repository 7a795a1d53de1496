//! The effect of samplers on a sequence, for their cases.

use crate::case::{CaseArg, words};
use crate::expect::Expect;

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn exactly(name: &'static str, before: &[u32], after: &[u32]) -> CaseArg {
    CaseArg::Buffer { name, before: bytes(before).into(), expect: Expect::Bytes(bytes(after)) }
}

/// The slot of each sequence: permuted, or null for a single sequence.
pub(crate) fn slots(n: usize) -> (Vec<u32>, CaseArg) {
    let slots: Vec<u32> = (0..n as u32).rev().collect();
    let arg = if n > 1 { words("slots", &slots) } else { CaseArg::Null };
    (slots, arg)
}

/// Slots of the sequences, tokens and positions of `chosen.len()` sequences before and after;
/// `positions` are by slot.
pub(crate) fn moved(positions: &[u32], capacity: u32, chosen: &[u32]) -> [CaseArg; 3] {
    let before = vec![0xffff_ffff; positions.len() * capacity as usize];
    let mut after = before.clone();
    let (order, arg) = slots(chosen.len());
    for (&slot, &token) in order.iter().zip(chosen) {
        after[(slot * capacity + positions[slot as usize]) as usize + 1] = token;
    }
    let next: Vec<u32> = positions.iter().map(|p| p + 1).collect();
    [arg, exactly("tokens", &before, &after), exactly("position", positions, &next)]
}

pub(crate) fn largest(row: &[f32]) -> u32 {
    let best = row.iter().copied().filter(|v| !v.is_nan()).fold(f32::NEG_INFINITY, f32::max);
    row.iter().position(|&v| v == best).unwrap_or(0) as u32
}
