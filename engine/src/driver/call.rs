//! A kernel called with values of the host: the simplest way to run one, and how kernels are held
//! against their oracles.

use super::memory::DeviceBuffer;
use super::module::Kernel;
use super::stream::Stream;
use crate::args::Arg;
use crate::error::Result;
use crate::geometry::Geometry;

/// An argument of [`Stream::call`].
#[derive(Clone, Copy, Debug)]
pub enum HostArg<'a> {
    /// What a device buffer of just that size holds before the launch.
    Buffer(&'a [u8]),
    /// A number, a struct by value, the null pointer, or a buffer that is on the device already.
    Value(Arg<'a>),
}

impl Stream {
    /// Uploads every buffer into an allocation of its own (a kernel that leaves its bounds meets no
    /// neighbour there), launches, waits, and answers what each [`HostArg::Buffer`] holds
    /// afterwards, in the order of the arguments. For tests and set-up: it allocates and waits.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    ///
    /// # Errors
    /// As [`Stream::upload`], [`Stream::launch`] and [`Stream::read`].
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
        // SAFETY: the caller's promise.
        unsafe { self.launch(kernel, shape, &launched)? };
        buffers.iter().flatten().map(|buffer| self.read(buffer)).collect()
    }
}
