//! Vector instructions: operands fetched, computed lane by lane, results put where they belong. One shape for
//! all encodings: an instruction is one or two parts (a dual instruction's two, a packed one's halves); all
//! parts read before any of them writes.
//!
//! A result's bit is undefined if it changes with the undefined bits of the sources. That is tried: with all
//! of them 0, all 1 and some patterns between. So `and` with a mask, a shift or a byte selection take away
//! what is undefined, and arithmetic spreads it.

use crate::exchange::Exchange;
use crate::operand::{EXEC, Operand, Type, register, source};
use crate::ops::{Compute, Form, Op, find};
use crate::target::Target;
use crate::text::Text;
use crate::wave::{LANES, Wave, Why};
use half::f16;

/// 64 bits for every lane.
pub type Wide = [u64; LANES];

/// Where a source comes from and what is done to it.
#[derive(Clone, Debug)]
struct Fetch {
    operand: Operand,
    /// Two registers.
    wide: bool,
    /// A lane's bit.
    mask: bool,
    /// Which bits of it: the first, and how many.
    shift: u32,
    bits: u32,
    extend: bool,
    /// Half precision made single.
    widen: bool,
    keep: u64,
    turn: u64,
}

/// What becomes of a register's other bits.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Rest {
    Keep,
    Zero,
    Sign,
}

/// Where a result goes.
#[derive(Clone, Debug)]
struct Put {
    register: Option<u16>,
    shift: u32,
    bits: u32,
    rest: Rest,
    flags: Option<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Clamp {
    None,
    Unit(Type),
    Add,
    Subtract,
}

#[derive(Clone, Debug)]
struct Part {
    compute: Compute,
    fetch: Vec<Fetch>,
    put: Put,
    /// A comparison: undefined as soon as a source is.
    compare: bool,
    clamp: Clamp,
    scale: f32,
}

/// A vector instruction.
#[derive(Clone, Debug)]
pub struct Vector {
    parts: Vec<Part>,
    exchange: Option<Exchange>,
}

/// 16-bit instructions of gfx9 that clear the upper half of their destination; all other ones, and all of
/// RDNA, keep it.
fn clears_upper(target: &Target, name: &str) -> bool {
    const KEEP: [&str; 4] = ["v_fma_f16", "v_mad_u16", "v_mad_f16", "v_fmac_f16"];
    target.generation == 9 && !KEEP.contains(&name) && !name.contains("mix")
}

/// The name without its encoding, and which encoding.
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
    /// Decodes one that is known by its arithmetic, or answers that it is not.
    pub fn decode(target: &Target, line: &str) -> Result<Option<Vector>, String> {
        if let Some((x, y)) = line.split_once("::") {
            let mut parts = Vec::new();
            for half in [x, y] {
                let half = half.replace("v_dual_", "v_");
                let Some(v) = Vector::decode(target, &half)? else { return Ok(None) };
                parts.extend(v.parts);
            }
            return Ok(Some(Vector { parts, exchange: None }));
        }
        let text = Text::parse(line);
        let (name, dpp, sdwa) = base(&text.name);
        let Some(op) = find(name) else { return Ok(None) };
        let exchange = if dpp { Some(Exchange::decode(target, &text)?) } else { None };
        Vector::assemble(target, &text, name, op, sdwa).map(|parts| Some(Vector { parts, exchange }))
    }

