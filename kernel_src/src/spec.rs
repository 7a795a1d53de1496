//! Any family's spec as one value, and the registry of families: what a plan is a list of, what
//! benches time and what tuning is kept by.

use crate::cases::{Case, Random};
use crate::matrix::Samples;
use crate::vocabulary::arguments::Declared;
use crate::vocabulary::family::{Family, Named};
use crate::vocabulary::kernel::{Kernel, SpecError};
use crate::vocabulary::launch::{Launch, Size, Work};
use crate::vocabulary::variant::Variant;
use kjit_engine::Target;
use std::fmt;

/// A row for each family. Whoever is here is specialised, launched, tuned, shipped, timed, in the
/// cases and in the compile matrix: there is no other list.
macro_rules! registry {
    ($($(#[$doc:meta])* $name:ident($spec:ty);)*) => {
        /// A spec of any family.
        #[derive(Debug, Clone, PartialEq, Eq, Hash)]
        pub enum Spec {
            $($(#[$doc])* $name($spec),)*
        }

        /// How a kernel of any family is cut.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Tuning {
            $($(#[$doc])* $name(<$spec as Family>::Tuning),)*
        }

        $(impl From<$spec> for Spec {
            fn from(spec: $spec) -> Spec {
                Spec::$name(spec)
            }
        }

        impl TryFrom<Spec> for $spec {
            /// It is of another family.
            type Error = Spec;

            fn try_from(spec: Spec) -> Result<$spec, Spec> {
                match spec {
                    Spec::$name(spec) => Ok(spec),
                    other => Err(other),
                }
            }
        })*

        /// The families' names.
        pub const FAMILIES: &[&str] = &[$(<$spec as Family>::NAME),*];

        /// All cases for a target at one wave width (which must be one of its own).
        ///
        /// # Errors
        /// A kernel that cannot be specialised for the target.
        pub(crate) fn cases(target: &Target, wave: u32, seed: u64) -> Result<Vec<Case>, SpecError> {
            let mut all = vec![];
            $(<$spec as Family>::cases(target, wave, &mut Random::new(seed), &mut all)?;)*
            Ok(all)
        }

        /// The samples of all families.
        pub(crate) fn samples(list: &mut Samples<'_>) -> Result<(), SpecError> {
            $(<$spec as Family>::samples(list)?;)*
            Ok(())
        }

        impl Spec {
            /// The family's name.
            #[must_use]
            pub const fn family(&self) -> &'static str {
                match self {
                    $(Spec::$name(_) => <$spec as Family>::NAME,)*
                }
            }

            /// The arguments of a launch.
            #[must_use]
            pub fn arguments(&self) -> &'static [Declared] {
                match self {
                    $(Spec::$name(spec) => Family::declared(spec),)*
                }
            }

            /// The specialised kernel.
            ///
            /// # Errors
            /// As the family's.
            pub fn kernel(&self, target: &Target) -> Result<Kernel, SpecError> {
                match self {
                    $(Spec::$name(spec) => spec.kernel(target),)*
                }
            }

            /// Whether there is a kernel: renders nothing.
            #[must_use]
            pub fn covered(&self, target: &Target) -> bool {
                match self {
                    $(Spec::$name(spec) => spec.covered(target),)*
                }
            }

            /// The launch on a device of `units` compute units: renders nothing.
            ///
            /// # Errors
            /// As the family's.
            pub fn launch(&self, target: &Target, units: u32, size: Size) -> Result<Launch, SpecError> {
                match self {
                    $(Spec::$name(spec) => spec.launch(target, units, size),)*
                }
            }

            /// The step in a kernel of many steps.
            ///
            /// # Errors
            /// As the family's.
            pub fn inside(&self, target: &Target, inside: crate::vocabulary::step::Inside) -> Result<crate::vocabulary::step::Step, SpecError> {
                match self {
                    $(Spec::$name(spec) => spec.inside(target, inside),)*
                }
            }

            /// What a launch must move and compute, at the least.
            #[must_use]
            pub fn work(&self, size: Size) -> Work {
                match self {
                    $(Spec::$name(spec) => spec.work(size),)*
                }
            }

            /// The size at which it is timed by itself, with `depth` tokens in the cache.
            #[must_use]
            pub fn timed_at(&self, depth: usize) -> Size {
                match self {
                    $(Spec::$name(spec) => spec.timed_at(depth),)*
                }
            }

            /// A case on a device of `units` compute units: what must be right before its speed is
            /// worth a word.
            ///
            /// # Errors
            /// As the family's.
            pub fn case(&self, target: &Target, units: u32, size: Size, random: &mut Random) -> Result<Case, SpecError> {
                match self {
                    $(Spec::$name(spec) => spec.case(target, units, size, random),)*
                }
            }

            /// The tuning in force; none for a family without a choice, or where the spec is not
            /// covered.
            #[must_use]
            pub fn tuning(&self, target: &Target) -> Option<Tuning> {
                match self {
                    $(Spec::$name(spec) => choice(spec.tuning(target).ok()?).map(Tuning::$name),)*
                }
            }

            /// The tuning in force if this table were the shipped one.
            #[must_use]
            pub fn tuning_by(&self, table: &crate::vocabulary::shipped::Table, target: &Target) -> Option<Tuning> {
                match self {
                    $(Spec::$name(spec) => choice(spec.tuning_by(table, target).ok()?).map(Tuning::$name),)*
                }
            }

            /// The same spec with another tuning; with none, or another family's, the default.
            #[must_use]
            pub fn with(&self, tuning: Option<Tuning>) -> Spec {
                match self {
                    $(Spec::$name(spec) => {
                        let own = if let Some(Tuning::$name(t)) = tuning { Some(t) } else { None };
                        Spec::$name(spec.clone().with(own))
                    })*
                }
            }

            /// What is worth trying, some of which may not fit the target.
            fn candidates(&self, target: &Target) -> Vec<Tuning> {
                match self {
                    $(Spec::$name(spec) => spec.candidates(target).into_iter().map(Tuning::$name).collect(),)*
                }
            }

        }

        /// The family's name and what is computed, at which sizes, without the tuning.
        impl fmt::Display for Spec {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Spec::$name(spec) => Named(spec).fmt(f),)*
                }
            }
        }

        /// The fields by name: `wave: 32, block: 512, …`.
        impl fmt::Display for Tuning {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Tuning::$name(tuning) => f.write_str(&tuning.text()),)*
                }
            }
        }
    };
}

