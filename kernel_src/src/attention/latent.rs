//! Attention of new tokens to latents: `gpu/latent.h`.

use crate::attention::kv::{KvLayout, KvStorage};
use crate::attention::top_keys::TopKeysSpec;
use crate::cases::paged::Pages;
use crate::cases::{
    Case, CaseArg, Expect, FOLLOWS, HALF, Random, SINGLE, Storage, Tolerance, floats, output, words,
};
use crate::matrix::{CONTEXT, Samples};
use crate::vocabulary::arguments::arguments;
use crate::vocabulary::arguments::{Declared, with_table};
use crate::vocabulary::family::Family;
use crate::vocabulary::kernel::{Kernel, SpecError, of_shape, require};
use crate::vocabulary::launch::{Block, Grid, Size, Work};
use crate::vocabulary::variant::{Fixed, no_choice};
use kjit_engine::{Constants, Target, Vendor};
use std::fmt;

/// Attention where a position's row is the key of all heads, and its beginning their value
/// (DeepSeek-V2, arXiv 2405.04434): the new tokens' rows are kept on the way. Queries and rows come
/// as they are multiplied.
///
/// Numerics: f32 throughout, rows as they are stored.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LatentSpec {
    /// Query heads.
    pub heads: usize,
    /// Rows: one head of [`LatentSpec::WIDEST`] elements at most.
    pub kv: KvLayout,
    /// Elements of a row that are the value.
    pub rank: usize,
    /// The tokens are one sequence's, one behind the other; else each is a sequence's.
    pub one: bool,
    /// Rows lie in pages ([`PAGE`](crate::kv::PAGE)).
    pub paged: bool,
    /// A token sees so many positions of a list (`gpu/chosen.h`); `None`: all up to its own.
    pub chosen: Option<usize>,
}

arguments! {
    /// The arguments.
    LatentArgs {
        /// `tokens × heads × head_dim` f32.
        q: Pointer,
        /// `tokens × head_dim` f32.
        row: Pointer,
        /// A u32 per sequence, its slot; null: sequence `s` has slot `s`.
        slots: Pointer,
        /// A u32 per slot: tokens before the new ones.
        position: Pointer,
        /// Per [`KvLayout`], slot `s` at `s · sequence_bytes`.
        rows: Pointer,
        /// [`LatentSpec::part_bytes`] of working memory.
        part: Pointer,
        /// [`LatentSpec::counters`] u32, zero before the first launch and after every one.
        counters: Pointer,
        /// `tokens × heads × rank` f32.
        out: Pointer,
        /// Factor on scores.
        scale: F32,
        /// Positions of a slot.
        capacity: U32,
        /// Slices of the context.
        splits: U32,
        /// Bytes from one slot's rows to the next one's; 0 with pages.
        sequence_bytes: U64,
        /// A u32 for each [`PAGE`](crate::kv::PAGE) positions of a sequence, slot after slot, where
        /// there are pages; or where positions are chosen `tokens × chosen` u32, in rising order
        /// ([`TopKeysSpec`]).
        table: Pointer,
    }
}

const NAME: &str = "latent";
const BLOCK: u32 = 256;

/// The macro that `gpu/chosen.h` asks for.
pub(crate) fn choosing(chosen: Option<usize>, macros: Constants) -> Constants {
    match chosen {
        Some(n) => macros.set("KJ_CHOSEN", n as u32),
        None => macros,
    }
}

impl LatentSpec {
    /// Elements of a row at most: the queries of four heads and a value of each wave are in shared
    /// memory.
    pub const WIDEST: usize = 640;
    /// Blocks of a compute unit.
    pub const BLOCKS_PER_UNIT: u32 = 1;

    /// Query heads that a block computes together.
    ///
    /// Four: a lane keeps 16 columns of each in registers, and what slices left of eight would be
    /// twice as much for the one block that adds it up.
    fn group(&self) -> usize {
        (1..=4).rev().find(|g| self.heads.is_multiple_of(*g)).unwrap_or(1)
    }

    /// Blocks that share a sequence's heads.
    #[must_use]
    pub fn groups(&self) -> u32 {
        (self.heads / self.group()) as u32
    }

    /// Bytes of the working memory.
    #[must_use]
    pub fn part_bytes(&self, splits: u32, sequences: u32) -> usize {
        self.heads * splits as usize * sequences as usize * (self.rank + 2).next_multiple_of(4) * 4
    }

