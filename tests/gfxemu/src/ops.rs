//! The operations of vector instructions on one lane, by name. `vector.rs` handles everything that
//! all of them share: operands, 16-bit halves, signs, exchanges of lanes, results.

use crate::float::*;
use crate::operand::Type::{self, *};

/// Computes the bits of the result from the bits of the sources. Bit 64 of the result is the flag
/// of the lane (carry, comparison).
pub type Compute = fn(&[u64; 4]) -> u128;

/// The layout of an instruction's operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperandLayout {
    /// Destination, then sources.
    Plain,
    /// Destination, then sources; the destination is also the last source.
    Accumulate,
    /// Destination, then mask of flags, then sources.
    Flagged,
    /// Mask of flags, then sources.
    Compare,
    /// Sources; the flags are written to EXEC.
    CompareExec,
    /// Both 16-bit halves of a register are computed.
    Halves,
    /// Both registers of a pair are computed.
    Pairs,
    /// Each source is f16 or f32, according to the modifiers.
    Mix,
}

/// An instruction's operation.
#[derive(Clone, Copy, Debug)]
pub struct Op {
    /// Types of its sources.
    pub sources: &'static [Type],
    /// Type of its result.
    pub out: Type,
    /// The function for one lane.
    pub compute: Compute,
    /// The layout of its operands.
    pub form: OperandLayout,
}

const FLAG: u32 = 64;

fn op(sources: &'static [Type], out: Type, compute: Compute) -> Option<Op> {
    Some(Op { sources, out, compute, form: OperandLayout::Plain })
}
fn formed(
    form: OperandLayout,
    sources: &'static [Type],
    out: Type,
    compute: Compute,
) -> Option<Op> {
    Some(Op { sources, out, compute, form })
}
/// An operation on two u32 with a u32 as the result.
fn word(compute: Compute) -> Option<Op> {
    op(&[B32, B32, B32], B32, compute)
}
fn w(x: u64) -> u32 {
    x as u32
}
fn i(x: u64) -> i32 {
    x as u32 as i32
}
fn r(x: u32) -> u128 {
    u128::from(x)
}
fn s24(x: u64) -> i64 {
    i64::from((x as u32 as i32) << 8 >> 8)
}
fn u24(x: u64) -> u64 {
    x & 0xff_ffff
}
fn sum(a: u64, b: u64, c: u64) -> u128 {
    let x = u128::from(w(a)) + u128::from(w(b)) + u128::from(c & 1);
    x & 0xffff_ffff | (x >> 32) << FLAG
}
fn difference(a: u64, b: u64, c: u64) -> u128 {
    let (x, y) = (i64::from(w(a)), i64::from(w(b)) + (c & 1) as i64);
    r((x - y) as u32) | u128::from(x < y) << FLAG
}
fn sixteen(x: u64) -> u16 {
    x as u16
}
fn r16(x: u16) -> u128 {
    u128::from(x)
}
fn flagged(x: bool) -> u128 {
    u128::from(x) << FLAG
}
fn fma(a: u64, b_: u64, c: u64) -> u128 {
    b(f(a).mul_add(f(b_), f(c)))
}
/// Applies a truth table of three inputs bit by bit.
fn bitop3(s: &[u64; 4]) -> u64 {
    let case = |n: u64| {
        let side = |x: u64, set: u64| if set == 1 { x } else { !x };
        side(s[0], n >> 2 & 1) & side(s[1], n >> 1 & 1) & side(s[2], n & 1)
    };
    (0..8).filter(|n| s[3] >> n & 1 == 1).map(case).fold(0, |all, one| all | one)
}
fn bfe(x: u64, offset: u64, width: u64) -> u32 {
    let (offset, width) = (offset & 31, width & 31);
    (w(x) >> offset) & ((1u64 << width) - 1) as u32
}

