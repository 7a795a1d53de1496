//! Tests of the cache, one module for each part.

mod basics;
mod claims;
mod corruption;
mod eviction;
mod faults;
mod fuzz_seeds;
mod model;
mod packs;
mod properties;
mod remote;
