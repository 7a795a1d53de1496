//! Copies between host and device, within a device, and between devices.
//!
//! kjit's streams do not synchronise with the driver's default stream, and a copy from pageable
//! memory may return before the device has the data (on an H200 a kernel read the old contents). So
//! every copy uses a stream, and copies from pageable host memory end with a wait.

use super::counters::add;
use super::device::Device;
use super::event::Event;
use super::memory::{DeviceBuffer, resolve};
use super::pinned::{HostMap, PinnedBuffer};
use super::stream::{MemoryUse, Stream};
use crate::error::{Error, Result};
use bytemuck::{Pod, Zeroable};
use std::ops::Range;

/// Events that order copies from a stream of one device to a stream of another.
#[derive(Debug, Clone)]
pub struct CopyEvents {
    /// Recorded when the source has been written.
    made: Event,
    /// Recorded when the source may be overwritten.
    copied: Event,
}

impl Stream {
    /// Creates a buffer with this data and waits. Use it during setup only, not for each token.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::Driver`].
    pub fn upload<T: Pod>(&self, data: &[T]) -> Result<DeviceBuffer<T>> {
        let buffer = self.device().buffer(data.len())?;
        self.write(&buffer, data)?;
        Ok(buffer)
    }

    /// Copies `data` to the buffer and waits.
    ///
    /// # Errors
    /// [`Error::Buffer`] if the sizes differ, or during a capture; [`Error::Driver`].
    pub fn write<T: Pod>(&self, to: &DeviceBuffer<T>, data: &[T]) -> Result<()> {
        self.same_len("write", to.len(), data.len())?;
        self.not_capturing("a copy from ordinary host memory")?;
        self.here(to.memory().device(), "the destination")?;
        let used = MemoryUse::of(self, std::iter::once(to.shared()), std::iter::empty())?;
        let bytes = to.bytes();
        // SAFETY: both ranges have `bytes` bytes; `data` is borrowed until the wait below, after
        // which the copy has ended.
        let copied = unsafe {
            self.device().raw().copy_in(
                to.address(),
                data.as_ptr().cast(),
                bytes,
                self.inner().raw(),
            )
        };
        self.count_in(bytes);
        let waited = self.synchronize();
        self.device().ok(copied)?;
        waited?;
        used.done()
    }

    /// Reads the contents of the buffer after all work in the stream, and waits.
    ///
    /// # Errors
    /// [`Error::Driver`], also for errors of earlier kernels; [`Error::Buffer`] during a capture.
    pub fn read<T: Pod>(&self, from: &DeviceBuffer<T>) -> Result<Vec<T>> {
        self.not_capturing("a copy to ordinary host memory")?;
        self.here(from.memory().device(), "the source")?;
        let used = MemoryUse::of(self, std::iter::once(from.shared()), std::iter::empty())?;
        let mut data = vec![T::zeroed(); from.len()];
        let bytes = from.bytes();
        // SAFETY: both ranges have `bytes` bytes; the wait below precedes any use or drop of
        // `data`.
        let copied = unsafe {
            self.device().raw().copy_out(
                data.as_mut_ptr().cast(),
                from.address(),
                bytes,
                self.inner().raw(),
            )
        };
        self.count_out(bytes);
        let waited = self.synchronize();
        self.device().ok(copied)?;
        waited?;
        used.done()?;
        Ok(data)
    }

    /// Copies from page-locked memory. Returns immediately.
    ///
    /// # Errors
    /// [`Error::Buffer`] if the sizes differ; [`Error::Driver`].
    pub fn copy_in<T: Pod>(&self, from: &PinnedBuffer<T>, to: &DeviceBuffer<T>) -> Result<()> {
        self.same_len("copy_in", to.len(), from.len())?;
        self.here(from.shared().device(), "the source")?;
        self.here(to.memory().device(), "the destination")?;
        let used =
            MemoryUse::of(self, std::iter::once(to.shared()), std::iter::once(from.shared()))?;
        let bytes = to.bytes();
        // SAFETY: both ranges have `bytes` bytes. The lock excludes the host side now, its event
        // does afterwards.
        let copied = unsafe {
            self.device().raw().copy_in(to.address(), from.host(), bytes, self.inner().raw())
        };
        self.device().ok(copied)?;
        self.count_in(bytes);
        used.done()
    }

