//! Weights that are multiplied with one input by one launch, a *segment* each, and what happens to their results: what every family of
//! products has alike (`gpu/matvec.hip`, `gpu/strips.hip`, `gpu/gemm.hip`).

use crate::format::Format;
use crate::kernel::{SpecError, require};
use crate::layout::Layout;
use crate::render::weights_struct;
use kjit_engine::Constants;

/// One of the weights.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Segment {
    /// Its format.
    pub format: &'static Format,
    /// Its rows.
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

/// What happens to the rows' results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Finish {
    /// Each segment's go to its own output.
    Store,
    /// A residual is added; one segment. The residual may be the output.
    Add,
    /// `silu(first) · second`, to the first output; two segments of one layout.
    Silu,
    /// `gelu(first) · second`, likewise.
    Gelu,
}

impl Finish {
    /// Whether it is a gated unit: two weights make one result.
    #[must_use]
    pub const fn gated(self) -> bool {
        matches!(self, Finish::Silu | Finish::Gelu)
    }

    /// `GLU`.
    const fn number(self) -> i64 {
        match self {
            Finish::Store | Finish::Add => 0,
            Finish::Silu => 1,
            Finish::Gelu => 2,
        }
    }
}

/// Weights that a launch takes at most.
pub const MOST: usize = 3;

/// The weights of a launch.
#[derive(Clone, Copy)]
pub(crate) struct Segments<'a> {
    /// Length of a row.
    pub cols: usize,
    pub all: &'a [Segment],
    pub finish: Finish,
}

impl Segments<'_> {
    /// Matrices that a result is made of.
    pub fn lists(&self) -> usize {
        if self.finish.gated() { 2 } else { 1 }
    }

    /// Those whose rows are results: of a gated unit's two the first.
    pub fn results(&self) -> &[Segment] {
        if self.finish.gated() { self.all.get(..1).unwrap_or_default() } else { self.all }
    }

    /// Blocks that take `rows` rows of one segment each, a gated unit's from both; results are rounded up to a multiple of `whole`.
    pub fn tiles(&self, rows: usize, whole: usize) -> usize {
        let part = (rows / self.lists()).max(1);
        self.results().iter().map(|s| s.rows.next_multiple_of(whole).div_ceil(part)).sum()
    }

    /// Bytes of the weights, of `experts` matrices each.
    pub fn bytes(&self, experts: usize) -> Result<usize, SpecError> {
        self.all.iter().map(|s| Ok(Layout::new(s.format, self.cols)?.bytes(s.rows, experts)?)).sum()
    }

    /// Whether they go together, and can be laid out.
    pub fn check(&self, kernel: &'static str, experts: usize) -> Result<(), SpecError> {
        let n = self.all.len();
        require((1..=MOST).contains(&n), kernel, || format!("{n} weights, it takes 1 to {MOST}"))?;
        require(self.finish != Finish::Add || n == 1, kernel, || format!("a residual with {n} weights, it takes 1"))?;
        let same = |a: &Segment, b: &Segment| a.format == b.format && a.rows == b.rows;
        require(!self.finish.gated() || matches!(self.all, [a, b] if same(a, b)), kernel, || {
            "a gated unit takes two weights of one format and size".to_owned()
        })?;
        for s in self.all {
            require(s.rows > 0 && s.rows <= 1 << 30, kernel, || format!("{} rows", s.rows))?;
            Layout::new(s.format, self.cols)?.bytes(s.rows, experts)?;
        }
        Ok(())
    }

    /// The text of `weights_gen.h`, a struct for each *run* of neighbours of one format, and the constants that say which rows are whose.
    pub fn render(&self, constants: Constants) -> Result<(String, Constants), SpecError> {
        let (mut header, mut starts, mut before) = (String::new(), vec![], None);
        for (i, s) in self.all.iter().enumerate() {
            if before != Some(s.format) {
                header.push_str(&weights_struct(&format!("Run{}", starts.len()), &Layout::new(s.format, self.cols)?));
                starts.push(i);
            }
            before = Some(s.format);
        }
        let mut constants = constants
            .set("SEGMENTS", self.all.len() as i64)
            .set("BIASES", self.all.iter().enumerate().map(|(i, s)| i64::from(s.bias) << i).sum::<i64>())
            .set("RESIDUAL", i64::from(self.finish == Finish::Add))
            .set("GLU", self.finish.number());
        for i in 0..MOST {
            constants = constants.set(format!("ROWS_{i}"), self.all.get(i).map_or(1, |s| s.rows as i64));
        }
        for run in 1..MOST {
            constants = constants.set(format!("RUN_{run}"), *starts.get(run).unwrap_or(&self.all.len()) as i64);
        }
        Ok((header, constants))
    }
}
