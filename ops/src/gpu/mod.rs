//! The GPU backend: stream, memory and kernels. Kernels are rendered from programs, compiled at
//! their first use and cached.

mod attention;
mod launch;
mod product;
mod render;
mod rows;

pub(crate) use render::{BLOCK, stored};

use crate::device::Info;
use crate::error::Result;
use crate::memory::Store;
use kjit_engine::{Device, Engine, Kernel, Pool, Stream};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// An opened GPU.
pub struct Gpu {
    device: Device,
    stream: Stream,
    pool: Pool,
    pinned: crate::pool::Pinned,
    engine: Engine,
    /// Loaded kernels by their text.
    kernels: Mutex<HashMap<String, Kernel>>,
    launches: AtomicU64,
}

impl Gpu {
    pub(crate) fn open(engine: &Engine, name: &str) -> Result<Gpu> {
        let device = engine.device(name)?;
        let stream = device.stream()?;
        let pool = stream.pool();
        Ok(Gpu {
            device,
            stream,
            pool,
            pinned: crate::pool::Pinned::default(),
            engine: engine.clone(),
            kernels: Mutex::default(),
            launches: AtomicU64::new(0),
        })
    }

    pub(crate) fn label(&self) -> &str {
        self.device.label()
    }

    pub(crate) fn launches(&self) -> u64 {
        self.launches.load(Ordering::Relaxed)
    }

    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    pub(crate) fn pinned(&self) -> &crate::pool::Pinned {
        &self.pinned
    }

    pub(crate) fn synchronize(&self) -> Result<()> {
        Ok(self.stream.synchronize()?)
    }

    pub(crate) fn info(&self) -> Info {
        let info = self.device.info();
        Info {
            device: info.label(),
            name: info.name.clone(),
            architecture: info.arch_id.clone(),
            total_memory: info.memory_total,
            compute_units: info.units,
        }
    }

    /// Allocates from the pool.
    pub(crate) fn store(self: &Arc<Self>, bytes: usize) -> Result<Store> {
        let memory = self.pool.buffer::<u8>(bytes.max(1))?;
        Ok(Store::Gpu(Arc::clone(self), memory))
    }
}

impl Gpu {
    /// Copies host bytes to the GPU.
    pub(crate) fn write(self: &Arc<Self>, bytes: &[u8]) -> Result<Store> {
        let memory = self.pool.buffer::<u8>(bytes.len().max(1))?;
        if !bytes.is_empty() {
            self.send(&memory, bytes)?;
        }
        Ok(Store::Gpu(Arc::clone(self), memory))
    }

    /// Reads bytes from GPU memory after all work in the stream.
    pub(crate) fn read(
        &self,
        memory: &kjit_engine::DeviceBuffer<u8>,
        from: usize,
        len: usize,
    ) -> Result<Vec<u8>> {
        if len == 0 {
            return Ok(Vec::new());
        }
        self.receive(&memory.slice(from..from + len)?)
    }
}
