//! Tests of single parts of the emulator: parsing of text, properties of instructions, LDS, modes.

use gfxemu::facts::{Facts, Unit, scalar};
use gfxemu::lds::{Lds, WaveAccess};
use gfxemu::object::modes;
use gfxemu::operand::{EXEC, Operand, Type, VCC, register, source};
use gfxemu::span::Span;
use gfxemu::target::Target;
use gfxemu::text::Text;
use gfxemu::windows::widened;

#[test]
fn unsupported_float_mode_is_named() {
    assert_eq!(modes(15 << 16), Ok(false));
    assert_eq!(modes(15 << 16 | 1 << 12), Err("rounds 32 bits up".into()));
    assert_eq!(modes(15 << 16 | 3 << 14), Err("rounds 16 and 64 bits to zero".into()));
    assert_eq!(modes(12 << 16), Ok(true), "subnormal f32 are flushed");
    assert_eq!(modes(7 << 16), Err("flushes subnormal results of 16 and 64 bits".into()));
}

#[test]
fn registers_signs_and_constants_are_parsed() {
    assert_eq!(register("a[4:7]"), Some((Operand::Vector(260), 4)));
    assert_eq!(register("ttmp9"), Some((Operand::Scalar(117), 1)));
    assert_eq!(register("off"), None);
    let s = source("-|v3|", Type::F32).unwrap();
    assert_eq!((s.operand, s.negative, s.absolute), (Operand::Vector(3), true, true));
    assert_eq!(source("-4", Type::B32).unwrap().operand, Operand::Constant(0xffff_fffc));
    assert_eq!(source("1.0", Type::B32).unwrap().operand, Operand::Constant(0x3f80_0000));
    assert_eq!(
        source("0xc1f00000", Type::F64).unwrap().operand,
        Operand::Constant(0xc1f0_0000_0000_0000)
    );
    assert!(source("src_private_base", Type::B32).is_err());
}

#[test]
fn names_operands_and_modifiers_are_parsed() {
    let t = Text::parse(
        "v_mov_b32_dpp v5, v3 quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf bound_ctrl:1",
    );
    assert_eq!(
        (t.name.as_str(), t.operands.as_slice()),
        ("v_mov_b32_dpp", &["v5".to_string(), "v3".into()][..])
    );
    assert_eq!(t.list("quad_perm"), Some(vec![1, 0, 3, 2]));
    assert_eq!((t.number("row_mask"), t.number("offset")), (Ok(15), Ok(0)));
    let t = Text::parse("ds_swizzle_b32 v1, v3 offset:swizzle(SWAP,16)");
    assert_eq!(t.value("offset"), Some("swizzle(SWAP,16)"));
    let t = Text::parse("global_load_b32 v23, v[17:18], off offset:-128 slc");
    assert_eq!(
        (t.operands.len(), t.number("offset"), t.has("slc"), t.has("glc")),
        (3, Ok(-128), true, false)
    );
    assert_eq!(Text::parse("s_endpgm").operands.len(), 0);
}

fn vector(first: u16, count: u16) -> Span {
    Span { vector: true, first, count }
}
fn words(first: u16, count: u16) -> Span {
    Span { vector: false, first, count }
}

#[test]
fn implicit_registers_are_listed() {
    let f = Facts::of("v_fmac_f32_e32 v1, s2, v3");
    assert_eq!(
        (f.writes, f.reads),
        (vec![vector(1, 1)], vec![(words(2, 1), 0), (vector(3, 1), 1), (vector(1, 1), 2)])
    );
    let f = Facts::of("v_cmpx_gt_u32_e32 9, v7");
    assert_eq!((f.writes, f.reads), (vec![scalar(EXEC)], vec![(vector(7, 1), 1)]));
    let f = Facts::of("global_atomic_add v1, v4, s[4:5] offset:32");
    assert!(
        f.writes.is_empty()
            && f.reads.contains(&(vector(1, 1), 0))
            && f.reads.contains(&(words(4, 2), 2))
    );
    let f = Facts::of("v_dual_mul_f32 v1, v2, v3 :: v_dual_fmac_f32 v4, v5, v6");
    assert_eq!((f.writes, f.reads.len()), (vec![vector(1, 1), vector(4, 1)], 5));
    assert_eq!(Facts::of("v_cmp_eq_u32_e32 vcc, 0, v7").writes[0].first, VCC);
    assert_eq!(
        (Facts::of("s_nop 6").states, Facts::of("v_rcp_f32_e32 v1, v2").unit),
        (7, Unit::Transcendental)
    );
}

