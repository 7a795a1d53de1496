//! Compares the CPU runner with llama.cpp on a tiny model of every architecture
//! (tests/data/oracle/archs).

use crate::it::support::draws::{self, Draw};
use crate::it::support::files::model_path;
use crate::it::support::oracle::{ids, log_sum_exp, oracle};
use crate::it::support::solo_session::SoloSession;
use kjit_model::gguf::Gguf;
use kjit_model::graph::{Graph, Op, Pooling};
use kjit_model::session::{KvType, OpenOptions, Session, Want, check_scores};
use serde_json::Value;
use std::sync::Arc;

/// Names of models that kjit refuses. A model on this list that runs fails the test.
const REFUSED: &[&str] = &[];

/// The largest KL(truth ‖ got) that passes. A correct f32 pass has 1e-11; the smallest wrong factor
/// gives far more than this limit.
const LIMIT: f64 = 1e-6;

/// A greedy step may choose either of the best two logits if they are closer than this.
const TIE_MARGIN: f32 = 1e-3;

struct Case {
    name: String,
    arch: String,
    entry: Value,
    file: Arc<Gguf>,
}

/// The models of a folder that exist. If no model exists, a message is printed.
fn cases(folder: &str) -> Vec<Case> {
    let index = oracle("archs/archs.json");
    let only = std::env::var("KJIT_TEST_ONLY").ok();
    let wanted = |name: &str| only.as_deref().is_none_or(|only| only.split(',').any(|o| o == name));
    let mut found = vec![];
    if model_path(folder).is_none() {
        return found;
    }
    for entry in index["models"].as_array().unwrap() {
        let [name, arch, file] =
            ["name", "arch", "file"].map(|k| entry[k].as_str().unwrap().to_string());
        if !wanted(&name) {
            continue;
        }
        let path = model_path(&format!("{folder}/{file}"))
            .unwrap_or_else(|| panic!("{folder}/{file} is missing: run scripts/fetch-test-models"));
        found.push(Case {
            name,
            arch,
            entry: entry.clone(),
            file: Arc::new(Gguf::open(path).unwrap()),
        });
    }
    found
}

/// Calls `test` with every model on two threads. Fails with all errors of all models.
fn each(folder: &str, test: impl Fn(&Case) -> Result<(), String> + Sync) {
    let cases = cases(folder);
    let halves: Vec<Vec<&Case>> =
        (0..2).map(|i| cases.iter().skip(i).step_by(2).collect()).collect();
    let wrong: Vec<String> = std::thread::scope(|s| {
        let threads: Vec<_> = halves
            .iter()
            .map(|half| {
                let run = || {
                    half.iter()
                        .filter_map(|c| test(c).err().map(|e| format!("{}: {e}", c.name)))
                        .collect()
                };
                s.spawn(run)
            })
            .collect();
        threads.into_iter().flat_map(|t| -> Vec<String> { t.join().unwrap() }).collect()
    });
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

fn graph(case: &Case) -> Result<Graph, String> {
    kjit_model::arch::build(&case.file).map_err(|e| e.to_string())
}

fn executor(case: &Case, chunk: usize) -> Result<SoloSession, String> {
    let options = OpenOptions {
        context: Some(48),
        kv: KvType::F32,
        precise: true,
        threads: 1,
        prefill_chunk: Some(chunk),
        ..OpenOptions::default()
    };
    let session = Session::on_cpu(Arc::clone(&case.file), graph(case)?, &options);
    Ok(SoloSession::of(session.map_err(|e| e.to_string())?))
}

fn floats(v: &Value) -> Vec<f32> {
    draws::floats(v.as_str().unwrap())
}

fn kl(truth: &[f32], got: &[f32]) -> f64 {
    assert_eq!(truth.len(), got.len());
    let (lse_p, lse_q) = (log_sum_exp(truth), log_sum_exp(got));
    let term = |(p, q): (&f32, &f32)| {
        let (lp, lq) = (f64::from(*p) - lse_p, f64::from(*q) - lse_q);
        // Every term is ≥ 0; the added part sums to 0.
        lp.exp() * ((lp - lq) + (lq - lp).exp() - 1.0)
    };
    let sum: f64 = truth.iter().zip(got).map(term).sum();
    if sum.is_nan() { f64::INFINITY } else { sum }
}

fn is_encoder(case: &Case) -> bool {
    !case.entry["embedding"].is_null()
}

fn feed(exec: &mut SoloSession, ids: &[u32], want: Want) -> Result<Vec<f32>, String> {
    exec.feed(ids, want).map_err(|e| e.to_string())
}

/// The largest KL over the rows of the last positions.
fn worst(case: &Case, rows: &[f32], vocab: usize) -> f64 {
    let truth: Vec<Vec<f32>> =
        case.entry["logits"].as_array().unwrap().iter().map(floats).collect();
    let last = &rows[rows.len() - truth.len() * vocab..];
    last.chunks_exact(vocab).zip(&truth).map(|(got, want)| kl(want, got)).fold(0.0, f64::max)
}

fn best(row: &[f32]) -> u32 {
    (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b]).then(b.cmp(&a))).unwrap() as u32
}