    /// Copies a range of a registered mapping. Returns immediately. The copy can be captured: the
    /// graph keeps the mapping alive.
    ///
    /// # Errors
    /// [`Error::Buffer`] if the range is outside the mapping or its size differs from `to`;
    /// [`Error::Driver`].
    pub fn copy_in_mapped(
        &self,
        from: &HostMap,
        range: Range<usize>,
        to: &DeviceBuffer<u8>,
    ) -> Result<()> {
        let (start, end) = resolve(range, from.bytes())?;
        self.same_len("copy_in_mapped", to.len(), end - start)?;
        self.here(to.memory().device(), "the destination")?;
        let used = MemoryUse::of(self, std::iter::once(to.shared()), std::iter::empty())?;
        let recorded = used.keep(|| from.keep());
        let mut pending = from.pending();
        // SAFETY: the range is inside the registered bytes, which live until the event recorded
        // below, or as long as the graph that keeps them.
        let copied = unsafe {
            self.device().raw().copy_in(
                to.address(),
                from.host(start),
                end - start,
                self.inner().raw(),
            )
        };
        self.device().ok(copied)?;
        if !recorded {
            pending.note(self.device(), self.inner().raw(), self.inner().id())?;
        }
        self.count_in(end - start);
        used.done()
    }

    /// Copies to page-locked memory. Returns immediately; [`PinnedBuffer::read`] waits.
    ///
    /// # Errors
    /// [`Error::Buffer`] if the sizes differ; [`Error::Driver`].
    pub fn copy_out<T: Pod>(&self, from: &DeviceBuffer<T>, to: &PinnedBuffer<T>) -> Result<()> {
        self.same_len("copy_out", to.len(), from.len())?;
        self.here(from.memory().device(), "the source")?;
        self.here(to.shared().device(), "the destination")?;
        let used =
            MemoryUse::of(self, std::iter::once(from.shared()), std::iter::once(to.shared()))?;
        let bytes = from.bytes();
        // SAFETY: both ranges have `bytes` bytes. The lock excludes the host side now, its event
        // does afterwards.
        let copied = unsafe {
            self.device().raw().copy_out(to.host(), from.address(), bytes, self.inner().raw())
        };
        self.device().ok(copied)?;
        self.count_out(bytes);
        used.done()
    }

    /// Copies within the device. Returns immediately. The ranges must not overlap.
    ///
    /// # Errors
    /// [`Error::Buffer`] if the sizes differ or the ranges overlap; [`Error::Driver`].
    pub fn copy<T: Pod>(&self, from: &DeviceBuffer<T>, to: &DeviceBuffer<T>) -> Result<()> {
        self.same_len("copy", to.len(), from.len())?;
        let (a, b, n) = (from.address(), to.address(), from.bytes() as u64);
        if a < b.saturating_add(n) && b < a.saturating_add(n) && n > 0 {
            return Err(Error::Buffer("the two ranges of a copy overlap".to_owned()));
        }
        self.here(from.memory().device(), "the source")?;
        self.here(to.memory().device(), "the destination")?;
        let used =
            MemoryUse::of(self, [from.shared(), to.shared()].into_iter(), std::iter::empty())?;
        // SAFETY: both ranges have `n` bytes and do not overlap.
        self.device().ok(unsafe {
            self.device().raw().copy_within(b, a, from.bytes(), self.inner().raw())
        })?;
        add(&self.device().inner.counters.copies_within, 1);
        used.done()
    }

    /// Copies from another device of the same vendor. The copy is direct if
    /// [`Device::reach`](crate::Device::reach) returned true, otherwise the vendor's runtime
    /// chooses the way. Returns when the copy is done. The caller must wait for writers of the
    /// source, as between any two streams.
    ///
    /// # Errors
    /// [`Error::Buffer`] if the sizes differ, if the source is on this device or on a device of a
    /// different vendor, or during a capture; [`Error::Driver`].
    pub fn copy_from<T: Pod>(&self, from: &DeviceBuffer<T>, to: &DeviceBuffer<T>) -> Result<()> {
        // The owner of the other device's memory may free it by dropping it. It lives until the
        // wait, after which the copy is done.
        self.put_copy_from(from, to)?;
        self.synchronize()
    }

