//! Streams of a GPU, each with a pool in its order. The device's own stream exists always; streams
//! of the program are reused after their last handle is dropped.

use super::Gpu;
use super::fold::COUNTERS;
use crate::error::Result;
use kjit_engine::{DeviceBuffer, Pool, PoolStats, Stream};
use std::ops::Deref;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, PoisonError};

/// A stream and the memory of its tensors. The engine orders a read of another stream's memory
/// after the work that wrote it.
pub(crate) struct Lane {
    pub(crate) stream: Stream,
    pub(super) pool: Pool,
    /// Counters of folds that are divided into chunks: zeros between launches of one stream.
    counters: OnceLock<DeviceBuffer<u8>>,
    pub(super) urgent: bool,
}

impl Lane {
    pub(super) fn new(stream: Stream, urgent: bool) -> Lane {
        let pool = stream.pool();
        Lane { stream, pool, counters: OnceLock::new(), urgent }
    }

    /// The counters of folds in chunks.
    pub(super) fn counters(&self) -> Result<&DeviceBuffer<u8>> {
        if let Some(counters) = self.counters.get() {
            return Ok(counters);
        }
        let counters = self.pool.buffer::<u8>(4 * COUNTERS)?;
        self.stream.write(&counters, &[0; 4 * COUNTERS])?;
        Ok(self.counters.get_or_init(|| counters))
    }
}

/// The stream in which this thread's work on a device goes.
pub(crate) enum CurrentLane<'a> {
    Own(&'a Lane),
    Other(Arc<Lane>),
}

impl Deref for CurrentLane<'_> {
    type Target = Lane;

    fn deref(&self) -> &Lane {
        match self {
            CurrentLane::Own(lane) => lane,
            CurrentLane::Other(lane) => lane,
        }
    }
}

impl Gpu {
    /// The lane of this thread's current stream.
    pub(crate) fn lane(&self) -> CurrentLane<'_> {
        match crate::stream::current(std::ptr::from_ref(self) as usize) {
            Some(lane) => CurrentLane::Other(lane),
            None => CurrentLane::Own(&self.own),
        }
    }

    /// Calls `f` with the device's own lane, then with each other one that exists.
    fn each_lane<T>(&self, mut f: impl FnMut(&Lane) -> T) -> Vec<T> {
        let lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner).clone();
        std::iter::once(f(&self.own)).chain(lanes.iter().map(|lane| f(lane))).collect()
    }

    /// Waits for the work of all streams of the device.
    pub(crate) fn wait_for_all(&self) -> Result<()> {
        self.each_lane(|lane| lane.stream.synchronize())
            .into_iter()
            .collect::<std::result::Result<(), _>>()?;
        Ok(())
    }

    /// Makes the other streams of the device wait for the current work of this thread's stream.
    pub(crate) fn order_others(&self) -> Result<()> {
        self.borrows.store(true, Ordering::Relaxed);
        let own = self.lane();
        if self.lanes.lock().unwrap_or_else(PoisonError::into_inner).is_empty() {
            return Ok(());
        }
        let event = self.device.event()?;
        own.stream.record(&event)?;
        let wait = |lane: &Lane| match lane.stream.handle() == own.stream.handle() {
            true => Ok(()),
            false => lane.stream.wait(&event),
        };
        self.each_lane(wait).into_iter().collect::<std::result::Result<(), _>>()?;
        Ok(())
    }

    /// An unused lane, or a new one.
    pub(crate) fn take_lane(&self, urgent: bool) -> Result<Arc<Lane>> {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        // Nobody else can get a handle while the list is locked.
        let unused = |lane: &&Arc<Lane>| Arc::strong_count(lane) == 1 && lane.urgent == urgent;
        if let Some(lane) = lanes.iter().find(unused) {
            return Ok(Arc::clone(lane));
        }
        let stream = if urgent { self.device.urgent_stream() } else { self.device.stream() }?;
        if self.borrows.load(Ordering::Relaxed) {
            // Other streams waited for the writer of memory that another library shares.
            let event = self.device.event()?;
            self.own.stream.record(&event)?;
            stream.wait(&event)?;
        }
        let lane = Arc::new(Lane::new(stream, urgent));
        lanes.push(Arc::clone(&lane));
        Ok(lane)
    }

    /// The statistics of the pools of all streams, added.
    pub(crate) fn pool_statistics(&self) -> PoolStats {
        let add = |a: PoolStats, b: PoolStats| PoolStats {
            hits: a.hits + b.hits,
            misses: a.misses + b.misses,
            live: a.live + b.live,
            in_use: a.in_use + b.in_use,
            peak: a.peak + b.peak,
            held: a.held + b.held,
        };
        self.each_lane(|lane| lane.pool.stats()).into_iter().fold(PoolStats::default(), add)
    }

    /// Frees the unused blocks of the pools of all streams. Returns their bytes.
    pub(crate) fn clear_pools(&self) -> u64 {
        self.each_lane(|lane| lane.pool.trim()).into_iter().sum()
    }
}
