//! Folds: the program is run tile by tile, and its values are joined as they come. Sums and
//! products of f32 and of halves are kept in f64, so their order does not show in the result.

use super::elem::Elem;
use super::interp::{Machine, TILE, typed};
use super::{in_parts, slice, threads};
use crate::dtype::DType;
use crate::element::FoldOp;
use crate::error::Result;
use crate::memory::{Buffer, HostMemory, Store};
use crate::program::Program;
use bytemuck::Pod;

/// Kept elements from which on they are walked innermost.
const WIDE: usize = 64;

/// Joins the last axes of a program that has elements there.
pub(crate) fn fold(program: &Program, op: FoldOp, shape: &[usize]) -> Result<Buffer> {
    let (kept, folded) = program.sizes();
    let dtype = program.dtype();
    let result = op.result(dtype);
    let bytes = kept * result.size();
    let mut words = HostMemory::words(bytes)?;
    // Whether the innermost axis of memory is one that stays.
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
                let to = slice::<half::f16>(&mut words, kept);
                plan.any(op, to, |v: f32| f64::from(v), half::f16::from_f64, turned.is_some())
            }
            DType::BF16 => {
                let to = slice::<half::bf16>(&mut words, kept);
                plan.any(op, to, |v: f32| f64::from(v), half::bf16::from_f64, turned.is_some())
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
    /// Values `S` of the program, joined as `A`, kept as `T`.
    fn any<S: Pod, A: Elem, T: Send>(
        &self,
        op: FoldOp,
        to: &mut [T],
        read: impl Fn(S) -> A + Copy + Sync,
        write: impl Fn(A) -> T + Copy + Sync,
        turned: bool,
    ) -> Result<()> {
        match op {
            FoldOp::Sum => self.order(to, A::ZERO, A::add, read, write, turned),
            FoldOp::Prod => self.order(to, A::ONE, A::mul, read, write, turned),
            FoldOp::Max => self.extreme(to, A::max, read, write, turned),
            _ => self.extreme(to, A::min, read, write, turned),
        }
    }

    fn extreme<S: Pod, A: Elem, T: Send>(
        &self,
        to: &mut [T],
        join: impl Fn(A, A) -> A + Copy + Sync,
        read: impl Fn(S) -> A + Copy + Sync,
        write: impl Fn(A) -> T + Copy + Sync,
        turned: bool,
    ) -> Result<()> {
        // The first value starts each: there is no least one of all dtypes.
        let first = |a: Option<A>, v: A| Some(a.map_or(v, |a| join(a, v)));
        self.joined(to, None, first, read, |a| write(a.unwrap_or(A::ZERO)), turned)
    }

    fn order<S: Pod, A: Elem, T: Send>(
        &self,
        to: &mut [T],
        start: A,
        join: impl Fn(A, A) -> A + Copy + Sync,
        read: impl Fn(S) -> A + Copy + Sync,
        write: impl Fn(A) -> T + Copy + Sync,
        turned: bool,
    ) -> Result<()> {
        self.joined(to, start, join, read, write, turned)
    }

    fn joined<S: Pod, A: Copy + Send + Sync, V: Copy, T: Send>(
        &self,
        to: &mut [T],
        start: A,
        join: impl Fn(A, V) -> A + Copy + Sync,
        read: impl Fn(S) -> V + Copy + Sync,
        write: impl Fn(A) -> T + Copy + Sync,
        turned: bool,
    ) -> Result<()> {
        let many = threads(self.kept.saturating_mul(self.folded)).min(self.kept.max(1));
        let part = self.kept.div_ceil(many).max(1);
        in_parts(to, part, |first, to| {
            let mut machine = Machine::new(self.program);
            if turned {
                for (tile, to) in to.chunks_mut(TILE).enumerate() {
                    let at = first + tile * TILE;
                    let mut sums = vec![start; to.len()];
                    for k in 0..self.folded {
                        machine.run(k * self.kept + at, to.len())?;
                        let values = machine.values::<S>(to.len());
                        sums.iter_mut().zip(values).for_each(|(a, v)| *a = join(*a, read(*v)));
                    }
                    to.iter_mut().zip(sums).for_each(|(t, a)| *t = write(a));
                }
                return Ok(());
            }
            // Places come one result after the other; a tile may hold many results, or a part of
            // one.
            let (mut sum, mut have) = (start, 0);
            let mut results = to.iter_mut();
            let (mut at, end) = (first * self.folded, (first + results.len()) * self.folded);
            while at < end {
                let n = TILE.min(end - at);
                machine.run(at, n)?;
                at += n;
                let mut values = machine.values::<S>(n);
                while !values.is_empty() {
                    let now = values.len().min(self.folded - have);
                    let (head, tail) = values.split_at(now);
                    sum = lanes(head, sum, start, join, read);
                    values = tail;
                    have += now;
                    if have == self.folded {
                        if let Some(to) = results.next() {
                            *to = write(sum);
                        }
                        (sum, have) = (start, 0);
                    }
                }
            }
            Ok(())
        })
    }

    /// The place of the first greatest (or least) value; the first NaN goes before all.
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

/// Joins a run of values: a chain a value long would wait for each addition.
fn lanes<S: Pod, A: Copy, V: Copy>(
    values: &[S],
    sum: A,
    start: A,
    join: impl Fn(A, V) -> A + Copy,
    read: impl Fn(S) -> V + Copy,
) -> A {
    // Eight results could only be joined with each other if A were V: so they take turns, and the
    // compiler keeps them apart.
    let _ = start;
    values.iter().fold(sum, |a, v| join(a, read(*v)))
}
