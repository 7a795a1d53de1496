//! Measures a device's memory bandwidth by copying: the limit for decoding.

use kjit_engine::{Device, DeviceBuffer, Error};

/// Bytes of a copy: larger than any cache, but small compared with the memory of any GPU.
const BYTES: usize = 1 << 30;

/// Bytes per second that a copy on the device reads and writes in total; the best of five copies. A
/// kernel that only reads is a few percent faster (H200: 4297 GB/s here, 4637 GB/s for reading).
///
/// # Errors
/// An allocation failed (two buffers of 1 GiB, or of an eighth of the free memory each); a device
/// fault.
pub fn copy_bandwidth(device: &Device) -> Result<f64, Error> {
    let (free, _) = device.memory()?;
    let bytes = BYTES.min(usize::try_from(free / 8).unwrap_or(BYTES)).max(1);
    let stream = device.stream()?;
    let (from, to): (DeviceBuffer<u8>, DeviceBuffer<u8>) =
        (device.buffer(bytes)?, device.buffer(bytes)?);
    stream.fill(&from, 0x5a)?;
    let mut best = 0.0f64;
    for _ in 0..5 {
        let (start, end) = (device.timed_event()?, device.timed_event()?);
        stream.record(&start)?;
        stream.copy(&from, &to)?;
        stream.record(&end)?;
        end.synchronize()?;
        let seconds = f64::from(end.milliseconds_since(&start)?) * 1e-3;
        if seconds > 0.0 {
            best = best.max(2.0 * bytes as f64 / seconds);
        }
    }
    Ok(best)
}
