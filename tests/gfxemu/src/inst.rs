//! An instruction: it is decoded once from LLVM's text and executed many times.

use crate::facts::Facts;
use crate::generic::Generic;
use crate::gfx8::renamed;
use crate::global::{Global, ScalarLoad};
use crate::lanes::Lanes;
use crate::lds::Lds;
use crate::local::Local;
use crate::matrix::Matrix;
use crate::memory::Memory;
use crate::operand::{ACC, EXEC, Operand, VCC, register};
use crate::scalar::Scalar;
use crate::scratch::Scratch;
use crate::span::Span;
use crate::target::{Counter, Event, Target};
use crate::text::{Text, integer};
use crate::unsupported::Unsupported;
use crate::vector::Vector;
use crate::wave::Wave;
use crate::windows::widened;

/// The condition of a branch.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Condition {
    Always,
    Scc(bool),
    /// The mask is zero (`true`) or not zero (`false`).
    Zero(u16, bool),
}

#[derive(Clone, Debug)]
enum Kind {
    Vector(Box<Vector>),
    Scalar(Box<Scalar>),
    Lanes(Box<Lanes>),
    Global(Box<Global>),
    Generic(Box<Generic>),
    ScalarLoad(Box<ScalarLoad>),
    Scratch(Box<Scratch>),
    Local(Box<Local>),
    Matrix(Box<Matrix>),
    Branch(Condition, u64),
    Wait(Vec<(Counter, usize)>),
    /// Invalidates the nearest cache (first flag) and the second-level cache (second flag).
    Invalidate(bool, bool),
    WriteBack,
    Barrier,
    Signal,
    AwaitBarrier,
    /// gfx8: whether subnormal f32 are flushed from here on.
    Flush(bool),
    GetPc(u16),
    /// Continues at the address in the second register pair; a call stores the address after itself
    /// in the first one.
    Call(Option<u16>, u16),
    /// Reads the clock into two registers.
    Time(u16),
    /// gfx1250: sets the upper bits of register numbers.
    Windows(u8),
    End,
    Nothing,
}

/// The place where a wave continues after an instruction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NextInstruction {
    /// The next instruction.
    On,
    /// The instruction at this address of the code object.
    Jump(u64),
    /// The instruction at this address of memory.
    Call(u64),
    /// The next instruction, when all waves of the block have reached the barrier.
    Barrier,
    /// Nowhere: the wave has ended.
    End,
}

/// An instruction.
#[derive(Clone, Debug)]
pub struct Inst {
    kind: Kind,
    spans: Vec<Span>,
    facts: Facts,
    /// The upper bits of register numbers that were in effect when it was decoded.
    pub(crate) windows: u8,
    /// Size of the instruction in bytes.
    pub size: u64,
    /// The instruction as LLVM's text.
    pub text: String,
}

/// Instructions that have no effect in the emulator: hints, padding, messages.
const NO_EFFECT_INSTRUCTIONS: [&str; 15] = [
    "v_nop",
    "s_nop",
    "s_delay_alu",
    "s_clause",
    "s_sleep",
    "s_setprio",
    "s_inst_prefetch",
    "s_set_inst_prefetch_distance",
    "s_code_end",
    "s_sendmsg",
    "s_waitcnt_depctr",
    "s_wait_alu",
    "s_wakeup",
    "s_ttracedata",
    "s_wait_expcnt",
];

/// The registers among the operands of an instruction text.
fn spans(line: &str) -> Vec<Span> {
    let mut out = Vec::new();
    for half in line.split("::") {
        for o in Text::parse(half).operands {
            let o = o.trim_start_matches(['-', '|']).trim_end_matches('|');
            let o = o
                .strip_prefix("sext(")
                .or(o.strip_prefix("neg("))
                .map_or(o, |r| r.trim_end_matches(')'));
            match register(o) {
                Some((Operand::Vector(first), count)) => {
                    out.push(Span { vector: true, first, count })
                }
                Some((Operand::Scalar(first), count)) => {
                    out.push(Span { vector: false, first, count })
                }
                _ => {}
            }
        }
    }
    out
}

