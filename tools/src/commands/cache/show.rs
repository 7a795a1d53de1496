//! `kjit cache stat`, `list` and `verify`.

use super::filter::{CacheSelection, ModelKernels, meta};
use crate::args::CacheFilter;
use crate::columns;
use crate::report::{bytes, say};
use anyhow::bail;
use kjit_cache::{EntryInfo, Origin};
use kjit_engine::Engine;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::Write;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

/// Entries and bytes by architecture.
type ByArch = BTreeMap<String, (u64, u64)>;

pub fn by_arch<'e>(entries: impl Iterator<Item = &'e EntryInfo>) -> ByArch {
    let mut by_arch = ByArch::new();
    for e in entries {
        let arch = if meta(e, "arch").is_empty() { "(none)" } else { meta(e, "arch") };
        let (count, size) = by_arch.entry(arch.to_owned()).or_default();
        (*count, *size) = (*count + 1, *size + e.bytes);
    }
    by_arch
}

fn layer(origin: &Origin) -> String {
    match origin {
        Origin::Home => "home".to_string(),
        Origin::Memory => "memory".to_string(),
        Origin::ReadOnly(path) => path.display().to_string(),
        Origin::Shared | Origin::Made => "new".to_string(),
        other => format!("{other:?}"),
    }
}

pub fn stat(
    engine: &Engine,
    there: bool,
    filter: &CacheFilter,
    as_json: bool,
    out: &mut impl Write,
) -> anyhow::Result<ExitCode> {
    let cache = engine.cache();
    let stat = cache.stat();
    let home = stat.home.as_ref().map(|h| h.display().to_string());
    // Counting files is fast, reading all of them is slow, so entries are read only if a filter
    // needs them.
    let asked = filter_asks(filter);
    let entries = if asked { cache.list() } else { Vec::new() };
    let picker = CacheSelection::new(engine, filter, &entries)?;
    let picked: Vec<&EntryInfo> = entries.iter().filter(|e| picker.picks(e)).collect();
    let by_arch = by_arch(picked.iter().copied());
    let size: u64 = picked.iter().map(|e| e.bytes).sum();
    if as_json {
        let layers: Vec<Value> = stat
            .layers
            .iter()
            .map(|l| json!({ "layer": layer(&l.layer), "entries": l.entries, "bytes": l.bytes, "records": l.records }))
            .collect();
        let mut doc = json!({
            "home": home, "there": there, "max_bytes": stat.max_bytes, "layers": layers, "other_formats": stat.other_formats,
        });
        if let (true, Some(map)) = (asked, doc.as_object_mut()) {
            let archs: Vec<Value> = by_arch
                .iter()
                .map(|(arch, (n, b))| json!({ "arch": arch, "entries": n, "bytes": b }))
                .collect();
            map.insert(
                "picked".into(),
                json!({ "entries": picked.len(), "bytes": size, "archs": archs }),
            );
            map.insert("model".into(), presence_json(picker.wanted(), &entries));
        }
        writeln!(out, "{doc}")?;
    } else {
        match &home {
            Some(home) if !there => {
                writeln!(out, "home: {home} (not created yet, at most {})", bytes(stat.max_bytes))?
            }
            Some(home) => writeln!(out, "home: {home} (at most {})", bytes(stat.max_bytes))?,
            None => writeln!(out, "home: none, memory only")?,
        }
        for l in &stat.layers {
            writeln!(
                out,
                "{}: {} entries, {}; {} records",
                layer(&l.layer),
                l.entries,
                bytes(l.bytes),
                l.records
            )?;
        }
        if asked {
            writeln!(out, "picked: {} entries, {}", picked.len(), bytes(size))?;
            for (arch, (n, b)) in &by_arch {
                writeln!(out, "  {arch}: {n} entries, {}", bytes(*b))?;
            }
            for wanted in picker.wanted() {
                writeln!(out, "{}", presence(wanted, &entries))?;
            }
        }
    }
    if let Some(home) = home.filter(|_| !stat.other_formats.is_empty()) {
        let others = stat.other_formats.join(", ");
        say(format_args!(
            "note: {home} also contains {others}: \
             entries of another version of kjit, which stay unchanged"
        ));
    }
    Ok(ExitCode::SUCCESS)
}

fn filter_asks(f: &CacheFilter) -> bool {
    !f.arch.is_empty()
        || f.model.is_some()
        || f.kernel.is_some()
        || f.older.is_some()
        || f.larger.is_some()
}

/// `gfx1100: 40 of the model's 42 kernels are cached; missing: …`
pub fn presence(wanted: &ModelKernels, entries: &[EntryInfo]) -> String {
    let missing = wanted.missing(entries);
    let all = wanted.kernels.len();
    let here =
        format!("{}: {} of the model's {all} kernels are cached", wanted.arch, all - missing.len());
    match missing.as_slice() {
        [] => here,
        [some @ .., last] if some.len() < 5 => {
            format!(
                "{here}; missing: {}{}{last}",
                some.join(", "),
                if some.is_empty() { "" } else { ", " }
            )
        }
        [a, b, c, ..] => format!("{here}; missing: {a}, {b}, {c} and {} more", missing.len() - 3),
        _ => here,
    }
}

