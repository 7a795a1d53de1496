//! The number of threads that share a row of a sequence's state (`gpu/state.h`).

/// Threads that hold a row of `n` numbers in registers: with more threads a sum takes more steps,
/// with fewer each thread needs more registers.
pub(crate) fn lanes(n: usize) -> usize {
    n.next_power_of_two().min(16)
}

/// The most numbers of a row: 32 for each of its threads.
pub(crate) const LONGEST: usize = 512;
