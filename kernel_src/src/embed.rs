//! Rows of the embedding, for token ids on the device: `gpu/embed.hip`.

use crate::kernel::{Kernel, SpecError, source};
use crate::layout::Layout;
use crate::render::weights_struct;
use kjit_engine::{Constants, Geometry, Options, Target};

/// `out[r] = scale · table[token of r]`. Arguments: `table, tokens, slots, position, out` (pointers), `scale: f32, capacity: u32`.
///
/// `table` has row records of the layout; `tokens` the ids of a whole context. A prompt: row `r` is the token at `position[0] + r`. A
/// batch: row `r` is the token at `position[p]` of the sequence in place `p = slots[r]` (`r` where `slots` is null), whose tokens start at
/// `p · capacity`. Ids are trusted to lie below the
/// table's rows. `out` is `rows × cols` f32.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EmbedSpec {
    /// The table's layout.
    pub layout: Layout,
    /// A row per sequence instead of a row per token of one.
    pub batch: bool,
}

const BLOCK: u32 = 128;

impl EmbedSpec {
    /// The specialised kernel.
    ///
    /// # Errors
    /// None at present; the signature is that of all families.
    pub fn kernel(&self, target: &Target) -> Result<Kernel, SpecError> {
        Ok(Kernel {
            source: source("embed", "embed.hip")
                .file("weights_gen.h", weights_struct("W", &self.layout))
                .entry("embed"),
            constants: Constants::new()
                .set("KJ_BLOCK", BLOCK)
                .set("COLS", self.layout.cols as i64)
                .set("BATCH", i64::from(self.batch)),
            options: Options::wave(target.default_wave()),
            entry: "embed",
            block: BLOCK,
            shared: 0,
        })
    }

    /// The launch.
    ///
    /// # Errors
    /// As [`EmbedSpec::kernel`].
    pub fn geometry(&self, target: &Target, rows: u32) -> Result<Geometry, SpecError> {
        let mut g = self.kernel(target)?.launch((self.layout.units() as u32).div_ceil(BLOCK));
        g.grid[1] = rows.max(1);
        Ok(g)
    }
}
