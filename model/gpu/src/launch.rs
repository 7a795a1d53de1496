//! The crate's only kernel launches: all of kernels from its own specs.
#![allow(unsafe_code, reason = "our own kernels, whose specs define what they access")]

use kjit_engine::{Arg, Geometry, HostArg, Kernel, Result, Stream};

/// Launches one of our kernels in the stream.
///
/// # Errors
/// Those of [`Stream::launch`].
pub(super) fn launch(
    stream: &Stream,
    kernel: &Kernel,
    shape: &Geometry,
    args: &[Arg<'_>],
) -> Result<()> {
    // SAFETY: kernel, geometry, arguments and buffer sizes come from one spec, whose cases ran with
    // every access checked. A plan sizes its buffers for the most tokens of a program, keeps
    // positions and slots below the sizes that they index, and orders streams so that no other work
    // touches the buffers. A bundle's launches were written by `export` from such specs; its user
    // vouches for the file.
    unsafe { stream.launch(kernel, shape, args) }
}

/// Runs one of our kernels on a case's values.
///
/// # Errors
/// Those of [`Stream::call`].
pub(super) fn call(
    stream: &Stream,
    kernel: &Kernel,
    shape: &Geometry,
    args: &[HostArg<'_>],
) -> Result<Vec<Vec<u8>>> {
    // SAFETY: kernel, geometry and arguments are one case of a spec, whose kernels ran with every
    // access checked. The case sizes each buffer for its geometry; `Stream::call` gives each its
    // own allocation, which nothing else uses.
    unsafe { stream.call(kernel, shape, args) }
}
