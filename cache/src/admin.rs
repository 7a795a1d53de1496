//! Administration of a cache: list, count, verify, clear.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::PoisonError;

use crate::cache::{Cache, Origin};
use crate::entry::{Entry, decode_record};
use crate::evict::candidates;
use crate::key::{BuildKey, Digest, Key};
use crate::layer::Layer;
use crate::record::RECORD_LIMIT;
use crate::store::{DirStore, ItemPath, Kind};
use crate::warning::Warning;

/// An entry of a listing.
#[derive(Debug, Clone)]
pub struct EntryInfo {
    /// Both keys with their fields.
    pub key: BuildKey,
    /// The layer that contains it.
    pub layer: Origin,
    /// The path of its file, or of its pack.
    pub path: Option<PathBuf>,
    /// Size of the entry in bytes.
    pub bytes: u64,
    /// Time of creation: milliseconds since 1970 by the clock of its maker.
    pub created_ms: u64,
    /// Time of the last publication or use in this cache: seconds since 1970; `None` if unknown.
    pub used_s: Option<u64>,
    /// Metadata of the entry.
    pub meta: BTreeMap<String, String>,
    /// Requirements of the entry.
    pub needs: BTreeMap<String, String>,
}

impl EntryInfo {
    pub(crate) fn new(
        entry: &Entry,
        layer: Origin,
        path: Option<PathBuf>,
        used_s: Option<u64>,
    ) -> Self {
        Self {
            key: entry.key().clone(),
            layer,
            path,
            bytes: entry.as_bytes().len() as u64,
            created_ms: entry.created_ms(),
            used_s,
            meta: entry.meta().clone(),
            needs: entry.needs().clone(),
        }
    }
}

/// Entries, records and bytes of a layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerStat {
    /// The layer.
    pub layer: Origin,
    /// Number of entries.
    pub entries: u64,
    /// Size of the entries in bytes.
    pub bytes: u64,
    /// Number of records.
    pub records: u64,
    /// Size of the records in bytes.
    pub record_bytes: u64,
}

/// Statistics of a cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stat {
    /// The home directory.
    pub home: Option<PathBuf>,
    /// The size limit in bytes.
    pub max_bytes: u64,
    /// The home directory first (if there is one), then memory, then the read-only layers in order.
    pub layers: Vec<LayerStat>,
    /// Folders in the home directory with other entry formats (`v2`). They are not changed.
    pub other_formats: Vec<String>,
}

/// The result of [`Cache::clear`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cleared {
    /// Entries removed.
    pub entries: u64,
    /// Size of the removed entries in bytes.
    pub bytes: u64,
    /// Selected entries that could not be removed, with the reason.
    pub left: Vec<(PathBuf, String)>,
}

