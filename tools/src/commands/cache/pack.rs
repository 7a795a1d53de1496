//! `kjit cache export` and `import`.

use super::filter::CacheSelection;
use super::show::{by_arch, presence};
use crate::args::CacheFilter;
use crate::input;
use crate::interrupt::Interrupt;
use crate::report::{INTERRUPTED, bytes, say};
use anyhow::{Context, bail};
use kjit_cache::{Cache, EntryInfo, Export, Exported, Key, Pack, PackError, PublicKey, SecretKey};
use kjit_engine::{Engine, PACK_ARCHS, Target, tuned_arch};
use serde_json::json;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

/// Maximum number of refused entries of an import that are printed.
const MAX_PRINTED: usize = 5;

pub fn export(
    engine: &Engine,
    filter: &CacheFilter,
    output: &Path,
    sign: Option<&Path>,
    as_json: bool,
    out: &mut impl Write,
) -> anyhow::Result<ExitCode> {
    let secret = sign.map(secret_key).transpose()?;
    let Some((done, archs)) = written(engine, filter, output, secret.as_ref())? else {
        return Ok(ExitCode::from(INTERRUPTED));
    };
    let signer = secret.map(|key| key.public().to_string());
    let path = output.display().to_string();
    if as_json {
        let doc = json!({
            "path": path, "entries": done.entries, "records": done.records, "bytes": done.bytes, "archs": archs, "signer": signer,
        });
        writeln!(out, "{doc}")?;
    } else {
        let tuned = if done.records > 0 {
            format!(", {} records of tuning", done.records)
        } else {
            String::new()
        };
        write!(
            out,
            "{path}: {} entries{tuned}, {}, for {}",
            done.entries,
            bytes(done.bytes),
            archs.join(", ")
        )?;
        match signer {
            Some(signer) => writeln!(out, "; signed by {signer}")?,
            None => writeln!(out)?,
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes the pack of a filter. Returns the counts and the architectures, or `None` if it was
/// interrupted.
pub fn written(
    engine: &Engine,
    filter: &CacheFilter,
    output: &Path,
    secret: Option<&SecretKey>,
) -> anyhow::Result<Option<(Exported, Vec<String>)>> {
    let stop = Interrupt::watch();
    let cache = engine.cache();
    let entries = cache.list();
    let picker = CacheSelection::new(engine, filter, &entries)?;
    // If some kernels of the model are missing, the machine that gets the pack would compile them,
    // or fail.
    if let Some(wanted) = picker.wanted().iter().find(|w| !w.missing(&entries).is_empty()) {
        let model = filter.model.as_ref().map(ToString::to_string).unwrap_or_default();
        bail!("{} (kjit warm {model} --arch {})", presence(wanted, &entries), wanted.arch);
    }
    let picked: Vec<&EntryInfo> = entries.iter().filter(|e| picker.picks(e)).collect();
    if picked.is_empty() {
        let here: Vec<String> =
            by_arch(entries.iter()).iter().map(|(arch, (n, _))| format!("{arch} ({n})")).collect();
        match here.as_slice() {
            [] => bail!("nothing to export: the cache is empty; kjit warm --arch … fills it"),
            _ => bail!(
                "nothing to export: no entry matches the filters; there are entries for {}",
                here.join(", ")
            ),
        }
    }
    let archs: Vec<String> = by_arch(picked.iter().copied()).into_keys().collect();
    let mut meta = BTreeMap::from([
        ("made by".to_string(), concat!("kjit ", env!("CARGO_PKG_VERSION")).to_string()),
        (PACK_ARCHS.to_string(), archs.join(",")),
    ]);
    if let Some(model) = &filter.model {
        meta.insert("model".to_string(), model.short().into_owned());
    }
    // Tuning results decide which kernels a plan needs. Without them the pack's kernels would not
    // be used.
    let ids: Vec<&str> =
        archs.iter().filter_map(|arch| Some(Target::parse(arch).ok()?.id())).collect();
    let tuned = |key: &Key| tuned_arch(key).is_some_and(|arch| ids.contains(&arch.as_str()));
    let what = Export { meta, entries: &|e| picker.picks(e), records: &tuned, secret };
    let done = match cache.export_until(output, &what, &|| stop.came()) {
        Err(error @ PackError::Stopped { .. }) => {
            say(error);
            return Ok(None);
        }
        done => done?,
    };
    Ok(Some((done, archs)))
}

pub fn import(
    cache: &Cache,
    path: &Path,
    signers: &[PublicKey],
    as_json: bool,
    out: &mut impl Write,
) -> anyhow::Result<ExitCode> {
    let pack = Pack::open(path, signers)?;
    let said = |key: &str| pack.meta().get(key).cloned().unwrap_or_default();
    let (archs, signer) = (said(PACK_ARCHS), pack.signer().map(|key| key.to_string()));
    let done = cache.import(path, signers)?;
    if as_json {
        let refused: Vec<_> =
            done.refused.iter().map(|(key, why)| json!({ "key": key.hex(), "why": why })).collect();
        let doc = json!({
            "taken": done.taken, "present": done.present, "refused": refused, "archs": archs, "signer": signer,
        });
        writeln!(out, "{doc}")?;
    } else {
        write!(
            out,
            "imported {}, already cached {}, refused {}",
            done.taken,
            done.present,
            done.refused.len()
        )?;
        match signer {
            Some(signer) => writeln!(out, "; for {archs}; signed by {signer}")?,
            None if archs.is_empty() => writeln!(out)?,
            None => writeln!(out, "; for {archs}")?,
        }
    }
    if done.refused.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    out.flush()?;
    for (key, why) in done.refused.iter().take(MAX_PRINTED) {
        say(format_args!("refused {key}: {why}"));
    }
    bail!(
        "{}: {} of {} entries are invalid and were refused",
        path.display(),
        done.refused.len(),
        pack.len()
    )
}

pub fn secret_key(file: &Path) -> anyhow::Result<SecretKey> {
    use std::os::unix::fs::PermissionsExt;
    let at = || format!("cannot read the key file {}", file.display());
    let text = input::text(std::fs::read(file).with_context(at)?, &file.display().to_string())?;
    if std::fs::metadata(file).with_context(at)?.permissions().mode() & 0o077 != 0 {
        say(format_args!(
            "warning: other users can read the secret key {}: chmod 600",
            file.display()
        ));
    }
    text.parse().map_err(|_| {
        anyhow::anyhow!("{} does not contain a secret key (64 hex digits)", file.display())
    })
}
