//! Properties of a memory access: the wave, the time, and the caches.

/// Properties of a memory access.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// The wave's number in the launch.
    pub wave: u32,
    /// Number of barriers that the wave has passed.
    pub phase: u32,
    /// The time since when the nearest cache of the wave contains no old data (RDNA: the waves of a
    /// block have two such caches).
    pub near: u64,
    /// Whether the access bypasses the caches: atomics, and loads with that modifier.
    pub bypass: bool,
    /// Whether the access uses the scalar cache, which is not coherent with stores.
    pub scalar: bool,
    /// The number of the load; 0 if no later check needs it.
    pub load: u32,
}
