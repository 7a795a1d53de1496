//! The width of vector registers.

/// Maximum number of lanes in a register.
pub const LANES: usize = 64;

/// 64 bits for each lane.
pub type LaneValues64 = [u64; LANES];
