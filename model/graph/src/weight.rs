//! Weights.

use kjit_formats::format::{DecodeError, Format};

/// Index of a [`Weight`] in [`Graph::weights`](crate::Graph::weights).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WeightId(pub u32);

/// A weight tensor of the file, or a part of one: `experts` row-major matrices of `rows × cols`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Weight {
    /// The tensor's name in the file. For a part, its first element is appended:
    /// `blk.0.attn_qkv.weight[4096..]`.
    pub name: String,
    /// The tensor's name in the file.
    pub tensor: String,
    /// Number of elements before the part, in each matrix of the file.
    pub at: usize,
    /// Number of elements of each matrix in the file. For a part it is larger than `rows · cols`.
    pub whole: usize,
    /// Number of matrices in the tensor: 1, or the number of experts.
    pub experts: usize,
    /// Number of rows (outputs); 1 for a vector.
    pub rows: usize,
    /// Length of a row (inputs).
    pub cols: usize,
    /// Number of elements from the start of a row to the start of the next row in the file. It is
    /// larger than `cols` if each row is a part of a row.
    pub stride: usize,
    /// The encoding of the elements.
    pub format: &'static Format,
    /// Only for vectors: the elements are `1 / x` for each `x` of the file.
    pub inverted: bool,
}

impl Weight {
    /// Size of the used part in bytes.
    pub fn bytes(&self) -> usize {
        self.experts
            * self.rows
            * (self.cols / self.format.block_elems())
            * self.format.block_bytes()
    }

    /// Decodes a vector from its bytes in the file.
    ///
    /// # Errors
    /// `bytes` and `out` have different numbers of elements.
    pub fn decode_vector(&self, bytes: &[u8], out: &mut [f32]) -> Result<(), DecodeError> {
        self.format.decode(bytes, out)?;
        if self.inverted {
            out.iter_mut().for_each(|x| *x = 1.0 / *x);
        }
        Ok(())
    }

    /// Number of elements.
    pub fn elems(&self) -> usize {
        self.experts * self.rows * self.cols
    }

    /// Whether this is the whole tensor.
    pub fn is_whole(&self) -> bool {
        self.whole == self.rows * self.cols
    }

    /// Whether each row is a part of a row of the file.
    pub fn is_of_columns(&self) -> bool {
        self.stride != self.cols
    }

    /// Size of this number of elements in bytes. The number must be a multiple of the block length.
    pub fn bytes_of(&self, elems: usize) -> usize {
        elems / self.format.block_elems() * self.format.block_bytes()
    }
}