/// The operation with this name, without its encoding suffix.
pub fn find(name: &str) -> Option<Op> {
    const W1: &[Type] = &[B32];
    const W2: &[Type] = &[B32, B32];
    const F1: &[Type] = &[F32];
    const F2: &[Type] = &[F32, F32];
    const F3: &[Type] = &[F32, F32, F32];
    const H2: &[Type] = &[F16, F16];
    const S2: &[Type] = &[B16, B16];
    const CARRY: &[Type] = &[B32, B32, Mask];
    if let Some(rest) = name.strip_prefix("v_cmpx_") {
        return compare(rest).map(|o| Op { form: OperandLayout::CompareExec, ..o });
    }
    if let Some(rest) = name.strip_prefix("v_cmp_") {
        return compare(rest);
    }
    match name {
        "v_mov_b32"
        | "v_accvgpr_read_b32"
        | "v_accvgpr_write_b32"
        | "v_accvgpr_mov_b32"
        | "v_mov_b16" => op(W1, B32, |s| r(w(s[0]))),
        "v_mov_b64" => op(&[B64], B64, |s| u128::from(s[0])),
        "v_not_b32" => op(W1, B32, |s| r(!w(s[0]))),
        "v_bfrev_b32" => op(W1, B32, |s| r(w(s[0]).reverse_bits())),
        "v_cndmask_b32" => op(CARRY, B32, |s| r(w(if s[2] & 1 == 1 { s[1] } else { s[0] }))),
        "v_and_b32" => op(W2, B32, |s| r(w(s[0] & s[1]))),
        "v_or_b32" => op(W2, B32, |s| r(w(s[0] | s[1]))),
        "v_xor_b32" => op(W2, B32, |s| r(w(s[0] ^ s[1]))),
        "v_xnor_b32" => op(W2, B32, |s| r(!w(s[0] ^ s[1]))),
        "v_xad_u32" => word(|s| r(w(s[0] ^ s[1]).wrapping_add(w(s[2])))),
        "v_or3_b32" => word(|s| r(w(s[0] | s[1] | s[2]))),
        "v_xor3_b32" => word(|s| r(w(s[0] ^ s[1] ^ s[2]))),
        "v_and_or_b32" => word(|s| r(w(s[0] & s[1] | s[2]))),
        // The truth table is the fourth source.
        "v_bitop3_b32" => word(|s| r(w(bitop3(s)))),
        "v_bitop3_b16" => op(&[B16, B16, B16], B16, |s| r16(sixteen(bitop3(s)))),
        "v_bfi_b32" => word(|s| r(w(s[0] & s[1] | !s[0] & s[2]))),
        "v_bfe_u32" => word(|s| r(bfe(s[0], s[1], s[2]))),
        "v_bfe_i32" => word(|s| {
            let (width, x) = (s[2] & 31, bfe(s[0], s[1], s[2]));
            r(if width == 0 { 0 } else { ((x << (32 - width)) as i32 >> (32 - width)) as u32 })
        }),
        "v_perm_b32" => word(|s| perm(s[0], s[1], s[2])),
        "v_alignbit_b32" => word(|s| r(((s[0] << 32 | u64::from(w(s[1]))) >> (s[2] & 31)) as u32)),
        "v_alignbyte_b32" => {
            word(|s| r(((s[0] << 32 | u64::from(w(s[1]))) >> (8 * (s[2] & 3))) as u32))
        }
        "v_lshlrev_b32" => op(W2, B32, |s| r(w(s[1]) << (s[0] & 31))),
        "v_lshrrev_b32" => op(W2, B32, |s| r(w(s[1]) >> (s[0] & 31))),
        "v_ashrrev_i32" => op(W2, B32, |s| r((i(s[1]) >> (s[0] & 31)) as u32)),
        "v_lshlrev_b64" => op(&[B32, B64], B64, |s| u128::from(s[1] << (s[0] & 63))),
        "v_lshrrev_b64" => op(&[B32, B64], B64, |s| u128::from(s[1] >> (s[0] & 63))),
        "v_ashrrev_i64" => {
            op(&[B32, B64], B64, |s| u128::from((s[1] as i64 >> (s[0] & 63)) as u64))
        }
        "v_lshl_add_u32" => word(|s| r((w(s[0]) << (s[1] & 31)).wrapping_add(w(s[2])))),
        "v_add_lshl_u32" => word(|s| r(w(s[0]).wrapping_add(w(s[1])) << (s[2] & 31))),
        "v_lshl_or_b32" => word(|s| r(w(s[0]) << (s[1] & 31) | w(s[2]))),
        "v_lshl_add_u64" => {
            op(&[B64, B32, B64], B64, |s| u128::from((s[0] << (s[1] & 7)).wrapping_add(s[2])))
        }
        "v_add_nc_u64" => op(&[B64, B64], B64, |s| u128::from(s[0].wrapping_add(s[1]))),
        "v_sub_nc_u64" => op(&[B64, B64], B64, |s| u128::from(s[0].wrapping_sub(s[1]))),
        "v_mad_nc_u64_u32" => op(&[B32, B32, B64], B64, |s| {
            u128::from((u64::from(w(s[0])) * u64::from(w(s[1]))).wrapping_add(s[2]))
        }),
        "v_mul_u64" => op(&[B64, B64], B64, |s| u128::from(s[0].wrapping_mul(s[1]))),
        "v_max_u64" => op(&[B64, B64], B64, |s| u128::from(s[0].max(s[1]))),
        "v_min_u64" => op(&[B64, B64], B64, |s| u128::from(s[0].min(s[1]))),
        "v_mad_u32" => {
            op(&[B32, B32, B32], B32, |s| r(w(s[0]).wrapping_mul(w(s[1])).wrapping_add(w(s[2]))))
        }
        "v_add3_u32" => word(|s| r(w(s[0]).wrapping_add(w(s[1])).wrapping_add(w(s[2])))),
        "v_add_nc_u32" | "v_add_u32" => op(W2, B32, |s| sum(s[0], s[1], 0)),
        "v_sub_nc_u32" | "v_sub_u32" => op(W2, B32, |s| difference(s[0], s[1], 0)),
        "v_subrev_nc_u32" | "v_subrev_u32" => op(W2, B32, |s| difference(s[1], s[0], 0)),
        "v_add_co_u32" => formed(OperandLayout::Flagged, W2, B32, |s| sum(s[0], s[1], 0)),
        "v_sub_co_u32" => formed(OperandLayout::Flagged, W2, B32, |s| difference(s[0], s[1], 0)),
        "v_subrev_co_u32" => formed(OperandLayout::Flagged, W2, B32, |s| difference(s[1], s[0], 0)),
        "v_add_co_ci_u32" | "v_addc_co_u32" => {
            formed(OperandLayout::Flagged, CARRY, B32, |s| sum(s[0], s[1], s[2]))
        }
        "v_sub_co_ci_u32" | "v_subb_co_u32" => {
            formed(OperandLayout::Flagged, CARRY, B32, |s| difference(s[0], s[1], s[2]))
        }
        "v_subrev_co_ci_u32" | "v_subbrev_co_u32" => {
            formed(OperandLayout::Flagged, CARRY, B32, |s| difference(s[1], s[0], s[2]))
        }
        "v_mul_lo_u32" => op(W2, B32, |s| r(w(s[0]).wrapping_mul(w(s[1])))),
        "v_mul_hi_u32" => {
            op(W2, B32, |s| r((u64::from(w(s[0])) * u64::from(w(s[1])) >> 32) as u32))
        }
        "v_mul_hi_i32" => {
            op(W2, B32, |s| r((i64::from(i(s[0])) * i64::from(i(s[1])) >> 32) as u32))
        }
        "v_mul_u32_u24" => op(W2, B32, |s| r((u24(s[0]) * u24(s[1])) as u32)),
        "v_mul_i32_i24" => op(W2, B32, |s| r((s24(s[0]) * s24(s[1])) as u32)),
        "v_mul_hi_u32_u24" => op(W2, B32, |s| r((u24(s[0]) * u24(s[1]) >> 32) as u32)),
        "v_mad_u32_u24" => word(|s| r((u24(s[0]) * u24(s[1])).wrapping_add(s[2]) as u32)),
        "v_mad_i32_i24" => {
            word(|s| r((s24(s[0]) * s24(s[1])).wrapping_add(i64::from(i(s[2]))) as u32))
        }
        "v_mad_u64_u32" | "v_mad_co_u64_u32" => {
            formed(OperandLayout::Flagged, &[B32, B32, B64], B64, |s| {
                u128::from(w(s[0])) * u128::from(w(s[1])) + u128::from(s[2])
            })
        }
        "v_mad_i64_i32" | "v_mad_co_i64_i32" => {
            formed(OperandLayout::Flagged, &[B32, B32, B64], B64, |s| {
                let x = i128::from(i(s[0])) * i128::from(i(s[1])) + i128::from(s[2] as i64);
                u128::from(x as u64) | flagged(i128::from(x as i64) != x)
            })
        }
        "v_max_u32" => op(W2, B32, |s| r(w(s[0]).max(w(s[1])))),
        "v_min_u32" => op(W2, B32, |s| r(w(s[0]).min(w(s[1])))),
        "v_max_i32" => op(W2, B32, |s| r(i(s[0]).max(i(s[1])) as u32)),
        "v_min_i32" => op(W2, B32, |s| r(i(s[0]).min(i(s[1])) as u32)),
        "v_max3_u32" => word(|s| r(w(s[0]).max(w(s[1])).max(w(s[2])))),
        "v_min3_u32" => word(|s| r(w(s[0]).min(w(s[1])).min(w(s[2])))),
        "v_max3_i32" => word(|s| r(i(s[0]).max(i(s[1])).max(i(s[2])) as u32)),
        "v_min3_i32" => word(|s| r(i(s[0]).min(i(s[1])).min(i(s[2])) as u32)),
        "v_med3_i32" => word(|s| {
            let mut x = [i(s[0]), i(s[1]), i(s[2])];
            x.sort();
            r(x[1] as u32)
        }),
        "v_med3_u32" => word(|s| {
            let mut x = [w(s[0]), w(s[1]), w(s[2])];
            x.sort();
            r(x[1])
        }),
        "v_bcnt_u32_b32" => op(W2, B32, |s| r(w(s[0]).count_ones().wrapping_add(w(s[1])))),
        "v_ffbh_u32" | "v_clz_i32_u32" => {
            op(W1, B32, |s| r(if w(s[0]) == 0 { u32::MAX } else { w(s[0]).leading_zeros() }))
        }
        "v_ffbl_b32" | "v_ctz_i32_b32" => {
            op(W1, B32, |s| r(if w(s[0]) == 0 { u32::MAX } else { w(s[0]).trailing_zeros() }))
        }
        // The lane's number is the third source.
        "v_mbcnt_lo_u32_b32" => op(W2, B32, |s| {
            let below = if s[2] >= 32 { u32::MAX } else { (1u64 << s[2]) as u32 - 1 };
            r((w(s[0]) & below).count_ones().wrapping_add(w(s[1])))
        }),
        "v_mbcnt_hi_u32_b32" => op(W2, B32, |s| {
            let below = if s[2] <= 32 { 0 } else { (1u64 << (s[2] - 32)) as u32 - 1 };
            r((w(s[0]) & below).count_ones().wrapping_add(w(s[1])))
        }),
        "v_dot4_i32_i8" | "v_dot4_i32_iu8" => word(|s| dot4_signed(s[0], s[1], s[2])),
        "v_dot4_u32_u8" => word(|s| dot4_unsigned(s[0], s[1], s[2])),
        "v_dot4c_i32_i8" => {
            formed(OperandLayout::Accumulate, W2, B32, |s| dot4_signed(s[0], s[1], s[2]))
        }
        "v_dot2_f32_f16" => op(&[B32, B32, F32], F32, |s| dot2(s[0], s[1], s[2])),
        "v_dot2c_f32_f16" | "v_dot2acc_f32_f16" => {
            formed(OperandLayout::Accumulate, W2, F32, |s| dot2(s[0], s[1], s[2]))
        }
        _ => float(name, F1, F2, F3).or_else(|| small(name, H2, S2)).or_else(|| packed(name)),
    }
}