    /// Counters (u32).
    #[must_use]
    pub fn counters(&self, sequences: u32) -> usize {
        (self.groups() * sequences) as usize
    }
}

impl Family for LatentSpec {
    const NAME: &'static str = NAME;
    type Args<A> = LatentArgs<A>;
    no_choice!();

    fn text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (one, paged) =
            (if self.one { ", one sequence" } else { "" }, if self.paged { ", paged" } else { "" });
        let (kv, rank) = (self.kv, self.rank);
        write!(
            f,
            "{} × {} {:?}, values of {rank}{one}{paged}",
            self.heads, kv.head_dim, kv.storage
        )?;
        self.chosen.map_or(Ok(()), |n| write!(f, ", {n} chosen"))
    }

    fn check(&self, _: &Target, _: &Fixed) -> Result<(), SpecError> {
        require(!self.paged || self.chosen.is_none(), NAME, || {
            "chosen positions in pages".to_owned()
        })?;
        let (dim, one) = (self.kv.head_dim, self.kv.heads == 1);
        let fine = one
            && dim.is_multiple_of(16)
            && (1..=dim).contains(&self.rank)
            && dim <= LatentSpec::WIDEST;
        require(fine && self.heads > 0, NAME, || {
            format!(
                "{} heads on rows of {dim}: multiples of 16 up to {} are covered",
                self.heads,
                LatentSpec::WIDEST
            )
        })
    }

    fn block(&self, target: &Target, _: &Fixed) -> Result<Block, SpecError> {
        Ok(Block::of(target.default_wave(), BLOCK))
    }

    fn render(&self, target: &Target, _: &Fixed, block: Block) -> Result<Kernel, SpecError> {
        let shape = self
            .kv
            .shape()
            .number("HEADS", self.heads)
            .number("GROUP", self.group())
            .number("RANK", self.rank)
            .flag("ONE", self.one);
        // Said, lest nvrtc stop at fewer registers than a block of 256 threads may have, and spill.
        let bounded = match target.vendor() {
            Vendor::Nvidia => Constants::new().set("KJ_MIN_BLOCKS", 1),
            Vendor::Amd => Constants::new(),
        };
        let macros = choosing(self.chosen, KvLayout::macros(self.paged, bounded));
        Ok(of_shape(NAME, &shape, macros, block.wave, block.threads))
    }

    fn declared(&self) -> &'static [Declared] {
        with_table::<LatentArgs<()>>(self.paged || self.chosen.is_some())
    }

    fn grid(&self, _: &Target, _: &Fixed, units: u32, size: Size) -> Result<Grid, SpecError> {
        let sequences = size.tokens.max(1) as u32;
        let splits = (units.max(1) * LatentSpec::BLOCKS_PER_UNIT / (self.groups() * sequences))
            .clamp(1, 256);
        let grid = Grid::of([splits, self.groups(), sequences]).number("splits", splits);
        Ok(grid
            .memory("part", self.part_bytes(splits, sequences))
            .counters("counters", self.counters(sequences)))
    }

    fn work(&self, Size { tokens, past }: Size) -> Work {
        let ends = 4 * (self.kv.head_dim * (self.heads + 1) + self.rank * self.heads);
        let seen = (past + 1).min(self.chosen.unwrap_or(usize::MAX));
        let operations = 2 * seen * self.heads * (self.kv.head_dim + self.rank);
        let bytes = self.kv.bytes(seen).unwrap_or(0) + ends;
        Work { bytes: (tokens * bytes) as u64, operations: (tokens * operations) as u64 }
    }

    fn case(
        &self,
        target: &Target,
        units: u32,
        size: Size,
        random: &mut Random,
    ) -> Result<Case, SpecError> {
        case(self, target, units, &vec![size.past; size.tokens.max(1)], random)
    }

    fn cases(
        target: &Target,
        _: u32,
        random: &mut Random,
        into: &mut Vec<Case>,
    ) -> Result<(), SpecError> {
        use KvStorage::{F16, F32, Q8_0};
        // Groups of four, of fewer, of a number that is no power of two; ranks around a block's
        // threads; one slice and several; the first token, ends of tiles. In pages: the first
        // position of one, the last, several of them.
        for (heads, head_dim, rank, storage, splits, positions, one, paged, chosen) in [
            (16, 576, 512, F16, 3, vec![70], false, false, None),
            (4, 80, 64, F16, 2, vec![0, 7, 8, 33], false, false, None),
            (5, 96, 96, Q8_0, 4, vec![50], false, false, None),
            (3, 272, 257, F32, 1, vec![23, 40], false, false, None),
            (8, 320, 256, Q8_0, 5, vec![100], false, false, None),
            // More slices than are added up at once, than a wave has lanes.
            (4, 80, 64, F16, 40, vec![1290], false, false, None),
            (2, 80, 64, F16, 70, vec![2239], false, true, None),
            (4, 80, 64, F16, 1, vec![0; 11], true, false, None),
            (6, 144, 128, Q8_0, 2, vec![13; 9], true, false, None),
            (16, 576, 512, F16, 3, vec![300], false, true, None),
            (4, 80, 64, F16, 2, vec![0, 127, 128, 143], false, true, None),
            (5, 96, 96, Q8_0, 4, vec![255], false, true, None),
            (4, 80, 64, F16, 1, vec![120; 11], true, true, None),
            // Chosen ones: fewer than there are, as many, more; of one sequence, its own new tokens
            // among them.
            (16, 576, 512, F16, 3, vec![70], false, false, Some(33)),
            (4, 80, 64, F16, 2, vec![0, 11, 12, 40], false, false, Some(12)),
            (5, 96, 96, Q8_0, 1, vec![50], false, false, Some(20)),
            (6, 144, 128, F16, 2, vec![9; 9], true, false, Some(12)),
        ] {
            let spec = LatentSpec {
                heads,
                kv: KvLayout { heads: 1, head_dim, storage },
                rank,
                one,
                paged,
                chosen,
            };
            let units = splits * spec.groups() * positions.len() as u32;
            into.push(case(&spec, target, units, &positions, random)?);
        }
        Ok(())
    }

    fn samples(list: &mut Samples<'_>) -> Result<(), SpecError> {
        let size = Size { tokens: 1, past: CONTEXT - 1 };
        let kv = KvLayout { heads: 1, head_dim: 576, storage: KvStorage::F16 };
        let plain = LatentSpec { heads: 16, kv, rank: 512, one: false, paged: false, chosen: None };
        list.add("latent 16 × 512 + 64 F16".to_owned(), plain.clone(), size)?;
        list.add(
            "latent 16 × 512 + 64 F16 in pages".to_owned(),
            LatentSpec { paged: true, ..plain.clone() },
            size,
        )?;
        let chosen = LatentSpec { heads: 128, chosen: Some(2048), ..plain };
        list.add("latent 128 × 512 + 64 F16 2048 chosen".to_owned(), chosen, size)
    }
}

