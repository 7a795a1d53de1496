//! Families that work row by row: norms, sums, copies, conversions, exchanges between devices.

pub mod combine;
pub mod copy_rows;
pub mod embed;
pub mod expert_sum;
pub mod map;
pub mod moe;
pub mod norm;
pub mod quantize;
pub mod read;
pub mod reduce;
pub mod repack;
pub mod softmax;
pub mod tiles;
