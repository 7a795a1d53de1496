//! Norms of rows: `gpu/norm_rows.hip`. And softmax of rows: `gpu/softmax.hip`.

use crate::kernel::{Kernel, SpecError, require, source};
use kjit_engine::{Constants, Geometry, Options, Target};

/// Which norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NormKind {
    /// `x / sqrt(mean(x²) + eps) · weight`.
    Rms,
    /// `(x − mean) / sqrt(var + eps) · weight`, and a bias.
    Layer {
        /// With a bias.
        bias: bool,
    },
}

/// Norms rows of `cols`. Arguments: `x, weight, bias, residual, y` (pointers, null where there is none), `eps: f32`. `x`, `residual`, `y` are
/// `rows × cols` f32 (`y` may be either of them), `weight` and `bias` `cols` f32. One block a row. A weight narrower than a value norms
/// groups: a row is then a group.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NormSpec {
    /// Width of a row, up to 65536.
    pub cols: usize,
    /// Which norm.
    pub kind: NormKind,
    /// A residual is added.
    pub residual: bool,
}

/// Softmax of rows. Arguments: `x, y` (pointers, may be the same), `scale: f32` on `x`. One block a row.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SoftmaxSpec {
    /// Width of a row, up to 65536.
    pub cols: usize,
}

/// Threads for a row of `cols`: at most 64 elements each stay in registers.
fn block(kernel: &'static str, target: &Target, wave: u32, cols: usize) -> Result<u32, SpecError> {
    require(target.waves().contains(&wave), kernel, || format!("wave {wave} on {target}"))?;
    require((1..=65536).contains(&cols), kernel, || format!("rows of {cols}: 1 to 65536 are covered"))?;
    Ok((cols as u32)
        .div_ceil(4)
        .next_multiple_of(wave)
        .next_power_of_two()
        .clamp(wave, if cols > 16384 { 1024 } else { 512 }))
}

impl NormSpec {
    /// The specialised kernel.
    ///
    /// # Errors
    /// Rows that are too wide.
    pub fn kernel(&self, target: &Target) -> Result<Kernel, SpecError> {
        self.kernel_at(target, target.default_wave())
    }

    pub(crate) fn kernel_at(&self, target: &Target, wave: u32) -> Result<Kernel, SpecError> {
        let block = block("norm_rows", target, wave, self.cols)?;
        Ok(Kernel {
            source: source("norm_rows", "norm_rows.hip").entry("norm_rows"),
            constants: Constants::new()
                .set("KJ_BLOCK", block)
                .set("COLS", self.cols as i64)
                .set("KIND", i64::from(self.kind != NormKind::Rms))
                .set("BIAS", i64::from(self.kind == NormKind::Layer { bias: true }))
                .set("RESIDUAL", i64::from(self.residual)),
            options: Options::wave(wave),
            entry: "norm_rows",
            block,
            shared: 0,
        })
    }

    /// The launch.
    ///
    /// # Errors
    /// As [`NormSpec::kernel`].
    pub fn geometry(&self, target: &Target, rows: u32) -> Result<Geometry, SpecError> {
        Ok(self.kernel(target)?.launch(rows))
    }
}

impl SoftmaxSpec {
    /// The specialised kernel.
    ///
    /// # Errors
    /// Rows that are too wide.
    pub fn kernel(&self, target: &Target) -> Result<Kernel, SpecError> {
        self.kernel_at(target, target.default_wave())
    }

    pub(crate) fn kernel_at(&self, target: &Target, wave: u32) -> Result<Kernel, SpecError> {
        let block = block("softmax", target, wave, self.cols)?;
        Ok(Kernel {
            source: source("softmax", "softmax.hip").entry("softmax"),
            constants: Constants::new().set("KJ_BLOCK", block).set("COLS", self.cols as i64),
            options: Options::wave(wave),
            entry: "softmax",
            block,
            shared: 0,
        })
    }

    /// The launch.
    ///
    /// # Errors
    /// As [`SoftmaxSpec::kernel`].
    pub fn geometry(&self, target: &Target, rows: u32) -> Result<Geometry, SpecError> {
        Ok(self.kernel(target)?.launch(rows))
    }
}
