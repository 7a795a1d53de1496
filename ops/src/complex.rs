//! Complex arithmetic by pairs of real expressions. The backends never see a complex value.

use crate::element::{BinOp, UnOp};
use crate::error::Result;
use crate::expr::V;
use crate::tensor::Tensor;
use std::f64::consts::{FRAC_PI_2, LN_2, LN_10};

/// A complex value of every element.
#[derive(Clone)]
pub(crate) struct C {
    pub re: V,
    pub im: V,
}

impl C {
    pub(crate) fn of(t: &Tensor) -> C {
        C { re: t.v(), im: t.vi() }
    }

    pub(crate) fn tensor(self) -> Result<Tensor> {
        Tensor::pair(self.re, self.im)
    }

    fn new(re: V, im: V) -> C {
        C { re, im }
    }

    fn abs(&self) -> V {
        self.re.clone().hypot(self.im.clone())
    }

    pub(crate) fn add(self, o: C) -> C {
        C::new(self.re + o.re, self.im + o.im)
    }

    pub(crate) fn sub(self, o: C) -> C {
        C::new(self.re - o.re, self.im - o.im)
    }

    pub(crate) fn mul(self, o: C) -> C {
        let (a, b, c, d) = (self.re, self.im, o.re, o.im);
        C::new(a.clone() * c.clone() - b.clone() * d.clone(), a * d + b * c)
    }

    /// Smith's way: no square of a divisor's part overflows.
    pub(crate) fn div(self, o: C) -> C {
        let (a, b, c, d) = (self.re, self.im, o.re, o.im);
        let wide = c.clone().abs().ge(d.clone().abs());
        let (low, high) = (
            wide.clone().select(d.clone(), c.clone()),
            wide.clone().select(c, d),
        );
        let zero = high.clone().eq(high.like(0.0));
        let r = zero.select(low.clone(), low.clone() / high.clone());
        let under = high + low * r.clone();
        let (x, y) = (wide.clone().select(a.clone(), b.clone()), wide.clone().select(b, a));
        let re = (x.clone() + y.clone() * r.clone()) / under.clone();
        let im = (y - x * r) / under;
        C::new(re, wide.select(im.clone(), -im))
    }

    fn scale(self, by: f64) -> C {
        C::new(self.re * by, self.im * by)
    }

    fn neg(self) -> C {
        C::new(-self.re, -self.im)
    }

    /// i z.
    fn turned(self) -> C {
        C::new(-self.im, self.re)
    }

    /// -i z.
    fn back(self) -> C {
        C::new(self.im, -self.re)
    }

    fn plus(self, by: f64) -> C {
        C::new(self.re + by, self.im)
    }

    fn select(c: V, a: C, b: C) -> C {
        C::new(c.clone().select(a.re, b.re), c.select(a.im, b.im))
    }

    fn exp(self) -> C {
        let size = self.re.exp();
        let real = self.im.clone().eq(self.im.like(0.0));
        C::new(
            size.clone() * self.im.clone().cos(),
            real.select(self.im.clone(), size * self.im.sin()),
        )
    }

    fn log(self) -> C {
        let size = self.abs().log();
        C::new(size, self.im.atan2(self.re))
    }

    fn sqrt(self) -> C {
        let (a, b) = (self.re.clone(), self.im.clone());
        let t = ((a.clone().abs() * 0.5) + (self.abs() * 0.5)).sqrt();
        let zero = t.clone().eq(t.like(0.0));
        let u = zero.select(t.like(0.0), b.clone().abs() / (t.clone() * 2.0));
        let right = a.clone().ge(a.like(0.0));
        C::new(
            right.clone().select(t.clone(), u.clone()),
            right.select(u, t).copy_sign(b),
        )
    }

    fn sin(self) -> C {
        let (a, b) = (self.re, self.im);
        C::new(a.clone().sin() * b.clone().cosh(), a.cos() * b.sinh())
    }

    fn cos(self) -> C {
        let (a, b) = (self.re, self.im);
        C::new(a.clone().cos() * b.clone().cosh(), -(a.sin() * b.sinh()))
    }

    fn tan(self) -> C {
        let (a, b) = (self.re * 2.0, self.im * 2.0);
        // cosh overflows long after the quotient has reached its limit.
        let far = b.clone().abs().gt(b.like(40.0));
        let under = a.clone().cos() + b.clone().cosh();
        C::new(
            far.clone().select(b.like(0.0).copy_sign(a.clone()), a.sin() / under.clone()),
            far.select(b.like(1.0).copy_sign(b.clone()), b.sinh() / under),
        )
    }

    fn asinh(self) -> C {
        // Odd: computed where the sum does not cancel.
        let left = self.re.clone().lt(self.re.like(0.0));
        let z = C::select(left.clone(), self.clone().neg(), self.clone());
        let large = z.abs().gt(self.re.like(1e8));
        let near = z.clone().add(z.clone().mul(z.clone()).plus(1.0).sqrt()).log();
        let far = z.log().plus(LN_2);
        let out = C::select(large, far, near);
        C::select(left, out.clone().neg(), out)
    }

