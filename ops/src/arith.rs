//! Element-wise operations: accepted dtypes and promotion of two operands.

use crate::complex::C;
use crate::device::Device;
use crate::dtype::{DType, Kind};
use crate::element::{BinOp, UnOp};
use crate::error::{Error, Result};
use crate::expr;
use crate::promotion::promote;
use crate::scalar::Scalar;
use crate::tensor::Tensor;

impl Tensor {
    /// The values converted to `dtype`. Complex values cannot become real.
    ///
    /// # Errors
    /// [`Error::DType`] from complex to real.
    pub fn astype(&self, dtype: DType) -> Result<Tensor> {
        if dtype == self.dtype() {
            return Ok(self.clone());
        }
        match (self.im.is_some(), dtype.is_complex()) {
            (true, false) => Err(Error::dtype(
                "astype",
                format!("{} cannot be cast to {dtype}: use real() or imag()", self.dtype()),
            )),
            (false, true) => {
                let re = expr::cast(&self.re, dtype.part())?;
                let im =
                    expr::constant(Scalar::Float(0.0), dtype.part(), self.shape(), self.device())?;
                Ok(Tensor { re, im: Some(im) })
            }
            _ => self.parts(|node| expr::cast(node, dtype.part())),
        }
    }

    /// An element-wise function of one tensor.
    ///
    /// # Errors
    /// [`Error::DType`] if the function does not take this dtype.
    pub fn unary(&self, op: UnOp) -> Result<Tensor> {
        let (name, dtype) = (op.name(), self.dtype());
        let refuse = |takes: &str| Err(Error::takes(name, takes, dtype));
        if self.im.is_some() {
            return match C::of(self).unary(op)? {
                Some(out) => Ok(out),
                None => refuse("real numbers"),
            };
        }
        match (op, dtype.kind()) {
            (UnOp::Not, Kind::Float) => return refuse("integers and bools"),
            (UnOp::Not, _) => {}
            // As in torch, exp of an integer tensor has the default float dtype.
            (_, Kind::Bool | Kind::Signed | Kind::Unsigned) if op.is_float() => {
                return self.astype(DType::F32)?.unary(op);
            }
            (_, Kind::Bool) if !op.tests() => return refuse("numbers"),
            _ => {}
        }
        Tensor::from_v(self.v().un(op))
    }

    /// An element-wise function of two tensors, which are promoted and broadcast.
    ///
    /// # Errors
    /// [`Error::DType`], [`Error::Shape`], [`Error::Devices`] if they do not match.
    pub fn binary(&self, op: BinOp, other: &Tensor) -> Result<Tensor> {
        let name = op.name();
        Device::same(name, self.device(), other.device())?;
        let mut dtype = promote(name, self.dtype(), other.dtype())?;
        let refuse = |takes: &str| Err(Error::takes(name, takes, dtype));
        match dtype.kind() {
            Kind::Float | Kind::Complex if op.is_bits() => return refuse("integers and bools"),
            Kind::Bool if matches!(op, BinOp::Shl | BinOp::Shr) => return refuse("integers"),
            Kind::Bool if !(op.is_bits() || op.compares()) => match op {
                BinOp::Min | BinOp::Max | BinOp::Div => {}
                _ => return refuse("numbers"),
            },
            _ => {}
        }
        if op.is_float() && !dtype.is_float() {
            dtype = DType::F32;
        }
        let (a, b) = (self.astype(dtype)?, other.astype(dtype)?);
        if dtype.is_complex() {
            return match C::of(&a).binary(op, C::of(&b))? {
                Some(out) => Ok(out),
                None => Err(Error::takes(name, "real numbers", dtype)),
            };
        }
        Tensor::from_v(a.v().bin(op, b.v()))
    }

