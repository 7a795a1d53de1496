//! Faults planted in assembly: each kernel is correct, and wrong with one line removed or changed.
//! This shows that the checks of the emulator work.

use super::common::{Assembly, CDNA3, LAST_BLOCK, RDNA3, cdna, ready};

/// Every thread stores its number at its index.
const STORE: &str = "s_load_b64 s[4:5], s[0:1], 0x0
v_lshlrev_b32 v1, 2, v0
s_waitcnt lgkmcnt(0)
global_store_b32 v1, v0, s[4:5]";

#[test]
fn missing_scalar_load_wait_is_detected() {
    if !ready() {
        return;
    }
    assert_eq!(RDNA3.right(STORE, 64), (0..64).collect::<Vec<u32>>());
    RDNA3.wrong(
        &STORE.replace("s_waitcnt lgkmcnt(0)", ""),
        64,
        "s4 is used before a wait for its load",
    );
}

#[test]
fn missing_vector_load_wait_is_detected_in_each_family() {
    if !ready() {
        return;
    }
    for (arch, wave, wait) in [
        ("gfx900", 64, "s_waitcnt vmcnt(1)"),
        ("gfx942", 64, "s_waitcnt vmcnt(1)"),
        ("gfx1030", 32, "s_waitcnt vmcnt(1)"),
        ("gfx1100", 64, "s_waitcnt vmcnt(1)"),
        ("gfx1201", 32, "s_wait_loadcnt 0x1"),
    ] {
        let kmcnt = if arch == "gfx1201" { "s_wait_kmcnt 0x0" } else { "s_waitcnt lgkmcnt(0)" };
        let body = format!(
            "s_load_dwordx2 s[4:5], s[0:1], 0x0
v_lshlrev_b32 v1, 2, v0
{kmcnt}
global_load_dword v2, v1, s[4:5]
global_load_dword v3, v1, s[4:5]
{wait}
v_add_u32 v2, v2, v0
global_store_dword v1, v2, s[4:5]"
        );
        let body =
            if arch.starts_with("gfx9") { body } else { body.replace("v_add_u32", "v_add_nc_u32") };
        let on = Assembly { arch, wave, lds: 0, grid: 1, block: 64, one_cache: false };
        assert_eq!(on.right(&body, 64), (0..64).collect::<Vec<u32>>());
        on.wrong(&body.replace(wait, ""), 64, "v2 is used before a wait for its load");
        // A wait that leaves one load outstanding does not cover the second load.
        on.wrong(
            &body.replace("_u32 v2, v2", "_u32 v2, v3"),
            64,
            "v3 is used before a wait for its load",
        );
    }
}

#[test]
fn in_order_loads_to_one_register_need_no_wait() {
    if !ready() {
        return;
    }
    let body = STORE.replace("v1, v0, s[4:5]", "v1, v2, s[4:5]").replace(
        "global_store_b32",
        "global_load_b32 v2, v1, s[4:5]
global_load_b32 v2, v1, s[4:5]
s_waitcnt vmcnt(0)
global_store_b32",
    );
    RDNA3.right(&body, 64);
    RDNA3.wrong(
        &body.replace("s_waitcnt vmcnt(0)", "s_waitcnt vmcnt(1)"),
        64,
        "v2 is used before a wait for its load",
    );
    // A 16-bit load keeps the other half of its register.
    let half = "global_load_d16_hi_b16 v2, v1, s[4:5]\ns_waitcnt";
    RDNA3.wrong(
        &body.replace("global_load_b32 v2, v1, s[4:5]\ns_waitcnt", half),
        64,
        "v2 is used before a wait for its load",
    );
    let rdna4 = Assembly { arch: "gfx1201", ..RDNA3 };
    let body = body
        .replace("s_waitcnt vmcnt(0)", "s_wait_loadcnt 0x0")
        .replace("s_waitcnt lgkmcnt", "s_wait_kmcnt");
    rdna4.wrong(
        &body.replace("kmcnt(0)", "kmcnt 0x0"),
        64,
        "v2 is used before a wait for its load",
    );
}

