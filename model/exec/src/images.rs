//! Rows of embeddings in a prompt: the result of an encoder for an image.
//!
//! Each row has an id, as a token has one, above all ids of the vocabulary. So a prompt with images
//! is a list of ids like any other, and the same image in a later prompt has the same ids: cached
//! prefixes are found by ids alone. Ids of an image are never given to another one, and ids of two
//! images are never consecutive. So the rows of an image can be told from their ids.

use crate::SessionError;
use kjit_graph::Graph;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The first id of a row of an image. Vocabularies are smaller.
pub const FIRST_IMAGE_ID: u32 = 1 << 31;

/// The end of an image's rows that contain `tokens[at]`: the index after the last one. For a token
/// it is the next index.
pub fn image_end(tokens: &[u32], at: usize) -> usize {
    let goes_on = |two: &[u32]| match *two {
        [a, b] => a >= FIRST_IMAGE_ID && a.checked_add(1) == Some(b),
        _ => false,
    };
    let rest = tokens.get(at..).unwrap_or_default();
    at + 1 + rest.windows(2).take_while(|two| goes_on(two)).count()
}

/// The smallest number of tokens, `n` or more, after which no image continues.
pub fn uncut_images(tokens: &[u32], n: usize) -> usize {
    match n.checked_sub(1) {
        Some(last) if n < tokens.len() => image_end(tokens, last),
        _ => n,
    }
}

/// The rows of one image.
#[derive(Debug)]
pub struct ImageRows {
    first: u32,
    width: usize,
    rows: Vec<f32>,
}

impl ImageRows {
    /// The ids of the rows, in their order.
    pub fn ids(&self) -> Range<u32> {
        self.first..self.first.saturating_add(u32::try_from(self.len()).unwrap_or(u32::MAX))
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.rows.len().checked_div(self.width).unwrap_or(0)
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The embedding with this id: as many elements as the model's hidden states have. `None` if
    /// the id belongs to another image.
    pub fn row(&self, id: u32) -> Option<&[f32]> {
        let at = (id.checked_sub(self.first)? as usize).checked_mul(self.width)?;
        self.rows.get(at..at.checked_add(self.width)?)
    }

    /// All embeddings in order, `len` rows.
    pub fn rows(&self) -> &[f32] {
        &self.rows
    }
}

/// The error of adding rows to an [`ImageTable`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImageTableError {
    /// The number of elements is not a whole number of rows, or zero.
    #[error(
        "{elems} elements are not a whole number of rows of {width}: \
         the projector belongs to another model"
    )]
    Width {
        /// Number of elements.
        elems: usize,
        /// Elements of a row of the model.
        width: usize,
    },
    /// All ids were given away.
    #[error("there are no more ids for the rows of images: open the model again")]
    Ids,
}

#[derive(Default)]
struct Inner {
    next: u32,
    /// Cached images that no request uses, the most recently used one last.
    kept: VecDeque<Arc<ImageRows>>,
    kept_elems: usize,
    by_first: BTreeMap<u32, Weak<ImageRows>>,
    by_key: HashMap<[u8; 32], u32>,
}

/// The rows of all images of a model. The most recently used images stay.
pub struct ImageTable {
    width: usize,
    most_elems: usize,
    bidirectional: bool,
    inner: Mutex<Inner>,
}

impl ImageTable {
    /// A table of rows with `width` elements. It caches up to `bytes` of rows that no request uses.
    pub fn new(width: usize, bytes: usize) -> ImageTable {
        let inner = Inner { next: FIRST_IMAGE_ID, ..Inner::default() };
        let (most_elems, bidirectional) = (bytes / size_of::<f32>(), false);
        ImageTable { width, most_elems, bidirectional, inner: Mutex::new(inner) }
    }

    /// Sets whether the rows of an image attend to all rows of the same image, also to later ones.
    pub fn bidirectional(self, yes: bool) -> ImageTable {
        ImageTable { bidirectional: yes, ..self }
    }

    /// Whether the rows of an image attend to all rows of the same image, also to later ones.
    pub fn is_bidirectional(&self) -> bool {
        self.bidirectional
    }

