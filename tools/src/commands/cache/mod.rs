//! `kjit cache`: shows and manages compiled kernels.

mod each;
mod filter;
mod pack;
mod registry;
mod show;

use crate::args::{self, CacheFilter, Shared};
use crate::engine::engine;
use crate::report::{bytes, say};
use filter::CacheSelection;
use kjit_cache::{EntryInfo, Origin, Warning};
use kjit_engine::Engine;
use serde_json::json;
use std::io::{self, Write};
use std::process::ExitCode;

pub fn cache(args: &args::Cache, shared: &Shared) -> anyhow::Result<ExitCode> {
    // A command about the cache fails if the cache is unusable. Other warnings are printed at the
    // end.
    let engine = engine(&Shared { quiet: true, ..shared.clone() });
    let (engine, cache) = (&engine, engine.cache());
    let there = cache
        .check_home()
        .map_err(|why| anyhow::anyhow!("{why} (--cache-dir names another cache)"))?;
    let looks_for_entries = !matches!(
        args,
        args::Cache::Stat { .. } | args::Cache::Import { .. } | args::Cache::Pull { .. }
    );
    if let Some(home) = cache.home().filter(|_| !there && looks_for_entries && !shared.quiet) {
        say(format_args!("note: the cache {} does not exist yet", home.display()));
    }
    let mut out = io::BufWriter::new(io::stdout().lock());
    let code = match args {
        args::Cache::Stat { filter, json } => {
            show::stat(engine, there, filter, json.json, &mut out)?
        }
        args::Cache::List { filter, json } => show::list(engine, filter, json.json, &mut out)?,
        args::Cache::Verify { filter, json } => show::verify(engine, filter, json.json, &mut out)?,
        args::Cache::Clear { filter, dry_run, records, json } => {
            let how = ClearReport {
                dry_run: *dry_run,
                records: *records,
                json: json.json,
                verbose: shared.verbose > 0,
            };
            clear(engine, filter, &how, &mut out)?
        }
        args::Cache::Export { filter, output, each: true, sign: Some(sign), json } => {
            each::export(engine, filter, output, sign, json.json, &mut out)?
        }
        args::Cache::Export { filter, output, sign, json, .. } => {
            pack::export(engine, filter, output, sign.as_deref(), json.json, &mut out)?
        }
        args::Cache::Import { pack, signer, json } => {
            pack::import(cache, pack, signer, json.json, &mut out)?
        }
        args::Cache::Push { to, filter, sign, json } => {
            registry::push(engine, (to, shared), filter, sign, json.json, &mut out)?
        }
        args::Cache::Pull { from, signer, json } => {
            registry::pull(cache, (from, shared), signer, json.json, &mut out)?
        }
    };
    out.flush()?;
    if !shared.quiet {
        let told = |warning: &Warning| {
            matches!((args, warning), (args::Cache::Verify { .. }, Warning::Corrupt { .. }))
        };
        cache
            .warnings()
            .iter()
            .filter(|warning| !told(warning))
            .for_each(|w| say(format_args!("warning: {w}")));
    }
    Ok(code)
}

struct ClearReport {
    dry_run: bool,
    records: bool,
    json: bool,
    verbose: bool,
}

fn clear(
    engine: &Engine,
    filter: &CacheFilter,
    how: &ClearReport,
    out: &mut impl Write,
) -> anyhow::Result<ExitCode> {
    let cache = engine.cache();
    let entries = cache.list();
    let picker = CacheSelection::new(engine, filter, &entries)?;
    let ours = |e: &EntryInfo| matches!(e.layer, Origin::Home | Origin::Memory);
    let (mine, packed): (Vec<&EntryInfo>, Vec<&EntryInfo>) =
        entries.iter().filter(|e| picker.picks(e)).partition(|e| ours(e));
    if how.verbose {
        mine.iter().for_each(|e| say(show::line(e)));
    }
    let done = match how.dry_run {
        true => kjit_cache::Cleared {
            entries: mine.len() as u64,
            bytes: mine.iter().map(|e| e.bytes).sum(),
            left: Vec::new(),
        },
        false => cache.clear(|e| picker.picks(e)),
    };
    let there = cache.records().len();
    let records = match (how.records, how.dry_run) {
        (true, false) => cache.clear_records(|_| true),
        (true, true) => there as u64,
        (false, _) => 0,
    };
    if how.json {
        let left: Vec<_> = done
            .left
            .iter()
            .map(|(path, why)| json!({ "path": path.display().to_string(), "why": why }))
            .collect();
        let doc = json!({
            "removed": done.entries, "bytes": done.bytes, "records": records, "dry_run": how.dry_run, "left": left,
        });
        writeln!(out, "{doc}")?;
    } else {
        let of = entries.iter().filter(|e| ours(e)).count();
        let verb = if how.dry_run { "would remove" } else { "removed" };
        write!(out, "{verb} {} of {of} entries, {}", done.entries, bytes(done.bytes))?;
        match (how.records, there) {
            (true, _) => writeln!(out, "; {records} of {there} records")?,
            (false, 0) => writeln!(out)?,
            (false, _) if !picker.all() => writeln!(out)?,
            (false, n) => writeln!(out, "; {n} records stay (--records removes them too)")?,
        }
    }
    if !packed.is_empty() {
        say(format_args!("note: {} more in read-only layers, which are not changed", packed.len()));
    }
    match done.left.first() {
        None => Ok(ExitCode::SUCCESS),
        Some((path, why)) => {
            out.flush()?;
            let more = match done.left.len() {
                1 => String::new(),
                n => format!(" (and {} more)", n - 1),
            };
            Err(anyhow::anyhow!("cannot remove {}: {why}{more}", path.display()))
        }
    }
}
