//! Weights to floats, fast: the block formats' descriptions compiled into one decoder each.
//!
//! [`Described`] turns a format of [`kjit_kernels::format::ALL`] into a type, so that planes, shifts and biases are constants of
//! the compilation; the loops over them are written plainly and become vector code inside a [`Job`](super::simd::Job). Results
//! are those of [`Format::decode`](kjit_kernels::format::Format::decode) bit for bit.

use super::simd::{LANES, Vector};
use kjit_kernels::format::{ALL, BlockFormat, BlockScale, Encoding, Format, GroupFactors, GroupScale, Offset, Value};

/// Weights in the largest block.
pub const MAX_BLOCK: usize = 256;

/// A format as a type.
pub trait Described {
    /// Its description.
    const BLOCK: BlockFormat;
}

/// The format with this GGUF type id.
pub struct Id<const ID: u32>;

impl<const ID: u32> Described for Id<ID> {
    const BLOCK: BlockFormat = block_format(ID);
}

const fn block_format(id: u32) -> BlockFormat {
    let mut i = 0;
    while i < ALL.len() {
        if ALL[i].ggml_id == id
            && let Encoding::Blocks(b) = ALL[i].encoding
        {
            assert!(b.elems <= MAX_BLOCK && b.elems.is_multiple_of(32));
            return b;
        }
        i += 1;
    }
    panic!("no such block format")
}

/// Runs an expression with `$f` the type of a block format, for each format in the table; another expression for all else.
macro_rules! with_format {
    ($format:expr, $f:ident => $body:expr, else $other:expr) => {
        with_format!(@ $format, $f, $body, $other, 2 3 6 7 8 10 11 12 13 14 20 23 39)
    };
    (@ $format:expr, $f:ident, $body:expr, $other:expr, $($id:literal)*) => {
        match $format.ggml_id {
            $($id => { type $f = $crate::host::unpack::Id<$id>; $body })*
            _ => $other,
        }
    };
}

pub(super) use with_format;

/// The codes of one block, in order, each in a byte. `block` has the format's bytes and `codes` room for its weights.
#[inline(always)]
pub fn codes<F: Described>(block: &[u8], codes: &mut [u8]) {
    let f = const { F::BLOCK };
    let mut at = 0;
    for (p, plane) in f.planes.iter().enumerate() {
        let (run, per_byte) = (plane.run as usize, 8 / plane.bits as usize);
        let mask = ((1u16 << plane.bits) - 1) as u8;
        for (i, codes) in codes[..f.elems].chunks_exact_mut(run).enumerate() {
            let (from, shift) = plane.locate(i * run);
            debug_assert_eq!(shift as usize, i % per_byte * plane.bits as usize);
            for (code, byte) in codes.iter_mut().zip(&block[from..from + run]) {
                let bits = ((byte >> shift) & mask) << at;
                *code = if p == 0 { bits } else { *code | bits };
            }
        }
        at += plane.bits;
    }
}

/// Scale and offset of a group: [`BlockFormat::factors`] with halves converted by the instruction, not by a function that looks for it.
///
/// # Safety
/// As [`Job::run`](super::simd::Job::run).
#[inline(always)]
pub unsafe fn block_factors<V: Vector, F: Described>(block: &[u8], g: usize) -> GroupFactors {
    let f = const { F::BLOCK };
    let half = |at: u16| {
        let at = usize::from(at);
        // SAFETY: the instructions are there.
        unsafe { V::half(u16::from_le_bytes([block[at], block[at + 1]])) }
    };
    let d = match f.scale {
        BlockScale::F16(at) => half(at),
        BlockScale::HalfE8M0(_) => f.block_scale(block),
    };
    let (s, t) = f.group_codes(block, g);
    GroupFactors {
        scale: if matches!(f.group_scale, GroupScale::One) { d } else { d * s as f32 },
        offset: match f.offset {
            Offset::None => 0.0,
            Offset::Plus(at) => half(at),
            Offset::MinusScaled(at) => -(half(at) * t as f32),
        },
    }
}

/// One block as floats.
///
/// # Safety
/// As [`Job::run`](super::simd::Job::run).
#[inline(always)]
unsafe fn block<V: Vector, F: Described>(block: &[u8], out: &mut [f32]) {
    let f = const { F::BLOCK };
    let mut buffer = [0u8; MAX_BLOCK];
    codes::<F>(block, &mut buffer);
    for (g, (out, codes)) in out[..f.elems].chunks_exact_mut(f.group).zip(buffer.chunks_exact(f.group)).enumerate() {
        // SAFETY: the instructions are there.
        let k = unsafe { block_factors::<V, F>(block, g) };
        for (o, &code) in out.iter_mut().zip(codes) {
            let v = match f.value {
                Value::Biased(bias) => i32::from(code) - i32::from(bias),
                Value::Signed => i32::from(code as i8),
                Value::Table(table) => i32::from(table[usize::from(code & 15)]),
            };
            // The description's order of roundings: never one fused operation.
            let scaled = k.scale * v as f32;
            *o = if matches!(f.offset, Offset::None) { scaled } else { scaled + k.offset };
        }
    }
}