impl Cache {
    /// All entries, verified: the home directory first, then memory, then the read-only layers.
    /// Faulty entries are omitted and reported as warnings.
    pub fn list(&self) -> Vec<EntryInfo> {
        let mut list = Vec::new();
        if let Some(home) = &self.home {
            for (place, used_s) in self.places_by_use(home) {
                let entry = place
                    .name()
                    .parse()
                    .ok()
                    .and_then(|build| self.read_entry(home, &place, build, true));
                list.extend(entry.map(|entry| {
                    EntryInfo::new(&entry, Origin::Home, Some(home.path_of(&place)), used_s)
                }));
            }
        }
        let in_memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner).all();
        list.extend(
            in_memory.iter().map(|entry| EntryInfo::new(entry, Origin::Memory, None, None)),
        );
        for layer in &self.layers {
            let origin = Origin::ReadOnly(layer.path().to_owned());
            list.extend(
                self.layer_entries(layer)
                    .into_iter()
                    .filter(|(entry, _)| !self.distrust().contains_key(&entry.key().digest()))
                    .map(|(entry, path)| EntryInfo::new(&entry, origin.clone(), Some(path), None)),
            );
        }
        list
    }

    pub(crate) fn places_by_use(&self, home: &DirStore) -> Vec<(ItemPath, Option<u64>)> {
        let reading = match home.base() {
            Ok(base) => {
                let mut journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
                journal.catch_up(&base).cloned().unwrap_or_default()
            }
            Err(_) => return Vec::new(),
        };
        let candidates = candidates(home, &reading).into_iter();
        candidates.map(|known| (known.place, (known.time_s > 0).then_some(known.time_s))).collect()
    }

    pub(crate) fn layer_entries(&self, layer: &Layer) -> Vec<(Entry, PathBuf)> {
        match layer {
            Layer::Dir(store) => {
                let walked = store.walk(Kind::Entry, false).into_iter();
                let entries = walked.filter_map(|(place, _)| {
                    let entry =
                        self.read_entry(store, &place, place.name().parse().ok()?, false)?;
                    Some((entry, store.path_of(&place)))
                });
                entries.collect()
            }
            Layer::Pack(lazy) => {
                let Some(pack) = self.pack(lazy) else { return Vec::new() };
                let items = pack.items.iter().filter(|item| item.kind == Kind::Entry);
                let entries = items.filter_map(|item| {
                    let entry = pack.entry(item, self.config.entry_limit);
                    let entry = entry
                        .map_err(|reason| self.report_bad_item(pack, item.build, reason))
                        .ok()?;
                    Some((entry, pack.path().to_owned()))
                });
                entries.collect()
            }
        }
    }

    /// All records of memory and home as key and value. Each key occurs once, with the value that
    /// [`Cache::record`] returns.
    pub fn records(&self) -> Vec<(Key, Vec<u8>)> {
        self.own_records().into_values().collect()
    }

    fn own_records(&self) -> BTreeMap<Digest, (Key, Vec<u8>)> {
        let in_memory = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        let mut records: BTreeMap<_, _> =
            in_memory.iter().map(|(digest, record)| (*digest, record.clone())).collect();
        drop(in_memory);
        if let Some(home) = &self.home {
            for (name, record) in records_of(home) {
                records.entry(name).or_insert(record);
            }
        }
        records
    }

    /// All records including those of read-only layers, which have lower priority, by digest.
    pub(crate) fn records_everywhere(&self) -> BTreeMap<Digest, (Key, Vec<u8>)> {
        let mut records = self.own_records();
        for layer in &self.layers {
            let found = match layer {
                Layer::Dir(store) => records_of(store),
                Layer::Pack(lazy) => {
                    let Some(pack) = self.pack(lazy) else { continue };
                    let items = pack.items.iter().filter(|item| item.kind == Kind::Record);
                    let read = items.filter_map(|item| {
                        let record = pack.record(item, RECORD_LIMIT);
                        let record = record
                            .map_err(|reason| self.report_bad_item(pack, item.source, reason))
                            .ok()?;
                        Some((item.source, record))
                    });
                    read.collect()
                }
            };
            for (name, record) in found {
                records.entry(name).or_insert(record);
            }
        }
        records
    }

    /// Counts and sizes of all layers. Reads directories and pack indexes, but no entries.
    pub fn stat(&self) -> Stat {
        let mut layers = Vec::new();
        let of_dir = |layer: Origin, store: &DirStore| {
            let sum = |walked: Vec<(ItemPath, u64)>| {
                (walked.len() as u64, walked.iter().map(|(_, bytes)| bytes).sum())
            };
            let (entries, bytes) = sum(store.walk(Kind::Entry, false));
            let (records, record_bytes) = sum(store.walk(Kind::Record, false));
            LayerStat { layer, entries, bytes, records, record_bytes }
        };
        if let Some(home) = &self.home {
            layers.push(of_dir(Origin::Home, home));
        }
        let memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        layers.push(LayerStat {
            layer: Origin::Memory,
            entries: memory.all().len() as u64,
            bytes: memory.bytes(),
            records: records.len() as u64,
            record_bytes: records.values().map(|(_, value)| value.len() as u64).sum(),
        });
        drop((memory, records));
        for layer in &self.layers {
            let origin = Origin::ReadOnly(layer.path().to_owned());
            match layer {
                Layer::Dir(store) => layers.push(of_dir(origin, store)),
                Layer::Pack(lazy) => {
                    let Some(pack) = self.pack(lazy) else { continue };
                    let of_kind = |kind| pack.items.iter().filter(move |item| item.kind == kind);
                    layers.push(LayerStat {
                        layer: origin,
                        entries: of_kind(Kind::Entry).count() as u64,
                        bytes: of_kind(Kind::Entry).map(|item| item.len).sum(),
                        records: of_kind(Kind::Record).count() as u64,
                        record_bytes: of_kind(Kind::Record).map(|item| item.len).sum(),
                    });
                }
            }
        }
        let other_formats = self.home.as_ref().map(DirStore::other_formats).unwrap_or_default();
        let home = self.home.as_ref().map(|home| home.path().to_owned());
        Stat { home, max_bytes: self.config.max_bytes, layers, other_formats }
    }

    /// Whether the home directory exists and is readable. `false` if it does not exist yet, or if
    /// no home directory is known. Commands about the cache use this, because they fail if the
    /// cache is refused.
    ///
    /// # Errors
    /// The reason why the home directory is not used.
    pub fn check_home(&self) -> Result<bool, Warning> {
        let Some(home) = &self.home else { return Ok(false) };
        match home.base() {
            Ok(_) => Ok(true),
            Err(fault) if fault.is_absent() => match home.root() {
                Err(fault) if !fault.is_absent() => Err(home.unusable(&fault)),
                _ => Ok(false),
            },
            Err(fault) => Err(home.unusable(&fault)),
        }
    }

    /// Removes the entries of home and memory that `which` selects. Read-only layers do not change.
    /// The result lists entries that could not be removed.
    pub fn clear(&self, which: impl Fn(&EntryInfo) -> bool) -> Cleared {
        let mut cleared = Cleared::default();
        let mine = |info: &EntryInfo| matches!(info.layer, Origin::Home | Origin::Memory);
        let mut in_memory: HashMap<Digest, u64> = HashMap::new();
        for info in self.list().into_iter().filter(|info| mine(info) && which(info)) {
            let build = info.key.digest();
            if info.layer == Origin::Memory {
                in_memory.insert(build, info.bytes);
                continue;
            }
            let Some(home) = &self.home else { continue };
            match home.remove(&ItemPath::entry(info.key.source().digest(), build)) {
                Ok(()) => {
                    self.note_removed(home, build, info.bytes);
                    cleared.entries += 1;
                    cleared.bytes += info.bytes;
                }
                Err(fault) => cleared.left.push((info.path.unwrap_or_default(), fault.to_string())),
            }
        }
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        for (build, bytes) in in_memory {
            if memory.remove(build) {
                cleared.entries += 1;
                cleared.bytes += bytes;
            }
        }
        cleared
    }

    /// Removes the records of home and memory whose key `which` selects. Returns their number.
    pub fn clear_records(&self, which: impl Fn(&Key) -> bool) -> u64 {
        let mut removed = 0;
        for (key, _) in self.records().into_iter().filter(|(key, _)| which(key)) {
            let in_memory =
                self.records.lock().unwrap_or_else(PoisonError::into_inner).remove(&key.digest());
            let at_home = self
                .home
                .as_ref()
                .is_some_and(|home| home.remove(&ItemPath::record(key.digest())).is_ok());
            removed += u64::from(in_memory.is_some() || at_home);
        }
        removed
    }
}

/// The valid records of a directory, by the digests of their keys.
fn records_of(store: &DirStore) -> Vec<(Digest, (Key, Vec<u8>))> {
    let walked = store.walk(Kind::Record, false).into_iter();
    let whole = walked.filter_map(|(place, _)| {
        let name: Digest = place.name().parse().ok()?;
        let bytes = store.read(&place, RECORD_LIMIT).ok()??;
        Some((name, decode_record(&bytes, Some(name)).ok()?))
    });
    whole.collect()
}
