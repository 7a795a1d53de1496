//! Matrix × vector: one to three weights with the same input, for one or a few columns of
//! activations. `gpu/matvec.h`.

mod tuning;

pub use tuning::{MatvecTuning, STARTS, Start, takes_1024};

use crate::products::segments::{Finish, Segment, Segments, SegmentsLabel};
use crate::vocabulary::activations::{Column, Form, Prologue, PrologueLabel};
use crate::vocabulary::arguments::arguments;
use crate::vocabulary::family::Family;
use crate::vocabulary::kernel::{Kernel, SpecError, of_shape, require, shared_bytes};
use crate::vocabulary::launch::{Block, Grid, Size, Work};
use crate::vocabulary::shape::Shape;
use crate::vocabulary::step;
use crate::vocabulary::step::{Record, Step, StepContext, packets};
use crate::vocabulary::variant::choice;
use kjit_engine::{Dot, Target, Vendor};
use kjit_formats::format::Format;
use kjit_formats::layout::Layout;
use std::fmt;

/// A matrix–vector product.
///
/// Numerics: quantised weights are multiplied with 16-bit integer activations (one scale for each
/// 32, error 2⁻¹⁶ of the group's largest value) in exact integer dot products. Plain weights are
/// multiplied with f32 activations. Sums across groups are f32.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MatvecSpec {
    /// Length of a row.
    pub cols: usize,
    /// Number of columns of activations: 1 to 8.
    pub columns: usize,
    /// Transformation of the activations before the product.
    pub prologue: Prologue,
    /// Whether `x` has quantised columns (written by
    /// [`QuantizeSpec`](crate::quantize::QuantizeSpec)) instead of f32; then there is no prologue.
    pub quantized: bool,
    /// The weights.
    pub segments: Vec<Segment>,
    /// The epilogue.
    pub finish: Finish,
    /// The division of the work; `None`: the default of the target's family.
    pub tuning: Option<MatvecTuning>,
}

arguments! {
    /// The arguments of a matrix–vector product. Weights are row records of [`Layout`], biases f32
    /// per row, results `columns × rows` f32.
    MatvecArgs {
        /// `columns × cols` f32, or columns written by
        /// [`QuantizeSpec`](crate::quantize::QuantizeSpec).
        x: Pointer,
        /// The norm's weight (`cols` f32) or the other factor of a gated unit (`columns × cols`
        /// f32); null without either.
        aux: Pointer,
        /// `columns × rows` f32, or null.
        residual: Pointer,
    } segments {
        /// Epsilon of the norm.
        eps: F32,
        /// Number of blocks in the grid.
        blocks: U32,
    }
}

const NAME: &str = "matvec";

impl MatvecSpec {
    /// A plain product of one matrix with one column.
    #[must_use]
    pub fn new(format: &'static Format, rows: usize, cols: usize) -> MatvecSpec {
        MatvecSpec {
            cols,
            columns: 1,
            prologue: Prologue::None,
            quantized: false,
            segments: vec![Segment { format, rows, bias: false }],
            finish: Finish::Store,
            tuning: None,
        }
    }

    fn weights(&self) -> Segments<'_> {
        Segments { cols: self.cols, all: &self.segments, finish: self.finish }
    }

    /// The form of the activations, both for quantised columns and for columns that the block
    /// quantises itself.
    ///
    /// # Errors
    /// Weights that need different forms.
    pub fn column(&self) -> Result<Column, SpecError> {
        Column::shared(&self.segments.iter().map(|s| s.format).collect::<Vec<_>>(), self.cols)
    }

    /// Number of blocks to launch on a device of `units` compute units; also the kernel's last
    /// argument.
    ///
    /// # Errors
    /// As [`Family::tuning`].
    pub fn blocks(&self, target: &Target, units: u32) -> Result<u32, SpecError> {
        Ok(self.blocks_by(target, &self.tuning(target)?, units))
    }

    fn shape(&self, tuning: &MatvecTuning) -> Result<Shape, SpecError> {
        let column = self.column()?.shape(self.prologue);
        let shape = column.flag("X_GLOBAL", self.quantized).and(tuning.shape(self.columns));
        Ok(shape.and(self.weights().shape()?))
    }

    fn blocks_by(&self, target: &Target, tuning: &MatvecTuning, units: u32) -> u32 {
        tuning.blocks(target, units, self.weights().results().iter().map(|s| s.rows), 1)
    }

    /// The largest unit of the weights, which needs the most registers, and the most units of a
    /// row.
    fn units(&self) -> Result<(usize, usize), SpecError> {
        let mut units = (0, 0);
        for s in &self.segments {
            let layout = Layout::new(s.format, self.cols)?;
            units = (layout.unit().max(units.0), layout.units().max(units.1));
        }
        Ok(units)
    }
}

/// The most columns that a block quantises itself. Without a byte dot product the sums need more
/// registers, and eight columns did not fit in the remaining registers: 20 bytes of each lane
/// spilled on gfx900, 1276 on gfx803 (260 remain there with eight quantised columns).
fn most_made(target: &Target) -> usize {
    if target.vendor() == Vendor::Amd && target.arch().dot == Dot::None { 4 } else { 8 }
}

impl Family for MatvecSpec {
    const NAME: &'static str = NAME;
    type Args<A> = MatvecArgs<A>;
    choice!(MatvecTuning);

