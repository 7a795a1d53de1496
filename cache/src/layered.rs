//! Lookup in read-only layers.

use crate::cache::{Cache, count};
use crate::entry::Entry;
use crate::key::Digest;
use crate::layer::{Layer, LazyPack};
use crate::pack::Pack;
use crate::store::{ItemPath, Kind};
use crate::warning::Warning;

impl Cache {
    /// The pack of a layer. An unusable pack is reported once and then ignored.
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

    /// The usable packs among the read-only layers. After a failed lookup, their
    /// [`meta`](Pack::meta) names the machines that they support.
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
            Layer::Dir(store) => {
                self.read_entry(store, &ItemPath::entry(source, build), build, false)
            }
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
        count(&self.tally.corrupt);
        self.warnings.push(Warning::Corrupt { path: pack.path().join(name.hex()), reason });
    }
}