    /// Elements of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Checks that a model takes rows of this table.
    ///
    /// # Errors
    /// [`SessionError::Images`] if it reads tokens in several places, or if its hidden states have
    /// another width.
    pub fn check(&self, graph: &Graph) -> Result<(), SessionError> {
        let width = graph.image_width().ok_or_else(|| {
            let arch = &graph.arch;
            SessionError::Images(format!(
                "architecture '{arch}' reads tokens in several places: rows of images cannot \
                 replace them"
            ))
        })?;
        if width != self.width {
            return Err(SessionError::Images(format!(
                "the projector makes rows of {}, but the model's hidden states have {width} \
                 elements: give the --mmproj file that belongs to this model",
                self.width
            )));
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Entries are only added and removed, so the data stay valid if a thread panics.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The image with this key, if its rows are still there. The key is a digest of everything that
    /// the rows depend on.
    pub fn get(&self, key: &[u8; 32]) -> Option<Arc<ImageRows>> {
        let mut inner = self.lock();
        let first = *inner.by_key.get(key)?;
        let image = inner.by_first.get(&first)?.upgrade()?;
        inner.keep(&image, self.most_elems);
        Some(image)
    }

    /// The image that has a row with this id.
    pub fn find(&self, id: u32) -> Option<Arc<ImageRows>> {
        let image = self.lock().by_first.range(..=id).next_back()?.1.upgrade()?;
        image.row(id).is_some().then_some(image)
    }

    /// Adds the rows of an image, or returns the cached rows for its key.
    ///
    /// # Errors
    /// The elements are not whole rows, or no ids are left.
    pub fn add(&self, key: [u8; 32], rows: Vec<f32>) -> Result<Arc<ImageRows>, ImageTableError> {
        if let Some(there) = self.get(&key) {
            return Ok(there);
        }
        let (elems, width) = (rows.len(), self.width);
        if elems == 0 || width == 0 || !elems.is_multiple_of(width) {
            return Err(ImageTableError::Width { elems, width });
        }
        let mut inner = self.lock();
        let count = u32::try_from(elems / width).map_err(|_| ImageTableError::Ids)?;
        // One id between two images belongs to none.
        let next = inner.next.checked_add(count).and_then(|next| next.checked_add(1));
        let next = next.ok_or(ImageTableError::Ids)?;
        let image = Arc::new(ImageRows { first: inner.next, width, rows });
        inner.next = next;
        inner.by_first.insert(image.first, Arc::downgrade(&image));
        inner.by_key.insert(key, image.first);
        inner.keep(&image, self.most_elems);
        Ok(image)
    }
}

impl Inner {
    /// Marks an image as the most recently used one, and drops the oldest ones if there are too
    /// many.
    fn keep(&mut self, image: &Arc<ImageRows>, most: usize) {
        match self.kept.iter().position(|kept| Arc::ptr_eq(kept, image)) {
            Some(at) => drop(self.kept.remove(at)),
            None => self.kept_elems += image.rows.len(),
        }
        self.kept.push_back(Arc::clone(image));
        while self.kept_elems > most
            && let Some(oldest) = self.kept.pop_front()
        {
            self.kept_elems -= oldest.rows.len();
        }
        // Images that neither the table nor a request has any more.
        let (by_key, by_first) = (&mut self.by_key, &mut self.by_first);
        by_first.retain(|_, image| image.strong_count() > 0);
        by_key.retain(|_, first| by_first.contains_key(first));
    }
}

#[cfg(test)]
mod tests {
    use super::{FIRST_IMAGE_ID, ImageTable, ImageTableError, image_end, uncut_images};
    use std::sync::Arc;

    #[test]
    fn same_key_has_same_ids_and_others_never_do() {
        let table = ImageTable::new(3, 1 << 20);
        let a = table.add([1; 32], vec![1.0; 6]).unwrap();
        let b = table.add([2; 32], vec![2.0; 3]).unwrap();
        assert_eq!(a.ids(), FIRST_IMAGE_ID..FIRST_IMAGE_ID + 2);
        assert_eq!(b.ids(), FIRST_IMAGE_ID + 3..FIRST_IMAGE_ID + 4);
        assert!(Arc::ptr_eq(&table.add([1; 32], vec![9.0; 6]).unwrap(), &a));
        assert!(Arc::ptr_eq(&table.find(FIRST_IMAGE_ID + 1).unwrap(), &a));
        assert!(Arc::ptr_eq(&table.find(FIRST_IMAGE_ID + 3).unwrap(), &b));
        let none = |id: u32| table.find(id).is_none();
        assert!(none(FIRST_IMAGE_ID + 2) && none(FIRST_IMAGE_ID + 4) && none(7));
        assert_eq!(b.row(FIRST_IMAGE_ID + 3), Some(&[2.0; 3][..]));
        assert_eq!(b.row(FIRST_IMAGE_ID), None);
        assert_eq!(
            table.add([3; 32], vec![0.0; 4]).unwrap_err(),
            ImageTableError::Width { elems: 4, width: 3 }
        );
    }

    #[test]
    fn pieces_end_where_no_image_continues() {
        let of = |offsets: &[u32]| -> Vec<u32> {
            offsets.iter().map(|o| if *o < 100 { *o } else { FIRST_IMAGE_ID + o - 100 }).collect()
        };
        // Two texts, an image of three rows, and another one directly after it.
        let tokens = of(&[1, 2, 100, 101, 102, 104, 105, 7]);
        let ends: Vec<usize> = (0..=8).map(|n| uncut_images(&tokens, n)).collect();
        assert_eq!(ends, [0, 1, 2, 5, 5, 5, 7, 7, 8]);
        assert_eq!(
            (0..8).map(|at| image_end(&tokens, at)).collect::<Vec<_>>(),
            [1, 2, 5, 5, 5, 7, 7, 8]
        );
        assert_eq!(image_end(&[u32::MAX, 0], 0), 1);
    }

    #[test]
    fn rows_in_use_outlive_the_limit_of_kept_ones() {
        // Room for one image.
        let table = ImageTable::new(2, 16);
        let a = table.add([1; 32], vec![1.0; 4]).unwrap();
        let id = a.ids().start;
        table.add([2; 32], vec![2.0; 4]).unwrap();
        assert!(table.find(id).is_some(), "a request has it");
        drop(a);
        assert!(table.find(id).is_none() && table.get(&[1; 32]).is_none());
        let again = table.add([1; 32], vec![1.0; 4]).unwrap();
        assert_eq!(again.ids().start, FIRST_IMAGE_ID + 6, "ids are not used again");
    }
}