/// f32, f64 and conversions.
fn float(name: &str, f1: &'static [Type], f2: &'static [Type], f3: &'static [Type]) -> Option<Op> {
    match name {
        "v_add_f32" => op(f2, F32, |s| b(f(s[0]) + f(s[1]))),
        "v_sub_f32" => op(f2, F32, |s| b(f(s[0]) - f(s[1]))),
        "v_subrev_f32" => op(f2, F32, |s| b(f(s[1]) - f(s[0]))),
        "v_mul_f32" => op(f2, F32, |s| b(f(s[0]) * f(s[1]))),
        "v_max_f32" | "v_max_num_f32" => op(f2, F32, |s| b(max(f(s[0]), f(s[1])))),
        "v_min_f32" | "v_min_num_f32" => op(f2, F32, |s| b(min(f(s[0]), f(s[1])))),
        "v_max3_f32" | "v_max3_num_f32" => op(f3, F32, |s| b(max(max(f(s[0]), f(s[1])), f(s[2])))),
        "v_min3_f32" | "v_min3_num_f32" => op(f3, F32, |s| b(min(min(f(s[0]), f(s[1])), f(s[2])))),
        "v_med3_f32" | "v_med3_num_f32" => op(f3, F32, |s| b(med3(f(s[0]), f(s[1]), f(s[2])))),
        "v_minmax_f32" | "v_minmax_num_f32" => {
            op(f3, F32, |s| b(max(min(f(s[0]), f(s[1])), f(s[2]))))
        }
        "v_maxmin_f32" | "v_maxmin_num_f32" => {
            op(f3, F32, |s| b(min(max(f(s[0]), f(s[1])), f(s[2]))))
        }
        "v_fma_f32" | "v_fmaak_f32" | "v_fmamk_f32" => op(f3, F32, |s| fma(s[0], s[1], s[2])),
        "v_fmac_f32" => formed(OperandLayout::Accumulate, f2, F32, |s| fma(s[0], s[1], s[2])),
        // Rounds twice and flushes subnormals.
        "v_mac_f32" => formed(OperandLayout::Accumulate, f2, F32, |s| {
            b(flush(flush(flush(f(s[0])) * flush(f(s[1]))) + flush(f(s[2]))))
        }),
        "v_mad_f32" | "v_madak_f32" | "v_madmk_f32" => {
            op(f3, F32, |s| b(flush(flush(flush(f(s[0])) * flush(f(s[1]))) + flush(f(s[2])))))
        }
        "v_exp_f32" => op(f1, F32, |s| b(f64::from(f(s[0])).exp2() as f32)),
        "v_log_f32" => op(f1, F32, |s| b(f64::from(f(s[0])).log2() as f32)),
        "v_rcp_f32" | "v_rcp_iflag_f32" => op(f1, F32, |s| b(1.0 / f(s[0]))),
        "v_rsq_f32" => op(f1, F32, |s| b((1.0 / f64::from(f(s[0])).sqrt()) as f32)),
        "v_sqrt_f32" => op(f1, F32, |s| b(f(s[0]).sqrt())),
        "v_sin_f32" => {
            op(f1, F32, |s| b((f64::from(f(s[0])) * std::f64::consts::TAU).sin() as f32))
        }
        "v_cos_f32" => {
            op(f1, F32, |s| b((f64::from(f(s[0])) * std::f64::consts::TAU).cos() as f32))
        }
        "v_floor_f32" => op(f1, F32, |s| b(f(s[0]).floor())),
        "v_ceil_f32" => op(f1, F32, |s| b(f(s[0]).ceil())),
        "v_trunc_f32" => op(f1, F32, |s| b(f(s[0]).trunc())),
        "v_rndne_f32" => op(f1, F32, |s| b(rndne(f(s[0])))),
        "v_fract_f32" => {
            op(f1, F32, |s| b((f(s[0]) - f(s[0]).floor()).min(f32::from_bits(0x3f7f_ffff))))
        }
        "v_ldexp_f32" => op(&[F32, B32], F32, |s| b(ldexp(f64::from(f(s[0])), i(s[1])) as f32)),
        "v_div_scale_f32" => {
            formed(OperandLayout::Flagged, f3, F32, |s| div_scale(s[0], s[1], s[2]))
        }
        "v_div_fmas_f32" => {
            op(&[F32, F32, F32, Mask], F32, |s| div_fmas(f(s[0]), f(s[1]), f(s[2]), s[3] & 1 == 1))
        }
        "v_div_fixup_f32" => op(f3, F32, |s| div_fixup(f(s[0]), f(s[1]), f(s[2]))),
        "v_cvt_f32_i32" => op(&[B32], F32, |s| b(i(s[0]) as f32)),
        "v_cvt_f32_u32" => op(&[B32], F32, |s| b(w(s[0]) as f32)),
        "v_cvt_f32_ubyte0" => op(&[B32], F32, |s| b((s[0] & 255) as f32)),
        "v_cvt_f32_ubyte1" => op(&[B32], F32, |s| b((s[0] >> 8 & 255) as f32)),
        "v_cvt_f32_ubyte2" => op(&[B32], F32, |s| b((s[0] >> 16 & 255) as f32)),
        "v_cvt_f32_ubyte3" => op(&[B32], F32, |s| b((s[0] >> 24 & 255) as f32)),
        "v_cvt_i32_f32" => op(f1, B32, |s| to_i32(f64::from(f(s[0])))),
        "v_cvt_u32_f32" => op(f1, B32, |s| to_u32(f64::from(f(s[0])))),
        "v_cvt_f32_f16" => op(&[F16], F32, |s| b(h(s[0]))),
        "v_cvt_f16_f32" => op(f1, F16, |s| bh(f64::from(f(s[0])))),
        "v_cvt_pk_f16_f32" => {
            op(
                f2,
                B32,
                |s| r(bh(f64::from(f(s[0]))) as u32 | (bh(f64::from(f(s[1]))) as u32) << 16),
            )
        }
        "v_cvt_f64_f32" => op(f1, F64, |s| bd(f64::from(f(s[0])))),
        "v_cvt_f32_f64" => op(&[F64], F32, |s| b(d(s[0]) as f32)),
        "v_cvt_f64_u32" => op(&[B32], F64, |s| bd(f64::from(w(s[0])))),
        "v_cvt_f64_i32" => op(&[B32], F64, |s| bd(f64::from(i(s[0])))),
        "v_cvt_u32_f64" => op(&[F64], B32, |s| to_u32(d(s[0]))),
        "v_cvt_i32_f64" => op(&[F64], B32, |s| to_i32(d(s[0]))),
        "v_add_f64" => op(&[F64, F64], F64, |s| bd(d(s[0]) + d(s[1]))),
        "v_mul_f64" => op(&[F64, F64], F64, |s| bd(d(s[0]) * d(s[1]))),
        "v_fma_f64" | "v_fmaak_f64" | "v_fmamk_f64" => {
            op(&[F64, F64, F64], F64, |s| bd(d(s[0]).mul_add(d(s[1]), d(s[2]))))
        }
        "v_fmac_f64" => formed(OperandLayout::Accumulate, &[F64, F64], F64, |s| {
            bd(d(s[0]).mul_add(d(s[1]), d(s[2])))
        }),
        "v_floor_f64" => op(&[F64], F64, |s| bd(d(s[0]).floor())),
        "v_trunc_f64" => op(&[F64], F64, |s| bd(d(s[0]).trunc())),
        "v_ldexp_f64" => op(&[F64, B32], F64, |s| bd(ldexp(d(s[0]), i(s[1])))),
        _ => None,
    }
}

