//! The interpreter: runs a program over a tile of consecutive positions. Each step is one pass over
//! a tile, which stays in the L1 and L2 caches, and each pass is a loop that the compiler
//! vectorises.

use super::elem::{Bits, Elem, Real};
use super::typed::typed;
use crate::dtype::DType;
use crate::element::{BinOp, UnOp};
use crate::error::{Error, Result};
use crate::program::{Instr, Map, Program, Reg, Step};
use bytemuck::{Pod, cast_slice, cast_slice_mut};

/// Positions in a tile.
pub(crate) const TILE: usize = 1024;

/// The registers of one thread.
pub(crate) struct Machine<'a> {
    program: &'a Program,
    /// The slot of each step's value.
    slot: Vec<usize>,
    slots: Vec<Vec<u64>>,
}

/// The first `n` values of a register.
fn of<T: Pod>(words: &[u64], n: usize) -> &[T] {
    cast_slice::<u64, T>(words).get(..n).unwrap_or_default()
}

fn of_mut<T: Pod>(words: &mut [u64], n: usize) -> &mut [T] {
    cast_slice_mut::<u64, T>(words).get_mut(..n).unwrap_or_default()
}

impl<'a> Machine<'a> {
    /// Registers for a program. A slot is reused after the last step that reads it.
    pub(crate) fn new(program: &'a Program) -> Machine<'a> {
        let (kept, folded) = program.sizes();
        let tile = TILE.min(kept.saturating_mul(folded)).max(1);
        let mut last = vec![0usize; program.steps.len()];
        for (at, step) in program.steps.iter().enumerate() {
            for reg in inputs(&step.instr).into_iter().flatten() {
                if let Some(l) = last.get_mut(reg) {
                    *l = at;
                }
            }
        }
        if let Some(l) = last.get_mut(program.out) {
            *l = usize::MAX;
        }
        let (mut slot, mut slots, mut free) = (Vec::new(), Vec::new(), Vec::new());
        for (at, step) in program.steps.iter().enumerate() {
            // A constant is filled in once, so its slot is never shared.
            let again = if is_constant(&step.instr) { None } else { free.pop() };
            let own = again.unwrap_or_else(|| {
                slots.push(vec![0u64; tile]);
                slots.len() - 1
            });
            slot.push(own);
            let mut ended: Vec<usize> = inputs(&step.instr)
                .into_iter()
                .flatten()
                .filter(|reg| last.get(*reg) == Some(&at))
                .filter(|reg| program.steps.get(*reg).is_some_and(|s| !is_constant(&s.instr)))
                .filter_map(|reg| slot.get(reg).copied())
                .collect();
            ended.sort_unstable();
            ended.dedup();
            free.extend(ended);
        }
        let mut machine = Machine { program, slot, slots };
        for (at, step) in program.steps.iter().enumerate() {
            if let Instr::Constant(bits) = step.instr {
                let to = machine.slot.get(at).and_then(|s| machine.slots.get_mut(*s));
                if let Some(to) = to {
                    typed!(step.dtype, T => {
                        let value = of::<T>(&[bits], 1).first().copied().unwrap_or(T::ZERO);
                        of_mut::<T>(to, tile).fill(value);
                    });
                }
            }
        }
        machine
    }

    /// Computes the positions `start..start + n` of the index space; `n` is at most [`TILE`].
    pub(crate) fn run(&mut self, start: usize, n: usize) -> Result<()> {
        for at in 0..self.program.steps.len() {
            self.step(at, start, n)?;
        }
        Ok(())
    }

    /// The values of the last run.
    pub(crate) fn values<T: Pod>(&self, n: usize) -> &[T] {
        of(self.words(self.program.out), n)
    }

    fn words(&self, reg: Reg) -> &[u64] {
        self.slot.get(reg).and_then(|s| self.slots.get(*s)).map_or(&[], Vec::as_slice)
    }

    fn step(&mut self, at: usize, start: usize, n: usize) -> Result<()> {
        let program = self.program;
        let (Some(step), Some(&own)) = (program.steps.get(at), self.slot.get(at)) else {
            return Ok(());
        };
        if is_constant(&step.instr) {
            return Ok(());
        }
        let mut to = self.slots.get_mut(own).map(std::mem::take).unwrap_or_default();
        let done = self.fill(step, &mut to, start, n);
        if matches!(step.dtype, DType::F16 | DType::BF16) {
            round(step.dtype, of_mut(&mut to, n));
        }
        if let Some(slot) = self.slots.get_mut(own) {
            *slot = to;
        }
        done
    }

    fn fill(&self, step: &Step, to: &mut [u64], start: usize, n: usize) -> Result<()> {
        let program = self.program;
        let map = |id: usize| program.maps.get(id).ok_or(Error::Inside("no such map"));
        match step.instr {
            Instr::Constant(_) => {}
            Instr::Given(_) | Instr::Fold(..) => {
                return Err(Error::Inside("a CPU group contains a value of a GPU kernel"));
            }
            Instr::Load(leaf, id) => {
                let leaf = program.leaves.get(leaf).ok_or(Error::Inside("no such buffer"))?;
                let (bytes, map) = (leaf.buffer.host()?, map(id)?);
                match leaf.dtype {
                    DType::F16 => {
                        let from = cast_slice::<u8, u16>(bytes);
                        let read = |h: u16| half::f16::from_bits(h).to_f32();
                        load(from, of_mut::<f32>(to, n), &program.shape, map, start, read)
                    }
                    DType::BF16 => {
                        let from = cast_slice::<u8, u16>(bytes);
                        let read = |h: u16| half::bf16::from_bits(h).to_f32();
                        load(from, of_mut::<f32>(to, n), &program.shape, map, start, read)
                    }
                    dtype => typed!(dtype, T => {
                        let from = cast_slice::<u8, T>(bytes);
                        load(from, of_mut::<T>(to, n), &program.shape, map, start, |v: T| v)
                    }),
                }?;
            }
            Instr::Gather { leaf, map: id, index, stride, size, axis } => {
                let leaf = program.leaves.get(leaf).ok_or(Error::Inside("no such buffer"))?;
                let (bytes, map) = (leaf.buffer.host()?, map(id)?);
                let mut places = [0i64; TILE];
                let places = places.get_mut(..n).unwrap_or_default();
                place(places, &program.shape, map, start);
                let index = of::<i64>(self.words(index), n);
                for (p, &i) in places.iter_mut().zip(index) {
                    let from_front = if i < 0 { i + size } else { i };
                    if from_front < 0 || from_front >= size {
                        let size = size as usize;
                        return Err(Error::Index { op: "take", index: i, axis, size });
                    }
                    *p += from_front * stride;
                }
                match leaf.dtype {
                    DType::F16 => {
                        let from = cast_slice::<u8, u16>(bytes);
                        let read = |h: u16| half::f16::from_bits(h).to_f32();
                        pick(from, of_mut::<f32>(to, n), places, read)
                    }
                    DType::BF16 => {
                        let from = cast_slice::<u8, u16>(bytes);
                        let read = |h: u16| half::bf16::from_bits(h).to_f32();
                        pick(from, of_mut::<f32>(to, n), places, read)
                    }
                    dtype => typed!(dtype, T => {
                        pick(cast_slice::<u8, T>(bytes), of_mut::<T>(to, n), places, |v: T| v)
                    }),
                }?;
            }
            Instr::Index(id) => place(of_mut::<i64>(to, n), &program.shape, map(id)?, start),
            Instr::Random { key, first, map: id } => {
                let mut places = [0i64; TILE];
                let places = places.get_mut(..n).unwrap_or_default();
                place(places, &program.shape, map(id)?, start);
                for (v, p) in of_mut::<u32>(to, n).iter_mut().zip(places) {
                    *v = crate::random::bits(key, first.wrapping_add(*p as u64));
                }
            }
            Instr::Unary(op, x) => {
                let (dtype, x) = (program.dtype_of(x), self.words(x));
                unary(op, dtype, x, to, n);
            }
            Instr::Binary(op, a, b) => {
                let dtype = program.dtype_of(a);
                binary(op, dtype, self.words(a), self.words(b), to, n);
            }
            Instr::Where(c, a, b) => {
                let c = of::<u8>(self.words(c), n);
                typed!(step.dtype, T => {
                    let (a, b) = (of::<T>(self.words(a), n), of::<T>(self.words(b), n));
                    let out = of_mut::<T>(to, n).iter_mut().zip(c).zip(a.iter().zip(b));
                    for ((o, &c), (&a, &b)) in out {
                        *o = if c != 0 { a } else { b };
                    }
                });
            }
            Instr::Cast(x) => {
                super::cast::cast(program.dtype_of(x), step.dtype, self.words(x), to, n);
            }
        }
        Ok(())
    }
}

fn is_constant(instr: &Instr) -> bool {
    matches!(instr, Instr::Constant(_))
}

fn inputs(instr: &Instr) -> [Option<Reg>; 3] {
    match *instr {
        Instr::Unary(_, x) | Instr::Cast(x) | Instr::Gather { index: x, .. } => {
            [Some(x), None, None]
        }
        Instr::Binary(_, a, b) => [Some(a), Some(b), None],
        Instr::Where(c, a, b) => [Some(c), Some(a), Some(b)],
        _ => [None; 3],
    }
}

/// Rounds to f16 or bf16.
fn round(dtype: DType, values: &mut [f32]) {
    if dtype == DType::F16 {
        values.iter_mut().for_each(|v| *v = half::f16::from_f32(*v).to_f32());
    } else {
        values.iter_mut().for_each(|v| *v = half::bf16::from_f32(*v).to_f32());
    }
}

/// Visits `n` consecutive positions from `start` on: for each run along the last axis the offset,
/// the length and the stride.
fn walk(shape: &[usize], map: &Map, start: usize, n: usize, mut run: impl FnMut(i64, i64, usize)) {
    let Some((&inner, outer)) = shape.split_last() else {
        return run(map.offset, 0, n);
    };
    let step = map.strides.last().copied().unwrap_or(0);
    let mut index = vec![0usize; outer.len()];
    let (mut first, mut rest) = (start % inner.max(1), start / inner.max(1));
    for (i, &size) in index.iter_mut().zip(outer).rev() {
        *i = rest % size.max(1);
        rest /= size.max(1);
    }
    let mut base = map.offset;
    base += index.iter().zip(&map.strides).map(|(&i, s)| i as i64 * s).sum::<i64>();
    let mut left = n;
    while left > 0 {
        let now = left.min(inner - first);
        run(base + first as i64 * step, step, now);
        left -= now;
        first = 0;
        for ((i, &size), s) in index.iter_mut().zip(outer).zip(&map.strides).rev() {
            *i += 1;
            base += s;
            if *i < size {
                break;
            }
            base -= s * size as i64;
            *i = 0;
        }
    }
}

fn place(to: &mut [i64], shape: &[usize], map: &Map, start: usize) {
    let (n, mut at) = (to.len(), 0);
    walk(shape, map, start, n, |from, step, count| {
        let part = to.get_mut(at..at + count).unwrap_or_default();
        part.iter_mut().enumerate().for_each(|(i, v)| *v = from + i as i64 * step);
        at += count;
    });
}

fn load<S: Copy, T>(
    from: &[S],
    to: &mut [T],
    shape: &[usize],
    map: &Map,
    start: usize,
    read: impl Fn(S) -> T,
) -> Result<()>
where
    T: Copy,
{
    let (n, mut at, mut inside) = (to.len(), 0, true);
    walk(shape, map, start, n, |place, step, count| {
        let part = to.get_mut(at..at + count).unwrap_or_default();
        at += count;
        let first = place as usize;
        if step == 1 {
            match from.get(first..first + count) {
                Some(from) => part.iter_mut().zip(from).for_each(|(t, s)| *t = read(*s)),
                None => inside = false,
            }
        } else if step == 0 {
            match from.get(first) {
                Some(v) => part.fill(read(*v)),
                None => inside = false,
            }
        } else {
            for (i, t) in part.iter_mut().enumerate() {
                match from.get((place + i as i64 * step) as usize) {
                    Some(v) => *t = read(*v),
                    None => inside = false,
                }
            }
        }
    });
    if inside { Ok(()) } else { Err(Error::Inside("a read was outside its buffer")) }
}

fn pick<S: Copy, T>(from: &[S], to: &mut [T], places: &[i64], read: impl Fn(S) -> T) -> Result<()> {
    for (t, p) in to.iter_mut().zip(places) {
        let v =
            from.get(*p as usize).ok_or(Error::Inside("a gather index was outside its buffer"))?;
        *t = read(*v);
    }
    Ok(())
}

#[inline(always)]
fn map1<S: Pod, T: Pod>(x: &[u64], to: &mut [u64], n: usize, f: impl Fn(S) -> T) {
    of_mut::<T>(to, n).iter_mut().zip(of::<S>(x, n)).for_each(|(o, &x)| *o = f(x));
}

#[inline(always)]
fn map2<S: Pod, T: Pod>(a: &[u64], b: &[u64], to: &mut [u64], n: usize, f: impl Fn(S, S) -> T) {
    let pairs = of::<S>(a, n).iter().zip(of::<S>(b, n));
    of_mut::<T>(to, n).iter_mut().zip(pairs).for_each(|(o, (&a, &b))| *o = f(a, b));
}

fn unary(op: UnOp, dtype: DType, x: &[u64], to: &mut [u64], n: usize) {
    match op {
        UnOp::Neg => typed!(dtype, T => map1(x, to, n, <T as Elem>::neg)),
        UnOp::Abs => typed!(dtype, T => map1(x, to, n, <T as Elem>::abs)),
        UnOp::Sign => typed!(dtype, T => map1(x, to, n, <T as Elem>::sign)),
        UnOp::IsNan => typed!(dtype, T => map1(x, to, n, |v: T| u8::from(Elem::is_nan(v)))),
        UnOp::Not if dtype == DType::Bool => map1(x, to, n, |v: u8| v ^ 1),
        UnOp::Not => ints(dtype, Ints { x, to, n }),
        _ => match dtype {
            DType::F64 => real::<f64>(op, x, to, n),
            DType::F32 | DType::F16 | DType::BF16 => real::<f32>(op, x, to, n),
            // Rounding an integer changes nothing, and every integer is finite.
            _ if op == UnOp::IsFinite => of_mut::<u8>(to, n).fill(1),
            _ if op.tests() => of_mut::<u8>(to, n).fill(0),
            _ => typed!(dtype, T => map1(x, to, n, |v: T| v)),
        },
    }
}

struct Ints<'a> {
    x: &'a [u64],
    to: &'a mut [u64],
    n: usize,
}

