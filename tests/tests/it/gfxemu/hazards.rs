//! Hazards planted in assembly: each kernel is correct with the required instruction between two
//! others, and a fault without it.

use super::common::{Assembly, ready};
use gfxemu::facts::Facts;
use gfxemu::hazard::Hazards;
use gfxemu::target::Target;

/// A launch of one wave.
fn on(arch: &'static str, wave: u32) -> Assembly {
    Assembly { arch, wave, lds: 1024, grid: 1, block: wave, one_cache: false }
}

/// The sequence `before`, `between`, `behind` must succeed, and fail without `between`. If
/// `between` is a number of wait states, one less must also fail.
fn held(on: &Assembly, before: &str, between: &str, behind: &str, what: &str) {
    let body = |between: &str| format!("{before}\n{between}\n{behind}");
    let mut bodies = vec![body(between), body("")];
    if let Some((more, n)) = between.rsplit_once("s_nop ")
        && let Ok(n @ 1..) = n.parse::<u32>()
    {
        bodies.push(body(&format!("{more}s_nop {}", n - 1)));
    }
    let bodies: Vec<&str> = bodies.iter().map(String::as_str).collect();
    on.only_the_first(&bodies, 64, what);
}

const POINTER: &str = "s_load_dwordx2 s[4:5], s[0:1], 0x0
v_lshlrev_b32 v1, 2, v0
v_mov_b32 v2, 0
v_mov_b32 v3, 0
v_mov_b32 v4, 0
v_mov_b32 v5, 0
s_waitcnt lgkmcnt(0)
s_nop 4";

#[test]
fn gfx9_vector_to_scalar_hazards_are_detected() {
    if !ready() {
        return;
    }
    for arch in ["gfx900", "gfx942"] {
        let on = on(arch, 64);
        let lane = format!("{POINTER}\nv_mov_b32 v7, s4\ns_nop 1\nv_readfirstlane_b32 s4, v7");
        held(&on, &lane, "s_nop 4", "global_store_dword v1, v0, s[4:5]", "an access's read of s4");
        let number = "v_mov_b32 v7, 3\ns_nop 1\nv_readfirstlane_b32 s6, v7";
        held(
            &on,
            number,
            "s_nop 3",
            "v_readlane_b32 s7, v0, s6",
            "the choice of a lane by a read of s6",
        );
        held(
            &on,
            "v_mov_b32 v7, 3",
            "s_nop 1",
            "v_mov_b32_dpp v8, v7 row_shr:1 row_mask:0xf bank_mask:0xf bound_ctrl:0",
            "an exchange's read of v7",
        );
        let store = format!("{POINTER}\nv_mov_b32 v1, 0\nglobal_store_dwordx4 v1, v[2:5], s[4:5]");
        let states = if arch == "gfx942" { "s_nop 1" } else { "s_nop 0" };
        held(&on, &store, states, "v_mov_b32 v3, 1", "writing v3, which a wide store reads");
    }
}

#[test]
fn mi300_vector_result_hazards_are_detected() {
    if !ready() {
        return;
    }
    let on = on("gfx942", 64);
    let before = "v_mov_b32 v7, 1.0\nv_mov_b32 v9, 0\nv_rcp_f32 v8, v7";
    held(
        &on,
        before,
        "s_nop 0",
        "v_add_f32 v8, v8, v8",
        "the read of v8, a transcendental's result",
    );
    let before = "v_cmp_eq_u32 vcc, 0, v0";
    held(
        &on,
        before,
        "s_nop 1",
        "v_cndmask_b32 v8, v0, v0, vcc",
        "vector arithmetic's read of VCC",
    );
    held(&on, "v_mov_b32 v8, 1", "s_nop 0", "v_readfirstlane_b32 s6, v8", "a lane's read of v8");
    let before = "v_mov_b32 v7, 1\nv_mov_b32 v8, 0\nv_add_u32_sdwa v8, v7, v7 dst_sel:BYTE_1 \
                  dst_unused:UNUSED_PRESERVE src0_sel:DWORD src1_sel:DWORD";
    held(&on, before, "s_nop 0", "v_add_u32 v9, v8, v8", "the read of v8, written in a part");
}

