//! Stores that arrive in an order that a seed chooses: what is missing shows in what is computed. The same kernels
//! that are faults by the rules (`planted.rs`), without them.

mod common;

use common::{Assembly, ready};

const RDNA3: Assembly = Assembly { arch: "gfx1100", wave: 32, lds: 0, grid: 8, block: 32, one_cache: false };
const CDNA3: Assembly = Assembly { arch: "gfx942", wave: 64, lds: 0, grid: 8, block: 64, one_cache: false };
const SEEDS: std::ops::Range<u64> = 1..41;

/// Every block stores its part and adds to a counter;
/// the last one adds up all parts.
const LAST_BLOCK: &str = "s_load_b64 s[4:5], s[0:1], 0x0
v_mov_b32 v1, 0
s_lshl_b32 s6, s2, 2
s_add_i32 s7, s2, 1
v_mov_b32 v2, s7
v_mov_b32 v3, s6
v_mov_b32 v4, 1
s_mov_b32 exec_lo, 1
s_waitcnt lgkmcnt(0)
global_store_b32 v3, v2, s[4:5]
s_waitcnt_vscnt null, 0x0
global_atomic_add_u32 v5, v1, v4, s[4:5] offset:32 glc
s_waitcnt vmcnt(0)
buffer_gl1_inv
buffer_gl0_inv
v_readfirstlane_b32 s8, v5
s_cmp_lg_u32 s8, 7
s_cbranch_scc1 .Lover
global_load_b128 v[8:11], v1, s[4:5]
global_load_b128 v[12:15], v1, s[4:5] offset:16
s_waitcnt vmcnt(0)
v_add3_u32 v8, v8, v9, v10
v_add3_u32 v8, v8, v11, v12
v_add3_u32 v8, v8, v13, v14
v_add_nc_u32 v8, v8, v15
global_store_b32 v1, v8, s[4:5] offset:36
.Lover:";

fn cdna(body: &str) -> String {
    body.replace("b64", "dwordx2")
        .replace("b128", "dwordx4")
        .replace("store_b32", "store_dword")
        .replace("_add_nc_u32", "_add_u32")
        .replace("exec_lo", "exec")
        .replace("s_mov_b32 exec,", "s_mov_b64 exec,")
        .replace("atomic_add_u32", "atomic_add")
        .replace("glc", "sc0")
        .replace("s_waitcnt_vscnt null, 0x0", "buffer_wbl2 sc1\ns_waitcnt vmcnt(0)")
        .replace("buffer_gl1_inv\nbuffer_gl0_inv", "buffer_inv sc1")
}

/// By how many seeds the sum is wrong; the counter never is.
fn missed(blocks: &Assembly, body: &str) -> usize {
    let all = blocks.loose(body, 10, SEEDS);
    assert!(all.iter().all(|words| words[..9] == [1, 2, 3, 4, 5, 6, 7, 8, 8]), "in the end all has arrived: {all:?}");
    all.iter().filter(|words| words[9] != 36).count()
}

#[test]
fn a_wait_a_write_back_or_an_invalidation_that_is_missing_makes_some_sum_wrong() {
    if !ready() {
        return;
    }
    assert_eq!(missed(&RDNA3, LAST_BLOCK), 0);
    for part in ["s_waitcnt_vscnt null, 0x0\n", "buffer_gl1_inv\n", "buffer_gl0_inv\n"] {
        assert!(missed(&RDNA3, &LAST_BLOCK.replace(part, "")) > 0, "without {part}");
    }
    let body = cdna(LAST_BLOCK);
    assert_eq!(missed(&CDNA3, &body), 0);
    for part in ["buffer_wbl2 sc1\n", "s_waitcnt vmcnt(0)\nglobal_atomic", "buffer_inv sc1\n"] {
        let less = body.replace(part, if part.contains("atomic") { "global_atomic" } else { "" });
        assert!(less.len() < body.len() && missed(&CDNA3, &less) > 0, "without {part}");
    }
}

/// Two waves hand each other a word through memory.
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
fn waves_of_a_block_see_each_other_s_stores_behind_a_wait_a_barrier_and_an_invalidation() {
    if !ready() {
        return;
    }
    let two = Assembly { grid: 1, block: 64, ..RDNA3 };
    let want: Vec<u32> = (0..64).map(|i| i ^ 32).collect();
    let wrong = |blocks: &Assembly, body: &str| {
        blocks.loose(body, 128, SEEDS).iter().filter(|words| words[64..] != want).count()
    };
    assert_eq!(wrong(&two, WAVES), 0);
    for part in ["s_waitcnt_vscnt null, 0x0\n", "s_barrier\n", "buffer_gl0_inv\n"] {
        assert!(wrong(&two, &WAVES.replace(part, "")) > 0, "without {part}");
    }
    // On one cache, which takes what they ask for in order, only the barrier is needed.
    let one = Assembly { one_cache: true, ..two };
    let bare = WAVES.replace("s_waitcnt_vscnt null, 0x0\n", "").replace("buffer_gl0_inv\n", "");
    assert_eq!(wrong(&one, &bare), 0);
    assert!(wrong(&one, &bare.replace("s_barrier\n", "")) > 0);
}

/// A wave's own stores to one place arrive in their order, and it always reads the last.
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
fn a_wave_s_own_stores_to_one_place_stay_in_order() {
    if !ready() {
        return;
    }
    let one = Assembly { grid: 1, block: 64, ..RDNA3 };
    let want: Vec<u32> = (5..69).chain(6..70).collect();
    assert!(one.loose(OWN, 128, SEEDS).iter().all(|words| *words == want));
}
