//! `kjit pull`, `kjit list` and `kjit rm`: download, list and remove models of the hub.

use crate::args::{self, Shared};
use crate::columns::{self, Column};
use crate::model::{fetching, hub};
use crate::report::{bytes, say};
use kjit_hub::Local;
use serde_json::{Value, json};
use std::io::{self, Write};
use std::process::ExitCode;

pub fn pull(args: &args::Pull, shared: &Shared) -> anyhow::Result<ExitCode> {
    let pulled = fetching(shared, !args.no_mmproj, |hub, watch| hub.pull(&args.model, watch))?;
    let local = &pulled.local;
    let mut out = io::stdout().lock();
    if args.json {
        let mut doc = document(local);
        if let Some(map) = doc.as_object_mut() {
            map.insert("fetched".into(), pulled.fetched.into());
        }
        writeln!(out, "{doc}")?;
    } else {
        writeln!(out, "{}", local.path().display())?;
    }
    if !shared.quiet {
        let came = match pulled.fetched {
            0 => "nothing to download".to_owned(),
            came => format!("{} fetched", bytes(came)),
        };
        say(format_args!("{}, {}, {came}", local.reference, bytes(local.bytes)));
    }
    Ok(ExitCode::SUCCESS)
}

pub fn list(args: &args::Json, shared: &Shared) -> anyhow::Result<ExitCode> {
    let (all, cache) =
        fetching(shared, false, |hub, watch| Ok((hub.list(watch)?, hub.cache().to_owned())))?;
    let mut out = io::BufWriter::new(io::stdout().lock());
    if args.json {
        writeln!(out, "{}", Value::Array(all.iter().map(document).collect()))?;
    } else {
        let row = |local: &Local| {
            let parts = match (local.files.len(), &local.missing) {
                (_, Some(missing)) => format!("  incomplete: {missing} is missing"),
                (1, None) => String::new(),
                (n, None) => format!("  {n} files"),
            };
            let revision = format!("{}{parts}", revision(local));
            vec![local.reference.to_string(), format!("{:>9}", bytes(local.bytes)), revision]
        };
        let rows: Vec<_> = all.iter().map(row).collect();
        let columns = [Column::Flexible, Column::Right, Column::Left];
        columns::write(&columns, &rows, columns::width(), &mut out)?;
        if all.is_empty() && !shared.quiet {
            say(format_args!(
                "no models in {}: `kjit pull hf:ORG/REPO:QUANT` fetches one",
                cache.display()
            ));
        }
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

pub fn rm(args: &args::Rm, shared: &Shared) -> anyhow::Result<ExitCode> {
    let removed = hub()?.remove(&args.model)?;
    if args.json {
        writeln!(
            io::stdout().lock(),
            "{}",
            json!({ "files": removed.files, "bytes": removed.bytes })
        )?;
    }
    if !shared.quiet {
        let files: Vec<&str> = removed.files.iter().map(String::as_str).collect();
        let what = if files.is_empty() {
            "the parts of unfinished downloads".to_owned()
        } else {
            files.join(", ")
        };
        say(format_args!("removed {what}: {} freed", bytes(removed.bytes)));
    }
    Ok(ExitCode::SUCCESS)
}

/// The branch or tag, and the first digits of the commit.
fn revision(local: &Local) -> String {
    let commit = local.commit.get(..7).unwrap_or(&local.commit);
    match local.revisions.as_slice() {
        [] => commit.to_owned(),
        known => format!("{} {commit}", known.join(",")),
    }
}

fn document(local: &Local) -> Value {
    let files: Vec<String> = local.files.iter().map(|f| f.display().to_string()).collect();
    json!({
        "ref": local.reference.to_string(), "path": local.path().display().to_string(), "files": files, "bytes": local.bytes,
        "commit": local.commit, "revisions": local.revisions, "missing": local.missing,
        "encoder": local.encoder.as_ref().map(|path| path.display().to_string()),
    })
}
