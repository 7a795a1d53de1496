//! The kernels that measure a card for `kjit probe`. `gpu/card.hip`.

use crate::vocabulary::files::source;
use kjit_engine::{Constants, Job, Options, Target};

/// Threads of a block.
pub const BLOCK: u32 = 256;
/// The entry points.
pub const COUNT: &str = "card_count";
/// See [`COUNT`].
pub const MEET: &str = "card_meet";
/// See [`COUNT`].
pub const STRIDE: &str = "card_stride";
/// See [`COUNT`].
pub const LDS: &str = "card_lds";
/// See [`COUNT`].
pub const CLOCK: &str = "card_clock";

/// The job of the code object with all five kernels, for the target's default wave width.
#[must_use]
pub fn job(target: &Target) -> Job {
    let entries = [COUNT, MEET, STRIDE, LDS, CLOCK];
    let source = entries.into_iter().fold(source("card", "card.hip"), |s, entry| s.entry(entry));
    let constants = Constants::new().set("KJ_BLOCK", BLOCK);
    let constants =
        if target.arch().has("f32-alone") { constants.set("KJ_F32", 1) } else { constants };
    Job::new(source, constants, Options::wave(target.default_wave()), target.clone())
}

/// Bytes of a vector of [`STRIDE`] and of [`LDS`].
pub const VECTOR: usize = 16;
/// Vectors that a thread of [`LDS`] reads in a round.
pub const LDS_VECTORS: u32 = 8;

/// The sum that thread `t` of [`LDS`] has after `rounds` rounds.
#[must_use]
pub fn lds_sum(t: u32, rounds: u32) -> u32 {
    let of = |t: u32| t ^ (3 * t + 1) ^ !t ^ (t << 8);
    let reads = u64::from(rounds) * u64::from(LDS_VECTORS);
    let turn = (0..BLOCK).fold(0u32, |sum, i| sum.wrapping_add(of(i)));
    let (turns, rest) = ((reads / u64::from(BLOCK)) as u32, (reads % u64::from(BLOCK)) as u32);
    let rest = (0..rest).fold(0u32, |sum, i| sum.wrapping_add(of((t + i) % BLOCK)));
    turn.wrapping_mul(turns).wrapping_add(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sum_of_rounds_equals_closed_form() {
        let of = |t: u32| t ^ (3 * t + 1) ^ !t ^ (t << 8);
        for (t, rounds) in [(0, 0), (5, 1), (255, 33), (17, 100)] {
            let all = (0..rounds * LDS_VECTORS).map(|i| of((t + i) % BLOCK));
            assert_eq!(lds_sum(t, rounds), all.fold(0u32, u32::wrapping_add));
        }
    }
}
