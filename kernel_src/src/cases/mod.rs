//! Test cases as data: a kernel, its launch, its arguments and what must come out. The same cases
//! run on the simulated device, on a real one (`doctor --run`) and as proof bundles.
//!
//! Inputs are random but seeded; outputs start poisoned with NaN; the expected values are computed
//! here in f64. A buffer without expectation must come back as it went in.

pub(crate) mod chosen;
pub(crate) mod content;
pub(crate) mod data;
pub(crate) mod few;
pub(crate) mod oracle;
pub(crate) mod paged;
pub(crate) mod tiled;

pub use content::Content;
pub use data::Random;
pub use few::Few;

use crate::spec;
use crate::spec::Spec;
use crate::vocabulary::activations::Column;
use crate::vocabulary::arguments::{Arguments, Declared, Kind};
use crate::vocabulary::family::Family;
use crate::vocabulary::kernel::{Kernel, SpecError, require};
use crate::vocabulary::launch::{Launch, Size};
use kjit_engine::{Arg, Geometry, HostArg, Target};

/// One launch and what must come of it.
#[derive(Debug, Clone)]
pub struct Case {
    /// What it is, for messages: family, sizes, formats.
    pub name: String,
    /// The kernel.
    pub kernel: Kernel,
    /// The launch.
    pub geometry: Geometry,
    /// Its arguments, in order.
    pub args: Vec<CaseArg>,
    /// What they are.
    pub declared: &'static [Declared],
}

/// An argument.
#[derive(Debug, Clone)]
pub enum CaseArg {
    /// A device buffer.
    Buffer {
        /// Its name, for messages.
        name: &'static str,
        /// What is in it before the launch.
        before: Content,
        /// What must be in it afterwards.
        expect: Expect,
    },
    /// The null pointer.
    Null,
    /// A number.
    U32(u32),
    /// A number.
    U64(u64),
    /// A number.
    F32(f32),
}

/// What must be in a buffer after the launch.
#[derive(Debug, Clone)]
pub enum Expect {
    /// What was in it before.
    Same,
    /// Anything: working memory.
    Anything,
    /// Exactly these bytes.
    Bytes(Vec<u8>),
    /// Real numbers, near enough.
    Real {
        /// How they are stored.
        storage: Storage,
        /// The oracle's values; a NaN stands for an element that must still be poisoned, an
        /// infinity for one that must have become a number and was too many to compute.
        want: Vec<f64>,
        /// How near.
        tolerance: Tolerance,
    },
    /// Prepared columns, whose values are near enough.
    Columns {
        /// How they lie.
        column: Column,
        /// The oracle's values.
        want: Vec<f64>,
        /// How near.
        tolerance: Tolerance,
    },
}

/// How reals are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Storage {
    /// Single precision.
    F32,
    /// Half precision.
    F16,
}

/// How near results must be to the oracle's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tolerance {
    /// Bound on ‖got − want‖₂ / ‖want‖₂.
    pub norm: f64,
    /// Bound on each |got − want|, in units of the root mean square of what is wanted.
    pub each: f64,
    /// Why these.
    pub reason: &'static str,
}

/// Exact integer dots with 16-bit activations: 2⁻¹⁶ of a group's largest is about 2.2e-5 of its
/// root mean square.
pub const QUANTISED: Tolerance = Tolerance {
    norm: 1e-4,
    each: 1e-3,
    reason: "activations are rounded to 2^-16 of their group's largest",
};
/// Sums in f32, in another order than the oracle's.
pub const SINGLE: Tolerance =
    Tolerance { norm: 2e-6, each: 4e-5, reason: "sums in single precision" };
/// Results rounded to half precision.
/// (2⁻¹¹ of each; among a million, one is sixteen times the root mean square).
pub const HALF: Tolerance =
    Tolerance { norm: 6e-4, each: 1e-2, reason: "results rounded to half precision" };

impl CaseArg {
    /// What it is.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        match self {
            CaseArg::Buffer { .. } | CaseArg::Null => Kind::Pointer,
            CaseArg::U32(_) => Kind::U32,
            CaseArg::U64(_) => Kind::U64,
            CaseArg::F32(_) => Kind::F32,
        }
    }
}

/// A number that the launch says ([`Launch::numbers`]). Working memory that it says is
/// [`CaseArg::Null`] until then.
pub(crate) const FOLLOWS: CaseArg = CaseArg::U32(0);

impl Case {
    /// A case of this launch; what follows from it takes its place among the arguments.
    pub(crate) fn of<F: Family>(
        name: String,
        spec: &F,
        target: &Target,
        launch: Launch,
        args: F::Args<CaseArg>,
    ) -> Result<Case, SpecError> {
        let (kernel, geometry, mut args) = (spec.kernel(target)?, launch.geometry, args.list());
        let declared = spec.declared();
        args.truncate(declared.len());
        let mut case = Case { name, kernel, geometry, args, declared };
        case.follow(F::NAME, launch)?;
        Ok(case)
    }

