//! Evaluation of nodes: each at most once, its inputs first.

use crate::cpu::{self, copy::Scatter};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::expr::{V, constant, iota, view};
use crate::fuse;
use crate::gpu::Gpu;
use crate::lower;
use crate::memory::{Buffer, HostMemory, Store};
use crate::node::{Def, Node, Op, Region};
use crate::scalar::Scalar;
use crate::shape::{numel, strides};
use crate::view::View;
use std::sync::Arc;

/// Computes a node's value. A second call does nothing.
pub(crate) fn force(node: &Arc<Node>) -> Result<()> {
    if node.value().is_some() {
        return Ok(());
    }
    let Some(def) = node.def() else {
        // Another thread has just computed it, or it never had a definition.
        return node
            .value()
            .map(|_| ())
            .ok_or(Error::Inside("a node has neither value nor recipe"));
    };
    let value = compute(node, &def)?;
    node.set(value);
    Ok(())
}

/// A node's value after [`force`].
pub(crate) fn value(node: &Arc<Node>) -> Result<Buffer> {
    force(node)?;
    node.value().cloned().ok_or(Error::Inside("a node has no value after it was computed"))
}

/// A node with equal elements in row-major order.
pub(crate) fn packed(node: &Arc<Node>) -> Result<Arc<Node>> {
    let buffer = value(node)?;
    if buffer.is_packed(&node.shape) {
        return Ok(Arc::clone(node));
    }
    let copy = match &node.device {
        Device::Cpu => cpu::copy::packed(&buffer, node.dtype, &node.shape)?,
        Device::Gpu(gpu) => gpu.each(&lower::each(&copy_of(node)?)?, &node.shape)?,
    };
    Ok(Node::leaf(node.dtype, node.shape.clone(), copy))
}

/// A node that reads `node` unchanged; its program is a copy.
fn copy_of(node: &Arc<Node>) -> Result<Arc<Node>> {
    let view = crate::view::View::identity(node.shape.len());
    let inputs = vec![Arc::clone(node)];
    Node::new(Op::View(view), inputs, node.dtype, node.shape.clone(), &node.device)
}

/// Whether a node is computed before its reader's group, not in it.
fn is_separate(node: &Arc<Node>) -> bool {
    match node.def() {
        None => true,
        Some(def) => !matches!(
            def.op,
            Op::Constant(_)
                | Op::Iota
                | Op::Random(..)
                | Op::Unary(_)
                | Op::Binary(_)
                | Op::Where
                | Op::Cast
                | Op::View(_)
                | Op::Reshape
                | Op::Gather { .. }
        ),
    }
}

fn compute(node: &Arc<Node>, def: &Def) -> Result<Buffer> {
    let device = &node.device;
    if node.numel() == 0 {
        return empty(node);
    }
    let input = |i: usize| def.inputs.get(i).ok_or(Error::Inside("a node lacks an input"));
    match &def.op {
        Op::View(view) => {
            let from = input(0)?;
            // A view of a computed node is a view of its memory, without a copy.
            if is_separate(from) {
                let base = value(from)?;
                let rank = node.shape.len();
                let (offset, strides) = view.strided(base.offset, &base.strides, rank);
                return Ok(Buffer { store: base.store, offset, strides });
            }
            each(node)
        }
        Op::Reshape => {
            let from = input(0)?;
            if is_separate(from) {
                let base = value(&packed(from)?)?;
                let packed = Buffer::packed(base.store, &node.shape);
                return Ok(Buffer { offset: base.offset, ..packed });
            }
            each(node)
        }
        Op::Fold { op, folded } => {
            let from = input(0)?;
            if from.numel() == 0 {
                return Err(Error::Inside("an empty fold was not handled"));
            }
            match device {
                Device::Cpu => {
                    let program = cpu::group::program(from, Some((*op, *folded)))?;
                    cpu::fold::fold(&program, *op, &node.shape)
                }
                Device::Gpu(gpu) => gpu.group(node, from, Some((*op, *folded))),
            }
        }
        Op::Product | Op::Contract(_) => {
            let (a, b) = (input(0)?, input(1)?);
            if let Device::Gpu(gpu) = device {
                return gpu.product(&crate::contract::of(node)?, None, &node.shape);
            }
            let (x, y) = (value(a)?, value(b)?);
            cpu::product::product((&x, &a.shape), (&y, &b.shape), node.dtype, &node.shape)
        }
        Op::Attention(sight) => match device {
            Device::Gpu(gpu) => {
                let rows = [input(0)?, input(1)?, input(2)?];
                gpu.attention(rows, def.inputs.get(3), *sight)
            }
            Device::Cpu => Err(Error::Inside("attention as one node on the CPU")),
        },
        Op::Scan(op) => {
            let from = value(&packed(input(0)?)?)?;
            match device {
                Device::Cpu => cpu::order::scan(&from, node.dtype, &node.shape, *op),
                Device::Gpu(gpu) => gpu.scan(&from, node.dtype, &node.shape, *op),
            }
        }
        Op::ArgSort { descending } => {
            let from = packed(input(0)?)?;
            let (buffer, dtype, shape) = (value(&from)?, from.dtype, &node.shape);
            match device {
                Device::Cpu => cpu::order::arg_sort(&buffer, dtype, shape, *descending),
                Device::Gpu(gpu) => gpu.arg_sort(&buffer, dtype, shape, *descending, None),
            }
        }
        Op::Assemble(regions) => {
            if let Device::Gpu(gpu) = device {
                return gpu.assemble(regions, &def.inputs, &node.shape);
            }
            let base = value(input(0)?)?;
            let parts: Vec<(&Region, Buffer, &[usize])> = regions
                .iter()
                .zip(def.inputs.iter().skip(1))
                .map(|(region, part)| Ok((region, value(part)?, &part.shape[..])))
                .collect::<Result<_>>()?;
            let parts: Vec<_> = parts.iter().map(|(r, b, s)| (*r, b, *s)).collect();
            cpu::copy::assemble(&base, &parts, node.dtype, &node.shape)
        }
        Op::Scatter { axis, add } => {
            if let Device::Gpu(gpu) = device {
                return scatter(gpu, node, &def.inputs, *axis, *add);
            }
            let (base, index, values) = (value(input(0)?)?, packed(input(1)?)?, packed(input(2)?)?);
            let (i, v) = (value(&index)?, value(&values)?);
            let scatter = Scatter {
                base: &base,
                index: &i,
                values: &v,
                shape: &index.shape,
                axis: *axis,
                add: *add,
            };
            cpu::copy::scatter(&scatter, node.dtype, &node.shape)
        }
        _ => each(node),
    }
}

