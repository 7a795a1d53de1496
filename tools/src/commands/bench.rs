//! `kjit bench`: measures a model's speed from end to end.

use super::bench_table::{Head, Row, name, print};
use crate::args;
use crate::args::Shared;
use crate::load::{LoadOptions, open_one};
use crate::report::say;
use anyhow::bail;
use kjit_model::session::{DecodeControl, SequenceId, Session, SessionError, Want};
use std::process::ExitCode;
use std::time::Instant;

pub fn bench(args: &args::Bench, shared: &Shared) -> anyhow::Result<ExitCode> {
    let Some(model) = &args.model else { bail!("no model given") };
    let path = &*model.path(shared)?;
    if args.sequences != [1] {
        return super::bench_side_by_side::bench(path, args, shared);
    }
    let mut setup = args.setup.clone();
    let most = args.prompt.max(args.tokens);
    if most == 0 {
        bail!("nothing to measure: give -p or -n above 0");
    }
    let needed = args.depth.saturating_add(most);
    match setup.context {
        Some(context) if context < needed => {
            bail!("-d, -p and -n need a context of {needed} tokens, but -c is {context}")
        }
        _ => setup.context = Some(setup.context.unwrap_or(needed)),
    }
    let (mut model, sequence) = open_one(path, &setup, shared, &LoadOptions::default())?;
    let session = &mut model.session;
    if let Some(gpu) = session.gpu() {
        gpu.given_besides(&(args.prompt, args.tokens, args.depth, args.repeat));
    }
    let mut rows = vec![];
    if args.prompt > 0 {
        let prefill =
            |session: &mut Session, ids: &[u32]| session.feed(sequence, ids, Want::Last).map(drop);
        let rates = measure(session, sequence, args, prefill, args.prompt)?;
        rows.push(Row { test: name("pp", args.prompt, args.depth), rates, together: None });
    }
    if args.tokens > 0 {
        // Measures decoding with the choice of each token, as when an answer is generated: such
        // steps need no synchronisation with the host.
        let one_by_one = |session: &mut Session, ids: &[u32]| {
            let mut left = ids.len();
            session.decode_past_ends(&[(sequence, ids.get(..1).unwrap_or(ids))], &mut |_, _| {
                left = left.saturating_sub(1);
                if left == 0 { DecodeControl::End } else { DecodeControl::Go }
            })
        };
        let rates = measure(session, sequence, args, one_by_one, args.tokens)?;
        rows.push(Row { test: name("tg", args.tokens, args.depth), rates, together: Some(1) });
    }
    print(&rows, args.output, &Head::of(&model, shared)?)?;
    if shared.verbose > 0
        && let Some(hot) = model.session.gpu().and_then(|gpu| gpu.hot())
    {
        say(hot);
    }
    Ok(ExitCode::SUCCESS)
}

/// Tokens per second of each repetition, after a warm-up.
fn measure(
    session: &mut Session,
    sequence: SequenceId,
    args: &args::Bench,
    work: impl Fn(&mut Session, &[u32]) -> Result<(), SessionError>,
    n: usize,
) -> Result<Vec<f64>, SessionError> {
    let vocab = session.n_vocab() as u64;
    // Token ids spread over the vocabulary, so that the rows of the embedding are not always in the
    // CPU cache.
    let ids: Vec<u32> = (0..(args.depth + n) as u64).map(|i| (i * 7919 % vocab) as u32).collect();
    let (before, timed) = ids.split_at(args.depth);
    session.truncate(sequence, 0)?;
    session.feed(sequence, before, Want::Nothing)?;
    let mut rates = vec![];
    for repetition in 0..=args.repeat {
        session.truncate(sequence, args.depth)?;
        let start = Instant::now();
        work(session, timed)?;
        if repetition > 0 {
            rates.push(n as f64 / start.elapsed().as_secs_f64());
        }
    }
    Ok(rates)
}
