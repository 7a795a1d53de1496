//! The width of vector registers.

/// Lanes that a register has room for.
pub const LANES: usize = 64;

/// 64 bits for every lane.
pub type Wide = [u64; LANES];
