//! `kjit cache export --each`: the files of a server for `--cache-remote`.

use super::filter::CacheSelection;
use super::pack::secret_key;
use crate::args::CacheFilter;
use crate::interrupt::Interrupt;
use crate::report::{INTERRUPTED, bytes, say};
use anyhow::{Context, bail};
use kjit_cache::{Digest, Export, PackError};
use kjit_engine::Engine;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

/// Writes a signed pack for each source key into a folder.
pub fn export(
    engine: &Engine,
    filter: &CacheFilter,
    folder: &Path,
    sign: &Path,
    as_json: bool,
    out: &mut impl Write,
) -> anyhow::Result<ExitCode> {
    let stop = Interrupt::watch();
    let secret = secret_key(sign)?;
    let cache = engine.cache();
    let entries = cache.list();
    let picker = CacheSelection::new(engine, filter, &entries)?;
    let picked = entries.iter().filter(|e| picker.picks(e));
    let sources: BTreeSet<Digest> = picked.map(|e| e.key.source().digest()).collect();
    if sources.is_empty() {
        bail!("nothing to export: no entry of the cache fits the filters");
    }
    std::fs::create_dir_all(folder)
        .with_context(|| format!("cannot create the folder {}", folder.display()))?;
    let (mut all, mut written) = (0, 0);
    for source in &sources {
        let what = Export {
            meta: BTreeMap::new(),
            entries: &|e| e.key.source().digest() == *source && picker.picks(e),
            records: &|_| false,
            secret: Some(&secret),
        };
        let path = folder.join(format!("{source}.kjitpack"));
        match cache.export_until(&path, &what, &|| stop.came()) {
            Ok(done) => (all, written) = (all + done.entries, written + done.bytes),
            Err(error @ PackError::Stopped { .. }) => {
                say(error);
                return Ok(ExitCode::from(INTERRUPTED));
            }
            Err(error) => return Err(error.into()),
        }
    }
    let (path, packs, signer) = (folder.display(), sources.len(), secret.public());
    if as_json {
        let doc = json!({
            "path": path.to_string(), "packs": packs, "entries": all, "bytes": written,
            "signer": signer.to_string(),
        });
        writeln!(out, "{doc}")?;
    } else {
        let size = bytes(written);
        writeln!(out, "{path}: {packs} packs, {all} entries, {size}; signed by {signer}")?;
    }
    Ok(ExitCode::SUCCESS)
}
