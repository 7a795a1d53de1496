//! Writing packs, and taking their entries in.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::admin::EntryInfo;
use crate::cache::Cache;
use crate::entry::encode_record;
use crate::key::{Digest, Key};
use crate::pack::{Pack, PackError, PublicKey, SecretKey, encode_head, index_line};
use crate::record::RECORD_LIMIT;
use crate::store::{Kind, Place, unique_name};

/// What a pack was made of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Exported {
    /// Entries in the pack.
    pub entries: u64,
    /// Records in the pack.
    pub records: u64,
    /// Bytes of the file.
    pub bytes: u64,
}

/// What came of an import.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Imported {
    /// Entries and records taken in.
    pub taken: u64,
    /// Those that were there already: what was built here stays.
    pub present: u64,
    /// Those that were not taken, and why.
    pub refused: Vec<(Digest, String)>,
}

/// What to put into a pack.
pub struct Export<'a> {
    /// What the pack says about itself.
    pub meta: BTreeMap<String, String>,
    /// Picks entries, from all layers.
    pub entries: &'a dyn Fn(&EntryInfo) -> bool,
    /// Picks records, from home.
    pub records: &'a dyn Fn(&Key) -> bool,
    /// Signs the pack.
    pub secret: Option<&'a SecretKey>,
}

impl Cache {
    /// Writes a pack; it appears under its name whole or not at all. The same entries give the same bytes.
    ///
    /// # Errors
    /// When the file cannot be written, or an entry vanished meanwhile.
    pub fn export(&self, path: impl AsRef<Path>, what: &Export<'_>) -> Result<Exported, PackError> {
        let path = path.as_ref();
        let mut picked: BTreeMap<Digest, EntryInfo> = BTreeMap::new();
        for info in self.list().into_iter().filter(|info| (what.entries)(info)) {
            // Of one build in two layers the first counts, as it does in a look-up.
            picked.entry(info.key.digest()).or_insert(info);
        }
        let mut records = self.records();
        records.retain(|(key, _)| (what.records)(key));
        records.sort_by_key(|(key, _)| key.digest());

        let mut exported = Exported { entries: picked.len() as u64, records: records.len() as u64, bytes: 0 };
        let mut lines = Vec::with_capacity(picked.len() + records.len());
        for info in picked.values() {
            let bytes = self.entry_bytes(path, info)?;
            lines.push(index_line(Kind::Entry, info.key.source().digest(), info.key.digest(), &bytes));
        }
        let records: Vec<(Digest, Vec<u8>)> =
            records.iter().map(|(key, value)| (key.digest(), encode_record(key, value, 0))).collect();
        lines.extend(records.iter().map(|(key, bytes)| index_line(Kind::Record, *key, *key, bytes)));

        let io = |source| PackError::Io { path: path.to_owned(), source };
        let temp = path.with_file_name(unique_name(".kjit-export"));
        let written = (|| {
            let mut file = File::create_new(&temp).map_err(io)?;
            let head = encode_head(&what.meta, &lines, what.secret);
            exported.bytes = write_counted(&mut file, &head).map_err(io)?;
            for (info, line) in picked.values().zip(&lines) {
                // Read again instead of kept, so that a pack larger than memory can be written.
                let bytes = self.entry_bytes(path, info)?;
                if index_line(Kind::Entry, info.key.source().digest(), info.key.digest(), &bytes) != *line {
                    return Err(io(io::Error::other(format!("the entry {} changed meanwhile", info.key.digest()))));
                }
                exported.bytes += write_counted(&mut file, &bytes).map_err(io)?;
            }
            for (_, bytes) in &records {
                exported.bytes += write_counted(&mut file, bytes).map_err(io)?;
            }
            file.sync_all().map_err(io)?;
            std::fs::rename(&temp, path).map_err(io)
        })();
        if written.is_err() {
            let _ = std::fs::remove_file(&temp);
        }
        written.map(|()| exported)
    }

    fn entry_bytes(&self, path: &Path, info: &EntryInfo) -> Result<Vec<u8>, PackError> {
        let gone = || PackError::Io {
            path: path.to_owned(),
            source: io::Error::other(format!("the entry {} was removed while it was exported", info.key.digest())),
        };
        Ok(self.look_up(&info.key).ok_or_else(gone)?.entry.as_bytes().to_vec())
    }

    /// Takes a pack's entries into the home directory, each verified by itself. What is there already stays.
    ///
    /// # Errors
    /// When the pack as a whole is not used: unreadable, faulty, or, with `signers`, signed by nobody of them.
    pub fn import(&self, path: impl AsRef<Path>, signers: &[PublicKey]) -> Result<Imported, PackError> {
        let pack = Pack::open(path, signers)?;
        let no_home =
            |path: PathBuf| PackError::Refused { path, reason: "there is no cache directory to write".into() };
        let home = self.writable_home().ok_or_else(|| no_home(pack.path().to_owned()))?;
        let mut imported = Imported::default();
        for item in &pack.items {
            let outcome = match item.kind {
                Kind::Entry => pack.entry(item, self.config.entry_limit).and_then(|entry| {
                    let place = Place::entry(item.source, item.build);
                    if self.read_entry(home, &place, item.build, true).is_some() {
                        return Ok(false);
                    }
                    self.publish_entry(&entry).then_some(true).ok_or_else(|| "it could not be written".to_owned())
                }),
                Kind::Record => pack.record(item, RECORD_LIMIT).and_then(|(key, value)| {
                    if self.read_record(home, key.digest(), true).is_some() {
                        return Ok(false);
                    }
                    let bytes = encode_record(&key, &value, 0);
                    let published = home.publish(&Place::record(key.digest()), &bytes);
                    published.map(|()| true).map_err(|fault| fault.to_string())
                }),
            };
            match outcome {
                Ok(true) => imported.taken += 1,
                Ok(false) => imported.present += 1,
                Err(reason) => imported.refused.push((item.build, reason)),
            }
        }
        Ok(imported)
    }
}

fn write_counted(file: &mut File, bytes: &[u8]) -> io::Result<u64> {
    file.write_all(bytes)?;
    Ok(bytes.len() as u64)
}
