//! Keys and values on disk, so that conversations continue after a restart.
//!
//! A page is the keys and values of [`PageCount::POSITIONS`] tokens. Its key is a digest of
//! everything that it depends on: this version of kjit, the model's content, the layout of keys and
//! values, the owner, and all tokens up to its end. So pages of another model, another version or
//! another owner are never found. The [`Cache`] checks each page's SHA-256 before it is used.
//!
//! The scheduler's thread copies pages from the device. Another thread writes them.

use super::request::Owner;
use crate::exec::FIRST_IMAGE_ID;
use crate::gpu::PageCount;
use kjit_cache::{Artefact, BuildKey, Cache, Config, Digest, Key};
use sha2::{Digest as _, Sha256};
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

/// Bytes that wait to be written. Pages beyond it are not saved at that time.
const IN_FLIGHT: u64 = 1 << 30;

/// A page that waits to be written.
type Unwritten = (BuildKey, Vec<u8>);

/// Pages on disk of one model.
pub struct SavedPages {
    cache: Arc<Cache>,
    /// Digest of the model's content.
    model: Digest,
    /// Pages that are on disk or on their way, as far as this process knows.
    known: HashSet<[u8; 32]>,
    /// Bytes of pages put since `known` was cleared, and the limit: a quarter of the limit on disk.
    put: (u64, u64),
    /// Bytes that wait to be written.
    waiting: Arc<AtomicU64>,
    /// `None` only while it is dropped.
    writer: Option<(Sender<Unwritten>, JoinHandle<()>)>,
}

/// Position in a text: the digest of everything up to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place([u8; 32]);

impl Place {
    /// The place after further tokens.
    pub fn after(self, tokens: &[u32]) -> Place {
        let mut digest = Sha256::new().chain_update(self.0);
        tokens.iter().for_each(|token| digest.update(token.to_le_bytes()));
        Place(digest.finalize().into())
    }
}

impl SavedPages {
    /// Opens or creates a folder of at most `bytes` bytes for a model in these files, which are
    /// digested once. The least recently used pages are removed first. `say` is called with later
    /// warnings, for example about a full disk.
    ///
    /// # Errors
    /// One line: the folder cannot be used (it belongs to another user, or others may write to it),
    /// a file cannot be read, or there is no thread.
    pub fn open<'a>(
        folder: &Path,
        bytes: u64,
        files: impl IntoIterator<Item = &'a Path>,
        say: fn(&str),
    ) -> Result<SavedPages, String> {
        let config = Config::for_app("kjit").ignore_environment().dir(folder).memory_bytes(0);
        let ready = Arc::new(AtomicBool::new(false));
        let opened = Arc::clone(&ready);
        let config = config.on_warning(move |warning| {
            if opened.load(Ordering::Relaxed) {
                say(&format!("saved conversations: {warning}"));
            }
        });
        let cache = Arc::new(Cache::open(config.max_bytes(bytes)));
        if let Some(warning) = cache.warnings().first() {
            return Err(warning.to_string());
        }
        ready.store(true, Ordering::Relaxed);
        let mut all = Sha256::new();
        for file in files {
            let digest = cache.file_digest(file);
            all.update(digest.map_err(|error| format!("{}: {error}", file.display()))?.0);
        }
        let (to, pages) = channel::<Unwritten>();
        let waiting = Arc::new(AtomicU64::new(0));
        let (of, left) = (Arc::clone(&cache), Arc::clone(&waiting));
        let write = move || {
            for (key, page) in pages {
                let bytes = page.len() as u64;
                of.put(&key, &Artefact::new(page));
                left.fetch_sub(bytes, Ordering::Relaxed);
            }
        };
        let thread = std::thread::Builder::new().name("kjit-saved-pages".to_owned()).spawn(write);
        let thread = thread.map_err(|error| format!("no thread: {error}"))?;
        Ok(SavedPages {
            cache,
            model: Digest(all.finalize().into()),
            known: HashSet::new(),
            put: (0, bytes / 4),
            waiting,
            writer: Some((to, thread)),
        })
    }

    /// The start of an owner's texts. `format` names the layout of keys and values, and what
    /// computed them.
    pub(super) fn start(&self, owner: Owner, format: &str) -> Place {
        let mut digest = Sha256::new().chain_update(b"kjit saved pages");
        for part in [env!("CARGO_PKG_VERSION").as_bytes(), &self.model.0, format.as_bytes()] {
            digest.update(part.len().to_le_bytes());
            digest.update(part);
        }
        Place(digest.chain_update(owner.0).finalize().into())
    }

    fn key(&self, end: Place, format: &str) -> BuildKey {
        let key = Key::builder("kjit keys and values").field("model", self.model.0);
        let key = key.field("end", end.0).finish();
        BuildKey::new(&key, |key| {
            key.field("version", env!("CARGO_PKG_VERSION")).field("format", format)
        })
    }

    /// Whether the page that ends here need not be saved.
    pub(super) fn knows(&self, end: Place) -> bool {
        self.known.contains(&end.0)
    }

    /// Whether a page of this size can be saved now.
    pub(super) fn has_room(&self, bytes: u64) -> bool {
        self.waiting.load(Ordering::Relaxed).saturating_add(bytes) <= IN_FLIGHT
    }

    /// Saves the page that ends here, later.
    pub(super) fn put(&mut self, end: Place, format: &str, page: Vec<u8>) {
        let bytes = page.len() as u64;
        // Other pages may have displaced old ones from the disk. Those of texts that are in use are
        // written again.
        let (put, most) = self.put;
        self.put.0 = put + bytes;
        if put > most {
            self.put.0 = bytes;
            self.known.clear();
        }
        let key = self.key(end, format);
        if let Some((to, _)) = &self.writer {
            self.waiting.fetch_add(bytes, Ordering::Relaxed);
            if to.send((key, page)).is_ok() {
                self.known.insert(end.0);
            }
        }
    }

    /// The page that ends here, if it is on disk and undamaged.
    pub(super) fn get(&mut self, end: Place, format: &str) -> Option<Vec<u8>> {
        match self.cache.get(&self.key(end, format)) {
            Some(found) => {
                self.known.insert(end.0);
                Some(found.entry.payload().to_vec())
            }
            None => {
                self.known.remove(&end.0);
                None
            }
        }
    }
}