    /// Like [`Stream::copy_from`], ordered between two streams: after all current work of the
    /// source's stream, and before its later work. Returns immediately.
    ///
    /// # Errors
    /// See [`Stream::copy_from`]; [`Error::Buffer`] if the source or the events belong to other
    /// devices.
    pub fn copy_between<T: Pod>(
        &self,
        other: &Stream,
        from: &DeviceBuffer<T>,
        to: &DeviceBuffer<T>,
        crossing: &CopyEvents,
    ) -> Result<()> {
        self.is_peer(other.device())?;
        other.here(from.memory().device(), "the source")?;
        other.not_capturing("a copy between devices")?;
        other.record(&crossing.made)?;
        self.follow(&crossing.made)?;
        self.put_copy_from(from, to)?;
        self.record(&crossing.copied)?;
        // Freeing memory waits for the device, and the stream of that device waits for the copy.
        other.follow(&crossing.copied)
    }

    /// Creates the events of [`Stream::copy_between`], for copies from `other` to this stream.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn copy_events(&self, other: &Stream) -> Result<CopyEvents> {
        Ok(CopyEvents { made: other.device().event()?, copied: self.device().event()? })
    }

    fn is_peer(&self, other: &Device) -> Result<()> {
        if other.same(self.device()) || other.target().vendor() != self.device().target().vendor() {
            let (here, there) = (self.device().label(), other.label());
            return Err(Error::Buffer(format!(
                "cannot copy from {there} to {here}: a peer copy needs two different devices of one vendor"
            )));
        }
        Ok(())
    }

    /// Makes later work of this stream wait for an event of another device of the same vendor.
    fn follow(&self, event: &Event) -> Result<()> {
        // SAFETY: stream and event are alive; both vendors allow waiting for another device's
        // event.
        self.device()
            .ok(unsafe { self.device().raw().stream_wait_event(self.inner().raw(), event.raw()) })
    }

    fn put_copy_from<T: Pod>(&self, from: &DeviceBuffer<T>, to: &DeviceBuffer<T>) -> Result<()> {
        self.same_len("copy", to.len(), from.len())?;
        self.not_capturing("a copy between devices")?;
        self.here(to.memory().device(), "the destination")?;
        let other = from.memory().device();
        self.is_peer(other)?;
        let used =
            MemoryUse::of(self, [from.shared(), to.shared()].into_iter(), std::iter::empty())?;
        let (device, number) = (self.device(), other.info().ordinal);
        // SAFETY: both ranges have that many bytes on the named devices, and live until the wait of
        // the caller or of the other stream has ended.
        let copied = unsafe {
            device.raw().copy_peer(
                to.address(),
                from.address(),
                number,
                from.bytes(),
                self.inner().raw(),
            )
        };
        device.ok(copied)?;
        add(&device.inner.counters.copies_within, 1);
        used.done()
    }

    /// Sets every byte of the buffer. Returns immediately.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn fill<T: Zeroable>(&self, buffer: &DeviceBuffer<T>, byte: u8) -> Result<()> {
        if buffer.is_empty() {
            return Ok(());
        }
        self.here(buffer.memory().device(), "the buffer")?;
        let used = MemoryUse::of(self, std::iter::once(buffer.shared()), std::iter::empty())?;
        let (to, bytes) = (buffer.address(), buffer.bytes());
        // SAFETY: the buffer is alive and has that many bytes.
        let filled = unsafe { self.device().raw().fill(to, byte, bytes, self.inner().raw()) };
        self.device().ok(filled)?;
        add(&self.device().inner.counters.copies_within, 1);
        used.done()
    }

    fn same_len(&self, call: &str, to: usize, from: usize) -> Result<()> {
        if to == from {
            Ok(())
        } else {
            Err(Error::Buffer(format!(
                "{call}: the source has {from} values, the destination {to}"
            )))
        }
    }

    fn count_in(&self, bytes: usize) {
        add(&self.device().inner.counters.copies_in, 1);
        add(&self.device().inner.counters.bytes_in, bytes as u64);
    }

    fn count_out(&self, bytes: usize) {
        add(&self.device().inner.counters.copies_out, 1);
        add(&self.device().inner.counters.bytes_out, bytes as u64);
    }
}
