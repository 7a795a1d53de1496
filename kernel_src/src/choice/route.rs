//! The choice of experts: `gpu/route.h`.

use crate::vocabulary::arguments::arguments;
use crate::vocabulary::family::Family;
use crate::vocabulary::kernel::{Kernel, SpecError, of_shape, require};
use crate::vocabulary::launch::{Block, Grid, Size, Work};
use crate::vocabulary::shape::{Shape, gpu_enum};
use crate::vocabulary::step::{Step, StepContext};
use crate::vocabulary::variant::{Wave, choice_of_wave};
use kjit_engine::{Constants, Target};
use std::fmt;

/// The conversion of scores to shares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Gating {
    /// The softmax over all scores.
    Softmax,
    /// The sigmoid of each score.
    Sigmoid,
    /// The raw scores determine the choice; the shares are the softmax of the chosen scores.
    Chosen,
}

gpu_enum!(ROW_ENUMS: Gating { Softmax, Sigmoid, Chosen });

/// Chooses experts for each token by their scores.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RouteSpec {
    /// Number of scores of a token, up to 1024: one for each expert, or [`RouteSpec::alike`] for
    /// each.
    pub experts: usize,
    /// Number of chosen experts, up to 32.
    pub top: usize,
    /// Whether the shares of the chosen experts sum to one before `scale`.
    pub renormalise: bool,
    /// The conversion of scores to shares.
    pub gating: Gating,
    /// Whether each expert has an offset for the choice.
    pub bias: bool,
    /// Whether each expert has a factor for its share.
    pub factors: bool,
    /// (number of runs of experts, number of runs that stay in the choice). Runs with the largest
    /// sums of their two best experts stay.
    pub groups: Option<(usize, usize)>,
    /// Number of successive scores for one expert, each with its own share.
    pub alike: usize,
    /// Lanes in a wave; `None`: the target's own.
    pub tuning: Option<Wave>,
}

arguments! {
    /// The arguments of routing.
    RouteArgs {
        /// `tokens × experts` f32.
        scores: Pointer,
        /// `experts` f32, or null.
        bias: Pointer,
        /// `experts` f32, or null.
        factors: Pointer,
        /// Output: `tokens × top` u32, in falling order of score, the lower index first among
        /// equals.
        experts: Pointer,
        /// Output: the shares of these experts, f32, times `scale`.
        shares: Pointer,
        /// Factor on shares.
        scale: F32,
    }
}

const NAME: &str = "route";

impl RouteSpec {
    /// The constants.
    fn shape(&self) -> Shape {
        let shape = Shape::new().number("EXPERTS", self.experts).number("TOP", self.top);
        let (count, used) = self.groups.unwrap_or((0, 0));
        let shape = shape
            .choice("GATING", &self.gating)
            .flag("BIAS", self.bias)
            .flag("FACTORS", self.factors);
        let shape = shape.number("GROUPS", count).number("GROUPS_USED", used);
        shape.number("ALIKE", self.alike).flag("RENORMALISE", self.renormalise)
    }
}

impl Family for RouteSpec {
    const NAME: &'static str = NAME;
    type Args<A> = RouteArgs<A>;
    choice_of_wave!();

    fn text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of {}{}",
            self.top,
            self.experts,
            if self.renormalise { ", to one" } else { "" }
        )?;
        if self.gating != Gating::Softmax {
            write!(f, ", {:?}", self.gating)?;
        }
        if let Some((count, used)) = self.groups {
            write!(f, ", {used} of {count} groups")?;
        }
        if self.alike > 1 {
            write!(f, ", {} alike", self.alike)?;
        }
        write!(
            f,
            "{}{}",
            if self.bias { ", bias" } else { "" },
            if self.factors { ", factors" } else { "" }
        )
    }

    fn check(&self, target: &Target, tuning: &Wave) -> Result<(), SpecError> {
        let fine =
            (1..=1024).contains(&self.experts) && (1..=self.experts.min(32)).contains(&self.top);
        require(fine, NAME, || {
            format!("{} of {} experts: at most 32 of 1024 are supported", self.top, self.experts)
        })?;
        let fits = |(count, used): (usize, usize)| {
            (1..=32).contains(&count)
                && used <= count
                && self.experts.is_multiple_of(count)
                && used * (self.experts / count) >= self.top
        };
        require(self.groups.is_none_or(fits), NAME, || {
            format!("{:?} groups do not divide {} experts", self.groups, self.experts)
        })?;
        let divides = self.alike > 0 && self.experts.is_multiple_of(self.alike);
        require(divides, NAME, || {
            format!("{} scores per expert do not divide {} scores", self.alike, self.experts)
        })?;
        tuning.check(NAME, target)
    }

    fn block(&self, _: &Target, &Wave { wave }: &Wave) -> Result<Block, SpecError> {
        Ok(Block::of(wave, wave))
    }

    fn render(&self, _: &Target, _: &Wave, block: Block) -> Result<Kernel, SpecError> {
        Ok(of_shape(NAME, &self.shape(), Constants::new(), block.wave, block.threads))
    }

    fn inside(&self, _: &Target, inside: StepContext) -> Result<Step, SpecError> {
        if inside.routed {
            let call = "StreamRoute<S>::step(a, links, lds);";
            let step = Step::of("stream_experts.h", "RouteArgs", call, self.shape());
            let lds = Some("StreamRoute<S>::Shared");
            return Ok(Step { lds, of_all_blocks: true, takes_values: Some(self.experts), ..step });
        }
        // One wave of the block chooses.
        let call = "Meeting::wait(); if (wave_id() == 0) Route<S>::step(a, share);";
        Ok(Step::of("route.h", "RouteArgs", call, self.shape()))
    }

    fn grid(&self, _: &Target, _: &Wave, _: u32, size: Size) -> Result<Grid, SpecError> {
        Ok(Grid::of([size.tokens as u32, 1, 1]))
    }

    fn work(&self, size: Size) -> Work {
        Work::moves(size.tokens * (4 * self.experts + 8 * self.top))
    }
}