    fn asin(self) -> C {
        self.turned().asinh().back()
    }

    fn acos(self) -> C {
        let s = self.asin();
        C::new(-s.re + FRAC_PI_2, -s.im)
    }

    fn acosh(self) -> C {
        // log(z + sqrt(z + 1) sqrt(z - 1))
        let root = self.clone().plus(1.0).sqrt().mul(self.clone().plus(-1.0).sqrt());
        let large = self.abs().gt(self.re.like(1e8));
        let near = self.clone().add(root).log();
        C::select(large, self.log().plus(LN_2), near)
    }

    fn atanh(self) -> C {
        // (log(1 + z) - log(1 - z)) / 2
        let plus = self.clone().plus(1.0).log();
        plus.sub(self.neg().plus(1.0).log()).scale(0.5)
    }

    fn pow(self, o: C) -> C {
        let one = C::new(self.re.like(1.0), self.re.like(0.0));
        let none = |c: &C| {
            c.re.clone().eq(c.re.like(0.0)).and(c.im.clone().eq(c.im.like(0.0)))
        };
        let (zero, to_zero) = (none(&self), none(&o));
        let power = o.mul(self.clone().log()).exp();
        let power = C::select(zero, C::new(one.im.clone(), one.im.clone()), power);
        C::select(to_zero, one, power)
    }

    /// What an element-wise function of one value gives.
    pub(crate) fn unary(self, op: UnOp) -> Result<Option<Tensor>> {
        let z = self;
        let out = match op {
            UnOp::Abs => return Tensor::from_v(z.abs()).map(Some),
            UnOp::IsNan => {
                return Tensor::from_v(z.re.is_nan().or(z.im.is_nan())).map(Some);
            }
            UnOp::IsInf => return Tensor::from_v(z.re.is_inf().or(z.im.is_inf())).map(Some),
            UnOp::IsFinite => {
                return Tensor::from_v(z.re.is_finite().and(z.im.is_finite())).map(Some);
            }
            UnOp::Neg => z.neg(),
            UnOp::Round => C::new(z.re.un(UnOp::Round), z.im.un(UnOp::Round)),
            UnOp::Sign => {
                let size = z.abs();
                let zero = size.clone().eq(size.like(0.0));
                let size = zero.select(size.like(1.0), size);
                C::new(z.re / size.clone(), z.im / size)
            }
            UnOp::Sqrt => z.sqrt(),
            UnOp::Exp => z.exp(),
            UnOp::Expm1 => {
                // exp(a) cos(b) - 1 = expm1(a) cos(b) - 2 sin(b/2)^2
                let half = (z.im.clone() * 0.5).sin();
                let re = z.re.clone().expm1() * z.im.clone().cos() - half.clone() * half * 2.0;
                C::new(re, z.exp().im)
            }
            UnOp::Log => z.log(),
            UnOp::Log1p => {
                let w = z.clone().plus(1.0);
                // |1 + z|^2 - 1 = 2 a + a^2 + b^2, for small z.
                let (a, b) = (z.re.clone(), z.im.clone());
                let more = a.clone() * 2.0 + a.clone() * a + b.clone() * b;
                let small = z.abs().lt(z.re.like(0.5));
                let re = small.select(more.log1p() * 0.5, w.abs().log());
                C::new(re, w.im.atan2(w.re))
            }
            UnOp::Log2 => z.log().scale(1.0 / LN_2),
            UnOp::Log10 => z.log().scale(1.0 / LN_10),
            UnOp::Sin => z.sin(),
            UnOp::Cos => z.cos(),
            UnOp::Tan => z.tan(),
            UnOp::Asin => z.asin(),
            UnOp::Acos => z.acos(),
            UnOp::Atan => z.turned().atanh().back(),
            UnOp::Sinh => z.turned().sin().back(),
            UnOp::Cosh => z.turned().cos(),
            UnOp::Tanh => z.turned().tan().back(),
            UnOp::Asinh => z.asinh(),
            UnOp::Acosh => z.acosh(),
            UnOp::Atanh => z.atanh(),
            UnOp::Not | UnOp::Floor | UnOp::Ceil | UnOp::Trunc | UnOp::Erf | UnOp::SignBit => {
                return Ok(None);
            }
        };
        out.tensor().map(Some)
    }

    /// What one of two values gives; none where there is no such complex function.
    pub(crate) fn binary(self, op: BinOp, o: C) -> Result<Option<Tensor>> {
        let same = |a: &C, b: &C| a.re.clone().eq(b.re.clone()).and(a.im.clone().eq(b.im.clone()));
        let out = match op {
            BinOp::Add => self.add(o),
            BinOp::Sub => self.sub(o),
            BinOp::Mul => self.mul(o),
            BinOp::Div => self.div(o),
            BinOp::Pow => self.pow(o),
            BinOp::Eq => return Tensor::from_v(same(&self, &o)).map(Some),
            BinOp::Ne => return Tensor::from_v(same(&self, &o).not()).map(Some),
            _ => return Ok(None),
        };
        out.tensor().map(Some)
    }
}
