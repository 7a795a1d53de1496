//! Kernels that are safe to launch: one `unsafe` statement covers all their launches.

use super::module::Kernel;
use super::stream::Stream;
use crate::args::Arg;
use crate::error::{Error, Result};
use crate::geometry::Geometry;
use std::sync::Arc;

type Check = dyn Fn(&Geometry, &[Arg<'_>]) -> std::result::Result<(), String> + Send + Sync;

/// A kernel with a check of its launches. The creator guarantees that every launch that passes the
/// check is sound, so [`Stream::launch_checked`] is safe.
///
/// ```
/// # use kjit_engine::{Arg, CheckedKernel, Geometry, Kernel};
/// /// `twice(float* x, unsigned n)` doubles the first `n` of `x`.
/// fn twice(kernel: Kernel) -> CheckedKernel {
///     let check = |_: &Geometry, args: &[Arg<'_>]| match args {
///         [x, n] if n.number().is_some_and(|n| x.room() >= 4 * n) => Ok(()),
///         _ => Err("twice() takes a buffer and the number of its floats".to_owned()),
///     };
///     // SAFETY: each thread accesses only x[i] with i < n, the buffer has at least n floats, and
///     // no thread waits.
///     unsafe { CheckedKernel::new(kernel, check) }
/// }
/// ```
#[derive(Clone)]
pub struct CheckedKernel {
    kernel: Kernel,
    check: Arc<Check>,
}

impl CheckedKernel {
    /// Creates a checked kernel. The check returns one sentence for a launch that it refuses.
    ///
    /// # Safety
    /// Every launch whose geometry and arguments pass `check` satisfies the requirements of
    /// [`Stream::launch`], for any contents of the buffers.
    pub unsafe fn new(
        kernel: Kernel,
        check: impl Fn(&Geometry, &[Arg<'_>]) -> std::result::Result<(), String> + Send + Sync + 'static,
    ) -> CheckedKernel {
        CheckedKernel { kernel, check: Arc::new(check) }
    }

    /// The kernel without its check.
    #[must_use]
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }
}

impl Stream {
    /// Enqueues a launch if the kernel's check accepts it.
    ///
    /// # Errors
    /// [`Error::Launch`] with the check's sentence; the errors of [`Stream::launch`].
    pub fn launch_checked(
        &self,
        kernel: &CheckedKernel,
        shape: &Geometry,
        args: &[Arg<'_>],
    ) -> Result<()> {
        let name = || kernel.kernel.info().name.clone();
        (kernel.check)(shape, args).map_err(|why| Error::Launch { kernel: name(), why })?;
        // SAFETY: the creator of the checked kernel guaranteed that launches that pass its check
        // are sound.
        unsafe { self.launch(&kernel.kernel, shape, args) }
    }
}
