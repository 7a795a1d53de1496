//! Cases and samples of `reduce`.

use crate::case::{Case, CaseArg, FOLLOWS, floats, output};
use crate::cases::Cases;
use crate::data::Random;
use crate::expect::{Expect, SINGLE, Storage};
use crate::samples::Samples;
use kjit_engine::Target;
use kjit_kernels::launch::{Grid, Launch};
use kjit_kernels::reduce::{BLOCKS_PER_UNIT, ReduceArgs, ReduceSpec, STRETCH, words_of_stretches};
use kjit_kernels::variant::Fixed;
use kjit_kernels::{Family, Size, SpecError};

impl Cases for ReduceSpec {
    fn case(
        &self,
        target: &Target,
        units: u32,
        size: Size,
        random: &mut Random,
    ) -> Result<Case, SpecError> {
        let blocks = self.blocks(size.tokens).min(units.max(1) * BLOCKS_PER_UNIT);
        of(self, target, (blocks, size.tokens.max(1)), (self.ranks - 1, 4), random)
    }

    fn cases(
        target: &Target,
        _: u32,
        random: &mut Random,
        into: &mut Vec<Case>,
    ) -> Result<(), SpecError> {
        let mut add = |ranks, cols, join, residual, (blocks, rows), at| -> Result<(), SpecError> {
            let spec =
                ReduceSpec { ranks, cols, join, residual, stretches: false, gathered: false };
            into.push(of(&spec, target, (blocks, rows), at, random)?);
            Ok(())
        };
        add(2, 300, false, true, (2, 1), (0, 0))?;
        add(2, 257, false, false, (1, 3), (1, 7))?;
        add(3, 65, true, false, (2, 4), (1, 2))?;
        add(8, 33, false, true, (1, 2), (5, u32::MAX - 1))?;
        add(4, 130, true, true, (3, 1), (3, 1))?;
        // Whole and incomplete stretches; one, two and four per block; a block without a stretch.
        let mut stretches = |ranks, cols, residual, (blocks, rows), at| -> Result<(), SpecError> {
            let spec =
                ReduceSpec { ranks, cols, join: false, residual, stretches: true, gathered: false };
            into.push(of(&spec, target, (blocks, rows), at, random)?);
            Ok(())
        };
        stretches(2, 2052, true, (2, 7), (0, 0))?;
        stretches(2, 1024, false, (1, 4), (1, 3))?;
        stretches(3, 64, true, (3, 70), (2, u32::MAX - 1))?;
        stretches(8, 4, false, (1, 5), (4, 6))?;
        let mut gathered =
            |ranks, cols, join, residual, (blocks, rows), at| -> Result<(), SpecError> {
                let spec =
                    ReduceSpec { ranks, cols, join, residual, stretches: false, gathered: true };
                into.push(of(&spec, target, (blocks, rows), at, random)?);
                Ok(())
            };
        gathered(2, 300, false, true, (2, 3), (1, 0))?;
        gathered(3, 65, true, false, (1, 4), (2, 7))?;
        gathered(8, 33, true, true, (1, 2), (0, 2))
    }

    fn samples(list: &mut Samples<'_>) -> Result<(), SpecError> {
        let spec = |cols, join, residual| ReduceSpec {
            ranks: 2,
            cols,
            join,
            residual,
            stretches: false,
            gathered: false,
        };
        list.add("reduce 2 × 4096".to_owned(), spec(4096, false, true), Size::ONE)?;
        list.add("reduce 2 × 64128 joined".to_owned(), spec(64128, true, false), Size::ONE)?;
        let stretches = ReduceSpec { stretches: true, ..spec(4096, false, true) };
        list.add("reduce 2 × 4096 in stretches".to_owned(), stretches, Size::CHUNK)
    }
}

