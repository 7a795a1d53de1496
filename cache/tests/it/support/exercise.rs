//! Properties that the readers must have for any bytes. The fuzzer and the tests of its seeds run
//! this.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use kjit_cache::{Artefact, Cache, Config, Digest, Entry, Pack, SecretKey};

/// Reads any bytes as an entry, unchanged and with a correct checksum. They are refused, or the
/// entry encodes to the same bytes.
pub fn entry(bytes: &[u8]) {
    entry_as_it_is(bytes);
    if bytes.len() >= 24 {
        let mut sealed = bytes.to_vec();
        let len = sealed.len() as u64 + 32;
        sealed[16..24].copy_from_slice(&len.to_le_bytes());
        let checksum = Digest::of(&sealed);
        sealed.extend_from_slice(&checksum.0);
        entry_as_it_is(&sealed);
    }
}

fn entry_as_it_is(bytes: &[u8]) {
    match Entry::decode(bytes.to_vec()) {
        Ok(entry) => {
            let (meta, needs) = (entry.meta().clone(), entry.needs().clone());
            let artefact = Artefact { payload: entry.payload().to_vec(), meta, needs };
            assert_eq!(Entry::encode(entry.key(), &artefact, entry.created_ms()), bytes);
            let digest = entry.key().digest();
            assert!(Entry::decode_for(bytes.to_vec(), digest).is_ok());
            assert!(Entry::decode_for(bytes.to_vec(), Digest([9; 32])).is_err());
        }
        Err(error) => assert!(!error.to_string().contains('\n'), "an error is one line"),
    }
}

/// Reads any bytes as a pack in the file `scratch`: unchanged, and with a head that has a correct
/// checksum. The first two bytes then give the length of the index.
pub fn pack(bytes: &[u8], scratch: &Path) {
    pack_as_it_is(bytes, scratch);
    if let Some((len, rest)) = bytes.split_first_chunk::<2>() {
        let len = usize::from(u16::from_le_bytes(*len)).min(rest.len());
        let (index, entries) = rest.split_at(len);
        let mut file = b"kjpack\n\0\x01\0\0\0\0\0\0\0".to_vec();
        file.extend_from_slice(&(len as u64).to_le_bytes());
        file.extend_from_slice(index);
        file.extend_from_slice(&[0; 96]);
        let checksum = Digest::of(&file);
        file.extend_from_slice(&checksum.0);
        file.extend_from_slice(entries);
        pack_as_it_is(&file, scratch);
    }
}

fn pack_as_it_is(bytes: &[u8], scratch: &Path) {
    let mut options = std::fs::OpenOptions::new();
    let mut file =
        options.write(true).create(true).truncate(true).mode(0o600).open(scratch).unwrap();
    file.write_all(bytes).unwrap();
    match Pack::open(scratch, &[]) {
        Ok(pack) => {
            let of_the_seeds = SecretKey::from_bytes([5; 32]).public();
            assert!(
                pack.signer().is_none_or(|signer| signer == of_the_seeds),
                "a forged signature"
            );
            let count = pack.len();
            let cache = Cache::open(
                Config::for_app("fuzz").ignore_environment().memory_only().read_only(scratch),
            );
            // Each item is good or reported as bad. Reading all items must not use more memory than
            // the size of the file.
            let report = cache.verify();
            assert_eq!(report.good as usize + report.bad.len(), count);
            assert!(report.bytes <= bytes.len() as u64);
            for info in cache.list() {
                let found = cache.get(&info.key).expect("listed");
                assert_eq!(found.entry.key(), &info.key);
            }
        }
        Err(error) => assert!(!error.to_string().contains('\n'), "an error is one line"),
    }
}
