//! Order in global memory, planted in assembly: stores over bytes that other waves may still be
//! reading, and atomics without a wait.

use super::common::{Assembly, RDNA3, ready};

/// Two waves: each thread reads a word of the other wave and then overwrites its own.
const OVERWRITE: &str = "s_load_b64 s[4:5], s[0:1], 0x0
v_lshlrev_b32 v1, 2, v0
v_xor_b32 v2, 0x80, v1
s_waitcnt lgkmcnt(0)
global_load_b32 v3, v2, s[4:5]
s_waitcnt vmcnt(0)
s_barrier
v_add_nc_u32 v3, v3, v0
v_add_nc_u32 v3, 1, v3
global_store_b32 v1, v3, s[4:5]";

#[test]
fn overwriting_data_of_other_wave_needs_wait_and_barrier() {
    if !ready() {
        return;
    }
    assert_eq!(RDNA3.right(OVERWRITE, 64), (1..65).collect::<Vec<u32>>());
    RDNA3.wrong(&OVERWRITE.replace("s_barrier\n", ""), 64, "with no barrier between");
    let late = OVERWRITE.replace("s_waitcnt vmcnt(0)\ns_barrier", "s_barrier\ns_waitcnt vmcnt(0)");
    RDNA3.wrong(&late, 64, "did not wait for its load of it before the barrier");
    // All waves of the block use one cache, which handles accesses in order.
    let one = Assembly { one_cache: true, ..RDNA3 };
    assert_eq!(one.right(&late, 64), (1..65).collect::<Vec<u32>>());
    one.wrong(&OVERWRITE.replace("s_barrier\n", ""), 64, "with no barrier between");
    // Blocks of one wave each store equal values, without any order between the blocks.
    let blocks = Assembly { grid: 2, block: 32, ..RDNA3 };
    let by_block = OVERWRITE
        .replace("v_lshlrev_b32 v1, 2, v0", "v_lshl_or_b32 v0, s2, 5, v0\nv_lshlrev_b32 v1, 2, v0");
    blocks.wrong(
        &by_block,
        64,
        "did not signal since|signalled|not written back|not waited for|did not wait",
    );
}

/// Every block reads the first u32, and the last block overwrites it. The second u32 is the
/// counter.
const LAST: &str = "s_load_b64 s[4:5], s[0:1], 0x0
v_mov_b32 v1, 0
v_mov_b32 v4, 1
s_mov_b32 exec_lo, 1
s_waitcnt lgkmcnt(0)
global_load_b32 v6, v1, s[4:5]
s_waitcnt vmcnt(0)
global_atomic_add_u32 v5, v1, v4, s[4:5] offset:4 glc
s_waitcnt vmcnt(0)
buffer_gl1_inv
buffer_gl0_inv
v_readfirstlane_b32 s8, v5
s_cmp_lg_u32 s8, 7
s_cbranch_scc1 .Lover
v_add_nc_u32 v6, 9, v6
global_store_b32 v1, v6, s[4:5]
.Lover:";

#[test]
fn overwriting_data_of_other_block_needs_wait_and_signal() {
    if !ready() {
        return;
    }
    let blocks = Assembly { grid: 8, block: 32, ..RDNA3 };
    assert_eq!(blocks.right(LAST, 2), [9, 8]);
    let late = LAST.replacen("s_waitcnt vmcnt(0)\n", "", 1);
    blocks.wrong(&late, 2, "and its block did not signal since|did not wait for its load");
    blocks.wrong(
        &LAST.replace("s_cmp_lg_u32 s8, 7", "s_cmp_lg_u32 s8, 3"),
        2,
        "overwritten|stored|not waited for",
    );
}

/// Two waves add to the first u32. Each then reads the sum with an atomic and stores it at its own
/// index.
const LATE: &str = "s_load_b64 s[4:5], s[0:1], 0x0
v_lshrrev_b32 v2, 3, v0
v_mov_b32 v1, 0
v_mov_b32 v4, 1
s_mov_b32 exec_lo, 1
s_waitcnt lgkmcnt(0)
global_atomic_add_u32 v1, v4, s[4:5]
s_waitcnt_vscnt null, 0x0
s_barrier
global_atomic_or_b32 v5, v1, v1, s[4:5] glc
s_waitcnt vmcnt(0)
global_store_b32 v2, v5, s[4:5] offset:4";

#[test]
fn atomic_without_wait_completes_late() {
    if !ready() {
        return;
    }
    assert!(RDNA3.by_seed(LATE, 3, 1..9).iter().all(|words| *words == [2, 2, 2]));
    let late = LATE.replace("s_waitcnt_vscnt null, 0x0\n", "");
    let seen = RDNA3.by_seed(&late, 3, 1..17);
    assert!(seen.iter().any(|words| *words != [2, 2, 2]), "the wait is not missed: {seen:?}");
    assert!(seen.iter().all(|words| words[0] == 2), "in the end it has happened");
    // If a load reads the sum, a wait for the atomics and an invalidation of the caches are needed.
    let load = LATE.replace(
        "global_atomic_or_b32 v5, v1, v1, s[4:5] glc",
        "buffer_gl0_inv\nglobal_load_b32 v5, v1, s[4:5]",
    );
    assert_eq!(RDNA3.right(&load, 3), [2, 2, 2]);
    RDNA3.wrong(
        &load.replace("buffer_gl0_inv\n", ""),
        3,
        "since this wave's caches were last invalidated",
    );
    RDNA3.wrong(
        &load.replace("s_waitcnt_vscnt null, 0x0\n", ""),
        3,
        "store to it was not waited for",
    );
    RDNA3.wrong(&load.replace("s_barrier\n", ""), 3, "with no barrier between");
}
