//! The expected contents of a buffer after a launch, and the comparison with the actual contents.

use kjit_kernels::activations::Column;

/// The expected contents of a buffer after the launch.
#[derive(Debug, Clone)]
pub enum Expect {
    /// The contents before the launch.
    Same,
    /// Not compared: working memory.
    Anything,
    /// Exactly these bytes.
    Bytes(Vec<u8>),
    /// Floating-point numbers within a tolerance.
    Real {
        /// Type of the elements.
        storage: Storage,
        /// Values of the oracle. NaN: the element must still be poison. Infinity: the element must
        /// not be NaN; its value was not computed to save time.
        want: Vec<f64>,
        /// The tolerance.
        tolerance: Tolerance,
    },
    /// Prepared columns, with values within a tolerance.
    Columns {
        /// Layout of the columns.
        column: Column,
        /// Values of the oracle.
        want: Vec<f64>,
        /// The tolerance.
        tolerance: Tolerance,
    },
}

/// The type of stored numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Storage {
    /// f32.
    F32,
    /// f16.
    F16,
}

/// The bounds on differences from the oracle.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tolerance {
    /// Bound on ‖got − want‖₂ / ‖want‖₂.
    pub norm: f64,
    /// Bound on each |got − want|, in units of the root mean square of the expected values.
    pub each: f64,
    /// The reason for these bounds.
    pub reason: &'static str,
}

/// Integer dot products with 16-bit activations: the rounding, 2⁻¹⁶ of a group's largest value, is
/// about 2.2e-5 of its root mean square.
pub const QUANTISED: Tolerance = Tolerance {
    norm: 1e-4,
    each: 1e-3,
    reason: "activations are rounded to 2^-16 of the largest in their group",
};

/// f32 sums in a different order than the oracle's.
pub const SINGLE: Tolerance =
    Tolerance { norm: 2e-6, each: 4e-5, reason: "sums in single precision" };

/// Results rounded to f16: 2⁻¹¹ of each result. One of a million results is sixteen times the root
/// mean square.
pub const HALF: Tolerance =
    Tolerance { norm: 6e-4, each: 1e-2, reason: "results rounded to half precision" };

impl Expect {
    /// Compares a buffer after the launch with the expected contents; `before` is the buffer before
    /// the launch.
    ///
    /// # Errors
    /// The first difference, as a sentence.
    pub fn check(&self, before: &[u8], got: &[u8]) -> Result<(), String> {
        self.held((before.len(), || before), got)
    }

    /// As [`Expect::check`]; the contents before the launch are generated only for inputs, since
    /// outputs are poisoned.
    pub(crate) fn held<'b>(
        &self,
        (len, before): (usize, impl FnOnce() -> &'b [u8]),
        got: &[u8],
    ) -> Result<(), String> {
        if got.len() != len {
            return Err(format!("{} of {len} bytes were read back", got.len()));
        }
        let (exact, kind) = match self {
            Expect::Anything => return Ok(()),
            Expect::Same => (before(), "an input changed"),
            Expect::Bytes(want) => (want.as_slice(), "wrong"),
            Expect::Real { storage, want, tolerance } => {
                return near(got.len() / storage.size(), |i| storage.at(got, i), want, tolerance);
            }
            Expect::Columns { column, want, tolerance } => {
                let values: Vec<f64> =
                    got.chunks(column.bytes().max(1)).flat_map(|c| column.unpack(c)).collect();
                return near(
                    values.len(),
                    |i| values.get(i).copied().unwrap_or(f64::NAN),
                    want,
                    tolerance,
                );
            }
        };
        if exact.len() != got.len() {
            return Err(format!(
                "{} bytes were read back, but the oracle has {}",
                got.len(),
                exact.len()
            ));
        }
        match exact.iter().zip(got).enumerate().find(|(_, (want, got))| want != got) {
            Some((at, (want, got))) => {
                Err(format!("{kind}: byte {at} is {got:#04x}, expected {want:#04x}"))
            }
            None => Ok(()),
        }
    }
}

impl Storage {
    /// Elements of a buffer, as f64.
    #[must_use]
    pub fn read(self, bytes: &[u8]) -> Vec<f64> {
        match self {
            Storage::F32 => {
                bytes.as_chunks::<4>().0.iter().map(|b| f64::from(f32::from_le_bytes(*b))).collect()
            }
            Storage::F16 => bytes
                .as_chunks::<2>()
                .0
                .iter()
                .map(|b| half::f16::from_le_bytes(*b).to_f64())
                .collect(),
        }
    }

    /// An element of a buffer; NaN after its end.
    fn at(self, bytes: &[u8], i: usize) -> f64 {
        match self {
            Storage::F32 => bytes
                .as_chunks::<4>()
                .0
                .get(i)
                .map_or(f64::NAN, |b| f64::from(f32::from_le_bytes(*b))),
            Storage::F16 => bytes
                .as_chunks::<2>()
                .0
                .get(i)
                .map_or(f64::NAN, |b| half::f16::from_le_bytes(*b).to_f64()),
        }
    }

