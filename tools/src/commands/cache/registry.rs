//! `kjit cache push` and `pull`: packs in a registry.

use super::pack;
use crate::args::{CacheFilter, Shared};
use crate::report::{INTERRUPTED, bytes};
use anyhow::Context;
use kjit_cache::{Cache, PublicKey};
use kjit_engine::{Engine, PACK_ARCHS};
use kjit_hub::Settings;
use kjit_hub::registry::{Artefact, Login, Registry};
use serde_json::json;
use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

pub fn push(
    engine: &Engine,
    (to, shared): (&Artefact, &Shared),
    filter: &CacheFilter,
    sign: &Path,
    as_json: bool,
    out: &mut impl Write,
) -> anyhow::Result<ExitCode> {
    let secret = pack::secret_key(sign)?;
    let mut registry = registry(to, shared)?;
    let folder = Folder::new()?;
    let file = folder.0.join("pack");
    let Some((done, archs)) = pack::written(engine, filter, &file, Some(&secret))? else {
        return Ok(ExitCode::from(INTERRUPTED));
    };
    let annotations = BTreeMap::from([
        ("org.opencontainers.image.title".to_owned(), "pack.kjitpack".to_owned()),
        (format!("kjit.{PACK_ARCHS}"), archs.join(",")),
    ]);
    let mut file = File::open(&file).with_context(|| file.display().to_string())?;
    let digest = registry.push(&mut file, &annotations)?;
    let signer = secret.public().to_string();
    if as_json {
        let doc = json!({
            "artefact": to.to_string(), "digest": digest, "entries": done.entries,
            "records": done.records, "bytes": done.bytes, "archs": archs, "signer": signer,
        });
        writeln!(out, "{doc}")?;
    } else {
        let (entries, size, archs) = (done.entries, bytes(done.bytes), archs.join(", "));
        writeln!(
            out,
            "{to}: {entries} entries, {size}, for {archs}; signed by {signer}; {digest}"
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

pub fn pull(
    cache: &Cache,
    (from, shared): (&Artefact, &Shared),
    signers: &[PublicKey],
    as_json: bool,
    out: &mut impl Write,
) -> anyhow::Result<ExitCode> {
    let mut registry = registry(from, shared)?;
    let folder = Folder::new()?;
    let path = folder.0.join("pack");
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path)
        .with_context(|| path.display().to_string())?;
    registry.pull(&mut file)?;
    drop(file);
    pack::import(cache, &path, signers, as_json, out).with_context(|| from.to_string())
}

fn registry(artefact: &Artefact, shared: &Shared) -> anyhow::Result<Registry> {
    let settings = Settings { min_rate: shared.min_rate.0, ..Settings::from_env()? };
    let login = Login::from_env().map_err(anyhow::Error::msg)?;
    Ok(Registry::new(&settings, artefact, login)?)
}

/// A temporary folder of this user. It is removed when this is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> anyhow::Result<Folder> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.subsec_nanos());
        let name = format!("kjit-pack-{}-{now}", std::process::id());
        let path = std::env::temp_dir().join(name);
        // Fails if another user created it before.
        let made = DirBuilder::new().mode(0o700).create(&path);
        made.with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
