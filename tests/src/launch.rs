//! Safe launches of the tests' own kernels.

use kjit_engine::{Arg, Geometry, HostArg, Kernel, Result, Stream};

/// The launches of [`Stream`], without `unsafe`.
pub trait TestLaunch {
    /// [`Stream::launch`].
    fn put(&self, kernel: &Kernel, shape: &Geometry, args: &[Arg<'_>]) -> Result<()>;
    /// [`Stream::call`].
    fn try_out(
        &self,
        kernel: &Kernel,
        shape: &Geometry,
        args: &[HostArg<'_>],
    ) -> Result<Vec<Vec<u8>>>;
}

impl TestLaunch for Stream {
    fn put(&self, kernel: &Kernel, shape: &Geometry, args: &[Arg<'_>]) -> Result<()> {
        // SAFETY: a simulated device checks every access and reports a wrong one as a fault.
        unsafe { self.launch(kernel, shape, args) }
    }

    fn try_out(
        &self,
        kernel: &Kernel,
        shape: &Geometry,
        args: &[HostArg<'_>],
    ) -> Result<Vec<Vec<u8>>> {
        // SAFETY: a simulated device checks every access and reports a wrong one as a fault.
        unsafe { self.call(kernel, shape, args) }
    }
}