/// Every block stores the same values and reads them after a barrier.
const SAME: &str = "s_load_b64 s[4:5], s[0:1], 0x0
v_lshlrev_b32 v1, 2, v0
v_mov_b32 v2, 7
s_waitcnt lgkmcnt(0)
global_store_b32 v1, v2, s[4:5]
s_waitcnt_vscnt null, 0x0
s_barrier
buffer_gl0_inv
global_load_b32 v3, v1, s[4:5]
s_waitcnt vmcnt(0)
s_lshl_b32 s6, s2, 8
v_add_nc_u32 v4, s6, v1
global_store_b32 v4, v3, s[4:5] offset:256";

#[test]
fn blocks_may_read_equal_stores_of_other_blocks() {
    if !ready() {
        return;
    }
    let blocks = Assembly { grid: 6, block: 64, ..RDNA3 };
    assert_eq!(blocks.right(SAME, 7 * 64), [7; 7 * 64]);
    let one =
        "s_cmp_lg_u32 s2, 0\ns_cbranch_scc1 1\nglobal_store_b32 v1, v2, s[4:5]\ns_waitcnt_vscnt";
    let by_one = SAME.replace("global_store_b32 v1, v2, s[4:5]\ns_waitcnt_vscnt", one);
    let by_one = by_one.replace("s_cbranch_scc1 1", "s_cbranch_scc1 2");
    // The first block reads zeros, but only in some order of blocks. Six blocks make such an order
    // likely.
    blocks.wrong(
        &by_one,
        7 * 64,
        "was not waited for|was not there before its block signalled|overwritten",
    );
    let other = SAME.replace("v_mov_b32 v2, 7", "v_mov_b32 v2, s2");
    blocks.wrong(&other, 7 * 64, "stored again, with another value|overwritten|was not");
}

#[test]
fn undefined_register_as_address_branch_or_result_is_detected() {
    if !ready() {
        return;
    }
    RDNA3.wrong(
        &STORE.replace("global_store_b32 v1, v0", "global_store_b32 v7, v0"),
        64,
        "an undefined address",
    );
    RDNA3.wrong(
        &STORE.replace("global_store_b32 v1, v0", "global_store_b32 v1, v7"),
        64,
        "an undefined value is stored",
    );
    // Undefined bits that a mask removes do not matter. Other undefined bits do.
    let masked =
        STORE.replace("global_store", "v_and_b32 v8, 0, v7\nv_or_b32 v0, v0, v8\nglobal_store");
    RDNA3.right(&masked, 64);
    RDNA3.wrong(
        &masked.replace("v_and_b32 v8, 0", "v_and_b32 v8, 1"),
        64,
        "an undefined value is stored",
    );
    let branch = format!("v_cmp_eq_u32 vcc_lo, 0, v7\ns_cbranch_vccz 1\ns_nop 0\n{STORE}");
    RDNA3.wrong(&branch, 64, "a branch on VCC that is undefined");
    let exec = format!("v_cmp_gt_u32 vcc_lo, 9, v7\ns_and_saveexec_b32 s8, vcc_lo\n{STORE}");
    RDNA3.wrong(&exec, 64, "EXEC depends on an undefined value");
    RDNA3.right(&exec.replace(", v7", ", v0"), 64);
    RDNA3.wrong(
        &STORE.replace("v_lshlrev_b32 v1, 2, v0", "v_lshlrev_b32 v1, 2, v200"),
        64,
        "is not among the kernel's",
    );
}

#[test]
fn access_outside_a_buffer_is_detected() {
    if !ready() {
        return;
    }
    RDNA3.wrong(STORE, 63, "4 bytes at 0x200000fc: from byte 252 of buffer, which has 252");
    let arguments = "s_load_b64 s[4:5], s[0:1], 0x8";
    RDNA3.wrong(arguments, 64, "from byte 8 of arguments, which has 8");
    RDNA3.wrong(&STORE.replace("v0, s[4:5]", "v0, s[0:1]"), 64, "arguments");
}

/// Two waves send each other a value through LDS.
const LDS: &str = "s_load_b64 s[4:5], s[0:1], 0x0
v_lshlrev_b32 v1, 2, v0
v_xor_b32 v2, 0x80, v1
ds_store_b32 v1, v0
s_waitcnt lgkmcnt(0)
s_barrier
ds_load_b32 v3, v2
s_waitcnt lgkmcnt(0)
global_store_b32 v1, v3, s[4:5]";

