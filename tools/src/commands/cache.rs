//! `kjit cache`: what was compiled, and what can be done with it.

use crate::args::{self, CacheFilter, Shared};
use crate::engine::cache_config;
use crate::report::bytes;
use anyhow::{Context, bail};
use kjit_cache::{Cache, EntryInfo, Export, Origin, PublicKey, SecretKey};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

pub fn cache(args: &args::Cache, shared: &Shared) -> anyhow::Result<ExitCode> {
    let cache = Cache::open(cache_config(shared));
    let mut out = io::BufWriter::new(io::stdout().lock());
    let code = match args {
        args::Cache::Stat(j) => stat(&cache, j.json, &mut out)?,
        args::Cache::List { filter, json } => list(&cache, filter, json.json, &mut out)?,
        args::Cache::Verify(j) => verify(&cache, j.json, &mut out)?,
        args::Cache::Clear { filter, json } => {
            let done = cache.clear(|e| filter.picks(e));
            match json.json {
                true => writeln!(out, "{}", json!({ "removed": done.entries, "bytes": done.bytes }))?,
                false => writeln!(out, "removed {} entries, {}", done.entries, bytes(done.bytes))?,
            }
            ExitCode::SUCCESS
        }
        args::Cache::Export { filter, output, sign } => {
            let secret = sign.as_ref().map(|file| secret_key(file)).transpose()?;
            let meta =
                BTreeMap::from([("made by".to_string(), concat!("kjit ", env!("CARGO_PKG_VERSION")).to_string())]);
            let what = Export { meta, entries: &|e| filter.picks(e), records: &|_| false, secret: secret.as_ref() };
            if !cache.list().iter().any(|e| filter.picks(e)) {
                bail!("nothing in the cache matches: kjit warm --arch … fills it");
            }
            let done = cache.export(output, &what)?;
            writeln!(out, "{}: {} entries, {}", output.display(), done.entries, bytes(done.bytes))?;
            ExitCode::SUCCESS
        }
        args::Cache::Import { pack, signer } => {
            let signers = signer
                .iter()
                .map(|s| s.parse::<PublicKey>().map_err(|_| anyhow::anyhow!("'{s}' is no public key: 64 hex digits")))
                .collect::<Result<Vec<_>, _>>()?;
            let done = cache.import(pack, &signers)?;
            for (digest, why) in &done.refused {
                crate::report::say(format_args!("refused {digest}: {why}"));
            }
            writeln!(out, "taken {}, already there {}, refused {}", done.taken, done.present, done.refused.len())?;
            ExitCode::from(u8::from(!done.refused.is_empty()))
        }
    };
    out.flush()?;
    Ok(code)
}

impl CacheFilter {
    fn picks(&self, e: &EntryInfo) -> bool {
        let meta = |key: &str| e.meta.get(key).map(String::as_str).unwrap_or_default();
        // `sm_90` and its arch-specific form `sm_90a` are one card's; feature flags follow a colon.
        let arch = |want: &str| {
            let have = meta("arch");
            have.strip_prefix(want).is_some_and(|rest| rest.is_empty() || rest == "a" || rest.starts_with(':'))
        };
        let last = e.used_s.unwrap_or(e.created_ms / 1000);
        self.arch.as_deref().is_none_or(arch)
            && self.kernel.as_deref().is_none_or(|k| meta("kernel").contains(k))
            && self.older_than.is_none_or(|days| now_s().saturating_sub(last) >= days.saturating_mul(86_400))
            && self.larger_than.is_none_or(|n| e.bytes >= n)
    }
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
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

fn stat(cache: &Cache, as_json: bool, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let stat = cache.stat();
    let home = stat.home.as_ref().map(|h| h.display().to_string());
    if as_json {
        let layers: Vec<Value> = stat
            .layers
            .iter()
            .map(|l| json!({ "layer": layer(&l.layer), "entries": l.entries, "bytes": l.bytes, "records": l.records }))
            .collect();
        writeln!(out, "{}", json!({ "home": home, "max_bytes": stat.max_bytes, "layers": layers }))?;
    } else {
        writeln!(out, "home: {} (at most {})", home.as_deref().unwrap_or("none, memory only"), bytes(stat.max_bytes))?;
        for l in &stat.layers {
            writeln!(out, "{}: {} entries, {}; {} records", layer(&l.layer), l.entries, bytes(l.bytes), l.records)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn list(cache: &Cache, filter: &CacheFilter, as_json: bool, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let entries: Vec<EntryInfo> = cache.list().into_iter().filter(|e| filter.picks(e)).collect();
    let meta = |e: &EntryInfo, key: &str| e.meta.get(key).cloned().unwrap_or_default();
    if as_json {
        let all: Vec<Value> = entries
            .iter()
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
        for e in &entries {
            let key = e.key.digest().hex();
            let key = key.get(..12).unwrap_or(&key);
            writeln!(
                out,
                "{key}  {:<10} {:<24} {:>9}  {}",
                meta(e, "arch"),
                meta(e, "kernel"),
                bytes(e.bytes),
                meta(e, "compiler")
            )?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn verify(cache: &Cache, as_json: bool, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let v = cache.verify();
    if as_json {
        let bad: Vec<Value> =
            v.bad.iter().map(|(p, why)| json!({ "path": p.display().to_string(), "why": why })).collect();
        writeln!(out, "{}", json!({ "good": v.good, "bytes": v.bytes, "moved": v.moved, "bad": bad }))?;
    } else {
        for (path, why) in &v.bad {
            writeln!(out, "bad: {}: {why}", path.display())?;
        }
        writeln!(out, "{} good ({}), {} put back in place, {} bad", v.good, bytes(v.bytes), v.moved, v.bad.len())?;
    }
    Ok(ExitCode::from(u8::from(!v.bad.is_empty())))
}

fn secret_key(file: &std::path::Path) -> anyhow::Result<SecretKey> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read the key file {}", file.display()))?;
    text.parse().map_err(|_| anyhow::anyhow!("{} holds no secret key: 64 hex digits", file.display()))
}
