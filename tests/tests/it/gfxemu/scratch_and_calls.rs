//! Scratch memory, calls, and gfx8's accesses, in assembly: each kernel is right, and wrong with
//! one line changed.

use super::common::{Assembly, CDNA3, RDNA3, ready};

/// Each thread keeps its number plus 7 in scratch memory and stores it at its index.
const KEPT: &str = "s_load_b64 s[4:5], s[0:1], 0x0
v_lshlrev_b32 v1, 2, v0
v_add_nc_u32 v2, 7, v0
scratch_store_b32 off, v2, off offset:8
scratch_load_b32 v3, off, off offset:8
s_waitcnt vmcnt(0) lgkmcnt(0)
global_store_b32 v1, v3, s[4:5]";

/// The same on families whose scratch memory is a buffer: `s[0:3]` is the buffer of all waves, `s7`
/// the wave's offset in it, `s[4:5]` the address of the arguments.
const BUFFERED: &str = "s_add_u32 s0, s0, s7
s_addc_u32 s1, s1, 0
s_load_dwordx2 s[8:9], s[4:5], 0x0
s_movk_i32 s10, 0x200
v_lshlrev_b32 v1, 2, v0
v_add_u32 v2, 7, v0
buffer_store_dword v2, off, s[0:3], 0 offset:8
buffer_load_dword v3, off, s[0:3], s10
s_waitcnt vmcnt(0) lgkmcnt(0)
global_store_dword v1, v3, s[8:9]";

fn numbers(first: u32) -> Vec<u32> {
    (first..first + 64).collect()
}

#[test]
fn scratch_memory_belongs_to_a_lane_and_has_an_end() {
    if !ready() {
        return;
    }
    let older = Assembly { arch: "gfx900", block: 64, ..CDNA3 };
    assert_eq!(RDNA3.right(KEPT, 64), numbers(7));
    assert_eq!(older.right(BUFFERED, 64), numbers(7));
    let [load, wait] = ["v3, off, off offset:8", "s_waitcnt vmcnt(0) lgkmcnt(0)"];
    RDNA3.wrong(&KEPT.replace(load, "v3, off, off offset:4"), 64, "an undefined value is stored");
    RDNA3.wrong(
        &KEPT.replace(load, "v3, off, off offset:16"),
        64,
        "4 bytes at 16 of 16 bytes of scratch memory",
    );
    let late = KEPT.replace(wait, "s_waitcnt lgkmcnt(0)");
    RDNA3.wrong(&late, 64, "v3 is used before a wait for its load");
    older.wrong(
        &BUFFERED.replace("s_add_u32 s0, s0, s7\n", ""),
        64,
        "a buffer that is not the wave's scratch memory",
    );
    older.wrong(&BUFFERED.replace("0x200", "0x100"), 64, "an undefined value is stored");
}

#[test]
fn calls_go_to_defined_addresses_and_return() {
    if !ready() {
        return;
    }
    let body = "s_load_b64 s[4:5], s[0:1], 0x0
v_lshlrev_b32 v1, 2, v0
s_getpc_b64 s[6:7]
.Lhere:
s_add_u32 s6, s6, .Lfunction-.Lhere
s_addc_u32 s7, s7, 0
v_mov_b32 v2, v0
s_swappc_b64 s[8:9], s[6:7]
s_swappc_b64 s[8:9], s[6:7]
s_waitcnt lgkmcnt(0)
global_store_b32 v1, v2, s[4:5]
s_branch .Lover
.Lfunction:
v_add_nc_u32 v2, 3, v2
s_setpc_b64 s[8:9]
.Lover:";
    assert_eq!(RDNA3.right(body, 64), numbers(6));
    RDNA3.wrong(
        &body.replace("s_setpc_b64 s[8:9]", "s_setpc_b64 s[10:11]"),
        64,
        "a jump to an undefined address",
    );
}

/// gfx8: whole addresses in vector registers, an addition with a carry, M0 as the limit of LDS.
#[test]
fn gfx8_accesses_and_its_limit_of_lds_are_followed() {
    if !ready() {
        return;
    }
    let body = "s_load_dwordx2 s[4:5], s[0:1], 0x0
s_mov_b32 m0, -1
v_lshlrev_b32 v1, 2, v0
ds_write_b32 v1, v0
s_waitcnt lgkmcnt(0)
ds_read_b32 v4, v1
v_add_u32 v2, vcc, s4, v1
v_mov_b32 v3, s5
v_addc_u32 v3, vcc, 0, v3, vcc
s_waitcnt lgkmcnt(0)
flat_store_dword v[2:3], v4";
    let old = Assembly { arch: "gfx803", block: 64, lds: 256, ..CDNA3 };
    assert_eq!(old.right(body, 64), numbers(0));
    old.wrong(&body.replace("s_mov_b32 m0, -1\n", ""), 64, "LDS with an undefined limit in M0");
    old.wrong(&body.replace("m0, -1", "m0, 64"), 64, "LDS with the limit 64");
    old.wrong(
        &body.replace("v_addc_u32 v3, vcc, 0, v3, vcc\n", "v_mov_b32 v3, v9\n"),
        64,
        "an undefined address",
    );
}