/// 16-bit operations.
fn small(name: &str, h2: &'static [Type], s2: &'static [Type]) -> Option<Op> {
    match name {
        "v_add_f16" => op(h2, F16, |s| bh(f64::from(h(s[0])) + f64::from(h(s[1])))),
        "v_sub_f16" => op(h2, F16, |s| bh(f64::from(h(s[0])) - f64::from(h(s[1])))),
        "v_mul_f16" => op(h2, F16, |s| bh(f64::from(h(s[0])) * f64::from(h(s[1])))),
        "v_max_f16" | "v_max_num_f16" => op(h2, F16, |s| bh(f64::from(max(h(s[0]), h(s[1]))))),
        "v_min_f16" | "v_min_num_f16" => op(h2, F16, |s| bh(f64::from(min(h(s[0]), h(s[1]))))),
        "v_fma_f16" => op(&[F16, F16, F16], F16, |s| {
            bh(f64::from(h(s[0])) * f64::from(h(s[1])) + f64::from(h(s[2])))
        }),
        "v_add_nc_u16" | "v_add_u16" => {
            op(s2, B16, |s| r16(sixteen(s[0]).wrapping_add(sixteen(s[1]))))
        }
        "v_sub_nc_u16" | "v_sub_u16" => {
            op(s2, B16, |s| r16(sixteen(s[0]).wrapping_sub(sixteen(s[1]))))
        }
        "v_subrev_u16" => op(s2, B16, |s| r16(sixteen(s[1]).wrapping_sub(sixteen(s[0])))),
        "v_mul_lo_u16" => op(s2, B16, |s| r16(sixteen(s[0]).wrapping_mul(sixteen(s[1])))),
        "v_mad_u16" | "v_mad_legacy_u16" => op(&[B16, B16, B16], B16, |s| {
            r16(sixteen(s[0]).wrapping_mul(sixteen(s[1])).wrapping_add(sixteen(s[2])))
        }),
        "v_max_u16" => op(s2, B16, |s| r16(sixteen(s[0]).max(sixteen(s[1])))),
        "v_min_u16" => op(s2, B16, |s| r16(sixteen(s[0]).min(sixteen(s[1])))),
        "v_lshlrev_b16" => op(s2, B16, |s| r16(sixteen(s[1]) << (s[0] & 15))),
        "v_lshrrev_b16" => op(s2, B16, |s| r16(sixteen(s[1]) >> (s[0] & 15))),
        "v_ashrrev_i16" => op(s2, B16, |s| r16((sixteen(s[1]) as i16 >> (s[0] & 15)) as u16)),
        "v_pack_b32_f16" => {
            op(h2, B32, |s| r(u32::from(sixteen(s[0])) | u32::from(sixteen(s[1])) << 16))
        }
        _ => None,
    }
}

