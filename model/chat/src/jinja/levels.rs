//! The nesting of evaluations.

use super::fault::{Fault, limit};
use super::limits::MAX_LEVELS;

/// The number of evaluations that are open, one inside the other.
#[derive(Debug, Default)]
pub struct Levels(usize);

impl Levels {
    /// Opens one; [`Levels::leave`] closes it.
    pub fn enter(&mut self) -> Result<(), Fault> {
        if self.0 == MAX_LEVELS {
            return limit(format!(
                "macros, loops and brackets are more than {MAX_LEVELS} deep within each other"
            ));
        }
        self.0 += 1;
        Ok(())
    }

    /// Closes the innermost one.
    pub fn leave(&mut self) {
        self.0 -= 1;
    }
}
