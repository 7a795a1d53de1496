//! Properties of an instruction that hazards depend on: the unit that executes it, and the
//! registers that it reads and writes, also registers that are not in its text.

use crate::operand::{EXEC, Operand, VCC, register};
use crate::span::Span;
use crate::text::{Text, integer};

/// The unit that executes an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Vector arithmetic and exchanges of lanes.
    Vector,
    /// Transcendental vector arithmetic.
    Transcendental,
    /// MFMA and WMMA.
    Matrix,
    /// Scalar arithmetic.
    Scalar,
    /// Scalar loads.
    ScalarMemory,
    /// Global and scratch memory.
    Memory,
    /// LDS.
    Local,
    /// A branch.
    Branch,
    /// Waits, hints, barriers.
    Control,
}

impl Unit {
    /// Whether it is executed as vector arithmetic.
    pub fn is_vector(self) -> bool {
        matches!(self, Unit::Vector | Unit::Transcendental | Unit::Matrix)
    }
    /// Whether it accesses memory or LDS for each lane.
    pub fn is_access(self) -> bool {
        matches!(self, Unit::Memory | Unit::Local)
    }
}

/// The conditions for which `s_waitcnt_depctr`, `s_wait_alu` and `s_waitcnt` wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// Results of vector arithmetic are written.
    pub vector: bool,
    /// Accesses have read their registers.
    pub sources: bool,
    /// Scalar results of scalar arithmetic are written.
    pub scalar: bool,
    /// LDS and scalar loads are complete.
    pub local: bool,
    /// All operations that vmcnt, expcnt and lgkmcnt count are complete.
    pub all: bool,
    /// Stores are complete.
    pub stores: bool,
}

/// Properties of an instruction.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The unit that executes the instruction.
    pub unit: Unit,
    /// Name of the instruction without the encoding: `v_add_f32`.
    pub name: String,
    /// Registers that are read, with the index of the operand. Index 0 is the first operand after
    /// the destinations.
    pub reads: Vec<(Span, usize)>,
    /// Registers that are written.
    pub writes: Vec<Span>,
    /// Whether a constant is stored as a literal after the instruction.
    pub literal: bool,
    /// Whether it is a dual instruction (VOPD).
    pub dual: bool,
    /// Whether it uses DPP.
    pub dpp: bool,
    /// Whether it writes only some bits of its destination (SDWA, op_sel).
    pub selects: bool,
    /// Whether it is a store of more than 8 bytes per lane.
    pub wide_store: bool,
    /// The conditions for which it waits.
    pub waits: Waits,
    /// Number of wait states that it takes.
    pub states: u64,
    /// The distance of a branch in units of 4 bytes.
    pub words: u16,
}

fn span(text: &str) -> Option<Span> {
    let o = text.trim_start_matches(['-', '|']).trim_end_matches('|');
    let o =
        o.strip_prefix("sext(").or(o.strip_prefix("neg(")).map_or(o, |r| r.trim_end_matches(')'));
    match register(o)? {
        (Operand::Vector(first), count) => Some(Span { vector: true, first, count }),
        (Operand::Scalar(first), count) => Some(Span { vector: false, first, count }),
        _ => None,
    }
}

/// A pair of scalar registers.
pub fn scalar(first: u16) -> Span {
    Span { vector: false, first, count: 2 }
}

const TRANSCENDENTAL: [&str; 8] = ["exp", "log", "rcp", "rsq", "sqrt", "sin", "cos", "tanh"];

fn unit(name: &str) -> Unit {
    let word = |k: usize| name.split('_').nth(k).unwrap_or_default();
    match word(0) {
        "v" if name.contains("mfma") || name.contains("wmma") => Unit::Matrix,
        "v" if TRANSCENDENTAL.contains(&word(1)) || name.starts_with("v_s_") => {
            Unit::Transcendental
        }
        "v" => Unit::Vector,
        "ds" => Unit::Local,
        "global" | "flat" | "scratch" if word(1) != "inv" && word(1) != "wb" => Unit::Memory,
        "buffer" if matches!(word(1), "load" | "store") => Unit::Memory,
        "s" => match word(1) {
            "load" | "buffer" | "memrealtime" | "memtime" | "dcache" => Unit::ScalarMemory,
            "sendmsg" if word(2) == "rtn" => Unit::ScalarMemory,
            "branch" | "cbranch" => Unit::Branch,
            "nop" | "waitcnt" | "wait" | "delay" | "clause" | "sleep" | "setprio" | "inst"
            | "code" | "sendmsg" | "wakeup" | "ttracedata" | "endpgm" | "barrier" | "set"
            | "icache" => Unit::Control,
            _ => Unit::Scalar,
        },
        _ => Unit::Control,
    }
}

/// The conditions of a wait.
fn waits(text: &Text) -> Waits {
    let words = || text.operands.iter().chain(&text.modifiers).map(String::as_str);
    let has = |w: &str| words().any(|o| o.trim_start_matches("depctr_") == w);
    let number = text.operands.first().and_then(|o| integer(o));
    match text.name.as_str() {
        "s_waitcnt_depctr" | "s_wait_alu" => match number {
            Some(n) => Waits {
                vector: n >> 12 & 15 == 0,
                sources: n >> 2 & 7 == 0,
                scalar: n & 1 == 0,
                ..Waits::default()
            },
            None => Waits {
                vector: has("va_vdst(0)"),
                sources: has("vm_vsrc(0)"),
                scalar: has("sa_sdst(0)"),
                ..Waits::default()
            },
        },
        "s_waitcnt" => {
            let all =
                number == Some(0) || ["vmcnt(0)", "expcnt(0)", "lgkmcnt(0)"].into_iter().all(has);
            Waits { local: all || has("lgkmcnt(0)"), all, ..Waits::default() }
        }
        "s_waitcnt_lgkmcnt" => Waits { local: words().nth(1) == Some("0x0"), ..Waits::default() },
        "s_waitcnt_vscnt" => Waits { stores: words().nth(1) == Some("0x0"), ..Waits::default() },
        _ => Waits::default(),
    }
}

