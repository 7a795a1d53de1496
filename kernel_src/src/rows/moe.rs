//! Groups the tokens of a prompt by expert, on the device, and sums the experts' results: three
//! kernels of `gpu/moe.h`.

use crate::vocabulary::arguments::arguments;
use crate::vocabulary::family::Family;
use crate::vocabulary::files::source;
use crate::vocabulary::kernel::{Kernel, SpecError, of_shape, require};
use crate::vocabulary::launch::{Block, Grid, Size, Work};
use crate::vocabulary::shape::Shape;
use crate::vocabulary::variant::{Wave, choice_of_wave};
use kjit_engine::{Constants, Target};
use std::fmt;

/// Experts of a layer, for prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MoeSpec {
    /// Number of experts.
    pub experts: usize,
    /// Number of chosen experts of a token.
    pub top: usize,
    /// Tokens of a tile: [`GemmTuning::tokens`](crate::gemm::GemmTuning::tokens) of the products.
    pub tile: usize,
    /// Length of the rows that are summed.
    pub cols: usize,
}

const BLOCK: u32 = 256;

impl MoeSpec {
    /// The most tiles that `tokens` tokens need: every expert may have one that is not full.
    #[must_use]
    pub const fn tiles(&self, tokens: usize) -> usize {
        let pairs = tokens * self.top;
        let spread = (pairs + self.experts * (self.tile - 1)) / self.tile;
        if pairs < spread { pairs } else { spread }
    }

    /// Number of rows of the gathered activations.
    #[must_use]
    pub const fn rows(&self, tokens: usize) -> usize {
        self.tiles(tokens) * self.tile
    }

    fn check(&self, kernel: &'static str, target: &Target, tuning: Wave) -> Result<(), SpecError> {
        let fine = (1..=4096).contains(&self.experts)
            && (1..=self.experts.min(64)).contains(&self.top)
            && self.tile > 0
            && self.cols > 0;
        require(fine, kernel, || format!("{self:?}"))?;
        tuning.check(kernel, target)
    }

    fn render(&self, entry: &'static str, block: Block) -> Kernel {
        let shape = Shape::new().number("EXPERTS", self.experts).number("TOP", self.top);
        let shape = shape.number("BM", self.tile).number("COLS", self.cols);
        let kernel = of_shape("moe", &shape, Constants::new(), block.wave, block.threads);
        let source = source("moe", "moe.hip").file("shape.h", shape.header());
        let source = source.entry("moe_count").entry("moe_place").entry("moe_sum");
        Kernel { source, entry, ..kernel }
    }
}

impl fmt::Display for MoeSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MoeSpec { experts, top, tile, cols } = self;
        write!(f, "{top} of {experts}, tiles of {tile}, rows of {cols}")
    }
}

arguments! {
    /// The arguments of counting.
    MoeCountArgs {
        /// `tokens × top` u32.
        experts: Pointer,
        /// Output: a u32 per expert, its number of tokens.
        counts: Pointer,
        /// `tokens · top`.
        pairs: U32,
    }
}

arguments! {
    /// The arguments of grouping.
    MoeGroupArgs {
        /// `tokens × top` u32.
        experts: Pointer,
        /// A u32 per expert.
        counts: Pointer,
        /// Output: a u32 per tile, its expert or `u32::MAX`.
        tile_expert: Pointer,
        /// Output: a u32 per row, its token or `u32::MAX`.
        source: Pointer,
        /// Output: a u32 per pair, its row.
        row_of: Pointer,
        /// `tokens · top`.
        pairs: U32,
        /// Number of tiles of `tile_expert`.
        max_tiles: U32,
    }
}

arguments! {
    /// The arguments of the sum: `out[t] = residual[t] + Σ shares[t, s] · y[row_of[t, s]]`.
    MoeSumArgs {
        /// Rows of `cols` f32.
        y: Pointer,
        /// A u32 per pair.
        row_of: Pointer,
        /// An f32 per pair.
        shares: Pointer,
        /// `tokens × cols` f32, or null.
        residual: Pointer,
        /// `tokens × cols` f32; may be `residual`.
        out: Pointer,
    }
}

/// The three families differ only in these arguments.
macro_rules! step {
    ($(#[$doc:meta])* $spec:ident, $args:ident, $name:literal, $entry:literal, $grid:expr,
     $work:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub struct $spec {
            /// The experts.
            pub experts: MoeSpec,
            /// Lanes in a wave; `None`: the target's own.
            pub tuning: Option<Wave>,
        }

        impl From<MoeSpec> for $spec {
            fn from(experts: MoeSpec) -> $spec {
                $spec { experts, tuning: None }
            }
        }

        impl Family for $spec {
            const NAME: &'static str = $name;
            type Args<A> = $args<A>;
            choice_of_wave!();

            fn text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.experts)
            }

            fn check(&self, target: &Target, tuning: &Wave) -> Result<(), SpecError> {
                self.experts.check($name, target, *tuning)
            }

            fn block(&self, _: &Target, &Wave { wave }: &Wave) -> Result<Block, SpecError> {
                Ok(Block::of(wave, BLOCK))
            }

            fn render(&self, _: &Target, _: &Wave, block: Block) -> Result<Kernel, SpecError> {
                Ok(self.experts.render($entry, block))
            }

            fn grid(&self, _: &Target, _: &Wave, _: u32, size: Size) -> Result<Grid, SpecError> {
                let grid: fn(&MoeSpec, usize) -> Grid = $grid;
                Ok(grid(&self.experts, size.tokens))
            }

            fn work(&self, size: Size) -> Work {
                let words: fn(&MoeSpec, usize) -> usize = $work;
                Work::moves(4 * words(&self.experts, size.tokens))
            }

            fn timed_at(&self, _: usize) -> Size {
                Size::CHUNK
            }
        }
    };
}

step! {
    /// Counts the tokens of each expert.
    MoeCountSpec, MoeCountArgs, "moe_count", "moe_count",
    |moe, tokens| Grid::of([moe.experts as u32, 1, 1]).number("pairs", (tokens * moe.top) as u32),
    |moe, tokens| tokens * moe.top + moe.experts
}

step! {
    /// Groups tokens by expert, each group in whole tiles.
    MoeGroupSpec, MoeGroupArgs, "moe_group", "moe_place",
    |moe, tokens| {
        let grid = Grid::of([moe.experts as u32, 1, 1]).number("pairs", (tokens * moe.top) as u32);
        grid.number("max_tiles", moe.tiles(tokens) as u32)
    },
    |moe, tokens| 2 * tokens * moe.top + moe.experts + moe.tiles(tokens) + moe.rows(tokens)
}

step! {
    /// Adds the experts' results of each token, by their shares.
    MoeSumSpec, MoeSumArgs, "moe_sum", "moe_sum",
    |_, tokens| Grid::of([tokens as u32, 1, 1]),
    |moe, tokens| tokens * ((moe.top + 2) * moe.cols + 2 * moe.top)
}
