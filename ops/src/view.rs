//! Views: affine functions from an index of the view's axes to an index of the source's axes.
//! Slices, flips, permutations, broadcasts, diagonals and the windows of a convolution have this
//! form, so any chain of them is one view.

/// `source[a] = offset[a] + sum over k of coef[a][k] * index[k]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct View {
    /// One entry for each axis of the source.
    pub(crate) offset: Vec<i64>,
    /// A row for each axis of the source, a column for each axis of the view.
    pub(crate) coef: Vec<Vec<i64>>,
}

impl View {
    /// The identity view.
    pub(crate) fn identity(rank: usize) -> View {
        View::axes(rank, &(0..rank).map(Some).collect::<Vec<_>>())
    }

    /// Axis `a` of the source is axis `from[a]` of the view, or stays at 0.
    pub(crate) fn axes(rank: usize, from: &[Option<usize>]) -> View {
        let row = |k: &Option<usize>| (0..rank).map(|i| i64::from(Some(i) == *k)).collect();
        View { offset: vec![0; from.len()], coef: from.iter().map(row).collect() }
    }

    /// The composition of two views; `self` is applied to the source first.
    pub(crate) fn then(&self, outer: &View) -> View {
        let rank = outer.coef.first().map_or(0, Vec::len);
        let mut out = View { offset: self.offset.clone(), coef: Vec::new() };
        for (offset, row) in out.offset.iter_mut().zip(&self.coef) {
            let mut coefs = vec![0i64; rank];
            for ((c, outer_offset), outer_row) in row.iter().zip(&outer.offset).zip(&outer.coef) {
                *offset += c * outer_offset;
                for (sum, k) in coefs.iter_mut().zip(outer_row) {
                    *sum += c * k;
                }
            }
            out.coef.push(coefs);
        }
        // If the source has no axes, the rank of the view is unknown but unused.
        out
    }

    /// The offset and the strides of the view's axes in memory with these strides of the source.
    pub(crate) fn strided(&self, base: i64, strides: &[i64], rank: usize) -> (i64, Vec<i64>) {
        let mut offset = base;
        let mut out = vec![0i64; rank];
        for ((o, row), s) in self.offset.iter().zip(&self.coef).zip(strides) {
            offset += o * s;
            for (sum, c) in out.iter_mut().zip(row) {
                *sum += c * s;
            }
        }
        (offset, out)
    }
}

/// Merges axes that are contiguous in every stride list, and drops axes of size 1. The lists are
/// changed accordingly; returns the new shape.
pub(crate) fn collapse(shape: &[usize], lists: &mut [Vec<i64>]) -> Vec<usize> {
    let mut out: Vec<usize> = Vec::new();
    let mut kept: Vec<Vec<i64>> = vec![Vec::new(); lists.len()];
    for (k, &n) in shape.iter().enumerate() {
        if n == 1 {
            continue;
        }
        let joins = out.last().is_some()
            && kept.iter().zip(lists.iter()).all(|(to, from)| {
                let step = from.get(k).copied().unwrap_or(0);
                to.last().is_some_and(|&last| Some(last) == step.checked_mul(n as i64))
            });
        if joins {
            if let Some(last) = out.last_mut() {
                *last *= n;
            }
        } else {
            out.push(n);
        }
        for (to, from) in kept.iter_mut().zip(lists.iter()) {
            let step = from.get(k).copied().unwrap_or(0);
            match to.last_mut() {
                Some(last) if joins => *last = step,
                _ => to.push(step),
            }
        }
    }
    for (list, new) in lists.iter_mut().zip(kept) {
        *list = new;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_axes_are_collapsed() {
        let mut lists = vec![vec![12, 4, 1], vec![24, 8, 2], vec![0, 0, 0]];
        assert_eq!(collapse(&[2, 3, 4], &mut lists), [24]);
        assert_eq!(lists, [[1], [2], [0]]);
        let mut lists = vec![vec![12, 4, 1], vec![4, 0, 1]];
        assert_eq!(collapse(&[2, 3, 4], &mut lists), [2, 3, 4]);
        let mut lists = vec![vec![12, 12, 1]];
        assert_eq!(collapse(&[2, 1, 12], &mut lists), [24]);
    }

    #[test]
    fn views_compose_to_one_view() {
        // Every second column in reverse order, then transposed.
        let inner = View { offset: vec![0, 4], coef: vec![vec![1, 0], vec![0, -2]] };
        let outer = View::axes(2, &[Some(1), Some(0)]);
        let both = inner.then(&outer);
        assert_eq!(both.strided(0, &[5, 1], 2), (4, vec![-2, 5]));
    }
}