fn ints(dtype: DType, i: Ints<'_>) {
    let Ints { x, to, n } = i;
    match dtype {
        DType::I8 => map1(x, to, n, <i8 as Bits>::not),
        DType::I16 => map1(x, to, n, <i16 as Bits>::not),
        DType::I32 => map1(x, to, n, <i32 as Bits>::not),
        DType::I64 => map1(x, to, n, <i64 as Bits>::not),
        DType::U8 => map1(x, to, n, <u8 as Bits>::not),
        DType::U16 => map1(x, to, n, <u16 as Bits>::not),
        DType::U32 => map1(x, to, n, <u32 as Bits>::not),
        _ => map1(x, to, n, <u64 as Bits>::not),
    }
}

fn real<T: Real>(op: UnOp, x: &[u64], to: &mut [u64], n: usize) {
    match op {
        UnOp::Sqrt => map1(x, to, n, T::sqrt),
        UnOp::Floor => map1(x, to, n, T::floor),
        UnOp::Ceil => map1(x, to, n, T::ceil),
        UnOp::Trunc => map1(x, to, n, T::trunc),
        UnOp::Round => map1(x, to, n, T::round),
        UnOp::IsInf => map1(x, to, n, |v: T| u8::from(v.is_inf())),
        UnOp::IsFinite => map1(x, to, n, |v: T| u8::from(!v.is_inf() && !v.is_nan())),
        UnOp::SignBit => map1(x, to, n, |v: T| u8::from(v.sign_bit())),
        _ => map1(x, to, n, T::unary(op)),
    }
}

