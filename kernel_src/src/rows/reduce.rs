//! Rows that several devices have made parts of, on all of them: `gpu/reduce.h`.

use crate::cases::{Case, CaseArg, Expect, FOLLOWS, Random, SINGLE, Storage, floats, output};
use crate::matrix::{CHUNK, ONE, Samples};
use crate::vocabulary::arguments::arguments;
use crate::vocabulary::family::Family;
use crate::vocabulary::kernel::{Kernel, SpecError, of_shape, require};
use crate::vocabulary::launch::{Block, Grid, Launch, Size, Work};
use crate::vocabulary::shape::Shape;
use crate::vocabulary::step::{Inside, Step};
use crate::vocabulary::variant::{Fixed, no_choice};
use kjit_engine::{Constants, Target};
use std::fmt;

/// Devices at most.
pub const RANKS: usize = 8;

/// `y = residual + Σ over devices of x`, or the devices' `x` one behind the other.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ReduceSpec {
    /// Devices.
    pub ranks: usize,
    /// Elements of a row of `x`.
    pub cols: usize,
    /// Rows are put one behind the other; else they are added.
    pub join: bool,
    /// A residual is added.
    pub residual: bool,
    /// For many rows: values go in stretches, with one number behind each; else each value with its
    /// own.
    pub stretches: bool,
    /// All parts lie in the inbox already, one behind the other: the devices are of several
    /// processes.
    pub gathered: bool,
}

arguments! {
    /// The arguments.
    ReduceArgs {
        /// `rows × cols` f32: this device's part.
        x: Pointer,
        /// Rows as those of `y`, or null.
        residual: Pointer,
        /// `rows × cols` f32, `ranks` times as many where they are joined; may be `residual`.
        y: Pointer,
        /// [`WORDS`] u32 of this device, zero before the first launch; all launches have the same.
        words: Pointer,
        /// u32 of the host: not 0 once a device has waited in vain; gathered, the sums so far.
        late: Pointer,
        /// `2 × ranks × room` u64 of this device, zero before the first launch; all launches have
        /// the same. Gathered: `ranks × count` f32.
        inbox: Pointer,
        /// The inboxes of the ranks behind this one, in turn; null beyond `ranks`.
        to0: Pointer,
        /// Likewise.
        to1: Pointer,
        /// Likewise.
        to2: Pointer,
        /// Likewise.
        to3: Pointer,
        /// Likewise.
        to4: Pointer,
        /// Likewise.
        to5: Pointer,
        /// Likewise.
        to6: Pointer,
        /// `rows · cols`.
        count: U64,
        /// Packets, or values (then a multiple of [`STRETCH`]), that an inbox has for each rank.
        room: U64,
        /// Nanoseconds that are waited at most.
        limit: U64,
        /// This device, below `ranks`.
        rank: U32,
        /// Blocks: no more than the device holds at once.
        blocks: U32,
    }
}

/// Words of a device: meetings so far, blocks that know the number, whether somebody has waited in
/// vain.
pub const WORDS: usize = 3;
/// Values of a stretch.
pub const STRETCH: usize = 4 * EACH * BLOCK as usize;
/// Blocks that a compute unit takes at once, whatever else it has.
pub const BLOCKS_PER_UNIT: u32 = 2;

const NAME: &str = "reduce";
const BLOCK: u32 = 256;
/// Quads of a stretch for each thread, as `gpu/reduce.h` has it.
const EACH: usize = 4;

/// u32 of an inbox with room for so many values of each rank, in stretches: values, then numbers.
#[must_use]
pub fn words_of_stretches(ranks: usize, room: usize) -> usize {
    2 * ranks * (room + room.div_ceil(STRETCH))
}

impl ReduceSpec {
    /// Blocks for which there is work, with so many rows.
    #[must_use]
    pub fn blocks(&self, rows: usize) -> u32 {
        let each = if self.stretches { STRETCH } else { BLOCK as usize };
        u32::try_from((rows * self.cols).div_ceil(each)).unwrap_or(u32::MAX).max(1)
    }

    fn shape(&self) -> Shape {
        let shape = Shape::new().number("RANKS", self.ranks).number("COLS", self.cols);
        let shape = shape
            .flag("JOIN", self.join)
            .flag("RESIDUAL", self.residual)
            .flag("STRETCHES", self.stretches);
        shape.flag("GATHERED", self.gathered)
    }

