//! Ordered operations along one axis: cumulative sums and products, sorting.

use super::elem::Elem;
use super::typed::typed;
use super::{in_parts, slice, threads};
use crate::dtype::DType;
use crate::element::FoldOp;
use crate::error::Result;
use crate::memory::{Buffer, HostMemory, Store};
use crate::shape::numel;
use bytemuck::cast_slice;

/// Cumulative sum or product of the last axis. `from` is packed and starts at the start of its
/// memory.
pub(crate) fn scan(from: &Buffer, dtype: DType, shape: &[usize], op: FoldOp) -> Result<Buffer> {
    let n = numel(shape);
    let bytes = n * dtype.size();
    let mut words = HostMemory::words(bytes)?;
    let row = shape.last().copied().unwrap_or(1).max(1);
    let source = from.host()?.get(from.offset as usize * dtype.size()..).unwrap_or_default();
    match dtype {
        DType::F16 => {
            let (from, to) = (cast_slice::<u8, u16>(source), slice(&mut words, n));
            let (read, write) =
                (|v| half::f16::from_bits(v).to_f64(), |v| half::f16::from_f64(v).to_bits());
            rows(from, to, row, op, read, write)
        }
        DType::BF16 => {
            let (from, to) = (cast_slice::<u8, u16>(source), slice(&mut words, n));
            let (read, write) =
                (|v| half::bf16::from_bits(v).to_f64(), |v| half::bf16::from_f64(v).to_bits());
            rows(from, to, row, op, read, write)
        }
        DType::F32 => {
            let (from, to) = (cast_slice::<u8, f32>(source), slice(&mut words, n));
            rows(from, to, row, op, f64::from, |v| v as f32)
        }
        _ => typed!(dtype, T => {
            rows(cast_slice::<u8, T>(source), slice(&mut words, n), row, op, |v: T| v, |v: T| v)
        }),
    }?;
    Ok(Buffer::packed(Store::Host(HostMemory::own(words, bytes)), shape))
}

fn rows<T: Copy + Send + Sync, A: Elem>(
    from: &[T],
    to: &mut [T],
    row: usize,
    op: FoldOp,
    read: impl Fn(T) -> A + Sync,
    write: impl Fn(A) -> T + Sync,
) -> Result<()> {
    let part = (to.len() / row).div_ceil(threads(to.len())).max(1) * row;
    in_parts(to, part, |first, to| {
        let from = from.get(first..first + to.len()).unwrap_or_default();
        for (from, to) in from.chunks(row).zip(to.chunks_mut(row)) {
            let mut all = if op == FoldOp::Prod { A::ONE } else { A::ZERO };
            for (v, t) in from.iter().zip(to) {
                let v = read(*v);
                all = if op == FoldOp::Prod { all.mul(v) } else { all.add(v) };
                *t = write(all);
            }
        }
        Ok(())
    })
}

/// The indices that sort the last axis: stable, NaN last, -0 equal to 0.
pub(crate) fn arg_sort(
    from: &Buffer,
    dtype: DType,
    shape: &[usize],
    descending: bool,
) -> Result<Buffer> {
    let n = numel(shape);
    let mut words = HostMemory::words(n * 8)?;
    let keys = keys(from, dtype, n)?;
    let row = shape.last().copied().unwrap_or(1).max(1);
    let to = slice::<i64>(&mut words, n);
    let part = (n / row).div_ceil(threads(n)).max(1) * row;
    in_parts(to, part, |first, to| {
        let keys = keys.get(first..first + to.len()).unwrap_or_default();
        for (keys, to) in keys.chunks(row).zip(to.chunks_mut(row)) {
            to.iter_mut().enumerate().for_each(|(i, t)| *t = i as i64);
            let key = |i: &i64| keys.get(*i as usize).copied().unwrap_or(0);
            if descending {
                to.sort_by_key(|i| std::cmp::Reverse(key(i)));
            } else {
                to.sort_by_key(key);
            }
        }
        Ok(())
    })?;
    Ok(Buffer::packed(Store::Host(HostMemory::own(words, n * 8)), shape))
}

/// Integer keys in the order of the elements.
fn keys(from: &Buffer, dtype: DType, n: usize) -> Result<Vec<u64>> {
    let source = from.host()?.get(from.offset as usize * dtype.size()..).unwrap_or_default();
    let float = |v: f64| {
        if v.is_nan() {
            return u64::MAX;
        }
        // -0 + 0 is 0.
        let bits = (v + 0.0).to_bits();
        if bits >> 63 == 1 { !bits } else { bits | 1 << 63 }
    };
    let signed = |v: i64| (v as u64) ^ (1 << 63);
    macro_rules! keys {
        ($t:ty, $f:expr) => {
            cast_slice::<u8, $t>(source).iter().take(n).map($f).collect()
        };
    }
    Ok(match dtype {
        DType::F16 => keys!(u16, |v| float(half::f16::from_bits(*v).to_f64())),
        DType::BF16 => keys!(u16, |v| float(half::bf16::from_bits(*v).to_f64())),
        DType::F32 => keys!(f32, |v| float(f64::from(*v))),
        DType::F64 => keys!(f64, |v| float(*v)),
        DType::I8 => keys!(i8, |v| signed(i64::from(*v))),
        DType::I16 => keys!(i16, |v| signed(i64::from(*v))),
        DType::I32 => keys!(i32, |v| signed(i64::from(*v))),
        DType::I64 => keys!(i64, |v| signed(*v)),
        DType::U16 => keys!(u16, |v| u64::from(*v)),
        DType::U32 => keys!(u32, |v| u64::from(*v)),
        DType::U64 => keys!(u64, |v| *v),
        _ => keys!(u8, |v| u64::from(*v)),
    })
}
