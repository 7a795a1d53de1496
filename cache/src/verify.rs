//! Verifies every byte of every layer, and repairs errors if possible.

use std::collections::HashMap;
use std::path::PathBuf;

use crate::admin::EntryInfo;
use crate::cache::{Cache, Origin};
use crate::entry::{Entry, HEADER_LEN, decode_record};
use crate::layer::Layer;
use crate::pack::Pack;
use crate::record::RECORD_LIMIT;
use crate::store::{DirStore, ItemPath, Kind};

/// The result of [`Cache::verify`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verification {
    /// Number of valid entries and records.
    pub good: u64,
    /// Size of the valid entries and records in bytes.
    pub bytes: u64,
    /// Valid entries that had a wrong name and were renamed.
    pub moved: u64,
    /// Faulty items, with the reason.
    pub bad: Vec<(PathBuf, String)>,
    /// Number of faulty items that were quarantined, so that they are created again. The other
    /// faulty items are in read-only layers or in a home directory that cannot be written. They are
    /// never used.
    pub aside: u64,
}

/// Selects the valid items to count: some entries, or all entries and records.
type Counts<'a> = &'a dyn Fn(Option<&EntryInfo>) -> bool;

impl Cache {
    /// Reads and verifies every byte of every layer. In the home directory it quarantines faulty
    /// entries (which are then created again), renames valid ones with a wrong name, removes
    /// leftovers of crashed writers, and rewrites the journal.
    pub fn verify(&self) -> Verification {
        self.verify_counting(&|_| true)
    }

    /// Like [`Cache::verify`], but counts only entries that `which` selects, and no records. All
    /// items are verified and repaired, because names and metadata of faulty items are not
    /// reliable.
    pub fn verify_picked(&self, which: impl Fn(&EntryInfo) -> bool) -> Verification {
        self.verify_counting(&|info| info.is_some_and(&which))
    }

    fn verify_counting(&self, counts: Counts<'_>) -> Verification {
        let mut report = Verification::default();
        if let Some(home) = &self.home {
            self.verify_dir(home, Origin::Home, counts, &mut report);
            // If there is no cache yet, none is created.
            if self.writable_home().is_some() && home.base().is_ok() {
                self.make_room(home, self.config.max_bytes);
            }
        }
        for layer in &self.layers {
            let origin = Origin::ReadOnly(layer.path().to_owned());
            match layer {
                Layer::Dir(store) => self.verify_dir(store, origin, counts, &mut report),
                Layer::Pack(lazy) => match self.pack(lazy) {
                    Some(pack) => self.verify_pack(pack, &origin, counts, &mut report),
                    None => report.bad.push((
                        layer.path().to_owned(),
                        "the pack is not used; see the warnings".into(),
                    )),
                },
            }
        }
        report
    }

    fn verify_pack(
        &self,
        pack: &Pack,
        origin: &Origin,
        counts: Counts<'_>,
        report: &mut Verification,
    ) {
        for item in &pack.items {
            let counted = match item.kind {
                Kind::Entry => pack
                    .entry(item, self.config.entry_limit)
                    .map(|entry| counts(Some(&EntryInfo::new(&entry, origin.clone(), None, None)))),
                Kind::Record => pack.record(item, RECORD_LIMIT).map(|_| counts(None)),
            };
            report.add(counted, item.len, || pack.path().join(item.build.hex()));
        }
    }

    fn verify_dir(
        &self,
        store: &DirStore,
        origin: Origin,
        counts: Counts<'_>,
        report: &mut Verification,
    ) {
        let ours = origin == Origin::Home;
        let used = if ours { self.places_by_use(store) } else { Vec::new() };
        let used: HashMap<&str, u64> =
            used.iter().filter_map(|(place, used)| Some((place.name(), (*used)?))).collect();
        for (place, bytes) in store.walk(Kind::Entry, false) {
            let decoded = match store.read(&place, self.config.entry_limit) {
                Ok(None) => continue,
                Ok(Some(bytes)) => Entry::decode(bytes).map_err(|error| error.to_string()),
                Err(fault) => Err(fault.to_string()),
            };
            let checked = decoded.and_then(|entry| {
                let own = ItemPath::entry(entry.key().source().digest(), entry.key().digest());
                if own != place {
                    if !ours || !self.publish_entry(&entry) {
                        return Err("it is stored under the name of another entry".to_owned());
                    }
                    report.moved += 1;
                    let _ = store.remove(&place);
                }
                Ok(counts(Some(&EntryInfo::new(
                    &entry,
                    origin.clone(),
                    None,
                    used.get(own.name()).copied(),
                ))))
            });
            if let (Err(reason), true) = (&checked, ours) {
                self.report_corrupt(store, &place, reason.clone(), true);
                report.aside += u64::from(store.peek(&place, HEADER_LEN).is_none());
            }
            report.add(checked, bytes, || store.path_of(&place));
        }
        for (place, bytes) in store.walk(Kind::Record, false) {
            let name = place.name().parse().ok();
            let checked = match store.read(&place, RECORD_LIMIT) {
                Ok(None) => continue,
                Ok(Some(bytes)) => decode_record(&bytes, name)
                    .map(|_| counts(None))
                    .map_err(|error| error.to_string()),
                Err(fault) => Err(fault.to_string()),
            };
            if let (Err(reason), true) = (&checked, ours) {
                self.report_corrupt(store, &place, reason.clone(), true);
                report.aside += u64::from(store.peek(&place, HEADER_LEN).is_none());
            }
            report.add(checked, bytes, || store.path_of(&place));
        }
    }
}

impl Verification {
    fn add(&mut self, counted: Result<bool, String>, bytes: u64, path: impl FnOnce() -> PathBuf) {
        match counted {
            Ok(true) => {
                self.good += 1;
                self.bytes += bytes;
            }
            Ok(false) => {}
            Err(reason) => self.bad.push((path(), reason)),
        }
    }
}
