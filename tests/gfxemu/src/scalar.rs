//! Scalar instructions.

use crate::float::{b, f, to_i32, to_u32};
use crate::operand::{EXEC, Operand, Type, register, source};
use crate::text::{Text, integer};
use crate::unsupported::Unsupported;
use crate::wave::Wave;

/// The result, and the new SCC if the instruction sets it.
type Result2 = (u64, Option<bool>);
type Compute = fn(&[u64; 3], bool) -> Result2;

/// A scalar instruction.
#[derive(Clone, Debug)]
pub struct Scalar {
    compute: Compute,
    /// The destination register, and whether it is 64 bits wide.
    destination: Option<(u16, bool)>,
    sources: Vec<(Operand, bool)>,
    /// For each source with modifiers: the sign bit to clear, the sign bit to flip.
    signs: Vec<(u64, u64)>,
    /// Whether it is a comparison: SCC is undefined if any bit of a source is undefined.
    compare: bool,
    /// Whether SCC is a source.
    reads_scc: bool,
    /// Whether EXEC is saved in the destination and replaced by the result.
    saves_exec: bool,
}

fn plain(x: u64) -> Result2 {
    (x, None)
}
fn tested(x: u64) -> Result2 {
    (x, Some(x != 0))
}
fn w(x: u64) -> u32 {
    x as u32
}
fn i(x: u64) -> i32 {
    x as u32 as i32
}
fn z(x: u32) -> u64 {
    u64::from(x)
}
fn zi(x: i32) -> u64 {
    u64::from(x as u32)
}
fn real(x: u128) -> Result2 {
    plain(x as u64)
}
fn scc(x: bool) -> Result2 {
    (0, Some(x))
}
fn add(a: u64, b_: u64, carry: bool) -> Result2 {
    let x = u64::from(w(a)) + u64::from(w(b_)) + u64::from(carry);
    (x & 0xffff_ffff, Some(x >> 32 != 0))
}
fn sub(a: u64, b_: u64, borrow: bool) -> Result2 {
    let (x, y) = (i64::from(w(a)), i64::from(w(b_)) + i64::from(borrow));
    (z((x - y) as u32), Some(x < y))
}
fn field(x: u64, spec: u64, bits: u32) -> (u64, u32) {
    let (offset, width) = (spec & 63 & u64::from(bits - 1), (spec >> 16 & 127) as u32);
    let x = x >> offset;
    (if width >= 64 { x } else { x & ((1 << width) - 1) }, width)
}

