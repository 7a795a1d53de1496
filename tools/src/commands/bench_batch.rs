//! `kjit bench -b`: sequences decoded side by side, all their tokens counted.

use super::bench::{Head, Row, bandwidth, name, print};
use crate::args::{self, GPU_BATCH, Shared};
use crate::engine::engine;
use crate::load::{DeviceInfo, gpu_label};
use crate::report::say;
use anyhow::{Context, bail};
use kjit_model::exec::{ExecError, ExecOptions};
use kjit_model::gguf::Gguf;
use kjit_model::gpu::{self, After, GpuBatch, Slot, Start};
use kjit_model::graph::Op;
use kjit_model::sample::{SampleOptions, Sampler};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

pub fn bench(model: &Path, args: &args::Bench, shared: &Shared) -> anyhow::Result<ExitCode> {
    let Some(label) = gpu_label(shared) else {
        bail!("bench -b: sequences are decoded side by side on a GPU only; on the CPU leave -b out")
    };
    if args.tokens == 0 {
        bail!("bench -b: nothing to generate: give -n a number above 0");
    }
    let gguf = Arc::new(Gguf::open(model)?);
    let graph = kjit_model::arch::build(&gguf).with_context(|| model.display().to_string())?;
    let needed = args.depth.saturating_add(args.tokens);
    let options = ExecOptions {
        context: args.setup.context.unwrap_or(needed).max(needed),
        kv: args.setup.kv_type.into(),
        precise: args.setup.precise,
        threads: shared.threads.map_or_else(kjit_model::host::default_threads, usize::from),
        batch: GPU_BATCH,
    };
    let (weights, per_token) = (graph.weights.iter().map(|w| w.bytes() as u64).sum(), graph.bytes_per_token());
    // Of experts, several tokens read more than one does: how many more is chance.
    let dense = !graph.ops.iter().any(|op| matches!(op, Op::Route { .. }));
    let engine = engine(shared);
    let device = engine.device(&label).with_context(|| format!("--device {label}"))?;
    let most = args.sequences.iter().copied().max().unwrap_or(1);
    let mut batch = gpu::open_batch(&engine, &device, gguf, graph, &options, most)?;
    let info = DeviceInfo::of(batch.device());
    if !shared.quiet {
        say(format_args!("device: {label}, {} ({})", info.name, info.arch));
    }
    let mut rows = vec![];
    for &n in &args.sequences {
        let rates = measure(&mut batch, n, args)?;
        let test = format!("{} × {n}", name("tg", args.tokens, args.depth));
        rows.push(Row { test, rates, together: dense.then_some(n) });
    }
    let limit = bandwidth(Some(&label), shared)?;
    print(&rows, args.output, &Head { device: &info, weights, per_token, limit })?;
    Ok(ExitCode::SUCCESS)
}

/// Tokens a second of all sequences together, for each repetition after one that does not count.
fn measure(batch: &mut GpuBatch, n: usize, args: &args::Bench) -> Result<Vec<f64>, ExecError> {
    let vocab = batch.n_vocab();
    // Ids that jump about the vocabulary, other ones in every sequence.
    let ids = |sequence: usize| -> Vec<u32> {
        (0..=args.depth).map(|i| ((i * 7919 + sequence * 104_729) % vocab) as u32).collect()
    };
    let all: Vec<(Slot, Vec<u32>)> = (0..n).map(|s| Ok((batch.add()?, ids(s)))).collect::<Result<_, ExecError>>()?;
    for (slot, ids) in &all {
        batch.feed(*slot, ids.get(..args.depth).unwrap_or(&[]))?;
    }
    let mut rates = vec![];
    for repetition in 0..=args.repeat {
        let mut samplers = vec![Sampler::new(SampleOptions::default()); n];
        for (slot, _) in &all {
            batch.truncate(*slot, args.depth)?;
        }
        let with = all.iter().zip(&mut samplers);
        let mut starts: Vec<Start<'_>> = with
            .map(|((slot, ids), sampler)| Start { slot: *slot, tokens: ids.get(args.depth..).unwrap_or(&[]), sampler })
            .collect();
        let mut left = n * args.tokens;
        let start = Instant::now();
        // Every sequence has as many: the last token of the last one ends all.
        batch.decode(&mut starts, &mut |_, _| {
            left -= 1;
            if left == 0 { After::Pause } else { After::Go }
        })?;
        if repetition > 0 {
            rates.push((n * args.tokens) as f64 / start.elapsed().as_secs_f64());
        }
    }
    for (slot, _) in all {
        batch.remove(slot)?;
    }
    Ok(rates)
}
