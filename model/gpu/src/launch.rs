//! The only kernel launches of the crate. All launch kernels of kjit's own specs.
#![allow(unsafe_code, reason = "our own kernels, whose specs define what they access")]

use kjit_engine::{Arg, Geometry, HostArg, Kernel, Result, Stream};

/// Launches a kernel of kjit in the stream.
///
/// # Errors
/// See [`Stream::launch`].
pub(super) fn launch(
    stream: &Stream,
    kernel: &Kernel,
    shape: &Geometry,
    args: &[Arg<'_>],
) -> Result<()> {
    // SAFETY: kernel, geometry, arguments and buffer sizes come from one spec, whose cases ran with
    // every access checked. A plan sizes its buffers for the maximum tokens of a program, keeps
    // positions and slots below the sizes that they index, and orders streams so that no other work
    // touches the buffers. `export` wrote the launches of a bundle from such specs; its user is
    // responsible for the file.
    unsafe { stream.launch(kernel, shape, args) }
}

/// Runs a kernel of kjit on the values of a case.
///
/// # Errors
/// See [`Stream::call`].
pub(super) fn call(
    stream: &Stream,
    kernel: &Kernel,
    shape: &Geometry,
    args: &[HostArg<'_>],
) -> Result<Vec<Vec<u8>>> {
    // SAFETY: kernel, geometry and arguments are one case of a spec, whose kernels ran with every
    // access checked. The case sizes each buffer for its geometry; `Stream::call` allocates each
    // buffer separately, and no other work uses it.
    unsafe { stream.call(kernel, shape, args) }
}
