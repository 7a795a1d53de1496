//! Columns of activations made ready once for all blocks of the products that follow. `gpu/prepare.hip`.

use crate::activations::{Column, Prologue};
use crate::kernel::{Kernel, SpecError, source};
use kjit_engine::{Geometry, Options, Target};

/// Prepares columns in global memory, where they are too many or too long for each block of a product to make its own.
/// Arguments: `x, aux, out` (pointers), `eps: f32`. One block a column; `x` is `columns × cols` f32, `aux` the norm's weight (`cols`)
/// or the GLU's other factor (`columns × cols`), `out` [`Column::bytes`] for each column.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PrepareSpec {
    /// The form.
    pub column: Column,
    /// What happens first.
    pub prologue: Prologue,
}

const BLOCK: u32 = 256;

impl PrepareSpec {
    /// The specialised kernel.
    ///
    /// # Errors
    /// None at present; the signature is that of all families.
    pub fn kernel(&self, target: &Target) -> Result<Kernel, SpecError> {
        Ok(Kernel {
            source: source("prepare", "prepare.hip").entry("prepare"),
            constants: self.column.constants(self.prologue).set("KJ_BLOCK", BLOCK),
            options: Options::wave(target.default_wave()),
            entry: "prepare",
            block: BLOCK,
            shared: 0,
        })
    }

    /// The launch for some columns.
    ///
    /// # Errors
    /// As [`PrepareSpec::kernel`].
    pub fn geometry(&self, target: &Target, columns: u32) -> Result<Geometry, SpecError> {
        Ok(self.kernel(target)?.launch(columns))
    }
}
