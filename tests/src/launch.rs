//! Safe launches of kernels that belong to tests.

use kjit_engine::{Arg, Geometry, HostArg, Kernel, Result, Stream};

/// The launch functions of [`Stream`], without `unsafe`.
pub trait TestLaunch {
    /// Like [`Stream::launch`].
    fn put(&self, kernel: &Kernel, shape: &Geometry, args: &[Arg<'_>]) -> Result<()>;
    /// Like [`Stream::call`].
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
