//! How a column of activations lies in memory for the dot products: see `gpu/activations.h`.

use crate::format::{Encoding, Format};
use crate::kernel::{SpecError, require};
use crate::layout::Layout;
use kjit_engine::Constants;

/// What happens to activations before they meet a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Prologue {
    /// Nothing.
    None,
    /// RMS norm over the column, times a weight.
    Norm,
    /// `silu(x) · other`.
    Silu,
    /// `gelu(x) · other`, the tanh form.
    Gelu,
}

impl Prologue {
    pub(crate) const fn number(self) -> i64 {
        match self {
            Prologue::None => 0,
            Prologue::Norm => 1,
            Prologue::Silu => 2,
            Prologue::Gelu => 3,
        }
    }
}

/// The form of a prepared column; weights that share one must agree on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Form {
    /// Two planes of signed bytes with a scale for each 32.
    Quantised {
        /// The two vectors of a group lie apart (all weights take 32 at a time).
        split: bool,
    },
    /// Single precision, in units of this many.
    Plain {
        /// 8 for halves, 4 for singles.
        unit: usize,
    },
}

/// A column of `cols` activations in a form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Column {
    /// Elements.
    pub cols: usize,
    /// Form.
    pub form: Form,
}

impl Column {
    /// The column that matrices of these formats can share.
    ///
    /// # Errors
    /// None given; quantised and plain formats, or singles and halves, together.
    pub fn shared(formats: &[&'static Format], cols: usize) -> Result<Column, SpecError> {
        let form = |f: &&'static Format| -> Result<Form, SpecError> {
            Ok(match f.encoding {
                Encoding::F32 => Form::Plain { unit: 4 },
                Encoding::F16 | Encoding::BF16 => Form::Plain { unit: 8 },
                Encoding::Blocks(_) => Form::Quantised { split: Layout::new(f, cols)?.unit() == 32 },
            })
        };
        let forms = formats.iter().map(form).collect::<Result<Vec<_>, _>>()?;
        let fail = || SpecError::Unsupported {
            kernel: "matvec",
            why: format!(
                "{} cannot share one form of activations: give each its own launch",
                formats.iter().map(|f| f.name).collect::<Vec<_>>().join(", ")
            ),
        };
        let all = forms.iter().copied().try_fold(None, |all: Option<Form>, one| match (all, one) {
            (None, one) => Ok(Some(one)),
            (Some(Form::Quantised { split: a }), Form::Quantised { split: b }) => {
                Ok(Some(Form::Quantised { split: a && b }))
            }
            (Some(a), b) if a == b => Ok(Some(a)),
            _ => Err(fail()),
        })?;
        let form = all.ok_or_else(fail)?;
        require(cols > 0 && cols <= 1 << 24, "matvec", || format!("{cols} columns"))?;
        Ok(Column { cols, form })
    }

    /// Bytes of a prepared column, a multiple of 16.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self.form {
            Form::Quantised { .. } => self.cols / 32 * 80,
            Form::Plain { unit } => self.cols.div_ceil(unit) * unit * 4,
        }
    }

    pub(crate) fn constants(&self, prologue: Prologue) -> Constants {
        let c = Constants::new().set("COLS", self.cols as i64).set("PROLOGUE", prologue.number());
        match self.form {
            Form::Quantised { split } => c.set("FLOAT_X", 0).set("X_SPLIT", i64::from(split)),
            Form::Plain { unit } => c.set("FLOAT_X", 1).set("X_UNIT", unit as i64),
        }
    }
}
