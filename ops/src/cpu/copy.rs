//! Copies into positions of a larger buffer, for any dtype by its size in bytes.

use super::elem::Elem;
use super::slice;
use super::typed::typed;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::memory::{Buffer, HostMemory, Store};
use crate::node::Region;
use crate::shape::{numel, strides};
use bytemuck::{Pod, cast_slice};

const OUTSIDE: Error = Error::Inside("a copy would leave its buffer");

/// Calls `run(from, to, n, from_step, to_step)` for each row of an index space.
fn rows(
    shape: &[usize],
    from: (i64, &[i64]),
    to: (i64, &[i64]),
    mut run: impl FnMut(i64, i64, usize, i64, i64) -> Result<()>,
) -> Result<()> {
    if shape.contains(&0) {
        return Ok(());
    }
    let Some((&inner, outer)) = shape.split_last() else {
        return run(from.0, to.0, 1, 0, 0);
    };
    let last = |s: &[i64]| s.last().copied().unwrap_or(0);
    let mut index = vec![0usize; outer.len()];
    let (mut a, mut b) = (from.0, to.0);
    loop {
        run(a, b, inner, last(from.1), last(to.1))?;
        let mut more = false;
        for (((i, &n), s), t) in index.iter_mut().zip(outer).zip(from.1).zip(to.1).rev() {
            *i += 1;
            a += s;
            b += t;
            if *i < n {
                more = true;
                break;
            }
            a -= s * n as i64;
            b -= t * n as i64;
            *i = 0;
        }
        if !more {
            return Ok(());
        }
    }
}

fn copy<T: Pod>(
    from: &[T],
    to: &mut [T],
    shape: &[usize],
    a: (i64, &[i64]),
    b: (i64, &[i64]),
) -> Result<()> {
    rows(shape, a, b, |a, b, n, s, t| {
        if s == 1 && t == 1 {
            let from = from.get(a as usize..a as usize + n).ok_or(OUTSIDE)?;
            to.get_mut(b as usize..b as usize + n).ok_or(OUTSIDE)?.copy_from_slice(from);
            return Ok(());
        }
        for i in 0..n as i64 {
            let v = *from.get((a + i * s) as usize).ok_or(OUTSIDE)?;
            *to.get_mut((b + i * t) as usize).ok_or(OUTSIDE)? = v;
        }
        Ok(())
    })
}

fn copy_bytes(
    size: usize,
    from: &[u8],
    to: &mut [u64],
    shape: &[usize],
    a: (i64, &[i64]),
    b: (i64, &[i64]),
) -> Result<()> {
    match size {
        1 => copy::<u8>(from, bytemuck::cast_slice_mut(to), shape, a, b),
        2 => copy::<u16>(cast_slice(from), bytemuck::cast_slice_mut(to), shape, a, b),
        4 => copy::<u32>(cast_slice(from), bytemuck::cast_slice_mut(to), shape, a, b),
        _ => copy::<u64>(cast_slice(from), to, shape, a, b),
    }
}

/// The elements in row-major order, in new memory.
pub(crate) fn packed(from: &Buffer, dtype: DType, shape: &[usize]) -> Result<Buffer> {
    let bytes = numel(shape) * dtype.size();
    let mut words = HostMemory::words(bytes)?;
    let (a, b) = ((from.offset, &from.strides[..]), (0, &strides(shape)[..]));
    copy_bytes(dtype.size(), from.host()?, &mut words, shape, a, b)?;
    Ok(Buffer::packed(Store::Host(HostMemory::own(words, bytes)), shape))
}

