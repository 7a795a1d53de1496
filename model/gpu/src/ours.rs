//! The only launches of this crate: of the kernels that it has specs of.
#![allow(unsafe_code, reason = "what device code touches is known to those who wrote it")]

use kjit_engine::{Arg, Geometry, HostArg, Kernel, Result, Stream};

/// Puts a launch of one of our kernels into the stream.
///
/// # Errors
/// As of [`Stream::launch`].
pub(super) fn launch(
    stream: &Stream,
    kernel: &Kernel,
    shape: &Geometry,
    args: &[Arg<'_>],
) -> Result<()> {
    // SAFETY: kernel, geometry, arguments and the sizes of the buffers come of the same spec, whose
    // cases were run under checks of every access. A plan's buffers are as large as its specs say
    // for the most tokens that a program takes, positions and slots are below the sizes of what
    // they index, and the order of streams keeps others away. A bundle's are what `export` wrote of
    // such specs; whoever has it run vouches for its file.
    unsafe { stream.launch(kernel, shape, args) }
}

/// Runs one of our kernels on a case's values.
///
/// # Errors
/// As of [`Stream::call`].
pub(super) fn call(
    stream: &Stream,
    kernel: &Kernel,
    shape: &Geometry,
    args: &[HostArg<'_>],
) -> Result<Vec<Vec<u8>>> {
    // SAFETY: likewise.
    unsafe { stream.call(kernel, shape, args) }
}
