//! Properties of the readers, tested with random bytes and artefacts.

use std::collections::BTreeMap;

use kjit_cache::{Artefact, BuildKey, Entry, Key};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

fn fields() -> impl Strategy<Value = Vec<(String, Vec<u8>, bool)>> {
    vec((".{0,12}", vec(any::<u8>(), 0..40), any::<bool>()), 0..6)
}

fn build(
    domain: &str,
    source: &[(String, Vec<u8>, bool)],
    maker: &[(String, Vec<u8>, bool)],
) -> BuildKey {
    let add = |key: kjit_cache::KeyBuilder, fields: &[(String, Vec<u8>, bool)]| {
        fields.iter().fold(key, |key, (label, value, long)| match long {
            true => key.content(label, value),
            false => key.field(label, value),
        })
    };
    BuildKey::new(&add(Key::builder(domain), source).finish(), |key| add(key, maker))
}

fn artefact() -> impl Strategy<Value = Artefact> {
    let map = || btree_map(".{0,8}", ".{0,20}", 0..5);
    (vec(any::<u8>(), 0..600), map(), map()).prop_map(
        |(payload, meta, needs): (Vec<u8>, BTreeMap<String, String>, BTreeMap<String, String>)| {
            Artefact { payload, meta, needs }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn encoding_round_trips(
        domain in ".{0,8}", source in fields(), maker in fields(), artefact in artefact(), created in any::<u64>()
    ) {
        let key = build(&domain, &source, &maker);
        let bytes = Entry::encode(&key, &artefact, created);
        let entry = Entry::decode_for(bytes.clone(), key.digest()).unwrap();
        prop_assert_eq!(entry.payload(), &artefact.payload[..]);
        prop_assert_eq!(entry.meta(), &artefact.meta);
        prop_assert_eq!(entry.needs(), &artefact.needs);
        prop_assert_eq!(entry.created_ms(), created);
        prop_assert_eq!(entry.key(), &key);
        prop_assert_eq!(entry.key().source().fields().len(), source.len());
        prop_assert_eq!(entry.key().build().fields().len(), maker.len() + 1);
        prop_assert_eq!(entry.as_bytes(), &bytes[..]);
    }

    #[test]
    fn random_bytes_after_valid_header_are_refused(
        noise in vec(any::<u8>(), 0..400), kind in 0u32..3, lie in any::<bool>()
    ) {
        let mut bytes = b"kjcache\n".to_vec();
        bytes.extend_from_slice(&1u32.to_le_bytes());
        bytes.extend_from_slice(&kind.to_le_bytes());
        let len = if lie { u64::MAX } else { (32 + noise.len()) as u64 };
        bytes.extend_from_slice(&len.to_le_bytes());
        bytes.extend_from_slice(&[0; 8]);
        bytes.extend_from_slice(&noise);
        prop_assert!(Entry::decode(bytes).is_err());
    }

    #[test]
    fn invalid_fields_with_valid_checksum_are_refused(
        artefact in artefact(), at in 32usize..400, value in any::<u8>()
    ) {
        // A hostile writer computes a correct checksum; lengths, order, UTF-8 and keys must be
        // checked nevertheless.
        let key = build("x", &[("a".into(), vec![1], false)], &[]);
        let mut bytes = Entry::encode(&key, &artefact, 7);
        let body = bytes.len() - 32;
        let at = at % body;
        bytes[at] = value;
        let hash = kjit_cache::Digest::of(&bytes[..body]);
        bytes[body..].copy_from_slice(&hash.0);
        if let Ok(entry) = Entry::decode(bytes.clone()) {
            // An accepted file is a well-formed entry: all of its parts are inside the file, and it
            // encodes to the same bytes again.
            let artefact = Artefact {
                payload: entry.payload().to_vec(), meta: entry.meta().clone(), needs: entry.needs().clone()
            };
            prop_assert_eq!(Entry::encode(entry.key(), &artefact, entry.created_ms()), bytes);
        }
    }
}
