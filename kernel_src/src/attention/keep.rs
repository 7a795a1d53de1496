//! Rows of new tokens to a cache of one head: `gpu/keep.h`.

use crate::attention::kv::{KvLayout, KvStorage};
use crate::cases::paged::Pages;
use crate::cases::{Case, CaseArg, Expect, FOLLOWS, HALF, Random, SINGLE, Storage, floats, words};
use crate::matrix::{CHUNK, Samples};
use crate::vocabulary::arguments::arguments;
use crate::vocabulary::arguments::{Declared, with_table};
use crate::vocabulary::family::Family;
use crate::vocabulary::kernel::{Kernel, SpecError, of_shape, require};
use crate::vocabulary::launch::{Block, Grid, Size, Work};
use crate::vocabulary::variant::{Fixed, no_choice};
use kjit_engine::{Constants, Target};
use std::fmt;

/// Rows of new tokens, kept as a cache has them: where attention itself does not keep them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct KeepSpec {
    /// Rows: one head.
    pub kv: KvLayout,
    /// The tokens are one sequence's, one behind the other; else each is a sequence's.
    pub one: bool,
    /// Rows lie in pages ([`PAGE`](crate::kv::PAGE)).
    pub paged: bool,
}

arguments! {
    /// The arguments.
    KeepArgs {
        /// `tokens × head_dim` f32.
        row: Pointer,
        /// A u32 per sequence, its slot; null: sequence `s` has slot `s`.
        slots: Pointer,
        /// A u32 per slot: tokens before the new ones.
        position: Pointer,
        /// Per [`KvLayout`], slot `s` at `s · sequence_bytes`.
        rows: Pointer,
        /// New tokens.
        tokens: U32,
        /// Positions of a slot.
        capacity: U32,
        /// Bytes from one slot's rows to the next one's; 0 with pages.
        sequence_bytes: U64,
        /// A u32 for each [`PAGE`](crate::kv::PAGE) positions of a sequence, slot after slot; only
        /// where there are pages.
        table: Pointer,
    }
}

const NAME: &str = "keep";
const BLOCK: u32 = 256;

impl KeepSpec {
    /// Rows of a block: one for each wave.
    #[must_use]
    pub fn rows(&self, target: &Target) -> u32 {
        BLOCK / target.default_wave()
    }
}

impl Family for KeepSpec {
    const NAME: &'static str = NAME;
    type Args<A> = KeepArgs<A>;
    no_choice!();

