//! Descriptions of matrices for the copy engine of NVIDIA's sm_90 and later cards.

use super::device::Device;
use super::memory::DeviceBuffer;
use crate::error::{Error, Result};

/// A description of matrices in device memory, as encoded by the driver. A kernel takes it as an
/// argument of 128 bytes (`const __grid_constant__`, aligned to 64) and copies boxes of it by
/// `cp.async.bulk.tensor`. Elements outside the matrix are read as zeros.
#[derive(Clone, Copy, Debug)]
pub struct TensorMap(pub(crate) [u64; 16]);

impl TensorMap {
    /// The bytes for [`Arg::Bytes`](crate::Arg::Bytes). The launch must also get the buffer itself,
    /// which keeps the memory alive.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

/// Matrices of 2-byte elements: `count` of them, each of `rows` rows of `width` adjacent elements.
/// A box is `tile` rows of 64 columns (128 bytes, in the order of 128-byte swizzle).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Matrices {
    /// Elements of a row.
    pub width: u64,
    /// Rows of a matrix.
    pub rows: u64,
    /// Number of matrices.
    pub count: u64,
    /// Bytes from a row to the next. Must be a multiple of 16 below 2^40.
    pub row_bytes: u64,
    /// Bytes from a matrix to the next. Must be a multiple of 16 below 2^40.
    pub matrix_bytes: u64,
    /// Number of rows of a box: 1 to 256.
    pub tile: u32,
}

impl Device {
    /// Describes matrices at the start of a buffer. `None` if the device's driver has no such
    /// descriptions.
    ///
    /// # Errors
    /// [`Error::Buffer`] for matrices that the copy engine cannot read, or that end beyond the
    /// buffer; [`Error::Driver`].
    pub fn tensor_map(
        &self,
        buffer: &DeviceBuffer<u8>,
        of: &Matrices,
    ) -> Result<Option<TensorMap>> {
        let aligned = buffer.address().is_multiple_of(16)
            && [of.row_bytes, of.matrix_bytes].iter().all(|b| b % 16 == 0 && *b < 1 << 40);
        let sized = [of.width, of.rows, of.count].iter().all(|n| (1..=1 << 32).contains(n));
        if !aligned || !sized || !(1..=256).contains(&of.tile) {
            return Err(Error::Buffer(format!("the copy engine cannot read {of:?}")));
        }
        let last = u128::from(of.count - 1) * u128::from(of.matrix_bytes)
            + u128::from(of.rows - 1) * u128::from(of.row_bytes)
            + u128::from(of.width) * 2;
        if last > buffer.len() as u128 {
            return Err(Error::Buffer(format!("{} bytes hold less than {of:?}", buffer.len())));
        }
        let Some(made) = self.raw().tensor_map(buffer.address(), of) else { return Ok(None) };
        Ok(Some(TensorMap(self.ok(made)?)))
    }
}