/// Parses `vmcnt(0) lgkmcnt(1)`.
fn waits(text: &Text, target: &Target) -> Result<Option<Vec<(Counter, usize)>>, String> {
    let number =
        |s: &str| integer(s).map(|n| n as usize).ok_or_else(|| format!("{s} is not a number"));
    let counter = |name: &str| match name {
        "vmcnt" | "loadcnt" => Ok(Some(Counter::Load)),
        "vscnt" | "storecnt" => Ok(Some(Counter::Store)),
        "lgkmcnt" | "dscnt" => Ok(Some(Counter::Lds)),
        "kmcnt" => Ok(Some(Counter::Scalar)),
        "expcnt" | "samplecnt" | "bvhcnt" => Ok(None),
        _ => Err(format!("counter {name} is unknown")),
    };
    let mut out = Vec::new();
    if text.name == "s_waitcnt" {
        for word in text.operands.iter().chain(&text.modifiers) {
            let (name, n) = word
                .strip_suffix(')')
                .and_then(|w| w.split_once('('))
                .ok_or_else(|| format!("wait {word}"))?;
            out.extend(
                counter(name)?
                    .map(|c| (c, number(n)))
                    .map(|(c, n)| n.map(|n| (c, n)))
                    .transpose()?,
            );
        }
    } else if let Some(name) = text.name.strip_prefix("s_waitcnt_") {
        out.extend(
            counter(name)?
                .map(|c| (c, text.operand(1).and_then(number)))
                .map(|(c, n)| n.map(|n| (c, n)))
                .transpose()?,
        );
    } else if let Some(name) = text.name.strip_prefix("s_wait_").filter(|_| target.generation == 12)
    {
        let n = number(text.operand(0)?)?;
        match name.split_once('_') {
            Some((first, "dscnt")) => {
                out.extend(counter(first)?.map(|c| (c, n >> 8 & 63)));
                out.push((Counter::Lds, n & 63));
            }
            _ => out.extend(counter(name)?.map(|c| (c, n))),
        }
    } else {
        return Ok(None);
    }
    Ok(Some(out))
}

fn branch(text: &Text, pc: u64, size: u64) -> Result<Option<Kind>, String> {
    let condition = match text.name.as_str() {
        "s_branch" => Condition::Always,
        "s_cbranch_scc0" => Condition::Scc(false),
        "s_cbranch_scc1" => Condition::Scc(true),
        "s_cbranch_vccz" => Condition::Zero(VCC, true),
        "s_cbranch_vccnz" => Condition::Zero(VCC, false),
        "s_cbranch_execz" => Condition::Zero(EXEC, true),
        "s_cbranch_execnz" => Condition::Zero(EXEC, false),
        _ => return Ok(None),
    };
    let words = integer(text.operand(0)?).ok_or("a branch to nowhere")? as u16 as i16;
    Ok(Some(Kind::Branch(condition, (pc + size).wrapping_add_signed(4 * i64::from(words)))))
}

