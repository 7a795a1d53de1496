//! The GPU backend: stream, memory and kernels. Kernels are rendered from programs, compiled at
//! their first use and cached.

mod attention;
mod elementwise;
mod fold;
mod group;
mod index_errors;
mod launch;
mod order;
mod pools;
mod product;
mod render;
mod rows;
mod turn;

pub(crate) use order::Scatter;
pub use order::order_jobs;
pub(crate) use render::{BLOCK, stored};

use crate::device::Info;
use crate::error::Result;
use crate::hash::BuildFast;
use crate::memory::Store;
use kjit_engine::{Device, DeviceBuffer, Engine, Kernel, Pool, Stream};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// An opened GPU.
pub struct Gpu {
    device: Device,
    stream: Stream,
    pool: Pool,
    engine: Engine,
    /// Loaded kernels by their text.
    kernels: Mutex<HashMap<String, Kernel>>,
    /// Counters of folds that are divided into chunks: zeros between launches.
    counters: OnceLock<DeviceBuffer<u8>>,
    pinned: pools::PinnedPool,
    /// Indices out of range that kernels found.
    wrong: OnceLock<index_errors::IndexErrors>,
    /// Prepared launches by the structure of their groups.
    recipes: Mutex<HashMap<Box<[u64]>, group::PreparedLaunch, BuildFast>>,
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
            engine: engine.clone(),
            kernels: Mutex::default(),
            counters: OnceLock::new(),
            recipes: Mutex::default(),
            pinned: pools::PinnedPool::default(),
            wrong: OnceLock::new(),
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

    pub(crate) fn synchronize(&self) -> Result<()> {
        self.stream.synchronize()?;
        self.check_indices()
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
        Ok(Store::Gpu(Arc::clone(self), self.memory(bytes)?))
    }
}