/// A run of whole blocks as floats. `bytes` and `out` must hold the same number of blocks.
///
/// # Safety
/// As [`Job::run`](super::simd::Job::run) asks.
#[inline(always)]
pub unsafe fn decode<V: Vector>(format: &Format, bytes: &[u8], out: &mut [f32]) {
    match format.encoding {
        Encoding::F32 => {
            for (o, b) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *o = f32::from_le_bytes(*b);
            }
        }
        Encoding::F16 => {
            let done = whole_halves(bytes, out);
            for i in (0..done).step_by(LANES) {
                // SAFETY: 32 elements from i on are in both.
                unsafe { V::load_f16(bytes.as_ptr().add(2 * i).cast()).store(out.as_mut_ptr().add(i)) };
            }
            for (o, b) in out[done..].iter_mut().zip(bytes[2 * done..].as_chunks::<2>().0) {
                *o = half::f16::from_le_bytes(*b).to_f32();
            }
        }
        Encoding::BF16 => {
            let done = whole_halves(bytes, out);
            for i in (0..done).step_by(LANES) {
                // SAFETY: 32 elements from i on are in both.
                unsafe { V::load_bf16(bytes.as_ptr().add(2 * i).cast()).store(out.as_mut_ptr().add(i)) };
            }
            for (o, b) in out[done..].iter_mut().zip(bytes[2 * done..].as_chunks::<2>().0) {
                *o = half::bf16::from_le_bytes(*b).to_f32();
            }
        }
        Encoding::Blocks(_) => with_format!(format, F => {
            let (n, size) = const { (F::BLOCK.elems, F::BLOCK.bytes) };
            for (b, o) in bytes.chunks_exact(size).zip(out.chunks_exact_mut(n)) {
                // SAFETY: the instructions are there.
                unsafe { block::<V, F>(b, o) };
            }
        }, else decode_slowly(format, bytes, out)),
    }
}

/// A format whose type is missing above: right, but slow. No format in the table is (a test says so).
#[cold]
fn decode_slowly(format: &Format, bytes: &[u8], out: &mut [f32]) {
    if let Encoding::Blocks(f) = &format.encoding {
        for (b, o) in bytes.chunks_exact(f.bytes).zip(out.chunks_exact_mut(f.elems)) {
            f.decode(b, o);
        }
    }
}

/// How many two-byte floats go 32 at a time. (GGUF is little-endian; on a big-endian processor none do.)
fn whole_halves(bytes: &[u8], out: &[f32]) -> usize {
    if cfg!(target_endian = "little") { out.len().min(bytes.len() / 2) / LANES * LANES } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::super::simd::{Isa, Job};
    use super::*;
    use crate::host::testing::Rng;

    struct Decode<'a>(&'a Format, &'a [u8], &'a mut [f32]);

    impl Job for Decode<'_> {
        type Out = ();
        #[inline(always)]
        unsafe fn run<V: Vector>(self) {
            // SAFETY: the caller's promise.
            unsafe { decode::<V>(self.0, self.1, self.2) }
        }
    }

    #[test]
    fn every_format_decodes_bit_for_bit_as_its_description_on_every_instruction_set() {
        let mut rng = Rng::new();
        for format in ALL {
            for blocks in [1, 2, 3, 31, 33, 67] {
                let bytes: Vec<u8> = (0..blocks * format.block_bytes()).map(|_| rng.next() as u8).collect();
                let mut want = vec![f32::NAN; blocks * format.block_elems()];
                format.decode(&bytes, &mut want).unwrap();
                for isa in Isa::available() {
                    let mut got = vec![f32::NAN; want.len()];
                    // SAFETY: the job asks for nothing.
                    unsafe { isa.run(Decode(format, &bytes, &mut got)) };
                    for (i, (g, w)) in got.iter().zip(&want).enumerate() {
                        // A NaN scale makes NaNs, whose payload is free.
                        let same = g.to_bits() == w.to_bits() || g.is_nan() && w.is_nan();
                        assert!(same, "{format} on {}: weight {i} is {g}, not {w}; {rng}", isa.name());
                    }
                }
            }
        }
    }

    #[test]
    fn every_block_format_has_a_type() {
        for format in ALL.iter().filter(|f| matches!(f.encoding, Encoding::Blocks(_))) {
            let typed = with_format!(format, F => F::BLOCK.bytes == format.block_bytes(), else false);
            assert!(typed, "{format}");
        }
    }
}