    pub(crate) const fn size(self) -> usize {
        match self {
            Storage::F32 => 4,
            Storage::F16 => 2,
        }
    }
}

/// Minimum number of elements per thread.
const PIECE: usize = 1 << 16;

/// Results of `part` for ranges of 0 … n, in order, with at most eight threads. A prompt has
/// millions of results. For 8B, comparing them in one thread took 70 ms of a first start.
fn in_pieces<R: Send>(n: usize, part: impl Fn(std::ops::Range<usize>) -> R + Sync) -> Vec<R> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads = (n / PIECE).clamp(1, cores.min(8));
    if threads == 1 {
        return vec![part(0..n)];
    }
    let (each, part) = (n.div_ceil(threads), &part);
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .map(|t| scope.spawn(move || part(t * each..((t + 1) * each).min(n))))
            .collect();
        running
            .into_iter()
            .map(|t| t.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

/// Compares `len` elements, which `got` returns by index, with the oracle.
fn near(
    len: usize,
    got: impl Fn(usize) -> f64 + Sync,
    want: &[f64],
    tolerance: &Tolerance,
) -> Result<(), String> {
    if len != want.len() {
        return Err(format!("{len} elements, but the oracle has {}", want.len()));
    }
    let of = |part: std::ops::Range<usize>| want.get(part).unwrap_or_default();
    let sums = in_pieces(len, |part| {
        let wanted = of(part).iter().filter(|w| w.is_finite());
        wanted.fold((0.0, 0usize), |(squares, count), w| (squares + w * w, count + 1))
    });
    let (squares, count) = sums.into_iter().fold((0.0, 0), |(a, n), (b, m)| (a + b, n + m));
    let rms = (squares / count.max(1) as f64).sqrt().max(f64::MIN_POSITIVE);
    let most = tolerance.each * rms;
    let held = in_pieces(len, |part| {
        let mut off = 0.0;
        for (i, w) in part.clone().zip(of(part)) {
            let g = got(i);
            if w.is_nan() {
                if !g.is_nan() {
                    return Err(format!("element {i} is {g}, but it must not be written"));
                }
                continue;
            }
            if w.is_infinite() {
                if g.is_nan() {
                    return Err(format!("element {i} is not a number"));
                }
                continue;
            }
            let d = (g - w).abs();
            if d.is_nan() || d > most {
                return Err(format!(
                    "element {i} is {g}, expected {w} (root mean square {rms:.3e}; {})",
                    tolerance.reason
                ));
            }
            off += d * d;
        }
        Ok(off)
    });
    let off: f64 = held.into_iter().sum::<Result<f64, String>>()?;
    let norm = off.sqrt() / squares.sqrt().max(f64::MIN_POSITIVE);
    if norm > tolerance.norm {
        return Err(format!(
            "off by {norm:.2e} of its norm, {:.0e} allowed ({})",
            tolerance.norm, tolerance.reason
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{PIECE, SINGLE, in_pieces, near};

    #[test]
    fn pieces_cover_everything_in_order() {
        for n in [0, 1, PIECE - 1, PIECE, 2 * PIECE, 5 * PIECE + 3, 64 * PIECE + 1] {
            let whole: Vec<usize> = in_pieces(n, |part| part).into_iter().flatten().collect();
            assert!(whole.len() == n && whole.iter().enumerate().all(|(i, at)| i == *at), "{n}");
        }
    }

    #[test]
    fn one_wrong_element_is_named_at_any_position() {
        let n = 3 * PIECE + 17;
        let mut want: Vec<f64> = (0..n).map(|i| ((i % 97) as f64 - 48.0) / 7.0).collect();
        want[5] = f64::NAN;
        want[n - 2] = f64::INFINITY;
        let right = want.clone();
        let hold = |got: &[f64]| near(got.len(), |i| got[i], &want, &SINGLE);
        hold(&right).unwrap();
        // Tests in each piece: poison instead of a number, a number instead of poison, a wrong
        // number.
        for (at, wrong) in
            [(5, 1.0), (n - 2, f64::NAN), (7, f64::NAN), (PIECE + 1, 9e9), (n - 1, -40.0)]
        {
            let mut got = right.clone();
            got[at] = wrong;
            let said = hold(&got).unwrap_err();
            assert!(said.starts_with(&format!("element {at} is ")), "{said}");
        }
        // The error of each element is below its bound.
        let off: Vec<f64> = right.iter().map(|v| v + 3e-5).collect();
        assert!(hold(&off).unwrap_err().starts_with("off by "));
        assert!(near(n - 1, |i| right[i], &want, &SINGLE).is_err());
    }
}