#[test]
fn lds_between_waves_needs_wait_and_barrier() {
    if !ready() {
        return;
    }
    let want: Vec<u32> = (0..64).map(|i| i ^ 32).collect();
    let (rdna3, cdna3) = (Assembly { lds: 1024, ..RDNA3 }, Assembly { lds: 1024, ..CDNA3 });
    assert_eq!(rdna3.right(LDS, 64), want);
    rdna3.wrong(
        &LDS.replace("s_waitcnt lgkmcnt(0)\ns_barrier", "s_waitcnt lgkmcnt(0)"),
        64,
        "LDS byte|undefined",
    );
    rdna3.wrong(
        &LDS.replace("s_waitcnt lgkmcnt(0)\ns_barrier", "s_barrier"),
        64,
        "did not wait for that before the barrier",
    );
    rdna3.wrong(&LDS.replace("v3, v2\n", "v3, v2 offset:766\n"), 64, "which is not aligned");
    rdna3.wrong(&LDS.replace("v3, v2\n", "v3, v2 offset:1024\n"), 64, "the block has 0x400");
    rdna3.wrong(
        &LDS.replace("v3, v2\n", "v3, v2 offset:512\n"),
        64,
        "an undefined value is stored",
    );
    let last = LDS.replace("global_store", "ds_store_b32 v1, v0\nglobal_store");
    rdna3.wrong(&last, 64, "read it with no barrier between|wrote it with no barrier between");
    // The kernel for gfx12, whose barrier has two parts, and for CDNA.
    let split = LDS
        .replace(
            "s_waitcnt lgkmcnt(0)\ns_barrier",
            "s_wait_dscnt 0x0\ns_wait_kmcnt 0x0\ns_barrier_signal -1\ns_barrier_wait -1",
        )
        .replace("s_waitcnt lgkmcnt(0)", "s_wait_dscnt 0x0");
    let rdna4 = Assembly { arch: "gfx1201", ..rdna3 };
    assert_eq!(rdna4.right(&split, 64), want);
    rdna4.wrong(
        &split.replace("s_wait_dscnt 0x0\ns_wait_kmcnt", "s_wait_kmcnt"),
        64,
        "did not wait for that before the barrier",
    );
    rdna4.wrong(
        &split.replace("s_barrier_signal -1\n", ""),
        64,
        "a wait for a barrier that was not signalled",
    );
    let cdna = LDS
        .replace("b64", "dwordx2")
        .replace("store_b32", "write_b32")
        .replace("ds_load", "ds_read");
    let cdna = cdna.replace("global_write_b32", "global_store_dword").replace("0x80", "0x100");
    assert_eq!(cdna3.right(&cdna, 128), (0..128).map(|i| i ^ 64).collect::<Vec<u32>>());
    cdna3.wrong(&cdna.replace("s_waitcnt lgkmcnt(0)\ns_barrier", "s_barrier"), 128, "did not wait");
}

#[test]
fn blocks_see_stores_after_wait_and_invalidation() {
    if !ready() {
        return;
    }
    let blocks = Assembly { grid: 8, block: 32, ..RDNA3 };
    assert_eq!(blocks.right(LAST_BLOCK, 10)[8..], [8, 36]);
    blocks.wrong(
        &LAST_BLOCK.replace("s_waitcnt_vscnt null, 0x0\n", ""),
        10,
        "was not waited for|was not there before",
    );
    blocks.wrong(
        &LAST_BLOCK.replace("buffer_gl1_inv\n", ""),
        10,
        "since this wave's caches were last invalidated",
    );
    blocks.wrong(
        &LAST_BLOCK.replace("buffer_gl0_inv\n", ""),
        10,
        "since this wave's caches were last invalidated",
    );
    // gfx12.0 has one second-level cache, so no write-back is needed for other blocks of the
    // device.
    let rdna4 = LAST_BLOCK
        .replace(", s2, ", ", ttmp9, ")
        .replace("s_waitcnt lgkmcnt(0)", "s_wait_kmcnt 0x0")
        .replace("s_waitcnt vmcnt(0)", "s_wait_loadcnt 0x0")
        .replace("s_waitcnt_vscnt null, 0x0", "s_wait_storecnt 0x0")
        .replace("glc", "th:TH_ATOMIC_RETURN scope:SCOPE_DEV")
        .replace("buffer_gl1_inv\nbuffer_gl0_inv", "global_inv scope:SCOPE_DEV");
    let blocks = Assembly { arch: "gfx1201", ..blocks };
    assert_eq!(blocks.right(&rdna4, 10)[8..], [8, 36]);
    blocks.wrong(
        &rdna4.replace("s_wait_storecnt 0x0\n", ""),
        10,
        "was not waited for|was not there before",
    );
    blocks.wrong(
        &rdna4.replace("global_inv scope:SCOPE_DEV\n", ""),
        10,
        "caches were last invalidated",
    );
    // The caches of MI300 need a write-back, and a wait for it before the atomic.
    let cdna = cdna(LAST_BLOCK);
    let blocks = Assembly { grid: 8, block: 64, ..CDNA3 };
    assert_eq!(blocks.right(&cdna, 10)[8..], [8, 36]);
    blocks.wrong(&cdna.replace("buffer_wbl2 sc1\n", ""), 10, "was not written back");
    blocks.wrong(
        &cdna.replace("buffer_wbl2 sc1\ns_waitcnt vmcnt(0)", "buffer_wbl2 sc1"),
        10,
        "was not there before its block signalled|was not written back",
    );
    blocks.wrong(
        &cdna.replace("buffer_inv sc1\n", ""),
        10,
        "since this wave's caches were last invalidated",
    );
}

