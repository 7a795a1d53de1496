//! Families that choose: tokens from logits, experts from scores.

pub mod adjust;
pub mod argmax;
pub mod changes;
pub mod draw;
pub mod noise;
pub mod route;