fn binary(op: BinOp, dtype: DType, a: &[u64], b: &[u64], to: &mut [u64], n: usize) {
    match dtype {
        DType::F64 => floating::<f64>(op, a, b, to, n),
        DType::F32 | DType::F16 | DType::BF16 => floating::<f32>(op, a, b, to, n),
        DType::I8 => integer::<i8>(op, a, b, to, n),
        DType::I16 => integer::<i16>(op, a, b, to, n),
        DType::I32 => integer::<i32>(op, a, b, to, n),
        DType::I64 => integer::<i64>(op, a, b, to, n),
        DType::Bool | DType::U8 => integer::<u8>(op, a, b, to, n),
        DType::U16 => integer::<u16>(op, a, b, to, n),
        DType::U32 => integer::<u32>(op, a, b, to, n),
        DType::U64 => integer::<u64>(op, a, b, to, n),
        // Complex values are split above this level.
        DType::C64 | DType::C128 => {}
    }
}

fn floating<T: Real>(op: BinOp, a: &[u64], b: &[u64], to: &mut [u64], n: usize) {
    match op {
        BinOp::Atan2 => map2(a, b, to, n, T::atan2),
        BinOp::Hypot => map2(a, b, to, n, T::hypot),
        BinOp::CopySign => map2(a, b, to, n, T::copy_sign),
        BinOp::NextAfter => map2(a, b, to, n, T::next_after),
        BinOp::LogAddExp => map2(a, b, to, n, T::log_add_exp),
        _ => common::<T>(op, a, b, to, n),
    }
}

