//! Normalises and rotates heads of a prompt's tokens, and stores keys and values: `gpu/rope_kv.h`.

use crate::attention::heads::HeadsForm;
use crate::attention::kv::KvLayout;
use crate::vocabulary::arguments::{Declared, arguments, with_table};
use crate::vocabulary::family::Family;
use crate::vocabulary::kernel::{Kernel, SpecError, of_shape};
use crate::vocabulary::launch::{Block, Grid, Size, Work};
use crate::vocabulary::variant::{Wave, choice_of_wave};
use kjit_engine::{Constants, Target};
use std::fmt;

/// Normalises and rotates queries and keys, and stores keys and values, as
/// [`AttendSpec`](crate::attend::AttendSpec) does for one token.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RopeKvSpec {
    /// Layout, norms and rotation of the heads.
    pub form: HeadsForm,
    /// Whether queries are returned as f16.
    pub half: bool,
    /// Lanes in a wave; `None`: the target's own.
    pub tuning: Option<Wave>,
}

arguments! {
    /// The arguments; those without a description are as in
    /// [`AttendArgs`](crate::attend::AttendArgs).
    RopeKvArgs {
        /// `tokens × heads × head_dim` f32, as projected.
        q: Pointer,
        /// `tokens × kv heads × head_dim` f32; null, like `v`, if they are already in the cache.
        k: Pointer,
        /// As `k`.
        v: Pointer,
        /// `head_dim` f32, or null.
        q_norm: Pointer,
        /// As `q_norm`.
        k_norm: Pointer,
        /// Cosines and sines from [`angles`](crate::heads::angles).
        angles: Pointer,
        /// One u32: the position of the first token.
        position: Pointer,
        /// Keys in the layout [`KvLayout`].
        keys: Pointer,
        /// Values, as `keys`.
        values: Pointer,
        /// The rotated queries, `tokens × heads × head_dim`, f32 or f16; f32 may be `q`.
        rotated: Pointer,
        /// Epsilon of the norms.
        eps: F32,
        /// Number of positions in the cache.
        capacity: U32,
        /// A u32 for each [`PAGE`](crate::kv::PAGE) positions of a sequence; only with pages.
        table: Pointer,
    }
}

const NAME: &str = "rope_kv";
const WAVES: u32 = 4;

impl RopeKvSpec {
    /// Number of blocks for a token.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        let kept = if self.form.kept_before { 0 } else { 2 * self.form.kv.heads };
        ((self.form.heads + kept) as u32).div_ceil(WAVES)
    }
}

impl Family for RopeKvSpec {
    const NAME: &'static str = NAME;
    type Args<A> = RopeKvArgs<A>;
    choice_of_wave!();

    fn text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.form, if self.half { ", halves out" } else { "" })
    }

    fn check(&self, target: &Target, tuning: &Wave) -> Result<(), SpecError> {
        self.form.check(NAME)?;
        tuning.check(NAME, target)
    }

    fn block(&self, _: &Target, &Wave { wave }: &Wave) -> Result<Block, SpecError> {
        Ok(Block::of(wave, WAVES * wave))
    }

    fn render(&self, _: &Target, _: &Wave, block: Block) -> Result<Kernel, SpecError> {
        let shape = self.form.shape().flag("Q_HALF", self.half);
        Ok(of_shape(
            NAME,
            &shape,
            KvLayout::macros(self.form.paged, Constants::new()),
            block.wave,
            block.threads,
        ))
    }

    fn declared(&self) -> &'static [Declared] {
        with_table::<RopeKvArgs<()>>(self.form.paged)
    }

    fn grid(&self, _: &Target, _: &Wave, _: u32, size: Size) -> Result<Grid, SpecError> {
        Ok(Grid::of([size.tokens as u32, self.blocks(), 1]))
    }

    fn work(&self, size: Size) -> Work {
        let HeadsForm { heads, kv, .. } = self.form;
        let queries = if self.half { 6 } else { 8 } * heads * kv.head_dim;
        let kept = if self.form.kept_before { 0 } else { 2 }
            * (4 * kv.heads * kv.head_dim + kv.bytes(1).unwrap_or(0));
        Work::moves(size.tokens * (queries + kept))
    }

    fn timed_at(&self, _: usize) -> Size {
        Size::CHUNK
    }
}