/// A case with `blocks` blocks for one exchange. The partial sums of the other ranks are already in
/// the inbox.
fn of(
    spec: &ReduceSpec,
    target: &Target,
    (blocks, rows): (u32, usize),
    (rank, met): (usize, u32),
    random: &mut Random,
) -> Result<Case, SpecError> {
    let (ranks, count) = (spec.ranks, rows * spec.cols);
    // The inbox is larger than needed.
    let room = match (spec.gathered, spec.stretches) {
        (true, _) => 0,
        (_, true) => (count + 5).next_multiple_of(STRETCH),
        _ => count + 5,
    };
    let parts: Vec<Vec<f32>> = (0..ranks).map(|_| random.normals(count, 1.0)).collect();
    let wide = if spec.join { ranks * spec.cols } else { spec.cols };
    let residual = if spec.residual { random.normals(rows * wide, 1.0) } else { vec![] };
    let number = if met == u32::MAX - 1 { u32::MAX } else { met + 1 };
    let half = met as usize % 2;
    let empty = empty(spec, room, number);
    let (mut inbox, mut sent) = (empty.clone(), empty.clone());
    if spec.gathered {
        inbox = parts.iter().flatten().map(|v| v.to_bits()).collect();
    }
    for (r, part) in parts.iter().enumerate().filter(|_| !spec.gathered) {
        put(
            spec,
            if r == rank { &mut sent } else { &mut inbox },
            room,
            half * ranks + r,
            part,
            number,
        );
    }
    let want = (0..rows * wide).map(|i| {
        let (row, c) = (i / wide, i % wide);
        let made: f64 = match spec.join {
            true => parts
                .get(c / spec.cols)
                .and_then(|p| p.get(row * spec.cols + c % spec.cols))
                .map_or(0.0, |&v| v.into()),
            false => parts.iter().filter_map(|p| p.get(i)).map(|&v| f64::from(v)).sum(),
        };
        made + residual.get(i).map_or(0.0, |&r| f64::from(r))
    });
    let peer = |i: usize| match i + 1 < ranks && !spec.gathered {
        true => CaseArg::Buffer {
            name: "to",
            before: bytes_of(&empty).into(),
            expect: Expect::Bytes(bytes_of(&sent)),
        },
        false => CaseArg::Null,
    };
    let next = if number == u32::MAX { 1 } else { number };
    let args = ReduceArgs {
        x: floats("x", parts.get(rank).map_or(&[], |p| p)),
        residual: if spec.residual { floats("residual", &residual) } else { CaseArg::Null },
        y: output("y", Storage::F32, want.collect(), SINGLE),
        words: CaseArg::Buffer {
            name: "words",
            before: bytes_of(&[met, 0, 0]).into(),
            expect: Expect::Bytes(bytes_of(&[next, 0, 0])),
        },
        late: CaseArg::Buffer {
            name: "late",
            before: bytes_of(&[0]).into(),
            expect: if spec.gathered { Expect::Bytes(bytes_of(&[number])) } else { Expect::Same },
        },
        inbox: CaseArg::Buffer {
            name: "inbox",
            before: bytes_of(&inbox).into(),
            expect: Expect::Same,
        },
        to0: peer(0),
        to1: peer(1),
        to2: peer(2),
        to3: peer(3),
        to4: peer(4),
        to5: peer(5),
        to6: peer(6),
        count: CaseArg::U64(count as u64),
        room: CaseArg::U64(room as u64),
        limit: CaseArg::U64(20_000_000),
        rank: CaseArg::U32(rank as u32),
        blocks: FOLLOWS,
    };
    let launch =
        Launch::of(spec.block(target, &Fixed)?, Grid::of([blocks, 1, 1]).number("blocks", blocks));
    Case::of(
        format!("reduce {spec:?}, {rows} rows, rank {rank}, meeting {met}"),
        spec,
        target,
        launch,
        args,
    )
}

/// The words of an inbox without data of this exchange. It contains data of the exchange before the
/// last one, which must not be read.
fn empty(spec: &ReduceSpec, room: usize, number: u32) -> Vec<u32> {
    let (all, left) = (2 * spec.ranks * room, number.wrapping_sub(2));
    match spec.stretches {
        true => (0..words_of_stretches(spec.ranks, room))
            .map(|i| if i < all { 0 } else { left })
            .collect(),
        false => (0..2 * all).map(|i| if i % 2 == 0 { 0 } else { left }).collect(),
    }
}

/// Stores a part in an inbox, at the offset of a rank in a half.
fn put(spec: &ReduceSpec, inbox: &mut [u32], room: usize, place: usize, part: &[f32], number: u32) {
    let mut set = |at: usize, word: u32| inbox.iter_mut().skip(at).take(1).for_each(|w| *w = word);
    for (i, v) in part.iter().enumerate() {
        match spec.stretches {
            true => {
                set(place * room + i, v.to_bits());
                set(2 * spec.ranks * room + place * (room / STRETCH) + i / STRETCH, number);
            }
            false => {
                set(2 * (place * room + i), v.to_bits());
                set(2 * (place * room + i) + 1, number);
            }
        }
    }
}

fn bytes_of(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}
