//! Calls a kernel with host values: the simplest way to run one, used by kernel tests.

use super::memory::DeviceBuffer;
use super::module::Kernel;
use super::stream::Stream;
use crate::args::Arg;
use crate::error::Result;
use crate::geometry::Geometry;

/// An argument of [`Stream::call`].
#[derive(Clone, Copy, Debug)]
pub enum HostArg<'a> {
    /// The initial contents of a device buffer of this size.
    Buffer(&'a [u8]),
    /// A number, a struct by value, the null pointer, or an existing device buffer.
    Value(Arg<'a>),
}

impl Stream {
    /// Uploads every buffer to a separate allocation (so that an out-of-bounds access cannot hit
    /// another buffer), launches, waits, and returns the contents of each [`HostArg::Buffer`]
    /// afterwards, in the order of the arguments. It allocates and waits, so use it for tests and
    /// setup.
    ///
    /// # Safety
    /// The requirements of [`Stream::launch`].
    ///
    /// # Errors
    /// See [`Stream::upload`], [`Stream::launch`] and [`Stream::read`].
    pub unsafe fn call(
        &self,
        kernel: &Kernel,
        shape: &Geometry,
        args: &[HostArg<'_>],
    ) -> Result<Vec<Vec<u8>>> {
        let mut buffers: Vec<Option<DeviceBuffer<u8>>> = Vec::with_capacity(args.len());
        for arg in args {
            buffers.push(match arg {
                HostArg::Buffer(before) => Some(self.upload(before)?),
                HostArg::Value(_) => None,
            });
        }
        let launched: Vec<Arg<'_>> = args
            .iter()
            .zip(&buffers)
            .map(|(arg, buffer)| match arg {
                HostArg::Buffer(_) => Arg::from(buffer.as_ref()),
                HostArg::Value(value) => *value,
            })
            .collect();
        // SAFETY: the caller guarantees the requirements of [`Stream::launch`].
        unsafe { self.launch(kernel, shape, &launched)? };
        buffers.iter().flatten().map(|buffer| self.read(buffer)).collect()
    }
}
