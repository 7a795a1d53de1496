//! Real faults for caches: killed and stopped processes, full file systems, changed user ids, and a
//! preloaded library that makes system calls fail.

mod child;
mod crashes;
mod file_systems;
mod races;
mod support;
mod trust;
