//! Single products and steps of the thread pool, for benches.

use super::interleaved::Interleaved;
use super::multiply::{Product, multiply};
use super::pool::Pool;
use super::product::Matrix;
use super::quantise::Quantised;
use super::shared_mut::SharedMut;
use super::simd::Isa;
use kjit_formats::format::{Encoding, Format};

/// Products of some tokens with several matrices of one shape and format: random codes, scales of
/// about one.
pub struct ProductRate {
    pool: Pool,
    isa: Isa,
    format: &'static Format,
    rows: usize,
    cols: usize,
    tokens: usize,
    matrices: Vec<Vec<u8>>,
    interleaved: Vec<Option<Interleaved>>,
    x: Vec<f32>,
    out: Vec<f32>,
    rounded: Quantised,
}

impl ProductRate {
    /// `None` if rows of `cols` elements are not whole blocks.
    pub fn new(
        isa: Isa,
        threads: usize,
        format: &'static Format,
        [matrices, rows, cols]: [usize; 3],
        tokens: usize,
    ) -> Option<ProductRate> {
        let bytes = rows.checked_mul(format.row_bytes(cols)?)?;
        let mut state = 1u64;
        let mut next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u32
        };
        // All positions have f16 numbers of medium size, so that scales and offsets are neither
        // subnormal nor NaN.
        let one = |next: &mut dyn FnMut() -> u32| match format.encoding {
            Encoding::F32 => {
                (0..bytes / 4).flat_map(|_| (next() as f32 / 4e9).to_le_bytes()).collect()
            }
            _ => (0..bytes).map(|_| (next() & 0x11 | 0x22) as u8).collect(),
        };
        let matrices: Vec<Vec<u8>> = (0..matrices).map(|_| one(&mut next)).collect();
        let interleaved = matrices.iter().map(|_| None).collect();
        Some(ProductRate {
            pool: Pool::new(threads),
            isa,
            format,
            rows,
            cols,
            tokens,
            matrices,
            interleaved,
            x: (0..tokens * cols).map(|_| next() as f32 / (1u32 << 30) as f32 - 1.0).collect(),
            out: vec![0.0; tokens * rows],
            rounded: Quantised::default(),
        })
    }

    /// The products with interleaved matrices. `None` if the format or the instruction set does not
    /// support it.
    #[must_use]
    pub fn laid_out(mut self) -> Option<ProductRate> {
        let (format, rows, cols) = (self.format, self.rows, self.cols);
        for (bytes, interleaved) in self.matrices.iter().zip(&mut self.interleaved) {
            *interleaved =
                Some(Interleaved::of(Matrix { bytes, format, rows, cols }, &mut self.pool)?);
        }
        self.isa.has_words().then_some(self)
    }

    /// Multiplies with each matrix once.
    pub fn run(&mut self) {
        for (bytes, interleaved) in self.matrices.iter().zip(&self.interleaved) {
            let w = Matrix { bytes, format: self.format, rows: self.rows, cols: self.cols };
            let product = Product {
                w,
                interleaved: interleaved.as_ref(),
                bias: None,
                out: SharedMut::new(&mut self.out),
            };
            multiply(
                &mut self.pool,
                self.isa,
                &self.x,
                self.tokens,
                &[product],
                Some(&mut self.rounded),
                false,
            );
        }
        // The result is used, so that the compiler keeps the work.
        std::hint::black_box(&self.out);
    }

    /// Bytes of all matrices.
    pub fn bytes(&self) -> usize {
        self.matrices.iter().map(Vec::len).sum()
    }

    /// Number of multiplications in a run, over all matrices and tokens.
    pub fn products(&self) -> usize {
        self.matrices.len() * self.rows * self.cols * self.tokens
    }
}

/// Measures the overhead of the thread pool, with empty tasks.
pub struct StepRate(Pool);

impl StepRate {
    /// A pool of this many threads.
    pub fn new(threads: usize) -> StepRate {
        StepRate(Pool::new(threads))
    }

    /// Runs `steps` steps of `tasks` empty tasks.
    pub fn run(&mut self, steps: usize, tasks: usize) {
        (0..steps).for_each(|_| self.0.run(tasks, &|_| {}));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_product_is_finite_with_requested_sizes() {
        for name in ["Q4_1", "Q4_K", "F16"] {
            let format = Format::by_name(name).unwrap();
            for tokens in [1, 9] {
                let mut rate =
                    ProductRate::new(Isa::best(), 2, format, [2, 40, 256], tokens).unwrap();
                rate.run();
                assert_eq!(
                    (rate.bytes(), rate.products()),
                    (2 * 40 * format.row_bytes(256).unwrap(), 20480 * tokens)
                );
                assert!(
                    rate.out.iter().all(|v| v.is_finite()) && rate.out.iter().any(|v| *v != 0.0),
                    "{name}"
                );
            }
        }
        let q4_k = Format::by_name("Q4_K").unwrap();
        assert!(
            ProductRate::new(Isa::best(), 1, q4_k, [1, 1, 32], 1).is_none(),
            "not a whole block"
        );
    }
}