#[test]
fn waits_are_parsed_by_name_and_number() {
    assert!(Facts::of("s_waitcnt_depctr 0xfffe").waits.scalar);
    assert!(
        !Facts::of("s_waitcnt_depctr 0xfffe").waits.vector
            && Facts::of("s_waitcnt_depctr 0xfff").waits.vector
    );
    assert!(Facts::of("s_wait_alu depctr_sa_sdst(0)").waits.scalar);
    assert!(Facts::of("s_waitcnt_depctr depctr_vm_vsrc(0)").waits.sources);
    let all = Facts::of("s_waitcnt vmcnt(0) expcnt(0) lgkmcnt(0)").waits;
    assert!(all.all && all.local && !Facts::of("s_waitcnt vmcnt(0) lgkmcnt(0)").waits.all);
}

fn who(wave: u16, phase: u32, operation: u32) -> WaveAccess {
    WaveAccess { wave, phase, operation }
}

#[test]
fn lds_order_needs_barrier_and_wait() {
    let mut lds = Lds::new(64, 2, || 7);
    let mut out = ([0; 4], [0; 4]);
    lds.write(&who(0, 0, 1), 8, &[1, 2, 3, 4], &[0; 4]).unwrap();
    let e = lds.read(&who(1, 0, 1), 8, &mut out.0, &mut out.1).unwrap_err();
    assert!(e.contains("no barrier"), "{e}");
    let e = lds.read(&who(1, 1, 1), 8, &mut out.0, &mut out.1).unwrap_err();
    assert!(e.contains("did not wait"), "{e}");
    lds.settled[0] = 1;
    lds.read(&who(1, 1, 1), 8, &mut out.0, &mut out.1).unwrap();
    assert_eq!(out, ([1, 2, 3, 4], [0; 4]));
    let e = lds.write(&who(0, 1, 2), 8, &[0; 4], &[0; 4]).unwrap_err();
    assert!(e.contains("wave 1 read it with no barrier"), "{e}");
    lds.read(&who(0, 1, 3), 0, &mut out.0, &mut out.1).unwrap();
    assert_eq!(out.1, [0xff; 4], "nobody wrote there");
    assert!(lds.read(&who(0, 1, 4), 61, &mut out.0, &mut out.1).is_err());
}

#[test]
fn rdna_work_groups_may_span_two_caches() {
    let rdna = Target::new("gfx1030", 32).unwrap();
    assert!(rdna.split_caches(1 << 29) && !rdna.split_caches(!(1 << 29)));
    assert!(!Target::new("gfx942", 64).unwrap().split_caches(u32::MAX));
}

#[test]
fn vgpr_mode_extends_each_operand_separately() {
    let wide = |line, mode| widened(line, mode).unwrap();
    assert_eq!(
        wide("v_fma_f32 v1, -v2, |v3|, s4 clamp", 0b11_10_01_10),
        "v_fma_f32 v769, -v514, |v259|, s4 clamp"
    );
    assert_eq!(
        wide("ds_store_b128 v1, v[2:5] offset:16", 0b01_00),
        "ds_store_b128 v1, v[258:261] offset:16"
    );
    assert_eq!(wide("ds_load_b32 v1, v2", 0b01_00_00_10), "ds_load_b32 v257, v514");
    assert_eq!(
        wide("global_store_b32 v1, v2, s[4:5]", 0b01_01),
        "global_store_b32 v257, v258, s[4:5]"
    );
    let dual = "v_dual_mul_f32 v1, v2, v3 :: v_dual_mov_b32 v4, v5";
    assert_eq!(wide(dual, 0b01_00_00_00), "v_dual_mul_f32 v257, v2, v3 :: v_dual_mov_b32 v260, v5");
    assert_eq!(wide("v_cmp_lt_u32_e64 s4, v5, v6", 0b11_01_01_00), "v_cmp_lt_u32_e64 s4, v5, v262");
    assert!(widened("v_swap_b32 v1, v2", 1).is_err());
}
