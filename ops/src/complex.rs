//! Complex arithmetic on pairs of real expressions. The backends see only real values.

use crate::element::{BinOp, UnOp};
use crate::error::Result;
use crate::expr::V;
use crate::tensor::Tensor;
use std::f64::consts::{FRAC_PI_2, LN_2, LN_10};

/// A complex value for every element.
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

    /// Smith's algorithm, which avoids overflow in the squares of the divisor's real and imaginary
    /// parts.
    pub(crate) fn div(self, o: C) -> C {
        let (a, b, c, d) = (self.re, self.im, o.re, o.im);
        let wide = c.clone().abs().ge(d.clone().abs());
        let (low, high) = (wide.clone().select(d.clone(), c.clone()), wide.clone().select(c, d));
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
    fn times_i(self) -> C {
        C::new(-self.im, self.re)
    }

    /// -i z.
    fn times_minus_i(self) -> C {
        C::new(self.im, -self.re)
    }

    fn plus(self, by: f64) -> C {
        C::new(self.re + by, self.im)
    }

    fn select(c: V, a: C, b: C) -> C {
        C::new(c.clone().select(a.re, b.re), c.select(a.im, b.im))
    }

    fn exp(self) -> C {
        let (a, b) = (self.re, self.im);
        let size = a.clone().exp();
        let real = b.clone().eq(b.like(0.0));
        let z = C::new(
            size.clone() * b.clone().cos(),
            real.select(b.clone(), size.clone() * b.clone().sin()),
        );
        // Infinite exponent and undefined angle: the result is 0, or infinity with a NaN imaginary
        // part.
        let (zero, nan) = (size.like(0.0), size.like(f64::NAN));
        let lost = a.is_inf().and(b.is_finite().not());
        let none = size.clone().eq(zero.clone());
        let im = none.select(zero, nan);
        C::select(lost, C::new(size, im), z)
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
        let z = C::new(
            right.clone().select(t.clone(), u.clone()),
            right.select(u, t).copy_sign(b.clone()),
        );
        C::select(b.clone().is_inf(), C::new(b.clone().abs(), b), z)
    }

    fn cosh(self) -> C {
        let (a, b) = (self.re, self.im);
        let re = a.clone().cosh() * b.clone().cos();
        let im = a.clone().sinh() * b.clone().sin();
        let lost = a.clone().is_inf().and(b.clone().is_finite().not());
        // A real or imaginary part of 0 stays 0 if the other part is infinite or NaN.
        let (flat, even) = (b.clone().eq(b.like(0.0)), a.clone().eq(a.like(0.0)));
        let times_i = b.clone() * b.like(1.0).copy_sign(a.clone());
        let flat_im = a.clone().is_nan().select(b, times_i);
        let im = flat.select(flat_im, even.select(a.clone(), im));
        C::new(lost.select(a.abs(), re), im)
    }

    fn sinh(self) -> C {
        let (a, b) = (self.re, self.im);
        let re = a.clone().sinh() * b.clone().cos();
        let im = a.clone().cosh() * b.clone().sin();
        let lost = a.clone().is_inf().and(b.clone().is_finite().not());
        let (flat, even) = (b.clone().eq(b.like(0.0)), a.clone().eq(a.like(0.0)));
        C::new(lost.or(even).select(a, re), flat.select(b, im))
    }

    fn tanh(self) -> C {
        let (a, b) = (self.re, self.im);
        // cosh overflows long after the quotient has reached its limit.
        let far = a.clone().abs().gt(a.like(20.0)).and(b.clone().is_finite());
        let far = far.or(a.clone().is_inf());
        let (flat, even) = (b.clone().eq(b.like(0.0)), a.clone().eq(a.like(0.0)));
        let (twice, turn) = (a.clone() * 2.0, (b.clone() * 2.0).sin());
        let under = twice.clone().cosh() + (b.clone() * 2.0).cos();
        let re = even.select(a.clone(), twice.sinh() / under.clone());
        let im = flat.select(b.clone(), turn.clone() / under);
        let zero = b.like(0.0);
        // The array API defines the part at an infinity without a sign.
        let signed = b.is_finite().and(a.clone().is_finite());
        let tiny = signed.select(zero.clone().copy_sign(turn), zero);
        C::new(far.clone().select(a.like(1.0).copy_sign(a), re), far.select(tiny, im))
    }

    /// 1 for an infinity, 0 for a finite value, NaN for NaN, each with the sign of `v`.
    fn boxed(v: &V) -> V {
        let one = v.clone().is_inf().select(v.like(1.0), v.like(0.0));
        v.clone().is_nan().select(v.clone(), one.copy_sign(v.clone()))
    }

    fn infinite(&self) -> V {
        self.re.clone().is_inf().or(self.im.clone().is_inf())
    }

    fn conj(self) -> C {
        C::new(self.re, -self.im)
    }

    /// Kahan's formulas, which avoid cancellation.
    fn asinh(self) -> C {
        let (a, b) = (self.re.clone(), self.im.clone());
        // i z = -b + i a; roots of 1 + i z and 1 - i z.
        let (plus, minus) =
            (self.clone().times_i().plus(1.0), self.clone().times_minus_i().plus(1.0));
        let (plus, minus) = (plus.sqrt(), minus.sqrt());
        let re = minus.clone().conj().mul(plus.clone()).im.un(UnOp::Asinh);
        let im = b.clone().atan2(plus.mul(minus).re);
        let flat = b.clone().eq(b.like(0.0));
        let z = C::new(re, flat.select(b.clone(), im));
        let angle = C::boxed(&b).atan2(C::boxed(&a).abs());
        let far = C::new(a.like(f64::INFINITY).copy_sign(a), angle);
        C::select(self.infinite(), far, z)
    }

    fn asin(self) -> C {
        self.times_i().asinh().times_minus_i()
    }

    fn acos(self) -> C {
        let (a, b) = (self.re.clone(), self.im.clone());
        let (minus, plus) = (self.clone().neg().plus(1.0).sqrt(), self.clone().plus(1.0).sqrt());
        let re = minus.re.clone().atan2(plus.re.clone()) * 2.0;
        let im = plus.conj().mul(minus).im.un(UnOp::Asinh);
        let even = a.clone().eq(a.like(0.0)).and(b.clone().is_nan());
        let re = even.select(a.like(FRAC_PI_2), re);
        let angle = C::boxed(&b).abs().atan2(C::boxed(&a));
        let far = C::new(angle, -(b.like(f64::INFINITY).copy_sign(b)));
        C::select(self.infinite(), far, C::new(re, im))
    }

    fn acosh(self) -> C {
        let (a, b) = (self.re.clone(), self.im.clone());
        let (minus, plus) = (self.clone().plus(-1.0).sqrt(), self.clone().plus(1.0).sqrt());
        let re = minus.clone().conj().mul(plus.clone()).re.un(UnOp::Asinh);
        let im = minus.im.atan2(plus.re) * 2.0;
        let even = a.clone().eq(a.like(0.0)).and(b.clone().is_nan());
        let im = even.select(a.like(FRAC_PI_2), im);
        let far = C::new(a.like(f64::INFINITY), C::boxed(&b).atan2(C::boxed(&a)));
        C::select(self.infinite(), far, C::new(re, im))
    }

    fn atanh(self) -> C {
        let (a, b) = (self.re.clone(), self.im.clone());
        let left = -a.clone() + 1.0;
        let distance = left.clone() * left.clone() + b.clone() * b.clone();
        let re = (a.clone() * 4.0 / distance).un(UnOp::Log1p) * 0.25;
        let under = left * (a.clone() + 1.0) - b.clone() * b.clone();
        let im = (b.clone() * 2.0).atan2(under) * 0.5;
        let even = a.clone().eq(a.like(0.0));
        let z = C::new(even.select(a.clone(), re), im);
        let quarter = b.like(FRAC_PI_2).copy_sign(b.clone());
        let quarter = b.clone().is_nan().select(b.clone(), quarter);
        let far = C::new(a.like(0.0).copy_sign(a), quarter);
        C::select(self.infinite(), far, z)
    }

    fn pow(self, o: C) -> C {
        let one = C::new(self.re.like(1.0), self.re.like(0.0));
        let none = |c: &C| c.re.clone().eq(c.re.like(0.0)).and(c.im.clone().eq(c.im.like(0.0)));
        let (zero, to_zero) = (none(&self), none(&o));
        let power = o.mul(self.clone().log()).exp();
        let power = C::select(zero, C::new(one.im.clone(), one.im.clone()), power);
        C::select(to_zero, one, power)
    }

    /// An element-wise function of one complex value.
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
                C::new(z.re / size.clone() + 0.0, z.im / size + 0.0)
            }
            UnOp::Sqrt => z.sqrt(),
            UnOp::Exp => z.exp(),
            UnOp::Expm1 => {
                // exp(a) cos(b) - 1 = expm1(a) cos(b) - 2 sin(b/2)^2
                let half = (z.im.clone() * 0.5).sin();
                let (a, b) = (z.re.clone(), z.im.clone());
                let re = a.clone().expm1() * b.clone().cos() - half.clone() * half * 2.0;
                let lost = a.clone().is_inf().and(b.is_finite().not());
                C::new(lost.select(a.expm1(), re + 0.0), z.exp().im)
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
            UnOp::Sin => z.times_i().sinh().times_minus_i(),
            UnOp::Cos => z.times_i().cosh(),
            UnOp::Tan => z.times_i().tanh().times_minus_i(),
            UnOp::Asin => z.asin(),
            UnOp::Acos => z.acos(),
            UnOp::Atan => z.times_i().atanh().times_minus_i(),
            UnOp::Sinh => z.sinh(),
            UnOp::Cosh => z.cosh(),
            UnOp::Tanh => z.tanh(),
            UnOp::Asinh => z.asinh(),
            UnOp::Acosh => z.acosh(),
            UnOp::Atanh => z.atanh(),
            UnOp::Not | UnOp::Floor | UnOp::Ceil | UnOp::Trunc | UnOp::Erf | UnOp::SignBit => {
                return Ok(None);
            }
        };
        out.tensor().map(Some)
    }

    /// A function of two complex values; `None` if it is not defined for them.
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
