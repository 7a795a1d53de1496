//! The tensors of an encoder's file.

use crate::VisionError;
use kjit_cpu::{Dense, DenseMatrix};
use kjit_formats::format::Format;
use kjit_gguf::Gguf;

/// A file whose tensors are read by name, with errors that name the file and the tensor.
pub struct Tensors {
    pub path: String,
    pub gguf: Gguf,
}

/// The name of a matrix whose shape and type were checked, and its bias.
#[derive(Debug, Clone)]
pub struct Linear {
    name: String,
    format: &'static Format,
    pub rows: usize,
    cols: usize,
    pub bias: Option<Vec<f32>>,
}

/// Weights of a norm: a layer norm, or an RMS norm if there is no bias.
#[derive(Debug, Clone)]
pub struct Norm {
    weight: Vec<f32>,
    bias: Option<Vec<f32>>,
}

impl Norm {
    /// The rows of `x`, normalised.
    pub fn apply(&self, dense: &mut Dense, x: &[f32], epsilon: f32) -> Vec<f32> {
        let mut out = x.to_vec();
        dense.rows(&mut out, self.weight.len(), &|_, row| {
            let n = row.len() as f32;
            let mean = if self.bias.is_some() { row.iter().sum::<f32>() / n } else { 0.0 };
            let square = row.iter().map(|x| (x - mean) * (x - mean)).sum::<f32>() / n;
            let scale = 1.0 / (square + epsilon).sqrt();
            row.iter_mut().zip(&self.weight).for_each(|(x, weight)| {
                *x = (*x - mean) * scale * weight;
            });
            if let Some(bias) = &self.bias {
                row.iter_mut().zip(bias).for_each(|(x, bias)| *x += bias);
            }
        });
        out
    }
}

impl Tensors {
    /// An error of this file.
    pub fn wrong(&self, why: String) -> VisionError {
        VisionError::Encoder { path: self.path.clone(), why }
    }

    /// The elements of a tensor, decoded. `None` if it is missing.
    pub fn optional(&self, name: &str) -> Result<Option<Vec<f32>>, VisionError> {
        let Some(tensor) = self.gguf.opt_tensor(name)? else { return Ok(None) };
        let format = Format::by_id(tensor.ty.id)
            .ok_or_else(|| self.wrong(format!("tensor '{name}' has type {}", tensor.ty.name)))?;
        let elems = tensor.data.len() / format.block_bytes() * format.block_elems();
        let mut all = vec![0.0; elems];
        let decoded = format.decode(tensor.data, &mut all);
        decoded.map_err(|error| self.wrong(format!("tensor '{name}': {error}")))?;
        if let Some(bad) = all.iter().find(|x| !x.is_finite()) {
            return Err(self.wrong(format!("tensor '{name}' has an element that is {bad}")));
        }
        Ok(Some(all))
    }

    /// A vector of `len` elements.
    pub fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>, VisionError> {
        let all = self
            .optional(name)?
            .ok_or_else(|| self.wrong(format!("tensor '{name}' is missing")))?;
        match all.len() == len {
            true => Ok(all),
            false => {
                let has = all.len();
                Err(self.wrong(format!("tensor '{name}' has {has} elements, not {len}")))
            }
        }
    }

    /// A matrix for inputs of `cols` elements. Dimensions after the last are taken together, so
    /// that a convolution is a matrix of whole patches.
    pub fn linear(&self, name: &str, cols: usize) -> Result<Linear, VisionError> {
        let full = format!("{name}.weight");
        let tensor = self.gguf.tensor(&full)?;
        let elems: u64 = tensor.dims.iter().product();
        let (elems, format) = (usize::try_from(elems).unwrap_or(0), Format::by_id(tensor.ty.id));
        let rows = elems.checked_div(cols).unwrap_or(0);
        let format =
            format.filter(|format| DenseMatrix::new(tensor.data, format, rows, cols).is_some());
        let shape = || {
            let (dims, ty) = (tensor.dims, tensor.ty.name);
            self.wrong(format!("tensor '{full}' is {dims:?} of {ty}: inputs have {cols} elements"))
        };
        let (format, name) = (format.filter(|_| rows > 0).ok_or_else(shape)?, full.clone());
        let bias = match self.gguf.opt_tensor(&full.replace(".weight", ".bias"))? {
            None => None,
            Some(bias) => Some(self.vector(bias.name, rows)?),
        };
        Ok(Linear { name, format, rows, cols, bias })
    }

    /// The product of rows with a matrix of this file, and its bias.
    pub fn product(
        &self,
        dense: &mut Dense,
        linear: &Linear,
        x: &[f32],
    ) -> Result<Vec<f32>, VisionError> {
        Ok(dense.linear(self.matrix(linear)?, linear.bias.as_deref(), x))
    }

    fn matrix(&self, of: &Linear) -> Result<DenseMatrix<'_>, VisionError> {
        let data = self.gguf.tensor(&of.name)?.data;
        DenseMatrix::new(data, of.format, of.rows, of.cols)
            .ok_or_else(|| self.wrong(format!("tensor '{}' has changed", of.name)))
    }

    /// The first dimension of a tensor: elements of an input.
    pub fn inputs(&self, name: &str) -> Result<usize, VisionError> {
        Ok(self.gguf.tensor(name)?.dims.first().map_or(0, |n| *n as usize))
    }

    /// A norm of `width` elements; `None` if it is missing.
    pub fn norm(&self, name: &str, width: usize) -> Result<Option<Norm>, VisionError> {
        if self.gguf.opt_tensor(&format!("{name}.weight"))?.is_none() {
            return Ok(None);
        }
        let weight = self.vector(&format!("{name}.weight"), width)?;
        let bias = match self.gguf.opt_tensor(&format!("{name}.bias"))? {
            None => None,
            Some(_) => Some(self.vector(&format!("{name}.bias"), width)?),
        };
        Ok(Some(Norm { weight, bias }))
    }

    /// A norm that must be there.
    pub fn needed_norm(&self, name: &str, width: usize) -> Result<Norm, VisionError> {
        let none = || self.wrong(format!("tensor '{name}.weight' is missing"));
        self.norm(name, width)?.ok_or_else(none)
    }
}
