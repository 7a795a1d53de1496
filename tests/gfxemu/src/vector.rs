//! Vector instructions: sources are read, results are computed for each lane and then stored. Every
//! instruction is one or two parts: a dual instruction has two, a packed instruction has a low and
//! a high part. All parts read their sources before any part writes.

mod fetch;
mod part;

use crate::exchange::Exchange;
use crate::operand::{EXEC, Operand, Type, register, source};
use crate::ops::{Op, OperandLayout, find};
use crate::target::Target;
use crate::text::Text;
use crate::unsupported::Unsupported;
use crate::wave::Wave;
use fetch::Fetch;
use part::{Clamp, OtherBits, Part, ResultDestination};

/// A vector instruction.
#[derive(Clone, Debug)]
pub struct Vector {
    parts: Vec<Part>,
    exchange: Option<Exchange>,
}

/// Whether a 16-bit instruction clears the upper half of its destination. On gfx8 all instructions
/// do, on gfx9 some. RDNA keeps the upper half.
fn clears_upper(target: &Target, name: &str) -> bool {
    const KEEP: [&str; 4] = ["v_fma_f16", "v_mad_u16", "v_mad_f16", "v_fmac_f16"];
    target.generation == 8
        || target.generation == 9 && !KEEP.contains(&name) && !name.contains("mix")
}

/// Whether an instruction flushes subnormal f32. gfx8's minimum and maximum keep them in any mode.
fn flushes(target: &Target, name: &str) -> bool {
    target.flushes && !["v_min", "v_max", "v_med"].iter().any(|part| name.starts_with(part))
}

fn half_as_single(x: u16) -> f32 {
    half::f16::from_bits(x).to_f32()
}

fn brain_as_single(x: u16) -> f32 {
    half::bf16::from_bits(x).to_f32()
}

/// The name without its encoding suffix, and two flags: DPP, SDWA.
fn base(name: &str) -> (&str, bool, bool) {
    let dpp = name.ends_with("_dpp");
    let sdwa = name.ends_with("_sdwa");
    let mut name = name.trim_end_matches("_dpp").trim_end_matches("_sdwa");
    name = name.strip_suffix("_e32").or(name.strip_suffix("_e64")).unwrap_or(name);
    (name, dpp, sdwa)
}

fn selection(text: &str) -> Result<(u32, u32), String> {
    Ok(match text {
        "DWORD" => (0, 32),
        "WORD_0" => (0, 16),
        "WORD_1" => (16, 16),
        "BYTE_0" => (0, 8),
        "BYTE_1" => (8, 8),
        "BYTE_2" => (16, 8),
        "BYTE_3" => (24, 8),
        _ => return Err(format!("selection {text} is unknown")),
    })
}

impl Vector {
    /// Decodes an instruction; `None` if its operation is unknown.
    pub fn decode(target: &Target, line: &str) -> Result<Option<Vector>, String> {
        if let Some((x, y)) = line.split_once("::") {
            let mut parts = Vec::new();
            for half in [x, y] {
                let mut half = half.replace("v_dual_", "v_");
                if half.trim_start().starts_with("v_bitop2_b32 ") {
                    // The instruction is rewritten as a truth table of three inputs. The third
                    // input is zero.
                    half = half.replace("v_bitop2_b32", "v_bitop3_b32").replacen(
                        " bitop3:",
                        ", 0 bitop3:",
                        1,
                    );
                }
                let Some(v) = Vector::decode(target, &half)? else { return Ok(None) };
                parts.extend(v.parts);
            }
            return Ok(Some(Vector { parts, exchange: None }));
        }
        let text = Text::parse(line);
        let (name, dpp, sdwa) = base(&text.name);
        let Some(op) = find(name) else { return Ok(None) };
        let exchange = if dpp { Some(Exchange::decode(target, &text)?) } else { None };
        Vector::assemble(target, &text, name, op, sdwa)
            .map(|parts| Some(Vector { parts, exchange }))
    }

