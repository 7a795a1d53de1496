//! Cases and samples of `draw`.

use crate::case::{Case, CaseArg, FOLLOWS, floats, words};
use crate::cases::Cases;
use crate::choice::advance::{largest, moved, slots};
use crate::choice::argmax::{MOVES, coarse};
use crate::data::Random;
use crate::samples::Samples;
use kjit_engine::Target;
use kjit_kernels::argmax::ChoiceTuning;
use kjit_kernels::draw::{DrawArgs, DrawSpec, THREADS};
use kjit_kernels::launch::Launch;
use kjit_kernels::noise::{Noise, inverse};
use kjit_kernels::{Family, Size, SpecError};

impl Cases for DrawSpec {
    fn case(
        &self,
        target: &Target,
        units: u32,
        size: Size,
        random: &mut Random,
    ) -> Result<Case, SpecError> {
        let logits = random.normals(size.tokens.max(1) * self.vocab, 3.0);
        of(
            self,
            target,
            (self.blocks(units, size.tokens as u32), MOVES),
            (&logits, (40, 0.8, 0.95, 0.05), false),
            random,
        )
    }

    fn cases(
        target: &Target,
        wave: u32,
        random: &mut Random,
        into: &mut Vec<Case>,
    ) -> Result<(), SpecError> {
        let spec = |vocab| DrawSpec { vocab, tuning: Some(ChoiceTuning { wave, block: 2 * wave }) };
        let vocab = 1009;
        let logits = coarse(vocab, random);
        // Blocks that wait for each other must all be resident: seven blocks for each of four
        // sequences fit on any device, including the simulated one.
        let all = [
            (0, 1.0, 1.0, 0.0),
            (40, 0.8, 1.0, 0.0),
            (0, 1.3, 0.9, 0.0),
            (100, 0.7, 0.95, 0.05),
            (1, 1.0, 1.0, 0.0),
        ];
        for options in all {
            into.push(of(&spec(vocab), target, (2, 9), (&logits, options, false), random)?);
        }
        // Small top-k: one, the largest, one more; equal logits at the border of top-k and of
        // top-p; one block that reads its logits in several rounds, and more blocks than lanes of a
        // wave.
        for (blocks, options) in [
            (1, (64, 0.9, 1.0, 0.0)),
            (7, (64, 1.1, 0.9, 0.0)),
            (3, (65, 1.1, 0.9, 0.0)),
            (5, (2, 2.0, 0.5, 0.0)),
            (4, (63, 50.0, 0.999, 0.5)),
            (6, (1, 0.7, 0.5, 0.1)),
        ] {
            into.push(of(
                &spec(vocab),
                target,
                (blocks, 9),
                (&logits[3 * vocab..], options, false),
                random,
            )?);
        }
        into.push(of(
            &spec(vocab),
            target,
            (2, 9),
            (&logits, (40, 0.9, 0.95, 0.02), true),
            random,
        )?);
        into.push(of(
            &spec(vocab),
            target,
            (1, 9),
            (&logits, (40, 0.9, 0.95, 0.02), true),
            random,
        )?);
        into.push(of(
            &spec(vocab),
            target,
            (7, 9),
            (&logits[3 * vocab..], (100, 0.7, 0.95, 0.05), false),
            random,
        )?);
        into.push(of(
            &spec(5),
            target,
            (7, 9),
            (&[0.5, 0.5, -1.0, 0.5, 0.25], (2, 1.0, 0.9, 0.0), false),
            random,
        )?);
        // A vocabulary that is read in groups of four, with few equal logits; and infinite logits.
        let vocab = 2052;
        let mut logits = random.normals(3 * vocab, 5.0);
        logits[..vocab].iter_mut().step_by(3).for_each(|v| *v = f32::NEG_INFINITY);
        logits[vocab..vocab + 2000].fill(2.5);
        logits[2 * vocab + 5] = 3e38;
        logits[2 * vocab + 6] = -3e38;
        logits[2 * vocab + 7] = f32::NAN;
        for options in [
            (40, 0.8, 0.95, 0.05),
            (2000, 100.0, 0.5, 0.0),
            (0, 1e-3, 0.9, 0.0),
            (0, 4.0, 0.999, 0.0),
            (0, 1e30, 1.0, 0.1),
        ] {
            into.push(of(&spec(vocab), target, (2, 9), (&logits, options, false), random)?);
            into.push(of(&spec(vocab), target, (1, 9), (&logits, options, false), random)?);
        }
        // Few tokens, and all logits NaN.
        for (vocab, options) in
            [(1, (0, 1.0, 0.5, 0.0)), (33, (33, 0.7, 1e-6, 0.0)), (65, (70, 1.0, 1.0, 1.0))]
        {
            let logits = random.normals(2 * vocab, 2.0);
            into.push(of(&spec(vocab), target, (3, 9), (&logits, options, false), random)?);
        }
        into.push(of(
            &spec(31),
            target,
            (3, 9),
            (&[f32::NAN; 31], (0, 1.0, 0.9, 0.0), false),
            random,
        )?);
        into.push(of(
            &spec(64),
            target,
            (3, 9),
            (&[f32::NEG_INFINITY; 64], (5, 1.0, 0.9, 0.0), false),
            random,
        )?);
        Ok(())
    }