/// A scatter on a GPU: a group computes the destination of each value, then its kernels run.
fn scatter(
    gpu: &Arc<Gpu>,
    node: &Arc<Node>,
    inputs: &[Arc<Node>],
    axis: usize,
    add: bool,
) -> Result<Buffer> {
    let [base, index, values] = inputs else { return Err(Error::Inside("a node lacks an input")) };
    let (base, index, values) = (packed(base)?, packed(index)?, packed(values)?);
    let (rank, count) = (node.shape.len(), index.numel());
    let size = node.shape.get(axis).copied().unwrap_or(0);
    if count == 0 {
        return value(&base);
    }
    let number = |v: usize| V(constant(Scalar::Int(v as i128), DType::I64, &[], &node.device));
    // The row-major position without the axis, plus the index's part.
    let mut rest = View::identity(rank);
    if let Some(row) = rest.coef.get_mut(axis) {
        row.fill(0);
    }
    let rest = V(iota(&node.shape, &node.device).and_then(|n| view(&n, rest, index.shape.clone())));
    let stride = strides(&node.shape).get(axis).copied().unwrap_or(0);
    let given = V::of(&index);
    let front = given.clone().lt(number(0)).select(given.clone() + number(size), given);
    let inside = front.clone().ge(number(0)).and(front.clone().lt(number(size)));
    let places = inside.select(rest + front * number(stride as usize), number(0) - number(1)).0?;
    let order = match add {
        false => None,
        true => {
            // Destinations are counted from 1, so that destinations out of range are 0 and sort
            // first.
            let wide = node.numel() >= u32::MAX as usize;
            let dtype = if wide { DType::U64 } else { DType::U32 };
            let key = packed(&(V::of(&places) + number(1)).to(dtype).shape(&[count]).0?)?;
            let bits = usize::BITS - node.numel().leading_zeros();
            Some(gpu.arg_sort(&value(&key)?, dtype, &[count], false, Some(bits))?)
        }
    };
    let places = packed(&places)?;
    let scatter = crate::gpu::Scatter {
        base: &value(&base)?,
        places: &value(&places)?,
        index: &value(&index)?,
        values: &value(&values)?,
        count,
        axis: (axis, size),
        order: order.as_ref(),
    };
    gpu.scatter(&scatter, node.dtype, &node.shape)
}

fn each(node: &Arc<Node>) -> Result<Buffer> {
    let Device::Gpu(gpu) = &node.device else {
        return cpu::each(&cpu::group::program(node, None)?, &node.shape);
    };
    // Most groups are purely element-wise.
    let (product, fold) = fuse::reads_apart(node);
    if product
        && let Some(product) = fuse::product(node)
        && let Some(program) = lower::after(node, &product)?
    {
        return gpu.product(&crate::contract::of(&product)?, Some(&program), &node.shape);
    }
    if fold {
        // A group of rows in another shape is computed in its own.
        let inner = match node.def().as_deref() {
            Some(Def { op: Op::Reshape, inputs }) => inputs.first().cloned(),
            _ => None,
        };
        if let Some(buffer) = gpu.rows(inner.as_ref().unwrap_or(node))? {
            return Ok(Buffer::packed(buffer.store, &node.shape));
        }
    }
    gpu.group(node, node, None)
}

fn empty(node: &Node) -> Result<Buffer> {
    debug_assert_eq!(numel(&node.shape), 0);
    let store = match &node.device {
        Device::Cpu => Store::Host(HostMemory::own(Vec::new(), 0)),
        Device::Gpu(gpu) => gpu.store(0)?,
    };
    Ok(Buffer::packed(store, &node.shape))
}
