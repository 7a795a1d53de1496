//! Read-only layers: packs, and directories with the layout of a home.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::cache::Cache;
use crate::entry::Entry;
use crate::key::Digest;
use crate::pack::Pack;
use crate::safe_dir::SafeDir;
use crate::store::{DirStore, Kind, Place, base_name};
use crate::warning::Warning;

/// A read-only layer.
pub(crate) enum Layer {
    Dir(DirStore),
    Pack(LazyPack),
}

/// A pack that is opened at its first use, so that a hit in home does not open it.
pub(crate) struct LazyPack {
    path: PathBuf,
    pack: OnceLock<Option<Pack>>,
}

impl Layer {
    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::Dir(store) => store.path(),
            Self::Pack(lazy) => &lazy.path,
        }
    }
}

/// The layers at `path`: a pack, the root of a cache, or the packs in a folder, sorted by name.
pub(crate) fn layers_at(path: &Path, app: &str, warn: &dyn Fn(Warning)) -> Vec<Layer> {
    let pack = |path: PathBuf| Layer::Pack(LazyPack { path, pack: OnceLock::new() });
    if !path.is_dir() {
        return vec![pack(path.to_owned())];
    }
    let mut layers = Vec::new();
    if path.join(base_name()).is_dir() {
        layers.push(Layer::Dir(DirStore::new(path.to_owned())));
    }
    let listed = SafeDir::open_root(path).and_then(|dir| dir.list());
    match listed {
        Ok(mut names) => {
            names.sort();
            let suffix = format!(".{app}pack");
            layers.extend(
                names
                    .iter()
                    .filter(|name| name.ends_with(&suffix))
                    .map(|name| pack(path.join(name))),
            );
        }
        Err(fault) => warn(Warning::Refused { path: path.to_owned(), reason: fault.to_string() }),
    }
    layers
}

impl Cache {
    /// The pack of a lazy layer. An unusable pack is reported once and then ignored.
    pub(crate) fn pack<'a>(&self, lazy: &'a LazyPack) -> Option<&'a Pack> {
        let opened = lazy.pack.get_or_init(|| match Pack::open(&lazy.path, &self.config.signers) {
            Ok(pack) => Some(pack),
            Err(error) => {
                self.warnings.push(Warning::PackRefused {
                    path: lazy.path.clone(),
                    reason: error.to_string(),
                });
                None
            }
        });
        opened.as_ref()
    }

    /// The usable packs among the read-only layers. After a miss, their [`meta`](Pack::meta) states
    /// what they are for.
    pub fn packs(&self) -> Vec<&Pack> {
        let lazy = self.layers.iter().filter_map(|layer| match layer {
            Layer::Pack(lazy) => Some(lazy),
            Layer::Dir(_) => None,
        });
        lazy.filter_map(|lazy| self.pack(lazy)).collect()
    }

    pub(crate) fn entry_in_layer(
        &self,
        layer: &Layer,
        source: Digest,
        build: Digest,
    ) -> Option<Entry> {
        match layer {
            Layer::Dir(store) => self.read_entry(store, &Place::entry(source, build), build, false),
            Layer::Pack(lazy) => {
                let pack = self.pack(lazy)?;
                let item = pack.item(build, Kind::Entry).filter(|item| item.source == source)?;
                let entry = pack.entry(item, self.config.entry_limit);
                entry.map_err(|reason| self.report_bad_item(pack, build, reason)).ok()
            }
        }
    }

    pub(crate) fn builds_in_layer(&self, layer: &Layer, source: Digest) -> Vec<Digest> {
        match layer {
            Layer::Dir(store) => {
                let builds = store.builds(source).unwrap_or_default();
                builds.iter().filter_map(|place| place.name().parse().ok()).collect()
            }
            Layer::Pack(lazy) => {
                self.pack(lazy).map(|pack| pack.builds(source)).unwrap_or_default()
            }
        }
    }

    pub(crate) fn record_in_layer(
        &self,
        layer: &Layer,
        key: Digest,
        limit: u64,
    ) -> Option<Vec<u8>> {
        match layer {
            Layer::Dir(store) => self.read_record(store, key, false),
            Layer::Pack(lazy) => {
                let pack = self.pack(lazy)?;
                let record = pack.record(pack.item(key, Kind::Record)?, limit);
                record
                    .map_err(|reason| self.report_bad_item(pack, key, reason))
                    .ok()
                    .map(|(_, value)| value)
            }
        }
    }

    pub(crate) fn report_bad_item(&self, pack: &Pack, name: Digest, reason: String) {
        crate::cache::count(&self.tally.corrupt);
        self.warnings.push(Warning::Corrupt { path: pack.path().join(name.hex()), reason });
    }
}