/// Fills v2 to v17 with ones, then runs `instruction` with A and B in v2 to v5 and C in v6 to v9.
fn matrix(instruction: &str, d: &str) -> String {
    let mut body = String::from("v_lshlrev_b32 v18, 2, v0\n");
    for r in 2..18 {
        body += &format!("v_mov_b32 v{r}, 0x3c003c00\n");
    }
    format!("{body}s_nop 1\n{instruction} {d}, v[2:3], v[4:5], v[6:9]")
}

#[test]
fn mi200_and_mi300_matrix_hazards_are_detected() {
    if !ready() {
        return;
    }
    for (arch, name, read, summand, free) in [
        ("gfx90a", "v_mfma_f32_16x16x16f16", 11, 8, 7),
        ("gfx942", "v_mfma_f32_16x16x16_f16", 7, 5, 3),
    ] {
        let on = on(arch, 64);
        let first = matrix(name, "v[10:13]");
        let nop = |n: u32| {
            if n > 8 { format!("s_nop 7\ns_nop {}", n - 9) } else { format!("s_nop {}", n - 1) }
        };
        held(
            &on,
            &first,
            &nop(read),
            "v_add_f32 v14, v11, v11",
            "the read of v11, a matrix's result",
        );
        held(
            &on,
            &first,
            &nop(read),
            "ds_write_b32 v18, v11",
            "the read of v11, a matrix's result",
        );
        held(&on, &first, &nop(read), "v_mov_b32 v12, 0", "writing v12, a matrix's result");
        held(&on, &first, &nop(free), "v_mov_b32 v7, 0", "writing v7, which a matrix reads");
        let again = format!("{name} v[14:17], v[10:11], v[4:5], v[6:9]");
        held(&on, &first, &nop(read), &again, "a matrix's read of v10, a matrix's result");
        let again = format!("{name} v[14:17], v[2:3], v[4:5], v[12:15]");
        held(&on, &first, &nop(summand), &again, "a matrix's read of v12, a matrix's result");
        // An operand C that is exactly the last result is forwarded.
        on.right(&format!("{first}\n{name} v[10:13], v[2:3], v[4:5], v[10:13]"), 64);
        let written = "v_mov_b32 v3, 0x3c003c00";
        held(
            &on,
            &format!("{first}\n{written}"),
            "s_nop 1",
            &again.replace("v[12:15]", "v[6:9]"),
            "v3, just written",
        );
        let dot = "v_mov_b32 v7, 1\nv_mov_b32 v8, 0\nv_dot4_i32_i8 v8, v7, v7, v8";
        held(&on, dot, "s_nop 2", "v_add_u32 v9, v8, v8", "the read of v8, a dot product");
        held(&on, dot, "s_nop 2", "v_dot4_i32_i8 v9, v8, v7, v7", "the read of v8, a dot product");
        on.right(&format!("{dot}\nv_dot4_i32_i8 v8, v7, v7, v8"), 64);
    }
    let shift = "v_mov_b32 v31, 2\nv_lshlrev_b64 v[2:3], v31, v[0:1]".replace("v[0:1]", "v[4:5]");
    let set = "v_mov_b32 v4, 1\nv_mov_b32 v5, 1\nv_mov_b32 v30, 2\n";
    on("gfx90a", 64).wrong(&format!("{set}{shift}"), 64, "v31 is the last register");
    on("gfx90a", 64).right(&format!("{set}{}", shift.replace("v31", "v30")), 64);
    on("gfx942", 64).right(&format!("{set}{shift}"), 64);
}

