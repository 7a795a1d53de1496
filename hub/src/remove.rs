//! Removes models: their links, and contents that no other file links to.

use crate::error::Error;
use crate::fetch::PARTIAL;
use crate::folder::{Folder, Lock, read, write};
use crate::hub::{Hub, several};
use crate::names::{AmbiguousReference, choose, is_encoder, models};
use crate::open_dir::OpenDir;
use crate::reference::{Pick, Reference};
use std::collections::BTreeSet;
use std::path::Path;

/// The result of a removal.
#[derive(Debug, Default)]
pub struct Removed {
    /// Removed paths in the repository, each once.
    pub files: BTreeSet<String>,
    /// Number of bytes that were freed.
    pub bytes: u64,
}

/// One file of one commit.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Link {
    commit: String,
    path: String,
    etag: Option<String>,
}

impl Hub {
    /// Removes a model from the cache: of the revision in the reference, or of all commits. A
    /// reference without a tag or file means all models of the repository, including partial
    /// downloads. The encoders of images (mmproj) go with the last model of a commit. Other files
    /// that Python's library fetched stay.
    ///
    /// # Errors
    /// The model is not in the cache, several models match, another process is fetching it, or the
    /// cache cannot be written.
    pub fn remove(&self, reference: &Reference) -> Result<Removed, Error> {
        let folder = self.folder(reference);
        let all = links(&folder)?;
        let (mut gone, mut unclear) = (BTreeSet::new(), None);
        let mut unread = None;
        let snapshots =
            folder.snapshots(reference.revision(), &mut |path, e| unread = Some(read(path, e)));
        // An unreadable folder stops the removal: its files may need a content that would be
        // removed.
        if let Some(error) = unread {
            return Err(error);
        }
        for snapshot in snapshots {
            let there = models(snapshot.files.iter().map(String::as_str));
            let all_models = there.len();
            let meant = match (reference.pick(), choose(&there, reference.pick())) {
                (Pick::Default, _) => there,
                (_, Ok(model)) => vec![model],
                (_, Err(AmbiguousReference::Nothing(_))) => vec![],
                (_, Err(AmbiguousReference::Several(names))) => {
                    unclear = Some(several(reference, &names));
                    vec![]
                }
            };
            let last = meant.len() == all_models;
            let mut paths: BTreeSet<String> = meant.into_iter().flat_map(|m| m.files).collect();
            // The encoders of images go with the last model.
            let encoders = snapshot.files.iter().filter(|path| last && is_encoder(path));
            paths.extend(encoders.cloned());
            gone.extend(
                all.iter().filter(|l| l.commit == snapshot.commit && paths.contains(&l.path)),
            );
        }
        if let Some(error) = unclear {
            return Err(error);
        }
        let whole = *reference.pick() == Pick::Default && reference.revision().is_none();
        let partial = if whole { partials(&folder)? } else { vec![] };
        if gone.is_empty() && partial.is_empty() {
            return Err(Error::NotHere {
                what: reference.to_string(),
                cache: self.cache().to_owned(),
            });
        }
        // Contents that files of other commits use stay.
        let kept: BTreeSet<&String> =
            all.iter().filter(|l| !gone.contains(l)).filter_map(|l| l.etag.as_ref()).collect();
        let blobs: BTreeSet<&String> =
            gone.iter().filter_map(|l| l.etag.as_ref()).filter(|e| !kept.contains(e)).collect();
        // All locks are taken before the first removal.
        let busy = || Error::Busy { what: reference.to_string() };
        let mut locks: Vec<Lock> = vec![];
        for etag in blobs.iter().copied().chain(&partial) {
            locks.push(folder.try_lock(etag)?.ok_or_else(busy)?);
        }
        let mut removed = Removed::default();
        for link in &gone {
            let (place, name) = folder.place_of(&link.commit, &link.path)?;
            remove_name(place.as_ref(), name)?;
            removed.files.insert(link.path.clone());
        }
        let contents = folder.contents()?;
        for name in blobs
            .iter()
            .map(|e| (*e).clone())
            .chain(partial.iter().map(|e| format!("{e}{PARTIAL}")))
        {
            removed.bytes += contents.as_ref().and_then(|blobs| blobs.length(&name)).unwrap_or(0);
            remove_name(contents.as_ref(), &name)?;
        }
        drop(locks);
        folder.tidy()?;
        Ok(removed)
    }
}

/// All links of all commits.
fn links(folder: &Folder) -> Result<Vec<Link>, Error> {
    let mut links = vec![];
    let mut unread = None;
    for snapshot in folder.snapshots(None, &mut |path, e| unread = Some(read(path, e))) {
        for path in snapshot.files {
            let (place, name) = folder.place_of(&snapshot.commit, &path)?;
            let to = place.and_then(|place| place.link(name));
            let etag = to.and_then(|to| Some(Path::new(&to).file_name()?.to_str()?.to_owned()));
            links.push(Link { commit: snapshot.commit.clone(), path, etag });
        }
    }
    unread.map_or(Ok(links), Err)
}

/// Contents with partial downloads.
fn partials(folder: &Folder) -> Result<Vec<String>, Error> {
    let Some(blobs) = folder.contents()? else { return Ok(vec![]) };
    let names = blobs.names().map_err(|e| read(blobs.path(), e))?;
    Ok(names.iter().filter_map(|name| Some(name.strip_suffix(PARTIAL)?.to_owned())).collect())
}

/// Removes a link or a file. The target of a link stays.
fn remove_name(place: Option<&OpenDir>, name: &str) -> Result<(), Error> {
    let Some(place) = place else { return Ok(()) };
    place.remove(name).map_err(|e| write("remove", &place.path().join(name), e))
}
