//! A vendor's matrix library with a single call, for comparison with kjit's kernels. It is optional
//! and used only on request.

use super::api::{Product, RawBlas};
use super::device::Device;
use super::memory::DeviceBuffer;
use super::stream::{MemoryUse, Stream};
use crate::error::{Error, Result};

/// The vendor's matrix library on a device (AMD: rocBLAS).
pub struct Blas {
    device: Device,
    raw: Box<dyn RawBlas>,
}

impl Device {
    /// Opens the vendor's matrix library.
    ///
    /// [`Error::NoLibrary`] if it is not installed, with the searched paths, or if the engine does
    /// not support one for this vendor; [`Error::Driver`] if it does not start.
    pub fn blas(&self) -> Result<Blas> {
        let none = || Error::NoLibrary {
            library: format!("a matrix library for {}", self.target().vendor().name()),
            why: "the engine supports only AMD's rocBLAS".to_owned(),
            tried: Vec::new(),
            package: "kjit's own kernels do not need it".to_owned(),
        };
        let raw = self.raw().blas().unwrap_or_else(|| Err(none()))?;
        Ok(Blas { device: self.clone(), raw })
    }
}

impl Blas {
    /// The library's file.
    #[must_use]
    pub fn library(&self) -> &str {
        self.raw.library()
    }

    /// Enqueues a product: `out` (n × m, f32) = `x` (n × k) · `w`ᵀ (m × k). `x` and `w` are f16,
    /// given as bits. All are row-major, and sums are f32. Returns immediately.
    ///
    /// # Errors
    /// [`Error::Buffer`] if a buffer's length does not match its shape, if one is on a different
    /// device, or during a capture (the library may allocate); [`Error::Driver`] if the library
    /// refuses.
    pub fn product(
        &self,
        stream: &Stream,
        [m, n, k]: [u32; 3],
        w: &DeviceBuffer<u16>,
        x: &DeviceBuffer<u16>,
        out: &DeviceBuffer<f32>,
    ) -> Result<()> {
        let shapes = [("w", w.len(), m, k), ("x", x.len(), n, k), ("out", out.len(), n, m)];
        for (name, len, rows, cols) in shapes {
            let size = usize::try_from(u64::from(rows) * u64::from(cols)).unwrap_or(usize::MAX);
            if len != size || size == 0 {
                return Err(Error::Buffer(format!(
                    "{name} has {len} values, but {rows} × {cols} are needed"
                )));
            }
        }
        stream.not_capturing("a product of the vendor's library")?;
        stream.here(&self.device, "the matrix library")?;
        for memory in [w.shared(), x.shared(), out.shared()] {
            stream.here(memory.device(), "a matrix")?;
        }
        let memory = [w.shared(), x.shared(), out.shared()];
        let used = MemoryUse::of(stream, memory.into_iter(), std::iter::empty())?;
        let product = Product { m, n, k, w: w.address(), x: x.address(), out: out.address() };
        // SAFETY: all buffers are on this device, alive, and have the sizes of their shapes; the
        // stream is not capturing.
        self.device.ok(unsafe { self.raw.product(product, stream.inner().raw()) })?;
        used.done()
    }
}
