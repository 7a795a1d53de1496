//! The content of arguments on a device.

use kjit_engine::{DeviceBuffer, Result, Stream};
use kjit_kernel_cases::{CaseArg, Content};

/// The content of a buffer argument.
pub(super) fn content(arg: &CaseArg) -> Option<&Content> {
    if let CaseArg::Buffer { before, .. } = arg { Some(before) } else { None }
}

/// `bytes` rounded up to the alignment.
pub(super) const fn aligned(bytes: usize) -> usize {
    bytes.saturating_add(ALIGNED - 1) / ALIGNED * ALIGNED
}

/// Writes a buffer's content.
pub(super) fn put(stream: &Stream, buffer: &DeviceBuffer<u8>, content: &Content) -> Result<()> {
    match content.uniform() {
        Some(byte) => stream.fill(buffer, byte),
        None => {
            let mut there = 0;
            for piece in content.pieces() {
                stream.write(&buffer.slice(there..there + piece.len())?, piece)?;
                there += piece.len();
            }
            repeat(stream, buffer, there)
        }
    }
}

/// Repeats the first `part` bytes of a buffer to its end.
pub(super) fn repeat(stream: &Stream, buffer: &DeviceBuffer<u8>, part: usize) -> Result<()> {
    let mut there = part;
    while there > 0 && there < buffer.len() {
        // Doubles the filled range each time.
        let more = there.min(buffer.len() - there);
        stream.copy(&buffer.slice(0..more)?, &buffer.slice(there..there + more)?)?;
        there += more;
    }
    Ok(())
}

/// Alignment of buffers in given memory, as in drivers' allocations. It is enough for any load.
pub(super) const ALIGNED: usize = 256;
