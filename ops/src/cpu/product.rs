//! Matrix products. f32 and f64 use the crate `gemm`; f16 and bf16 are converted to f32, multiplied
//! and rounded once; integers and bools use wrapping loops.

use super::elem::Elem;
use super::typed::typed;
use super::{in_parts, slice, threads};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::memory::{Buffer, HostMemory, Store};
use crate::shape::numel;
use bytemuck::{Pod, cast_slice};

/// Sizes: batches of (m, k) and (k, n).
struct Sizes {
    batches: usize,
    m: usize,
    k: usize,
    n: usize,
}

/// An operand: bytes, and the strides of its batches, rows and columns.
struct Operand<'a> {
    bytes: &'a [u8],
    starts: Vec<i64>,
    row: i64,
    column: i64,
}

fn operand<'a>(buffer: &'a Buffer, shape: &[usize]) -> Result<Operand<'a>> {
    let rank = shape.len();
    let batch = shape.get(..rank.saturating_sub(2)).unwrap_or_default();
    let stride = |back: usize| {
        rank.checked_sub(back).and_then(|i| buffer.strides.get(i)).copied().unwrap_or(0)
    };
    let mut starts = vec![buffer.offset];
    for (&n, &s) in batch.iter().zip(&buffer.strides) {
        starts = starts.iter().flat_map(|at| (0..n as i64).map(move |i| at + i * s)).collect();
    }
    Ok(Operand { bytes: buffer.host()?, starts, row: stride(2), column: stride(1) })
}

/// (…, m, k) × (…, k, n) of one dtype with equal batches.
pub(crate) fn product(
    a: (&Buffer, &[usize]),
    b: (&Buffer, &[usize]),
    dtype: DType,
    shape: &[usize],
) -> Result<Buffer> {
    let last = |s: &[usize], back: usize| {
        s.len().checked_sub(back).and_then(|i| s.get(i)).copied().unwrap_or(1)
    };
    let sizes = Sizes {
        batches: numel(shape.get(..shape.len().saturating_sub(2)).unwrap_or_default()),
        m: last(shape, 2),
        n: last(shape, 1),
        k: last(a.1, 1),
    };
    let (x, y) = (operand(a.0, a.1)?, operand(b.0, b.1)?);
    let bytes = numel(shape) * dtype.size();
    let mut words = HostMemory::words(bytes)?;
    let n = numel(shape);
    match dtype {
        DType::F32 => {
            let ends = Ends { widen: |v: f32| v, narrow: |v| v };
            floats(&x, &y, slice(&mut words, n), &sizes, &ends)?;
        }
        DType::F64 => {
            let ends = Ends { widen: |v: f64| v, narrow: |v| v };
            floats(&x, &y, slice(&mut words, n), &sizes, &ends)?;
        }
        DType::F16 => {
            let widen = |v: u16| half::f16::from_bits(v).to_f32();
            let ends = Ends { widen, narrow: |v| half::f16::from_f32(v).to_bits() };
            floats(&x, &y, slice(&mut words, n), &sizes, &ends)?;
        }
        DType::BF16 => {
            let widen = |v: u16| half::bf16::from_bits(v).to_f32();
            let ends = Ends { widen, narrow: |v| half::bf16::from_f32(v).to_bits() };
            floats(&x, &y, slice(&mut words, n), &sizes, &ends)?;
        }
        _ => typed!(dtype, T => loops::<T>(&x, &y, slice(&mut words, n), &sizes))?,
    }
    Ok(Buffer::packed(Store::Host(HostMemory::own(words, bytes)), shape))
}

/// Conversions between elements in memory and operands of a product.
struct Ends<T, A> {
    widen: fn(T) -> A,
    narrow: fn(A) -> T,
}

const OUTSIDE: Error = Error::Inside("a product would read outside its operand");

/// The matrix of one batch, packed in row-major order.
fn gathered<T: Pod, A>(
    o: &Operand<'_>,
    batch: usize,
    rows: usize,
    columns: usize,
    widen: fn(T) -> A,
    into: &mut Vec<A>,
) -> Result<()> {
    let from = cast_slice::<u8, T>(o.bytes);
    let start = o.starts.get(batch).copied().ok_or(OUTSIDE)?;
    into.clear();
    for i in 0..rows as i64 {
        for j in 0..columns as i64 {
            let at = start + i * o.row + j * o.column;
            into.push(widen(*from.get(at as usize).ok_or(OUTSIDE)?));
        }
    }
    Ok(())
}

/// A matrix in memory: its first element, and the strides of its rows and columns.
#[derive(Clone, Copy)]
struct Matrix<'a, A> {
    from: &'a [A],
    first: usize,
    row: i64,
    column: i64,
}

