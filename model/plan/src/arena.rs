//! Places buffers with different lifetimes in one arena.

#![expect(clippy::indexing_slicing, reason = "indices of the list itself")]

/// A buffer's lifetime in launches, both ends included, and its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lifetime {
    /// First launch that writes the buffer.
    pub first: usize,
    /// Last launch that uses the buffer.
    pub last: usize,
    /// Size in bytes.
    pub bytes: u64,
}

impl Lifetime {
    /// Whether two lifetimes overlap.
    pub fn overlaps(&self, other: &Lifetime) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// Alignment of buffers, as in drivers' allocations: a multiple of any vector load.
pub const ALIGN: u64 = 256;

/// The offset of each buffer, and the size of the arena. The largest buffers are placed first, each
/// in the lowest gap that is free during its lifetime. Transformers use a few sizes repeatedly, so
/// the result is within a few percent of the largest sum of live buffers.
pub fn place(lives: &[Lifetime]) -> (Vec<u64>, u64) {
    let mut order: Vec<usize> = (0..lives.len()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(lives[i].bytes), lives[i].first));
    let mut offsets = vec![0; lives.len()];
    let mut placed: Vec<usize> = vec![];
    let mut size = 0;
    for i in order {
        let mut taken: Vec<(u64, u64)> = placed
            .iter()
            .filter(|&&p| lives[p].overlaps(&lives[i]))
            .map(|&p| (offsets[p], offsets[p] + room(lives[p].bytes)))
            .collect();
        taken.sort_unstable();
        let mut at = 0;
        for (from, to) in taken {
            if from >= at + room(lives[i].bytes) {
                break;
            }
            at = at.max(to);
        }
        offsets[i] = at;
        size = size.max(at + room(lives[i].bytes));
        placed.push(i);
    }
    (offsets, size)
}

fn room(bytes: u64) -> u64 {
    bytes.max(1).next_multiple_of(ALIGN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overlap(lives: &[Lifetime], offsets: &[u64]) -> Option<(usize, usize)> {
        let pairs = (0..lives.len()).flat_map(|a| (0..a).map(move |b| (a, b)));
        pairs.into_iter().find(|&(a, b)| {
            lives[a].overlaps(&lives[b])
                && offsets[a] < offsets[b] + lives[b].bytes
                && offsets[b] < offsets[a] + lives[a].bytes
        })
    }

    #[test]
    fn live_buffers_never_overlap_and_fit_the_arena() {
        let mut seed = 1u64;
        let mut next = |n: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % n
        };
        for round in 0..200 {
            let lives: Vec<Lifetime> = (0..next(30))
                .map(|_| {
                    let first = next(20) as usize;
                    Lifetime { first, last: first + next(6) as usize, bytes: next(5000) }
                })
                .collect();
            let (offsets, size) = place(&lives);
            assert_eq!(overlap(&lives, &offsets), None, "round {round}");
            for (l, o) in lives.iter().zip(&offsets) {
                assert!(o % ALIGN == 0 && o + l.bytes <= size);
            }
        }
    }

    #[test]
    fn chain_of_equal_buffers_needs_two_slots() {
        let lives: Vec<Lifetime> =
            (0..50).map(|i| Lifetime { first: i, last: i + 1, bytes: 4096 }).collect();
        assert_eq!(place(&lives).1, 2 * 4096);
    }
}
