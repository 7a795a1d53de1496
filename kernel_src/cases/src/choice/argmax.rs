//! Cases and samples of `argmax`.

use crate::case::{Case, CaseArg, FOLLOWS, floats};
use crate::cases::Cases;
use crate::choice::advance::{largest, moved};
use crate::data::Random;
use crate::samples::Samples;
use kjit_engine::Target;
use kjit_kernels::argmax::{ArgmaxArgs, ArgmaxSpec, ChoiceTuning};
use kjit_kernels::launch::Launch;
use kjit_kernels::{Family, Size, SpecError};

impl Cases for ArgmaxSpec {
    fn case(
        &self,
        target: &Target,
        units: u32,
        size: Size,
        random: &mut Random,
    ) -> Result<Case, SpecError> {
        let logits = random.normals(size.tokens.max(1) * self.vocab, 3.0);
        of(self, target, (self.blocks(units), MOVES), &logits)
    }

    fn cases(
        target: &Target,
        wave: u32,
        random: &mut Random,
        into: &mut Vec<Case>,
    ) -> Result<(), SpecError> {
        let spec =
            |vocab| ArgmaxSpec { vocab, tuning: Some(ChoiceTuning { wave, block: 2 * wave }) };
        let logits = coarse(1009, random);
        into.push(of(&spec(1009), target, (3, 9), &logits)?);
        into.push(of(&spec(7), target, (3, 9), &[-3.0, -2.0, f32::NAN, -2.0, -5.0, -9.0, -2.5])?);
        Ok(())
    }

    fn samples(list: &mut Samples<'_>) -> Result<(), SpecError> {
        list.add("argmax".to_owned(), ArgmaxSpec { vocab: 128_256, tuning: None }, Size::ONE)
    }
}

/// A case of these logits with `blocks` blocks for each sequence.
fn of(
    spec: &ArgmaxSpec,
    target: &Target,
    (blocks, capacity): (u32, u32),
    logits: &[f32],
) -> Result<Case, SpecError> {
    let chosen: Vec<u32> = logits.chunks(spec.vocab).map(largest).collect();
    let n = chosen.len();
    let positions: Vec<u32> = (0..n as u32).map(|s| s % 5).collect();
    let [slots, tokens, position] = moved(&positions, capacity, &chosen);
    let tuning = spec.tuning(target)?;
    let launch = Launch::of(spec.block(target, &tuning)?, ArgmaxSpec::grid_of(blocks, n));
    let args = ArgmaxArgs {
        logits: floats("logits", logits),
        part: CaseArg::Null,
        counters: CaseArg::Null,
        slots,
        tokens,
        position,
        capacity: CaseArg::U32(capacity),
        blocks: FOLLOWS,
    };
    Case::of(
        format!("argmax {n} × {}, wave {}", spec.vocab, tuning.wave),
        spec,
        target,
        launch,
        args,
    )
}

/// Logits of four sequences: coarse, so that many are equal; a NaN, zeros of both signs, an
/// infinity.
pub(crate) fn coarse(vocab: usize, random: &mut Random) -> Vec<f32> {
    let mut logits: Vec<f32> =
        random.normals(4 * vocab, 3.0).iter().map(|v| (v * 4.0).round() / 4.0).collect();
    logits[17] = f32::NAN;
    logits[vocab..2 * vocab].fill(-0.0);
    logits[vocab + 700] = 0.0;
    logits[2 * vocab + 99] = f32::INFINITY;
    logits
}

/// Number of launches, each of which advances the position by one.
pub(crate) const MOVES: u32 = 4096;