#[test]
fn every_architecture_matches_reference_at_any_prompt_split() {
    each("archs", |case| {
        let built = graph(case);
        if REFUSED.contains(&case.name.as_str()) {
            let error = built.err().ok_or("it runs: remove it from the list")?;
            let named = error.contains(&format!("'{}'", case.arch))
                || error.contains(&format!("'{}.", case.arch));
            return if named && !error.contains('\n') {
                Ok(())
            } else {
                Err(format!("the error does not name the architecture: {error}"))
            };
        }
        if is_encoder(case) {
            let got = executor(case, 512)?
                .host()
                .embed(&ids(&case.entry["ids"]))
                .map_err(|e| e.to_string())?;
            let want = floats(&case.entry["embedding"]);
            let off = crate::it::support::near::off(&got, &want);
            let refused = executor(case, 512)?
                .feed(&[5], Want::Last)
                .is_err_and(|e| e.to_string().contains(&case.arch));
            return if off < 1e-5 && refused {
                Ok(())
            } else {
                Err(format!("off by {off:.1e}, refused {refused}"))
            };
        }
        let (prompt, vocab) = (ids(&case.entry["ids"]), built?.n_vocab());
        for batch in [512, 7, 1] {
            let mut exec = executor(case, batch)?;
            let far = worst(case, &feed(&mut exec, &prompt, Want::All)?, vocab);
            if far > LIMIT {
                return Err(format!("in pieces of {batch}: KL {far:.1e}"));
            }
        }
        // As in normal use: a prompt with logits for the last token only, then token by token.
        let mut exec = executor(case, 512)?;
        let mut row = feed(&mut exec, &prompt, Want::Last)?;
        let margins = case.entry["margins"].as_array().unwrap();
        for (step, (want, margin)) in
            ids(&case.entry["greedy"]).into_iter().zip(margins).enumerate()
        {
            check_scores(&row).map_err(|e| e.to_string())?;
            let got = best(&row);
            if got != want && margin.as_f64().unwrap() as f32 > TIE_MARGIN {
                return Err(format!("greedy step {step}: got {got}, expected {want}"));
            }
            row = feed(&mut exec, &[want], Want::Last)?;
        }
        Ok(())
    });
}

/// Compares rows that differ only by the order of f32 sums. The range of the logits is some units.
fn same(what: &str, a: &[f32], b: &[f32]) -> Result<(), String> {
    let far = a
        .iter()
        .zip(b)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, |m: f32, d| if d.is_nan() { d } else { m.max(d) });
    if a.len() == b.len() && far < 2e-3 {
        Ok(())
    } else {
        Err(format!("{what}: logits {far} apart"))
    }
}

#[test]
fn truncate_and_continue_matches_single_pass() {
    each("archs", |case| {
        if REFUSED.contains(&case.name.as_str()) || is_encoder(case) {
            return Ok(());
        }
        let prompt = ids(&case.entry["ids"]);
        let mut exec = executor(case, 512)?;
        let there = feed(&mut exec, &prompt, Want::Last)?;
        // Truncates within tokens that were fed in one step and within tokens that were fed in
        // several, before and after a checkpoint if there is one.
        for back in [23, 11, 1, 0] {
            exec.truncate(back);
            for &other in prompt.iter().rev().take(3) {
                feed(&mut exec, &[other], Want::Nothing)?;
            }
            exec.truncate(back);
            if exec.tokens() != back {
                return Err(format!("{} tokens remain, expected {back}", exec.tokens()));
            }
            same(
                &format!("truncated to {back}"),
                &there,
                &feed(&mut exec, &prompt[back..], Want::Last)?,
            )?;
        }
        Ok(())
    });
}

#[test]
fn other_weights_match_at_any_prompt_split() {
    each("archs-seed", |case| {
        if REFUSED.contains(&case.name.as_str()) || is_encoder(case) {
            return Ok(());
        }
        let prompt = ids(&case.entry["ids"]);
        let whole = feed(&mut executor(case, 512)?, &prompt, Want::All)?;
        same("in pieces of 5", &whole, &feed(&mut executor(case, 5)?, &prompt, Want::All)?)?;
        same("token by token", &whole, &feed(&mut executor(case, 1)?, &prompt, Want::All)?)
    });
}

