//! Tests that the emulator detects planted faults, hazards and races, and accepts correct code.

mod common;
mod hazards;
mod late;
mod loose;
mod parts;
mod planted;
