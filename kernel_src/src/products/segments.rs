//! Weights that one launch multiplies with one input, one *segment* each, and the epilogue. All
//! families of products share them (`gpu/matvec.h`, `gpu/small_gemm.h`, `gpu/gemm.h`).

use crate::vocabulary::kernel::{SpecError, require};
use crate::vocabulary::launch::Work;
use crate::vocabulary::shape::{Shape, gpu_enum};
use crate::vocabulary::weights;
use kjit_formats::format::Format;
use kjit_formats::layout::Layout;
use std::fmt;

/// One of the weights.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Segment {
    /// Format of the weights.
    pub format: &'static Format,
    /// Number of rows.
    pub rows: usize,
    /// Whether an f32 is added to each row.
    pub bias: bool,
}

impl Eq for Segment {}

impl std::hash::Hash for Segment {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (self.format.ggml_id, self.rows, self.bias).hash(state);
    }
}

/// Weights in a spec's string: `Q4_K 4096 + Q6_K 1024 with bias`.
pub(crate) struct SegmentsLabel<'a>(pub &'a [Segment]);

impl fmt::Display for SegmentsLabel<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, s) in self.0.iter().enumerate() {
            let (plus, bias) =
                (if i > 0 { " + " } else { "" }, if s.bias { " with bias" } else { "" });
            write!(f, "{plus}{} {}{bias}", s.format, s.rows)?;
        }
        Ok(())
    }
}

/// The epilogue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Finish {
    /// The results of each segment go to its own output.
    Store,
    /// A residual is added; only with one segment. The residual may be the output.
    Add,
    /// `silu(first) · second` goes to the first output; needs two segments with one layout.
    Silu,
    /// `gelu(first) · second` goes to the first output; needs two segments with one layout.
    Gelu,
}

impl Finish {
    /// Whether it is a gated unit: two weights give one result.
    #[must_use]
    pub const fn gated(self) -> bool {
        matches!(self, Finish::Silu | Finish::Gelu)
    }

    /// The function of the gate.
    pub(crate) const fn gate(self) -> Gate {
        match self {
            Finish::Store | Finish::Add => Gate::None,
            Finish::Silu => Gate::Silu,
            Finish::Gelu => Gate::Gelu,
        }
    }
}

/// The function of a gated unit: `act(gate) · up`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Gate {
    /// No gate.
    None,
    /// `x · sigmoid(x)`.
    Silu,
    /// GELU in the tanh form.
    Gelu,
}

gpu_enum!(ENUMS: Gate { None, Silu, Gelu });

/// The layout of a product's results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Results {
    /// Rows of f32.
    Singles,
    /// f16 in tiles: the input of a GEMM.
    Tiles,
    /// f16 in panels: the input of a small-batch GEMM.
    Panels,
}

gpu_enum!(ENUMS: Results { Singles, Tiles, Panels });

pub use crate::vocabulary::arguments::MOST_SEGMENTS as MOST;

/// The weights of a launch.
#[derive(Clone, Copy)]
pub(crate) struct Segments<'a> {
    /// Length of a row.
    pub cols: usize,
    pub all: &'a [Segment],
    pub finish: Finish,
}

impl Segments<'_> {
    /// Number of matrices for one result.
    pub fn lists(&self) -> usize {
        if self.finish.gated() { 2 } else { 1 }
    }

    /// Segments whose rows are results: for a gated unit only the first of two.
    pub fn results(&self) -> &[Segment] {
        if self.finish.gated() { self.all.get(..1).unwrap_or_default() } else { self.all }
    }

    /// Number of blocks that take `rows` rows of one segment each, or of both segments of a gated
    /// unit. Results are rounded up to a multiple of `whole`.
    pub fn tiles(&self, rows: usize, whole: usize) -> usize {
        let part = (rows / self.lists()).max(1);
        self.results().iter().map(|s| s.rows.next_multiple_of(whole).div_ceil(part)).sum()
    }

    /// The least work of a launch with `tokens` rows of activations: `experts` matrices of each
    /// weight, `input` and `output` bytes per element.
    pub fn work(&self, experts: usize, tokens: usize, input: usize, output: usize) -> Work {
        let bytes = |s: &Segment| {
            Layout::new(s.format, self.cols).and_then(|l| l.bytes(s.rows, experts)).unwrap_or(0)
        };
        let weights: usize = self.all.iter().map(bytes).sum();
        let rows = |all: &[Segment]| all.iter().map(|s| s.rows).sum::<usize>();
        let residual = if self.finish == Finish::Add { 4 * rows(self.results()) } else { 0 };
        let each = input * self.cols + output * rows(self.results()) + residual;
        Work {
            bytes: (weights + tokens * each) as u64,
            operations: (2 * tokens * rows(self.all) * self.cols) as u64,
        }
    }

    /// Whether the segments can be combined and have a layout.
    pub fn check(&self, kernel: &'static str, experts: usize) -> Result<(), SpecError> {
        let n = self.all.len();
        require((1..=MOST).contains(&n), kernel, || {
            format!(
                "{n} weights: 1 to {MOST} are \
        supported"
            )
        })?;
        require(self.finish != Finish::Add || n == 1, kernel, || {
            format!("a residual needs exactly 1 weight, not {n}")
        })?;
        let same = |a: &Segment, b: &Segment| a.format == b.format && a.rows == b.rows;
        require(!self.finish.gated() || matches!(self.all, [a, b] if same(a, b)), kernel, || {
            "a gated unit needs two weights of one format and size".to_owned()
        })?;
        for s in self.all {
            require(s.rows > 0 && s.rows <= 1 << 30, kernel, || format!("{} rows", s.rows))?;
            Layout::new(s.format, self.cols)?.bytes(s.rows, experts)?;
        }
        Ok(())
    }

    /// The constants of the segments, with a struct for each *run* of neighbours with one format.
    pub fn shape(&self) -> Result<Shape, SpecError> {
        const RUNS: [&str; MOST] = ["Run0", "Run1", "Run2"];
        let mut shape = Shape::new()
            .number("SEGMENTS", self.all.len())
            .number(
                "BIASES",
                self.all.iter().enumerate().map(|(i, s)| i64::from(s.bias) << i).sum::<i64>(),
            )
            .flag("RESIDUAL", self.finish == Finish::Add)
            .choice("GATE", &self.finish.gate());
        for (i, name) in ["ROWS_0", "ROWS_1", "ROWS_2"].into_iter().enumerate() {
            shape = shape.number(name, self.all.get(i).map_or(1, |s| s.rows));
        }
        let starts = |i: &usize| {
            *i == 0 || self.all.get(i - 1).map(|s| s.format) != self.all.get(*i).map(|s| s.format)
        };
        let starts: Vec<usize> = (0..self.all.len()).filter(starts).collect();
        for (run, name) in RUNS.into_iter().enumerate() {
            shape = match starts.get(run).and_then(|i| self.all.get(*i)) {
                Some(s) => shape.inner(name, weights::records(&Layout::new(s.format, self.cols)?)),
                None => shape.alias(name, "Run0"),
            };
        }
        let start = |run: usize| starts.get(run).copied().unwrap_or(self.all.len());
        Ok(shape.number("RUN_1", start(1)).number("RUN_2", start(2)))
    }
}
