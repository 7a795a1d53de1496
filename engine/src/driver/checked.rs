//! Kernels that are safe to launch: one promise for all their launches.

use super::module::Kernel;
use super::stream::Stream;
use crate::args::Arg;
use crate::error::{Error, Result};
use crate::geometry::Geometry;
use std::sync::Arc;

type Check = dyn Fn(&Geometry, &[Arg<'_>]) -> std::result::Result<(), String> + Send + Sync;

/// A kernel together with a check of what it is launched with. Whoever makes one promises that each
/// launch that passes the check is sound; then [`Stream::launch_checked`] needs no `unsafe`.
///
/// ```
/// # use kjit_engine::{Arg, CheckedKernel, Geometry, Kernel};
/// /// `twice(float* x, unsigned n)` doubles the first `n` of `x`.
/// fn twice(kernel: Kernel) -> CheckedKernel {
///     let check = |_: &Geometry, args: &[Arg<'_>]| match args {
///         [x, n] if n.number().is_some_and(|n| x.room() >= 4 * n) => Ok(()),
///         _ => Err("twice() takes a buffer and the number of its floats".to_owned()),
///     };
///     // SAFETY: each thread reads and writes x[i], for i below n alone, and the buffer has so many; nothing waits.
///     unsafe { CheckedKernel::new(kernel, check) }
/// }
/// ```
#[derive(Clone)]
pub struct CheckedKernel {
    kernel: Kernel,
    check: Arc<Check>,
}

impl CheckedKernel {
    /// A kernel with its check, which says in a sentence what it does not let through.
    ///
    /// # Safety
    /// Every launch with a geometry and arguments that `check` lets through keeps
    /// [`Stream::launch`]'s duty, whatever the buffers hold.
    pub unsafe fn new(
        kernel: Kernel,
        check: impl Fn(&Geometry, &[Arg<'_>]) -> std::result::Result<(), String> + Send + Sync + 'static,
    ) -> CheckedKernel {
        CheckedKernel { kernel, check: Arc::new(check) }
    }

    /// The kernel by itself.
    #[must_use]
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }
}

impl Stream {
    /// Puts a launch into the stream, if the kernel's check lets it through.
    ///
    /// # Errors
    /// [`Error::Launch`] with the check's sentence; else as [`Stream::launch`].
    pub fn launch_checked(
        &self,
        kernel: &CheckedKernel,
        shape: &Geometry,
        args: &[Arg<'_>],
    ) -> Result<()> {
        let name = || kernel.kernel.info().name.clone();
        (kernel.check)(shape, args).map_err(|why| Error::Launch { kernel: name(), why })?;
        // SAFETY: by the promise of whoever made the checked kernel.
        unsafe { self.launch(&kernel.kernel, shape, args) }
    }
}
