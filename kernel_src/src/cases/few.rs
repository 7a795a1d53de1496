//! What cases have in common that are to cost little: the rows of their matrices. A model has dozens of
//! kernels and matrices of a few formats and widths; to make and to lay out rows takes longer than all else.

use super::data::{Random, Rows};
use crate::format::Format;
use crate::kernel::SpecError;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Rows that differ in a matrix of such a case. A prime, so that no tile of rows falls on its own values when
/// it is read in another's place.
pub(super) const FEW: usize = 61;

/// A place for rows, filled by the first who asks.
type Place = Arc<Mutex<Option<Arc<Rows>>>>;

/// Rows of each format and width that was asked for.
#[derive(Debug, Default)]
pub struct Few {
    rows: Mutex<HashMap<(u32, usize), Place>>,
}

impl Few {
    /// The rows of a format and a width, whoever asks and in whatever order. Who asks for others does not
    /// wait.
    pub(super) fn rows(&self, format: &'static Format, cols: usize, random: &Random) -> Result<Arc<Rows>, SpecError> {
        let key = (format.ggml_id, cols);
        let place = Arc::clone(self.rows.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default());
        let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(rows) = place.as_ref() {
            return Ok(Arc::clone(rows));
        }
        let mut random = random.again(u64::from(format.ggml_id) << 32 | cols as u64);
        let rows = Arc::new(Rows::random(format, FEW, cols, &mut random)?);
        *place = Some(Arc::clone(&rows));
        Ok(rows)
    }
}