    fn text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let paged = if self.paged { ", paged" } else { "" };
        write!(
            f,
            "{} {:?}{}{paged}",
            self.kv.head_dim,
            self.kv.storage,
            if self.one { ", one sequence" } else { "" }
        )
    }

    fn check(&self, _: &Target, _: &Fixed) -> Result<(), SpecError> {
        let dim = self.kv.head_dim;
        require(self.kv.heads == 1 && dim > 0 && dim.is_multiple_of(16), NAME, || {
            format!("{} heads of {dim}: one, a multiple of 16, is covered", self.kv.heads)
        })
    }

    fn block(&self, target: &Target, _: &Fixed) -> Result<Block, SpecError> {
        Ok(Block::of(target.default_wave(), BLOCK))
    }

    fn render(&self, _: &Target, _: &Fixed, block: Block) -> Result<Kernel, SpecError> {
        let shape = self.kv.shape().flag("ONE", self.one);
        Ok(of_shape(
            NAME,
            &shape,
            KvLayout::macros(self.paged, Constants::new()),
            block.wave,
            block.threads,
        ))
    }

    fn declared(&self) -> &'static [Declared] {
        with_table::<KeepArgs<()>>(self.paged)
    }

    fn grid(&self, target: &Target, _: &Fixed, _: u32, size: Size) -> Result<Grid, SpecError> {
        let tokens = size.tokens as u32;
        Ok(Grid::of([tokens.div_ceil(self.rows(target)), 1, 1]).number("tokens", tokens))
    }

    fn work(&self, Size { tokens, .. }: Size) -> Work {
        Work::moves(tokens * 4 * self.kv.head_dim + self.kv.bytes(tokens).unwrap_or(0))
    }

    fn timed_at(&self, _: usize) -> Size {
        CHUNK
    }

    fn case(
        &self,
        target: &Target,
        units: u32,
        size: Size,
        random: &mut Random,
    ) -> Result<Case, SpecError> {
        let (kv, dim, n) = (self.kv, self.kv.head_dim, size.tokens);
        let capacity = size.past + n + 3;
        let bytes = kv.bytes(capacity).unwrap_or(0);
        let row = random.normals(n * dim, 1.0);
        // Several sequences lie in another order, with one place free; what nobody wrote is poison.
        let places = if self.one { 1 } else { n + 1 };
        let slots: Vec<u32> =
            (0..n).map(|s| if self.one { 0 } else { (places - 1 - s) as u32 }).collect();
        let mut position = vec![u32::MAX; places];
        let before = vec![0xffu8; places * bytes];
        let mut after = before.clone();
        for (t, x) in row.chunks(dim).enumerate() {
            let slot = slots[t] as usize;
            let here = size.past + if self.one { t } else { t % 3 };
            position[slot] = if self.one { size.past as u32 } else { here as u32 };
            kv.write_row(&mut after[slot * bytes..][..bytes], capacity, 0, here, x);
        }
        let pages = self.paged.then(|| {
            let lens = position
                .iter()
                .map(|&p| p.wrapping_add(if self.one { n as u32 } else { 1 }) as usize);
            Pages::new(&lens.collect::<Vec<_>>(), capacity, random)
        });
        let [before, after] = match &pages {
            None => [before, after],
            Some(pages) => [before, after].map(|rows| pages.pool(&kv, &rows, capacity)),
        };
        let expect = match kv.storage {
            KvStorage::F32 => Expect::Real {
                storage: Storage::F32,
                want: Storage::F32.read(&after),
                tolerance: SINGLE,
            },
            KvStorage::F16 => Expect::Real {
                storage: Storage::F16,
                want: Storage::F16.read(&after),
                tolerance: HALF,
            },
            // A quotient of two roundings may be the code beside it.
            KvStorage::Q8_0 => Expect::Anything,
        };
        let args = KeepArgs {
            row: floats("row", &row),
            slots: if self.one { CaseArg::Null } else { words("slots", &slots) },
            position: words("position", &position),
            rows: CaseArg::Buffer { name: "rows", before: before.into(), expect },
            tokens: FOLLOWS,
            capacity: CaseArg::U32(capacity as u32),
            sequence_bytes: CaseArg::U64(if self.paged { 0 } else { bytes as u64 }),
            table: pages.map_or(CaseArg::Null, |pages| words("table", &pages.table)),
        };
        let paged = if self.paged { ", paged" } else { "" };
        let name = format!(
            "keep {n} of {dim}, {:?}, after {}, one {}{paged}",
            kv.storage, size.past, self.one
        );
        Case::of(name, self, target, self.launch(target, units, size)?, args)
    }

    fn cases(
        target: &Target,
        _: u32,
        random: &mut Random,
        into: &mut Vec<Case>,
    ) -> Result<(), SpecError> {
        use KvStorage::{F16, F32, Q8_0};
        for (head_dim, storage, tokens, past, one, paged) in [
            (576, F16, 11, 5, true, false),
            (80, F32, 3, 0, false, false),
            (272, F16, 9, 2, false, false),
            (96, Q8_0, 5, 7, true, false),
            (576, F16, 140, 120, true, true),
            (272, F16, 3, 127, false, true),
        ] {
            let spec = KeepSpec { kv: KvLayout { heads: 1, head_dim, storage }, one, paged };
            into.push(spec.case(target, 1, Size { tokens, past }, random)?);
        }
        Ok(())
    }

    fn samples(list: &mut Samples<'_>) -> Result<(), SpecError> {
        let kv = KvLayout { heads: 1, head_dim: 576, storage: KvStorage::F16 };
        list.add("keep 576 F16".to_owned(), KeepSpec { kv, one: true, paged: false }, CHUNK)
    }
}