    /// Makes this case of [`Spec::case`] one of `spec`, which computes the same with another
    /// tuning. Working memory grows where the variant needs more, and never shrinks.
    ///
    /// # Errors
    /// As the family's; a family without variants.
    pub fn vary(
        &mut self,
        spec: &Spec,
        target: &Target,
        units: u32,
        size: Size,
    ) -> Result<(), SpecError> {
        require(spec.tuning(target).is_some(), spec.family(), || "it has one variant".to_owned())?;
        self.kernel = spec.kernel(target)?;
        self.follow(spec.family(), spec.launch(target, units, size)?)
    }

    /// Takes over what follows from a launch.
    fn follow(&mut self, family: &'static str, launch: Launch) -> Result<(), SpecError> {
        let Launch { geometry, numbers, memory } = launch;
        let declared = self.declared;
        let place = |name| {
            let place = declared.iter().position(|d| d.name == name);
            place.ok_or_else(|| SpecError::Unsupported {
                kernel: family,
                why: format!("it has no argument '{name}'"),
            })
        };
        for (name, value) in numbers {
            self.args[place(name)?] = CaseArg::U32(value);
        }
        for m in memory {
            let (fill, expect) =
                if m.zeroed { (0, Expect::Same) } else { (0xff, Expect::Anything) };
            match &mut self.args[place(m.name)?] {
                CaseArg::Buffer { before, .. } if before.len() < m.bytes => {
                    before.grow(m.bytes, fill)
                }
                arg @ CaseArg::Null if m.bytes > 0 => {
                    *arg = CaseArg::Buffer {
                        name: m.name,
                        before: Content::filled(fill, m.bytes),
                        expect,
                    };
                }
                _ => {}
            }
        }
        self.geometry = geometry;
        Ok(())
    }

    /// The arguments for the engine's `Stream::call`, whose answer [`Case::check`] takes.
    #[must_use]
    pub fn host_args(&self) -> Vec<HostArg<'_>> {
        fn host(arg: &CaseArg) -> HostArg<'_> {
            match arg {
                CaseArg::Buffer { before, .. } => HostArg::Buffer(before),
                CaseArg::Null => HostArg::Value(Arg::Null),
                CaseArg::U32(v) => HostArg::Value(Arg::from(*v)),
                CaseArg::U64(v) => HostArg::Value(Arg::from(*v)),
                CaseArg::F32(v) => HostArg::Value(Arg::from(*v)),
            }
        }
        self.args.iter().map(host).collect()
    }

    /// The same with bounds so many times as wide.
    #[must_use]
    pub fn with_bounds(mut self, times: f64) -> Case {
        for arg in &mut self.args {
            let CaseArg::Buffer { expect, .. } = arg else { continue };
            if let Expect::Real { tolerance, .. } | Expect::Columns { tolerance, .. } = expect {
                tolerance.norm *= times;
                tolerance.each *= times;
            }
        }
        self
    }

    /// Holds the buffers after the launch, in the order of the arguments, against what was
    /// expected.
    ///
    /// # Errors
    /// The first difference, as a sentence.
    pub fn check(&self, after: &[Vec<u8>]) -> Result<(), String> {
        self.hold(after.iter().map(|a| Some(a.as_slice())).collect())
    }

    /// The same where some buffers were not read back.
    ///
    /// # Errors
    /// The first difference, as a sentence.
    pub fn check_some(&self, after: &[Option<Vec<u8>>]) -> Result<(), String> {
        self.hold(after.iter().map(Option::as_deref).collect())
    }

    fn hold(&self, after: Vec<Option<&[u8]>>) -> Result<(), String> {
        let buffers: Vec<_> = self
            .args
            .iter()
            .filter_map(|a| match a {
                CaseArg::Buffer { name, before, expect } => Some((*name, before, expect)),
                _ => None,
            })
            .collect();
        if buffers.len() != after.len() {
            return Err(format!(
                "{}: {} buffers came back of {}",
                self.name,
                after.len(),
                buffers.len()
            ));
        }
        for ((name, before, expect), got) in buffers.into_iter().zip(after) {
            let Some(got) = got else { continue };
            expect
                .held((before.len(), || before), got)
                .map_err(|why| format!("{}: buffer {name}: {why}", self.name))?;
        }
        Ok(())
    }
}

impl Expect {
    /// Holds what is in a buffer after the launch against what was expected; `before` is what was
    /// in it before.
    ///
    /// # Errors
    /// The first difference, as a sentence.
    pub fn check(&self, before: &[u8], got: &[u8]) -> Result<(), String> {
        self.held((before.len(), || before), got)
    }