fn integer<T: Bits>(op: BinOp, a: &[u64], b: &[u64], to: &mut [u64], n: usize) {
    match op {
        BinOp::And => map2(a, b, to, n, T::and),
        BinOp::Or => map2(a, b, to, n, T::or),
        BinOp::Xor => map2(a, b, to, n, T::xor),
        BinOp::Shl => map2(a, b, to, n, T::shl),
        BinOp::Shr => map2(a, b, to, n, T::shr),
        _ => common::<T>(op, a, b, to, n),
    }
}

fn common<T: Elem>(op: BinOp, a: &[u64], b: &[u64], to: &mut [u64], n: usize) {
    match op {
        BinOp::Add => map2(a, b, to, n, T::add),
        BinOp::Sub => map2(a, b, to, n, T::sub),
        BinOp::Mul => map2(a, b, to, n, T::mul),
        BinOp::Div => map2(a, b, to, n, T::div),
        BinOp::FloorDiv => map2(a, b, to, n, T::floor_div),
        BinOp::Rem => map2(a, b, to, n, T::rem),
        BinOp::Pow => map2(a, b, to, n, T::pow),
        BinOp::Min => map2(a, b, to, n, T::min),
        BinOp::Max => map2(a, b, to, n, T::max),
        BinOp::Eq => map2(a, b, to, n, |a: T, b: T| u8::from(a == b)),
        BinOp::Ne => map2(a, b, to, n, |a: T, b: T| u8::from(a != b)),
        BinOp::Lt => map2(a, b, to, n, |a: T, b: T| u8::from(a < b)),
        BinOp::Le => map2(a, b, to, n, |a: T, b: T| u8::from(a <= b)),
        BinOp::Gt => map2(a, b, to, n, |a: T, b: T| u8::from(a > b)),
        BinOp::Ge => map2(a, b, to, n, |a: T, b: T| u8::from(a >= b)),
        // Refused when the node was created.
        _ => {}
    }
}
