//! Decodes weights to floats: a decoder for each block format, compiled from its description.
//!
//! [`FormatType`] converts a format of [`kjit_formats::format::ALL`] to a type, so that planes,
//! shifts and biases are compile-time constants for [`Vector::codes`]. The results equal those of
//! [`Format::decode`](kjit_formats::format::Format::decode) bit for bit.

use super::format_type::{FormatType, with_format};
use super::scattered::Scattered;
use super::simd::{CHUNK, LANES, Vector, unsigned};
use kjit_formats::format::{BlockScale, Encoding, Format, GroupFactors, GroupScale, Offset};

/// Scale and offset of a group, as in
/// [`BlockFormat::factors`](kjit_formats::format::BlockFormat::factors). f16 is converted by the
/// instruction, not by a function that detects whether it exists.
///
/// # Safety
/// The CPU has `V`'s instruction set, as for [`Job::run`](super::simd::Job::run).
#[inline(always)]
pub unsafe fn block_factors<V: Vector, F: FormatType>(block: &[u8], g: usize) -> GroupFactors {
    let f = const { F::BLOCK };
    let half = |at: u16| {
        let at = usize::from(at);
        // SAFETY: the caller guarantees the instruction set.
        unsafe { V::half(u16::from_le_bytes([block[at], block[at + 1]])) }
    };
    let d = match f.scale {
        BlockScale::F16(at) => half(at),
        _ => f.block_scale(block),
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

/// Scales and offsets of each sixteen weights of a block of 256.
///
/// # Safety
/// The CPU has `V`'s instruction set, as for [`Job::run`](super::simd::Job::run).
#[inline(always)]
pub unsafe fn sixteens<V: Vector, F: FormatType>(block: &[u8]) -> ([f32; 16], [f32; 16]) {
    let f = const { F::BLOCK };
    let (mut scales, mut offsets) = ([0.0; 16], [0.0; 16]);
    let per_group = f.group / 16;
    for g in 0..f.elems / f.group {
        // SAFETY: this function's safety contract, which the caller upholds, covers the call.
        let k = unsafe { block_factors::<V, F>(block, g) };
        scales[g * per_group..][..per_group].fill(k.scale);
        offsets[g * per_group..][..per_group].fill(k.offset);
    }
    (scales, offsets)
}

/// 32 weights from `code − bias`, with the description's order of roundings: operations are not
/// fused, and nothing is added if there is no offset.
///
/// # Safety
/// The CPU has `V`'s instruction set, as for [`Job::run`](super::simd::Job::run); `out` is valid
/// for 32 elements.
#[inline(always)]
unsafe fn finish<V: Vector, F: FormatType>(v: V, scale: V, offset: V, out: *mut f32) {
    // SAFETY: this function's safety contract, which the caller upholds, covers the call.
    unsafe {
        let scaled = v.mul(scale);
        match const { F::BLOCK.offset } {
            Offset::None => scaled.store(out),
            _ => scaled.add(offset).store(out),
        }
    }
}

/// Decodes whole blocks to floats: blocks of 32 two at a time, blocks of 256 by quarters.
///
/// # Safety
/// The CPU has `V`'s instruction set, as for [`Job::run`](super::simd::Job::run).
#[inline(always)]
unsafe fn blocks<V: Vector, F: FormatType>(bytes: &[u8], out: &mut [f32]) {
    let (n, size) = const { (F::BLOCK.elems, F::BLOCK.bytes) };
    let bias = const { unsigned(F::BLOCK.value).bias };
    let count = (bytes.len() / size).min(out.len() / n);
    let mut b = 0;
    while b < count {
        let block = &bytes[b * size..][..size];
        let to = out[b * n..].as_mut_ptr();
        // SAFETY: the caller guarantees the instruction set; `count` ensures that each block's
        // bytes and elements are in the slices.
        unsafe {
            if n == 32 {
                // A single last block is decoded twice and stored once.
                let two = b + 1 < count;
                let second = if two { &bytes[(b + 1) * size..][..size] } else { block };
                let (k, l) = (block_factors::<V, F>(block, 0), block_factors::<V, F>(second, 0));
                let [x, y] = V::widen(V::codes::<F, 0>(block.as_ptr(), second.as_ptr()), bias);
                finish::<V, F>(x, V::splat(k.scale), V::splat(k.offset), to);
                if two {
                    finish::<V, F>(y, V::splat(l.scale), V::splat(l.offset), to.add(32));
                }
                b += 2;
            } else {
                let (s, o) = sixteens::<V, F>(block);
                let at = block.as_ptr();
                let quarters = [
                    V::widen(V::codes::<F, 0>(at, at), bias),
                    V::widen(V::codes::<F, 1>(at, at), bias),
                    V::widen(V::codes::<F, 2>(at, at), bias),
                    V::widen(V::codes::<F, 3>(at, at), bias),
                ];
                for (i, v) in quarters.into_iter().flatten().enumerate() {
                    let (scale, offset) =
                        (V::halves(s[2 * i], s[2 * i + 1]), V::halves(o[2 * i], o[2 * i + 1]));
                    finish::<V, F>(v, scale, offset, to.add(32 * i));
                }
                b += 1;
            }
        }
    }
}

/// Decodes whole blocks to floats. `bytes` and `out` must hold the same number of blocks.
///
/// # Safety
/// The CPU has `V`'s instruction set, as for [`Job::run`](super::simd::Job::run).
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
                // SAFETY: 32 elements from i on are in both slices.
                unsafe {
                    V::load_f16(bytes.as_ptr().add(2 * i).cast()).store(out.as_mut_ptr().add(i))
                };
            }
            for (o, b) in out[done..].iter_mut().zip(bytes[2 * done..].as_chunks::<2>().0) {
                *o = half::f16::from_le_bytes(*b).to_f32();
            }
        }
        Encoding::BF16 => {
            let done = whole_halves(bytes, out);
            for i in (0..done).step_by(LANES) {
                // SAFETY: 32 elements from i on are in both slices.
                unsafe {
                    V::load_bf16(bytes.as_ptr().add(2 * i).cast()).store(out.as_mut_ptr().add(i))
                };
            }
            for (o, b) in out[done..].iter_mut().zip(bytes[2 * done..].as_chunks::<2>().0) {
                *o = half::bf16::from_le_bytes(*b).to_f32();
            }
        }
        // SAFETY: the caller guarantees the instruction set.
        Encoding::Blocks(_) => with_format!(format, F => unsafe { blocks::<V, F>(bytes, out) },
        else match Scattered::find(format) {
            // SAFETY: the caller guarantees the instruction set.
            Some(s) => unsafe { scattered::<V>(&s, bytes, out) },
            None => decode_slowly(format, bytes, out),
        }),
    }
}

