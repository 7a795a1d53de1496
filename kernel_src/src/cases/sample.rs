//! Cases of sampling: ties, NaN, thresholds that cut through equals.

use super::{Case, CaseArg, Expect, Random, floats, words};
use crate::kernel::SpecError;
use crate::sample::{Choice, SampleSpec};
use kjit_engine::Target;

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn exactly(name: &'static str, before: &[u32], after: &[u32]) -> CaseArg {
    CaseArg::Buffer { name, before: bytes(before), expect: Expect::Bytes(bytes(after)) }
}

/// The place of each sequence: another order where there are several, and null for one.
fn places(n: usize) -> (Vec<u32>, CaseArg) {
    let slots: Vec<u32> = (0..n as u32).rev().collect();
    let arg = if n > 1 { words("slots", &slots) } else { CaseArg::Null };
    (slots, arg)
}

/// Places of the sequences, tokens and positions of `chosen.len()` sequences before and after; `positions` are by place.
fn moved(positions: &[u32], capacity: u32, chosen: &[u32]) -> [CaseArg; 3] {
    let before = vec![0xffff_ffff; positions.len() * capacity as usize];
    let mut after = before.clone();
    let (slots, arg) = places(chosen.len());
    for (&place, &token) in slots.iter().zip(chosen) {
        after[(place * capacity + positions[place as usize]) as usize + 1] = token;
    }
    let next: Vec<u32> = positions.iter().map(|p| p + 1).collect();
    [arg, exactly("tokens", &before, &after), exactly("position", positions, &next)]
}

fn largest(row: &[f32]) -> u32 {
    let best = row.iter().copied().filter(|v| !v.is_nan()).fold(f32::NEG_INFINITY, f32::max);
    row.iter().position(|&v| v == best).unwrap_or(0) as u32
}

/// How a sampler is launched.
#[derive(Clone, Copy)]
pub(super) struct How {
    /// Lanes in a wave.
    pub wave: u32,
    /// Threads of a block.
    pub block: u32,
    /// Blocks of a sequence.
    pub blocks: u32,
    /// Positions of a sequence.
    pub capacity: u32,
}

pub(super) fn argmax(target: &Target, how: How, vocab: usize, logits: &[f32]) -> Result<Case, SpecError> {
    let spec = SampleSpec { vocab, choice: Choice::Largest };
    let How { wave, blocks, capacity, .. } = how;
    let kernel = spec.kernel_at(target, wave, how.block)?;
    let chosen: Vec<u32> = logits.chunks(vocab).map(largest).collect();
    let n = chosen.len();
    let positions: Vec<u32> = (0..n as u32).map(|s| s % 5).collect();
    let [slots, tokens, position] = moved(&positions, capacity, &chosen);
    let mut geometry = kernel.launch(blocks);
    geometry.grid[1] = n as u32;
    Ok(Case {
        name: format!("argmax {n} × {vocab}, wave {wave}"),
        geometry,
        kernel,
        args: vec![
            floats("logits", logits),
            CaseArg::Buffer { name: "part", before: vec![0xff; 8 * n * blocks as usize], expect: Expect::Anything },
            CaseArg::Buffer { name: "counters", before: vec![0; 4 * n], expect: Expect::Same },
            slots,
            tokens,
            position,
            CaseArg::U32(capacity),
            CaseArg::U32(blocks),
        ],
    })
}

/// Top-k, temperature, top-p, min-p.
pub(super) type Options = (u32, f32, f32, f32);

/// The host's definition, in f64.
fn choose(row: &[f32], (top_k, temperature, top_p, min_p): Options, fraction: f32) -> u32 {
    let mut order: Vec<usize> = (0..row.len()).filter(|&i| !row[i].is_nan()).collect();
    order.sort_by(|&a, &b| row[b].partial_cmp(&row[a]).unwrap_or(std::cmp::Ordering::Equal).then(a.cmp(&b)));
    if top_k > 0 {
        order.truncate(top_k as usize);
    }
    let weight = |i: usize| (f64::from(row[i] - row[order[0]]) / f64::from(temperature)).exp();
    let sum: f64 = order.iter().map(|&i| weight(i)).sum();
    let mut kept = vec![];
    let mut so_far = 0.0;
    for &i in &order {
        kept.push(i);
        so_far += weight(i);
        if top_p < 1.0 && so_far >= f64::from(top_p) * sum {
            break;
        }
    }
    kept.retain(|&i| weight(i) >= f64::from(min_p));
    kept.sort_unstable();
    let mut at = f64::from(fraction) * kept.iter().map(|&i| weight(i)).sum::<f64>();
    for &i in &kept {
        at -= weight(i);
        if at < 0.0 {
            return i as u32;
        }
    }
    kept.last().map_or(0, |&i| i as u32)
}

