//! What cases have in common that are to cost little: the rows of their matrices, and tiles of
//! activations. A model has dozens of kernels and matrices of a few formats and widths; to make and
//! to lay out rows takes longer than all else, and tiles of a prompt are 2 to 7 MB each, which a
//! device must be brought: 45 MB for Llama 3.1 8B without this.

use super::data::{Random, Rows};
use super::tiled::Tiles;
use crate::vocabulary::kernel::SpecError;
use kjit_formats::format::Format;
use std::collections::HashMap;
use std::convert::Infallible;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

/// Rows that differ in a matrix of such a case. A prime, so that no tile of rows falls on its own
/// values when it is read in another's place.
pub(super) const FEW: usize = 61;

/// By what they are, places filled by the first who asks.
type Places<K, V> = Mutex<HashMap<K, Arc<Mutex<Option<Arc<V>>>>>>;

/// Rows of each format and width, and tiles of each number of rows and width, that were asked for.
#[derive(Debug, Default)]
pub struct Few {
    rows: Places<(u32, usize), Rows>,
    tiles: Places<(usize, usize), Tiles>,
}

/// What lies there, made if nothing does. Who asks for others does not wait.
fn once<K: Eq + Hash, V, E>(
    places: &Places<K, V>,
    key: K,
    make: impl FnOnce() -> Result<V, E>,
) -> Result<Arc<V>, E> {
    let place =
        Arc::clone(places.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default());
    let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(there) = place.as_ref() {
        return Ok(Arc::clone(there));
    }
    let made = Arc::new(make()?);
    *place = Some(Arc::clone(&made));
    Ok(made)
}

impl Few {
    /// The rows of a format and a width, whoever asks and in whatever order.
    pub(super) fn rows(
        &self,
        format: &'static Format,
        cols: usize,
        random: &Random,
    ) -> Result<Arc<Rows>, SpecError> {
        once(&self.rows, (format.ggml_id, cols), || {
            let mut random = random.again(u64::from(format.ggml_id) << 32 | cols as u64);
            Rows::random(format, FEW, cols, &mut random)
        })
    }

    /// The same of tiles of so many rows.
    pub(super) fn tiles(&self, rows: usize, cols: usize, random: &Random) -> Arc<Tiles> {
        let seed = 1 << 63 | (rows as u64) << 32 | cols as u64;
        let made = once(&self.tiles, (rows, cols), || {
            Ok::<_, Infallible>(Tiles::random(rows, cols, &mut random.again(seed)))
        });
        let Ok(tiles) = made;
        tiles
    }
}

#[cfg(test)]
mod tests {
    use super::super::tiled::tiled;
    use super::*;

    #[test]
    fn tiles_are_those_of_all_cases_where_they_are_to_cost_little_and_of_each_elsewhere() {
        let few = Arc::new(Few::default());
        let of = |seed| tiled(3, 70, &mut Random::new(seed).few(&few));
        assert!(Arc::ptr_eq(&of(1), &of(2)));
        assert!(!Arc::ptr_eq(&of(1), &tiled(4, 70, &mut Random::new(1).few(&few))));
        let own = |seed| tiled(3, 70, &mut Random::new(seed));
        assert_ne!(*own(1).content(), *own(2).content());
        // Rows that differ, and nothing in those behind the last.
        let (tiles, poison) = (of(1), half::f16::from_le_bytes([0xff, 0xff]));
        assert!(tiles.values.len() == 3 && tiles.values[0] != tiles.values[1] && poison.is_nan());
        let at = |row, col| {
            tiles.content()[2 * crate::vocabulary::mma::tiled_index(row, col, 70)..][..2]
                == [0xff, 0xff]
        };
        assert!(at(3, 0) && at(255, 127) && !at(2, 69) && !at(2, 127));
    }
}
