//! The emulator's checks: planted faults, hazards and races are found, and correct code passes.

mod common;
mod hazards;
mod late;
mod loose;
mod parts;
mod planted;