    fn text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = PrologueLabel(self.prologue, self.quantized);
        write!(f, "{} × {}, {:?}{first}", SegmentsLabel(&self.segments), self.cols, self.finish)?;
        if self.columns > 1 { write!(f, ", {} columns", self.columns) } else { Ok(()) }
    }

    fn usual(&self, target: &Target) -> Result<MatvecTuning, SpecError> {
        let rows = self.segments.iter().map(|s| s.rows).sum();
        Ok(MatvecTuning::usual(
            target,
            self.columns,
            self.weights().lists(),
            self.units()?,
            rows,
            true,
        ))
    }

    fn check(&self, target: &Target, tuning: &MatvecTuning) -> Result<(), SpecError> {
        require((1..=8).contains(&self.columns), NAME, || {
            format!("{} columns: 1 to 8 are supported", self.columns)
        })?;
        require(!self.quantized || self.prologue == Prologue::None, NAME, || {
            "quantised columns cannot have a prologue".to_owned()
        })?;
        require(self.quantized || self.columns <= most_made(target), NAME, || {
            format!(
                "{} columns cannot be quantised in the block: quantise them in a separate launch",
                self.columns
            )
        })?;
        self.weights().check(NAME, 1)?;
        tuning.check(NAME, target)
    }

    fn candidates(&self, target: &Target) -> Vec<MatvecTuning> {
        let units = self.units().map_or(1, |u| u.1);
        MatvecTuning::candidates(target, units, self.weights().lists() * self.columns)
    }

    fn block(&self, target: &Target, t: &MatvecTuning) -> Result<Block, SpecError> {
        let dynamic = t
            .shared(target, if self.quantized { 0 } else { self.columns * self.column()?.bytes() });
        let parts =
            (t.block / t.wave * t.rows) as usize * self.columns * self.weights().lists() * 4;
        let shared = shared_bytes(
            NAME,
            target,
            dynamic,
            parts + 1024,
            "quantise the columns in a separate launch",
        )?;
        Ok(Block { wave: t.wave, threads: t.block, shared })
    }

    fn render(
        &self,
        target: &Target,
        tuning: &MatvecTuning,
        block: Block,
    ) -> Result<Kernel, SpecError> {
        let shape = self.shape(tuning)?;
        let macros = tuning.macros(target, self.columns);
        Ok(Kernel {
            shared: block.shared,
            ..of_shape(NAME, &shape, macros, block.wave, block.threads)
        })
    }

    fn inside(&self, target: &Target, inside: StepContext) -> Result<Step, SpecError> {
        let StepContext { wave, threads, streams, sequences, .. } = inside;
        let columns = self.columns;
        require(columns == sequences, NAME, || {
            format!("{columns} columns do not match {sequences} sequences")
        })?;
        require(!self.quantized, NAME, || {
            "rows are too long to be quantised in each \
        block"
                .to_owned()
        })?;
        let usual = self.usual(target)?;
        let tuning = MatvecTuning { wave, block: threads, team: usual.team.min(threads), ..usual };
        let (header, lds, call) = match streams {
            false => (
                "matvec.h",
                "Matvec<S>::Shared",
                "Matvec<S>::template step<MetBefore>(a, share, pool, lds);",
            ),
            true => {
                let call = "Stream<S, Weights>::step(a, block_id(), blocks, links, ring, memory, \
                    at, pool, lds);";
                ("stream.h", "Stream<S, Weights>::Shared", call)
            }
        };
        let mut records = vec![];
        for s in &self.segments {
            let layout = Layout::new(s.format, self.cols)?;
            step::covered(NAME, &layout)?;
            if !streams {
                continue;
            }
            records.push(Record { bytes: layout.row_bytes, units: layout.units(), rows: s.rows });
        }
        let column = self.column()?;
        let step = Step::of(header, "MatvecArgs", call, self.shape(&tuning)?);
        let alone = matches!(self.prologue, Prologue::None | Prologue::Norm);
        let takes = (streams && alone && matches!(column.form, Form::Quantised { .. }))
            .then_some(self.cols * columns);
        let hands = match self.weights().results() {
            [one] if streams && one.rows.is_multiple_of(packets::GROUP) => {
                Some(("y0", one.rows * columns))
            }
            _ => None,
        };
        let hands_values =
            streams.then(|| self.weights().results().iter().map(|r| r.rows * columns).sum());
        // A plain column uses values unchanged.
        let plain = matches!(column.form, Form::Plain { .. }) && self.cols.is_multiple_of(8);
        let takes_values = (streams && alone && plain).then_some(self.cols * columns);
        let feed = "if (lane_id() == 0) Stream<S, Weights>::feed(a, block_id(), blocks, c[5] != \
            0, ring, memory, at);";
        let step = Step { beside: streams.then_some(feed), takes_values, hands_values, ..step };
        let pool = (column.bytes() * columns) as u32;
        Ok(Step { lds: Some(lds), pool, of_all_blocks: true, records, takes, hands, ..step })
    }

    fn grid(
        &self,
        target: &Target,
        tuning: &MatvecTuning,
        units: u32,
        _: Size,
    ) -> Result<Grid, SpecError> {
        let blocks = self.blocks_by(target, tuning, units);
        Ok(Grid::of([blocks, 1, 1]).number("blocks", blocks))
    }

    fn work(&self, _: Size) -> Work {
        self.weights().work(1, self.columns, 4, 4)
    }
}
