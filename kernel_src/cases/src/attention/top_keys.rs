//! Cases and samples of `top_keys`.

use crate::case::{Case, CaseArg, FOLLOWS, floats, words};
use crate::cases::Cases;
use crate::data::Random;
use crate::expect::Expect;
use crate::samples::{CONTEXT, Samples};
use kjit_engine::Target;
use kjit_kernels::top_keys::{TopKeysArgs, TopKeysSpec};
use kjit_kernels::{Family, Size, SpecError};

impl Cases for TopKeysSpec {
    fn case(
        &self,
        target: &Target,
        units: u32,
        size: Size,
        random: &mut Random,
    ) -> Result<Case, SpecError> {
        let n = size.tokens.max(1);
        let positions: Vec<usize> =
            (0..n).map(|t| size.past + if self.one { 0 } else { t % 3 }).collect();
        case(self, target, units, &positions, 0, random)
    }

    fn cases(
        target: &Target,
        _: u32,
        random: &mut Random,
        into: &mut Vec<Case>,
    ) -> Result<(), SpecError> {
        // Numbers of positions: below TOP, TOP, TOP + 1, one, more than a block reads together.
        for (top, positions, first, one) in [
            (12, vec![3, 10, 11, 12, 40], 0, false),
            (1, vec![700, 0], 0, false),
            (70, vec![1500], 0, false),
            (600, vec![1300, 599, 600], 0, false),
            (12, vec![5; 17], 0, true),
            (33, vec![1030; 6], 2, true),
        ] {
            into.push(case(&TopKeysSpec { top, one }, target, 1, &positions, first, random)?);
        }
        Ok(())
    }

    fn samples(list: &mut Samples<'_>) -> Result<(), SpecError> {
        let size = Size { tokens: 1, past: CONTEXT - 1 };
        list.add("top_keys 2048".to_owned(), TopKeysSpec { top: 2048, one: false }, size)
    }
}

/// Sequences with these numbers of tokens before the new one, or one sequence with this number of
/// new tokens; rows are from token `first` on.
fn case(
    spec: &TopKeysSpec,
    target: &Target,
    units: u32,
    positions: &[usize],
    first: usize,
    random: &mut Random,
) -> Result<Case, SpecError> {
    let (n, top) = (positions.len(), spec.top);
    let capacity = positions.iter().max().unwrap_or(&0) + n + 3;
    let places = if spec.one { 1 } else { n + 1 };
    let slots: Vec<u32> =
        (0..n).map(|s| if spec.one { 0 } else { (places - 1 - s) as u32 }).collect();
    let mut by_place = vec![u32::MAX; places];
    let (mut scores, mut lists) = (vec![], vec![TopKeysSpec::NONE; n * top]);
    for (t, &past) in positions.iter().enumerate() {
        by_place[slots[t] as usize] = past as u32;
        if t < first {
            continue;
        }
        let seen = past + 1 + if spec.one { t } else { 0 };
        // Every second row is coarse, so that there are equal scores at the border. There are zeros
        // of both signs and a NaN; after the visible positions there is the largest score.
        let mut row = random.normals(seen, 3.0);
        if t % 2 == 0 {
            row.iter_mut().for_each(|v| *v = v.round());
        }
        if seen > 6 {
            (row[1], row[4], row[5]) = (-0.0, f32::NAN, 0.0);
        }
        let mut best: Vec<usize> = (0..seen).collect();
        best.sort_by(|&a, &b| order(row[b]).cmp(&order(row[a])).then(a.cmp(&b)));
        best.truncate(top);
        best.sort_unstable();
        lists[t * top..].iter_mut().zip(best).for_each(|(to, p)| *to = p as u32);
        row.resize(capacity, f32::INFINITY);
        scores.extend(row);
    }
    let mut launch = spec.launch(target, units, Size { tokens: n, past: capacity - n })?;
    launch.geometry.grid[0] = (n - first) as u32;
    // Nothing is written for tokens before that of the first row.
    let mut before = vec![0xddu8; 4 * n * top];
    let mut after: Vec<u8> = lists.iter().flat_map(|v| v.to_le_bytes()).collect();
    before[..4 * first * top].fill(0xee);
    after[..4 * first * top].fill(0xee);
    let args = TopKeysArgs {
        scores: floats("scores", &scores),
        slots: if spec.one { CaseArg::Null } else { words("slots", &slots) },
        position: words("position", &by_place),
        chosen: CaseArg::Buffer {
            name: "chosen",
            before: before.into(),
            expect: Expect::Bytes(after),
        },
        first: CaseArg::U32(first as u32),
        tokens: FOLLOWS,
        capacity: CaseArg::U32(capacity as u32),
    };
    let name = format!("top_keys {top}, positions {positions:?} from {first}, one {}", spec.one);
    Case::of(name, spec, target, launch, args)
}

/// A key in the kernel's order.
fn order(x: f32) -> u32 {
    let bits = (x + 0.0).to_bits();
    if x.is_nan() { 0 } else { bits ^ if bits >> 31 == 1 { u32::MAX } else { 1 << 31 } }
}
