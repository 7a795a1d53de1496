//! Indices out of range that kernels find. A kernel writes such an index to a slot of page-locked
//! memory and continues with the nearest element; the next synchronisation reports the error.

use super::Gpu;
use super::render::Rendered;
use crate::error::{Error, Result};
use kjit_engine::{DeviceBuffer, PinnedBuffer};
use std::sync::{Mutex, PoisonError};

/// Number of slots. A slot belongs to the gathers of one operation along one axis of one size.
const SLOTS: usize = 256;

/// The slots of a device. 0 means no error: an index out of range is never 0.
pub(super) struct IndexErrors {
    host: PinnedBuffer<u8>,
    device: DeviceBuffer<u8>,
    /// Operation, axis and size of the axis, for each slot in use.
    slots: Mutex<Vec<(&'static str, usize, usize)>>,
}

impl Gpu {
    fn slots(&self) -> Result<&IndexErrors> {
        if let Some(wrong) = self.wrong.get() {
            return Ok(wrong);
        }
        let host = self.device.pinned::<u8>(8 * SLOTS)?;
        let device = host.on_device();
        Ok(self.wrong.get_or_init(|| IndexErrors { host, device, slots: Mutex::default() }))
    }

    /// The memory of all slots.
    pub(super) fn error_slots(&self) -> Result<&DeviceBuffer<u8>> {
        self.slots().map(|w| &w.device)
    }

    /// The slot for an operation's gathers along an axis, and the memory of all slots.
    pub(super) fn error_slot(
        &self,
        op: &'static str,
        axis: usize,
        size: usize,
    ) -> Result<(i64, &DeviceBuffer<u8>)> {
        let wrong = self.slots()?;
        let lock = || wrong.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let own = (op, axis, size);
        if let Some(at) = lock().iter().position(|s| *s == own) {
            return Ok((at as i64, &wrong.device));
        }
        self.room(1)?;
        let mut slots = lock();
        slots.push(own);
        Ok((slots.len() as i64 - 1, &wrong.device))
    }

    /// Reserves this number of slots. Prepared launches have their own slots.
    fn room(&self, more: usize) -> Result<()> {
        let wrong = self.slots()?;
        let lock = || wrong.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if lock().len() + more > SLOTS {
            self.synchronize()?;
            lock().clear();
            self.recipes.lock().unwrap_or_else(PoisonError::into_inner).clear();
            self.products.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
        Ok(())
    }

    /// Sets the slots of a kernel's gathers; returns their memory if the kernel has any.
    pub(super) fn lookups(&self, rendered: &mut Rendered) -> Result<Option<&DeviceBuffer<u8>>> {
        let mut memory = None;
        if !rendered.lookups.is_empty() {
            self.room(rendered.lookups.len())?;
        }
        for (number, axis, size) in &rendered.lookups {
            let (slot, wrong) = self.error_slot("take", *axis, *size)?;
            if let Some(n) = rendered.numbers.get_mut(*number) {
                *n = slot;
            }
            memory = Some(wrong);
        }
        Ok(memory)
    }

    /// Reports, once, an index out of range that a finished kernel has found.
    ///
    /// # Errors
    /// [`Error::Index`].
    pub(crate) fn check_indices(&self) -> Result<()> {
        let Some(wrong) = self.wrong.get() else { return Ok(()) };
        let index = |slot: &[u8]| i64::from_ne_bytes(slot.try_into().unwrap_or_default());
        let found = wrong.host.read(|bytes| {
            let mut slots = bytes.chunks_exact(8).map(index).enumerate();
            slots.find(|(_, index)| *index != 0)
        })?;
        let Some((slot, index)) = found else { return Ok(()) };
        wrong.host.write(|bytes| bytes.fill(0))?;
        let slots = wrong.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let (op, axis, size) = slots.get(slot).copied().unwrap_or(("take", 0, 0));
        Err(Error::Index { op, index, axis, size })
    }
}
