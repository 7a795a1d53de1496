//! The nesting of evaluations.

use super::fault::{Fault, limit};
use super::limits::MAX_LEVELS;

/// The number of nested evaluations.
#[derive(Debug, Default)]
pub struct Levels(usize);

impl Levels {
    /// Starts an evaluation; [`Levels::leave`] ends it.
    pub fn enter(&mut self) -> Result<(), Fault> {
        if self.0 == MAX_LEVELS {
            return limit(format!(
                "macros, loops and brackets are nested more than {MAX_LEVELS} deep"
            ));
        }
        self.0 += 1;
        Ok(())
    }

    /// Ends the innermost evaluation.
    pub fn leave(&mut self) {
        self.0 -= 1;
    }
}
