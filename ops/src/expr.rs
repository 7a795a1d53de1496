//! Expressions over nodes, written as arithmetic. An error propagates to the result. Operands have
//! one dtype and broadcast.

use crate::device::Device;
use crate::dtype::DType;
use crate::element::{BinOp, FoldOp, UnOp};
use crate::error::{Error, Result};
use crate::node::{Node, Op};
use crate::scalar::Scalar;
use crate::shape::{broadcast, numel};
use crate::view::View;
use std::ops::{Add, Div, Mul, Neg, Sub};
use std::sync::Arc;

/// A real value for every element, or an error.
#[derive(Clone)]
pub(crate) struct V(pub Result<Arc<Node>>);

/// One value in every element.
pub(crate) fn constant(
    value: Scalar,
    dtype: DType,
    shape: &[usize],
    device: &Device,
) -> Result<Arc<Node>> {
    let bits = value.bits(dtype);
    Node::new(Op::Constant(bits), Vec::new(), dtype, shape.to_vec(), device)
}

/// The row-major index of every element, as i64.
pub(crate) fn iota(shape: &[usize], device: &Device) -> Result<Arc<Node>> {
    Node::new(Op::Iota, Vec::new(), DType::I64, shape.to_vec(), device)
}

/// A view; views of views are merged.
pub(crate) fn view(node: &Arc<Node>, view: View, shape: Vec<usize>) -> Result<Arc<Node>> {
    if view == View::identity(node.shape.len()) && shape == node.shape {
        return Ok(Arc::clone(node));
    }
    let def = node.def();
    if let Some(def) = &def
        && let (Op::View(inner), [input]) = (&def.op, &def.inputs[..])
    {
        let view = inner.then(&view);
        return Node::new(Op::View(view), vec![Arc::clone(input)], node.dtype, shape, &node.device);
    }
    // A view of a constant is a constant.
    if let Some(Op::Constant(bits)) = def.as_ref().map(|d| &d.op) {
        return Node::new(Op::Constant(*bits), Vec::new(), node.dtype, shape, &node.device);
    }
    Node::new(Op::View(view), vec![Arc::clone(node)], node.dtype, shape, &node.device)
}

/// The elements with a different shape of equal size.
pub(crate) fn reshape(node: &Arc<Node>, shape: Vec<usize>) -> Result<Arc<Node>> {
    if shape == node.shape {
        return Ok(Arc::clone(node));
    }
    if numel(&shape) != node.numel() {
        return Err(Error::Inside("a reshape changed the number of elements"));
    }
    // Axes of size 1 are added and removed by a view, which merges with other views.
    let long = |s: &[usize]| s.iter().copied().filter(|n| *n != 1).collect::<Vec<_>>();
    if long(&shape) == long(&node.shape) && !shape.contains(&0) {
        let mut places = shape.iter().enumerate().filter(|(_, n)| **n != 1).map(|(i, _)| i);
        let from: Vec<_> =
            node.shape.iter().map(|n| if *n == 1 { None } else { places.next() }).collect();
        return view(node, View::axes(shape.len(), &from), shape);
    }
    let def = node.def();
    if let Some(def) = &def
        && let (Op::Reshape, [input]) = (&def.op, &def.inputs[..])
    {
        return reshape(input, shape);
    }
    if let Some(Op::Constant(bits)) = def.as_ref().map(|d| &d.op) {
        return Node::new(Op::Constant(*bits), Vec::new(), node.dtype, shape, &node.device);
    }
    Node::new(Op::Reshape, vec![Arc::clone(node)], node.dtype, shape, &node.device)
}

/// Broadcasts a node to `shape`.
pub(crate) fn expand(node: &Arc<Node>, shape: &[usize]) -> Result<Arc<Node>> {
    if node.shape == shape {
        return Ok(Arc::clone(node));
    }
    // A view of a constant is a constant.
    if let Some(Op::Constant(bits)) = node.def().as_ref().map(|d| &d.op) {
        return Node::new(
            Op::Constant(*bits),
            Vec::new(),
            node.dtype,
            shape.to_vec(),
            &node.device,
        );
    }
    let extra = shape.len().saturating_sub(node.shape.len());
    let from: Vec<_> =
        node.shape.iter().enumerate().map(|(i, n)| (*n != 1).then_some(i + extra)).collect();
    view(node, View::axes(shape.len(), &from), shape.to_vec())
}

/// The values converted to `dtype`.
pub(crate) fn cast(node: &Arc<Node>, dtype: DType) -> Result<Arc<Node>> {
    if node.dtype == dtype {
        return Ok(Arc::clone(node));
    }
    Node::new(Op::Cast, vec![Arc::clone(node)], dtype, node.shape.clone(), &node.device)
}

