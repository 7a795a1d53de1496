//! What the tests that cross crates share. So far: the simulated AMD device (`hipsim/`, see its README).

pub mod simulator;
