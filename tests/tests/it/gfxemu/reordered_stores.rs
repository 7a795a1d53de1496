//! Loose mode: a seed chooses the order in which stores become visible. Kernels that violate the
//! memory rules (see planted_faults.rs) must give wrong results for some seed.

use super::common::{Assembly, CDNA3, LAST_BLOCK, RDNA3, cdna, ready};

const SEEDS: std::ops::Range<u64> = 1..41;

/// The number of seeds for which the sum is wrong. The counter is always right.
fn missed(blocks: &Assembly, body: &str) -> usize {
    let all = blocks.loose(body, 10, SEEDS);
    assert!(
        all.iter().all(|words| words[..9] == [1, 2, 3, 4, 5, 6, 7, 8, 8]),
        "in the end all has arrived: {all:?}"
    );
    all.iter().filter(|words| words[9] != 36).count()
}

#[test]
fn missing_wait_write_back_or_invalidation_gives_wrong_sums() {
    if !ready() {
        return;
    }
    let (rdna, mi300) =
        (Assembly { grid: 8, block: 32, ..RDNA3 }, Assembly { grid: 8, block: 64, ..CDNA3 });
    assert_eq!(missed(&rdna, LAST_BLOCK), 0);
    for part in ["s_waitcnt_vscnt null, 0x0\n", "buffer_gl1_inv\n", "buffer_gl0_inv\n"] {
        assert!(missed(&rdna, &LAST_BLOCK.replace(part, "")) > 0, "without {part}");
    }
    let body = cdna(LAST_BLOCK);
    assert_eq!(missed(&mi300, &body), 0);
    for part in ["buffer_wbl2 sc1\n", "s_waitcnt vmcnt(0)\nglobal_atomic", "buffer_inv sc1\n"] {
        let less = body.replace(part, if part.contains("atomic") { "global_atomic" } else { "" });
        assert!(less.len() < body.len() && missed(&mi300, &less) > 0, "without {part}");
    }
}

/// Two waves send each other a u32 through memory.
const WAVES: &str = "s_load_b64 s[4:5], s[0:1], 0x0
v_lshlrev_b32 v1, 2, v0
v_xor_b32 v2, 0x80, v1
s_waitcnt lgkmcnt(0)
global_store_b32 v1, v0, s[4:5]
s_waitcnt_vscnt null, 0x0
s_barrier
buffer_gl0_inv
global_load_b32 v3, v2, s[4:5]
s_waitcnt vmcnt(0)
global_store_b32 v1, v3, s[4:5] offset:256";

#[test]
fn waves_see_stores_after_wait_barrier_and_invalidation() {
    if !ready() {
        return;
    }
    let want: Vec<u32> = (0..64).map(|i| i ^ 32).collect();
    let wrong = |blocks: &Assembly, body: &str| {
        blocks.loose(body, 128, SEEDS).iter().filter(|words| words[64..] != want).count()
    };
    assert_eq!(wrong(&RDNA3, WAVES), 0);
    for part in ["s_waitcnt_vscnt null, 0x0\n", "s_barrier\n", "buffer_gl0_inv\n"] {
        assert!(wrong(&RDNA3, &WAVES.replace(part, "")) > 0, "without {part}");
    }
    // With one cache, which handles accesses in order, only the barrier is needed.
    let one = Assembly { one_cache: true, ..RDNA3 };
    let bare = WAVES.replace("s_waitcnt_vscnt null, 0x0\n", "").replace("buffer_gl0_inv\n", "");
    assert_eq!(wrong(&one, &bare), 0);
    assert!(wrong(&one, &bare.replace("s_barrier\n", "")) > 0);
}

/// Stores of a wave to the same address arrive in order, and the wave always reads its last store.
const OWN: &str = "s_load_b64 s[4:5], s[0:1], 0x0
v_lshlrev_b32 v1, 2, v0
v_add_nc_u32 v2, 5, v0
s_waitcnt lgkmcnt(0)
global_store_b32 v1, v0, s[4:5]
global_store_b32 v1, v2, s[4:5]
global_load_b32 v3, v1, s[4:5]
s_waitcnt vmcnt(0)
v_add_nc_u32 v3, 1, v3
global_store_b32 v1, v3, s[4:5] offset:256";

#[test]
fn stores_of_a_wave_to_one_address_stay_ordered() {
    if !ready() {
        return;
    }
    let want: Vec<u32> = (5..69).chain(6..70).collect();
    assert!(RDNA3.loose(OWN, 128, SEEDS).iter().all(|words| *words == want));
}
