//! Read-only layers: packs, and directories with the layout of a home directory.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::pack::Pack;
use crate::safe_dir::SafeDir;
use crate::store::{DirStore, base_name};
use crate::warning::Warning;

/// A read-only layer.
pub(crate) enum Layer {
    Dir(DirStore),
    Pack(LazyPack),
}

/// A pack that is opened at its first use. So a lookup that finds its entry in the home directory
/// does not open it.
pub(crate) struct LazyPack {
    pub(crate) path: PathBuf,
    pub(crate) pack: OnceLock<Option<Pack>>,
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
