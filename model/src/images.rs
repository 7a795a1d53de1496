//! Images in prompts: an encoder beside a model, and prompts in which rows of images stand.

use crate::exec::{ImageRows, ImageTable, ImageTableError};
use crate::session::{Session, SessionError};
use kjit_vision::{Piece, VisionEncoder, VisionError};
use sha2::{Digest, Sha256};
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of rows that are kept for images that come again: 400 images of 576 rows of 2048.
const CACHED_BYTES: usize = 2 << 30;

/// The error of an encoder, an image or its place in a prompt.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImagesError {
    /// The encoder's file or the image cannot be used.
    #[error(transparent)]
    Vision(#[from] VisionError),
    /// The model takes no rows of this encoder.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// There is no place for the rows.
    #[error(transparent)]
    Table(#[from] ImageTableError),
    /// The chat template leaves an image out, or repeats it.
    #[error("the chat template puts the image into the prompt {0} times, not once")]
    Template(usize),
}

/// Text that marks the place of an image in a message until the prompt is rendered. Nobody can
/// write it in advance: it has a random number.
pub fn marker() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("[image {:016x}]", RandomState::new().hash_one(number))
}

/// An image of a prompt.
#[derive(Debug, Clone)]
pub struct PromptImage<'a> {
    /// Its [`marker`] in the rendered prompt.
    pub marker: &'a str,
    /// A PNG, JPEG or WebP file.
    pub file: &'a [u8],
    /// The owner of its rows: an image is computed again for another owner, so that response times
    /// do not reveal which images others have sent.
    pub owner: [u8; 32],
}

/// The ids of a prompt with images.
#[derive(Debug, Clone, Default)]
pub struct ImagePrompt {
    /// Ids of tokens and of rows of images.
    pub ids: Vec<u32>,
    /// The images. Their rows are kept as long as these exist.
    pub images: Vec<Arc<ImageRows>>,
}

/// Turns a text of a prompt into ids. The flag says whether it is the prompt's first text.
pub type EncodeText<'a, E> = dyn FnMut(&str, bool) -> Result<Vec<u32>, E> + 'a;

/// The encoder of a model's images, and the rows that it made.
pub struct Images {
    encoder: VisionEncoder,
    table: Arc<ImageTable>,
}

impl Images {
    /// Opens an `mmproj` file. The model is then opened with [`Images::rows_that_see_each_other`]
    /// and gets the images by [`Images::attach`].
    ///
    /// # Errors
    /// The file is no encoder that kjit computes.
    pub fn open(path: impl AsRef<Path>, threads: usize) -> Result<Images, ImagesError> {
        let encoder = VisionEncoder::open(path, threads)?;
        let table = ImageTable::new(encoder.width(), CACHED_BYTES);
        let table = Arc::new(table.bidirectional(encoder.is_bidirectional()));
        Ok(Images { encoder, table })
    }

    /// The value of [`OpenOptions::image_rows`](crate::session::OpenOptions::image_rows) for the
    /// model.
    pub fn rows_that_see_each_other(&self) -> usize {
        if self.encoder.is_bidirectional() { self.encoder.rows() } else { 0 }
    }

    /// Lets a session of the model read the rows of these images.
    ///
    /// # Errors
    /// The encoder belongs to another model, or the session takes no such images.
    pub fn attach(&self, session: &mut Session) -> Result<(), ImagesError> {
        Ok(session.set_images(&self.table)?)
    }

    /// The rows of all images, for [`Session::set_images`] of another session of the same model.
    pub fn table(&self) -> &Arc<ImageTable> {
        &self.table
    }

    /// The rows of an image, and what stands in the prompt for it. An image that was computed
    /// before for this owner is not computed again.
    ///
    /// # Errors
    /// The file is no image, or it is damaged.
    pub fn rows(
        &self,
        owner: [u8; 32],
        file: &[u8],
    ) -> Result<(Arc<ImageRows>, Vec<Piece>), ImagesError> {
        let key = Sha256::new().chain_update(owner).chain_update(file).finalize().into();
        let prepared = self.encoder.prepare(file)?;
        let layout = prepared.layout().to_vec();
        let rows = match self.table.get(&key) {
            Some(rows) => rows,
            None => self.table.add(key, self.encoder.encode(&prepared)?)?,
        };
        Ok((rows, layout))
    }

    /// The ids of a rendered prompt, in which rows of images replace their markers. `encode` turns
    /// the texts between the images into ids; the flag says whether it is the first one, at whose
    /// start BOS may stand.
    ///
    /// # Errors
    /// An image cannot be used, its marker is not in the text exactly once, or `encode` fails.
    pub fn prompt<E: From<ImagesError>>(
        &self,
        rendered: &str,
        images: &[PromptImage<'_>],
        encode: &mut EncodeText<'_, E>,
    ) -> Result<ImagePrompt, E> {
        let mut places = vec![];
        for image in images {
            let mut found = rendered.match_indices(image.marker);
            match (found.next(), found.count()) {
                (Some((at, _)), 0) => places.push((at, image)),
                (first, more) => {
                    return Err(ImagesError::Template(usize::from(first.is_some()) + more).into());
                }
            }
        }
        places.sort_by_key(|place| place.0);
        let (mut made, mut text, mut done) = (ImagePrompt::default(), String::new(), 0);
        for (at, image) in places {
            text += rendered.get(done..at).unwrap_or_default();
            done = at + image.marker.len();
            let (rows, layout) = self.rows(image.owner, image.file)?;
            let mut ids = rows.ids();
            for piece in layout {
                match piece {
                    Piece::Text(more) => text += &more,
                    Piece::Rows(n) => {
                        let first = made.ids.is_empty();
                        if first || !text.is_empty() {
                            made.ids.extend(encode(&text, first)?);
                        }
                        text.clear();
                        made.ids.extend(ids.by_ref().take(n));
                    }
                }
            }
            made.images.push(rows);
        }
        text += rendered.get(done..).unwrap_or_default();
        if made.ids.is_empty() || !text.is_empty() {
            made.ids.extend(encode(&text, made.ids.is_empty())?);
        }
        Ok(made)
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn markers_never_repeat() {
        let all: std::collections::HashSet<String> = (0..1000).map(|_| super::marker()).collect();
        assert_eq!(all.len(), 1000);
    }
}
