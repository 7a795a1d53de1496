//! Hazards: dependencies for which the hardware of a family does not wait, so the compiler must
//! insert `s_nop`, another instruction or a wait. The check follows the instructions that a wave
//! executed: it does not see paths that were not taken.
//!
//! The rules come from AMD's ISA documents and from LLVM's compiler. The table is in README.md.

mod gfx9;
mod history;
mod matrix;
mod rdna;

use crate::facts::Facts;
use crate::operand::SCALARS;
use crate::span::Span;
use crate::target::Target;

/// More wait states than any rule needs: an event long ago.
const LONG_AGO: u64 = 1000;

/// The history of a vector register; times are wait states.
#[derive(Clone, Copy, Debug, Default)]
struct RegisterHistory {
    /// Last write by vector arithmetic other than matrix instructions.
    written: u64,
    /// Last write by a transcendental instruction.
    transcendental: u64,
    /// Last write by an instruction that writes only some bits of the register (SDWA, op_sel).
    selected: u64,
    /// Last write by a dot product, and a number for its name.
    dot: (u64, u32),
    /// Last write by a matrix instruction, and the first register of its result.
    matrix: (u64, u16),
    /// Last read as operand C by a matrix instruction.
    summand: u64,
    /// Last copy to or from an accumulation register.
    to_acc: u64,
    from_acc: u64,
    /// Last read as data of a store of more than 8 bytes per lane.
    stored: u64,
    /// RDNA: number of the vector instruction that wrote the register; 0 if that instruction is
    /// certainly complete.
    number: u64,
    /// RDNA: number of the transcendental instruction that wrote the register, and the count of
    /// transcendental instructions at that time.
    slow: (u64, u64),
}

/// The history of a wave.
#[derive(Clone, Debug)]
pub struct Hazards {
    target: Target,
    /// Wait states so far.
    now: u64,
    vector: Vec<RegisterHistory>,
    /// Last write of each scalar register by vector arithmetic.
    scalar: [u64; SCALARS],
    rdna: history::WaveHistory,
}

impl Hazards {
    /// The history of a wave that has not executed any instruction.
    pub fn new(target: &Target) -> Hazards {
        Hazards {
            target: target.clone(),
            now: LONG_AGO,
            vector: vec![RegisterHistory::default(); 1024],
            scalar: [0; SCALARS],
            rdna: history::WaveHistory::default(),
        }
    }

    /// Checks the next instruction of the wave and records it. `registers` is the number of vector
    /// registers of the wave.
    pub fn step(&mut self, facts: &Facts, registers: usize) -> Result<(), String> {
        if self.target.generation <= 9 {
            self.gfx9(facts, registers)?;
            if self.target.has_acc() {
                self.matrix(facts)?;
            }
            self.now += facts.states;
            self.remember(facts);
            Ok(())
        } else {
            self.rdna(facts)
        }
    }

    /// Wait states so far.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Number of wait states since the time `then`.
    fn since(&self, then: u64) -> u64 {
        if then == 0 { u64::MAX } else { self.now - then }
    }

    /// The registers of a span with their histories.
    fn pasts(&self, s: Span) -> impl Iterator<Item = (u16, &RegisterHistory)> {
        let range = if s.vector { s.first..s.first + s.count } else { 0..0 };
        range.filter_map(|r| Some((r, self.vector.get(usize::from(r))?)))
    }

    /// Checks for `needed` wait states since `then`. The error contains the missing number.
    fn enough(&self, then: u64, needed: u64, what: impl FnOnce() -> String) -> Result<(), String> {
        match self.since(then) {
            n if n >= needed => Ok(()),
            n => Err(format!("hazard: {} needs {needed} wait states, and there are {n}", what())),
        }
    }
}

/// The name of a scalar register.
fn scalar_name(r: u16) -> String {
    match r {
        126 | 127 => "EXEC".into(),
        106 | 107 => "VCC".into(),
        125 => "M0".into(),
        _ => format!("s{r}"),
    }
}

/// The name of a vector register.
fn vector_name(r: u16) -> String {
    if r >= crate::operand::ACC { format!("a{}", r - crate::operand::ACC) } else { format!("v{r}") }
}
