//! Images of prompts: the encoder of `--mmproj` or of the model's repository on the hub.

use crate::args::Shared;
use crate::report::say;
use anyhow::Context;
use kjit_model::Model;
use kjit_model::images::{ImagePrompt, Images, PromptImage};
use kjit_model::tokenizer::{Limit, Tokenizer};
use std::path::Path;

/// A file of an image, and the marker of its place in the prompt.
pub type MarkedFile = (String, Vec<u8>);

/// Where the encoder comes from.
#[derive(Debug, Clone, Copy)]
pub enum Encoder<'a> {
    /// `--mmproj`: errors end the command.
    Asked(&'a Path),
    /// The repository of the model: without it the model reads text.
    Found(&'a Path),
}

impl Encoder<'_> {
    /// Opens the encoder. The model is opened afterwards, for its images.
    pub fn open(self, shared: &Shared) -> anyhow::Result<Option<Images>> {
        let threads = shared.threads.map_or_else(kjit_model::host::default_threads, usize::from);
        match self {
            Encoder::Asked(path) => Ok(Some(Images::open(path, threads).context("--mmproj")?)),
            Encoder::Found(path) => Ok(or_note(Images::open(path, threads), shared)),
        }
    }

    /// Lets the model read images. `None` if it reads text only.
    pub fn attach(
        self,
        images: Images,
        model: &mut Model,
        shared: &Shared,
    ) -> anyhow::Result<Option<Images>> {
        let done = images.attach(&mut model.session);
        match self {
            Encoder::Asked(_) => done.context("--mmproj")?,
            Encoder::Found(_) if or_note(done, shared).is_none() => return Ok(None),
            Encoder::Found(_) => {}
        }
        Ok(Some(images))
    }
}

fn or_note<T, E: std::fmt::Display>(done: Result<T, E>, shared: &Shared) -> Option<T> {
    match done {
        Ok(done) => Some(done),
        Err(why) => {
            if !shared.quiet {
                say(format_args!("note: the model reads text only: {why}"));
            }
            None
        }
    }
}

/// The ids of a rendered prompt. Images whose marker is not in it are left out.
pub fn encode(
    tokenizer: &Tokenizer,
    images: Option<&Images>,
    files: &[MarkedFile],
    rendered: &str,
) -> anyhow::Result<ImagePrompt> {
    let shown: Vec<PromptImage<'_>> = files
        .iter()
        .filter(|(marker, _)| rendered.contains(marker.as_str()))
        .map(|(marker, file)| PromptImage { marker, file, owner: [0; 32] })
        .collect();
    match images.filter(|_| !shown.is_empty()) {
        None => {
            let ids = tokenizer.encode_chat(rendered);
            Ok(ImagePrompt { ids, ..ImagePrompt::default() })
        }
        Some(images) => images.prompt(rendered, &shown, &mut |text, first| {
            let limit = Limit::default();
            anyhow::Ok(match first {
                true => tokenizer.encode_chat_within(text, &limit)?,
                false => tokenizer.encode_chat_rest_within(text, &limit)?,
            })
        }),
    }
}
