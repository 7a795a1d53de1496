//! Memory of values: of the host or of a GPU, with strides.

use crate::device::Device;
use crate::error::{Error, Result};
use crate::gpu::Gpu;
use crate::shape::strides;
use kjit_engine::DeviceBuffer;
use std::any::Any;
use std::sync::{Arc, OnceLock};

/// Host memory: allocated here, or borrowed.
pub(crate) struct HostMemory {
    from: MemorySource,
}

enum MemorySource {
    /// Words, so that elements of every dtype are aligned; and the number of used bytes.
    Own(Vec<u64>, usize),
    /// Address, number of bytes, and the owner that keeps them alive.
    Lent(usize, usize, #[allow(dead_code, reason = "owned until the last reader is dropped")] Keep),
}

/// Keeps borrowed memory alive; dropped after the last use.
pub type Keep = Box<dyn Any + Send + Sync>;

impl HostMemory {
    /// Zeroed memory. A request above the machine's memory is refused without touching any.
    pub(crate) fn words(bytes: usize) -> Result<Vec<u64>> {
        static TOTAL: OnceLock<u64> = OnceLock::new();
        let total = *TOTAL.get_or_init(|| match crate::device::Device::Cpu.info().total_memory {
            0 => u64::MAX,
            known => known,
        });
        let (count, none) = (bytes.div_ceil(8), Error::Memory { bytes });
        if bytes as u64 > total {
            return Err(none);
        }
        // Checks that the system grants a large request. The second request gives zeroed, untouched
        // pages.
        if bytes > 1 << 20 {
            let mut probe: Vec<u64> = Vec::new();
            probe.try_reserve_exact(count).map_err(|_| none)?;
        }
        Ok(vec![0; count])
    }

    pub(crate) fn own(words: Vec<u64>, bytes: usize) -> Arc<HostMemory> {
        Arc::new(HostMemory { from: MemorySource::Own(words, bytes) })
    }

    /// # Safety
    /// `address` has `bytes` readable bytes until `keep` is dropped, nothing writes to them during
    /// that time, and both are aligned to the elements that will be read.
    #[allow(unsafe_code, reason = "memory of another library")]
    pub(crate) unsafe fn borrowed(address: usize, bytes: usize, keep: Keep) -> Arc<HostMemory> {
        Arc::new(HostMemory { from: MemorySource::Lent(address, bytes, keep) })
    }

    #[allow(unsafe_code, reason = "memory of another library")]
    pub(crate) fn bytes(&self) -> &[u8] {
        match &self.from {
            MemorySource::Own(words, bytes) => {
                bytemuck::cast_slice::<u64, u8>(words).get(..*bytes).unwrap_or_default()
            }
            MemorySource::Lent(_, 0, _) => &[],
            // SAFETY: the caller of `borrowed` guarantees the memory until `keep` is dropped.
            MemorySource::Lent(at, bytes, _) => unsafe {
                std::slice::from_raw_parts(*at as *const u8, *bytes)
            },
        }
    }
}

/// Memory of a device.
#[derive(Clone)]
pub(crate) enum Store {
    Host(Arc<HostMemory>),
    Gpu(Arc<Gpu>, DeviceBuffer<u8>),
}

/// Elements of a node: memory, position of the element at index 0, and a stride for each axis.
#[derive(Clone)]
pub(crate) struct Buffer {
    pub store: Store,
    pub offset: i64,
    pub strides: Vec<i64>,
}

impl Buffer {
    /// Row-major elements from the start of the memory on.
    pub(crate) fn packed(store: Store, shape: &[usize]) -> Buffer {
        Buffer { store, offset: 0, strides: strides(shape) }
    }

    pub(crate) fn device(&self) -> Device {
        match &self.store {
            Store::Host(_) => Device::Cpu,
            Store::Gpu(gpu, _) => Device::Gpu(Arc::clone(gpu)),
        }
    }

    /// Whether the elements are in row-major order without gaps.
    pub(crate) fn is_packed(&self, shape: &[usize]) -> bool {
        let mut step = 1i64;
        for (&n, &s) in shape.iter().zip(&self.strides).rev() {
            if n == 0 {
                return true;
            }
            if n > 1 && s != step {
                return false;
            }
            step *= n as i64;
        }
        true
    }

    /// The bytes in host memory.
    pub(crate) fn host(&self) -> Result<&[u8]> {
        match &self.store {
            Store::Host(memory) => Ok(memory.bytes()),
            Store::Gpu(..) => Err(Error::Inside("GPU memory was read as host memory")),
        }
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer(offset {}, strides {:?})", self.offset, self.strides)
    }
}
