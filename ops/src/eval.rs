//! Evaluation of nodes: each at most once, its inputs first.

use crate::cpu::{self, copy::Scatter};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::lower;
use crate::memory::{Buffer, HostMemory, Store};
use crate::node::{Def, Node, Op, Region};
use crate::shape::numel;
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

/// A node that reads another unchanged; its program is a copy.
fn copy_of(node: &Arc<Node>) -> Result<Arc<Node>> {
    let view = crate::view::View::identity(node.shape.len());
    let inputs = vec![Arc::clone(node)];
    Node::new(Op::View(view), inputs, node.dtype, node.shape.clone(), &node.device)
}

/// Whether a node is computed before its reader's group, not in it.
fn is_apart(node: &Arc<Node>) -> bool {
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
            if is_apart(from) {
                let base = value(from)?;
                let rank = node.shape.len();
                let (offset, strides) = view.strided(base.offset, &base.strides, rank);
                return Ok(Buffer { store: base.store, offset, strides });
            }
            each(node)
        }
        Op::Reshape => {
            let from = input(0)?;
            if is_apart(from) {
                let base = value(&packed(from)?)?;
                let packed = Buffer::packed(base.store, &node.shape);
                return Ok(Buffer { offset: base.offset, ..packed });
            }
            each(node)
        }
        Op::Fold { op, folded } => {
            let from = input(0)?;
            if from.numel() == 0 {
                return Err(Error::Inside("an empty fold was not taken care of"));
            }
            let program = lower::fold(from, *folded)?;
            match device {
                Device::Cpu => cpu::fold::fold(&program, *op, &node.shape),
                Device::Gpu(gpu) => gpu.fold(&program, *op, &node.shape),
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
        Op::Attention { causal, scale } => match device {
            Device::Gpu(gpu) => {
                let rows = [input(0)?, input(1)?, input(2)?];
                gpu.attention(rows, *causal, f32::from_bits(*scale))
            }
            Device::Cpu => Err(Error::Inside("attention as one node on the CPU")),
        },
        Op::Scan(op) => {
            host_only("cumulative_sum", device)?;
            let from = value(&packed(input(0)?)?)?;
            cpu::order::scan(&from, node.dtype, &node.shape, *op)
        }
        Op::ArgSort { descending } => {
            host_only("sort", device)?;
            let from = packed(input(0)?)?;
            cpu::order::arg_sort(&value(&from)?, from.dtype, &node.shape, *descending)
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
            host_only("scatter", device)?;
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

fn host_only(op: &'static str, device: &Device) -> Result<()> {
    match device {
        Device::Cpu => Ok(()),
        Device::Gpu(gpu) => Err(Error::Absent { op, device: gpu.label().to_owned() }),
    }
}

fn each(node: &Arc<Node>) -> Result<Buffer> {
    if let Device::Gpu(gpu) = &node.device
        && let Some(product) = crate::fuse::product(node)
        && let Some(program) = lower::after(node, &product)?
    {
        return gpu.product(&crate::contract::of(&product)?, Some(&program), &node.shape);
    }
    if let Device::Gpu(gpu) = &node.device {
        // A group of rows in another shape is computed in its own.
        let def = node.def();
        if let Some(def) = &def
            && let (Op::Reshape, [from]) = (&def.op, &def.inputs[..])
            && let Some((program, to)) = lower::rows(from)?
        {
            return Ok(Buffer::packed(gpu.rows(&program, &to, &from.shape)?.store, &node.shape));
        }
        if let Some((program, to)) = lower::rows(node)? {
            return gpu.rows(&program, &to, &node.shape);
        }
    }
    let program = lower::each(node)?;
    match &node.device {
        Device::Cpu => cpu::each(&program, &node.shape),
        Device::Gpu(gpu) => gpu.each(&program, &node.shape),
    }
}

fn empty(node: &Node) -> Result<Buffer> {
    debug_assert_eq!(numel(&node.shape), 0);
    let store = match &node.device {
        Device::Cpu => Store::Host(HostMemory::own(Vec::new(), 0)),
        Device::Gpu(gpu) => gpu.store(0)?,
    };
    Ok(Buffer::packed(store, &node.shape))
}