    fn assemble(target: &Target, text: &Text, name: &str, mut op: Op, sdwa: bool) -> Result<Vec<Part>, String> {
        if name == "v_dot4_i32_iu8" {
            match text.list("neg_lo").as_deref() {
                Some([1, 1, 0]) => {}
                None => op.compute = find("v_dot4_u32_u8").ok_or("no dot product of unsigned bytes")?.compute,
                Some(other) => return Err(format!("signs {other:?} of a dot product")),
            }
        }
        let mut operands: Vec<&str> = text.operands.iter().map(String::as_str).collect();
        let mut destination = None;
        let mut flags = None;
        let taken = |operands: &mut Vec<&str>| -> Result<Operand, String> {
            let o = if operands.is_empty() { return Err("no destination".into()) } else { operands.remove(0) };
            register(o).map(|(r, _)| r).ok_or_else(|| format!("destination {o} is unknown"))
        };
        let scalar = |o: Operand| match o {
            Operand::Scalar(n) => Ok(n),
            _ => Err("flags that go nowhere".to_string()),
        };
        match op.form {
            Form::Compare => flags = Some(scalar(taken(&mut operands)?)?),
            Form::CompareExec => {
                if operands.len() > op.sources.len() {
                    return Err("a comparison into EXEC and a mask".into());
                }
                flags = Some(EXEC);
            }
            _ => {
                destination = Some(match taken(&mut operands)? {
                    Operand::Vector(n) => n,
                    _ => return Err("a destination that is no vector register".into()),
                });
                if op.form == Form::Flagged {
                    flags = Some(scalar(taken(&mut operands)?)?);
                }
            }
        }
        let last = text.operands.first().cloned().unwrap_or_default();
        let mut types = op.sources.to_vec();
        if op.form == Form::Accumulate {
            operands.push(&last);
            types.push(op.out);
        }
        if types.len() == operands.len() + 1 && types.last() == Some(&Type::Mask) {
            operands.push("vcc");
        }
        if name.starts_with("v_mbcnt") {
            types.push(Type::B32);
        } else if types.len() != operands.len() {
            return Err(format!("{} sources, not {}", operands.len(), types.len()));
        }
        let selected = text.list("op_sel").unwrap_or_default();
        let high_default = u32::from(op.form != Form::Mix);
        let selected_high = text.list("op_sel_hi").unwrap_or_else(|| vec![high_default; 4]);
        let mut fetch = Vec::new();
        for (k, &ty) in types.iter().enumerate() {
            let Some(&operand) = operands.get(k) else {
                fetch.push(Fetch::new(Operand::Lane, Type::B32));
                continue;
            };
            let at = |list: &[u32]| list.get(k).copied().unwrap_or(0);
            let mixed = op.form == Form::Mix && at(&selected_high) == 1;
            let s = source(operand, if mixed { Type::F16 } else { ty })?;
            let mut f = Fetch::new(s.operand, if mixed { Type::F16 } else { ty });
            f.widen = mixed;
            f.extend = s.extend;
            if ty.bits() == 16 || mixed {
                f.shift = 16 * at(&selected);
            }
            if sdwa && let Some(which) = text.value(&format!("src{k}_sel")) {
                let (shift, bits) = selection(which)?;
                f.shift = shift;
                f.bits = bits.min(ty.bits());
            }
            // The sign is that of the number as it is computed with: single precision where halves are made
            // single.
            let ty = if mixed { Type::F32 } else { ty };
            let float = ty.is_float() || name.starts_with("v_cndmask");
            let sign = 1u64 << (ty.bits() - 1);
            if (s.negative || s.absolute) && !float {
                return Err(format!("a sign of {operand}, which is no real"));
            }
            f.keep = if s.absolute { !sign } else { u64::MAX };
            f.turn = if s.negative { sign } else { 0 };
            fetch.push(f);
        }
        let mut put = Put { register: destination, shift: 0, bits: op.out.bits(), rest: Rest::Keep, flags };
        if op.out.bits() == 16 && op.form != Form::Halves {
            let upper = selected.get(types.len()).is_some_and(|&s| s == 1) || name.contains("mixhi");
            put.shift = if upper { 16 } else { 0 };
            if !upper && clears_upper(target, name) {
                put.rest = Rest::Zero;
            }
        }
        if sdwa && destination.is_some() {
            (put.shift, put.bits) = selection(text.value("dst_sel").unwrap_or("DWORD"))?;
            put.rest = match text.value("dst_unused") {
                Some("UNUSED_PRESERVE") => Rest::Keep,
                Some("UNUSED_SEXT") => Rest::Sign,
                _ => Rest::Zero,
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
        let known =
            ["op_sel", "op_sel_hi", "neg_lo", "neg_hi", "clamp", "mul", "div", "src0_sel", "src1_sel", "dst_sel"];
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
        ];
        for m in &text.modifiers {
            let key = m.split(':').next().unwrap_or_default();
            if !known.contains(&key) && !also.contains(&key) {
                return Err(format!("modifier {m} is unknown"));
            }
        }
        let compare = matches!(op.form, Form::Compare | Form::CompareExec);
        let part = Part { compute: op.compute, fetch, put, compare, clamp, scale };
        match op.form {
            Form::Halves | Form::Pairs => part.twice(name, text, op.form, &selected, &selected_high),
            _ => Ok(vec![part]),
        }
    }

    /// Computes, then writes.
    pub fn run(&self, wave: &mut Wave) -> Result<(), Why> {
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

impl Fetch {
    fn new(operand: Operand, ty: Type) -> Fetch {
        Fetch {
            operand,
            wide: ty.bits() == 64,
            mask: ty == Type::Mask,
            shift: 0,
            bits: if ty == Type::Mask { 64 } else { ty.bits() },
            extend: false,
            widen: false,
            keep: u64::MAX,
            turn: 0,
        }
    }

    /// Takes the bits that are meant out of a register's.
    fn take(&self, x: u64) -> u64 {
        let mut x = x >> self.shift;
        if self.bits < 64 {
            x &= (1 << self.bits) - 1;
            if self.extend && x >> (self.bits - 1) & 1 == 1 {
                x |= u64::MAX << self.bits & 0xffff_ffff;
            }
        }
        x
    }

    /// Signs, and half precision made single.
    fn finish(&self, mut x: u64) -> u64 {
        if self.widen {
            x = u64::from(f16::from_bits(x as u16).to_f32().to_bits());
        }
        x & self.keep ^ self.turn
    }

    /// All lanes' values and undefined bits, before signs; and the lanes with such bits.
    fn read(&self, wave: &Wave, value: &mut Wide, bad: &mut Wide) -> Result<u64, Why> {
        match self.operand {
            Operand::Vector(n) => {
                let low = wave.register(n);
                let mut any = low.any;
                if self.wide {
                    let high = wave.register(n + 1);
                    any |= high.any;
                    for l in 0..LANES {
                        value[l] = u64::from(low.value[l]) | u64::from(high.value[l]) << 32;
                        bad[l] = u64::from(low.bad[l]) | u64::from(high.bad[l]) << 32;
                    }
                } else {
                    for l in 0..LANES {
                        value[l] = u64::from(low.value[l]);
                        bad[l] = u64::from(low.bad[l]);
                    }
                }
                if any != 0 && (self.shift != 0 || self.bits < 32) {
                    any = 0;
                    for (l, b) in bad.iter_mut().enumerate() {
                        *b = self.take(*b);
                        any |= u64::from(*b != 0) << l;
                    }
                }
                if self.shift != 0 || self.bits < 32 {
                    value.iter_mut().for_each(|x| *x = self.take(*x));
                }
                Ok(any)
            }
            Operand::Lane => {
                value.iter_mut().enumerate().for_each(|(l, x)| *x = l as u64);
                Ok(0)
            }
            Operand::Scalar(n) if self.mask => {
                let (m, b) = wave.mask(n);
                for l in 0..LANES {
                    value[l] = m >> l & 1;
                    bad[l] = b >> l & 1;
                }
                Ok(b)
            }
            _ => {
                let (x, b) = wave.read_scalar(self.operand, self.wide)?;
                value.fill(self.take(x));
                let b = self.take(b);
                if b != 0 {
                    bad.fill(b);
                }
                Ok(if b != 0 { u64::MAX } else { 0 })
            }
        }
    }
}

/// What a part computed.
struct Out {
    value: Wide,
    bad: Wide,
    flags: u64,
    flags_bad: u64,
}

/// What undefined bits are tried with, turned differently for every source.
const TRIES: [u64; 8] = [
    0,
    u64::MAX,
    0x5555_5555_5555_5555,
    0xaaaa_aaaa_aaaa_aaaa,
    0x0123_4567_89ab_cdef,
    0xf0e1_d2c3_b4a5_9687,
    0x3c00_3f80_4000_c000,
    0x9e37_79b9_7f4a_7c15,
];

impl Part {
    /// Both halves, or both registers of pairs.
    fn twice(
        self,
        name: &str,
        text: &Text,
        form: Form,
        selected: &[u32],
        selected_high: &[u32],
    ) -> Result<Vec<Part>, String> {
        let mut parts = Vec::new();
        for half in 0..2u16 {
            let mut part = self.clone();
            let signs = text.list(if half == 0 { "neg_lo" } else { "neg_hi" }).unwrap_or_default();
            let select = if half == 0 { selected } else { selected_high };
            for (k, f) in part.fetch.iter_mut().enumerate() {
                let mut upper = select.get(k).copied().unwrap_or(0);
                if name == "v_pk_mov_b32" {
                    upper = selected.get(k).copied().unwrap_or(0);
                }
                if signs.get(k) == Some(&1) {
                    f.turn ^= 1 << (f.bits - 1);
                }
                match (form, f.operand) {
                    (Form::Halves, _) => f.shift = 16 * upper,
                    (_, Operand::Vector(n)) => f.operand = Operand::Vector(n + upper as u16),
                    (_, Operand::Scalar(n)) => f.operand = Operand::Scalar(n + upper as u16),
                    _ => {}
                }
            }
            if name == "v_pk_mov_b32" {
                part.fetch.swap(0, usize::from(half));
            }
            if form == Form::Halves {
                part.put.shift = 16 * u32::from(half);
            } else {
                part.put.register = part.put.register.map(|r| r + half);
            }
            parts.push(part);
        }
        Ok(parts)
    }

    fn finish(&self, x: u128) -> u128 {
        let flag = x >> 64 & 1 == 1;
        let mut x = x;
        if self.scale != 1.0 {
            x = x & !0xffff_ffff | u128::from((f32::from_bits(x as u32) * self.scale).to_bits());
        }
        match self.clamp {
            Clamp::None => x,
            Clamp::Add if flag => 0xffff_ffff,
            Clamp::Subtract if flag => 0,
            Clamp::Add | Clamp::Subtract => x,
            Clamp::Unit(Type::F16) => {
                let h = f16::from_bits(x as u16).to_f32();
                u128::from(f16::from_f32(if h.is_nan() { 0.0 } else { h.clamp(0.0, 1.0) }).to_bits())
            }
            Clamp::Unit(_) => {
                let v = f32::from_bits(x as u32);
                u128::from((if v.is_nan() { 0.0 } else { v.clamp(0.0, 1.0) }).to_bits())
            }
        }
    }

    fn run(&self, wave: &Wave, exec: u64, write: u64, exchange: Option<&Exchange>) -> Result<Out, Why> {
        let mut values = [[0u64; LANES]; 4];
        let mut bads = [[0u64; LANES]; 4];
        let mut any = 0;
        for (k, f) in self.fetch.iter().enumerate() {
            let mut a = f.read(wave, &mut values[k], &mut bads[k])?;
            if k == 0
                && let Some(e) = exchange
            {
                a = e.apply(exec, &mut values[k], &mut bads[k]);
            }
            any |= a;
            if f.widen || f.turn != 0 || f.keep != u64::MAX {
                values[k].iter_mut().for_each(|x| *x = f.finish(*x));
            }
        }
        let mut out = Out { value: [0; LANES], bad: [0; LANES], flags: 0, flags_bad: 0 };
        let mut todo = write;
        while todo != 0 {
            let l = todo.trailing_zeros() as usize;
            todo &= todo - 1;
            let mut s = [values[0][l], values[1][l], values[2][l], values[3][l]];
            let x = self.finish((self.compute)(&s));
            out.value[l] = x as u64;
            out.flags |= ((x >> 64) as u64 & 1) << l;
            if any >> l & 1 == 0 {
                continue;
            }
            if self.compare {
                out.flags_bad |= 1 << l;
                continue;
            }
            let mut first = None;
            let mut differs = 0u128;
            for (t, pattern) in TRIES.iter().enumerate() {
                for (k, f) in self.fetch.iter().enumerate() {
                    let bad = bads[k][l];
                    if bad != 0 {
                        // What was fetched is taken anew: signs come after the undefined bits.
                        let raw = if f.widen { self.raw(wave, k, l) } else { values[k][l] };
                        let tried = raw & !bad | pattern.rotate_left((7 * k + t) as u32) & bad;
                        s[k] = if f.widen { f.finish(tried) } else { tried };
                    }
                }
                let x = self.finish((self.compute)(&s));
                differs |= x ^ *first.get_or_insert(x);
            }
            out.bad[l] = differs as u64;
            out.flags_bad |= ((differs >> 64) as u64 & 1) << l;
        }
        Ok(out)
    }

    /// A half as it stands in its register.
    fn raw(&self, wave: &Wave, k: usize, lane: usize) -> u64 {
        let (mut value, mut bad) = ([0; LANES], [0; LANES]);
        let _ = self.fetch[k].read(wave, &mut value, &mut bad);
        value[lane]
    }

    fn store(&self, wave: &mut Wave, write: u64, out: &Out) -> Result<(), Why> {
        let put = &self.put;
        if let Some(r) = put.register {
            let bits = put.bits.min(32);
            let mask = if bits == 32 { u32::MAX } else { ((1u32 << bits) - 1) << put.shift };
            let register = wave.register_mut(r);
            let mut todo = write;
            while todo != 0 {
                let l = todo.trailing_zeros() as usize;
                todo &= todo - 1;
                let (x, b) = (out.value[l] as u32, out.bad[l] as u32);
                if bits == 32 {
                    register.value[l] = x;
                    register.bad[l] = b;
                } else {
                    let (old, old_bad) = match put.rest {
                        Rest::Keep => (register.value[l], register.bad[l]),
                        Rest::Zero => (0, 0),
                        Rest::Sign => {
                            let sign = x >> (bits - 1) & 1 == 1;
                            (if sign { u32::MAX << put.shift } else { 0 }, 0)
                        }
                    };
                    register.value[l] = old & !mask | x << put.shift & mask;
                    register.bad[l] = old_bad & !mask | b << put.shift & mask;
                }
                register.any = register.any & !(1 << l) | u64::from(register.bad[l] != 0) << l;
            }
            if put.bits == 64 {
                let register = wave.register_mut(r + 1);
                for l in (0..LANES).filter(|l| write >> l & 1 == 1) {
                    register.set(l, (out.value[l] >> 32) as u32, (out.bad[l] >> 32) as u32);
                }
            }
        }
        if let Some(n) = put.flags {
            wave.set_mask(n, out.flags, out.flags_bad);
            if n == EXEC {
                wave.check_exec()?;
            }
        }
        Ok(())
    }
}