/// Decodes cache control, barriers and the end of the program.
fn control(target: &Target, text: &Text) -> Result<Option<Kind>, String> {
    let scope =
        text.value("scope").or(text.operands.first().and_then(|o| o.strip_prefix("scope:")));
    let device = matches!(scope, Some("SCOPE_DEV" | "SCOPE_SYS"));
    let first = text.operands.first().map(String::as_str);
    let system = first == Some("sc1") || text.has("sc1");
    Ok(Some(match text.name.as_str() {
        name if NO_EFFECT_INSTRUCTIONS.contains(&name) => Kind::Nothing,
        // Kernels for gfx1250 begin with this instruction. It sets a scheduling mode and computes
        // nothing.
        "s_setreg_imm32_b32" if first == Some("hwreg(HW_REG_WAVE_MODE, 25, 1)") => Kind::Nothing,
        "s_setreg_imm32_b32" if target.flushes && first == Some("hwreg(HW_REG_MODE, 4, 2)") => {
            match integer(text.operand(1)?) {
                Some(0) => Kind::Flush(true),
                Some(3) => Kind::Flush(false),
                _ => return Err("a mode that is unknown".into()),
            }
        }
        // Older families put the address of scratch memory here, for instructions that may access
        // scratch memory and other memory. Kernels have none.
        "s_setreg_b32" if first.is_some_and(|f| f.starts_with("hwreg(HW_REG_FLAT_SCR_")) => {
            Kind::Nothing
        }
        "s_wait_xcnt" if target.arch == "gfx1250" => Kind::Nothing,
        "s_endpgm" => Kind::End,
        "s_barrier" => Kind::Barrier,
        "s_barrier_signal" if first == Some("-1") => Kind::Signal,
        "s_barrier_wait" if first == Some("0xffff") || first == Some("-1") => Kind::AwaitBarrier,
        "buffer_gl0_inv" => Kind::Invalidate(true, false),
        "buffer_gl1_inv" => Kind::Invalidate(false, true),
        "buffer_wbinvl1" | "buffer_wbinvl1_vol" => Kind::Invalidate(true, true),
        "buffer_inv" => Kind::Invalidate(true, system),
        // MI200 has one second-level cache for all blocks; this invalidation and write-back only
        // matter for other devices. The first-level caches are invalidated by `buffer_wbinvl1`.
        "buffer_invl2" if target.arch == "gfx90a" => Kind::Nothing,
        "buffer_wbl2" if target.arch == "gfx90a" || system => Kind::WriteBack,
        "global_inv" => Kind::Invalidate(true, device),
        // A write-back inside the work-group processor only matters for the waves of the block.
        // Their stores do not need it.
        "global_wb" => {
            if device {
                Kind::WriteBack
            } else {
                Kind::Nothing
            }
        }
        "s_set_vgpr_msb" if target.arch == "gfx1250" => {
            Kind::Windows(integer(text.operand(0)?).ok_or("a mode that is not a number")? as u8)
        }
        "s_memrealtime" | "s_memtime" => match register(text.operand(0)?) {
            Some((Operand::Scalar(n), _)) => Kind::Time(n),
            _ => return Err("a destination that is unknown".into()),
        },
        // Families from gfx11 on read the counter of 100 MHz by a message.
        "s_sendmsg_rtn_b64" if text.operands.get(1).is_some_and(|o| o.contains("REALTIME")) => {
            match register(text.operand(0)?) {
                Some((Operand::Scalar(n), _)) => Kind::Time(n),
                _ => return Err("a destination that is unknown".into()),
            }
        }
        "s_swappc_b64" | "s_swap_pc_i64" => {
            match (register(text.operand(0)?), register(text.operand(1)?)) {
                (Some((Operand::Scalar(back), 2)), Some((Operand::Scalar(to), 2))) => {
                    Kind::Call(Some(back), to)
                }
                _ => return Err("operands that are unknown".into()),
            }
        }
        "s_setpc_b64" | "s_set_pc_i64" => match register(text.operand(0)?) {
            Some((Operand::Scalar(to), 2)) => Kind::Call(None, to),
            _ => return Err("an operand that is unknown".into()),
        },
        "s_getpc_b64" | "s_get_pc_i64" => match register(text.operand(0)?) {
            Some((Operand::Scalar(n), _)) => Kind::GetPc(n),
            _ => return Err("a destination that is unknown".into()),
        },
        _ => return Ok(waits(text, target)?.map(Kind::Wait)),
    }))
}

