//! The GPU backend: stream, memory and kernels. Kernels are rendered from programs, compiled at
//! their first use and cached.

mod attention;
mod elementwise;
mod fold;
mod group;
mod index_errors;
mod lane;
mod launch;
mod order;
mod pools;
mod product;
mod render;
mod rows;
mod tiles;
mod tune;
mod turn;

pub(crate) use lane::Lane;
pub(crate) use order::Scatter;
pub use order::order_jobs;
pub(crate) use render::{BLOCK, stored};

use crate::device::Info;
use crate::error::Result;
use crate::hash::BuildFast;
use crate::memory::Store;
use kjit_engine::{Device, Engine, Kernel, Stream};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// An opened GPU.
pub struct Gpu {
    device: Device,
    /// The stream of work that no other stream was chosen for.
    own: Lane,
    /// Streams of the program, in use or not.
    lanes: Mutex<Vec<Arc<Lane>>>,
    /// Whether it ever read memory of another library.
    borrows: AtomicBool,
    engine: Engine,
    /// Loaded kernels by their source.
    kernels: Mutex<HashMap<String, Kernel>>,
    pinned: pools::PinnedPool,
    /// Indices out of range that kernels found.
    wrong: OnceLock<index_errors::IndexErrors>,
    /// Prepared launches by the structure of their groups.
    recipes: Mutex<HashMap<Box<[u64]>, group::PreparedLaunch, BuildFast>>,
    /// Prepared products by what they depend on.
    products: Mutex<HashMap<Box<[u64]>, Arc<product::PreparedProduct>, BuildFast>>,
    launches: AtomicU64,
}

impl Gpu {
    pub(crate) fn open(engine: &Engine, name: &str) -> Result<Gpu> {
        let device = engine.device(name)?;
        let own = Lane::new(device.stream()?, false);
        Ok(Gpu {
            device,
            own,
            lanes: Mutex::default(),
            borrows: AtomicBool::new(false),
            engine: engine.clone(),
            kernels: Mutex::default(),
            recipes: Mutex::default(),
            products: Mutex::default(),
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

    /// The device's own stream.
    pub(crate) fn stream(&self) -> &Stream {
        &self.own.stream
    }

    pub(crate) fn event(&self, timed: bool) -> Result<kjit_engine::Event> {
        Ok(if timed { self.device.timed_event() } else { self.device.event() }?)
    }

    pub(crate) fn synchronize(&self) -> Result<()> {
        self.wait_for_all()?;
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
