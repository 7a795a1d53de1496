//! The file's rows into row records, on the device. `gpu/repack.hip`.

use crate::format::Encoding;
use crate::kernel::{Kernel, SpecError, source};
use crate::layout::Layout;
use crate::render::{raw_struct, weights_struct};
use kjit_engine::{Constants, Geometry, Options, Target};

/// Repacks rows. Arguments: `raw, records` (pointers), `rows: u64` (of all experts together), `blocks: u32` (the grid's size).
/// `raw` may start at any byte; `records` has [`Layout::bytes`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RepackSpec {
    /// The layout of a row.
    pub layout: Layout,
}

const BLOCK: u32 = 256;

impl RepackSpec {
    /// The specialised kernel.
    ///
    /// # Errors
    /// None at present; the signature is that of all families.
    pub fn kernel(&self, target: &Target) -> Result<Kernel, SpecError> {
        let layout = &self.layout;
        let plain = match layout.format.encoding {
            Encoding::Blocks(_) => 0,
            Encoding::F32 => 4,
            Encoding::F16 | Encoding::BF16 => 2,
        };
        let header = weights_struct("W", layout) + &raw_struct(layout);
        Ok(Kernel {
            source: source("repack", "repack.hip").file("weights_gen.h", header).entry("repack"),
            constants: Constants::new()
                .set("KJ_BLOCK", BLOCK)
                .set("COLS", layout.cols as i64)
                .set("PLAIN_BYTES", plain),
            options: Options::wave(target.default_wave()),
            entry: "repack",
            block: BLOCK,
            shared: 0,
        })
    }

    /// Blocks for `rows` rows on a device of `units` compute units: also the kernel's last argument.
    #[must_use]
    pub fn blocks(&self, rows: u64, units: u32) -> u32 {
        let each = if self.layout.block().is_some() { self.layout.cols / 32 } else { self.layout.row_bytes / 16 };
        let all = rows.saturating_mul(each as u64).div_ceil(u64::from(BLOCK));
        all.clamp(1, u64::from(units.max(1)) * 16) as u32
    }

    /// The launch.
    ///
    /// # Errors
    /// As [`RepackSpec::kernel`].
    pub fn geometry(&self, target: &Target, rows: u64, units: u32) -> Result<Geometry, SpecError> {
        Ok(self.kernel(target)?.launch(self.blocks(rows, units)))
    }
}
