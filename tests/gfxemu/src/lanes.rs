//! Instructions that read registers of other lanes, or read the register of one lane into a scalar
//! register.

use crate::operand::{Operand, Type, register, source};
use crate::span::Span;
use crate::target::{Event, Target};
use crate::text::Text;
use crate::unsupported::Unsupported;
use crate::wave::Wave;
use crate::width::LANES;

#[derive(Clone, Copy, Debug, PartialEq)]
enum LaneExchange {
    FirstLane,
    ReadLane,
    WriteLane,
    /// Swaps the halves of a wave of 64, including lanes that EXEC disables.
    Halves,
    /// The source lane within 32 lanes is computed by three constants: and, or, xor.
    Swizzle(u8, u8, u8),
    /// The source lane is an address in a register.
    Permute(u32),
}

/// A lane-exchange instruction.
#[derive(Clone, Debug)]
pub struct Lanes {
    how: LaneExchange,
    destination: u16,
    sources: Vec<Operand>,
    lanes: usize,
    /// Number of lanes that can be reached: ds_bpermute reaches only 32 on RDNA.
    reach: usize,
}

impl Lanes {
    /// Decodes an instruction; `None` if its name is unknown.
    pub fn decode(target: &Target, text: &Text) -> Result<Option<Lanes>, String> {
        let how = match text.name.trim_end_matches("_e32").trim_end_matches("_e64") {
            "v_readfirstlane_b32" => LaneExchange::FirstLane,
            "v_readlane_b32" => LaneExchange::ReadLane,
            "v_writelane_b32" => LaneExchange::WriteLane,
            "v_permlane64_b32" => LaneExchange::Halves,
            "ds_bpermute_b32" => LaneExchange::Permute(text.number("offset")? as u32),
            "ds_swizzle_b32" => {
                let pattern = text.value("offset").unwrap_or_default();
                let swap = pattern
                    .strip_prefix("swizzle(SWAP,")
                    .and_then(|r| r.strip_suffix(')')?.trim().parse().ok());
                LaneExchange::Swizzle(
                    31,
                    0,
                    swap.ok_or_else(|| format!("swizzle {pattern} is unknown"))?,
                )
            }
            _ => return Ok(None),
        };
        let (destination, mut sources) = (register(text.operand(0)?), Vec::new());
        for o in text.operands.iter().skip(1) {
            sources.push(source(o, Type::B32)?.operand);
        }
        let destination = match destination {
            Some((Operand::Vector(n) | Operand::Scalar(n), _)) => n,
            _ => return Err("a destination that is unknown".into()),
        };
        let lanes = target.wave as usize;
        Ok(Some(Lanes {
            how,
            destination,
            sources,
            lanes,
            reach: if target.generation <= 9 { 64 } else { 32 },
        }))
    }

    fn vector(&self, k: usize) -> Result<u16, Unsupported> {
        match self.sources.get(k) {
            Some(Operand::Vector(n)) => Ok(*n),
            _ => Err("a source that is not a vector register".into()),
        }
    }

    /// Executes the instruction.
    pub fn run(&self, wave: &mut Wave) -> Result<(), Unsupported> {
        let exec = wave.exec();
        match self.how {
            LaneExchange::FirstLane | LaneExchange::ReadLane => {
                let lane = match self.how {
                    LaneExchange::FirstLane if exec == 0 => 0,
                    LaneExchange::FirstLane => exec.trailing_zeros() as usize,
                    _ => self.lane(wave)?,
                };
                let r = wave.register(self.vector(0)?);
                let (value, bad) = (r.value[lane], r.bad[lane]);
                wave.set_scalar(self.destination, value, bad);
            }
            LaneExchange::WriteLane => {
                let lane = self.lane(wave)?;
                let (value, bad) =
                    wave.read_scalar(*self.sources.first().ok_or("no source")?, false)?;
                wave.register_mut(self.destination).set(lane, value as u32, bad as u32);
            }
            LaneExchange::Halves => {
                let from = wave.register(self.vector(0)?).clone();
                let to = wave.register_mut(self.destination);
                for l in (0..self.lanes).filter(|l| exec >> l & 1 == 1) {
                    to.set(l, from.value[l ^ 32], from.bad[l ^ 32]);
                }
            }
            LaneExchange::Swizzle(and, or, xor) => {
                let pick = |l: usize| {
                    l & !31 | ((l & 31 & usize::from(and)) | usize::from(or)) ^ usize::from(xor)
                };
                self.through_lds(wave, self.vector(0)?, std::array::from_fn(pick));
            }
            LaneExchange::Permute(offset) => {
                let address = wave.register(self.vector(0)?);
                if let Some(l) = (0..self.lanes).find(|l| (exec & address.any) >> l & 1 == 1) {
                    return Err(Unsupported {
                        what: "an undefined lane number".into(),
                        lane: Some(l as u32),
                    });
                }
                let pick = |l: usize| {
                    let n = (address.value[l].wrapping_add(offset) >> 2) as usize;
                    if self.reach < self.lanes { l & !31 | n & 31 } else { n & (self.lanes - 1) }
                };
                let from = std::array::from_fn(pick);
                self.through_lds(wave, self.vector(1)?, from);
            }
        }
        Ok(())
    }

    fn lane(&self, wave: &Wave) -> Result<usize, Unsupported> {
        let (n, bad) = wave.read_scalar(*self.sources.get(1).ok_or("no lane number")?, false)?;
        if bad != 0 {
            return Err("an undefined lane number".into());
        }
        Ok(n as usize & (self.lanes - 1))
    }

    /// An exchange through the LDS hardware: lanes disabled by EXEC give 0, and the result needs a
    /// wait.
    fn through_lds(&self, wave: &mut Wave, data: u16, from: [usize; LANES]) {
        let exec = wave.exec();
        let data = wave.register(data).clone();
        let to = wave.register_mut(self.destination);
        for l in (0..self.lanes).filter(|l| exec >> l & 1 == 1) {
            let f = from[l];
            let (value, bad) =
                if exec >> f & 1 == 1 { (data.value[f], data.bad[f]) } else { (0, 0) };
            to.set(l, value, bad);
        }
        wave.lds_issued += 1;
        let number = wave.lds_issued;
        wave.ask(
            Event::Lds,
            Some(Span { vector: true, first: self.destination, count: 1 }),
            number,
            Vec::new(),
        );
    }
}
