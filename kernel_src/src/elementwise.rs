//! What goes element by element: sums and gated units (`gpu/combine.hip`), copies of rows (`gpu/rows.hip`).

use crate::kernel::{Kernel, SpecError, source};
use kjit_engine::{Constants, Geometry, Options, Target};

const BLOCK: u32 = 256;

/// What is made of two values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Combine {
    /// `a + b`.
    Add,
    /// `silu(a) · b`.
    Silu,
    /// `gelu(a) · b`, the tanh form.
    Gelu,
}

/// `y = op(a, b)`. Arguments: `a, b, y` (pointers to f32; `y` may be either), `n: u64, blocks: u32` (the grid's size).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CombineSpec {
    /// What is made of them.
    pub op: Combine,
}

impl CombineSpec {
    /// The specialised kernel.
    ///
    /// # Errors
    /// None at present; the signature is that of all families.
    pub fn kernel(&self, target: &Target) -> Result<Kernel, SpecError> {
        let op = match self.op {
            Combine::Add => 0,
            Combine::Silu => 1,
            Combine::Gelu => 2,
        };
        Ok(Kernel {
            source: source("combine", "combine.hip").entry("combine"),
            constants: Constants::new().set("KJ_BLOCK", BLOCK).set("OP", op),
            options: Options::wave(target.default_wave()),
            entry: "combine",
            block: BLOCK,
            shared: 0,
        })
    }

    /// Blocks for `n` elements: also the kernel's last argument.
    #[must_use]
    pub fn blocks(n: u64, units: u32) -> u32 {
        n.div_ceil(u64::from(BLOCK)).clamp(1, u64::from(units.max(1)) * 8) as u32
    }
}

/// `out[r] = x[which[r]]`, rows of 32-bit words. Arguments: `x, which, out` (pointers, `which` u32 per row), `words: u32` (of a row).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RowsSpec;

impl RowsSpec {
    /// The kernel.
    ///
    /// # Errors
    /// None at present; the signature is that of all families.
    pub fn kernel(&self, target: &Target) -> Result<Kernel, SpecError> {
        Ok(Kernel {
            source: source("rows", "rows.hip").entry("rows"),
            constants: Constants::new().set("KJ_BLOCK", BLOCK),
            options: Options::wave(target.default_wave()),
            entry: "rows",
            block: BLOCK,
            shared: 0,
        })
    }

    /// The launch for `rows` rows of `words`.
    ///
    /// # Errors
    /// As [`RowsSpec::kernel`].
    pub fn geometry(&self, target: &Target, rows: u32, words: u32) -> Result<Geometry, SpecError> {
        let mut g = self.kernel(target)?.launch(words.div_ceil(BLOCK));
        g.grid[1] = rows.max(1);
        Ok(g)
    }
}