fn presence_json(wanted: &[ModelKernels], entries: &[EntryInfo]) -> Value {
    let one = |w: &ModelKernels| {
        let missing = w.missing(entries);
        json!({ "arch": w.arch, "kernels": w.kernels.len(), "missing": missing })
    };
    wanted.iter().map(one).collect()
}

pub fn list(
    engine: &Engine,
    filter: &CacheFilter,
    as_json: bool,
    out: &mut impl Write,
) -> anyhow::Result<ExitCode> {
    let all = engine.cache().list();
    let picker = CacheSelection::new(engine, filter, &all)?;
    let entries = all.iter().filter(|e| picker.picks(e));
    if as_json {
        let all: Vec<Value> = entries
            .map(|e| {
                json!({
                    "key": e.key.digest().hex(), "path": e.path.as_ref().map(|p| p.display().to_string()),
                    "arch": meta(e, "arch"), "kernel": meta(e, "kernel"), "bytes": e.bytes, "compiler": meta(e, "compiler"),
                    "created": e.created_ms / 1000, "used": e.used_s, "layer": layer(&e.layer),
                })
            })
            .collect();
        writeln!(out, "{}", Value::from(all))?;
    } else {
        let width = columns::width();
        for e in entries {
            writeln!(out, "{}", columns::clipped(&line(e), width))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// An entry as text: key, architecture, kernel, size, age since its last use (or since its
/// creation), compiler, layer.
pub fn line(e: &EntryInfo) -> String {
    let key = e.key.digest().hex();
    let key = key.get(..12).unwrap_or(&key);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let age = age(now.saturating_sub(e.used_s.unwrap_or(e.created_ms / 1000)));
    let (arch, kernel) = (meta(e, "arch"), meta(e, "kernel"));
    let place =
        if e.layer == Origin::Home { String::new() } else { format!("  {}", layer(&e.layer)) };
    format!(
        "{key}  {arch:<10} {kernel:<24} {:>9} {age:>5}  {}{place}",
        bytes(e.bytes),
        meta(e, "compiler")
    )
}

/// An age in the largest suitable unit.
fn age(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} m", seconds / 60),
        3600..86_400 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

pub fn verify(
    engine: &Engine,
    filter: &CacheFilter,
    as_json: bool,
    out: &mut impl Write,
) -> anyhow::Result<ExitCode> {
    let cache = engine.cache();
    let asked = filter_asks(filter);
    let mut entries = Vec::new();
    let mut v = match asked {
        false => cache.verify(),
        true => {
            let good = RefCell::new(Vec::new());
            let report = cache.verify_picked(|e| {
                good.borrow_mut().push(e.clone());
                true
            });
            entries = good.into_inner();
            report
        }
    };
    let picker = CacheSelection::new(engine, filter, &entries)?;
    if asked {
        let picked = || entries.iter().filter(|e| picker.picks(e));
        (v.good, v.bytes) = (picked().count() as u64, picked().map(|e| e.bytes).sum());
    }
    if as_json {
        let bad: Vec<Value> = v
            .bad
            .iter()
            .map(|(p, why)| json!({ "path": p.display().to_string(), "why": why }))
            .collect();
        let mut doc = json!({ "good": v.good, "bytes": v.bytes, "moved": v.moved, "aside": v.aside, "bad": bad });
        if let (true, Some(map)) = (asked, doc.as_object_mut()) {
            map.insert("model".into(), presence_json(picker.wanted(), &entries));
        }
        writeln!(out, "{doc}")?;
    } else {
        for (path, why) in &v.bad {
            writeln!(out, "bad: {}: {why}", path.display())?;
        }
        write!(
            out,
            "{} good ({}), {} moved to their place, {} bad",
            v.good,
            bytes(v.bytes),
            v.moved,
            v.bad.len()
        )?;
        match (v.bad.len() as u64, v.aside) {
            (0, _) => writeln!(out)?,
            (bad, aside) if aside == bad => {
                writeln!(out, ", set aside: compiled again when needed")?
            }
            (bad, aside) => writeln!(
                out,
                ", {} of them in read-only folders: not moved, never used",
                bad - aside
            )?,
        }
        for wanted in picker.wanted() {
            writeln!(out, "{}", presence(wanted, &entries))?;
        }
    }
    if let Some(w) = picker.wanted().iter().find(|w| !w.missing(&entries).is_empty()) {
        let model = filter.model.as_ref().map(ToString::to_string).unwrap_or_default();
        out.flush()?;
        bail!("{model}: kernels are missing: kjit warm {model} --arch {}", w.arch);
    }
    Ok(ExitCode::from(u8::from(!v.bad.is_empty())))
}
