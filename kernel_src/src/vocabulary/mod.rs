//! The vocabulary of all families: arguments, launches, tunings, constants for the GPU's code,
//! sources. It does not depend on any family.

pub mod activations;
pub mod arguments;
pub mod family;
pub mod files;
pub mod kernel;
pub mod launch;
pub mod mma;
pub mod shape;
pub mod shipped;
pub mod step;
pub mod variant;
pub mod weights;