    /// `a` if `self` is true, otherwise `b`.
    ///
    /// # Errors
    /// As [`Tensor::binary`]; [`Error::DType`] unless `self` is bool.
    pub fn select(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        if !self.is_bool() {
            return Err(Error::takes("where", "a bool condition", self.dtype()));
        }
        let dtype = promote("where", a.dtype(), b.dtype())?;
        let (a, b) = (a.astype(dtype)?, b.astype(dtype)?);
        let re = self.v().select(a.v(), b.v());
        if dtype.is_complex() {
            return Tensor::pair(re, self.v().select(a.vi(), b.vi()));
        }
        Tensor::from_v(re)
    }

    /// Whether each element is nonzero.
    ///
    /// # Errors
    /// None of its own.
    pub fn truth(&self) -> Result<Tensor> {
        if self.is_bool() {
            return Ok(self.clone());
        }
        let part = |v: expr::V| v.clone().ne(v.like(0.0));
        match &self.im {
            Some(_) => Tensor::from_v(part(self.v()).or(part(self.vi()))),
            None => Tensor::from_v(part(self.v())),
        }
    }

    /// The real part.
    ///
    /// # Errors
    /// None of its own.
    pub fn real_part(&self) -> Result<Tensor> {
        Ok(Tensor::real(self.re.clone()))
    }

    /// The imaginary part; zeros for a real tensor.
    ///
    /// # Errors
    /// None of its own.
    pub fn imag_part(&self) -> Result<Tensor> {
        Tensor::from_v(self.vi())
    }

    /// The complex conjugate.
    ///
    /// # Errors
    /// None of its own.
    pub fn conj(&self) -> Result<Tensor> {
        match &self.im {
            Some(_) => Tensor::pair(self.v(), -self.vi()),
            None => Ok(self.clone()),
        }
    }

    /// Clamps each value to `low..=high`; the bounds broadcast, and the dtype stays.
    ///
    /// # Errors
    /// As [`Tensor::binary`].
    pub fn clip(&self, low: Option<&Tensor>, high: Option<&Tensor>) -> Result<Tensor> {
        let limit = |x: &Tensor, op, bound: Option<&Tensor>| match bound {
            Some(bound) => {
                Device::same("clip", x.device(), bound.device())?;
                x.binary(op, &bound.astype(self.dtype())?)
            }
            None => Ok(x.clone()),
        };
        limit(&limit(self, BinOp::Max, low)?, BinOp::Min, high)
    }
}

macro_rules! unaries {
    ($($(#[$doc:meta])* $name:ident $op:ident),* $(,)?) => {
        impl Tensor {$(
            $(#[$doc])*
            ///
            /// # Errors
            /// [`Error::DType`] if the function does not take this dtype.
            pub fn $name(&self) -> Result<Tensor> { self.unary(UnOp::$op) }
        )*}
    };
}
unaries!(
    /// Its negative.
    neg Neg,
    /// Absolute value.
    abs Abs,
    /// Square root; NaN below 0.
    sqrt Sqrt,
    /// Exponential function.
    exp Exp,
    /// Natural logarithm.
    log Log,
    /// Sine of radians.
    sin Sin,
    /// Cosine of radians.
    cos Cos,
    /// Hyperbolic tangent.
    tanh Tanh,
);

macro_rules! binaries {
    ($($(#[$doc:meta])* $name:ident $op:ident),* $(,)?) => {
        impl Tensor {$(
            $(#[$doc])*
            ///
            /// # Errors
            /// As [`Tensor::binary`].
            pub fn $name(&self, other: &Tensor) -> Result<Tensor> {
                self.binary(BinOp::$op, other)
            }
        )*}
    };
}
binaries!(
    /// Sum of each pair.
    add Add,
    /// Difference.
    sub Sub,
    /// Product.
    mul Mul,
    /// Quotient; integers are divided in f32.
    div Div,
    /// `self` to the power of `other`.
    pow Pow,
    /// The lesser of two; NaN if either is NaN.
    minimum Min,
    /// The greater of two; NaN if either is NaN.
    maximum Max,
    /// Equal.
    eq Eq,
    /// Not equal.
    ne Ne,
    /// Less.
    lt Lt,
    /// Less or equal.
    le Le,
    /// Greater.
    gt Gt,
    /// Greater or equal.
    ge Ge,
);