impl V {
    pub(crate) fn of(node: &Arc<Node>) -> V {
        V(Ok(Arc::clone(node)))
    }

    fn then(self, f: impl FnOnce(Arc<Node>) -> Result<Arc<Node>>) -> V {
        V(self.0.and_then(f))
    }

    pub(crate) fn un(self, op: UnOp) -> V {
        self.then(|x| {
            let (dtype, shape) = (op.result(x.dtype), x.shape.clone());
            let device = x.device.clone();
            Node::new(Op::Unary(op), vec![x], dtype, shape, &device)
        })
    }

    pub(crate) fn bin(self, op: BinOp, other: V) -> V {
        let both = || {
            let (a, b) = (self.0?, other.0?);
            Device::same(op.name(), &a.device, &b.device)?;
            if a.dtype != b.dtype {
                return Err(Error::Inside("operands of an expression have two dtypes"));
            }
            let shape = broadcast(op.name(), &a.shape, &b.shape)?;
            let (a, b) = (expand(&a, &shape)?, expand(&b, &shape)?);
            let (dtype, device) = (op.result(a.dtype), a.device.clone());
            Node::new(Op::Binary(op), vec![a, b], dtype, shape, &device)
        };
        V(both())
    }

    /// A constant with this dtype and shape.
    pub(crate) fn like(&self, value: f64) -> V {
        self.clone().then(|x| constant(Scalar::Float(value), x.dtype, &x.shape, &x.device))
    }

    /// `a` where this bool is true, otherwise `b`.
    pub(crate) fn select(self, a: V, b: V) -> V {
        let all = || {
            let (c, a, b) = (self.0?, a.0?, b.0?);
            Device::same("where", &c.device, &a.device)?;
            Device::same("where", &a.device, &b.device)?;
            if a.dtype != b.dtype || c.dtype != DType::Bool {
                return Err(Error::Inside("operands of a choice have wrong dtypes"));
            }
            let shape = broadcast("where", &a.shape, &b.shape)?;
            let shape = broadcast("where", &c.shape, &shape)?;
            let inputs = vec![expand(&c, &shape)?, expand(&a, &shape)?, expand(&b, &shape)?];
            let (dtype, device) = (a.dtype, a.device.clone());
            Node::new(Op::Where, inputs, dtype, shape, &device)
        };
        V(all())
    }

    pub(crate) fn to(self, dtype: DType) -> V {
        self.then(|x| cast(&x, dtype))
    }

    /// Reduces the last `folded` axes, which are not empty.
    pub(crate) fn fold(self, op: FoldOp, folded: usize) -> V {
        self.then(|x| {
            let kept = x.shape.len().saturating_sub(folded);
            let shape = x.shape.get(..kept).unwrap_or_default().to_vec();
            let (dtype, device) = (op.result(x.dtype), x.device.clone());
            Node::new(Op::Fold { op, folded }, vec![x], dtype, shape, &device)
        })
    }

    pub(crate) fn shape(self, shape: &[usize]) -> V {
        self.then(|x| reshape(&x, shape.to_vec()))
    }
}

macro_rules! unaries {
    ($($name:ident $op:ident),*) => {
        #[allow(clippy::wrong_self_convention, reason = "is_nan of an expression is one")]
        impl V {
            $(pub(crate) fn $name(self) -> V { self.un(UnOp::$op) })*
        }
    };
}
unaries!(abs Abs, sqrt Sqrt, exp Exp, expm1 Expm1, log Log, log1p Log1p, sin Sin, cos Cos,
    sinh Sinh, cosh Cosh, tanh Tanh, erf Erf, not Not, is_nan IsNan, is_inf IsInf,
    is_finite IsFinite);

macro_rules! binaries {
    ($($name:ident $op:ident),*) => {
        impl V {
            $(pub(crate) fn $name(self, other: V) -> V { self.bin(BinOp::$op, other) })*
        }
    };
}
binaries!(max Max, atan2 Atan2, hypot Hypot, copy_sign CopySign, and And, or Or, eq Eq,
    ne Ne, lt Lt, gt Gt, ge Ge);

macro_rules! operators {
    ($($trait:ident $name:ident $op:ident),*) => {$(
        impl $trait for V {
            type Output = V;
            fn $name(self, other: V) -> V { self.bin(BinOp::$op, other) }
        }
        impl $trait<f64> for V {
            type Output = V;
            fn $name(self, other: f64) -> V {
                let other = self.like(other);
                self.bin(BinOp::$op, other)
            }
        }
    )*};
}
operators!(Add add Add, Sub sub Sub, Mul mul Mul, Div div Div);

impl Neg for V {
    type Output = V;
    fn neg(self) -> V {
        self.un(UnOp::Neg)
    }
}