/// The number of destinations among the operands of `name`. Destinations come first.
fn destinations(unit: Unit, name: &str, text: &Text) -> usize {
    match unit {
        Unit::Control | Unit::Branch => 0,
        Unit::ScalarMemory => {
            usize::from(["s_load", "s_mem", "s_sendmsg"].iter().any(|p| name.starts_with(p)))
        }
        Unit::Scalar => usize::from(
            !["s_cmp", "s_bitcmp", "s_setreg", "s_setpc", "s_set_pc"]
                .iter()
                .any(|p| name.starts_with(p)),
        ),
        Unit::Memory => {
            let answers = text.has("glc")
                || text.has("sc0")
                || text.value("th").is_some_and(|t| t.contains("RETURN"));
            usize::from(name.contains("_load") || name.contains("_atomic") && answers)
        }
        Unit::Local => {
            let from = ["_read", "_load", "_rtn", "permute", "swizzle"];
            usize::from(from.iter().any(|w| name.contains(w)))
        }
        _ if name == "v_nop" => 0,
        // On RDNA these instructions write only EXEC, which is not in the text.
        _ if name.starts_with("v_cmpx") => usize::from(text.operands.len() > 2),
        _ if name.contains("_co_")
            || name.starts_with("v_div_scale")
            || name.starts_with("v_mad_u64_u32") =>
        {
            2
        }
        _ if name == "v_mad_i64_i32" || name == "v_swap_b32" => 2,
        _ => 1,
    }
}

/// The number of destinations among the operands of LLVM's text.
pub(crate) fn destinations_of(line: &str) -> usize {
    let text = Text::parse(&line.replace("v_dual_", "v_"));
    let name = bare(&text.name).0;
    destinations(unit(name), name, &text)
}

/// A name without its encoding, and whether the encoding is DPP or SDWA.
fn bare(name: &str) -> (&str, bool, bool) {
    let (dpp, sdwa) = (name.contains("_dpp"), name.ends_with("_sdwa"));
    let mut name = name;
    for ending in ["_dpp", "_sdwa", "_e32", "_e64"] {
        name = name.strip_suffix(ending).unwrap_or(name);
    }
    (name, dpp, sdwa)
}

impl Facts {
    /// The properties of an instruction from LLVM's text.
    pub fn of(line: &str) -> Facts {
        let mut halves = line.split("::");
        let mut facts = Facts::of_one(halves.next().unwrap_or_default());
        for half in halves {
            let other = Facts::of_one(half.trim());
            facts.dual = true;
            facts.reads.extend(other.reads);
            facts.writes.extend(other.writes);
            facts.literal |= other.literal;
            if other.unit == Unit::Transcendental {
                facts.unit = other.unit;
            }
        }
        facts
    }

    fn of_one(line: &str) -> Facts {
        let text = Text::parse(&line.replace("v_dual_", "v_"));
        let (name, dpp, sdwa) = bare(&text.name);
        let unit = unit(name);
        let to = destinations(unit, name, &text);
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        for (k, o) in text.operands.iter().enumerate() {
            match span(o) {
                Some(s) if k < to => writes.push(s),
                Some(s) if unit != Unit::Control => reads.push((s, k - to)),
                _ => {}
            }
        }
        let short = name.strip_prefix("v_").unwrap_or_default();
        let again = short.starts_with("fmac")
            || short.starts_with("mac_")
            || short.starts_with("pk_fmac")
            || short.starts_with("dot") && short.contains("c_")
            || matches!(name, "v_writelane_b32" | "s_fmac_f32")
            || name.starts_with("s_addk")
            || name.starts_with("s_mulk")
            || name.starts_with("s_cmovk");
        if again {
            reads.extend(writes.iter().map(|&w| (w, 2)));
        }
        if name.starts_with("v_swap") {
            reads.extend(writes.iter().map(|&w| (w, 0)));
        }
        if name.starts_with("v_cmpx") || name.contains("saveexec") {
            writes.push(scalar(EXEC));
        }
        if name.contains("saveexec") || unit.is_access() || name.contains("cbranch_exec") {
            reads.push((scalar(EXEC), usize::MAX));
        }
        if name.starts_with("v_div_fmas") || name.contains("cbranch_vcc") {
            reads.push((scalar(VCC), usize::MAX));
        }
        let selected = text
            .list("op_sel")
            .is_some_and(|list| list.len() == to + reads.len() && list.last() == Some(&1));
        let wide = ["dwordx3", "dwordx4", "b96", "b128"].iter().any(|w| name.ends_with(w));
        Facts {
            unit,
            dual: false,
            dpp,
            // LLVM writes inline constants in another notation.
            literal: text
                .operands
                .iter()
                .any(|o| ["0x", "lit"].iter().any(|w| o.trim_start_matches('-').starts_with(w))),
            selects: sdwa && text.value("dst_sel").is_some_and(|d| d != "DWORD")
                || !sdwa && selected,
            wide_store: unit == Unit::Memory && name.contains("_store") && wide,
            waits: waits(&text),
            states: match (name, text.operands.first().and_then(|o| integer(o))) {
                ("s_nop", Some(n)) => n as u64 + 1,
                _ => 1,
            },
            words: match unit {
                Unit::Branch => text.operands.first().and_then(|o| integer(o)).unwrap_or(0) as u16,
                _ => 0,
            },
            name: name.to_owned(),
            reads,
            writes,
        }
    }
}