    /// A case in so many blocks, at this meeting: what the others send is there already.
    fn of(
        &self,
        target: &Target,
        (blocks, rows): (u32, usize),
        (rank, met): (usize, u32),
        random: &mut Random,
    ) -> Result<Case, SpecError> {
        let (ranks, count) = (self.ranks, rows * self.cols);
        // More room than is used.
        let room = match (self.gathered, self.stretches) {
            (true, _) => 0,
            (_, true) => (count + 5).next_multiple_of(STRETCH),
            _ => count + 5,
        };
        let parts: Vec<Vec<f32>> = (0..ranks).map(|_| random.normals(count, 1.0)).collect();
        let wide = if self.join { ranks * self.cols } else { self.cols };
        let residual = if self.residual { random.normals(rows * wide, 1.0) } else { vec![] };
        let number = if met == u32::MAX - 1 { u32::MAX } else { met + 1 };
        let half = met as usize % 2;
        let empty = self.empty(room, number);
        let (mut inbox, mut sent) = (empty.clone(), empty.clone());
        if self.gathered {
            inbox = parts.iter().flatten().map(|v| v.to_bits()).collect();
        }
        for (r, part) in parts.iter().enumerate().filter(|_| !self.gathered) {
            self.put(
                if r == rank { &mut sent } else { &mut inbox },
                room,
                half * ranks + r,
                part,
                number,
            );
        }
        let want = (0..rows * wide).map(|i| {
            let (row, c) = (i / wide, i % wide);
            let made: f64 = match self.join {
                true => parts
                    .get(c / self.cols)
                    .and_then(|p| p.get(row * self.cols + c % self.cols))
                    .map_or(0.0, |&v| v.into()),
                false => parts.iter().filter_map(|p| p.get(i)).map(|&v| f64::from(v)).sum(),
            };
            made + residual.get(i).map_or(0.0, |&r| f64::from(r))
        });
        let peer = |i: usize| match i + 1 < ranks && !self.gathered {
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
            residual: if self.residual { floats("residual", &residual) } else { CaseArg::Null },
            y: output("y", Storage::F32, want.collect(), SINGLE),
            words: CaseArg::Buffer {
                name: "words",
                before: bytes_of(&[met, 0, 0]).into(),
                expect: Expect::Bytes(bytes_of(&[next, 0, 0])),
            },
            late: CaseArg::Buffer {
                name: "late",
                before: bytes_of(&[0]).into(),
                expect: if self.gathered {
                    Expect::Bytes(bytes_of(&[number]))
                } else {
                    Expect::Same
                },
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
        let launch = Launch::of(
            self.block(target, &Fixed)?,
            Grid::of([blocks, 1, 1]).number("blocks", blocks),
        );
        Case::of(
            format!("{NAME} {self:?}, {rows} rows, rank {rank}, meeting {met}"),
            self,
            target,
            launch,
            args,
        )
    }

    /// The words of an inbox in which nothing is of this meeting: what is left of the one before
    /// the last must not be taken for this one's.
    fn empty(&self, room: usize, number: u32) -> Vec<u32> {
        let (all, left) = (2 * self.ranks * room, number.wrapping_sub(2));
        match self.stretches {
            true => (0..words_of_stretches(self.ranks, room))
                .map(|i| if i < all { 0 } else { left })
                .collect(),
            false => (0..2 * all).map(|i| if i % 2 == 0 { 0 } else { left }).collect(),
        }
    }

    /// A part in an inbox, at the place of a rank of a half.
    fn put(&self, inbox: &mut [u32], room: usize, place: usize, part: &[f32], number: u32) {
        let mut set =
            |at: usize, word: u32| inbox.iter_mut().skip(at).take(1).for_each(|w| *w = word);
        for (i, v) in part.iter().enumerate() {
            match self.stretches {
                true => {
                    set(place * room + i, v.to_bits());
                    set(2 * self.ranks * room + place * (room / STRETCH) + i / STRETCH, number);
                }
                false => {
                    set(2 * (place * room + i), v.to_bits());
                    set(2 * (place * room + i) + 1, number);
                }
            }
        }
    }
}

fn bytes_of(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

impl Family for ReduceSpec {
    const NAME: &'static str = NAME;
    type Args<A> = ReduceArgs<A>;
    no_choice!();

    fn text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.join { "joined" } else { "added" };
        let residual = if self.residual { ", residual" } else { "" };
        let stretches = if self.stretches { ", stretches" } else { "" };
        let gathered = if self.gathered { ", gathered" } else { "" };
        write!(f, "{} × {} {how}{residual}{stretches}{gathered}", self.ranks, self.cols)
    }

    fn check(&self, _: &Target, _: &Fixed) -> Result<(), SpecError> {
        let fine = (2..=RANKS).contains(&self.ranks) && self.cols > 0 && self.cols <= 1 << 30;
        let quads = !self.join && self.cols.is_multiple_of(4);
        require(
            fine && (quads || !self.stretches) && !(self.stretches && self.gathered),
            NAME,
            || format!("{self:?}"),
        )
    }

    fn block(&self, target: &Target, _: &Fixed) -> Result<Block, SpecError> {
        Ok(Block::of(target.default_wave(), BLOCK))
    }

    fn render(&self, _: &Target, _: &Fixed, block: Block) -> Result<Kernel, SpecError> {
        Ok(of_shape(NAME, &self.shape(), Constants::new(), block.wave, block.threads))
    }

    fn inside(&self, _: &Target, inside: Inside) -> Result<Step, SpecError> {
        require(!self.gathered, NAME, || {
            "parts that a library brings come between launches".to_owned()
        })?;
        require(!self.stretches && self.ranks == inside.ranks, NAME, || format!("{self:?}"))?;
        let call = "Meeting::wait(); Meeting::delay(106); Reduce<S>::inside(a, share, \
            Sums::met(sum_of(c) - 1));";
        let step = Step::of("reduce.h", "ReduceArgs", call, self.shape());
        Ok(Step { of_all_blocks: true, sums: true, ..step })
    }

    fn grid(&self, _: &Target, _: &Fixed, units: u32, size: Size) -> Result<Grid, SpecError> {
        let blocks = self.blocks(size.tokens).min(units.saturating_mul(BLOCKS_PER_UNIT).max(1));
        Ok(Grid::of([blocks, 1, 1]).number("blocks", blocks))
    }

    fn work(&self, size: Size) -> Work {
        // Its part, what goes to each other device and comes from each, the row.
        let wide = if self.join { self.ranks } else { 1 };
        let residual = if self.residual { wide } else { 0 };
        // Gathered, all parts are read, and what a library moves is not this kernel's.
        let sent = match (self.gathered, self.stretches) {
            (true, _) => 4,
            (_, true) => 8,
            _ => 16,
        };
        Work::moves(
            size.tokens * self.cols * (4 + sent * (self.ranks - 1) + 4 * wide + 4 * residual),
        )
    }

    fn case(
        &self,
        target: &Target,
        units: u32,
        size: Size,
        random: &mut Random,
    ) -> Result<Case, SpecError> {
        let blocks = self.blocks(size.tokens).min(units.max(1) * BLOCKS_PER_UNIT);
        self.of(target, (blocks, size.tokens.max(1)), (self.ranks - 1, 4), random)
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
            into.push(spec.of(target, (blocks, rows), at, random)?);
            Ok(())
        };
        add(2, 300, false, true, (2, 1), (0, 0))?;
        add(2, 257, false, false, (1, 3), (1, 7))?;
        add(3, 65, true, false, (2, 4), (1, 2))?;
        add(8, 33, false, true, (1, 2), (5, u32::MAX - 1))?;
        add(4, 130, true, true, (3, 1), (3, 1))?;
        // Whole stretches and parts of one; one, two and four for a block; a block that has none.
        let mut stretches = |ranks, cols, residual, (blocks, rows), at| -> Result<(), SpecError> {
            let spec =
                ReduceSpec { ranks, cols, join: false, residual, stretches: true, gathered: false };
            into.push(spec.of(target, (blocks, rows), at, random)?);
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
                into.push(spec.of(target, (blocks, rows), at, random)?);
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
        list.add("reduce 2 × 4096".to_owned(), spec(4096, false, true), ONE)?;
        list.add("reduce 2 × 64128 joined".to_owned(), spec(64128, true, false), ONE)?;
        let stretches = ReduceSpec { stretches: true, ..spec(4096, false, true) };
        list.add("reduce 2 × 4096 in stretches".to_owned(), stretches, CHUNK)
    }
}
