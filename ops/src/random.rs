//! Counter-based random bits: Philox 4×32-10 (Salmon and others, 2011). A key and a counter give
//! identical values on every device, in any order of computation.

/// The word of a counter: one of the four words of a block.
pub(crate) fn bits(key: u64, counter: u64) -> u32 {
    let block = philox(key, counter / 4);
    block.get((counter % 4) as usize).copied().unwrap_or(0)
}

fn philox(key: u64, block: u64) -> [u32; 4] {
    let (mut k0, mut k1) = (key as u32, (key >> 32) as u32);
    let mut c = [block as u32, (block >> 32) as u32, 0, 0];
    for _ in 0..10 {
        let (a, b) = (0xD251_1F53_u64 * u64::from(c[0]), 0xCD9E_8D57_u64 * u64::from(c[2]));
        c = [(b >> 32) as u32 ^ c[1] ^ k0, b as u32, (a >> 32) as u32 ^ c[3] ^ k1, a as u32];
        k0 = k0.wrapping_add(0x9E37_79B9);
        k1 = k1.wrapping_add(0xBB67_AE85);
    }
    c
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_philox_block_matches_published_value() {
        // Random123's known answers: philox4x32-10, counter 0, key 0.
        assert_eq!(philox(0, 0), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
    }
}
