//! What this machine's memory can do, measured now: the limit that decoding is held against.

use super::dot::ask;
use super::simd::{Isa, Job, LANES, Vector};
use std::time::Instant;

/// Bytes a thread reads: together beyond any cache.
const BYTES: usize = 256 << 20;

/// Bytes a second that so many threads read together; the best of three.
pub fn read_bandwidth(threads: usize) -> f64 {
    let (threads, isa) = (threads.max(1), Isa::best());
    let part = BYTES / threads / 4;
    let data: Vec<Vec<f32>> = (0..threads).map(|t| vec![t as f32 + 1.0; part]).collect();
    let mut best = 0.0f64;
    for _ in 0..3 {
        let start = Instant::now();
        let sum: f32 = std::thread::scope(|scope| {
            // SAFETY: the job asks for nothing.
            let all = data.iter().map(|data| {
                scope.spawn(move || unsafe { isa.run(Sum { data, ahead: isa.ahead() }) })
            });
            let all: Vec<_> = all.collect();
            all.into_iter().map(|t| t.join().unwrap_or(0.0)).sum()
        });
        // The sum is used, so that the reads are not left out.
        std::hint::black_box(sum);
        best = best.max((threads * part * 4) as f64 / start.elapsed().as_secs_f64());
    }
    best
}

/// Adds floats up, asked for before they are read as weights are: a Xeon's core gives 1.7 times as
/// much so, and a limit that products pass is none.
struct Sum<'a> {
    data: &'a [f32],
    ahead: usize,
}

impl Job for Sum<'_> {
    type Out = f32;

    #[inline(always)]
    unsafe fn run<V: Vector>(self) -> f32 {
        // SAFETY: the instructions are there; a pair of vectors is in each piece.
        unsafe {
            let (mut even, mut odd) = (V::splat(0.0), V::splat(0.0));
            for pair in self.data.chunks_exact(2 * LANES) {
                ask::<V>(pair.as_ptr().cast(), size_of_val(pair), self.ahead);
                even = even.add(V::load(pair.as_ptr()));
                odd = odd.add(V::load(pair.as_ptr().add(LANES)));
            }
            even.add(odd).sum()
        }
    }
}