/// The operation with this name, and whether it reads SCC.
fn arithmetic(name: &str) -> Option<(Compute, bool)> {
    let of = |c: Compute| Some((c, false));
    let with = |c: Compute| Some((c, true));
    match name {
        "mov_b32" | "mov_b64" | "movk_i32" => of(|s, _| plain(s[0])),
        "not_b32" => of(|s, _| tested(z(!w(s[0])))),
        "not_b64" => of(|s, _| tested(!s[0])),
        "brev_b32" => of(|s, _| plain(z(w(s[0]).reverse_bits()))),
        "bcnt1_i32_b32" => of(|s, _| tested(z(w(s[0]).count_ones()))),
        "bcnt1_i32_b64" => of(|s, _| tested(u64::from(s[0].count_ones()))),
        "ff1_i32_b32" | "ctz_i32_b32" => {
            of(|s, _| plain(if w(s[0]) == 0 { 0xffff_ffff } else { z(w(s[0]).trailing_zeros()) }))
        }
        "ff1_i32_b64" | "ctz_i32_b64" => {
            of(|s, _| plain(if s[0] == 0 { 0xffff_ffff } else { u64::from(s[0].trailing_zeros()) }))
        }
        "flbit_i32_b32" | "clz_i32_u32" => {
            of(|s, _| plain(if w(s[0]) == 0 { 0xffff_ffff } else { z(w(s[0]).leading_zeros()) }))
        }
        "sext_i32_i8" => of(|s, _| plain(zi(i32::from(s[0] as u8 as i8)))),
        "sext_i32_i16" => of(|s, _| plain(zi(i32::from(s[0] as u16 as i16)))),
        "abs_i32" => of(|s, _| tested(z(i(s[0]).unsigned_abs()))),
        "and_b32" | "and_b64" => of(|s, _| tested(s[0] & s[1])),
        "or_b32" | "or_b64" => of(|s, _| tested(s[0] | s[1])),
        "xor_b32" | "xor_b64" => of(|s, _| tested(s[0] ^ s[1])),
        "and_not1_b32" | "and_not1_b64" | "andn2_b32" | "andn2_b64" => {
            of(|s, _| tested(s[0] & !s[1]))
        }
        "or_not1_b32" | "orn2_b32" => of(|s, _| tested(z(w(s[0] | !s[1])))),
        "or_not1_b64" | "orn2_b64" => of(|s, _| tested(s[0] | !s[1])),
        "nand_b32" => of(|s, _| tested(z(!w(s[0] & s[1])))),
        "nand_b64" => of(|s, _| tested(!(s[0] & s[1]))),
        "nor_b32" => of(|s, _| tested(z(!w(s[0] | s[1])))),
        "nor_b64" => of(|s, _| tested(!(s[0] | s[1]))),
        "xnor_b32" => of(|s, _| tested(z(!w(s[0] ^ s[1])))),
        "xnor_b64" => of(|s, _| tested(!(s[0] ^ s[1]))),
        "add_i32" | "add_co_i32" | "addk_i32" | "addk_co_i32" => of(|s, _| {
            let (x, over) = i(s[0]).overflowing_add(i(s[1]));
            (zi(x), Some(over))
        }),
        "sub_i32" | "sub_co_i32" => of(|s, _| {
            let (x, over) = i(s[0]).overflowing_sub(i(s[1]));
            (zi(x), Some(over))
        }),
        "add_u32" | "add_co_u32" => of(|s, _| add(s[0], s[1], false)),
        "sub_u32" | "sub_co_u32" => of(|s, _| sub(s[0], s[1], false)),
        "addc_u32" | "add_co_ci_u32" => with(|s, c| add(s[0], s[1], c)),
        "subb_u32" | "sub_co_ci_u32" => with(|s, c| sub(s[0], s[1], c)),
        "add_nc_u64" | "add_u64" => of(|s, _| plain(s[0].wrapping_add(s[1]))),
        "sub_nc_u64" | "sub_u64" => of(|s, _| plain(s[0].wrapping_sub(s[1]))),
        "mul_i32" | "mulk_i32" => of(|s, _| plain(z(w(s[0]).wrapping_mul(w(s[1]))))),
        "mul_u64" => of(|s, _| plain(s[0].wrapping_mul(s[1]))),
        "mul_hi_u32" => of(|s, _| plain(u64::from(w(s[0])) * u64::from(w(s[1])) >> 32)),
        "mul_hi_i32" => of(|s, _| plain(z((i64::from(i(s[0])) * i64::from(i(s[1])) >> 32) as u32))),
        "lshl_b32" => of(|s, _| tested(z(w(s[0]) << (s[1] & 31)))),
        "lshr_b32" => of(|s, _| tested(z(w(s[0]) >> (s[1] & 31)))),
        "ashr_i32" => of(|s, _| tested(zi(i(s[0]) >> (s[1] & 31)))),
        "lshl_b64" => of(|s, _| tested(s[0] << (s[1] & 63))),
        "lshr_b64" => of(|s, _| tested(s[0] >> (s[1] & 63))),
        "ashr_i64" => of(|s, _| tested((s[0] as i64 >> (s[1] & 63)) as u64)),
        "lshl1_add_u32" => of(|s, _| add_shifted(s, 1)),
        "lshl2_add_u32" => of(|s, _| add_shifted(s, 2)),
        "lshl3_add_u32" => of(|s, _| add_shifted(s, 3)),
        "lshl4_add_u32" => of(|s, _| add_shifted(s, 4)),
        "bfe_u32" => of(|s, _| tested(field(u64::from(w(s[0])), s[1], 32).0 & 0xffff_ffff)),
        "bfe_u64" => of(|s, _| tested(field(s[0], s[1], 64).0)),
        "bfe_i32" => of(|s, _| {
            let (x, width) = field(u64::from(w(s[0])), s[1], 32);
            let up = 32 - width.clamp(1, 32);
            tested(if width == 0 { 0 } else { zi((x as u32 as i32) << up >> up) })
        }),
        "bfm_b32" => of(|s, _| plain(z((((1u64 << (s[0] & 31)) - 1) << (s[1] & 31)) as u32))),
        "bfm_b64" => of(|s, _| plain(((1u64 << (s[0] & 63)) - 1) << (s[1] & 63))),
        "pack_ll_b32_b16" => of(|s, _| plain(s[0] & 0xffff | (s[1] & 0xffff) << 16)),
        "pack_lh_b32_b16" => of(|s, _| plain(s[0] & 0xffff | s[1] & 0xffff_0000)),
        "pack_hh_b32_b16" => of(|s, _| plain(s[0] >> 16 & 0xffff | s[1] & 0xffff_0000)),
        "max_u32" => of(|s, _| (z(w(s[0]).max(w(s[1]))), Some(w(s[0]) >= w(s[1])))),
        "min_u32" => of(|s, _| (z(w(s[0]).min(w(s[1]))), Some(w(s[0]) < w(s[1])))),
        "max_i32" => of(|s, _| (zi(i(s[0]).max(i(s[1]))), Some(i(s[0]) >= i(s[1])))),
        "min_i32" => of(|s, _| (zi(i(s[0]).min(i(s[1]))), Some(i(s[0]) < i(s[1])))),
        "bitset0_b32" => of(|s, _| plain(s[1] & !(1 << (s[0] & 31)))),
        "bitset1_b32" => of(|s, _| plain(s[1] | 1 << (s[0] & 31))),
        "cselect_b32" | "cselect_b64" => with(|s, c| plain(if c { s[0] } else { s[1] })),
        "bitcmp1_b32" => of(|s, _| scc(s[0] >> (s[1] & 31) & 1 == 1)),
        "bitcmp0_b32" => of(|s, _| scc(s[0] >> (s[1] & 31) & 1 == 0)),
        "add_f32" => of(|s, _| real(b(f(s[0]) + f(s[1])))),
        "sub_f32" => of(|s, _| real(b(f(s[0]) - f(s[1])))),
        "mul_f32" => of(|s, _| real(b(f(s[0]) * f(s[1])))),
        "max_num_f32" => of(|s, _| real(b(crate::float::max(f(s[0]), f(s[1]))))),
        "min_num_f32" => of(|s, _| real(b(crate::float::min(f(s[0]), f(s[1]))))),
        "fmac_f32" | "fmamk_f32" | "fmaak_f32" => {
            of(|s, _| real(b(f(s[0]).mul_add(f(s[1]), f(s[2])))))
        }
        "floor_f32" => of(|s, _| real(b(f(s[0]).floor()))),
        "trunc_f32" => of(|s, _| real(b(f(s[0]).trunc()))),
        "rndne_f32" => of(|s, _| real(b(f(s[0]).round_ties_even()))),
        "exp_f32" => of(|s, _| real(b(f64::from(f(s[0])).exp2() as f32))),
        "cvt_f32_u32" => of(|s, _| real(b(w(s[0]) as f32))),
        "cvt_f32_i32" => of(|s, _| real(b(i(s[0]) as f32))),
        "cvt_u32_f32" => of(|s, _| real(to_u32(f64::from(f(s[0]))))),
        "cvt_i32_f32" => of(|s, _| real(to_i32(f64::from(f(s[0]))))),
        _ => comparison(name.strip_prefix("cmp_").or(name.strip_prefix("cmpk_"))?),
    }
}

