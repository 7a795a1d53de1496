//! Folds: runs the program tile by tile and reduces the values. Sums and products of f32, f16 and
//! bf16 accumulate in f64, so their order does not affect the result.

use super::elem::Elem;
use super::interp::{Machine, TILE};
use super::typed::typed;
use super::{in_parts, slice, threads};
use crate::dtype::DType;
use crate::element::FoldOp;
use crate::error::Result;
use crate::memory::{Buffer, HostMemory, Store};
use crate::program::Program;
use bytemuck::Pod;

/// From this number of output elements on, the loop over them is the innermost.
const WIDE: usize = 64;

/// Reduces the last axes of a program, which are not empty.
pub(crate) fn fold(program: &Program, op: FoldOp, shape: &[usize]) -> Result<Buffer> {
    let (kept, folded) = program.sizes();
    let dtype = program.dtype();
    let result = op.result(dtype);
    let bytes = kept * result.size();
    let mut words = HostMemory::words(bytes)?;
    // Whether the innermost axis of memory is not reduced.
    let inner = program.maps.iter().any(|m| {
        let split = m.strides.len() - program.folded.min(m.strides.len());
        let (kept, folded) = m.strides.split_at(split);
        kept.last() == Some(&1) && folded.last().is_some_and(|s| *s != 1)
    });
    let turned = (inner && kept >= WIDE && folded > 1).then(|| program.folded_first());
    let plan = Plan { program: turned.as_ref().unwrap_or(program), kept, folded };
    match op {
        FoldOp::ArgMax | FoldOp::ArgMin => {
            let plan = Plan { program, kept, folded };
            let most = op == FoldOp::ArgMax;
            let to = slice::<i64>(&mut words, kept);
            typed!(dtype, T => plan.places::<T>(to, most))
        }
        _ => match dtype {
            DType::F16 => {
                let to = slice::<u16>(&mut words, kept);
                let write = |v| half::f16::from_f64(v).to_bits();
                plan.any(op, to, |v: f32| f64::from(v), write, turned.is_some())
            }
            DType::BF16 => {
                let to = slice::<u16>(&mut words, kept);
                let write = |v| half::bf16::from_f64(v).to_bits();
                plan.any(op, to, |v: f32| f64::from(v), write, turned.is_some())
            }
            DType::F32 => {
                let to = slice::<f32>(&mut words, kept);
                plan.any(op, to, |v: f32| f64::from(v), |v| v as f32, turned.is_some())
            }
            dtype => typed!(dtype, T => {
                let to = slice::<T>(&mut words, kept);
                plan.any(op, to, |v: T| v, |v: T| v, turned.is_some())
            }),
        },
    }?;
    Ok(Buffer::packed(Store::Host(HostMemory::own(words, bytes)), shape))
}

struct Plan<'a> {
    program: &'a Program,
    kept: usize,
    folded: usize,
}

impl Plan<'_> {
    /// Reduces values `S` of the program in type `A` and stores them as `T`.
    fn any<S: Pod, A: Elem, T: Send>(
        &self,
        op: FoldOp,
        to: &mut [T],
        read: impl Fn(S) -> A + Copy + Sync,
        write: impl Fn(A) -> T + Copy + Sync,
        turned: bool,
    ) -> Result<()> {
        match op {
            FoldOp::Sum => self.joined(to, A::ZERO, A::add, read, write, turned),
            FoldOp::Prod => self.joined(to, A::ONE, A::mul, read, write, turned),
            FoldOp::Max => self.joined(to, A::LEAST, A::max, read, write, turned),
            _ => self.joined(to, A::MOST, A::min, read, write, turned),
        }
    }

    fn joined<S: Pod, A: Elem, T: Send>(
        &self,
        to: &mut [T],
        start: A,
        join: impl Fn(A, A) -> A + Copy + Sync,
        read: impl Fn(S) -> A + Copy + Sync,
        write: impl Fn(A) -> T + Copy + Sync,
        turned: bool,
    ) -> Result<()> {
        let many = threads(self.kept.saturating_mul(self.folded)).min(self.kept.max(1));
        let part = self.kept.div_ceil(many).max(1);
        in_parts(to, part, |first, to| {
            let mut machine = Machine::new(self.program);
            if turned {
                let mut sums = [start; TILE];
                for (tile, to) in to.chunks_mut(TILE).enumerate() {
                    let at = first + tile * TILE;
                    let sums = sums.get_mut(..to.len()).unwrap_or_default();
                    sums.fill(start);
                    for k in 0..self.folded {
                        machine.run(k * self.kept + at, to.len())?;
                        let values = machine.values::<S>(to.len());
                        sums.iter_mut().zip(values).for_each(|(a, v)| *a = join(*a, read(*v)));
                    }
                    to.iter_mut().zip(sums).for_each(|(t, a)| *t = write(*a));
                }
                return Ok(());
            }
            // A tile is several whole results or a part of one, so the order of a sum does not
            // depend on the number of threads.
            let whole = (TILE / self.folded).max(1);
            for (tile, to) in to.chunks_mut(whole).enumerate() {
                let mut at = (first + tile * whole) * self.folded;
                if self.folded <= TILE {
                    machine.run(at, to.len() * self.folded)?;
                    let values = machine.values::<S>(to.len() * self.folded);
                    for (to, values) in to.iter_mut().zip(values.chunks(self.folded)) {
                        *to = write(lanes(values, start, join, read));
                    }
                    continue;
                }
                for to in to {
                    let (mut sum, end) = (start, at + self.folded);
                    while at < end {
                        let n = TILE.min(end - at);
                        machine.run(at, n)?;
                        sum = join(sum, lanes(machine.values::<S>(n), start, join, read));
                        at += n;
                    }
                    *to = write(sum);
                }
            }
            Ok(())
        })
    }

    /// The index of the first greatest (or least) value; the first NaN counts as the extreme.
    fn places<T: Elem>(&self, to: &mut [i64], most: bool) -> Result<()> {
        let many = threads(self.kept.saturating_mul(self.folded)).min(self.kept.max(1));
        let part = self.kept.div_ceil(many).max(1);
        in_parts(to, part, |first, to| {
            let mut machine = Machine::new(self.program);
            for (i, to) in to.iter_mut().enumerate() {
                let mut best: Option<(T, usize)> = None;
                let mut at = 0;
                while at < self.folded {
                    let n = TILE.min(self.folded - at);
                    machine.run((first + i) * self.folded + at, n)?;
                    for (k, &v) in machine.values::<T>(n).iter().enumerate() {
                        let better = match best {
                            None => true,
                            Some((b, _)) if b.is_nan() => false,
                            Some((b, _)) => v.is_nan() || if most { v > b } else { v < b },
                        };
                        if better {
                            best = Some((v, at + k));
                        }
                    }
                    at += n;
                }
                *to = best.map_or(0, |(_, k)| k as i64);
            }
            Ok(())
        })
    }
}

/// Reduces a run of values with eight accumulators; one would wait for each addition.
fn lanes<S: Pod, A: Elem>(
    values: &[S],
    start: A,
    join: impl Fn(A, A) -> A + Copy,
    read: impl Fn(S) -> A + Copy,
) -> A {
    let mut sums = [start; 8];
    let chunks = values.chunks_exact(8);
    let rest = chunks.remainder();
    for chunk in chunks {
        sums.iter_mut().zip(chunk).for_each(|(a, v)| *a = join(*a, read(*v)));
    }
    let rest = rest.iter().fold(start, |a, v| join(a, read(*v)));
    sums.iter().fold(rest, |a, b| join(a, *b))
}