/// Decodes whole blocks of a format that [`Scattered`] unpacks.
///
/// # Safety
/// The CPU has `V`'s instruction set, as for [`Job::run`](super::simd::Job::run).
#[inline(always)]
unsafe fn scattered<V: Vector>(s: &Scattered, bytes: &[u8], out: &mut [f32]) {
    for (block, out) in bytes.chunks_exact(s.block.bytes).zip(out.chunks_exact_mut(s.block.elems)) {
        let scales = (s.scales)(block);
        for (c, out) in out.as_chunks_mut::<CHUNK>().0.iter_mut().enumerate() {
            // SAFETY: the caller guarantees the instruction set; a chunk has space for 64 weights.
            unsafe {
                let [x, y] = V::widen(V::load_codes(&(s.codes)(block, c)), s.bias);
                let k = &scales[4 * c..][..4];
                x.mul(V::halves(k[0], k[1])).store(out.as_mut_ptr());
                y.mul(V::halves(k[2], k[3])).store(out.as_mut_ptr().add(LANES));
            }
        }
    }
}

/// A slow decoder for a format that is missing above. A test shows that no format of the table
/// needs it.
#[cold]
fn decode_slowly(format: &Format, bytes: &[u8], out: &mut [f32]) {
    if let Encoding::Blocks(f) = &format.encoding {
        for (b, o) in bytes.chunks_exact(f.bytes).zip(out.chunks_exact_mut(f.elems)) {
            f.decode(b, o);
        }
    }
}

/// The number of 2-byte floats that are loaded in groups of 32. GGUF is little-endian, so this is 0
/// on a big-endian CPU.
fn whole_halves(bytes: &[u8], out: &[f32]) -> usize {
    if cfg!(target_endian = "little") { out.len().min(bytes.len() / 2) / LANES * LANES } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::super::simd::{Isa, Job};
    use super::*;
    use crate::testing::Rng;
    use kjit_formats::format::ALL;

    struct Decode<'a>(&'a Format, &'a [u8], &'a mut [f32]);

    impl Job for Decode<'_> {
        type Out = ();
        #[inline(always)]
        unsafe fn run<V: Vector>(self) {
            // SAFETY: this function's safety contract, which the caller upholds, covers the call.
            unsafe { decode::<V>(self.0, self.1, self.2) }
        }
    }

    #[test]
    fn unpacked_formats_match_description_on_every_isa() {
        let mut rng = Rng::new();
        for format in ALL {
            for blocks in [1, 2, 3, 31, 33, 67] {
                let bytes: Vec<u8> =
                    (0..blocks * format.block_bytes()).map(|_| rng.next() as u8).collect();
                let mut want = vec![f32::NAN; blocks * format.block_elems()];
                format.decode(&bytes, &mut want).unwrap();
                for isa in Isa::available() {
                    let mut got = vec![f32::NAN; want.len()];
                    // SAFETY: this job has no requirement on its fields.
                    unsafe { isa.run(Decode(format, &bytes, &mut got)) };
                    for (i, (g, w)) in got.iter().zip(&want).enumerate() {
                        // A NaN scale gives NaNs, whose payload may differ.
                        let same = g.to_bits() == w.to_bits() || g.is_nan() && w.is_nan();
                        assert!(
                            same,
                            "{format} on {}: weight {i} is {g}, not {w}; {rng}",
                            isa.name()
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn every_block_format_has_one_decoder_type() {
        for format in ALL.iter().filter(|f| matches!(f.encoding, Encoding::Blocks(_))) {
            let typed =
                with_format!(format, F => F::BLOCK.bytes == format.block_bytes(), else false);
            let scattered =
                Scattered::find(format).is_some_and(|s| s.block.bytes == format.block_bytes());
            assert!(typed != scattered, "{format}");
        }
    }
}
