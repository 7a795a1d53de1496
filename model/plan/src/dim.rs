//! Sizes that depend on the device or the number of tokens.

use crate::choice::Choice;
use kjit_engine::Target;
use kjit_kernels::SpecError;
use kjit_kernels::gemm::{GemmLaunch, GemmSpec};
use kjit_kernels::moe::MoeSpec;

/// One for each token. In a batch: one for each sequence.
pub(super) const TOKENS: Dim = Dim::Tokens { per: 1, each: 1 };

pub(super) const ONE: Dim = Dim::Is(1);

/// A size that may depend on the device or the number of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[doc(hidden)]
pub enum Dim {
    /// A constant.
    Is(u32),
    /// `tokens / per`, rounded up, times `each`.
    Tokens {
        /// Tokens per group of blocks.
        per: u32,
        /// Blocks per group.
        each: u32,
    },
    /// `min(units * per_unit, most)`.
    Fill {
        /// Number of blocks that are resident on a compute unit.
        per_unit: u32,
        /// Blocks that have work.
        most: u32,
    },
    /// A number of a product's launch, times `each`.
    Gemm {
        /// Index in [`Program::products`](crate::Program::products).
        product: u32,
        /// The number.
        part: GemmPart,
        /// The factor.
        each: u32,
    },
    /// `min(units * per_unit / (over * tokens), most)`.
    Spread {
        /// Number of blocks that are resident on a compute unit.
        per_unit: u32,
        /// Blocks of the other grid dimensions for a token.
        over: u32,
        /// The maximum.
        most: u32,
    },
}

/// A matrix product whose launch depends on the number of tokens.
#[derive(Debug, Clone, PartialEq)]
#[doc(hidden)]
pub struct GemmUse {
    /// The product.
    pub spec: GemmSpec,
    /// With experts: how the rows of tokens are grouped.
    pub group: Option<MoeSpec>,
    /// Whether each block has all columns of its results ([`GemmLaunch::whole`]).
    pub whole: bool,
}

impl GemmUse {
    /// The launch for a number of tokens.
    ///
    /// # Errors
    /// See [`GemmSpec::launch_rows`].
    pub fn launch(
        &self,
        target: &Target,
        tokens: u32,
        units: u32,
    ) -> Result<GemmLaunch, SpecError> {
        let tokens = tokens as usize;
        let rows = self.group.map_or(tokens, |g| g.rows(tokens));
        let launch = self.spec.launch_rows(target, rows, units.min(UNITS))?;
        Ok(if self.whole { launch.whole() } else { launch })
    }
}

/// A number of a product's launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[doc(hidden)]
pub enum GemmPart {
    /// Blocks that share a result.
    Splits,
    /// Tiles of tokens.
    TokenTiles,
    /// All tiles.
    Tiles,
    /// Blocks in the grid's first dimension.
    Blocks,
    /// The grid's first dimension.
    GridX,
    /// The grid's second dimension.
    GridY,
    /// The grid's third dimension.
    GridZ,
}

/// The values for the evaluation of a [`Dim`]: the device, the tokens, and the products' launches,
/// which depend on both.
#[derive(Debug, Clone, PartialEq)]
#[doc(hidden)]
pub struct LaunchParams {
    /// Compute units of the device.
    pub units: u32,
    /// The number of tokens.
    pub tokens: u32,
    /// How the next token is chosen.
    pub choice: Choice,
    /// Launches by index of [`Program::products`](crate::Program::products).
    pub products: Vec<GemmLaunch>,
}

impl Dim {
    /// The size, at least 1.
    pub fn at(self, now: &LaunchParams) -> u32 {
        match self {
            Dim::Is(n) => n,
            Dim::Tokens { per, each } => now.tokens.div_ceil(per.max(1)).saturating_mul(each),
            Dim::Fill { per_unit, most } => now.units.saturating_mul(per_unit).min(most),
            Dim::Gemm { product, part, each } => {
                let launch = now.products.get(product as usize);
                launch
                    .map_or(0, |l| match part {
                        GemmPart::Splits => l.splits,
                        GemmPart::TokenTiles => l.token_tiles,
                        GemmPart::Tiles => l.tiles,
                        GemmPart::Blocks => l.blocks,
                        GemmPart::GridX => l.geometry.grid[0],
                        GemmPart::GridY => l.geometry.grid[1],
                        GemmPart::GridZ => l.geometry.grid[2],
                    })
                    .saturating_mul(each)
            }
            Dim::Spread { per_unit, over, most } => {
                let over = over.saturating_mul(now.tokens).max(1);
                (now.units.saturating_mul(per_unit) / over).min(most)
            }
        }
        .max(1)
    }
}

/// Maximum number of compute units for which there is memory for partial results. Launches do not
/// split work further.
pub const UNITS: u32 = 256;