#[test]
fn matrix_needs_all_lanes_and_defined_operands() {
    if !ready() {
        return;
    }
    // A and B are all ones (f16), C is zero: every element is 16.
    let mut body = String::from("s_load_b64 s[4:5], s[0:1], 0x0\nv_lshlrev_b32 v1, 2, v0\n");
    for r in 2..18 {
        body += &format!("v_mov_b32 v{r}, 0x3c003c00\n");
    }
    body += "v_wmma_f32_16x16x16_f16 v[18:25], v[2:9], v[10:17], 0\ns_waitcnt lgkmcnt(0)\n\
             global_store_b32 v1, v25, s[4:5]";
    let one = Assembly { block: 32, ..RDNA3 };
    assert_eq!(one.right(&body, 32), [16f32.to_bits(); 32]);
    one.wrong(&body.replace("v_mov_b32 v7, 0x3c003c00\n", ""), 32, "v7 is undefined in a matrix");
    one.wrong(
        &body.replace("v_mov_b32 v7, 0x3c003c00", "v_mov_b32 v7, v0"),
        32,
        "differ in a matrix instruction",
    );
    one.wrong(
        &body.replace("v_wmma", "s_mov_b32 exec_lo, 0xffff\nv_wmma"),
        32,
        "lanes switched off",
    );
    one.wrong(&body.replace("], 0\n", "], v[18:25]\n"), 32, "is undefined in a matrix");
    let mut body = String::from("s_load_dwordx2 s[4:5], s[0:1], 0x0\nv_lshlrev_b32 v1, 2, v0\n");
    for r in 2..6 {
        body += &format!("v_mov_b32 v{r}, 0x3c003c00\n");
    }
    body += "v_accvgpr_write_b32 a0, 0\nv_accvgpr_write_b32 a1, 0\nv_accvgpr_write_b32 a2, \
        0\nv_accvgpr_write_b32 a3, 0\n\
             s_nop 1\nv_mfma_f32_16x16x16f16 a[0:3], v[2:3], v[4:5], a[0:3]\ns_nop 7\ns_nop \
             1\nv_accvgpr_read_b32 v6, a3\ns_nop 1\ns_waitcnt lgkmcnt(0)\n\
             global_store_dword v1, v6, s[4:5]";
    let one = Assembly { arch: "gfx908", block: 64, ..CDNA3 };
    assert_eq!(one.right(&body, 64), [16f32.to_bits(); 64]);
    one.wrong(&body.replace("v_mov_b32 v3, 0x3c003c00\n", ""), 64, "v3 is undefined in a matrix");
    // The code that clang 19 generates for copies between accumulation registers on gfx908.
    one.wrong(&body.replace("a3, 0", "a3, v11"), 64, "register 259 is undefined in a matrix");
    one.wrong(
        &body.replace(
            "v_accvgpr_read_b32 v6, a3",
            "v_accvgpr_write_b32 a3, v11\ns_nop 2\nv_accvgpr_read_b32 v6, a3",
        ),
        64,
        "an undefined value is stored",
    );
}

#[test]
fn unknown_instruction_is_named() {
    if !ready() {
        return;
    }
    RDNA3.wrong(
        &format!("v_cubeid_f32 v3, v0, v0, v0\n{STORE}"),
        64,
        "v_cubeid_f32 v3, v0, v0, v0: the instruction is unknown",
    );
}
