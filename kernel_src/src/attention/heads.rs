//! Preparation of a layer's queries, keys and values for attention: norms of heads, and rotation by
//! position (RoPE).

use crate::attention::kv::KvLayout;
use crate::vocabulary::kernel::{SpecError, require};
use crate::vocabulary::shape::Shape;
use std::fmt;
use std::hash::{Hash, Hasher};

/// The elements of a head that rotate together, by position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RopeForm {
    /// Number of elements that rotate, from the head's start; even; 0: no rotation.
    pub dims: usize,
    /// True: elements `i` and `i + dims/2` rotate together. False: `2i` and `2i + 1`.
    pub halves: bool,
}

/// The kernels' table of rotations: `positions × dims/2` pairs `(cos, sin)` of f32, computed from
/// angles in f64. `frequencies` are angles per position; `magnitude` is a factor of both.
#[must_use]
pub fn angles(frequencies: &[f64], magnitude: f64, positions: usize) -> Vec<f32> {
    let rotated = |p: usize, f: f64| {
        let (sin, cos) = (p as f64 * f).sin_cos();
        [(cos * magnitude) as f32, (sin * magnitude) as f32]
    };
    (0..positions).flat_map(|p| frequencies.iter().flat_map(move |&f| rotated(p, f))).collect()
}

/// Preparation of a layer's queries, keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HeadsForm {
    /// Number of query heads, a multiple of the key heads.
    pub heads: usize,
    /// Layout of keys and values.
    pub kv: KvLayout,
    /// Whether heads of queries and keys get an RMS norm first.
    pub qk_norm: bool,
    /// Rotation of queries and keys.
    pub rope: RopeForm,
    /// Whether an earlier layer has already stored the new tokens' keys and values in the cache.
    /// Then only queries are prepared.
    pub kept_before: bool,
    /// Whether keys and values are in pages ([`PAGE`](crate::kv::PAGE)).
    pub paged: bool,
}

impl HeadsForm {
    pub(crate) fn check(&self, kernel: &'static str) -> Result<(), SpecError> {
        self.kv.check(kernel)?;
        require(self.heads > 0 && self.heads.is_multiple_of(self.kv.heads), kernel, || {
            format!("{} query heads are not a multiple of {} key heads", self.heads, self.kv.heads)
        })?;
        require(
            self.rope.dims.is_multiple_of(2) && self.rope.dims <= self.kv.head_dim,
            kernel,
            || {
                format!(
                    "rotation of {} of {} elements is not supported",
                    self.rope.dims, self.kv.head_dim
                )
            },
        )
    }

    pub(crate) fn shape(&self) -> Shape {
        self.kv
            .shape()
            .number("HEADS", self.heads)
            .flag("QK_NORM", self.qk_norm)
            .number("ROPE_DIMS", self.rope.dims)
            .flag("ROPE_HALVES", self.rope.halves)
            .flag("KEPT_BEFORE", self.kept_before)
    }
}

impl fmt::Display for HeadsForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let norm = if self.qk_norm { ", norm" } else { "" };
        let halves = if self.rope.halves { " in halves" } else { "" };
        write!(
            f,
            "{}/{} × {} {:?}{norm}",
            self.heads, self.kv.heads, self.kv.head_dim, self.kv.storage
        )?;
        write!(f, ", {} rotated{halves}", self.rope.dims)?;
        f.write_str(if self.kept_before { ", kept before" } else { "" })?;
        f.write_str(if self.paged { ", paged" } else { "" })
    }
}

/// Options of attention scores: the positions that a token sees, and changes to scores before the
/// softmax. By default all positions are visible and scores are unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Scores {
    /// Number of visible positions, including the token's own; `None`: all.
    pub window: Option<usize>,
    /// Only positions in the same chunk of this length are visible.
    pub chunk: Option<usize>,
    /// `cap · tanh(s / cap)`.
    pub soft_cap: Option<f32>,
    /// The largest exponent of the series of slopes (ALiBi): distance subtracts from scores, by
    /// head.
    pub alibi: Option<f32>,
    /// Whether a score for each head takes part in the softmax without a value (sink).
    pub sinks: bool,
    /// Later positions are also visible, up to this distance on both sides (encoders). `None`: no
    /// later position. Only attention of prompts supports it.
    pub around: Option<usize>,
}

impl Eq for Scores {}

impl Hash for Scores {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let floats = [self.soft_cap, self.alibi].map(|x| x.map(f32::to_bits));
        (self.window, self.chunk, floats, self.sinks, self.around).hash(state);
    }
}

impl Scores {
    /// No limit.
    pub const ALL: usize = 1 << 30;

    /// The end (exclusive) of the positions that a token at `here` sees, of `all`.
    #[must_use]
    pub fn seen_to(&self, here: usize, all: usize) -> usize {
        all.min(here.saturating_add(self.around.unwrap_or(0)).saturating_add(1))
    }

    /// The first position that a token at `here` sees.
    #[must_use]
    pub fn seen_from(&self, here: usize) -> usize {
        if let Some(n) = self.around {
            return here.saturating_sub(n);
        }
        let windowed = self.window.map_or(0, |w| (here + 1).saturating_sub(w));
        self.chunk.map_or(windowed, |n| (here / n.max(1) * n).max(windowed))
    }

    pub(crate) fn check(&self, kernel: &'static str) -> Result<(), SpecError> {
        let fine = self.chunk != Some(0) && !(self.chunk.is_some() && self.window.is_some());
        require(fine, kernel, || {
            format!(
                "chunks of {:?} and a window of {:?} cannot be combined or are 0",
                self.chunk, self.window
            )
        })?;
        let alone = self.around.is_none() || (self.chunk, self.window) == (None, None);
        require(alone, kernel, || {
            "a window or chunks cannot be combined with visible later positions".to_owned()
        })
    }

    /// The constants of `gpu/scores.h`, and the cap.
    pub(crate) fn shape(&self, shape: Shape) -> Shape {
        let least = |n: Option<usize>| n.unwrap_or(0).min(1 << 30);
        shape
            .number("WINDOW", least(self.window))
            .number("CHUNK", least(self.chunk))
            .real("SOFT_CAP", self.soft_cap.unwrap_or(0.0))
            .real("ALIBI", self.alibi.unwrap_or(0.0))
            .flag("SINKS", self.sinks)
    }
}

/// The form in a spec's string: `, window 1024, cap 50`.
impl fmt::Display for Scores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.window.map_or(Ok(()), |w| write!(f, ", window {w}"))?;
        self.chunk.map_or(Ok(()), |n| write!(f, ", chunks of {n}"))?;
        self.soft_cap.map_or(Ok(()), |c| write!(f, ", cap {c}"))?;
        self.alibi.map_or(Ok(()), |m| write!(f, ", alibi {m}"))?;
        f.write_str(if self.sinks { ", sinks" } else { "" })?;
        match self.around {
            None => Ok(()),
            Some(n) if n >= Scores::ALL => f.write_str(", all positions"),
            Some(n) => write!(f, ", {n} positions around"),
        }
    }
}
