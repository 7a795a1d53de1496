//! Arithmetic of shapes: broadcasting, axes, strides.

use crate::error::{Error, Result};

/// Number of elements of a shape.
///
/// # Errors
/// [`Error::Shape`] if there are too many to address.
pub(crate) fn count(op: &'static str, shape: &[usize]) -> Result<usize> {
    let product = shape.iter().try_fold(1usize, |n, &s| n.checked_mul(s));
    match product {
        Some(n) if n <= isize::MAX as usize / 16 => Ok(n),
        _ if shape.contains(&0) => Ok(0),
        _ => {
            Err(Error::shape(op, format!("{} has more elements than memory can hold", show(shape))))
        }
    }
}

/// Number of elements of a shape that [`count`] has checked.
pub(crate) fn numel(shape: &[usize]) -> usize {
    if shape.contains(&0) { 0 } else { shape.iter().product() }
}

/// Row-major strides in elements.
pub(crate) fn strides(shape: &[usize]) -> Vec<i64> {
    let mut step = 1i64;
    let mut out = vec![0; shape.len()];
    for (s, &n) in out.iter_mut().zip(shape).rev() {
        *s = step;
        step = step.saturating_mul(n.max(1) as i64);
    }
    out
}

/// The shape as a string: `(2, 3)`.
pub(crate) fn show(shape: &[usize]) -> String {
    let sizes: Vec<String> = shape.iter().map(usize::to_string).collect();
    match sizes.len() {
        1 => format!("({},)", sizes.concat()),
        _ => format!("({})", sizes.join(", ")),
    }
}

/// The shape that two shapes broadcast to.
///
/// # Errors
/// [`Error::Shape`] with both shapes.
pub fn broadcast(op: &'static str, a: &[usize], b: &[usize]) -> Result<Vec<usize>> {
    if a == b {
        return Ok(a.to_vec());
    }
    let rank = a.len().max(b.len());
    let at = |s: &[usize], i: usize| {
        (i + s.len()).checked_sub(rank).and_then(|i| s.get(i).copied()).unwrap_or(1)
    };
    (0..rank)
        .map(|i| match (at(a, i), at(b, i)) {
            (x, y) if x == y => Ok(x),
            (1, y) => Ok(y),
            (x, 1) => Ok(x),
            (x, y) => Err(Error::shape(
                op,
                format!(
                    "shapes {} and {} cannot be broadcast: sizes {x} and {y} in axis {i} of the result",
                    show(a),
                    show(b)
                ),
            )),
        })
        .collect()
}

/// An axis as a nonnegative number; negative axes count from the end.
///
/// # Errors
/// [`Error::Axis`] if it is out of range.
pub fn axis(op: &'static str, axis: i64, rank: usize) -> Result<usize> {
    let from_front = if axis < 0 { axis + rank as i64 } else { axis };
    let found = usize::try_from(from_front).ok().filter(|a| *a < rank);
    found.ok_or(Error::Axis { op, axis, rank })
}

/// Several distinct axes; `None` means all.
///
/// # Errors
/// [`Error::Shape`] if one is out of range or repeated.
pub fn axes(op: &'static str, given: Option<&[i64]>, rank: usize) -> Result<Vec<usize>> {
    let Some(given) = given else { return Ok((0..rank).collect()) };
    let mut found = Vec::with_capacity(given.len());
    for &a in given {
        let a = axis(op, a, rank)?;
        if found.contains(&a) {
            return Err(Error::shape(op, format!("axis {a} is given twice")));
        }
        found.push(a);
    }
    Ok(found)
}

/// The sizes of a reshape. One of them may be -1.
///
/// # Errors
/// [`Error::Shape`] if the numbers of elements differ.
pub(crate) fn resolve(op: &'static str, from: &[usize], to: &[i64]) -> Result<Vec<usize>> {
    let have = numel(from);
    let fail = || {
        let to: Vec<String> = to.iter().map(i64::to_string).collect();
        Error::shape(
            op,
            format!("{} ({have} elements) cannot be reshaped to ({})", show(from), to.join(", ")),
        )
    };
    let mut known = 1usize;
    let mut open = None;
    let mut out = Vec::with_capacity(to.len());
    for (i, &n) in to.iter().enumerate() {
        match usize::try_from(n) {
            Ok(n) => {
                known = known.checked_mul(n).ok_or_else(fail)?;
                out.push(n);
            }
            Err(_) if n == -1 && open.is_none() => {
                open = Some(i);
                out.push(0);
            }
            Err(_) => return Err(fail()),
        }
    }
    if let Some(slot) = open.and_then(|i| out.get_mut(i)) {
        if known == 0 || !have.is_multiple_of(known) {
            return Err(fail());
        }
        *slot = have / known;
    } else if known != have {
        return Err(fail());
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_broadcast_from_the_right() {
        assert_eq!(broadcast("t", &[3, 1], &[2, 1, 5]).unwrap(), [2, 3, 5]);
        assert_eq!(broadcast("t", &[0], &[1]).unwrap(), [0]);
        let error = broadcast("add", &[3], &[2]).unwrap_err().to_string();
        assert!(error.contains("add: shapes (3,) and (2,) cannot be broadcast"), "{error}");
    }

    #[test]
    fn reshape_infers_one_size() {
        assert_eq!(resolve("t", &[2, 6], &[3, -1]).unwrap(), [3, 4]);
        assert_eq!(resolve("t", &[0, 6], &[6, -1]).unwrap(), [6, 0]);
        for bad in [&[5i64, -1][..], &[-1, -1], &[13], &[-2, 6]] {
            assert!(resolve("t", &[2, 6], bad).is_err());
        }
    }
}
