//! Writes codes and scales into blocks, by the descriptions in [`kjit_formats`].

use half::f16;
use kjit_formats::format::{BlockFormat, GroupScale, Plane};

/// Writes the codes of a block into its bit planes. These bits must be zero before.
#[inline(always)]
pub fn planes(planes: &[Plane], codes: &[u8], block: &mut [u8]) {
    let mut below = 0;
    for plane in planes {
        let (run, bits) = (usize::from(plane.run), u32::from(plane.bits));
        let (mask, shares) = (((1u16 << bits) - 1) as u8, 8 / bits as usize);
        let runs = codes.chunks_exact(run * shares);
        for (codes, bytes) in runs.zip(block[usize::from(plane.at)..].chunks_exact_mut(run)) {
            for (share, codes) in codes.chunks_exact(run).enumerate() {
                for (byte, code) in bytes.iter_mut().zip(codes) {
                    *byte |= (code >> below & mask) << (bits * share as u32);
                }
            }
        }
        below += bits;
    }
}

/// Writes an f16 at a byte offset and returns its value.
#[inline(always)]
pub fn half(block: &mut [u8], at: usize, value: f32) -> f32 {
    let half = f16::from_f32(value);
    block[at..at + 2].copy_from_slice(&half.to_le_bytes());
    half.to_f32()
}

/// Writes the integer scales and offsets of the groups. Formats without offsets do not use
/// `offsets`.
#[inline(always)]
pub fn group_scales(format: &BlockFormat, scales: &[u8], offsets: &[u8], block: &mut [u8]) {
    match format.group_scale {
        GroupScale::Planes { low, high, .. } => match high {
            Some(high) => planes(&[low, high], scales, block),
            None => planes(&[low], scales, block),
        },
        GroupScale::NibblePair(at) => {
            let bytes = block[usize::from(at)..].iter_mut();
            for ((byte, scale), offset) in bytes.zip(scales).zip(offsets) {
                *byte = scale | offset << 4;
            }
        }
        GroupScale::SixBitPairs(at) => {
            let bytes = &mut block[usize::from(at)..];
            for (g, (scale, offset)) in scales.iter().zip(offsets).enumerate() {
                if g < 4 {
                    bytes[g] |= scale & 63;
                    bytes[g + 4] |= offset & 63;
                } else {
                    bytes[g + 4] = scale & 15 | offset << 4;
                    bytes[g - 4] |= scale >> 4 << 6;
                    bytes[g] |= offset >> 4 << 6;
                }
            }
        }
        GroupScale::One | GroupScale::Odd(_) | GroupScale::Ue4m3(_) => {}
    }
}
