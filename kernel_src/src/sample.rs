//! The next token, chosen on the device, and the sequence moved on: `gpu/argmax.hip`, `gpu/draw.hip`.

use crate::kernel::{Kernel, SpecError, require, source};
use kjit_engine::{Constants, Geometry, Options, Target, Vendor};

/// How the token is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Choice {
    /// The largest logit, the lower id first among equals. Arguments: `logits, part, counters, slots, tokens, position` (pointers),
    /// `capacity: u32, blocks: u32`. `part` is `sequences × blocks` u64 of working memory, `counters` a u32 per sequence, zero before the
    /// first launch and after every one.
    Largest,
    /// Drawn: top-k, temperature, top-p, min-p, in this order. Arguments: `logits, fractions, options, slots, tokens, position` (pointers), `capacity: u32,
    /// top_k: u32` (0: all), `temperature: f32` (above 0), `top_p: f32` (1: all), `min_p: f32` (0: all). `fractions` has a number in
    /// `[0, 1)` for each place and position of the context, from the host's generator. `options`, where not null, has these four for each
    /// place, and the arguments are not read.
    Drawn,
}

/// Chooses a token for each sequence. `logits` is `sequences × vocab` f32, `slots` a u32 per sequence, its place (null: the same),
/// `tokens` `places × capacity` u32, `position` a u32 per place: the position of the token that the logits came from. The chosen one is written behind it, and `position` is advanced.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SampleSpec {
    /// Size of the vocabulary.
    pub vocab: usize,
    /// How.
    pub choice: Choice,
}

impl SampleSpec {
    /// The specialised kernel.
    ///
    /// # Errors
    /// No vocabulary, or one too large.
    pub fn kernel(&self, target: &Target) -> Result<Kernel, SpecError> {
        let wave = target.default_wave();
        self.kernel_at(target, wave, self.block(wave))
    }

    /// Threads of a block. One block draws: with as many as there can be; but in waves of 64 a block of 1024 leaves a thread 64 registers on
    /// GCN, and seven were spilled.
    pub(crate) fn block(&self, wave: u32) -> u32 {
        if self.choice == Choice::Largest || wave == 64 { 512 } else { 1024 }
    }

    pub(crate) fn kernel_at(&self, target: &Target, wave: u32, block: u32) -> Result<Kernel, SpecError> {
        require((1..1 << 22).contains(&self.vocab), "sample", || format!("a vocabulary of {}", self.vocab))?;
        require(target.waves().contains(&wave), "sample", || format!("wave {wave} on {target}"))?;
        let (file, entry) = match self.choice {
            Choice::Largest => ("argmax.hip", "argmax"),
            Choice::Drawn => ("draw.hip", "draw"),
        };
        let mut constants = Constants::new().set("KJ_BLOCK", block).set("VOCAB", self.vocab as i64);
        if self.choice == Choice::Drawn && target.vendor() == Vendor::Nvidia {
            // Not told that one block of 1024 a unit is enough, ptxas makes room for two on sm_90: 32 registers, and eight spilled.
            constants = constants.set("KJ_MIN_BLOCKS", 1);
        }
        Ok(Kernel {
            source: source(entry, file).entry(entry),
            constants,
            options: Options::wave(wave),
            entry,
            block,
            shared: 0,
        })
    }

    /// Blocks for each sequence: also the last argument of [`Choice::Largest`].
    #[must_use]
    pub fn blocks(&self, units: u32) -> u32 {
        match self.choice {
            Choice::Largest => (self.vocab as u32).div_ceil(2048).clamp(1, units.max(1)),
            Choice::Drawn => 1,
        }
    }

    /// The launch.
    ///
    /// # Errors
    /// As [`SampleSpec::kernel`].
    pub fn geometry(&self, target: &Target, units: u32, sequences: u32) -> Result<Geometry, SpecError> {
        let mut g = self.kernel(target)?.launch(1);
        g.grid = match self.choice {
            Choice::Largest => [self.blocks(units), sequences.max(1), 1],
            Choice::Drawn => [sequences.max(1), 1, 1],
        };
        Ok(g)
    }
}