    fn assemble(
        target: &Target,
        text: &Text,
        name: &str,
        mut op: Op,
        sdwa: bool,
    ) -> Result<Vec<Part>, String> {
        if name == "v_dot4_i32_iu8" {
            match text.list("neg_lo").as_deref() {
                Some([1, 1, 0]) => {}
                None => {
                    op.compute =
                        find("v_dot4_u32_u8").ok_or("no dot product of unsigned bytes")?.compute
                }
                Some(other) => return Err(format!("signs {other:?} of a dot product")),
            }
        }
        let mut operands: Vec<&str> = text.operands.iter().map(String::as_str).collect();
        let mut destination = None;
        let mut flags = None;
        let taken = |operands: &mut Vec<&str>| -> Result<Operand, String> {
            let o = if operands.is_empty() {
                return Err("no destination".into());
            } else {
                operands.remove(0)
            };
            register(o).map(|(r, _)| r).ok_or_else(|| format!("destination {o} is unknown"))
        };
        let scalar = |o: Operand| match o {
            Operand::Scalar(n) => Ok(n),
            _ => Err("flags that go nowhere".to_string()),
        };
        match op.form {
            OperandLayout::Compare => flags = Some(scalar(taken(&mut operands)?)?),
            OperandLayout::CompareExec => {
                if operands.len() > op.sources.len() {
                    return Err("a comparison into EXEC and a mask".into());
                }
                flags = Some(EXEC);
            }
            _ => {
                destination = Some(match taken(&mut operands)? {
                    Operand::Vector(n) => n,
                    _ => return Err("a destination that is not a vector register".into()),
                });
                if op.form == OperandLayout::Flagged {
                    flags = Some(scalar(taken(&mut operands)?)?);
                }
            }
        }
        let last = text.operands.first().cloned().unwrap_or_default();
        let mut types = op.sources.to_vec();
        if op.form == OperandLayout::Accumulate {
            operands.push(&last);
            types.push(op.out);
        }
        if types.len() == operands.len() + 1 && types.last() == Some(&Type::Mask) {
            operands.push("vcc");
        }
        let table = text.value("bitop3").unwrap_or("0");
        if name.starts_with("v_bitop3") {
            operands.push(table);
            types.push(Type::B32);
        }
        if name.starts_with("v_mbcnt") {
            types.push(Type::B32);
        } else if types.len() != operands.len() {
            return Err(format!("{} sources, not {}", operands.len(), types.len()));
        }
        let selected = text.list("op_sel").unwrap_or_default();
        let high_default = u32::from(op.form != OperandLayout::Mix);
        let selected_high = text.list("op_sel_hi").unwrap_or_else(|| vec![high_default; 4]);
        let mut fetch = Vec::new();
        for (k, &ty) in types.iter().enumerate() {
            let Some(&operand) = operands.get(k) else {
                fetch.push(Fetch::new(Operand::Lane, Type::B32));
                continue;
            };
            let at = |list: &[u32]| list.get(k).copied().unwrap_or(0);
            let mixed = op.form == OperandLayout::Mix && at(&selected_high) == 1;
            let s = source(operand, if mixed { Type::F16 } else { ty })?;
            let mut f = Fetch::new(s.operand, if mixed { Type::F16 } else { ty });
            let brain = name.ends_with("_bf16");
            if mixed && brain && matches!(s.operand, Operand::Constant(_)) {
                return Err(format!("operand {operand}, a constant of bfloat16"));
            }
            f.widen = mixed.then_some(if brain { brain_as_single } else { half_as_single });
            f.extend = s.extend;
            if ty.bits() == 16 || mixed {
                f.shift = 16 * at(&selected);
            }
            if sdwa && let Some(which) = text.value(&format!("src{k}_sel")) {
                let (shift, bits) = selection(which)?;
                f.shift = shift;
                f.bits = bits.min(ty.bits());
            }
            // The sign modifier applies to the value after conversion: f32 if f16 sources are
            // widened.
            let ty = if mixed { Type::F32 } else { ty };
            f.flush = ty == Type::F32 && flushes(target, name);
            let float = ty.is_float() || name.starts_with("v_cndmask");
            let sign = 1u64 << (ty.bits() - 1);
            if (s.negative || s.absolute) && !float {
                return Err(format!(
                    "a sign modifier of {operand}, \
                                    which is not a floating-point operand"
                ));
            }
            f.keep = if s.absolute { !sign } else { u64::MAX };
            f.turn = if s.negative { sign } else { 0 };
            fetch.push(f);
        }
        let mut put = ResultDestination {
            register: destination,
            shift: 0,
            bits: op.out.bits(),
            rest: OtherBits::Keep,
            flags,
        };
        if op.out.bits() == 16 && op.form != OperandLayout::Halves {
            let upper =
                selected.get(types.len()).is_some_and(|&s| s == 1) || name.contains("mixhi");
            put.shift = if upper { 16 } else { 0 };
            if !upper && clears_upper(target, name) {
                put.rest = OtherBits::Zero;
            }
        }
        if sdwa && destination.is_some() {
            (put.shift, put.bits) = selection(text.value("dst_sel").unwrap_or("DWORD"))?;
            put.rest = match text.value("dst_unused") {
                Some("UNUSED_PRESERVE") => OtherBits::Keep,
                Some("UNUSED_SEXT") => OtherBits::Sign,
                _ => OtherBits::Zero,
            };
        }
        let clamp = match (text.has("clamp"), op.out) {
            (false, _) => Clamp::None,
            (true, Type::B32) if name.contains("_add_") => Clamp::Add,
            (true, Type::B32) if name.contains("_sub") => Clamp::Subtract,
            (true, ty) if ty.is_float() => Clamp::Unit(ty),
            _ => return Err("clamp of this result".into()),
        };
        let scale = match (text.value("mul"), text.value("div")) {
            (None, None) => 1.0,
            (Some("2"), _) => 2.0,
            (Some("4"), _) => 4.0,
            (_, Some("2")) => 0.5,
            _ => return Err("an unknown scale of the result".into()),
        };
        let known = [
            "op_sel",
            "op_sel_hi",
            "neg_lo",
            "neg_hi",
            "clamp",
            "mul",
            "div",
            "src0_sel",
            "src1_sel",
            "dst_sel",
        ];
        let also = [
            "dst_unused",
            "quad_perm",
            "row_ror",
            "row_shl",
            "row_shr",
            "row_xmask",
            "row_share",
            "row_mirror",
            "row_half_mirror",
            "row_bcast",
            "wave_shr",
            "row_mask",
            "bank_mask",
            "bound_ctrl",
            "fi",
            "bitop3",
        ];
        for m in &text.modifiers {
            let key = m.split(':').next().unwrap_or_default();
            if !known.contains(&key) && !also.contains(&key) {
                return Err(format!("modifier {m} is unknown"));
            }
        }
        let compare = matches!(op.form, OperandLayout::Compare | OperandLayout::CompareExec);
        let flush = op.out == Type::F32 && flushes(target, name);
        let part = Part { compute: op.compute, fetch, put, compare, clamp, scale, flush };
        match op.form {
            OperandLayout::Halves | OperandLayout::Pairs => {
                part.twice(name, text, op.form, &selected, &selected_high)
            }
            _ => Ok(vec![part]),
        }
    }

    /// Executes the instruction: computes all parts, then writes the results.
    pub fn run(&self, wave: &mut Wave) -> Result<(), Unsupported> {
        let exec = wave.exec();
        let write = exec & self.exchange.as_ref().map_or(u64::MAX, |e| e.writes(exec));
        let mut out = Vec::with_capacity(2);
        for part in &self.parts {
            out.push(part.run(wave, exec, write, self.exchange.as_ref())?);
        }
        for (part, o) in self.parts.iter().zip(&out) {
            part.store(wave, write, o)?;
        }
        Ok(())
    }
}
