//! What comes over a connection, without sockets: the fuzzer's seeds (`fuzz/fuzz_targets/requests.rs`), and these broken by chance.
//! 300 of them, or as many as `KJIT_TEST_FUZZ` says, from the number that `KJIT_TEST_FUZZ_FROM` says.

#[path = "support/connection.rs"]
mod connection;

use std::path::Path;

/// A number for what is left to chance.
fn dice(state: &mut u64, n: usize) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as usize % n.max(1)
}

/// What stands in requests, in places where it should not.
const WORDS: [&[u8]; 16] = [
    b"\"",
    b"\\",
    b"{",
    b"]",
    b",",
    b"null",
    b"-1",
    b"1e999",
    b"\xff",
    b"\r\n",
    b"\r\n\r\n",
    b"chunked",
    b"\\u0000",
    b":",
    b"9",
    b"tools",
];

#[test]
fn whatever_comes_over_a_connection_is_answered_and_nothing_is_left_of_it() {
    if !connection::model().exists() {
        eprintln!("SKIPPED: {} is not there (scripts/fetch-test-models)", connection::model().display());
        return;
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds/requests");
    let mut seeds: Vec<_> = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    seeds.sort();
    let seeds: Vec<Vec<u8>> = seeds.into_iter().map(|path| std::fs::read(path).unwrap()).collect();
    assert!(seeds.len() > 10);
    for seed in &seeds {
        let said = connection::exercise(seed);
        assert!(said.starts_with("HTTP/1.1 20"), "{}: {said}", String::from_utf8_lossy(seed));
    }
    let number = |name: &str| std::env::var(name).ok().map(|n| n.parse::<u64>().unwrap());
    let (many, from) = (number("KJIT_TEST_FUZZ").unwrap_or(300), number("KJIT_TEST_FUZZ_FROM").unwrap_or(0));
    let mut refused = 0;
    for i in from..from + many {
        let mut state = i ^ 0x9e37_79b9_7f4a_7c15;
        (0..3).for_each(|_| _ = dice(&mut state, 2));
        let mut bytes = seeds[dice(&mut state, seeds.len())].clone();
        for _ in 0..=dice(&mut state, 4) {
            let (at, word) = (dice(&mut state, bytes.len()), WORDS[dice(&mut state, WORDS.len())]);
            let end = (at + dice(&mut state, 6)).min(bytes.len());
            match dice(&mut state, 5) {
                0 => bytes.truncate(at),
                1 => drop(bytes.splice(at..end, word.iter().copied())),
                2 => drop(bytes.splice(at..at, word.iter().copied())),
                3 => drop(bytes.drain(at..end)),
                _ => bytes[at.min(end.saturating_sub(1))] ^= 1 << dice(&mut state, 8),
            }
            if bytes.is_empty() {
                bytes.push(b'0');
            }
        }
        eprintln!("request {i}");
        refused += usize::from(connection::exercise(&bytes).starts_with("HTTP/1.1 4"));
    }
    assert!(refused as u64 > many / 3, "{refused} of {many} were refused");
}
