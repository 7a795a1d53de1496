//! Cases of grouping by expert.

use crate::case::{Case, CaseArg, FOLLOWS, floats, optional, output, words};
use crate::cases::Cases;
use crate::data::Random;
use crate::expect::{Expect, SINGLE, Storage};
use crate::samples::{PROMPT, Samples};
use kjit_engine::Target;
use kjit_kernels::moe::{
    MoeCountArgs, MoeCountSpec, MoeGroupArgs, MoeGroupSpec, MoeSpec, MoeSumArgs, MoeSumSpec,
};
use kjit_kernels::variant::Wave;
use kjit_kernels::{Family, Size, SpecError};

/// Sizes with uneven tiles, some with experts without tokens; numbers of tokens.
const SIZES: [(MoeSpec, usize); 3] = [
    (MoeSpec { experts: 5, top: 2, tile: 16, cols: 70 }, 33),
    (MoeSpec { experts: 131, top: 8, tile: 64, cols: 33 }, 65),
    (MoeSpec { experts: 3, top: 1, tile: 32, cols: 300 }, 1),
];

/// Sizes of a real model.
const SAMPLE: MoeSpec = MoeSpec { experts: 128, top: 8, tile: 64, cols: 2048 };
const SAMPLE_SIZE: Size = Size { tokens: PROMPT, past: 0 };

/// The choice, and the expected groups.
struct Groups {
    chosen: Vec<u32>,
    counts: Vec<u32>,
    tile_expert: Vec<u32>,
    source: Vec<u32>,
    row: Vec<u32>,
    /// Number of rows after the last tile, which are unchanged.
    untouched: usize,
}

fn groups(spec: &MoeSpec, tokens: usize, random: &mut Random) -> Groups {
    let MoeSpec { experts, top, tile, .. } = *spec;
    // The first expert is the second choice of all tokens, so tiles are uneven and some experts
    // have no tokens.
    let chosen: Vec<u32> = (0..tokens)
        .flat_map(|_| {
            let first = random.below(experts) as u32;
            (0..top as u32).map(move |s| {
                if s == 1 && first != 0 { 0 } else { (first + s * 3) % experts as u32 }
            })
        })
        .collect();
    let pairs = chosen.len();
    let counts: Vec<u32> =
        (0..experts).map(|e| chosen.iter().filter(|&&c| c == e as u32).count() as u32).collect();
    let tiles = spec.tiles(tokens);
    let (mut tile_expert, mut source, mut row) = (vec![u32::MAX; tiles], vec![], vec![0u32; pairs]);
    for e in 0..experts as u32 {
        let first = source.len();
        for (i, _) in chosen.iter().enumerate().filter(|(_, c)| **c == e) {
            row[i] = source.len() as u32;
            source.push((i / top) as u32);
        }
        source.resize(source.len().next_multiple_of(tile), u32::MAX);
        tile_expert[first / tile..source.len() / tile].fill(e);
    }
    let untouched = tiles * tile - source.len();
    Groups { chosen, counts, tile_expert, source, row, untouched }
}

/// Expected words, and some after them that must not change.
fn written(name: &'static str, values: &[u32], behind: usize) -> CaseArg {
    let mut want: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    want.resize(want.len() + 4 * behind, 0xff);
    CaseArg::Buffer { name, before: vec![0xff; want.len()].into(), expect: Expect::Bytes(want) }
}

fn title(spec: &MoeSpec, size: Size) -> String {
    format!(
        "{} tokens, {} of {} experts, tiles of {}",
        size.tokens, spec.top, spec.experts, spec.tile
    )
}

fn count(
    spec: &MoeCountSpec,
    target: &Target,
    units: u32,
    size: Size,
    random: &mut Random,
) -> Result<Case, SpecError> {
    let g = groups(&spec.experts, size.tokens, random);
    let (experts, counts) = (words("experts", &g.chosen), written("counts", &g.counts, 0));
    let args = MoeCountArgs { experts, counts, pairs: FOLLOWS };
    let name = format!("moe_count: {}", title(&spec.experts, size));
    Case::of(name, spec, target, spec.launch(target, units, size)?, args)
}

fn group(
    spec: &MoeGroupSpec,
    target: &Target,
    units: u32,
    size: Size,
    random: &mut Random,
) -> Result<Case, SpecError> {
    let g = groups(&spec.experts, size.tokens, random);
    let args = MoeGroupArgs {
        experts: words("experts", &g.chosen),
        counts: words("counts", &g.counts),
        tile_expert: written("tile_expert", &g.tile_expert, 0),
        source: written("source", &g.source, g.untouched),
        row_of: written("row_of", &g.row, 0),
        pairs: FOLLOWS,
        max_tiles: FOLLOWS,
    };
    let name = format!("moe_group: {}", title(&spec.experts, size));
    Case::of(name, spec, target, spec.launch(target, units, size)?, args)
}

fn sum(
    spec: &MoeSumSpec,
    target: &Target,
    units: u32,
    size: Size,
    random: &mut Random,
) -> Result<Case, SpecError> {
    let (tokens, MoeSpec { top, cols, .. }) = (size.tokens, spec.experts);
    let row = groups(&spec.experts, tokens, random).row;
    let pairs = row.len();
    let y = random.normals(spec.experts.rows(tokens) * cols, 1.0);
    let shares: Vec<f32> = (0..pairs).map(|_| random.unit() as f32).collect();
    let residual = if top == 1 { vec![] } else { random.normals(tokens * cols, 1.0) };
    let mut want = vec![];
    for t in 0..tokens {
        for c in 0..cols {
            let part = |s: usize| {
                let i = t * top + s;
                f64::from(shares[i]) * f64::from(y[row[i] as usize * cols + c])
            };
            want.push(
                (0..top).map(part).sum::<f64>()
                    + residual.get(t * cols + c).map_or(0.0, |&r| f64::from(r)),
            );
        }
    }
    let args = MoeSumArgs {
        y: floats("y", &y),
        row_of: words("row_of", &row),
        shares: floats("shares", &shares),
        residual: optional("residual", &residual),
        out: output("out", Storage::F32, want, SINGLE),
    };
    let name = format!("moe_sum: {}", title(&spec.experts, size));
    Case::of(name, spec, target, spec.launch(target, units, size)?, args)
}

/// The cases of the three families.
macro_rules! cases {
    ($spec:ident, $name:literal, $case:ident) => {
        impl Cases for $spec {
            fn case(
                &self,
                target: &Target,
                units: u32,
                size: Size,
                random: &mut Random,
            ) -> Result<Case, SpecError> {
                $case(self, target, units, size, random)
            }

            fn cases(
                target: &Target,
                wave: u32,
                random: &mut Random,
                into: &mut Vec<Case>,
            ) -> Result<(), SpecError> {
                for (experts, tokens) in SIZES {
                    let spec = $spec { experts, tuning: Some(Wave { wave }) };
                    into.push(spec.case(target, 2, Size { tokens, past: 0 }, random)?);
                }
                Ok(())
            }

            fn samples(list: &mut Samples<'_>) -> Result<(), SpecError> {
                list.add($name.to_owned(), $spec::from(SAMPLE), SAMPLE_SIZE)
            }
        }
    };
}

cases!(MoeCountSpec, "moe_count", count);
cases!(MoeGroupSpec, "moe_group", group);
cases!(MoeSumSpec, "moe_sum", sum);
