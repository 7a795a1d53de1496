//! The model of a command line: a path, or a name on the hub.

use crate::args::Shared;
use crate::interrupt;
use crate::report::{bytes, say};
use clap::builder::{OsStringValueParser, TypedValueParser};
use indicatif::{ProgressBar, ProgressStyle};
use kjit_hub::{Event, Hub, Pick, Reference, SCHEME, Settings};
use kjit_model::elide::elide;
use std::borrow::Cow;
use std::cell::RefCell;
use std::ffi::OsString;
use std::fmt;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A model file or folder, or a reference to the hub.
#[derive(Debug, Clone)]
pub enum ModelName {
    File(PathBuf),
    Hub(Reference),
}

/// Whether a command wants the encoder of a model's images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    No,
    /// It is used if it is there, or if the model is downloaded now.
    IfThere,
    /// There is an image.
    Needed,
}

impl ModelName {
    /// The parser for clap. `hf:…`, URLs of the hub, and `ORG/REPO[:QUANT]` are references, unless
    /// a file with this name exists. Everything else is a path.
    pub fn parser() -> impl TypedValueParser<Value = ModelName> {
        OsStringValueParser::new().try_map(|value: OsString| -> Result<ModelName, String> {
            let text = value.to_str().unwrap_or_default();
            let read = |text: &str| {
                text.parse().map(ModelName::Hub).map_err(|e: kjit_hub::BadReference| e.to_string())
            };
            if text.starts_with(SCHEME) {
                return read(text);
            }
            if Path::new(&value).exists() {
                return Ok(ModelName::File(value.into()));
            }
            if kjit_hub::is_address(text) {
                return read(text);
            }
            if text.contains("://") {
                return Err(
                    "a model is a file or folder on this machine, or ORG/REPO:QUANT on the hub"
                        .to_owned(),
                );
            }
            let reference: Option<Reference> = format!("{SCHEME}{text}").parse().ok();
            let of_hub = reference.filter(|r| !matches!(r.pick(), Pick::File(_)));
            Ok(of_hub.map_or_else(|| ModelName::File(value.into()), ModelName::Hub))
        })
    }

    /// Path of the model. A model of the hub is fetched if it is missing, unless `HF_HUB_OFFLINE`
    /// forbids it.
    pub fn path(&self, shared: &Shared) -> anyhow::Result<Cow<'_, Path>> {
        Ok(self.with_encoder(shared, Wanted::No)?.0)
    }

    /// As [`ModelName::path`], with the encoder of the model's images, if the hub's repository has
    /// one and it is wanted.
    pub fn with_encoder(
        &self,
        shared: &Shared,
        wanted: Wanted,
    ) -> anyhow::Result<(Cow<'_, Path>, Option<PathBuf>)> {
        let reference = match self {
            ModelName::File(path) => return Ok((found(path)?, None)),
            ModelName::Hub(reference) => reference,
        };
        let images = wanted != Wanted::No;
        let mut local = fetching(shared, images, |hub, watch| hub.get(reference, watch))?;
        if wanted == Wanted::Needed && local.encoder.is_none() {
            // The model was downloaded without it.
            local = fetching(shared, true, |hub, watch| hub.pull(reference, watch))?.local;
        }
        Ok((Cow::Owned(local.path().to_owned()), local.encoder.filter(|_| images)))
    }

    /// Path of the model. Nothing is fetched.
    pub fn here(&self) -> anyhow::Result<Cow<'_, Path>> {
        match self {
            ModelName::File(path) => found(path),
            ModelName::Hub(reference) => {
                let hub = hub()?;
                let (what, cache) = (reference.to_string(), hub.cache().to_owned());
                let local = hub.here(reference)?.ok_or(kjit_hub::Error::NotHere { what, cache })?;
                Ok(Cow::Owned(local.path().to_owned()))
            }
        }
    }

    /// The last part of the name.
    pub fn short(&self) -> Cow<'_, str> {
        match self {
            ModelName::File(path) => path.file_name().unwrap_or_default().to_string_lossy(),
            ModelName::Hub(reference) => Cow::Owned(reference.to_string()),
        }
    }
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ModelName::File(path) => path.display().fmt(f),
            ModelName::Hub(reference) => reference.fmt(f),
        }
    }
}

/// Names in ollama's library, each with a repository that has the model as GGUF.
const FAMILIES: &[(&str, &str)] = &[
    ("llama3.1", "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF"),
    ("llama3.2", "bartowski/Llama-3.2-3B-Instruct-GGUF"),
    ("llama3.3", "bartowski/Llama-3.3-70B-Instruct-GGUF"),
    ("qwen2.5", "Qwen/Qwen2.5-7B-Instruct-GGUF"),
    ("qwen3", "Qwen/Qwen3-8B-GGUF"),
    ("gemma3", "ggml-org/gemma-3-4b-it-GGUF"),
    ("mistral", "bartowski/Mistral-7B-Instruct-v0.3-GGUF"),
    ("phi4", "bartowski/phi-4-GGUF"),
    ("gpt-oss", "ggml-org/gpt-oss-20b-GGUF"),
    ("smollm2", "bartowski/SmolLM2-1.7B-Instruct-GGUF"),
];

