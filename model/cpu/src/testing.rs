//! Helpers that the unit tests of this crate share.

use std::fmt;

/// xorshift64*, with a new seed in every run. `Display` prints the seed for the message of a
/// failing test. `KJIT_TEST_SEED` repeats a run.
pub struct Rng {
    seed: u64,
    state: u64,
}

impl Rng {
    pub fn new() -> Rng {
        let fresh = || {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            now.map_or(1, |d| d.as_nanos() as u64) | 1
        };
        let seed =
            std::env::var("KJIT_TEST_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(fresh);
        Rng { seed, state: seed.max(1) }
    }

    pub fn next(&mut self) -> u64 {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        self.state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    /// A number between −1 and 1.
    pub fn real(&mut self) -> f32 {
        (self.next() & 0xff_ffff) as f32 / (1 << 23) as f32 - 1.0
    }

    pub fn reals(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.real()).collect()
    }
}

impl fmt::Display for Rng {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KJIT_TEST_SEED={}", self.seed)
    }
}

/// Random blocks of a format with finite scales: weights of about one.
pub fn weights(
    rng: &mut Rng,
    format: &kjit_formats::format::Format,
    rows: usize,
    cols: usize,
) -> Vec<u8> {
    use kjit_formats::format::{BlockScale, Encoding, GroupScale, Offset};
    let mut bytes: Vec<u8> =
        (0..rows * format.row_bytes(cols).unwrap()).map(|_| rng.next() as u8).collect();
    match format.encoding {
        Encoding::F32 => {
            bytes.as_chunks_mut::<4>().0.iter_mut().for_each(|b| *b = rng.real().to_le_bytes())
        }
        Encoding::F16 => {
            bytes
                .as_chunks_mut()
                .0
                .iter_mut()
                .for_each(|b| *b = half::f16::from_f32(rng.real()).to_le_bytes());
        }
        Encoding::BF16 => {
            bytes
                .as_chunks_mut()
                .0
                .iter_mut()
                .for_each(|b| *b = half::bf16::from_f32(rng.real()).to_le_bytes());
        }
        Encoding::Blocks(f) => {
            let half =
                |rng: &mut Rng| half::f16::from_f32(0.01 + 0.01 * rng.real().abs()).to_le_bytes();
            for b in bytes.chunks_exact_mut(f.bytes) {
                match f.scale {
                    BlockScale::F16(at) => b[at as usize..][..2].copy_from_slice(&half(rng)),
                    BlockScale::HalfE8M0(at) => b[at as usize] = 120 + (rng.next() % 4) as u8,
                    BlockScale::F16Down(..) | BlockScale::SplitF16Down(..) => {
                        f.set_block_scale(b, half::f16::from_f32(0.002 + 0.002 * rng.real().abs()));
                    }
                    BlockScale::Down(_) => {}
                }
                if let GroupScale::Ue4m3(at) = f.group_scale {
                    b[at as usize..][..f.elems / f.group].iter_mut().for_each(|scale| *scale %= 48);
                }
                if let Offset::Plus(at) | Offset::MinusScaled(at) = f.offset {
                    b[at as usize..][..2].copy_from_slice(&half(rng));
                }
            }
        }
    }
    bytes
}
