//! How queries, keys and values of a layer are made ready for attention: norms of heads, and rotation by
//! position (RoPE).

use crate::kernel::{SpecError, require};
use crate::kv::KvLayout;
use crate::render::Shape;
use std::fmt;

/// Which elements of a head rotate together, by position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RopeForm {
    /// Elements that rotate, from the head's start; even, 0 for none.
    pub dims: usize,
    /// Elements `i` and `i + dims/2` rotate together; else `2i` and `2i + 1`.
    pub halves: bool,
}

/// The table of rotations that the kernels take: `positions × dims/2` pairs `(cos, sin)` of f32, from angles
/// in f64, as little-endian bytes. `frequencies` are angles per position, `magnitude` a factor on both.
#[must_use]
pub fn angles(frequencies: &[f64], magnitude: f64, positions: usize) -> Vec<f32> {
    let rotated = |p: usize, f: f64| {
        let (sin, cos) = (p as f64 * f).sin_cos();
        [(cos * magnitude) as f32, (sin * magnitude) as f32]
    };
    (0..positions).flat_map(|p| frequencies.iter().flat_map(move |&f| rotated(p, f))).collect()
}

/// How queries, keys and values of a layer are made ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HeadsForm {
    /// Query heads, a multiple of the key heads.
    pub heads: usize,
    /// Keys and values.
    pub kv: KvLayout,
    /// Heads of queries and keys are RMS-normed first.
    pub qk_norm: bool,
    /// Rotation.
    pub rope: RopeForm,
}

impl HeadsForm {
    pub(crate) fn check(&self, kernel: &'static str) -> Result<(), SpecError> {
        self.kv.check(kernel)?;
        require(self.heads > 0 && self.heads.is_multiple_of(self.kv.heads), kernel, || {
            format!("{} query heads over {} key heads", self.heads, self.kv.heads)
        })?;
        require(self.rope.dims.is_multiple_of(2) && self.rope.dims <= self.kv.head_dim, kernel, || {
            format!("{} of {} elements rotate", self.rope.dims, self.kv.head_dim)
        })
    }

    pub(crate) fn shape(&self) -> Shape {
        self.kv
            .shape()
            .number("HEADS", self.heads)
            .flag("QK_NORM", self.qk_norm)
            .number("ROPE_DIMS", self.rope.dims)
            .flag("ROPE_HALVES", self.rope.halves)
    }
}

impl fmt::Display for HeadsForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let norm = if self.qk_norm { ", norm" } else { "" };
        let halves = if self.rope.halves { " in halves" } else { "" };
        write!(f, "{}/{} × {} {:?}{norm}", self.heads, self.kv.heads, self.kv.head_dim, self.kv.storage)?;
        write!(f, ", {} rotated{halves}", self.rope.dims)
    }
}

/// What attention sees, in a spec's text: `, window 1024, cap 50`.
pub(crate) struct Seen(pub Option<usize>, pub Option<f32>);

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |w| write!(f, ", window {w}"))?;
        self.1.map_or(Ok(()), |c| write!(f, ", cap {c}"))
    }
}