#[test]
fn mi100_accumulator_copy_hazards_are_detected() {
    if !ready() {
        return;
    }
    let on = on("gfx908", 64);
    let mut set = String::new();
    for r in 0..8 {
        set += &format!("v_mov_b32 v{}, 0x3c003c00\nv_accvgpr_write_b32 a{r}, 0\n", r + 2);
    }
    set += "s_nop 3\n";
    let name = "v_mfma_f32_16x16x16f16";
    let one = format!("{set}{name} a[0:3], v[2:3], v[4:5], a[0:3]");
    held(
        &on,
        &one,
        "s_nop 7\ns_nop 1",
        "v_accvgpr_read_b32 v6, a2",
        "a copy of a2, a matrix's result",
    );
    held(&on, &one, "s_nop 6", "v_accvgpr_write_b32 a2, v6", "writing a2, a matrix's result");
    held(
        &on,
        &one,
        "s_nop 1",
        &format!("{name} a[4:7], v[2:3], v[4:5], a[2:5]"),
        "a matrix's read of a2",
    );
    let other = format!("{set}{name} a[4:7], v[2:3], v[4:5], a[0:3]");
    held(&on, &other, "s_nop 4", "v_accvgpr_write_b32 a2, v6", "writing a2, which a matrix reads");
    held(
        &on,
        &format!("{set}v_mov_b32 v9, 0"),
        "s_nop 1",
        "v_accvgpr_write_b32 a5, v9",
        "a copy of v9, just written",
    );
    held(
        &on,
        &format!("{set}v_accvgpr_write_b32 a5, v6"),
        "s_nop 2",
        "v_accvgpr_read_b32 v7, a5",
        "a copy of a5, just copied",
    );
    let copied = format!("{set}v_mov_b32 v1, 0\nv_accvgpr_read_b32 v7, a5");
    held(&on, &copied, "s_nop 1", "ds_write_b32 v1, v7", "an access's read of v7, just copied");
}

#[test]
fn gfx10_1_write_after_read_hazards_are_detected() {
    if !ready() {
        return;
    }
    let on = on("gfx1010", 32);
    let store = format!("{POINTER}\nglobal_store_dword v1, v0, s[4:5]");
    for between in ["v_nop", "s_waitcnt 0", "s_waitcnt_depctr 0xffe3"] {
        held(
            &on,
            &store,
            between,
            "s_mov_b32 s4, 0",
            "s4 is written while an access may still read it",
        );
        held(
            &on,
            &store,
            between,
            "s_mov_b32 exec_lo, 1",
            "EXEC is written while an access may still read it",
        );
    }
    let load = "s_load_dword s4, s[0:1], 0x0";
    held(
        &on,
        load,
        "s_mov_b32 null, 0",
        "v_readfirstlane_b32 s0, v0",
        "s0 is written while a scalar load",
    );
    held(
        &on,
        load,
        "s_waitcnt lgkmcnt(0)",
        "v_readfirstlane_b32 s0, v0",
        "s0 is written while a scalar load",
    );
    let compare = "v_cmpx_le_u32 0, v0";
    held(
        &on,
        "s_mov_b32 s6, exec_lo",
        "s_waitcnt_depctr 0xfffe",
        compare,
        "EXEC is written by vector arithmetic",
    );
    let branched = format!("{POINTER}\nv_mov_b32 v1, 0\nds_write_b32 v1, v1\ns_branch .Lon\n.Lon:");
    let (wait, behind) = ("s_waitcnt_vscnt null, 0x0", "global_store_dword v1, v1, s[4:5]");
    held(&on, &branched, wait, behind, "LDS and memory with a branch");
    on.right(
        &format!("{}\n{behind}", branched.replace("s_branch", "buffer_gl0_inv\ns_branch")),
        64,
    );
    let far = |n: u32| format!("s_mov_b32 s6, 0\ns_branch {n}\n{}", "s_nop 0\n".repeat(80));
    on.right(&far(62), 64);
    on.wrong(&far(63), 64, "a branch by 63 words");
}