/// The path. If it is a single word and no such file exists, the error shows an example of a model
/// on the hub.
fn found(path: &Path) -> anyhow::Result<Cow<'_, Path>> {
    let word =
        path.to_str().filter(|w| !w.contains(['/', '\\']) && !w.to_lowercase().ends_with(".gguf"));
    if let Some(word) = word.filter(|_| !path.exists()) {
        let base = word.split(':').next().unwrap_or(word);
        let repo = FAMILIES
            .iter()
            .find(|(name, _)| *name == base)
            .map_or("ORG/REPO:QUANT", |(_, repo)| repo);
        anyhow::bail!(
            "'{word}' is not a file or folder here: \
             name a model of the hub, for example `kjit run {repo}`"
        );
    }
    Ok(Cow::Borrowed(path))
}

/// The hub with the settings of the environment.
pub fn hub() -> anyhow::Result<Hub> {
    Ok(Hub::new(Settings::from_env()?))
}

/// Runs a fetch and shows its progress: a bar on a terminal, a line per file if stderr is not a
/// terminal, nothing with `-q`. With `encoders` also the encoders of images of models.
pub fn fetching<T>(
    shared: &Shared,
    encoders: bool,
    work: impl FnOnce(&Hub, kjit_hub::Watch) -> Result<T, kjit_hub::Error>,
) -> anyhow::Result<T> {
    let hub = Hub::new(Settings { min_rate: shared.min_rate.0, encoders, ..Settings::from_env()? });
    let show = FetchDisplay {
        quiet: shared.quiet,
        terminal: io::stderr().is_terminal(),
        bar: RefCell::default(),
    };
    let done = work(&hub, &|event| show.tell(&event));
    show.end();
    Ok(done?)
}

/// The display of a fetch.
struct FetchDisplay {
    quiet: bool,
    terminal: bool,
    bar: RefCell<Option<ProgressBar>>,
}

impl FetchDisplay {
    fn tell(&self, event: &Event) {
        if self.quiet {
            return;
        }
        match event {
            Event::File { file, bytes: all, have } => {
                self.end();
                match (self.terminal, have) {
                    (true, _) => self.begin(file, *all, *have),
                    (false, 0) => say(format_args!("fetching {file}, {}", bytes(*all))),
                    (false, have) => say(format_args!(
                        "fetching {file}, {}, of which {} are downloaded",
                        bytes(*all),
                        bytes(*have)
                    )),
                }
            }
            Event::At(at) => {
                if let Some(bar) = &*self.bar.borrow() {
                    bar.set_position(*at);
                }
            }
            Event::Again { why, pause } if *pause == Duration::ZERO => {
                self.line(&format!("note: {why}: downloading from the start"))
            }
            Event::Again { why, pause } => {
                self.line(&format!("note: {why}: retrying in {:.1} s", pause.as_secs_f64()))
            }
            Event::Skipped { path, why } => self.line(&format!(
                "warning: {} is skipped: {why}",
                elide(&path.display().to_string(), 300)
            )),
            Event::Removed { path, why } => self.line(&format!(
                "warning: {} {why}: it was removed, the download starts again",
                elide(&path.display().to_string(), 300)
            )),
            Event::Waiting { file } => {
                self.line(&format!("note: another process fetches {file}: waiting for it"))
            }
        }
    }

    fn begin(&self, file: &str, all: u64, have: u64) {
        let bar = ProgressBar::new(all).with_position(have);
        if let Ok(style) = ProgressStyle::with_template(
            "{msg} {wide_bar} {bytes}/{total_bytes}, {bytes_per_sec}, {eta} left",
        ) {
            bar.set_style(style);
        }
        bar.set_message(file.rsplit('/').next().unwrap_or(file).to_owned());
        bar.reset_eta();
        let (shown, file) = (bar.clone(), file.to_owned());
        interrupt::leaves(move || {
            let (at, all) = (shown.position(), shown.length().unwrap_or(0));
            shown.finish_and_clear();
            format!(
                "{} of {} of {file} are downloaded; run the command again to resume",
                bytes(at),
                bytes(all)
            )
        });
        *self.bar.borrow_mut() = Some(bar);
    }

    fn line(&self, text: &str) {
        match &*self.bar.borrow() {
            Some(bar) => bar.suspend(|| say(text)),
            None => say(text),
        }
    }

    fn end(&self) {
        if let Some(bar) = self.bar.borrow_mut().take() {
            bar.finish_and_clear();
            interrupt::leaves_nothing();
        }
    }
}