    fn samples(list: &mut Samples<'_>) -> Result<(), SpecError> {
        list.add("draw".to_owned(), DrawSpec { vocab: 128_256, tuning: None }, Size::ONE)?;
        for wave in list.other_waves() {
            let spec =
                DrawSpec { vocab: 128_256, tuning: Some(ChoiceTuning { wave, block: THREADS }) };
            list.add(format!("draw @ wave {wave}"), spec, Size::ONE)?;
        }
        Ok(())
    }
}

/// Top-k, temperature, top-p and min-p.
type Chances = (u32, f32, f32, f32);

/// The reference of the host: cuts in f64, the draw as in [`kjit_kernels::noise`].
fn choose(row: &[f32], (top_k, temperature, top_p, min_p): Chances, noise: Noise) -> u32 {
    let mut order: Vec<usize> = (0..row.len()).filter(|&i| !row[i].is_nan()).collect();
    let best_first = |&a: &usize, &b: &usize| {
        row[b].partial_cmp(&row[a]).unwrap_or(std::cmp::Ordering::Equal).then(a.cmp(&b))
    };
    let top_k = top_k as usize;
    if (1..order.len()).contains(&top_k) {
        order.select_nth_unstable_by(top_k - 1, best_first);
        order.truncate(top_k);
    }
    order.sort_unstable_by(best_first);
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
    let largest = row[order[0]];
    noise
        .draw(kept.iter().map(|&i| (i as u32, row[i] - largest)), inverse(temperature))
        .unwrap_or(order[0] as u32)
}

/// A case of these logits with `blocks` blocks for each sequence. If `own`, each slot has its own
/// options.
fn of(
    spec: &DrawSpec,
    target: &Target,
    (blocks, capacity): (u32, u32),
    (logits, options, own): (&[f32], Chances, bool),
    random: &mut Random,
) -> Result<Case, SpecError> {
    let n = logits.len() / spec.vocab;
    let seeds: Vec<u64> = (0..n).map(|_| random.bits()).collect();
    let positions: Vec<u32> = (0..n as u32).map(|s| s % 8).collect();
    // With options per slot, every second slot is greedy.
    let of = |slot: u32| if own && slot % 2 == 1 { (1, 1.0, 1.0, 0.0) } else { options };
    let chosen: Vec<u32> = logits
        .chunks(spec.vocab)
        .zip(slots(n).0)
        .map(|(row, slot)| {
            let (first, at) = (largest(row), slot as usize);
            let noise = Noise { seed: seeds[at], position: positions[at] + 1 };
            if row[first as usize].is_finite() { choose(row, of(slot), noise) } else { first }
        })
        .collect();
    let each: Vec<u32> = (0..n as u32)
        .map(of)
        .flat_map(|(top_k, temperature, top_p, min_p)| {
            [top_k, inverse(temperature).to_bits(), top_p.to_bits(), min_p.to_bits()]
        })
        .collect();
    let halves: Vec<u32> = seeds.iter().flat_map(|s| [*s as u32, (s >> 32) as u32]).collect();
    let [slots, tokens, position] = moved(&positions, capacity, &chosen);
    // The shared options are poison: with options per slot the kernel must not read them.
    let (top_k, temperature, top_p, min_p) =
        if own { (1, f32::NAN, f32::NAN, f32::NAN) } else { options };
    let tuning = spec.tuning(target)?;
    let chances =
        format!("top-k {top_k} temperature {temperature} top-p {top_p} min-p {min_p}, own {own}");
    let name =
        format!("draw {n} × {}, {chances}, {blocks} blocks, wave {}", spec.vocab, tuning.wave);
    let launch = Launch::of(spec.block(target, &tuning)?, DrawSpec::grid_of(blocks, n));
    let args = DrawArgs {
        logits: floats("logits", logits),
        seeds: words("seeds", &halves),
        options: if own { words("options", &each) } else { CaseArg::Null },
        slots,
        tokens,
        position,
        work: CaseArg::Null,
        said: CaseArg::Null,
        capacity: CaseArg::U32(capacity),
        top_k: CaseArg::U32(top_k),
        inverse: CaseArg::F32(inverse(temperature)),
        top_p: CaseArg::F32(top_p),
        min_p: CaseArg::F32(min_p),
        blocks: FOLLOWS,
    };
    Case::of(name, spec, target, launch, args)
}
