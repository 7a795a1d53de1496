//! Removes what was fetched: the links of a model, and the contents that nothing else links.

use crate::error::Error;
use crate::folder::{Folder, Lock, length, names, write};
use crate::hub::{Hub, several};
use crate::names::{Unclear, choose, models};
use crate::reference::{Pick, Reference};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

/// What was removed.
#[derive(Debug, Default)]
pub struct Removed {
    /// Paths inside the repository, each once.
    pub files: BTreeSet<String>,
    /// So much room it took.
    pub bytes: u64,
}

/// One file of one commit.
struct Link {
    commit: String,
    path: String,
    etag: Option<String>,
}

impl Hub {
    /// Removes a model from the cache, of the revision that is named or else of all commits; without a word
    /// or a file all models of the
    /// repository, and what came of those that were never fetched whole. What else Python has fetched of it
    /// stays.
    ///
    /// # Errors
    /// It is not here, several fit, another process fetches it, or the cache cannot be written.
    pub fn remove(&self, reference: &Reference) -> Result<Removed, Error> {
        let folder = self.folder(reference);
        let all = self.links(&folder)?;
        let (mut gone, mut unclear) = (vec![], None);
        for snapshot in folder.snapshots(reference.revision())? {
            let there = models(snapshot.files.iter().map(String::as_str));
            let meant = match (reference.pick(), choose(&there, reference.pick())) {
                (Pick::Default, _) => there,
                (_, Ok(model)) => vec![model],
                (_, Err(Unclear::Nothing(_))) => vec![],
                (_, Err(Unclear::Several(names))) => {
                    unclear = Some(several(reference, &names));
                    vec![]
                }
            };
            let paths: BTreeSet<String> = meant.into_iter().flat_map(|m| m.files).collect();
            gone.extend(all.iter().filter(|l| l.commit == snapshot.commit && paths.contains(&l.path)));
        }
        if let Some(error) = unclear {
            return Err(error);
        }
        let whole = *reference.pick() == Pick::Default && reference.revision().is_none();
        let partial = if whole { partials(&folder)? } else { vec![] };
        if gone.is_empty() && partial.is_empty() {
            return Err(Error::NotHere { what: reference.to_string(), cache: self.cache().to_owned() });
        }
        // Contents that other commits' files have, too, stay.
        let kept: BTreeSet<&String> = all
            .iter()
            .filter(|l| !gone.iter().any(|g| g.commit == l.commit && g.path == l.path))
            .filter_map(|l| l.etag.as_ref())
            .collect();
        let blobs: BTreeSet<&String> =
            gone.iter().filter_map(|l| l.etag.as_ref()).filter(|e| !kept.contains(e)).collect();
        // All locks before the first file goes.
        let busy = || Error::Busy { what: reference.to_string() };
        let mut locks: Vec<Lock> = vec![];
        for etag in blobs.iter().copied().chain(&partial) {
            locks.push(folder.try_lock(etag)?.ok_or_else(busy)?);
        }
        let mut removed = Removed::default();
        for link in &gone {
            remove_file(&folder.file(&link.commit, &link.path))?;
            removed.files.insert(link.path.clone());
        }
        for path in blobs.iter().map(|e| folder.blob(e)).chain(partial.iter().map(|e| folder.partial(e))) {
            removed.bytes += length(&path).unwrap_or(0);
            remove_file(&path)?;
        }
        drop(locks);
        tidy(&folder)?;
        Ok(removed)
    }

    /// Every link of every commit.
    fn links(&self, folder: &Folder) -> Result<Vec<Link>, Error> {
        let mut links = vec![];
        for snapshot in folder.snapshots(None)? {
            for path in snapshot.files {
                let to = fs::read_link(folder.file(&snapshot.commit, &path)).ok();
                let etag = to.and_then(|to| Some(to.file_name()?.to_str()?.to_owned()));
                links.push(Link { commit: snapshot.commit.clone(), path, etag });
            }
        }
        Ok(links)
    }
}

/// Contents of which only a part came.
fn partials(folder: &Folder) -> Result<Vec<String>, Error> {
    let blobs = names(&folder.path().join("blobs"))?;
    Ok(blobs.iter().filter_map(|name| Some(name.strip_suffix(".incomplete")?.to_owned())).collect())
}

fn remove_file(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(write("remove", path, e)),
        _ => Ok(()),
    }
}

/// Removes folders that hold nothing any more; the repository's whole if no file of it is left.
fn tidy(folder: &Folder) -> Result<(), Error> {
    empty_folders(&folder.path().join("snapshots"))?;
    if folder.snapshots(None)?.iter().all(|s| s.files.is_empty()) && names(&folder.path().join("blobs"))?.is_empty() {
        for path in [folder.path(), folder.locks()] {
            match fs::remove_dir_all(&path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(write("remove", &path, e)),
                _ => {}
            }
        }
    }
    Ok(())
}

fn empty_folders(path: &Path) -> Result<(), Error> {
    for name in names(path)? {
        let below = path.join(name);
        if below.is_dir() && !below.is_symlink() {
            empty_folders(&below)?;
            // One that is not empty stays.
            let _ = fs::remove_dir(&below);
        }
    }
    Ok(())
}
