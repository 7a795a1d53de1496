//! Measures the read bandwidth of this machine's memory: the limit of decoding speed.

use super::dot::prefetch_ahead;
use super::simd::{Isa, Job, LANES, Vector};
use std::time::Instant;

/// Bytes read by all threads together, larger than any cache.
const BYTES: usize = 256 << 20;

/// Bytes per second that this number of threads reads together; the best of three runs.
pub fn read_bandwidth(threads: usize) -> f64 {
    let (threads, isa) = (threads.max(1), Isa::best());
    let part = BYTES / threads / 4;
    let data: Vec<Vec<f32>> = (0..threads).map(|t| vec![t as f32 + 1.0; part]).collect();
    let mut best = 0.0f64;
    for _ in 0..3 {
        let start = Instant::now();
        let sum: f32 = std::thread::scope(|scope| {
            let all = data.iter().map(|data| {
                scope.spawn(move || {
                    // SAFETY: this job has no requirement on its fields.
                    unsafe { isa.run(Sum { data, ahead: isa.ahead() }) }
                })
            });
            let all: Vec<_> = all.collect();
            all.into_iter().map(|t| t.join().unwrap_or(0.0)).sum()
        });
        // The sum is used, so that the compiler keeps the reads.
        std::hint::black_box(sum);
        best = best.max((threads * part * 4) as f64 / start.elapsed().as_secs_f64());
    }
    best
}

/// Adds floats with the same prefetching as products: on a Xeon it reads 1.7 times as fast per
/// core, and products must not exceed the measured limit.
struct Sum<'a> {
    data: &'a [f32],
    ahead: usize,
}

impl Job for Sum<'_> {
    type Out = f32;

    #[inline(always)]
    unsafe fn run<V: Vector>(self) -> f32 {
        // SAFETY: the caller guarantees the instruction set; each piece has a pair of vectors.
        unsafe {
            let (mut even, mut odd) = (V::splat(0.0), V::splat(0.0));
            for pair in self.data.chunks_exact(2 * LANES) {
                prefetch_ahead::<V>(pair.as_ptr().cast(), size_of_val(pair), self.ahead);
                even = even.add(V::load(pair.as_ptr()));
                odd = odd.add(V::load(pair.as_ptr().add(LANES)));
            }
            even.add(odd).sum()
        }
    }
}