impl<A> Matrix<'_, A> {
    /// Whether all elements are inside its memory.
    fn inside(&self, rows: usize, columns: usize) -> bool {
        let reach = |n: usize, s: i64| (n as i64 - 1) * s;
        let (r, c) = (reach(rows, self.row), reach(columns, self.column));
        let least = |v: i64| Ord::min(v, 0);
        let most = |v: i64| Ord::max(v, 0);
        let first = self.first as i64;
        first + least(r) + least(c) >= 0 && ((first + most(r) + most(c)) as usize) < self.from.len()
    }
}

fn floats<T: Pod + Send, A: Elem>(
    x: &Operand<'_>,
    y: &Operand<'_>,
    to: &mut [T],
    s: &Sizes,
    ends: &Ends<T, A>,
) -> Result<()> {
    if s.k == 0 || s.m == 0 || s.n == 0 {
        return Ok(());
    }
    let same = std::any::TypeId::of::<T>() == std::any::TypeId::of::<A>();
    let (mut left, mut right) = (Vec::new(), Vec::new());
    for (batch, to) in to.chunks_mut(s.m * s.n).enumerate().take(s.batches) {
        // f16 and bf16 are converted first; f32 and f64 are read directly.
        let a = matrix(x, batch, (s.m, s.k), same, ends, &mut left)?;
        let b = matrix(y, batch, (s.k, s.n), same, ends, &mut right)?;
        if !a.inside(s.m, s.k) || !b.inside(s.k, s.n) {
            return Err(OUTSIDE);
        }
        let rows = s.m.div_ceil(threads(s.m * s.n * s.k / 64)).max(1);
        in_parts(to, rows * s.n, |first, to| {
            let first = first / s.n;
            let mut out = vec![A::ZERO; to.len()];
            let part = Sizes { batches: 1, m: to.len() / s.n, k: s.k, n: s.n };
            let a = Matrix { first: (a.first as i64 + first as i64 * a.row) as usize, ..a };
            call(&a, &b, &mut out, &part);
            to.iter_mut().zip(&out).for_each(|(t, v)| *t = (ends.narrow)(*v));
            Ok(())
        })?;
    }
    Ok(())
}

fn matrix<'a, T: Pod, A: Elem>(
    o: &'a Operand<'a>,
    batch: usize,
    (rows, columns): (usize, usize),
    same: bool,
    ends: &Ends<T, A>,
    into: &'a mut Vec<A>,
) -> Result<Matrix<'a, A>> {
    if same {
        let first = o.starts.get(batch).copied().ok_or(OUTSIDE)? as usize;
        let from = cast_slice::<u8, A>(o.bytes);
        return Ok(Matrix { from, first, row: o.row, column: o.column });
    }
    gathered(o, batch, rows, columns, ends.widen, into)?;
    Ok(Matrix { from: into, first: 0, row: columns as i64, column: 1 })
}

#[allow(unsafe_code, reason = "gemm takes pointers and strides")]
fn call<A: Elem>(a: &Matrix<'_, A>, b: &Matrix<'_, A>, out: &mut [A], s: &Sizes) {
    // SAFETY: `out` has m × n elements. Both matrices are inside their memory: the caller has
    // checked the whole matrix, and these are rows of it.
    unsafe {
        gemm::gemm(
            s.m,
            s.n,
            s.k,
            out.as_mut_ptr(),
            1,
            s.n as isize,
            false,
            a.from.as_ptr().add(a.first),
            a.column as isize,
            a.row as isize,
            b.from.as_ptr().add(b.first),
            b.column as isize,
            b.row as isize,
            A::ZERO,
            A::ONE,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}

fn loops<T: Elem>(x: &Operand<'_>, y: &Operand<'_>, to: &mut [T], s: &Sizes) -> Result<()> {
    if s.m == 0 || s.n == 0 {
        return Ok(());
    }
    let (a, b) = (cast_slice::<u8, T>(x.bytes), cast_slice::<u8, T>(y.bytes));
    let rows = (s.m * s.batches).div_ceil(threads(s.batches * s.m * s.n * s.k)).max(1);
    in_parts(to, rows * s.n, |first, to| {
        for (i, row) in to.chunks_mut(s.n).enumerate() {
            let (batch, i) = ((first / s.n + i) / s.m, (first / s.n + i) % s.m);
            let start = |o: &Operand<'_>| o.starts.get(batch).copied().ok_or(OUTSIDE);
            let (from_a, from_b) = (start(x)? + i as i64 * x.row, start(y)?);
            for k in 0..s.k as i64 {
                let v = *a.get((from_a + k * x.column) as usize).ok_or(OUTSIDE)?;
                let base = from_b + k * y.row;
                for (j, to) in row.iter_mut().enumerate() {
                    let w = *b.get((base + j as i64 * y.column) as usize).ok_or(OUTSIDE)?;
                    *to = to.add(v.mul(w));
                }
            }
        }
        Ok(())
    })
}
