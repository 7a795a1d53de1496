//! The layout of a column of activations for dot products: see `gpu/activations.h`.

use crate::vocabulary::kernel::{SpecError, require};
use crate::vocabulary::shape::{Shape, gpu_enum};
use kjit_formats::format::{Encoding, Format};
use kjit_formats::layout::Layout;
use std::fmt;

/// Transformation of activations before a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Prologue {
    /// No transformation.
    None,
    /// RMS norm over the column, times a weight.
    Norm,
    /// `silu(x) · other`.
    Silu,
    /// `gelu(x) · other`, in the tanh form.
    Gelu,
}

gpu_enum!(ENUMS: Prologue { None, Norm, Silu, Gelu });

/// The prologue in a spec's string: `, Norm`; empty without a prologue. Quantised columns have
/// none.
pub(crate) struct PrologueLabel(pub Prologue, pub bool);

impl fmt::Display for PrologueLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.1, self.0) {
            (true, _) => f.write_str(", quantized"),
            (false, Prologue::None) => Ok(()),
            (false, p) => write!(f, ", {p:?}"),
        }
    }
}

/// The form of a column; weights that share a column need the same form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Form {
    /// Two planes of signed bytes with a scale for each 32.
    Quantised {
        /// Whether the first vectors of all groups precede the second vectors (if every format has
        /// units of 32 weights).
        split: bool,
    },
    /// f32, in units of this many elements.
    Plain {
        /// Elements of a unit: 8 for f16 weights, 4 for f32 weights.
        unit: usize,
    },
}

gpu_enum!(ENUMS: Form { Quantised, Plain });

/// A column of `cols` activations in a form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Column {
    /// Number of elements.
    pub cols: usize,
    /// Form of the column.
    pub form: Form,
}

impl Column {
    /// The column that matrices of these formats can share.
    ///
    /// # Errors
    /// No formats; quantised and plain formats, or f32 and f16, together.
    pub fn shared(formats: &[&'static Format], cols: usize) -> Result<Column, SpecError> {
        let form = |f: &&'static Format| -> Result<Form, SpecError> {
            Ok(match f.encoding {
                Encoding::F32 => Form::Plain { unit: 4 },
                Encoding::F16 | Encoding::BF16 => Form::Plain { unit: 8 },
                Encoding::Blocks(_) => {
                    Form::Quantised { split: Layout::new(f, cols)?.unit() == 32 }
                }
            })
        };
        let forms = formats.iter().map(form).collect::<Result<Vec<_>, _>>()?;
        let fail = || SpecError::Unsupported {
            kernel: "activations",
            why: format!(
                "{} need different forms of activations: use one launch for each",
                formats.iter().map(|f| f.name).collect::<Vec<_>>().join(", ")
            ),
        };
        let all =
            forms.iter().copied().try_fold(None, |all: Option<Form>, one| match (all, one) {
                (None, one) => Ok(Some(one)),
                (Some(Form::Quantised { split: a }), Form::Quantised { split: b }) => {
                    Ok(Some(Form::Quantised { split: a && b }))
                }
                (Some(a), b) if a == b => Ok(Some(a)),
                _ => Err(fail()),
            })?;
        let form = all.ok_or_else(fail)?;
        require(cols > 0 && cols <= 1 << 24, "activations", || {
            format!("{cols} columns are not between 1 and 16,777,216")
        })?;
        Ok(Column { cols, form })
    }

    /// Bytes of a column, a multiple of 16.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self.form {
            Form::Quantised { .. } => self.cols / 32 * 80,
            Form::Plain { unit } => self.cols.div_ceil(unit) * unit * 4,
        }
    }

    /// Index in the first plane of a vector of 16 values, which is half `half` of a group.
    fn vector(&self, group: usize, half: usize) -> usize {
        match self.form {
            Form::Quantised { split: true } => half * (self.cols / 32) + group,
            _ => 2 * group + half,
        }
    }

    /// f32 index of an element in a plain column.
    fn plain_index(&self, unit: usize, i: usize) -> usize {
        let quad = i / 4;
        let at = if unit == 8 { quad % 2 * self.cols.div_ceil(8) + quad / 2 } else { quad };
        4 * at + i % 4
    }

    /// The column that [`QuantizeSpec`](crate::quantize::QuantizeSpec) writes, for oracles.
    #[must_use]
    pub fn pack(&self, x: &[f32]) -> Vec<u8> {
        let mut out = vec![0u8; self.bytes()];
        match self.form {
            Form::Plain { unit } => {
                for (i, v) in x.iter().enumerate() {
                    out[4 * self.plain_index(unit, i)..][..4].copy_from_slice(&v.to_le_bytes());
                }
            }
            Form::Quantised { .. } => {
                let groups = self.cols / 32;
                for (g, part) in x.chunks_exact(32).enumerate() {
                    let most = part.iter().fold(0.0f32, |m, v| m.max(v.abs()));
                    let inverse = if most > 0.0 { 32639.0 / most } else { 0.0 };
                    let mut sums = [0i32; 2];
                    for (i, v) in part.iter().enumerate() {
                        let whole = (v * inverse).round_ties_even() as i32;
                        let low = whole as i8;
                        let at = 16 * self.vector(g, i / 16) + i % 16;
                        out[at] = ((whole - i32::from(low)) >> 8) as u8;
                        out[32 * groups + at] = low as u8;
                        sums[i / 16] += whole;
                    }
                    let scale = 16 * (4 * groups + g);
                    out[scale..][..4].copy_from_slice(&(most / 32639.0).to_le_bytes());
                    for (i, sum) in [sums[0], sums[1], sums[0] + sums[1]].iter().enumerate() {
                        out[scale + 4 + 4 * i..][..4].copy_from_slice(&sum.to_le_bytes());
                    }
                }
            }
        }
        out
    }

    /// The values of a column, for oracles.
    #[must_use]
    pub fn unpack(&self, bytes: &[u8]) -> Vec<f64> {
        let word = |at: usize| {
            bytes
                .get(at..at + 4)
                .and_then(|b| b.try_into().ok())
                .map_or(f32::NAN, f32::from_le_bytes)
        };
        let byte = |at: usize| f64::from(bytes.get(at).copied().unwrap_or(0) as i8);
        let groups = self.cols / 32;
        let value = |i: usize| match self.form {
            Form::Plain { unit } => f64::from(word(4 * self.plain_index(unit, i))),
            Form::Quantised { .. } => {
                let at = 16 * self.vector(i / 32, i % 32 / 16) + i % 16;
                f64::from(word(16 * (4 * groups + i / 32)))
                    * (256.0 * byte(at) + byte(32 * groups + at))
            }
        };
        (0..self.cols).map(value).collect()
    }

    /// The constants of `gpu/activations.h`.
    pub(crate) fn shape(&self, prologue: Prologue) -> Shape {
        let (split, unit) = match self.form {
            Form::Quantised { split } => (split, 4),
            Form::Plain { unit } => (false, unit),
        };
        let shape = Shape::new()
            .number("COLS", self.cols)
            .choice("PROLOGUE", &prologue)
            .choice("FORM", &self.form);
        shape.flag("X_SPLIT", split).number("X_UNIT", unit)
    }
}