fn add_shifted(s: &[u64; 3], by: u32) -> Result2 {
    let x = (u64::from(w(s[0])) << by) + u64::from(w(s[1]));
    (x & 0xffff_ffff, Some(x >> 32 != 0))
}

fn comparison(rest: &str) -> Option<(Compute, bool)> {
    let (condition, ty) = rest.rsplit_once('_')?;
    macro_rules! of {
        ($read:expr) => {
            match condition {
                "eq" => |s, _| scc($read(s[0]) == $read(s[1])),
                "lg" | "neq" => |s, _| scc($read(s[0]) != $read(s[1])),
                "lt" => |s, _| scc($read(s[0]) < $read(s[1])),
                "le" => |s, _| scc($read(s[0]) <= $read(s[1])),
                "gt" => |s, _| scc($read(s[0]) > $read(s[1])),
                "ge" => |s, _| scc($read(s[0]) >= $read(s[1])),
                "nlt" => |s, _| scc(!($read(s[0]) < $read(s[1]))),
                "nle" => |s, _| scc(!($read(s[0]) <= $read(s[1]))),
                "ngt" => |s, _| scc(!($read(s[0]) > $read(s[1]))),
                "nge" => |s, _| scc(!($read(s[0]) >= $read(s[1]))),
                #[allow(clippy::eq_op)]
                "o" => |s, _| scc($read(s[0]) == $read(s[0]) && $read(s[1]) == $read(s[1])),
                #[allow(clippy::eq_op)]
                "u" => |s, _| scc($read(s[0]) != $read(s[0]) || $read(s[1]) != $read(s[1])),
                _ => return None,
            }
        };
    }
    let compute: Compute = match ty {
        "u32" => of!(w),
        "i32" => of!(i),
        "u64" => of!((|x: u64| x)),
        "f32" => of!(f),
        _ => return None,
    };
    Some((compute, false))
}

