//! `kjit merge`: writes a model with adapters merged into its matrices.

use crate::args::{self, MergeType, Shared};
use crate::report::{bytes, say};
use anyhow::{Context, bail};
use kjit_model::gguf::Gguf;
use kjit_model::gguf::adapter::{Adapter, MergedType, merge as write};
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub fn merge(args: &args::Merge, shared: &Shared) -> anyhow::Result<ExitCode> {
    let path = args.model.path(shared)?;
    let base = Gguf::open(&path)?;
    if base.is_folder() {
        bail!("{}: kjit merge takes a GGUF file, not a folder of safetensors", path.display());
    }
    let out = args.output.as_path();
    if out.exists() && !args.force {
        bail!("{} exists: give --force to overwrite it, or a different name", out.display());
    }
    let mut adapters = vec![];
    for one in &args.lora {
        adapters.push((Adapter::open(&one.0.path, &base)?, one.0.scale));
    }
    let to = match args.to {
        MergeType::F16 => MergedType::F16,
        MergeType::F32 => MergedType::F32,
    };
    let threads = shared.threads.map_or_else(kjit_model::host::default_threads, usize::from);
    let partial = Partial::new(out);
    let file = File::create(&partial.0).with_context(|| partial.0.display().to_string())?;
    let mut file = BufWriter::with_capacity(1 << 20, file);
    write(&mut file, &base, &adapters, to, threads)?;
    file.flush().and_then(|()| file.get_ref().sync_all()).with_context(|| cannot(out))?;
    let written = file.get_ref().metadata().map_or(0, |m| m.len());
    drop(file);
    fs::rename(&partial.0, out).with_context(|| cannot(out))?;
    if !shared.quiet {
        let n: usize = adapters.iter().map(|(a, _)| a.pairs.len()).sum();
        say(format_args!("{}: {n} changes merged, {}", out.display(), bytes(written)));
    }
    Ok(ExitCode::SUCCESS)
}

fn cannot(out: &Path) -> String {
    format!("cannot write {}", out.display())
}

/// The file that is being written, beside the output. It is removed unless it was renamed.
struct Partial(PathBuf);

impl Partial {
    fn new(out: &Path) -> Partial {
        let mut name = out.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}.part", std::process::id()));
        Partial(out.with_file_name(name))
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}