impl Inst {
    /// Decodes LLVM's text of an instruction at `pc`. `windows` are the upper bits of register
    /// numbers. The error names the part that is unknown.
    pub fn decode(
        target: &Target,
        line: &str,
        pc: u64,
        size: u64,
        windows: u8,
    ) -> Result<Inst, String> {
        let shown = widened(line, windows)?;
        let line = &renamed(target, &shown);
        let kind = Inst::kind(target, line, pc, size).map_err(|why| format!("{line}: {why}"))?;
        let kind = kind.ok_or_else(|| format!("{line}: the instruction is unknown"))?;
        let spans = match kind {
            Kind::Nothing | Kind::Branch(..) | Kind::Wait(_) => Vec::new(),
            _ => spans(line),
        };
        Ok(Inst { kind, spans, facts: Facts::of(line), windows, size, text: shown })
    }

    fn kind(target: &Target, line: &str, pc: u64, size: u64) -> Result<Option<Kind>, String> {
        let mut text = Text::parse(line);
        // gfx1250: reads the position of a block in its cluster. The emulator has no clusters.
        if text.name == "s_getreg_b32"
            && text.operands.get(1).is_some_and(|o| o == "hwreg(HW_REG_IB_STS2, 6, 4)")
        {
            text = Text::parse(&format!("s_mov_b32 {}, 0", text.operand(0)?));
        }
        if let Some(kind) = branch(&text, pc, size)? {
            return Ok(Some(kind));
        }
        if let Some(kind) = control(target, &text)? {
            return Ok(Some(kind));
        }
        if let Some(lanes) = Lanes::decode(target, &text)? {
            return Ok(Some(Kind::Lanes(Box::new(lanes))));
        }
        if let Some(matrix) = Matrix::decode(target, &text)? {
            return Ok(Some(Kind::Matrix(Box::new(matrix))));
        }
        Ok(match text.name.split('_').next() {
            Some("v") if text.name.starts_with("v_s_") => {
                Scalar::decode(&text)?.map(|x| Kind::Scalar(Box::new(x)))
            }
            Some("v") => Vector::decode(target, line)?.map(|x| Kind::Vector(Box::new(x))),
            Some("ds") => Local::decode(&text)?.map(|x| Kind::Local(Box::new(x))),
            Some("global") => Global::decode(target, &text)?.map(|x| Kind::Global(Box::new(x))),
            Some("flat") => Generic::decode(target, &text)?.map(|x| Kind::Generic(Box::new(x))),
            Some("scratch" | "buffer") => {
                Scratch::decode(&text)?.map(|x| Kind::Scratch(Box::new(x)))
            }
            Some("s") => match ScalarLoad::decode(&text)? {
                Some(load) => Some(Kind::ScalarLoad(Box::new(load))),
                None => Scalar::decode(&text)?.map(|x| Kind::Scalar(Box::new(x))),
            },
            _ => None,
        })
    }

