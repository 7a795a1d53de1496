//! Exports entries to packs, and imports entries from packs.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::admin::EntryInfo;
use crate::cache::Cache;
use crate::entry::encode_record;
use crate::key::{Digest, Key};
use crate::pack::{MAGIC, Pack, PackError, PublicKey, SecretKey, encode_head, index_line};
use crate::record::RECORD_LIMIT;
use crate::store::{ItemPath, Kind, unique_name};
use crate::warning::Warning;

/// Name prefix of an unfinished pack.
const TEMP_PREFIX: &str = ".kjit-export";

/// The contents of an exported pack.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Exported {
    /// Entries in the pack.
    pub entries: u64,
    /// Records in the pack.
    pub records: u64,
    /// Bytes of the file.
    pub bytes: u64,
}

/// The result of an import.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Imported {
    /// Imported entries and records.
    pub taken: u64,
    /// Entries and records that already existed in this cache. They are kept.
    pub present: u64,
    /// Entries and records that were not imported, with the reason.
    pub refused: Vec<(Digest, String)>,
}

/// The contents and properties of a pack to write.
pub struct Export<'a> {
    /// The pack's metadata.
    pub meta: BTreeMap<String, String>,
    /// Selects the entries from all layers.
    pub entries: &'a dyn Fn(&EntryInfo) -> bool,
    /// Selects the records from all layers.
    pub records: &'a dyn Fn(&Key) -> bool,
    /// Key that signs the pack.
    pub secret: Option<&'a SecretKey>,
}

impl Cache {
    /// Writes a pack, which gets its name atomically when it is complete. Equal entries give equal
    /// bytes. An existing pack is replaced, but no other file.
    ///
    /// # Errors
    /// The file cannot be written, or an entry was removed during the export.
    pub fn export(&self, path: impl AsRef<Path>, what: &Export<'_>) -> Result<Exported, PackError> {
        self.export_until(path, what, &|| false)
    }