impl Drop for SavedPages {
    /// Waits until all pages are written.
    fn drop(&mut self) {
        if let Some((to, thread)) = self.writer.take() {
            drop(to);
            // A panic of the thread was printed.
            let _ = thread.join();
        }
    }
}

/// The tokens before the first image. The ids of images belong to this process: after a restart
/// another image has the same id.
fn before_images(tokens: &[u32]) -> &[u32] {
    tokens.split(|&id| id >= FIRST_IMAGE_ID).next().unwrap_or_default()
}

impl super::worker::Worker {
    /// Saves the pages of a sequence that are not saved yet. A page that cannot be read is not
    /// saved.
    pub(super) fn save(&mut self, owner: Owner, id: crate::session::SequenceId, tokens: &[u32]) {
        let (Some(saved), Some(session)) = (&mut self.saved, &mut self.session) else { return };
        let Some(format) = session.page_format() else { return };
        let mut place = saved.start(owner, &format);
        let mut largest = 0;
        for (at, page) in before_images(tokens).chunks_exact(PageCount::POSITIONS).enumerate() {
            place = place.after(page);
            if saved.knows(place) {
                continue;
            }
            if !saved.has_room(largest) {
                return;
            }
            let Ok(bytes) = session.read_page(id, at) else { return };
            largest = bytes.len() as u64;
            saved.put(place, &format, bytes);
        }
    }

    /// Adds saved pages to a sequence that has the first `fed` tokens of a request. Returns the
    /// number of tokens that it has then; one at least remains to be computed.
    ///
    /// # Errors
    /// A device fault.
    pub(super) fn restore(
        &mut self,
        owner: Owner,
        id: crate::session::SequenceId,
        tokens: &[u32],
        fed: usize,
    ) -> Result<usize, crate::session::SessionError> {
        const PAGE: usize = PageCount::POSITIONS;
        let (Some(saved), Some(session)) = (&mut self.saved, &mut self.session) else {
            return Ok(fed);
        };
        let first = fed / PAGE;
        let asked = tokens.get(..tokens.len().saturating_sub(1)).unwrap_or_default();
        let asked = before_images(asked);
        let pages: Vec<&[u32]> = asked.chunks_exact(PAGE).collect();
        let Some((before, rest)) =
            pages.split_at_checked(first).filter(|(_, rest)| !rest.is_empty())
        else {
            return Ok(fed);
        };
        let Some(format) = session.page_format() else { return Ok(fed) };
        let start = saved.start(owner, &format);
        let mut place = before.iter().fold(start, |place, page| place.after(page));
        let mut len = fed;
        for (page, at) in rest.iter().zip(first..) {
            place = place.after(page);
            let Some(bytes) = saved.get(place, &format) else { break };
            if at == first {
                session.truncate(id, first * PAGE)?;
                len = first * PAGE;
            }
            while session.pages().is_some_and(|pages| pages.free() == 0) {
                let alone = self.prefixes.forget(|page| session.page_users(page) == 1);
                let Some(page) = alone else { return Ok(len) };
                session.release_pages(&[page]);
            }
            if !session.write_page(id, page, &bytes)? {
                break;
            }
            len += PAGE;
        }
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use super::{FIRST_IMAGE_ID, before_images};

    #[test]
    fn pages_end_before_the_first_image() {
        assert_eq!(before_images(&[1, 2, FIRST_IMAGE_ID, 3]), [1, 2]);
        assert_eq!(before_images(&[u32::MAX, 3]), [0u32; 0]);
        assert_eq!(before_images(&[1, 2]), [1, 2]);
    }
}