#[test]
fn gfx11_transcendental_and_mask_hazards_are_detected() {
    if !ready() {
        return;
    }
    let (narrow, wide) = (on("gfx1100", 32), on("gfx1100", 64));
    let slow = "v_mov_b32 v7, 1.0\nv_rcp_f32 v8, v7";
    held(
        &narrow,
        slow,
        "s_waitcnt_depctr 0xfff",
        "v_add_f32 v8, v8, v8",
        "v8 is a transcendental's result",
    );
    // A cache invalidation counts as an access; a barrier does not.
    held(
        &narrow,
        slow,
        "buffer_gl0_inv",
        "v_add_f32 v8, v8, v8",
        "v8 is a transcendental's result",
    );
    narrow.wrong(
        &format!("{slow}\ns_barrier\nv_add_f32 v8, v8, v8"),
        64,
        "v8 is a transcendental's result",
    );
    let six = "v_mov_b32 v9, v7\n".repeat(6);
    held(&narrow, slow, &six, "v_add_f32 v8, v8, v8", "v8 is a transcendental's result");
    narrow.wrong(
        &format!("{slow}\n{}\nv_add_f32 v8, v8, v8", "v_mov_b32 v9, v7\n".repeat(5)),
        64,
        "5 vector",
    );
    let sides = "s_mov_b64 s[6:7], exec\nv_mov_b32 v8, 1\ns_mov_b64 exec, s[6:7]\nv_mov_b32 v9, 2";
    let add = "v_add_nc_u32 v7, v8, v9";
    held(&wide, sides, "s_waitcnt_depctr 0xfff", add, "on both sides of a change of EXEC");
    narrow.right(
        &format!(
            "{}\n{add}",
            sides.replace("b64", "b32").replace("exec", "exec_lo").replace("s[6:7]", "s6")
        ),
        64,
    );
    let mask = "s_mov_b64 s[6:7], 0\ns_mov_b64 s[8:9], 0\nv_cndmask_b32 v8, v0, v0, \
        s[6:7]\ns_mov_b64 s[6:7], s[8:9]";
    let then = "s_or_b64 s[8:9], s[6:7], s[8:9]";
    held(
        &wide,
        mask,
        "s_waitcnt_depctr 0xfffe",
        then,
        "scalar arithmetic reads s6, which was a mask before",
    );
    wide.right(
        &format!(
            "{}\n{then}",
            mask.replace("\ns_mov_b64 s[6:7], s", "\nv_mov_b32 v9, s8\ns_mov_b64 s[6:7], s")
        ),
        64,
    );
    // gfx11.5 has one of the two hazards.
    on("gfx1150", 32).right(&format!("{slow}\nv_add_f32 v8, v8, v8"), 64);
    let compared = "v_cmpx_le_u32 0, v0";
    held(
        &wide,
        compared,
        "v_mov_b32 v1, v0",
        "v_permlane64_b32 v8, v0",
        "an exchange of lanes right behind",
    );
}

#[test]
fn gfx11_and_gfx12_consecutive_matrix_hazards_are_detected() {
    if !ready() {
        return;
    }
    for (arch, words) in [("gfx1100", 8), ("gfx1201", 4)] {
        let on = on(arch, 32);
        let row = |from: u32| format!("v[{from}:{}]", from + words - 1);
        let mut body = String::new();
        for r in 0..32 {
            body += &format!("v_mov_b32 v{r}, 0\n");
        }
        let one =
            format!("{body}v_wmma_f32_16x16x16_f16 v[16:23], {}, {}, v[24:31]", row(0), row(8));
        let two = format!("v_wmma_f32_16x16x16_f16 v[24:31], {}, {}, v[24:31]", row(16), row(8));
        held(&on, &one, "v_nop", &two, "a matrix's result is a factor of the very next one");
        on.right(&format!("{one}\n{}", two.replacen(&row(16), &row(0), 1)), 64);
    }
}

/// clang 19 does not know gfx1250, so this test only parses text.
#[test]
fn gfx1250_matrix_to_vector_hazards_are_detected() {
    let wmma = "v_wmma_f32_16x16x32_f16 v[0:7], v[8:15], v[16:23], v[0:7]";
    let held = |behind: &str, between: usize| {
        let mut hazards = Hazards::new(&Target::new("gfx1250", 32).unwrap());
        let lines = [wmma].into_iter().chain(std::iter::repeat_n("v_nop", between)).chain([behind]);
        lines.into_iter().try_for_each(|line| hazards.step(&Facts::of(line), 64))
    };
    for (behind, needed, what) in [
        ("v_wmma_f32_16x16x32_f16 v[24:31], v[0:7], v[16:23], v[24:31]", 5, "a factor of another"),
        ("v_add_f32_e32 v32, v33, v7", 4, "read"),
        ("v_dual_mul_f32 v32, v33, v34 :: v_dual_mov_b32 v35, v3", 4, "read"),
        ("v_mov_b32_e32 v3, 0", 4, "overwritten"),
        ("v_mov_b32_e32 v23, 0", 4, "overwritten as its factor"),
    ] {
        assert_eq!(held(behind, needed), Ok(()), "{behind}");
        let why = held(behind, needed - 1).unwrap_err();
        assert!(why.contains(&format!("is {what} {} vector", needed - 1)), "{why}");
    }
    // Operand C is forwarded. Transcendental instructions, loads and independent instructions need
    // no wait.
    for free in
        [wmma, "v_exp_f32_e32 v32, v0", "ds_load_b128 v[8:11], v40", "v_add_f32_e32 v32, v33, v34"]
    {
        assert_eq!(held(free, 0), Ok(()), "{free}");
    }
}