    /// Executes the instruction at `pc`.
    pub fn run(
        &self,
        pc: u64,
        wave: &mut Wave,
        lds: &mut Lds,
        memory: &mut Memory,
    ) -> Result<NextInstruction, Unsupported> {
        match &self.kind {
            Kind::Global(g) if g.fills() => wave.check_load(&self.spans)?,
            Kind::Scratch(s) if s.fills() => wave.check_load(&self.spans)?,
            _ => wave.check_spans(&self.spans)?,
        }
        wave.check_hazards(&self.facts)?;
        memory.now += 1;
        match &self.kind {
            Kind::Vector(v) => v.run(wave)?,
            Kind::Scalar(s) => s.run(wave)?,
            Kind::Lanes(l) => l.run(wave)?,
            Kind::Global(g) => g.run(wave, memory)?,
            Kind::Generic(g) => g.run(wave, lds, memory)?,
            Kind::Scratch(s) => s.run(wave, memory)?,
            Kind::ScalarLoad(s) => s.run(wave, memory)?,
            Kind::Local(l) => {
                wave.check_lds_limit()?;
                l.run(wave, lds)?;
            }
            Kind::Matrix(m) => m.run(wave)?,
            Kind::Branch(condition, to) => {
                let taken = match *condition {
                    Condition::Always => true,
                    Condition::Scc(_) if wave.scc_bad => {
                        return Err("a branch on SCC that is undefined".into());
                    }
                    Condition::Scc(set) => wave.scc == set,
                    Condition::Zero(mask, zero) => wave.is_zero(mask)? == zero,
                };
                return Ok(if taken { NextInstruction::Jump(*to) } else { NextInstruction::On });
            }
            Kind::Wait(list) => list.iter().for_each(|&(c, n)| wave.wait(c, n, memory)),
            Kind::Invalidate(near, far) => {
                if *near {
                    wave.near = memory.now;
                }
                if *far {
                    memory.invalidate(wave.number);
                }
            }
            Kind::WriteBack => {
                let upto = memory.begin_write_back(wave.number);
                wave.ask(Event::WriteBack, None, 0, upto);
            }
            Kind::Barrier | Kind::AwaitBarrier => {
                if matches!(self.kind, Kind::AwaitBarrier) != wave.signalled {
                    return Err("a wait for a barrier that was not signalled".into());
                }
                if matches!(self.kind, Kind::Barrier) {
                    memory.writers[wave.number as usize].barrier();
                    lds.settled[usize::from(wave.in_block)] = wave.lds_done();
                }
                wave.signalled = false;
                return Ok(NextInstruction::Barrier);
            }
            Kind::Signal => {
                memory.writers[wave.number as usize].barrier();
                lds.settled[usize::from(wave.in_block)] = wave.lds_done();
                wave.signalled = true;
            }
            Kind::Call(back, to) => {
                let (to, bad) = wave.pair(*to);
                if bad != 0 {
                    return Err("a jump to an undefined address".into());
                }
                if let Some(back) = back {
                    wave.set_pair(*back, pc + self.size, 0);
                }
                return Ok(NextInstruction::Call(to));
            }
            Kind::Flush(yes) => wave.flushes = *yes,
            Kind::GetPc(n) => wave.set_pair(*n, pc + self.size, 0),
            Kind::Time(n) => {
                wave.set_pair(*n, memory.now, 0);
                wave.ask(
                    Event::Scalar,
                    Some(Span { vector: false, first: *n, count: 2 }),
                    0,
                    Vec::new(),
                );
            }
            Kind::Windows(mode) => wave.windows = *mode,
            Kind::End => {
                // Stores for which no wait was executed stay invisible to all other waves of the
                // launch.
                lds.settled[usize::from(wave.in_block)] = u32::MAX;
                return Ok(NextInstruction::End);
            }
            Kind::Nothing => {}
        }
        Ok(NextInstruction::On)
    }

    /// The properties that hazards depend on.
    pub(crate) fn facts(&self) -> &Facts {
        &self.facts
    }

    /// The next paths: whether the next instruction can follow, and the target of a jump.
    pub(crate) fn ways(&self) -> (bool, Option<u64>) {
        match &self.kind {
            Kind::Branch(condition, to) => (*condition != Condition::Always, Some(*to)),
            Kind::End | Kind::Call(None, _) => (false, None),
            _ => (true, None),
        }
    }

    /// The upper bits of register numbers, if the instruction sets them.
    pub(crate) fn sets_windows(&self) -> Option<u8> {
        if let Kind::Windows(mode) = self.kind { Some(mode) } else { None }
    }

    /// The number of vector registers among its operands: (ordinary, accumulation).
    pub fn vectors(&self) -> (usize, usize) {
        let most = |acc: bool| {
            let of = |s: &&Span| s.vector && (s.first >= ACC) == acc;
            self.spans
                .iter()
                .filter(of)
                .map(|s| usize::from(s.first + s.count - if acc { ACC } else { 0 }))
                .max()
        };
        (most(false).unwrap_or(0), most(true).unwrap_or(0))
    }
}
