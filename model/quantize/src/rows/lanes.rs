//! Arithmetic on several groups of weights together: lane `n` of every number belongs to group `n`.
//!
//! The order of the operations inside a group determines the bits of the result, so the sum over a
//! group's weights is serial. Several groups in parallel keep the SIMD units busy.

use std::ops::{Add, Div, Mul, Neg, Sub};

/// One f32 for each of `N` groups.
#[derive(Debug, Clone, Copy)]
pub struct Lanes<const N: usize>(pub [f32; N]);

/// A condition for each group: all bits set, or none.
#[derive(Debug, Clone, Copy)]
pub struct Mask<const N: usize>([u32; N]);

macro_rules! operator {
    ($trait:ident $name:ident $op:tt) => {
        impl<const N: usize> $trait for Lanes<N> {
            type Output = Self;
            #[inline(always)]
            fn $name(self, other: Self) -> Self {
                Lanes(std::array::from_fn(|n| self.0[n] $op other.0[n]))
            }
        }
    };
}
operator!(Add add +);
operator!(Sub sub -);
operator!(Mul mul *);
operator!(Div div /);

impl<const N: usize> Neg for Lanes<N> {
    type Output = Self;
    #[inline(always)]
    fn neg(self) -> Self {
        Lanes(self.0.map(|v| -v))
    }
}

impl<const N: usize> Lanes<N> {
    /// One number in all groups.
    #[inline(always)]
    pub fn all(value: f32) -> Self {
        Lanes([value; N])
    }

    #[inline(always)]
    pub fn abs(self) -> Self {
        Lanes(self.0.map(f32::abs))
    }

    #[inline(always)]
    pub fn sqrt(self) -> Self {
        Lanes(self.0.map(f32::sqrt))
    }

    /// The nearest integer ([`nearest`]), as a float.
    #[inline(always)]
    pub fn nearest(self) -> Self {
        Lanes(self.0.map(|v| nearest(v) as f32))
    }

    /// Between `low` and `high`. Not for NaN.
    #[inline(always)]
    pub fn clamp(self, low: f32, high: f32) -> Self {
        Lanes(self.0.map(|v| {
            let v = if v < high { v } else { high };
            if v > low { v } else { low }
        }))
    }

    #[inline(always)]
    pub fn less(self, other: Self) -> Mask<N> {
        Mask(std::array::from_fn(|n| if self.0[n] < other.0[n] { u32::MAX } else { 0 }))
    }

    #[inline(always)]
    pub fn equals(self, other: Self) -> Mask<N> {
        Mask(std::array::from_fn(|n| if self.0[n] == other.0[n] { u32::MAX } else { 0 }))
    }
}

impl<const N: usize> Mask<N> {
    #[inline(always)]
    pub fn and(self, other: Self) -> Self {
        Mask(std::array::from_fn(|n| self.0[n] & other.0[n]))
    }

    #[inline(always)]
    pub fn not(self) -> Self {
        Mask(self.0.map(|m| !m))
    }

    /// Whether the condition holds for any group.
    #[inline(always)]
    pub fn any(self) -> bool {
        self.0.iter().fold(0, |all, m| all | m) != 0
    }

    /// `yes` for the groups in which the condition holds, `no` for the others.
    #[inline(always)]
    pub fn select(self, yes: Lanes<N>, no: Lanes<N>) -> Lanes<N> {
        Lanes(std::array::from_fn(|n| {
            let (yes, no) = (yes.0[n].to_bits(), no.0[n].to_bits());
            f32::from_bits(yes & self.0[n] | no & !self.0[n])
        }))
    }
}

/// The nearest integer for magnitudes below 2^22; halves go to the even integer. Adding 3 · 2^22
/// leaves the integer in the low bits of the float.
#[inline(always)]
pub fn nearest(v: f32) -> i32 {
    ((v + 12_582_912.0).to_bits() & 0x7f_ffff) as i32 - 0x40_0000
}

/// The groups of a run of weights as lanes: entry `i` has weight `i` of each group of `len`.
/// Groups after the end of `weights` are zeros.
#[inline(always)]
pub fn by_group<const N: usize>(weights: &[f32], len: usize, out: &mut [Lanes<N>]) {
    out[..len].fill(Lanes::all(0.0));
    for (n, group) in weights.chunks_exact(len).take(N).enumerate() {
        for (lanes, weight) in out.iter_mut().zip(group) {
            lanes.0[n] = *weight;
        }
    }
}
