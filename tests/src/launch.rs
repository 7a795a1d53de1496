//! Launches of tests' own kernels.

use kjit_engine::{Arg, Geometry, HostArg, Kernel, Result, Stream};

/// As [`Stream`] has them, for tests.
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
        // SAFETY: a simulated device checks every access itself; what goes wrong there is a fault
        // that it tells of.
        unsafe { self.launch(kernel, shape, args) }
    }

    fn try_out(
        &self,
        kernel: &Kernel,
        shape: &Geometry,
        args: &[HostArg<'_>],
    ) -> Result<Vec<Vec<u8>>> {
        // SAFETY: likewise.
        unsafe { self.call(kernel, shape, args) }
    }
}