/// Whether operand `k` of `name` (0: the destination) is 64 bits wide.
fn wide(name: &str, k: usize) -> bool {
    match name {
        "bcnt1_i32_b64" | "ff1_i32_b64" | "ctz_i32_b64" => k > 0,
        "lshl_b64" | "lshr_b64" | "ashr_i64" | "bfe_u64" => k < 2,
        "bfm_b64" => k == 0,
        _ => name.ends_with("64"),
    }
}

impl Scalar {
    /// Decodes an instruction; `None` if its name is unknown.
    pub fn decode(text: &Text) -> Result<Option<Scalar>, String> {
        // gfx12 has vector functions that use scalar registers: `v_s_exp_f32`.
        let signed = text.name.starts_with("v_s_");
        let Some(mut name) = text.name.trim_start_matches("v_").strip_prefix("s_") else {
            return Ok(None);
        };
        let short = name.replace("_saveexec", "");
        let saves_exec = short != name;
        if saves_exec {
            name = &short;
        }
        let Some((compute, reads_scc)) = arithmetic(name) else { return Ok(None) };
        if let Some(m) = text.modifiers.first().filter(|_| signed) {
            return Err(format!("modifier {m} is unknown"));
        }
        let compare = name.starts_with("cmp") || name.starts_with("bitcmp");
        let ty = if name.ends_with("f32") && !name.starts_with("cvt_f32") {
            Type::F32
        } else {
            Type::B32
        };
        let (mut sources, mut signs) = (Vec::new(), Vec::new());
        let mut destination = None;
        for (k, o) in text.operands.iter().enumerate() {
            let place = if compare { k + 1 } else { k };
            let wide = wide(name, place);
            if place == 0 {
                match register(o) {
                    Some((Operand::Scalar(n), _)) => destination = Some((n, wide)),
                    _ => return Err(format!("destination {o} is unknown")),
                }
                continue;
            }
            let read = source(o, if wide { Type::B64 } else { ty })?;
            if !signed && (read.negative || read.absolute || read.extend) {
                return Err(format!("operand {o:?} is unknown"));
            }
            if signed {
                let sign = |there: bool| u64::from(there) << 31;
                signs.push((sign(read.absolute), sign(read.negative)));
            }
            let mut operand = read.operand;
            // Instructions with suffix `k` have a 16-bit constant. It is sign-extended if the
            // instruction is signed.
            if let (true, Some(n)) = (name.contains("k_"), integer(o)) {
                let n = if name.ends_with("u32") {
                    n as u16 as u64
                } else {
                    u64::from(n as u16 as i16 as i32 as u32)
                };
                operand = Operand::Constant(n);
            }
            sources.push((operand, wide));
        }
        // These instructions also read their destination.
        if let (Some((n, wide)), "addk_i32" | "addk_co_i32" | "mulk_i32") = (destination, name) {
            sources.insert(0, (Operand::Scalar(n), wide));
        }
        if let (Some((n, _)), "fmac_f32" | "bitset0_b32" | "bitset1_b32") = (destination, name) {
            sources.push((Operand::Scalar(n), false));
        }
        if saves_exec {
            sources.push((Operand::Scalar(EXEC), name.ends_with("64")));
        }
        Ok(Some(Scalar { compute, destination, sources, signs, compare, reads_scc, saves_exec }))
    }

