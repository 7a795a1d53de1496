//! Products of matrices. f32 and f64 by the crate `gemm`; halves are widened to f32, multiplied
//! there and rounded once; integers and bools by loops that wrap.

use super::elem::Elem;
use super::interp::typed;
use super::{in_parts, slice, threads};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::memory::{Buffer, HostMemory, Store};
use crate::shape::numel;
use bytemuck::{Pod, cast_slice};

/// What lies where: batches of (m, k) and (k, n) with strides in elements.
struct Sizes {
    batches: usize,
    m: usize,
    k: usize,
    n: usize,
}

/// An operand: bytes, and the place of each batch, row and column.
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
        starts = starts
            .iter()
            .flat_map(|at| (0..n as i64).map(move |i| at + i * s))
            .collect();
    }
    Ok(Operand { bytes: buffer.host()?, starts, row: stride(2), column: stride(1) })
}

/// (…, m, k) × (…, k, n) of one dtype, batches alike.
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
    match dtype {
        DType::F32 => floats::<f32, f32>(&x, &y, slice(&mut words, numel(shape)), &sizes)?,
        DType::F64 => floats::<f64, f64>(&x, &y, slice(&mut words, numel(shape)), &sizes)?,
        DType::F16 => floats::<half::f16, f32>(&x, &y, slice(&mut words, numel(shape)), &sizes)?,
        DType::BF16 => floats::<half::bf16, f32>(&x, &y, slice(&mut words, numel(shape)), &sizes)?,
        _ => typed!(dtype, T => loops::<T>(&x, &y, slice(&mut words, numel(shape)), &sizes))?,
    }
    Ok(Buffer::packed(Store::Host(HostMemory::own(words, bytes)), shape))
}

/// A dtype whose products `gemm` computes, itself or in a wider one.
trait Product<A>: Pod + Send + Sync {
    fn widen(self) -> A;
    fn narrow(a: A) -> Self;
}

macro_rules! same {
    ($($t:ty),*) => {$(
        impl Product<$t> for $t {
            fn widen(self) -> $t { self }
            fn narrow(a: $t) -> $t { a }
        }
    )*};
}
same!(f32, f64);
impl Product<f32> for half::f16 {
    fn widen(self) -> f32 {
        self.to_f32()
    }
    fn narrow(a: f32) -> half::f16 {
        half::f16::from_f32(a)
    }
}
impl Product<f32> for half::bf16 {
    fn widen(self) -> f32 {
        self.to_f32()
    }
    fn narrow(a: f32) -> half::bf16 {
        half::bf16::from_f32(a)
    }
}

const OUTSIDE: Error = Error::Inside("a product would read outside of its operand");

/// One batch's matrix, rows behind each other.
fn gathered<T: Product<A>, A: Copy>(
    o: &Operand<'_>,
    batch: usize,
    rows: usize,
    columns: usize,
    into: &mut Vec<A>,
) -> Result<()> {
    let from = cast_slice::<u8, T>(o.bytes);
    let start = o.starts.get(batch).copied().ok_or(OUTSIDE)?;
    into.clear();
    for i in 0..rows as i64 {
        for j in 0..columns as i64 {
            let at = start + i * o.row + j * o.column;
            into.push(from.get(at as usize).ok_or(OUTSIDE)?.widen());
        }
    }
    Ok(())
}

/// Whether a batch's matrix lies within its memory, so that `gemm` may read it there.
fn inside(o: &Operand<'_>, batch: usize, rows: usize, columns: usize, size: usize) -> bool {
    let Some(&start) = o.starts.get(batch) else { return false };
    let reach = |n: usize, s: i64| (n as i64 - 1) * s;
    let (r, c) = (reach(rows, o.row), reach(columns, o.column));
    let least = |v: i64| Ord::min(v, 0);
    let most = |v: i64| Ord::max(v, 0);
    let (low, high) = (start + least(r) + least(c), start + most(r) + most(c));
    low >= 0 && (high as usize) < o.bytes.len() / size
}

fn floats<T: Product<A>, A: Elem + Default>(
    x: &Operand<'_>,
    y: &Operand<'_>,
    to: &mut [T],
    s: &Sizes,
) -> Result<()> {
    if s.k == 0 || s.m == 0 || s.n == 0 {
        return Ok(());
    }
    let same = std::any::TypeId::of::<T>() == std::any::TypeId::of::<A>();
    let many = threads(s.m * s.n * s.k / 64);
    let (mut left, mut right, mut out) = (Vec::new(), Vec::new(), vec![A::ZERO; s.m * s.n]);
    for (batch, to) in to.chunks_mut(s.m * s.n).enumerate().take(s.batches) {
        // Where it cannot be read as it lies: another dtype, or a stride that is none.
        let direct = |o: &Operand<'_>, r, c| same && inside(o, batch, r, c, size_of::<T>());
        let (a_direct, b_direct) = (direct(x, s.m, s.k), direct(y, s.k, s.n));
        if !a_direct {
            gathered::<T, A>(x, batch, s.m, s.k, &mut left)?;
        }
        if !b_direct {
            gathered::<T, A>(y, batch, s.k, s.n, &mut right)?;
        }
        let place = |o: &Operand<'_>| o.starts.get(batch).copied().unwrap_or(0) as usize;
        let a = if a_direct {
            let from = cast_slice::<u8, A>(x.bytes).get(place(x)..).ok_or(OUTSIDE)?;
            (from.as_ptr(), x.row, x.column)
        } else {
            (left.as_ptr(), s.k as i64, 1)
        };
        let b = if b_direct {
            let from = cast_slice::<u8, A>(y.bytes).get(place(y)..).ok_or(OUTSIDE)?;
            (from.as_ptr(), y.row, y.column)
        } else {
            (right.as_ptr(), s.n as i64, 1)
        };
        call(a, b, &mut out, s, many);
        to.iter_mut().zip(&out).for_each(|(t, v)| *t = T::narrow(*v));
    }
    Ok(())
}

#[allow(unsafe_code, reason = "gemm takes pointers and strides")]
fn call<A: Elem>(
    a: (*const A, i64, i64),
    b: (*const A, i64, i64),
    out: &mut [A],
    s: &Sizes,
    many: usize,
) {
    let parallel = match many {
        0 | 1 => gemm::Parallelism::None,
        _ => gemm::Parallelism::None,
    };
    // SAFETY: `out` has m × n elements; both operands were checked to lie within their memory, or
    // were gathered with exactly m × k and k × n elements.
    unsafe {
        gemm::gemm(
            s.m,
            s.n,
            s.k,
            out.as_mut_ptr(),
            1,
            s.n as isize,
            false,
            a.0,
            a.2 as isize,
            a.1 as isize,
            b.0,
            b.2 as isize,
            b.1 as isize,
            A::ZERO,
            A::ONE,
            false,
            false,
            false,
            parallel,
        );
    }
}

fn loops<T: Elem>(x: &Operand<'_>, y: &Operand<'_>, to: &mut [T], s: &Sizes) -> Result<()>
where
    T: Send + Sync,
{
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
