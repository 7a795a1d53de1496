//! The origin of a memory access.

/// The origin of a memory access.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// The wave's number in the launch.
    pub wave: u32,
    /// Number of barriers that it has passed.
    pub phase: u32,
    /// The time since when the wave's nearest cache holds nothing old (RDNA: the waves of a block
    /// have two such caches).
    pub near: u64,
    /// The access bypasses the caches: atomics, and loads with that modifier.
    pub bypass: bool,
    /// The access goes through the scalar cache, which is not coherent with stores.
    pub scalar: bool,
    /// The number of the wave's load; 0 if no later check needs it.
    pub load: u32,
}
