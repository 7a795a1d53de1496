//! Finds a model by its reference, in the cache or by fetching it.

use crate::api::FileMeta;
use crate::error::{Error, listed, shown};
use crate::event::{Event, Watch};
use crate::fetch::{FileRequest, fetch};
use crate::folder::{Folder, length, read};
use crate::http::Http;
use crate::names::{AmbiguousReference, ModelFiles, choose, encoder_of, is_part, models};
use crate::reference::{MAIN, Pick, Reference, is_repo};
use crate::settings::Settings;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

/// The hub, and the models in its cache.
pub struct Hub {
    settings: Settings,
}

/// A model with files in the cache.
#[derive(Debug, Clone)]
pub struct Local {
    /// The reference to exactly this file.
    pub reference: Reference,
    /// The commit of the model.
    pub commit: String,
    /// Branches and tags that pointed to this commit when the hub was last queried.
    pub revisions: Vec<String>,
    /// The file, or all parts of a split model in order.
    pub files: Vec<PathBuf>,
    /// Size of all files in bytes.
    pub bytes: u64,
    /// Path in the repository of a missing part, if there is one.
    pub missing: Option<String>,
    /// The encoder of the model's images (mmproj), if it is in the cache.
    pub encoder: Option<PathBuf>,
}

impl Local {
    /// The path of the file to open.
    pub fn path(&self) -> &Path {
        self.files.first().map_or(Path::new(""), PathBuf::as_path)
    }
}

/// The result of a fetch.
#[derive(Debug)]
pub struct Pulled {
    /// The fetched model.
    pub local: Local,
    /// Number of bytes received over the network.
    pub fetched: u64,
}

/// The name of a file in its repository, and its metadata.
type NamedFile = (String, FileMeta);

impl Hub {
    /// A hub with these settings. Nothing is sent or opened yet.
    pub fn new(settings: Settings) -> Hub {
        Hub { settings }
    }

    /// The cache folder.
    pub fn cache(&self) -> &Path {
        &self.settings.cache
    }

    /// Returns the model. Fetches it if it is not in the cache.
    ///
    /// # Errors
    /// The model cannot be found or fetched; see [`Error`].
    pub fn get(&self, reference: &Reference, watch: Watch) -> Result<Local, Error> {
        match self.here(reference)? {
            Some(local) => Ok(local),
            None => Ok(self.pull(reference, watch)?.local),
        }
    }

    /// Returns the model if it is completely in the cache. Sends no request. If the reference names
    /// no revision, the last known commit of `main` is preferred to other commits.
    ///
    /// # Errors
    /// The cache cannot be read, or several models in the cache match.
    pub fn here(&self, reference: &Reference) -> Result<Option<Local>, Error> {
        let folder = self.folder(reference);
        let mut denied = None;
        let mut skipped = |path: &Path, e: io::Error| {
            if e.kind() == io::ErrorKind::PermissionDenied {
                denied.get_or_insert_with(|| read(path, e));
            }
        };
        for snapshot in folder.snapshots(reference.revision(), &mut skipped) {
            let there = models(snapshot.files.iter().map(String::as_str));
            match choose(&there, reference.pick()) {
                Ok(model) if model.missing.is_none() => {
                    let files = snapshot.files.iter().map(String::as_str);
                    return Ok(Some(local(
                        &folder,
                        reference,
                        &snapshot.commit,
                        (&model, encoder_of(files, &model)),
                        &folder.references(),
                    )));
                }
                Ok(_) | Err(AmbiguousReference::Nothing(_)) => {}
                Err(AmbiguousReference::Several(names)) => return Err(several(reference, &names)),
            }
        }
        // A folder that cannot be read may contain the model.
        denied.map_or(Ok(None), Err)
    }

    /// All models in the cache, including incomplete ones. A part of the cache that cannot be read
    /// is skipped, and `watch` gets [`Event::Skipped`].
    ///
    /// # Errors
    /// The cache itself cannot be read.
    pub fn list(&self, watch: Watch) -> Result<Vec<Local>, Error> {
        let mut all: Vec<Local> = vec![];
        let mut skipped = |path: &Path, why| watch(Event::Skipped { path, why: &why });
        for repo in Folder::all(&self.settings.cache)?.into_iter().filter(|repo| is_repo(repo)) {
            let folder = Folder::new(&self.settings.cache, &repo);
            let references = folder.references();
            // If a file is in several commits, the one that a reference finds is listed.
            let mut seen = BTreeSet::new();
            for snapshot in folder.snapshots(None, &mut skipped) {
                for model in models(snapshot.files.iter().map(String::as_str)) {
                    let Some(reference) = Reference::to_file(&repo, model.first()) else {
                        continue;
                    };
                    if seen.insert(model.first().to_owned()) {
                        let files = snapshot.files.iter().map(String::as_str);
                        let of = (&model, encoder_of(files, &model));
                        all.push(local(&folder, &reference, &snapshot.commit, of, &references));
                    }
                }
            }
        }
        Ok(all)
    }

