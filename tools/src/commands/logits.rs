//! `kjit logits`: scores of the next token.

use crate::args::{self, Shared};
use crate::load::{LoadOptions, open_one};
use crate::ranks::answers;
use kjit_model::session::{Want, check_scores};
use serde_json::json;
use std::io::Write;
use std::process::ExitCode;

pub fn logits(args: &args::Logits, shared: &Shared) -> anyhow::Result<ExitCode> {
    let (mut model, sequence) = open_one(
        &args.model.path(shared)?,
        &args.setup,
        shared,
        &LoadOptions { steady: true, ..LoadOptions::default() },
    )?;
    let row = model.session.feed(sequence, &args.ids, Want::Last)?;
    check_scores(&row)?;
    let mut best: Vec<(u32, f32)> = (0..).zip(row.iter().copied()).collect();
    best.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    best.truncate(args.top);
    let logsumexp = logsumexp(&row);
    let mut out = answers();
    if args.json {
        let top: Vec<_> = best.iter().map(|(id, logit)| json!([id, logit])).collect();
        writeln!(out, "{}", json!({ "n_vocab": row.len(), "top": top, "logsumexp": logsumexp }))?;
    } else {
        writeln!(out, "{:>8} {:>12} {:>9}  token", "id", "logit", "p")?;
        for (id, logit) in best {
            let p = (f64::from(logit) - logsumexp).exp();
            // A model may have logits for more ids than its vocabulary has.
            let text = model.tokenizer.decode(&[id]).unwrap_or_default();
            writeln!(out, "{id:>8} {logit:>12.5} {p:>9.5}  {:?}", String::from_utf8_lossy(&text))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// ln Σ exp, in f64 and without overflow.
fn logsumexp(row: &[f32]) -> f64 {
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let max = f64::from(max);
    max + row.iter().map(|&v| (f64::from(v) - max).exp()).sum::<f64>().ln()
}