    /// Like [`Cache::export`], but calls `stop` between entries; if it returns true, the export
    /// ends and leaves no file.
    ///
    /// # Errors
    /// The errors of [`Cache::export`], and [`PackError::Stopped`].
    pub fn export_until(
        &self,
        path: impl AsRef<Path>,
        what: &Export<'_>,
        stop: &dyn Fn() -> bool,
    ) -> Result<Exported, PackError> {
        let path = path.as_ref();
        may_be_replaced(path)?;
        let mut picked: BTreeMap<Digest, EntryInfo> = BTreeMap::new();
        for info in self.list().into_iter().filter(|info| (what.entries)(info)) {
            // If a build is in two layers, the first layer is used, as in lookups.
            picked.entry(info.key.digest()).or_insert(info);
        }
        // Sorted by digest, like the entries: equal contents give equal bytes.
        let mut records = self.records_everywhere();
        records.retain(|_, (key, _)| (what.records)(key));

        let go_on =
            || if stop() { Err(PackError::Stopped { path: path.to_owned() }) } else { Ok(()) };
        let mut exported =
            Exported { entries: picked.len() as u64, records: records.len() as u64, bytes: 0 };
        let mut lines = Vec::with_capacity(picked.len() + records.len());
        for info in picked.values() {
            go_on()?;
            let bytes = self.entry_bytes(path, info)?;
            lines.push(index_line(
                Kind::Entry,
                info.key.source().digest(),
                info.key.digest(),
                &bytes,
            ));
        }
        let records: Vec<(Digest, Vec<u8>)> = records
            .iter()
            .map(|(name, (key, value))| (*name, encode_record(key, value, 0)))
            .collect();
        lines
            .extend(records.iter().map(|(key, bytes)| index_line(Kind::Record, *key, *key, bytes)));

        let io = |error| PackError::Io { path: path.to_owned(), error };
        let (temp, mut file) = create_temp(path).map_err(io)?;
        let written = (|| {
            let head = encode_head(&what.meta, &lines, what.secret);
            exported.bytes = write_counted(&mut file, &head).map_err(io)?;
            for (info, line) in picked.values().zip(&lines) {
                go_on()?;
                // Entries are read again instead of stored in memory, so that a pack may be larger
                // than memory.
                let bytes = self.entry_bytes(path, info)?;
                if index_line(Kind::Entry, info.key.source().digest(), info.key.digest(), &bytes)
                    != *line
                {
                    return Err(io(io::Error::other(format!(
                        "the entry {} changed during the export",
                        info.key.digest()
                    ))));
                }
                exported.bytes += write_counted(&mut file, &bytes).map_err(io)?;
            }
            for (_, bytes) in &records {
                exported.bytes += write_counted(&mut file, bytes).map_err(io)?;
            }
            file.sync_all().map_err(io)?;
            go_on()?;
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
            error: io::Error::other(format!(
                "the entry {} was removed while it was exported",
                info.key.digest()
            )),
        };
        Ok(self.look_up(&info.key).ok_or_else(gone)?.entry.as_bytes().to_vec())
    }

    /// Imports a pack's entries into the home directory, after verifying each. Existing entries are
    /// not replaced.
    ///
    /// # Errors
    /// The pack is unusable (unreadable, faulty, or, with `signers`, not signed by one of them), or
    /// the home directory accepts no more entries. Entries imported before the error stay.
    pub fn import(
        &self,
        path: impl AsRef<Path>,
        signers: &[PublicKey],
    ) -> Result<Imported, PackError> {
        let pack = Pack::open(path, signers)?;
        let mut imported = Imported::default();
        let not_kept = |imported: &Imported, why: Option<Warning>| PackError::NotKept {
            path: pack.path().to_owned(),
            taken: imported.taken,
            of: pack.items.len() as u64,
            why: why.map_or_else(
                || "there is no cache directory that can be written".to_owned(),
                |why| why.to_string(),
            ),
        };
        let home =
            self.writable_home().ok_or_else(|| not_kept(&imported, self.check_home().err()))?;
        for item in &pack.items {
            let outcome = match item.kind {
                Kind::Entry => match pack.entry(item, self.config.entry_limit) {
                    Ok(entry) => {
                        let place = ItemPath::entry(item.source, item.build);
                        if self.read_entry(home, &place, item.build, true).is_some() {
                            Ok(false)
                        } else {
                            match self.try_publish(&entry) {
                                Ok(()) => Ok(true),
                                Err(Some(why @ Warning::TooLarge { .. })) => Err(why.to_string()),
                                Err(why) => return Err(not_kept(&imported, why)),
                            }
                        }
                    }
                    Err(reason) => Err(reason),
                },
                Kind::Record => match pack.record(item, RECORD_LIMIT) {
                    Ok((key, _)) if self.read_record(home, key.digest(), true).is_some() => {
                        Ok(false)
                    }
                    Ok((key, value)) => {
                        let bytes = encode_record(&key, &value, 0);
                        if let Err(fault) = home.publish(&ItemPath::record(key.digest()), &bytes) {
                            return Err(not_kept(&imported, Some(self.unwritable(home, &fault))));
                        }
                        Ok(true)
                    }
                    Err(reason) => Err(reason),
                },
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

/// Checks that the path does not exist or is a pack, so that a typing error does not overwrite a
/// model.
fn may_be_replaced(path: &Path) -> Result<(), PackError> {
    let refused =
        |reason: &str| PackError::Refused { path: path.to_owned(), reason: reason.to_owned() };
    let found = match std::fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(PackError::Io { path: path.to_owned(), error }),
    };
    if found.is_dir() {
        return Err(refused("it is a directory; give the file to write"));
    }
    let mut magic = [0; MAGIC.len()];
    let is_pack = found.is_file()
        && File::open(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok()
        && magic == MAGIC;
    if is_pack { Ok(()) } else { Err(refused("it exists and is not a pack; it was not changed")) }
}

/// Creates the temporary file of a pack in its folder. Its lock shows that the writer is alive;
/// files of dead writers are removed.
fn create_temp(path: &Path) -> io::Result<(PathBuf, File)> {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    for item in std::fs::read_dir(folder)?.flatten() {
        if item.file_name().to_str().is_some_and(|name| name.starts_with(TEMP_PREFIX))
            && item.file_type().is_ok_and(|kind| kind.is_file())
            && File::open(item.path()).is_ok_and(|file| file.try_lock().is_ok())
        {
            let _ = std::fs::remove_file(item.path());
        }
    }
    loop {
        let temp = folder.join(unique_name(TEMP_PREFIX));
        // With any umask, other users must not have write permission: such a pack would be refused.
        let file = match OpenOptions::new().write(true).create_new(true).mode(0o644).open(&temp) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            opened => opened?,
        };
        // Without locks no other process removes it either.
        let _ = file.try_lock();
        // Another process may have removed the file before it was locked.
        let (named, open) = (std::fs::symlink_metadata(&temp), file.metadata()?);
        if named.is_ok_and(|named| (named.dev(), named.ino()) == (open.dev(), open.ino())) {
            return Ok((temp, file));
        }
    }
}

fn write_counted(file: &mut File, bytes: &[u8]) -> io::Result<u64> {
    file.write_all(bytes)?;
    Ok(bytes.len() as u64)
}
