//! Tests that the emulator detects planted faults, hazards and races, and accepts correct code.

mod common;
mod hazards;
mod memory_order;
mod parts;
mod planted_faults;
mod reordered_stores;
mod scratch_and_calls;