    /// The same, where what was in it is made for an input alone: what a poisoned output began with
    /// nobody asks.
    fn held<'b>(
        &self,
        (len, before): (usize, impl FnOnce() -> &'b [u8]),
        got: &[u8],
    ) -> Result<(), String> {
        if got.len() != len {
            return Err(format!("{} bytes came back of {len}", got.len()));
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
            return Err(format!("{} bytes came back, the oracle has {}", got.len(), exact.len()));
        }
        match exact.iter().zip(got).enumerate().find(|(_, (want, got))| want != got) {
            Some((at, (want, got))) => {
                Err(format!("{kind}: byte {at} is {got:#04x}, not {want:#04x}"))
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

    /// An element of a buffer; no number behind its end.
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

    const fn size(self) -> usize {
        match self {
            Storage::F32 => 4,
            Storage::F16 => 2,
        }
    }
}

/// Elements that a thread is worth.
const PIECE: usize = 1 << 16;

/// What `part` makes of 0 … n in pieces, in their order: by eight threads at most. A prompt's
/// results are millions, and one thread that held those of 8B's kernels against the oracle took 70
/// ms of a first start.
fn in_pieces<R: Send>(n: usize, part: impl Fn(std::ops::Range<usize>) -> R + Sync) -> Vec<R> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads = (n / PIECE).clamp(1, cores.min(8));
    if threads == 1 {
        return vec![part(0..n)];
    }
    let (each, part) = (n.div_ceil(threads), &part);
    std::thread::scope(|scope| {
        let begun: Vec<_> = (0..threads)
            .map(|t| scope.spawn(move || part(t * each..((t + 1) * each).min(n))))
            .collect();
        begun
            .into_iter()
            .map(|t| t.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

/// Holds `len` elements, which `got` gives by their places, against the oracle's.
fn near(
    len: usize,
    got: impl Fn(usize) -> f64 + Sync,
    want: &[f64],
    tolerance: &Tolerance,
) -> Result<(), String> {
    if len != want.len() {
        return Err(format!("{len} elements, the oracle has {}", want.len()));
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
                    return Err(format!(
                        "element {i} is {g}, nothing should have been written there"
                    ));
                }
                continue;
            }
            if w.is_infinite() {
                if g.is_nan() {
                    return Err(format!("element {i} is no number"));
                }
                continue;
            }
            let d = (g - w).abs();
            if d.is_nan() || d > most {
                return Err(format!(
                    "element {i} is {g}, the oracle has {w} (root mean square {rms:.3e}; {})",
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

/// An input that must not change.
pub(crate) fn input(name: &'static str, bytes: impl Into<Content>) -> CaseArg {
    CaseArg::Buffer { name, before: bytes.into(), expect: Expect::Same }
}

/// An f32 input.
pub(crate) fn floats(name: &'static str, values: &[f32]) -> CaseArg {
    input(name, values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>())
}

/// The same, or null where there is none.
pub(crate) fn optional(name: &'static str, values: &[f32]) -> CaseArg {
    if values.is_empty() { CaseArg::Null } else { floats(name, values) }
}

/// A u32 input.
pub(crate) fn words(name: &'static str, values: &[u32]) -> CaseArg {
    input(name, values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>())
}

/// An output, poisoned before.
pub(crate) fn output(
    name: &'static str,
    storage: Storage,
    want: Vec<f64>,
    tolerance: Tolerance,
) -> CaseArg {
    CaseArg::Buffer {
        name,
        before: Content::filled(0xff, want.len() * storage.size()),
        expect: Expect::Real { storage, want, tolerance },
    }
}

/// All cases for a target at one wave width (which must be one of its own).
///
/// # Errors
/// A kernel that cannot be specialised for the target.
pub fn all(target: &Target, wave: u32, seed: u64) -> Result<Vec<Case>, SpecError> {
    spec::cases(target, wave, seed)
}

#[cfg(test)]
mod tests {
    use super::{PIECE, SINGLE, in_pieces, near};

    #[test]
    fn pieces_are_all_of_it_in_order() {
        for n in [0, 1, PIECE - 1, PIECE, 2 * PIECE, 5 * PIECE + 3, 64 * PIECE + 1] {
            let whole: Vec<usize> = in_pieces(n, |part| part).into_iter().flatten().collect();
            assert!(whole.len() == n && whole.iter().enumerate().all(|(i, at)| i == *at), "{n}");
        }
    }

    #[test]
    fn one_wrong_element_of_many_is_named_wherever_it_is() {
        let n = 3 * PIECE + 17;
        let mut want: Vec<f64> = (0..n).map(|i| ((i % 97) as f64 - 48.0) / 7.0).collect();
        want[5] = f64::NAN;
        want[n - 2] = f64::INFINITY;
        let right = want.clone();
        let hold = |got: &[f64]| near(got.len(), |i| got[i], &want, &SINGLE);
        hold(&right).unwrap();
        // Poison where a number should be, a number where poison should be, a number that is off,
        // in each piece.
        for (at, wrong) in
            [(5, 1.0), (n - 2, f64::NAN), (7, f64::NAN), (PIECE + 1, 9e9), (n - 1, -40.0)]
        {
            let mut got = right.clone();
            got[at] = wrong;
            let said = hold(&got).unwrap_err();
            assert!(said.starts_with(&format!("element {at} is ")), "{said}");
        }
        // Each a little off, less than one may be.
        let off: Vec<f64> = right.iter().map(|v| v + 3e-5).collect();
        assert!(hold(&off).unwrap_err().starts_with("off by "));
        assert!(near(n - 1, |i| right[i], &want, &SINGLE).is_err());
    }
}