registry! {
    /// Matrix × vector.
    Matvec(crate::products::matvec::MatvecSpec);
    /// Matrix × vector through chosen experts.
    Experts(crate::products::experts::ExpertsSpec);
    /// Matrix × matrix.
    Gemm(crate::products::gemm::GemmSpec);
    /// Matrix × a few rows.
    SmallGemm(crate::products::small_gemm::SmallGemmSpec);
    /// Matrix × a batch's rows, weights unpacked into registers.
    BatchGemm(crate::products::batch_gemm::BatchGemmSpec);
    /// Attention of new tokens, one a sequence.
    Attend(crate::attention::attend::AttendSpec);
    /// Attention of new tokens to latents.
    Latent(crate::attention::latent::LatentSpec);
    /// Attention of a prompt to latents.
    LatentFlash(crate::attention::latent_flash::LatentFlashSpec);
    /// Rows to a cache.
    Keep(crate::attention::keep::KeepSpec);
    /// How well kept keys answer.
    KeyScores(crate::attention::key_scores::KeyScoresSpec);
    /// The positions of the best scores.
    TopKeys(crate::attention::top_keys::TopKeysSpec);
    /// Short convolutions along the tokens.
    Conv(crate::state::conv::ConvSpec);
    /// Selective state spaces.
    Scan(crate::state::scan::ScanSpec);
    /// Attention whose past is one matrix for each head.
    Linear(crate::state::linear::LinearSpec);
    /// What stays of a state.
    Decay(crate::state::decay::DecaySpec);
    /// Attention of a prompt.
    Flash(crate::attention::flash::FlashSpec);
    /// Heads of a prompt: normed, rotated, kept.
    RopeKv(crate::attention::rope_kv::RopeKvSpec);
    /// Columns of activations, quantised.
    Quantize(crate::rows::quantize::QuantizeSpec);
    /// Activations as halves in tiles.
    Tiles(crate::rows::tiles::TilesSpec);
    /// Tokens counted by expert.
    MoeCount(crate::rows::moe::MoeCountSpec);
    /// Tokens grouped by expert.
    MoeGroup(crate::rows::moe::MoeGroupSpec);
    /// Weighted sums of grouped rows.
    MoeSum(crate::rows::moe::MoeSumSpec);
    /// Rows of the embedding.
    Embed(crate::rows::embed::EmbedSpec);
    /// Rows as they lie on a device.
    Repack(crate::rows::repack::RepackSpec);
    /// Norms.
    Norm(crate::rows::norm::NormSpec);
    /// Softmax.
    Softmax(crate::rows::softmax::SoftmaxSpec);
    /// Sums and gated units.
    Combine(crate::rows::combine::CombineSpec);
    /// Rows made element by element.
    Map(crate::rows::map::MapSpec);
    /// Copies of rows.
    Rows(crate::rows::copy::RowsSpec);
    /// Choice of experts.
    Route(crate::choice::route::RouteSpec);
    /// Weighted sums of experts' results.
    ExpertSum(crate::rows::expert_sum::ExpertSumSpec);
    /// Biases, masks and penalties.
    Adjust(crate::choice::adjust::AdjustSpec);
    /// The likeliest token.
    Argmax(crate::choice::argmax::ArgmaxSpec);
    /// A token at random.
    Draw(crate::choice::draw::DrawSpec);
    /// Sums over devices.
    Reduce(crate::rows::reduce::ReduceSpec);
    /// Memory, read as fast as it goes.
    Read(crate::rows::read::ReadSpec);
}

/// A family that is in the registry.
pub trait Registered: Family + Into<Spec> + TryFrom<Spec> {}

impl<F: Family + Into<Spec> + TryFrom<Spec>> Registered for F {}

/// The tuning, where there is anything to choose.
fn choice<T: Variant>(tuning: T) -> Option<T> {
    T::CHOICE.then_some(tuning)
}

impl Spec {
    /// What is worth trying on a device, the default first, each of which is a kernel for the
    /// target. Empty for a family without a choice.
    #[must_use]
    pub fn space(&self, target: &Target) -> Vec<Tuning> {
        let Some(default) = self.with(None).tuning(target) else { return vec![] };
        let mut all = vec![default];
        for tuning in self.candidates(target) {
            if !all.contains(&tuning) && self.with(Some(tuning)).covered(target) {
                all.push(tuning);
            }
        }
        all
    }

    /// The tuning of the space that has this text.
    #[must_use]
    pub fn named(&self, target: &Target, text: &str) -> Option<Tuning> {
        let default = self.with(None).tuning(target)?;
        let mut all = std::iter::once(default).chain(self.candidates(target));
        let found = all.find(|t| t.to_string() == text)?;
        self.with(Some(found)).covered(target).then_some(found)
    }
}
