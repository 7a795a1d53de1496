//! Tests that the reader does not panic for any bytes: flipped bits, replaced numbers, random
//! bytes. The fuzz target in `fuzz/` does the same for longer.

use crate::it::support::exercise::exercise;
use crate::it::support::writer::Writer;
use proptest::prelude::*;

#[test]
fn flipped_bits_do_not_panic() {
    let good = Writer::sample().bytes();
    let mut bytes = good.clone();
    for i in 0..good.len() {
        for bit in 0..8 {
            bytes[i] = good[i] ^ (1 << bit);
            exercise(&bytes);
        }
        bytes[i] = good[i];
    }
}

#[test]
fn changed_numbers_do_not_panic() {
    let good = Writer::sample().bytes();
    let header = Writer::sample().header().len();
    let numbers = [0, 1, 7, u64::from(u32::MAX), 1 << 32, i64::MAX as u64, u64::MAX - 31, u64::MAX];
    for at in 0..header - 8 {
        for n in numbers {
            let mut bytes = good.clone();
            bytes[at..at + 8].copy_from_slice(&n.to_le_bytes());
            exercise(&bytes);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changed_files_do_not_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
        cut in prop::option::weighted(0.2, any::<prop::sample::Index>()),
    ) {
        let mut bytes = Writer::sample().bytes();
        let header = Writer::sample().header().len();
        for (at, value) in changes {
            bytes[at.index(header)] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        exercise(&bytes);
    }

    #[test]
    fn random_bytes_after_valid_start_do_not_panic(keys in 0u64..3, tensors in 0u64..3, tail in prop::collection::vec(any::<u8>(), 0..400)) {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend(tensors.to_le_bytes());
        bytes.extend(keys.to_le_bytes());
        // Random lengths are far too large. With small lengths between them, the reader parses more
        // of the file.
        bytes.extend(tail.iter().enumerate().map(|(i, b)| if i % 8 == 0 { b % 16 } else if b % 3 == 0 { *b } else { 0 }));
        exercise(&bytes);
    }
}
