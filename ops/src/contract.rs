//! Contractions: products whose batch, rows, columns and depth are each several axes. Matrix
//! products, their batches and convolutions are contractions of views, so nothing is copied.

use crate::error::{Error, Result};
use crate::eval::{force, value};
use crate::memory::Buffer;
use crate::node::{Node, Op};
use crate::view::collapse;
use std::sync::Arc;

/// The numbers of axes of a contraction: left (batch, rows, depth), right (batch, columns, depth),
/// result (batch, rows, columns).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Axes {
    pub batch: usize,
    pub rows: usize,
    pub cols: usize,
    pub depth: usize,
}

/// An operand: its memory, and strides for each group of axes, in elements.
#[derive(Clone)]
pub(crate) struct Operand {
    pub buffer: Buffer,
    pub batch: Vec<i64>,
    pub own: Vec<i64>,
    pub depth: Vec<i64>,
}

/// A contraction whose operands are computed. Adjacent axes are merged if the strides allow it.
/// Axes of size 1 are removed.
#[derive(Clone)]
pub(crate) struct Contraction {
    pub dtype: crate::dtype::DType,
    pub batch: Vec<usize>,
    pub rows: Vec<usize>,
    pub cols: Vec<usize>,
    pub depth: Vec<usize>,
    pub left: Operand,
    pub right: Operand,
}

/// The elements of a node by strides, without a copy if it is a view of a computed node.
pub(crate) fn strided(node: &Arc<Node>) -> Result<Buffer> {
    if let Some(def) = node.def()
        && let (Op::View(view), [from]) = (&def.op, &def.inputs[..])
    {
        let base = value(from)?;
        let (offset, strides) = view.strided(base.offset, &base.strides, node.shape.len());
        return Ok(Buffer { store: base.store, offset, strides });
    }
    force(node)?;
    value(node)
}

/// The contraction of a node, after its operands are computed.
pub(crate) fn of(node: &Arc<Node>) -> Result<Contraction> {
    const WRONG: Error = Error::Inside("the axes of a contraction do not match its operands");
    let def = node.def().ok_or(Error::Inside("a contraction was computed before"))?;
    let [left, right] = &def.inputs[..] else { return Err(WRONG) };
    let (x, mut y) = (strided(left)?, strided(right)?);
    let mut right_shape = right.shape.clone();
    let axes = match &def.op {
        Op::Contract(axes) => *axes,
        // The columns go before the depth.
        Op::Product => {
            let batch = left.shape.len().checked_sub(2).ok_or(WRONG)?;
            let end = y.strides.len().checked_sub(2).ok_or(WRONG)?;
            right_shape.get_mut(end..).ok_or(WRONG)?.reverse();
            y.strides.get_mut(end..).ok_or(WRONG)?.reverse();
            Axes { batch, rows: 1, cols: 1, depth: 1 }
        }
        _ => return Err(WRONG),
    };
    let (b, r, c) = (axes.batch, axes.batch + axes.rows, axes.batch + axes.cols);
    let (Some((batch, rest)), Some(cols)) = (left.shape.split_at_checked(b), right_shape.get(b..c))
    else {
        return Err(WRONG);
    };
    let (rows, depth) = rest.split_at_checked(axes.rows).ok_or(WRONG)?;
    if right_shape.get(c..) != Some(depth) || depth.len() != axes.depth {
        return Err(WRONG);
    }
    let part = |buffer: &Buffer, from: usize, to: usize| -> Vec<i64> {
        buffer.strides.get(from..to).unwrap_or_default().to_vec()
    };
    let mut batches = [part(&x, 0, b), part(&y, 0, b)];
    let mut depths = [part(&x, r, left.shape.len()), part(&y, c, right_shape.len())];
    let (mut own_x, mut own_y) = ([part(&x, b, r)], [part(&y, b, c)]);
    let batch = collapse(batch, &mut batches);
    let depth = collapse(depth, &mut depths);
    let (rows, cols) = (collapse(rows, &mut own_x), collapse(cols, &mut own_y));
    let ([bx, by], [dx, dy], [ox], [oy]) = (batches, depths, own_x, own_y);
    Ok(Contraction {
        dtype: node.dtype,
        batch,
        rows,
        cols,
        depth,
        left: Operand { buffer: x, batch: bx, own: ox, depth: dx },
        right: Operand { buffer: y, batch: by, own: oy, depth: dy },
    })
}