/// A list for each token that sees so many positions: as many of them as it has places for, in
/// rising order.
pub(crate) fn lists(
    chosen: usize,
    seen: impl Iterator<Item = usize>,
    random: &mut Random,
) -> Vec<u32> {
    let of = |seen: usize| {
        let mut list: Vec<u32> = (0..seen as u32).collect();
        while list.len() > chosen {
            list.swap_remove(random.below(list.len()));
        }
        list.sort_unstable();
        list.resize(chosen, TopKeysSpec::NONE);
        list
    };
    seen.flat_map(of).collect()
}

/// What must come out, in f64, of sequences with so many tokens before the new one; of one, as many
/// tokens.
fn case(
    spec: &LatentSpec,
    target: &Target,
    units: u32,
    positions: &[usize],
    random: &mut Random,
) -> Result<Case, SpecError> {
    let (kv, dim, n) = (spec.kv, spec.kv.head_dim, positions.len());
    let capacity = positions.iter().max().unwrap_or(&0) + n + 3;
    let (bytes, scale) = (kv.bytes(capacity).unwrap_or(0), 1.0 / (dim as f32).sqrt());
    let (q, new) = (random.normals(n * spec.heads * dim, 1.5), random.normals(n * dim, 1.0));
    // Several sequences lie in another order, with one place free; what nobody wrote is poison.
    let places = if n > 1 && !spec.one { n + 1 } else { 1 };
    let slots: Vec<u32> =
        (0..n).map(|s| if spec.one { 0 } else { (places - 1 - s) as u32 }).collect();
    let (mut before, mut by_place) = (vec![0xffu8; places * bytes], vec![u32::MAX; places]);
    let seen =
        positions.iter().enumerate().map(|(s, here)| here + 1 + if spec.one { s } else { 0 });
    let lists = spec.chosen.map_or(vec![], |n| lists(n, seen, random));
    let (mut after, mut want) = (before.clone(), vec![]);
    for (s, &here) in positions.iter().enumerate() {
        let at = slots[s] as usize * bytes;
        by_place[slots[s] as usize] = here as u32;
        let (cache, all) = (&mut before[at..at + bytes], &mut after[at..at + bytes]);
        // The new rows are seen as they came.
        let first = if spec.one { 0 } else { s };
        if first == s {
            (0..here).for_each(|p| kv.write_row(cache, capacity, 0, p, &random.normals(dim, 1.0)));
            all.copy_from_slice(cache);
        }
        kv.write_row(all, capacity, 0, here + s - first, &new[s * dim..][..dim]);
        // Of many tokens the oracle has time for some.
        if n > 128 && s % 61 > 0 && s + 1 < n {
            want.resize(want.len() + spec.heads * spec.rank, f64::INFINITY);
            continue;
        }
        let old = (0..here).map(|p| kv.read_row(cache, capacity, 0, p));
        let mut rows: Vec<Vec<f32>> =
            old.chain((first..=s).map(|s| new[s * dim..][..dim].to_vec())).collect();
        if let Some(n) = spec.chosen {
            let list = lists[s * n..][..n].iter().filter(|p| **p != TopKeysSpec::NONE);
            rows = list.map(|p| rows[*p as usize].clone()).collect();
        }
        for q in q[s * spec.heads * dim..][..spec.heads * dim].chunks(dim) {
            let dot = |row: &Vec<f32>| {
                q.iter().zip(row).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>()
            };
            let scores: Vec<f64> = rows.iter().map(|row| f64::from(scale) * dot(row)).collect();
            let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = scores.iter().map(|s| (s - most).exp()).sum();
            let share = |i: usize| (scores[i] - most).exp() / sum;
            want.extend(
                (0..spec.rank).map(|c| {
                    (0..rows.len()).map(|i| share(i) * f64::from(rows[i][c])).sum::<f64>()
                }),
            );
        }
    }
    let pages = spec.paged.then(|| {
        let more = if spec.one { n as u32 } else { 1 };
        let lens: Vec<usize> = by_place.iter().map(|&p| p.wrapping_add(more) as usize).collect();
        Pages::new(&lens, capacity, random)
    });
    let [before, after] = match &pages {
        None => [before, after],
        Some(pages) => [before, after].map(|rows| pages.pool(&kv, &rows, capacity)),
    };
    let real = |storage: Storage, tolerance| Expect::Real {
        storage,
        want: storage.read(&after),
        tolerance,
    };
    let expect = match kv.storage {
        KvStorage::F32 => real(Storage::F32, SINGLE),
        KvStorage::F16 => real(Storage::F16, HALF),
        KvStorage::Q8_0 => Expect::Anything,
    };
    let tolerance =
        Tolerance { norm: 1e-5, each: 1e-4, reason: "scores and exponentials in single precision" };
    let launch = spec.launch(target, units, Size { tokens: n, past: capacity })?;
    let name = format!(
        "latent {} heads of {dim}, values of {}, {:?}, positions {positions:?}, one {}, {} \
         splits{}, {:?} chosen",
        spec.heads,
        spec.rank,
        kv.storage,
        spec.one,
        launch.geometry.grid[0],
        if spec.paged { ", paged" } else { "" },
        spec.chosen
    );
    let args = LatentArgs {
        q: floats("q", &q),
        row: floats("row", &new),
        slots: if n > 1 && !spec.one { words("slots", &slots) } else { CaseArg::Null },
        position: words("position", &by_place),
        rows: CaseArg::Buffer { name: "rows", before: before.into(), expect },
        part: CaseArg::Null,
        counters: CaseArg::Null,
        out: output("out", Storage::F32, want, tolerance),
        scale: CaseArg::F32(scale),
        capacity: CaseArg::U32(capacity as u32),
        splits: FOLLOWS,
        sequence_bytes: CaseArg::U64(if spec.paged { 0 } else { bytes as u64 }),
        table: pages.map_or_else(|| words("chosen", &lists), |pages| words("table", &pages.table)),
    };
    Case::of(name, spec, target, launch, args)
}
