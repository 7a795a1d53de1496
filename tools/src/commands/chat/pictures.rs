//! The images of a chat: `/image FILE`.

use crate::images::{MarkedFile, encode};
use anyhow::Context;
use kjit_model::exec::ImageRows;
use kjit_model::images::{ImagePrompt, Images, marker};
use kjit_model::tokenizer::Tokenizer;
use std::path::Path;
use std::sync::Arc;

/// The encoder, and the images that messages of the chat name by their markers.
pub struct Pictures {
    images: Option<Images>,
    files: Vec<MarkedFile>,
    /// Markers of images for the next message.
    next: Vec<String>,
    /// The rows of the last prompt's images. They are kept while the answer goes on.
    shown: Vec<Arc<ImageRows>>,
}

impl Pictures {
    pub fn new(images: Option<Images>) -> Pictures {
        Pictures { images, files: vec![], next: vec![], shown: vec![] }
    }

    /// Reads an image for the next message. Returns its number of rows.
    pub fn add(&mut self, path: &Path) -> anyhow::Result<usize> {
        let images = self.images.as_ref().context(
            "the model reads text only: start with --mmproj FILE, or with a model of the hub \
             that has one",
        )?;
        let file =
            std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let (rows, _) = images.rows([0; 32], &file).with_context(|| path.display().to_string())?;
        let marker = marker();
        self.next.push(marker.clone());
        self.files.push((marker, file));
        Ok(rows.len())
    }

    /// The markers of the next message's images, which are its now.
    pub fn take(&mut self) -> String {
        self.next.drain(..).collect()
    }

    pub fn clear(&mut self) {
        *self = Pictures::new(self.images.take());
    }

    /// The ids of a rendered conversation.
    pub fn encode(&self, tokenizer: &Tokenizer, rendered: &str) -> anyhow::Result<ImagePrompt> {
        encode(tokenizer, self.images.as_ref(), &self.files, rendered)
    }

    /// Keeps the rows of a prompt until the next one.
    pub fn keep(&mut self, prompt: ImagePrompt) -> Vec<u32> {
        self.shown = prompt.images;
        prompt.ids
    }
}
