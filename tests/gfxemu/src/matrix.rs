//! Matrix instructions: 16 × 16 × 16, and gfx1250's 16 × 16 × 32. Inputs are f16, accumulation is
//! f32.

use crate::operand::{Operand, Type, register, source};
use crate::target::Target;
use crate::text::Text;
use crate::unsupported::Unsupported;
use crate::wave::Wave;
use half::f16;

/// The distribution of matrix elements over the lanes of a wave.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Layout {
    /// RDNA 3, wave 32: a lane has a whole row. Lanes 16 to 31 have the same data as lanes 0 to 15.
    Doubled,
    /// RDNA 4, wave 32: a lane has half of a row.
    Halved,
    /// CDNA: a lane has a quarter of a row, four elements.
    Quartered,
    /// gfx1250, depth 32: lanes 0 to 15 have elements 0 to 7 and 16 to 23 of a row, the other lanes
    /// the rest.
    Deep,
}

/// A matrix instruction.
#[derive(Clone, Debug)]
pub struct Matrix {
    layout: Layout,
    d: u16,
    a: u16,
    b: u16,
    c: Operand,
    flush: bool,
}

impl Matrix {
    /// Decodes an instruction; `None` if its name is unknown.
    pub fn decode(target: &Target, text: &Text) -> Result<Option<Matrix>, String> {
        let layout = match (text.name.as_str(), target.generation, target.wave) {
            ("v_wmma_f32_16x16x16_f16", 11, 32) => Layout::Doubled,
            ("v_wmma_f32_16x16x16_f16", 12, 32) => Layout::Halved,
            ("v_wmma_f32_16x16x32_f16", 12, 32) => Layout::Deep,
            ("v_mfma_f32_16x16x16_f16" | "v_mfma_f32_16x16x16f16", 9, _) => Layout::Quartered,
            _ => return Ok(None),
        };
        if let Some(m) = text.modifiers.first() {
            return Err(format!("modifier {m} is unknown"));
        }
        let vector = |k| match register(text.operand(k)?) {
            Some((Operand::Vector(n), _)) => Ok(n),
            _ => Err(format!("operand {k} is not a vector register")),
        };
        let c = source(text.operand(3)?, Type::F32)?.operand;
        Ok(Some(Matrix {
            layout,
            d: vector(0)?,
            a: vector(1)?,
            b: vector(2)?,
            c,
            flush: target.flushes_in_matrix(),
        }))
    }

    /// An element of A or B.
    fn half(&self, wave: &Wave, first: u16, row: usize, k: usize) -> Result<f64, Unsupported> {
        let (lane, at) = match self.layout {
            Layout::Doubled => (row, k),
            Layout::Halved => (row + 16 * (k / 8), k % 8),
            Layout::Quartered => (row + 16 * (k / 4), k % 4),
            Layout::Deep => (row + 16 * (k / 8 % 2), k / 16 * 8 + k % 8),
        };
        let r = wave.register(first + (at / 2) as u16);
        if r.bad[lane] >> (16 * (at % 2)) & 0xffff != 0 {
            return Err(Unsupported {
                what: format!("v{} is undefined in a matrix", first + (at / 2) as u16),
                lane: Some(lane as u32),
            });
        }
        let x = f16::from_bits((r.value[lane] >> (16 * (at % 2))) as u16).to_f64();
        Ok(if self.flush && x.abs() < 2f64.powi(-14) { 0.0 } else { x })
    }

    /// The register and lane that have an element of C and D.
    fn place(&self, row: usize, column: usize) -> (u16, usize) {
        match self.layout {
            Layout::Doubled => ((row / 2) as u16, column + 16 * (row % 2)),
            Layout::Halved | Layout::Deep => ((row % 8) as u16, column + 16 * (row / 8)),
            Layout::Quartered => ((row % 4) as u16, column + 16 * (row / 4)),
        }
    }

    /// Executes the instruction.
    pub fn run(&self, wave: &mut Wave) -> Result<(), Unsupported> {
        if wave.exec() != wave.full {
            return Err("a matrix instruction with lanes switched off".into());
        }
        if self.layout == Layout::Doubled {
            for first in [self.a, self.b] {
                for r in first..first + 8 {
                    let reg = wave.register(r);
                    if reg.any & wave.full != 0 {
                        let lane = Some((reg.any & wave.full).trailing_zeros());
                        return Err(Unsupported {
                            what: format!("v{r} is undefined in a matrix"),
                            lane,
                        });
                    }
                    if let Some(l) = (0..16).find(|&l| reg.value[l] != reg.value[l + 16]) {
                        let what = format!(
                            "lanes {l} and {} of v{r} differ in a matrix instruction",
                            l + 16
                        );
                        return Err(Unsupported { what, lane: Some(l as u32) });
                    }
                }
            }
        }
        let depth = if self.layout == Layout::Deep { 32 } else { 16 };
        let (mut a, mut b) = ([[0.0; 32]; 16], [[0.0; 32]; 16]);
        for row in 0..16 {
            for k in 0..depth {
                a[row][k] = self.half(wave, self.a, row, k)?;
                b[row][k] = self.half(wave, self.b, row, k)?;
            }
        }
        let mut out = [[0f32; 16]; 16];
        for row in 0..16 {
            for column in 0..16 {
                let (r, lane) = self.place(row, column);
                let c = match self.c {
                    Operand::Vector(n) => {
                        let reg = wave.register(n + r);
                        if reg.bad[lane] != 0 {
                            let what = format!("register {} is undefined in a matrix", n + r);
                            return Err(Unsupported { what, lane: Some(lane as u32) });
                        }
                        f32::from_bits(reg.value[lane])
                    }
                    Operand::Constant(x) => f32::from_bits(x as u32),
                    _ => return Err("a matrix's summand that is unknown".into()),
                };
                let sum: f64 = (0..depth).map(|k| a[row][k] * b[column][k]).sum();
                out[row][column] = (sum + f64::from(c)) as f32;
            }
        }
        for (row, line) in out.iter().enumerate() {
            for (column, x) in line.iter().enumerate() {
                let (r, lane) = self.place(row, column);
                wave.register_mut(self.d + r).set(lane, x.to_bits(), 0);
            }
        }
        Ok(())
    }
}
