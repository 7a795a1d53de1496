//! Cases and samples of `adjust`.

use crate::case::{Case, CaseArg, FOLLOWS, words};
use crate::cases::Cases;
use crate::choice::advance::slots;
use crate::data::Random;
use crate::expect::Expect;
use crate::samples::Samples;
use kjit_engine::Target;
use kjit_kernels::adjust::{AdjustArgs, AdjustSpec};
use kjit_kernels::changes::{Entry, HEAD, MOST};
use kjit_kernels::launch::{Grid, Launch};
use kjit_kernels::variant::Fixed;
use kjit_kernels::{Family, Size, SpecError, changes};

impl Cases for AdjustSpec {
    fn case(
        &self,
        target: &Target,
        units: u32,
        size: Size,
        random: &mut Random,
    ) -> Result<Case, SpecError> {
        of(self, target, self.blocks(units), size.tokens.max(1), random)
    }

    fn cases(
        target: &Target,
        _: u32,
        random: &mut Random,
        into: &mut Vec<Case>,
    ) -> Result<(), SpecError> {
        for (vocab, blocks, n) in [(1009, 3, 4), (2052, 1, 2), (7, 2, 3), (64, 5, 1), (4133, 2, 2)]
        {
            into.push(of(&AdjustSpec { vocab }, target, blocks, n, random)?);
        }
        Ok(())
    }

    fn samples(list: &mut Samples<'_>) -> Result<(), SpecError> {
        list.add("adjust".to_owned(), AdjustSpec { vocab: 128_256 }, Size::ONE)
    }
}

/// A case of `n` rows: every second slot has a mask, every third no entries.
fn of(
    spec: &AdjustSpec,
    target: &Target,
    blocks: u32,
    n: usize,
    random: &mut Random,
) -> Result<Case, SpecError> {
    let (vocab, stride) = (spec.vocab, changes::stride(spec.vocab));
    let logits = random.normals(n * vocab, 3.0);
    let mut lists = vec![0u32; n * stride];
    let mut want: Vec<f32> = logits.clone();
    let (order, slots) = slots(n);
    for (row, &slot) in order.iter().enumerate() {
        let (masked, repeat) = (slot % 2 == 1, 1.0 + random.unit() as f32);
        let some = if slot % 3 == 2 { 0 } else { (vocab / 3).clamp(1, MOST) };
        // Each id once, in random order.
        let step = (1..vocab).rev().find(|step| gcd(*step, vocab) == 1).unwrap_or(1);
        let entries: Vec<Entry> = (0..some)
            .map(|i| Entry {
                id: ((i * step + 1) % vocab) as u32,
                bias: if i % 7 == 3 {
                    f32::NEG_INFINITY
                } else {
                    (random.unit() as f32 - 0.5) * 4.0
                },
                minus: random.unit() as f32,
                repeated: i % 2 == 0,
            })
            .collect();
        let mask: Vec<u32> =
            (0..changes::mask(vocab)).map(|_| (random.unit() * 4e9) as u32).collect();
        let place = &mut lists[slot as usize * stride..][..stride];
        let words = changes::words(&entries, masked, repeat);
        place[..words.len()].copy_from_slice(&words);
        // An entry after the counted ones must have no effect.
        place[HEAD + 4 * MOST..][..mask.len()].copy_from_slice(&mask);
        let x = &mut want[row * vocab..][..vocab];
        for e in &entries {
            let v = &mut x[e.id as usize];
            *v += e.bias;
            if e.repeated {
                *v = if *v > 0.0 { *v / repeat } else { *v * repeat };
            }
            *v -= e.minus;
        }
        for (id, v) in x.iter_mut().enumerate().filter(|_| masked) {
            if mask[id / 32] >> (id % 32) & 1 == 0 {
                *v = f32::NEG_INFINITY;
            }
        }
    }
    let before = logits.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>().into();
    let expect = Expect::Bytes(want.iter().flat_map(|v| v.to_le_bytes()).collect());
    let args = AdjustArgs {
        logits: CaseArg::Buffer { name: "logits", before, expect },
        slots,
        lists: words("lists", &lists),
        blocks: FOLLOWS,
    };
    let grid = Grid::of([blocks, n as u32, 1]).number("blocks", blocks);
    let launch = Launch::of(spec.block(target, &Fixed)?, grid);
    Case::of(format!("adjust {n} × {vocab}, {blocks} blocks"), spec, target, launch, args)
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
