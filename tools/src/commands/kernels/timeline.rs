//! `kjit bench MODEL --kernels --timeline FILE`: a page that shows when each block of a token in
//! one launch worked and waited.

use crate::args::{self, PersistentMode, Shared};
use crate::load::{LoadOptions, open_one};
use crate::table::{self, Cell, cell};
use anyhow::{Context, bail};
use kjit_model::gpu::Timeline;
use kjit_model::session::{DecodeControl, Probe};
use std::collections::HashMap;
use std::path::Path;
use std::process::ExitCode;

/// Number of tokens before the one that is recorded.
const WARMUP_TOKENS: usize = 16;

/// The HTML page that shows the data.
const PAGE: &str = include_str!("timeline.html");

pub fn timeline(args: &args::Bench, file: &Path, shared: &Shared) -> anyhow::Result<ExitCode> {
    let Some(model) = &args.model else { bail!("--timeline needs a MODEL") };
    let path = &*model.path(shared)?;
    let how = LoadOptions { probe: Probe::Stamps, ..LoadOptions::default() };
    let mut setup = args.setup.clone();
    setup.persistent = PersistentMode::On;
    setup.context = Some(setup.context.unwrap_or(0).max(args.depth + WARMUP_TOKENS + 1));
    let (mut opened, sequence) = open_one(path, &setup, shared, &how)?;
    let ids: Vec<u32> = (0..args.depth.max(1) as u32).map(|i| i % 97 + 1).collect();
    let mut left = WARMUP_TOKENS;
    opened.session.decode(&[(sequence, &ids)], &mut |_, _| {
        left = left.saturating_sub(1);
        if left == 0 { DecodeControl::End } else { DecodeControl::Go }
    })?;
    let gpu = opened.session.gpu().context("--timeline needs a GPU")?;
    let Some(seen) = gpu.timeline()? else {
        let why =
            gpu.plan().no_persistent.as_deref().unwrap_or("no cooperative launches on this device");
        bail!("a token of {} is not one launch: {why}", path.display());
    };
    let title =
        format!("{} on {}", path.file_name().unwrap_or_default().display(), opened.device());
    std::fs::write(file, page(&title, &seen)).with_context(|| file.display().to_string())?;
    table::write(&summary(&seen), args.output, &mut std::io::stdout().lock())?;
    Ok(ExitCode::SUCCESS)
}

/// The name of a step without the number of its layer.
fn kind(name: &str) -> String {
    name.split('.').filter(|part| part.parse::<u32>().is_err()).collect::<Vec<_>>().join(".")
}

fn page(title: &str, seen: &Timeline) -> String {
    let figures = serde_json::json!({
        "title": title,
        "blocks": seen.blocks,
        "names": seen.names,
        "kinds": seen.names.iter().map(|n| kind(n)).collect::<Vec<_>>(),
        "ns": seen.ns,
    });
    // The names come from a model file. Escaping `<` prevents them from ending the script.
    PAGE.replace("FIGURES", &figures.to_string().replace('<', "\\u003c"))
}

/// Medians over blocks and layers: time until the inputs were ready, until the results were
/// computed, and until the step ended.
fn summary(seen: &Timeline) -> Vec<Vec<Cell>> {
    let mut order: Vec<String> = vec![];
    let mut all: HashMap<String, [Vec<u32>; 4]> = HashMap::new();
    for (i, name) in seen.names.iter().enumerate() {
        let kind = kind(name);
        if !order.contains(&kind) {
            order.push(kind.clone());
        }
        let of = all.entry(kind).or_default();
        let steps: Vec<&[u32; 4]> =
            (0..seen.blocks).filter_map(|b| seen.ns.get(b * seen.names.len() + i)).collect();
        for s in &steps {
            for (part, ends) in of.iter_mut().zip(s.windows(2)) {
                part.push(ends.iter().rev().copied().reduce(u32::saturating_sub).unwrap_or(0));
            }
        }
        let (first, last) = (steps.iter().map(|s| s[0]).min(), steps.iter().map(|s| s[3]).max());
        of[3].push(last.unwrap_or(0).saturating_sub(first.unwrap_or(0)));
    }
    let us = |v: &mut Vec<u32>| {
        v.sort_unstable();
        f64::from(v.get(v.len() / 2).copied().unwrap_or(0)) / 1e3
    };
    let row = |kind: String| {
        let mut of = all.remove(&kind)?;
        let times = of[3].len();
        let [waits, computes, leaves, whole] = of.each_mut().map(us);
        Some(vec![
            cell("step", kind).titled("step"),
            cell("times", times).titled("times"),
            cell("waits_us", waits).titled("waits, µs").digits(2),
            cell("computes_us", computes).titled("computes").digits(2),
            cell("leaves_us", leaves).titled("leaves").digits(2),
            cell("whole_us", whole).titled("first to last").digits(2),
        ])
    };
    order.into_iter().filter_map(row).collect()
}