#[test]
fn gfx12_vector_read_scalar_write_hazards_are_detected() {
    if !ready() {
        return;
    }
    let on = on("gfx1201", 32);
    let before = "s_mov_b32 s6, 1\ns_mov_b32 s7, 1\nv_mov_b32 v8, s6\ns_mov_b32 s6, 2";
    held(
        &on,
        before,
        "s_wait_alu 0xfffe",
        "v_mov_b32 v9, s6",
        "s6 was changed 0 scalar instructions ago",
    );
    held(
        &on,
        &before.replace("v8, s6", "v8, s7"),
        "s_wait_alu 0xfffe",
        "v_mov_b32 v9, s6",
        "s6 was changed 0 scalar",
    );
    on.right(&format!("{before}\ns_mov_b32 s8, s6\nv_mov_b32 v9, s7"), 64);
    on.right(&format!("{before}\n{}v_mov_b32 v9, s6", "s_mov_b32 s9, 0\n".repeat(11)), 64);
    // The register is written before the first read, or by vector arithmetic.
    on.right("s_mov_b32 s6, 1\nv_mov_b32 v8, s6\nv_mov_b32 v9, s6", 64);
    on.right(
        "s_mov_b32 s6, 1\nv_mov_b32 v8, s6\nv_readfirstlane_b32 s6, v8\ns_add_co_i32 s7, s6, s6",
        64,
    );
}

/// The result of a matrix product is read after a branch. The taken path has the wait states, the
/// other does not, and a run takes only one path.
const BRANCH: &str = "s_load_dwordx2 s[4:5], s[0:1], 0x0
v_mov_b32 v2, 0
v_mov_b32 v3, 0
v_mov_b32 v4, 0
v_mov_b32 v5, 0
v_mov_b32 v6, 0
v_mov_b32 v7, 0
v_lshlrev_b32 v1, 2, v0
s_cmp_lg_u32 s2, 99
s_waitcnt lgkmcnt(0)
v_mfma_f32_16x16x16f16 v[4:7], v[2:3], v[2:3], v[4:7]
s_cbranch_scc0 .Lread
s_nop 10
.Lread:
v_add_f32 v8, v4, v4
global_store_dword v1, v8, s[4:5]";

#[test]
fn matrix_hazards_are_checked_on_every_path() {
    if !ready() {
        return;
    }
    let cdna2 = Assembly { arch: "gfx90a", wave: 64, lds: 0, grid: 1, block: 64, one_cache: false };
    // The run takes the longer path.
    assert_eq!(cdna2.right(BRANCH, 64), [0; 64]);
    let found = cdna2.too_early(BRANCH);
    assert!(
        found.len() == 1 && found[0].contains("needs 11 wait states, and there are 1"),
        "{found:?}"
    );
    // A wait on both paths, and a wait that is one wait state too short.
    let before = BRANCH.replace("s_cbranch", "s_nop 9\ns_cbranch");
    assert_eq!(cdna2.too_early(&before), Vec::<String>::new());
    assert_eq!(cdna2.too_early(&before.replace("s_nop 9", "s_nop 8")).len(), 1);
    cdna2.wrong(
        &BRANCH.replace("s_cmp_lg_u32 s2, 99", "s_cmp_eq_u32 s2, 99"),
        64,
        "a matrix's result",
    );
    // An unreachable unknown instruction is reported, because a matrix instruction might follow it.
    let unknown = cdna2.too_early(&format!("{before}\ns_endpgm\nv_cubeid_f32 v3, v0, v0, v0"));
    assert!(unknown.len() == 1 && unknown[0].contains("v_cubeid_f32"), "{unknown:?}");
    let away = cdna2.too_early(&before.replace("s_cbranch_scc0 .Lread", "s_cbranch_scc0 4096"));
    assert!(away.iter().any(|why| why.contains("where no instruction begins")), "{away:?}");
}
