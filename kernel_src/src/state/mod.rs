//! Families whose sequences have a state of fixed size: convolutions, scans, linear attention.

pub mod conv;
pub mod decay;
pub mod lanes;
pub mod linear;
pub mod scan;
