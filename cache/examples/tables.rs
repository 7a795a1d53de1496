//! A program with expensive artefacts, embedding the cache: `cargo run -p kjit-cache --example
//! tables`.
//!
//! The first run computes every table. The second run reads all of them from the user's cache. Try
//! it with `DEMO_TABLES_CACHE_DIR=/nonexistent` or start two processes simultaneously.

use std::time::{Duration, Instant};

use kjit_cache::{Artefact, BuildKey, Cache, Config, Key, Origin};

/// An example of expensive work: computes the first primes in a slow way.
fn primes(count: usize) -> Vec<u8> {
    let is_prime = |n: &u64| (2..*n).take_while(|d| d * d <= *n).all(|d| !n.is_multiple_of(d));
    (2u64..).filter(is_prime).take(count).flat_map(u64::to_le_bytes).collect()
}

fn main() {
    let config =
        Config::for_app("demo-tables").on_warning(|warning| eprintln!("warning: {warning}"));
    let cache = Cache::open(config);
    match cache.home() {
        Some(home) => eprintln!("cache: {}", home.display()),
        None => eprintln!("cache: memory only"),
    }
    for count in [20_000, 40_000, 80_000] {
        let source = Key::builder("demo primes").field("count", count.to_string()).finish();
        let key = BuildKey::new(&source, |key| key.field("algorithm", "trial division, version 1"));
        let start = Instant::now();
        let table = cache.get_or_make(&key, Duration::from_secs(60), || {
            Ok::<_, std::convert::Infallible>(
                Artefact::new(primes(count)).meta("count", count.to_string()),
            )
        });
        match table {
            Ok(found) => {
                let how = if found.origin == Origin::Made { "made" } else { "found" };
                eprintln!(
                    "{count} primes, {} bytes: {how} in {:.2?}",
                    found.entry.payload().len(),
                    start.elapsed()
                );
            }
            Err(never) => match never {},
        }
    }
}
