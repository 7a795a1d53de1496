//! Data that cheap cases share: the rows of their matrices, and tiles of activations. A model has
//! dozens of kernels, and matrices of a few formats and widths. Making and converting rows takes
//! longer than all other work. Tiles of a prompt are 2 to 7 MB each and must be copied to a device:
//! 45 MB for Llama 3.1 8B without sharing.

use crate::data::{Random, Rows};
use crate::tiled::Tiles;
use kjit_formats::format::Format;
use kjit_kernels::SpecError;
use std::collections::HashMap;
use std::convert::Infallible;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

/// Distinct rows of a cheap case's matrix. A prime, so that a kernel that reads a wrong tile of
/// rows gets wrong values.
pub(crate) const DISTINCT_CHEAP: usize = 61;

/// Values by key, computed at the first request.
type SharedValues<K, V> = Mutex<HashMap<K, Arc<Mutex<Option<Arc<V>>>>>>;

/// Rows by format and width, and tiles by number of rows and width, for all requests so far.
#[derive(Debug, Default)]
pub struct SharedData {
    rows: SharedValues<(u32, usize), Rows>,
    tiles: SharedValues<(usize, usize), Tiles>,
}

/// The value of this key, which is computed if it does not exist. Requests for other keys do not
/// wait.
fn once<K: Eq + Hash, V, E>(
    places: &SharedValues<K, V>,
    key: K,
    make: impl FnOnce() -> Result<V, E>,
) -> Result<Arc<V>, E> {
    let place =
        Arc::clone(places.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default());
    let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(there) = place.as_ref() {
        return Ok(Arc::clone(there));
    }
    let value = Arc::new(make()?);
    *place = Some(Arc::clone(&value));
    Ok(value)
}

impl SharedData {
    /// The rows of a format and a width. All callers get the same rows, in any order of requests.
    pub(crate) fn rows(
        &self,
        format: &'static Format,
        cols: usize,
        random: &Random,
    ) -> Result<Arc<Rows>, SpecError> {
        once(&self.rows, (format.ggml_id, cols), || {
            let mut random = random.again(u64::from(format.ggml_id) << 32 | cols as u64);
            Rows::random(format, DISTINCT_CHEAP, cols, &mut random)
        })
    }

    /// The tiles of `rows` rows with a width.
    pub(crate) fn tiles(&self, rows: usize, cols: usize, random: &Random) -> Arc<Tiles> {
        let seed = 1 << 63 | (rows as u64) << 32 | cols as u64;
        let value = once(&self.tiles, (rows, cols), || {
            Ok::<_, Infallible>(Tiles::random(rows, cols, &mut random.again(seed)))
        });
        let Ok(tiles) = value;
        tiles
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiled::tiled;

    #[test]
    fn tiles_are_shared_between_cases_on_request() {
        let shared = Arc::new(SharedData::default());
        let of = |seed| tiled(3, 70, &mut Random::new(seed).sharing(&shared));
        assert!(Arc::ptr_eq(&of(1), &of(2)));
        assert!(!Arc::ptr_eq(&of(1), &tiled(4, 70, &mut Random::new(1).sharing(&shared))));
        let own = |seed| tiled(3, 70, &mut Random::new(seed));
        assert_ne!(*own(1).content(), *own(2).content());
        // Distinct rows, and poison in the rows after the last.
        let (tiles, poison) = (of(1), half::f16::from_le_bytes([0xff, 0xff]));
        assert!(tiles.values.len() == 3 && tiles.values[0] != tiles.values[1] && poison.is_nan());
        let at = |row, col| {
            tiles.content()[2 * kjit_kernels::mma::tiled_index(row, col, 70)..][..2] == [0xff, 0xff]
        };
        assert!(at(3, 0) && at(255, 127) && !at(2, 69) && !at(2, 127));
    }
}
