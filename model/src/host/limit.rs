//! What this machine's memory can do, measured now: the limit that decoding is held against.

use std::time::Instant;

/// Bytes a thread reads: together beyond any cache.
const BYTES: usize = 256 << 20;

/// Bytes a second that so many threads read together; the best of three.
pub fn read_bandwidth(threads: usize) -> f64 {
    let threads = threads.max(1);
    let part = BYTES / threads / 8;
    let data: Vec<Vec<u64>> = (0..threads).map(|t| vec![t as u64 + 1; part]).collect();
    let mut best = 0.0f64;
    for _ in 0..3 {
        let start = Instant::now();
        let sum: u64 = std::thread::scope(|scope| {
            let all: Vec<_> =
                data.iter().map(|d| scope.spawn(|| d.iter().fold(0u64, |a, &v| a.wrapping_add(v)))).collect();
            all.into_iter().map(|t| t.join().unwrap_or(0)).fold(0, u64::wrapping_add)
        });
        // The sum is used, so that the reads are not left out.
        std::hint::black_box(sum);
        best = best.max((threads * part * 8) as f64 / start.elapsed().as_secs_f64());
    }
    best
}
