//! Operands: registers by number, constants by the type of the instruction.

use crate::text::integer;
use half::f16;

/// gfx8, gfx9: the address of scratch memory for instructions that may access other memory too.
pub const FLAT_SCRATCH: u16 = 102;
/// The low half of VCC, as a scalar register.
pub const VCC: u16 = 106;
/// The first register of the trap handler. gfx12 passes the block number there.
pub const TTMP: u16 = 108;
/// NULL: writes are dropped, reads give 0.
pub const NULL: u16 = 124;
/// M0.
pub const M0: u16 = 125;
/// The low half of EXEC.
pub const EXEC: u16 = 126;
/// Number of scalar registers, including the special ones.
pub const SCALARS: usize = 128;
/// The upper half of generic addresses of LDS, and of scratch memory.
pub const SHARED_APERTURE: u32 = 0x0100_0000;
/// See [`SHARED_APERTURE`].
pub const SCRATCH_APERTURE: u32 = 0x0200_0000;
/// The number of the first accumulation register among the vector registers.
pub const ACC: u16 = 256;

/// An operand of an instruction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Operand {
    /// The first of some vector registers. Numbers from [`ACC`] on are accumulation registers.
    Vector(u16),
    /// The first of some scalar registers.
    Scalar(u16),
    /// A constant, as the bits that the instruction reads.
    Constant(u64),
    /// The number of the lane.
    Lane,
    /// SCC.
    Scc,
}

/// The type of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// 32 bits.
    B32,
    /// f32.
    F32,
    /// 16 bits.
    B16,
    /// f16.
    F16,
    /// 64 bits.
    B64,
    /// f64.
    F64,
    /// Two f32 in two registers.
    Pair,
    /// One bit for each lane.
    Mask,
}

impl Type {
    /// Number of bits of the type.
    pub fn bits(self) -> u32 {
        match self {
            Type::B16 | Type::F16 => 16,
            Type::B64 | Type::F64 | Type::Pair => 64,
            Type::B32 | Type::F32 => 32,
            Type::Mask => 1,
        }
    }
    /// Whether the modifiers `-x` and `|x|` are allowed.
    pub fn is_float(self) -> bool {
        matches!(self, Type::F16 | Type::F32 | Type::F64)
    }
}

/// A source operand with its modifiers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Source {
    /// The operand.
    pub operand: Operand,
    /// `-x`.
    pub negative: bool,
    /// `|x|`.
    pub absolute: bool,
    /// `sext(x)`: SDWA's sign extension.
    pub extend: bool,
}

/// Parses a source with its modifiers `-x` and `|x|`.
pub fn source(text: &str, ty: Type) -> Result<Source, String> {
    let mut s = Source { operand: Operand::Lane, negative: false, absolute: false, extend: false };
    let mut inner = text.trim();
    if let Some(rest) = inner.strip_prefix("sext(").and_then(|r| r.strip_suffix(')')) {
        (s.extend, inner) = (true, rest);
    }
    if let Some(rest) = inner.strip_prefix("neg(").and_then(|r| r.strip_suffix(')')) {
        (s.negative, inner) = (true, rest);
    } else if let Some(rest) =
        inner.strip_prefix('-').filter(|r| !r.starts_with(|c: char| c.is_ascii_digit()))
    {
        (s.negative, inner) = (true, rest);
    }
    if let Some(rest) = inner.strip_prefix('|').and_then(|r| r.strip_suffix('|')) {
        (s.absolute, inner) = (true, rest);
    }
    // Newer LLVM versions mark a constant that is stored as a literal although it would fit into
    // the instruction.
    let own = inner.strip_prefix("lit(").or(inner.strip_prefix("lit64("));
    inner = own.and_then(|r| r.strip_suffix(')')).unwrap_or(inner);
    s.operand = match register(inner) {
        Some((operand, _)) => operand,
        None => Operand::Constant(
            constant(inner, ty).ok_or_else(|| format!("operand {text:?} is unknown"))?,
        ),
    };
    Ok(s)
}

/// A register or a range: the first register, and the count.
pub fn register(text: &str) -> Option<(Operand, u16)> {
    let named = |first, count| Some((Operand::Scalar(first), count));
    match text {
        "vcc" => return named(VCC, 2),
        "vcc_lo" => return named(VCC, 1),
        "vcc_hi" => return named(VCC + 1, 1),
        "exec" => return named(EXEC, 2),
        "exec_lo" => return named(EXEC, 1),
        "exec_hi" => return named(EXEC + 1, 1),
        "m0" => return named(M0, 1),
        "flat_scratch" => return named(FLAT_SCRATCH, 2),
        "flat_scratch_lo" => return named(FLAT_SCRATCH, 1),
        "flat_scratch_hi" => return named(FLAT_SCRATCH + 1, 1),
        "null" => return named(NULL, 1),
        "scc" | "src_scc" => return Some((Operand::Scc, 1)),
        _ => {}
    }
    let (kind, rest) = match text.strip_prefix("ttmp") {
        Some(rest) => ('t', rest),
        None => (text.chars().next().filter(|c| "vsa".contains(*c))?, text.get(1..)?),
    };
    let (first, last): (u16, u16) = match rest.strip_prefix('[').and_then(|r| r.strip_suffix(']')) {
        Some(range) => {
            let (a, b) = range.split_once(':')?;
            (a.parse().ok()?, b.parse().ok()?)
        }
        None => rest.parse().ok().map(|n| (n, n))?,
    };
    let operand = match kind {
        'v' => Operand::Vector(first),
        'a' => Operand::Vector(ACC + first),
        't' => Operand::Scalar(TTMP + first),
        _ => Operand::Scalar(first),
    };
    Some((operand, last.checked_sub(first)? + 1))
}

/// The bits of a constant: `1.0` is a value in the operand's type, `1` is a bit pattern, and the
/// literal of an f64 is the upper half of the value.
pub fn constant(text: &str, ty: Type) -> Option<u64> {
    let aperture = match text {
        "src_shared_base" => Some(SHARED_APERTURE),
        "src_private_base" => Some(SCRATCH_APERTURE),
        _ => None,
    };
    if let Some(upper) = aperture {
        return (ty == Type::B64).then_some(u64::from(upper) << 32);
    }
    if let Some(n) = integer(text) {
        return Some(match ty {
            Type::F64 if text.contains("0x") && n as u64 >> 32 == 0 => (n as u64) << 32,
            Type::B64 | Type::F64 | Type::Pair => n as u64,
            _ => u64::from(n as u32),
        });
    }
    let x: f64 = text.parse().ok()?;
    Some(match ty {
        Type::F64 | Type::B64 => x.to_bits(),
        Type::F16 | Type::B16 => u64::from(f16::from_f64(x).to_bits()),
        _ => u64::from((x as f32).to_bits()),
    })
}
