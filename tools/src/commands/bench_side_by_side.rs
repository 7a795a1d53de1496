//! `kjit bench -b`: decodes several sequences concurrently and counts the tokens of all.

use super::bench_table::{Head, Row, name, print};
use crate::args::{self, Setup, Shared};
use crate::load::{LoadOptions, open};
use anyhow::bail;
use kjit_model::SampleOptions;
use kjit_model::graph::Op;
use kjit_model::session::{DecodeControl, SequenceId, Session, SessionError, Want, Work};
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

pub fn bench(path: &Path, args: &args::Bench, shared: &Shared) -> anyhow::Result<ExitCode> {
    if args.tokens == 0 {
        bail!("bench -b: nothing to generate: give -n a number above 0");
    }
    let needed = args.depth.saturating_add(args.tokens);
    let context = args.setup.context.unwrap_or(needed).max(needed);
    let setup = Setup { context: Some(context), ..args.setup.clone() };
    let sequences = args.sequences.iter().copied().max().unwrap_or(1);
    let mut model =
        open(path, &setup, shared, &LoadOptions { sequences, ..LoadOptions::default() })?;
    // Several tokens read more experts than one token. The number is random, so no limit is
    // printed.
    let dense = !model.session.graph().ops.iter().any(|op| matches!(op, Op::Route(_)));
    if let Some(gpu) = model.session.gpu() {
        gpu.given_besides(&(&args.sequences, args.tokens, args.depth, args.repeat));
    }
    let mut rows = vec![];
    for &n in &args.sequences {
        let rates = measure(&mut model.session, n, args)?;
        let test = format!("{} × {n}", name("tg", args.tokens, args.depth));
        rows.push(Row { test, rates, together: dense.then_some(n) });
    }
    print(&rows, args.output, &Head::of(&model, shared)?)?;
    Ok(ExitCode::SUCCESS)
}

/// Tokens per second of all sequences together, for each repetition after a warm-up.
fn measure(session: &mut Session, n: usize, args: &args::Bench) -> Result<Vec<f64>, SessionError> {
    let vocab = session.n_vocab();
    // Token ids spread over the vocabulary, different for each sequence.
    let ids = |sequence: usize| -> Vec<u32> {
        (0..=args.depth).map(|i| ((i * 7919 + sequence * 104_729) % vocab) as u32).collect()
    };
    let new = |s| Ok((session.add(SampleOptions::default())?, ids(s)));
    let all: Vec<(SequenceId, Vec<u32>)> = (0..n).map(new).collect::<Result<_, SessionError>>()?;
    let halves = || all.iter().map(|(id, ids)| (*id, ids.split_at(args.depth)));
    let before =
        halves().map(|(sequence, (tokens, _))| Work { sequence, tokens, want: Want::Nothing });
    session.step(&before.collect::<Vec<_>>())?;
    let starts: Vec<(SequenceId, &[u32])> = halves().map(|(id, (_, last))| (id, last)).collect();
    let mut rates = vec![];
    for repetition in 0..=args.repeat {
        for (id, _) in &all {
            session.truncate(*id, args.depth)?;
        }
        let mut left = n * args.tokens;
        let start = Instant::now();
        // All sequences have the same number of tokens, so the last token of the last sequence ends
        // the run.
        session.decode_past_ends(&starts, &mut |_, _| {
            left = left.saturating_sub(1);
            if left == 0 { DecodeControl::Pause } else { DecodeControl::Go }
        })?;
        if repetition > 0 {
            rates.push((n * args.tokens) as f64 / start.elapsed().as_secs_f64());
        }
    }
    for (id, _) in all {
        session.remove(id)?;
    }
    Ok(rates)
}