/// Packed operations and mixed precision.
fn packed(name: &str) -> Option<Op> {
    const H2: &[Type] = &[F16, F16];
    let of = |name: &str| find(name);
    let halves = |o: Op| Op { form: OperandLayout::Halves, ..o };
    match name {
        "v_pk_add_f16" => of("v_add_f16").map(halves),
        "v_pk_mul_f16" => of("v_mul_f16").map(halves),
        "v_pk_fma_f16" => of("v_fma_f16").map(halves),
        "v_pk_max_f16" | "v_pk_max_num_f16" => {
            formed(OperandLayout::Halves, H2, F16, |s| bh(f64::from(max(h(s[0]), h(s[1])))))
        }
        "v_pk_min_f16" | "v_pk_min_num_f16" => {
            formed(OperandLayout::Halves, H2, F16, |s| bh(f64::from(min(h(s[0]), h(s[1])))))
        }
        "v_pk_add_u16" => of("v_add_u16").map(halves),
        "v_pk_sub_u16" | "v_pk_sub_i16" => of("v_sub_u16").map(halves),
        "v_pk_mul_lo_u16" => of("v_mul_lo_u16").map(halves),
        "v_pk_lshlrev_b16" => of("v_lshlrev_b16").map(halves),
        "v_pk_lshrrev_b16" => of("v_lshrrev_b16").map(halves),
        "v_pk_add_f32" => of("v_add_f32").map(|o| Op { form: OperandLayout::Pairs, ..o }),
        "v_pk_mul_f32" => of("v_mul_f32").map(|o| Op { form: OperandLayout::Pairs, ..o }),
        "v_pk_fma_f32" => of("v_fma_f32").map(|o| Op { form: OperandLayout::Pairs, ..o }),
        // The low result is read from the first source, the high one from the second.
        "v_pk_mov_b32" => formed(OperandLayout::Pairs, &[B32, B32], B32, |s| r(w(s[0]))),
        "v_fma_mix_f32" | "v_mad_mix_f32" | "v_fma_mix_f32_bf16" => {
            formed(OperandLayout::Mix, &[F32, F32, F32], F32, |s| fma(s[0], s[1], s[2]))
        }
        "v_fma_mixlo_f16" | "v_fma_mixhi_f16" | "v_mad_mixlo_f16" | "v_mad_mixhi_f16" => {
            formed(OperandLayout::Mix, &[F32, F32, F32], F16, |s| {
                bh(f64::from(f(s[0])) * f64::from(f(s[1])) + f64::from(f(s[2])))
            })
        }
        _ => None,
    }
}

