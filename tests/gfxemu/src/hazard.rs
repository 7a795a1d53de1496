//! Hazards: what a family's hardware does not wait for by itself, so that the compiler must, by
//! `s_nop`, by an instruction between or by a wait. What an instruction does depends on those
//! before it in its wave, as they were executed; so a path that was not taken shows nothing.
//!
//! The rules are those of AMD's ISA documents and of what LLVM's compiler inserts; README.md has
//! the table.

mod gfx9;
mod matrix;
mod rdna;

use crate::facts::Facts;
use crate::operand::SCALARS;
use crate::target::Target;
use crate::wave::Span;

/// Long ago: more wait states than any rule asks for.
const BEFORE: u64 = 1000;

/// A vector register's past; times are wait states.
#[derive(Clone, Copy, Debug, Default)]
struct Past {
    /// When vector arithmetic wrote it, matrices left out.
    written: u64,
    /// When a transcendental did.
    transcendental: u64,
    /// When an instruction did that puts its result into a part of it.
    selected: u64,
    /// When a dot product did, and which.
    dot: (u64, u32),
    /// When a matrix did, and the first register of that matrix.
    matrix: (u64, u16),
    /// When a matrix read it as its summand.
    summand: u64,
    /// When it was copied to an accumulation register, or from one.
    to_acc: u64,
    from_acc: u64,
    /// When a wide store took its data from it.
    stored: u64,
    /// RDNA: the number of the vector instruction that wrote it, 0 if that is surely done.
    number: u64,
    /// Likewise of a transcendental one, and how many of those there were with it.
    slow: (u64, u64),
}

/// What a wave did.
#[derive(Clone, Debug)]
pub struct Hazards {
    target: Target,
    /// Wait states so far.
    now: u64,
    vector: Vec<Past>,
    /// When vector arithmetic wrote a scalar register.
    scalar: [u64; SCALARS],
    rdna: rdna::State,
}

impl Hazards {
    /// Of a wave that did nothing yet.
    pub fn new(target: &Target) -> Hazards {
        Hazards {
            target: target.clone(),
            now: BEFORE,
            vector: vec![Past::default(); 1024],
            scalar: [0; SCALARS],
            rdna: rdna::State::default(),
        }
    }

    /// The next instruction of the wave: whether it comes too early. `registers` is how many vector
    /// registers the wave was given.
    pub fn step(&mut self, facts: &Facts, registers: usize) -> Result<(), String> {
        if self.target.generation == 9 {
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

    /// Wait states between what happened at `then` and now.
    fn since(&self, then: u64) -> u64 {
        if then == 0 { u64::MAX } else { self.now - then }
    }

    /// The registers of a span, with their pasts.
    fn pasts(&self, s: Span) -> impl Iterator<Item = (u16, &Past)> {
        let range = if s.vector { s.first..s.first + s.count } else { 0..0 };
        range.filter_map(|r| Some((r, self.vector.get(usize::from(r))?)))
    }

    /// Enough wait states, or how many are missing.
    fn enough(&self, then: u64, needed: u64, what: impl FnOnce() -> String) -> Result<(), String> {
        match self.since(then) {
            n if n >= needed => Ok(()),
            n => Err(format!("hazard: {} needs {needed} wait states, and there are {n}", what())),
        }
    }
}

/// A scalar register's name.
fn scalar_name(r: u16) -> String {
    match r {
        126 | 127 => "EXEC".into(),
        106 | 107 => "VCC".into(),
        125 => "M0".into(),
        _ => format!("s{r}"),
    }
}

/// A vector register's.
fn vector_name(r: u16) -> String {
    if r >= crate::operand::ACC { format!("a{}", r - crate::operand::ACC) } else { format!("v{r}") }
}
