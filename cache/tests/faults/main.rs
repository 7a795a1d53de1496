//! The failures that caches are known to die of, made for real: killed and stopped processes, full
//! file systems, dropped user ids, and a preloaded library that makes system calls fail.

mod child;
mod crashes;
mod file_systems;
mod races;
mod support;
mod trust;