/// v_cmp_class: whether the class of a number is in `mask`. `exponent` and `fraction` are the bit
/// widths of its type. The classes in bit order: signalling NaN, quiet NaN, −infinity, −normal,
/// −subnormal, −0, +0, +subnormal, +normal, +infinity.
fn class(x: u64, mask: u64, exponent: u32, fraction: u32) -> bool {
    let below = x >> (exponent + fraction) & 1 == 1;
    let (e, m) = (x >> fraction & ((1 << exponent) - 1), x & ((1 << fraction) - 1));
    let kind = match (e, m) {
        (0, 0) => 5,
        (0, _) => 4,
        _ if e < (1 << exponent) - 1 => 3,
        (_, 0) => 2,
        _ => return mask >> (m >> (fraction - 1)) & 1 == 1,
    };
    mask >> if below { kind } else { 11 - kind } & 1 == 1
}

/// A comparison from the rest of its name: `lt_u32` is a condition and a type.
fn compare(rest: &str) -> Option<Op> {
    match rest {
        "class_f32" => {
            return formed(OperandLayout::Compare, &[F32, B32], Mask, |s| {
                flagged(class(s[0], s[1], 8, 23))
            });
        }
        "class_f16" => {
            return formed(OperandLayout::Compare, &[F16, B32], Mask, |s| {
                flagged(class(s[0], s[1], 5, 10))
            });
        }
        _ => {}
    }
    let (condition, ty) = rest.rsplit_once('_')?;
    macro_rules! of {
        ($types:expr, $read:expr) => {{
            let compute: Compute = match condition {
                "lt" => |s| flagged($read(s[0]) < $read(s[1])),
                "eq" => |s| flagged($read(s[0]) == $read(s[1])),
                "le" => |s| flagged($read(s[0]) <= $read(s[1])),
                "gt" => |s| flagged($read(s[0]) > $read(s[1])),
                "ge" => |s| flagged($read(s[0]) >= $read(s[1])),
                "ne" | "neq" => |s| flagged($read(s[0]) != $read(s[1])),
                "lg" => |s| flagged($read(s[0]) < $read(s[1]) || $read(s[0]) > $read(s[1])),
                "nlt" => |s| flagged(!($read(s[0]) < $read(s[1]))),
                "nle" => |s| flagged(!($read(s[0]) <= $read(s[1]))),
                "ngt" => |s| flagged(!($read(s[0]) > $read(s[1]))),
                "nge" => |s| flagged(!($read(s[0]) >= $read(s[1]))),
                "nlg" => |s| flagged(!($read(s[0]) < $read(s[1]) || $read(s[0]) > $read(s[1]))),
                #[allow(clippy::eq_op)]
                "o" => |s| flagged($read(s[0]) == $read(s[0]) && $read(s[1]) == $read(s[1])),
                #[allow(clippy::eq_op)]
                "u" => |s| flagged($read(s[0]) != $read(s[0]) || $read(s[1]) != $read(s[1])),
                _ => return None,
            };
            formed(OperandLayout::Compare, $types, Mask, compute)
        }};
    }
    match ty {
        "f32" => of!(&[F32, F32], f),
        "f16" => of!(&[F16, F16], h),
        "f64" => of!(&[F64, F64], d),
        "u32" => of!(&[B32, B32], w),
        "i32" => of!(&[B32, B32], i),
        "u16" => of!(&[B16, B16], sixteen),
        "i16" => of!(&[B16, B16], (|x: u64| x as u16 as i16)),
        "u64" => of!(&[B64, B64], (|x: u64| x)),
        "i64" => of!(&[B64, B64], (|x: u64| x as i64)),
        _ => None,
    }
}