    /// Returns the hub's current version of the model. Files in the cache are not fetched again.
    ///
    /// # Errors
    /// The model cannot be fetched; see [`Error`].
    pub fn pull(&self, reference: &Reference, watch: Watch) -> Result<Pulled, Error> {
        if self.settings.offline {
            return Err(Error::Offline {
                what: reference.to_string(),
                cache: self.settings.cache.clone(),
            });
        }
        let http = Http::new(&self.settings)?;
        let folder = self.folder(reference);
        let revision = reference.revision().unwrap_or(MAIN);
        let (metas, encoder) = self.metas(&http, reference, revision, watch)?;
        let mut fetched = 0;
        for (path, meta) in metas.iter().chain(&encoder) {
            fetched +=
                fetch(&http, &folder, &FileRequest { repo: reference.repo(), path, meta }, watch)?;
        }
        let commit = metas.first().map_or(String::new(), |(_, meta)| meta.commit.clone());
        folder.note(revision, &commit)?;
        let model =
            ModelFiles { files: metas.into_iter().map(|(path, _)| path).collect(), missing: None };
        Ok(Pulled {
            local: local(
                &folder,
                reference,
                &commit,
                (&model, encoder.as_ref().map(|(path, _)| path.as_str())),
                &folder.references(),
            ),
            fetched,
        })
    }

    /// Queries the files of the model and their data, all of the same commit, and those of the
    /// encoder of its images.
    fn metas(
        &self,
        http: &Http,
        reference: &Reference,
        revision: &str,
        watch: Watch,
    ) -> Result<(Vec<NamedFile>, Option<NamedFile>), Error> {
        let told = |why: &str, pause| watch(Event::Again { why, pause });
        let repo = reference.repo();
        // A single file needs no file list. The name of a part contains the number of parts, but
        // only the list shows which parts exist.
        let (files, mut commit, encoder) = match reference.pick() {
            Pick::File(file) if !is_part(file) => (vec![file.clone()], None, None),
            _ => {
                let (model, commit, encoder) = self.chosen(http, reference, revision, watch)?;
                (model.files, Some(commit), encoder)
            }
        };
        let mut metas = vec![];
        for path in files {
            let at = commit.as_deref().unwrap_or(revision);
            let Some(meta) = http.meta(repo, at, &path, &told)? else {
                // The file list shows which files exist.
                let place = || format!("{} at {}", repo, http.host());
                self.chosen(http, reference, revision, watch)?;
                return Err(Error::Missing {
                    what: reference.to_string(),
                    place: place(),
                    missing: shown(&path),
                });
            };
            commit = Some(meta.commit.clone());
            metas.push((path, meta));
        }
        let at = commit.as_deref().unwrap_or(revision);
        let encoder = match encoder.filter(|_| self.settings.encoders) {
            Some(path) => http.meta(repo, at, &path, &told)?.map(|meta| (path, meta)),
            None => None,
        };
        Ok((metas, encoder))
    }

    /// Chooses the model that a reference means from the file list of the repository. Also returns
    /// the commit of the list, and the encoder of the model's images.
    fn chosen(
        &self,
        http: &Http,
        reference: &Reference,
        revision: &str,
        watch: Watch,
    ) -> Result<(ModelFiles, String, Option<String>), Error> {
        let told = |why: &str, pause| watch(Event::Again { why, pause });
        let listing = http.listing(reference.repo(), revision, &told)?;
        let what = reference.to_string();
        let place = format!("{} at {}", reference.repo(), http.host());
        match choose(&models(listing.files.iter().map(String::as_str)), reference.pick()) {
            Ok(ModelFiles { missing: Some(missing), .. }) => {
                Err(Error::Missing { what, place, missing: shown(&missing) })
            }
            Ok(model) => {
                let encoder = encoder_of(listing.files.iter().map(String::as_str), &model);
                let encoder = encoder.map(str::to_owned);
                Ok((model, listing.commit, encoder))
            }
            Err(AmbiguousReference::Several(names)) => Err(several(reference, &names)),
            Err(AmbiguousReference::Nothing(names)) if names.is_empty() => {
                let whole = listing.files.iter().any(|file| file.ends_with(".safetensors"));
                let or = match whole {
                    true => format!(
                        ", or download the repository (hf download {}) and give its folder",
                        reference.repo()
                    ),
                    false => String::new(),
                };
                let there = format!(
                    "it has {}; search for a repository with GGUF files, \
                     whose name often ends with -GGUF{or}",
                    listed(&listing.files)
                );
                Err(Error::NoFile { what, place, there })
            }
            Err(AmbiguousReference::Nothing(names)) => {
                Err(Error::NoFile { what, place, there: format!("it has {}", listed(&names)) })
            }
        }
    }

    pub(crate) fn folder(&self, reference: &Reference) -> Folder {
        Folder::new(&self.settings.cache, reference.repo())
    }
}

/// A model in the cache. `references` are the branches and tags of its folder.
fn local(
    folder: &Folder,
    reference: &Reference,
    commit: &str,
    (model, encoder): (&ModelFiles, Option<&str>),
    references: &BTreeMap<String, Vec<String>>,
) -> Local {
    let files: Vec<PathBuf> = model.files.iter().map(|path| folder.file(commit, path)).collect();
    Local {
        reference: reference.with_file(model.first()),
        commit: commit.to_owned(),
        revisions: references.get(commit).cloned().unwrap_or_default(),
        bytes: files.iter().filter_map(|f| length(f)).sum(),
        files,
        missing: model.missing.clone(),
        encoder: encoder.map(|path| folder.file(commit, path)),
    }
}

pub(crate) fn several(reference: &Reference, names: &[String]) -> Error {
    let example =
        names.first().map_or(String::new(), |name| shown(&reference.with_file(name).to_string()));
    Error::Several { what: reference.to_string(), several: listed(names), example }
}