    /// Executes the instruction.
    pub fn run(&self, wave: &mut Wave) -> Result<(), Unsupported> {
        let (mut s, mut bad) = ([0; 3], [0; 3]);
        for (k, &(operand, wide)) in self.sources.iter().enumerate() {
            (s[k], bad[k]) = wave.read_scalar(operand, wide)?;
            if let Some((off, turned)) = self.signs.get(k) {
                s[k] = s[k] & !off ^ turned;
                bad[k] &= !off;
            }
        }
        let scc_bad = self.reads_scc && wave.scc_bad;
        let (value, scc) = (self.compute)(&s, wave.scc);
        let (mut value_bad, mut result_bad) = (0, false);
        if scc_bad || bad != [0; 3] {
            let tries =
                [0, u64::MAX, 0x5555_5555_5555_5555, 0xaaaa_aaaa_aaaa_aaaa, 0x0123_4567_89ab_cdef];
            for (t, pattern) in tries.iter().enumerate() {
                let tried: [u64; 3] = std::array::from_fn(|k| {
                    s[k] & !bad[k] | pattern.rotate_left((7 * k + t) as u32) & bad[k]
                });
                let (v, c) = (self.compute)(&tried, if scc_bad { t % 2 == 0 } else { wave.scc });
                value_bad |= v ^ value;
                result_bad |= c != scc;
            }
            result_bad |= self.compare;
        }
        if let Some((n, wide)) = self.destination {
            let (value, value_bad, exec) = match self.saves_exec {
                true => {
                    let (old, old_bad) = wave.read_scalar(Operand::Scalar(EXEC), wide)?;
                    (old, old_bad, Some((value, value_bad)))
                }
                false => (value, value_bad, None),
            };
            for (n, (value, bad)) in
                [(n, (value, value_bad))].into_iter().chain(exec.map(|e| (EXEC, e)))
            {
                if wide {
                    wave.set_pair(n, value, bad);
                } else {
                    wave.set_scalar(n, value as u32, bad as u32);
                }
                if n == EXEC || n == EXEC + 1 {
                    wave.check_exec()?;
                }
            }
        }
        if let Some(scc) = scc {
            (wave.scc, wave.scc_bad) = (scc, result_bad);
        }
        Ok(())
    }
}