/// A copy of `base` with each part written at its region.
pub(crate) fn assemble(
    base: &Buffer,
    parts: &[(&Region, &Buffer, &[usize])],
    dtype: DType,
    shape: &[usize],
) -> Result<Buffer> {
    let bytes = numel(shape) * dtype.size();
    let mut words = HostMemory::words(bytes)?;
    let steps = strides(shape);
    let b = (0, &steps[..]);
    let covered = parts.iter().map(|(_, _, s)| numel(s)).sum::<usize>() >= numel(shape);
    if !(covered && parts.len() > 1) {
        let a = (base.offset, &base.strides[..]);
        copy_bytes(dtype.size(), base.host()?, &mut words, shape, a, b)?;
    }
    for (region, from, part) in parts {
        let start: i64 = region.start.iter().zip(&steps).map(|(i, s)| i * s).sum();
        let step: Vec<i64> = region.step.iter().zip(&steps).map(|(i, s)| i * s).collect();
        let a = (from.offset, &from.strides[..]);
        copy_bytes(dtype.size(), from.host()?, &mut words, part, a, (start, &step))?;
    }
    Ok(Buffer::packed(Store::Host(HostMemory::own(words, bytes)), shape))
}

/// The arguments of a scatter.
pub(crate) struct Scatter<'a> {
    pub base: &'a Buffer,
    pub index: &'a Buffer,
    pub values: &'a Buffer,
    /// Shape of index and values.
    pub shape: &'a [usize],
    pub axis: usize,
    pub add: bool,
}

/// A copy of `base` with values written (or added) at `index` of the axis, for each position of
/// `shape` in row-major order. The last of several writes to one element wins.
pub(crate) fn scatter(s: &Scatter<'_>, dtype: DType, shape: &[usize]) -> Result<Buffer> {
    let n = numel(shape);
    let bytes = n * dtype.size();
    let mut words = HostMemory::words(bytes)?;
    let steps = strides(shape);
    copy_bytes(
        dtype.size(),
        s.base.host()?,
        &mut words,
        shape,
        (s.base.offset, &s.base.strides),
        (0, &steps),
    )?;
    // Index and values are packed.
    let index = cast_slice::<u8, i64>(s.index.host()?);
    let index = index.get(s.index.offset as usize..).unwrap_or_default();
    let size = shape.get(s.axis).copied().unwrap_or(0);
    let stride = steps.get(s.axis).copied().unwrap_or(0);
    let mut rest = steps.clone();
    if let Some(r) = rest.get_mut(s.axis) {
        *r = 0;
    }
    let mut places = Vec::with_capacity(numel(s.shape));
    let mut at = 0;
    rows(s.shape, (0, &rest), (0, &rest), |from, _, n, step, _| {
        for i in 0..n as i64 {
            let k = index.get(at).copied().ok_or(OUTSIDE)?;
            at += 1;
            let front = if k < 0 { k + size as i64 } else { k };
            if front < 0 || front >= size as i64 {
                return Err(Error::Index { op: "scatter", index: k, axis: s.axis, size });
            }
            places.push((from + i * step + front * stride) as usize);
        }
        Ok(())
    })?;
    let values = s.values.host()?;
    let values = values.get(s.values.offset as usize * dtype.size()..).unwrap_or_default();
    macro_rules! put {
        ($t:ty, $join:expr) => {{
            let to = slice::<$t>(&mut words, n);
            for (p, v) in places.iter().zip(cast_slice::<u8, $t>(values)) {
                let to = to.get_mut(*p).ok_or(OUTSIDE)?;
                *to = $join(*to, *v);
            }
        }};
    }
    match (s.add, dtype) {
        (true, DType::F16) => {
            put!(u16, |a, b| (half::f16::from_bits(a) + half::f16::from_bits(b)).to_bits())
        }
        (true, DType::BF16) => {
            put!(u16, |a, b| (half::bf16::from_bits(a) + half::bf16::from_bits(b)).to_bits())
        }
        (true, _) => typed!(dtype, T => put!(T, <T as Elem>::add)),
        (false, DType::F16 | DType::BF16) => put!(u16, |_, v| v),
        (false, _) => typed!(dtype, T => put!(T, |_, v| v)),
    }
    Ok(Buffer::packed(Store::Host(HostMemory::own(words, bytes)), shape))
}