pub(super) fn draw(
    target: &Target,
    how: How,
    vocab: usize,
    logits: &[f32],
    options: Options,
    own: bool,
    random: &mut Random,
) -> Result<Case, SpecError> {
    let How { wave, capacity, .. } = how;
    let kernel = SampleSpec { vocab, choice: Choice::Drawn }.kernel_at(target, wave, how.block)?;
    let n = logits.len() / vocab;
    let fractions: Vec<f32> = (0..n * capacity as usize).map(|_| (random.unit() as f32).min(0.999_999)).collect();
    let positions: Vec<u32> = (0..n as u32).map(|s| s % 8).collect();
    // With options of their own, every second place is greedy.
    let of = |place: u32| if own && place % 2 == 1 { (1, 1.0, 1.0, 0.0) } else { options };
    let chosen: Vec<u32> = logits
        .chunks(vocab)
        .zip(places(n).0)
        .map(|(row, place)| {
            let (first, at) = (largest(row), place * capacity + positions[place as usize]);
            if row[first as usize].is_finite() { choose(row, of(place), fractions[at as usize]) } else { first }
        })
        .collect();
    let each: Vec<u32> = (0..n as u32)
        .map(of)
        .flat_map(|(top_k, temperature, top_p, min_p)| {
            [top_k, f32::to_bits(temperature), f32::to_bits(top_p), f32::to_bits(min_p)]
        })
        .collect();
    let [slots, tokens, position] = moved(&positions, capacity, &chosen);
    // What is not to be read is wrong.
    let (top_k, temperature, top_p, min_p) = if own { (1, f32::NAN, f32::NAN, f32::NAN) } else { options };
    Ok(Case {
        name: format!(
            "draw {n} × {vocab}, top-k {top_k} temperature {temperature} top-p {top_p} min-p {min_p}, own {own}, wave {wave}"
        ),
        geometry: kernel.launch(n as u32),
        kernel,
        args: vec![
            floats("logits", logits),
            floats("fractions", &fractions),
            if own { words("options", &each) } else { CaseArg::Null },
            slots,
            tokens,
            position,
            CaseArg::U32(capacity),
            CaseArg::U32(top_k),
            CaseArg::F32(temperature),
            CaseArg::F32(top_p),
            CaseArg::F32(min_p),
        ],
    })
}

pub(super) fn cases(target: &Target, wave: u32, random: &mut Random, into: &mut Vec<Case>) -> Result<(), SpecError> {
    let vocab = 1009;
    // Coarse logits have equals everywhere.
    let mut logits: Vec<f32> = random.normals(4 * vocab, 3.0).iter().map(|v| (v * 4.0).round() / 4.0).collect();
    logits[17] = f32::NAN;
    logits[vocab..2 * vocab].fill(-0.0);
    logits[vocab + 700] = 0.0;
    logits[2 * vocab + 99] = f32::INFINITY;
    let how = How { wave, block: 2 * wave, blocks: 3, capacity: 9 };
    into.push(argmax(target, how, vocab, &logits)?);
    into.push(argmax(target, how, 7, &[-3.0, -2.0, f32::NAN, -2.0, -5.0, -9.0, -2.5])?);
    let all = [(0, 1.0, 1.0, 0.0), (40, 0.8, 1.0, 0.0), (0, 1.3, 0.9, 0.0), (100, 0.7, 0.95, 0.05), (1, 1.0, 1.0, 0.0)];
    for options in all {
        into.push(draw(target, how, vocab, &logits, options, false, random)?);
    }
    into.push(draw(target, how, vocab, &logits, (40, 0.9, 0.95, 0.02), true, random)?);
    // A vocabulary that is read four at a time, hardly any equals, and what has no finite distance from the rest.
    let vocab = 2052;
    let mut logits = random.normals(3 * vocab, 5.0);
    logits[..vocab].iter_mut().step_by(3).for_each(|v| *v = f32::NEG_INFINITY);
    logits[vocab..vocab + 2000].fill(2.5);
    logits[2 * vocab + 5] = 3e38;
    logits[2 * vocab + 6] = -3e38;
    logits[2 * vocab + 7] = f32::NAN;
    for options in
        [(40, 0.8, 0.95, 0.05), (2000, 100.0, 0.5, 0.0), (0, 1e-3, 0.9, 0.0), (0, 4.0, 0.999, 0.0), (0, 1e30, 1.0, 0.1)]
    {
        into.push(draw(target, how, vocab, &logits, options, false, random)?);
    }
    // Hardly any tokens, and none that is a number.
    for (vocab, options) in [(1, (0, 1.0, 0.5, 0.0)), (33, (33, 0.7, 1e-6, 0.0)), (65, (70, 1.0, 1.0, 1.0))] {
        let logits = random.normals(2 * vocab, 2.0);
        into.push(draw(target, how, vocab, &logits, options, false, random)?);
    }
    into.push(draw(target, how, 31, &[f32::NAN; 31], (0, 1.0, 0.9, 0.0), false, random)?);
    into.push(draw(target, how, 64, &[f32::NEG_INFINITY; 64], (5, 1.0, 0.9, 0.0), false, random)?);
    Ok(())
}
