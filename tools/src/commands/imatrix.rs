//! `kjit imatrix`: computes an importance matrix from a text.

use crate::args::{self, Shared};
use crate::input;
use crate::interrupt::Interrupt;
use crate::report::{INTERRUPTED, say};
use anyhow::bail;
use kjit_model::host::default_threads;
use kjit_model::sample::SampleOptions;
use kjit_model::session::{OpenOptions, Want};
use kjit_model::tokenizer::EncodeOptions;
use kjit_model::{DeviceChoice, Model};
use kjit_quantize::{ColumnSums, QuantizeError, write_imatrix};
use std::io::{self, IsTerminal};
use std::process::ExitCode;

/// Tokens of a step. Every token's scores are computed, which take most of the memory.
const STEP: usize = 64;

pub fn imatrix(args: &args::Imatrix, shared: &Shared) -> anyhow::Result<ExitCode> {
    if !matches!(shared.device, DeviceChoice::Auto | DeviceChoice::Cpu) {
        bail!("--device {}: an importance matrix is computed on the CPU", shared.device);
    }
    if !args.force && args.output.symlink_metadata().is_ok() {
        return Err(QuantizeError::Exists(args.output.clone()).into());
    }
    let text = input::raw_text(&args.file)?;
    let options = OpenOptions {
        device: DeviceChoice::Cpu,
        context: Some(args.context),
        precise: true,
        threads: shared.threads.map_or_else(default_threads, usize::from),
        ..OpenOptions::default()
    };
    let mut model = Model::open(args.model.path(shared)?, &options)?;
    let ids = model.tokenizer.encode(&text, EncodeOptions::RAW_PROMPT);
    let windows = (ids.len() / args.context).min(args.chunks.unwrap_or(usize::MAX));
    if windows == 0 {
        bail!(
            "the text has {} tokens, fewer than one window of {}: \
             give a longer text, or a smaller -c",
            ids.len(),
            args.context
        );
    }
    let Some(runner) = model.session.cpu_mut() else {
        bail!("an importance matrix is computed on the CPU alone")
    };
    runner.observe_inputs();
    let sequence = model.session.add(SampleOptions::default())?;
    let (watch, show) = (Interrupt::watch(), !shared.quiet && io::stderr().is_terminal());
    for (done, window) in ids.chunks_exact(args.context).take(windows).enumerate() {
        let mut window = window.to_vec();
        if let (true, Some(bos), Some(first)) =
            (model.tokenizer.add_bos(), model.tokenizer.bos(), window.first_mut())
        {
            *first = bos;
        }
        model.session.truncate(sequence, 0)?;
        for tokens in window.chunks(STEP) {
            model.session.feed(sequence, tokens, Want::All)?;
            if watch.came() {
                say("interrupted: no file was written");
                return Ok(ExitCode::from(INTERRUPTED));
            }
        }
        if show {
            say(format_args!("window {} of {windows}", done + 1));
        }
    }
    let runner = model.session.cpu();
    // The output matrix is omitted, as in llama.cpp: its mixtures store this matrix in Q6_K or a
    // format with more bits.
    let layers = runner.into_iter().flat_map(|runner| runner.input_squares());
    let sums: Vec<ColumnSums> = layers
        .filter(|(name, _)| name.starts_with("blk."))
        .map(|(name, squares)| ColumnSums {
            tensor: name.to_owned(),
            sums: squares.sums.iter().map(|sum| *sum as f32).collect(),
            counts: squares.counts.iter().map(|n| *n as f32).collect(),
        })
        .collect();
    if let Some(bad) = sums.iter().find(|of| of.sums.iter().any(|sum| !sum.is_finite())) {
        bail!("inputs of {} are not finite: the model is damaged", bad.tensor);
    }
    let dataset = args.file.display().to_string();
    let (chunks, tokens) = (windows as u32, args.context as u32);
    write_imatrix(&args.output, &dataset, chunks, tokens, &sums, args.force)?;
    if !shared.quiet {
        let unused: usize =
            sums.iter().map(|of| of.counts.iter().filter(|n| **n == 0.0).count()).sum();
        if unused > 0 {
            say(format_args!("note: {unused} experts were never chosen: give a longer text"));
        }
        let (file, n) = (args.output.display(), windows * args.context);
        say(format_args!("{file}: {} matrices over {n} tokens", sums.len()));
    }
    Ok(ExitCode::SUCCESS)
}
