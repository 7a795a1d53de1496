//! Faults that break caches, made for real: killed and stopped processes, full file systems,
//! changed user ids, and a preloaded library that makes system calls fail.

mod child;
mod crashes;
mod file_systems;
mod races;
mod support;
mod trust;