#[test]
fn embedding_is_pooled_from_rows_before_output_layer() {
    each("archs", |case| {
        if REFUSED.contains(&case.name.as_str()) {
            return Ok(());
        }
        let vector = |pooling| {
            kjit_model::arch::build_vector(&case.file, pooling).map_err(|e| e.to_string())
        };
        let whole = graph(case)?;
        if is_encoder(case) {
            return if vector(None)? == whole {
                Ok(())
            } else {
                Err("the vector differs from the rows of the encoder".into())
            };
        }
        let error = vector(None).err().ok_or("an encoder without a pooling type was accepted")?;
        if !error.contains(&format!("'{}'", case.arch)) {
            return Err(error);
        }
        let rows = vector(Some(Pooling::Mean))?;
        let name = &rows.value(rows.logits).name;
        let read = whole.find(name).ok_or("the rows are missing")?;
        let is_head = |op: &Op| matches!(op, Op::MatMul(m) if m.x == read && whole.value(m.out).width == whole.n_vocab());
        if !whole.ops.iter().any(is_head) {
            return Err(format!("no scores are computed from '{name}'"));
        }
        // The values from which scores are computed.
        let prompt = ids(&case.entry["ids"]);
        let mut exec = executor(case, 512)?;
        exec.host().tap(name);
        feed(&mut exec, &prompt, Want::All)?;
        let seen = exec.host().tapped(name).ok_or("not tapped")?.clone();
        let last = seen.data[seen.data.len() - seen.width..].to_vec();
        let mean: Vec<f32> = (0..seen.width)
            .map(|i| {
                seen.data.iter().skip(i).step_by(seen.width).map(|x| f64::from(*x)).sum::<f64>()
                    / prompt.len() as f64
            })
            .map(|x| x as f32)
            .collect();
        for (pooling, want) in [(Pooling::Last, last), (Pooling::Mean, mean)] {
            let options = OpenOptions {
                context: Some(48),
                precise: true,
                threads: 1,
                ..OpenOptions::default()
            };
            let session = Session::on_cpu(Arc::clone(&case.file), vector(Some(pooling))?, &options);
            let got = SoloSession::of(session.map_err(|e| e.to_string())?)
                .host()
                .embed(&prompt)
                .map_err(|e| e.to_string())?;
            let off = crate::it::support::near::off(&got, &want);
            if off.is_nan() || off > 1e-5 {
                return Err(format!("{pooling:?} is off by {off:.1e}"));
            }
        }
        Ok(())
    });
}

/// Runs a drawn model as in normal use: a prompt in pieces of `chunk` tokens.
fn drawn(draw: &Draw, chunk: usize) -> Result<SoloSession, String> {
    let file = draw.file()?;
    let graph = kjit_model::arch::build(&file).map_err(|e| e.to_string())?;
    let options = OpenOptions {
        context: Some(draw.context),
        kv: KvType::F32,
        precise: true,
        threads: 1,
        prefill_chunk: Some(chunk),
        ..OpenOptions::default()
    };
    Ok(SoloSession::of(Session::on_cpu(file, graph, &options).map_err(|e| e.to_string())?))
}

/// The largest difference of log Σ eˣ at a position that another order of f32 sums causes.
const MAX_LOGSUMEXP_DIFFERENCE: f64 = 2e-3;

#[test]
fn random_models_match_reference_at_any_prompt_split() {
    let found = draws::each(2, |draw| {
        // kjit may refuse files that llama.cpp refuses, but must not panic.
        let Some(golden) = &draw.golden else {
            let _ = drawn(draw, 512);
            return Ok(());
        };
        if draw.vector {
            let got = drawn(draw, 512)?.host().embed(&draw.ids).map_err(|e| e.to_string())?;
            let off = crate::it::support::near::off(&got, golden);
            return if off < 1e-4 {
                Ok(())
            } else {
                Err(format!("the vector is off by {off:.1e}"))
            };
        }
        for chunk in [512, 7, 1] {
            let mut exec = drawn(draw, chunk)?;
            let rows = feed(&mut exec, &draw.ids, Want::All)?;
            let (apart, kl) = draw.off(golden, &rows, exec.n_vocab());
            if apart > MAX_LOGSUMEXP_DIFFERENCE || kl > LIMIT {
                return Err(format!("in pieces of {chunk}: KL {kl:.1e}, sums {apart:.1e} apart"));
            }
        }
        Ok(())
    });
    let Some((wrong, count)) = found else { return };
    eprintln!("{count} draws, {} wrong", wrong.len());
    assert!(wrong.is_empty(), "{} of {count}:\n{}", wrong.len(), wrong.join("\n"));
}
