//! The spec of any family as one type, and the registry of families. A plan is a list of specs;
//! benches and tuning records name kernels by them.

use crate::vocabulary::arguments::Declared;
use crate::vocabulary::family::{Family, SpecName};
use crate::vocabulary::kernel::{Kernel, SpecError};
use crate::vocabulary::launch::{Launch, Size, Work};
use crate::vocabulary::shipped::Table;
use crate::vocabulary::step::{Step, StepContext};
use crate::vocabulary::variant::Variant;
use kjit_engine::Target;
use std::fmt;

/// Passes the row of each family to a macro. Specialising, launching, tuning, timing, cases and the
/// compile matrix use this one list.
#[macro_export]
macro_rules! families {
    ($then:ident) => {
        $then! {
            /// Matrix × vector.
            Matvec($crate::matvec::MatvecSpec);
            /// Matrix × vector through chosen experts.
            Experts($crate::experts::ExpertsSpec);
            /// Matrix × matrix.
            Gemm($crate::gemm::GemmSpec);
            /// Matrix × few rows.
            SmallGemm($crate::small_gemm::SmallGemmSpec);
            /// Matrix × rows of a batch, with weights unpacked into registers.
            BatchGemm($crate::batch_gemm::BatchGemmSpec);
            /// Attention of new tokens, one token per sequence.
            Attend($crate::attend::AttendSpec);
            /// Attention of new tokens to latents (compressed keys and values).
            Latent($crate::latent::LatentSpec);
            /// Attention of a prompt to latents.
            LatentFlash($crate::latent_flash::LatentFlashSpec);
            /// Rows to a cache.
            CacheRows($crate::cache_rows::CacheRowsSpec);
            /// Scores of cached keys for new tokens.
            IndexerScores($crate::indexer_scores::IndexerScoresSpec);
            /// The positions of the best scores.
            TopKeys($crate::top_keys::TopKeysSpec);
            /// Short convolutions along the tokens.
            Conv($crate::conv::ConvSpec);
            /// Selective state spaces.
            Scan($crate::scan::ScanSpec);
            /// Linear attention: its past is one matrix for each head.
            Linear($crate::linear::LinearSpec);
            /// Decay of a state.
            Decay($crate::decay::DecaySpec);
            /// Attention of a prompt.
            Flash($crate::flash::FlashSpec);
            /// Heads of a prompt: normalised, rotated, stored.
            RopeKv($crate::rope_kv::RopeKvSpec);
            /// Columns of activations, quantised.
            Quantize($crate::quantize::QuantizeSpec);
            /// Activations as f16 in tiles.
            Tiles($crate::tiles::TilesSpec);
            /// Counts the tokens of each expert.
            MoeCount($crate::moe::MoeCountSpec);
            /// Groups tokens by expert.
            MoeGroup($crate::moe::MoeGroupSpec);
            /// Weighted sums of grouped rows.
            MoeSum($crate::moe::MoeSumSpec);
            /// Rows of the embedding.
            Embed($crate::embed::EmbedSpec);
            /// Rows converted to the device's layout.
            Repack($crate::repack::RepackSpec);
            /// Norms.
            Norm($crate::norm::NormSpec);
            /// Softmax.
            Softmax($crate::softmax::SoftmaxSpec);
            /// Sums and gated units.
            Combine($crate::combine::CombineSpec);
            /// Elementwise operations on rows.
            Map($crate::map::MapSpec);
            /// Copies of rows.
            CopyRows($crate::copy_rows::CopyRowsSpec);
            /// Choice of experts.
            Route($crate::route::RouteSpec);
            /// Weighted sums of experts' results.
            ExpertSum($crate::expert_sum::ExpertSumSpec);
            /// Biases, masks and penalties.
            Adjust($crate::adjust::AdjustSpec);
            /// The most likely token.
            Argmax($crate::argmax::ArgmaxSpec);
            /// A token drawn at random.
            Draw($crate::draw::DrawSpec);
            /// Sums over devices.
            Reduce($crate::reduce::ReduceSpec);
            /// Reads memory at the highest rate.
            Read($crate::read::ReadSpec);
        }
    };
}

/// Defines [`Spec`] and [`Tuning`] from one row per family.
macro_rules! registry {
    ($($(#[$doc:meta])* $name:ident($spec:ty);)*) => {
        /// A spec of any family.
        #[derive(Debug, Clone, PartialEq, Eq, Hash)]
        pub enum Spec {
            $($(#[$doc])* $name($spec),)*
        }

        /// The tuning of a kernel of any family.
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
            /// The unchanged spec, if it belongs to a different family.
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
            /// As for the family.
            pub fn kernel(&self, target: &Target) -> Result<Kernel, SpecError> {
                match self {
                    $(Spec::$name(spec) => spec.kernel(target),)*
                }
            }

            /// Whether the target has the kernel; generates no source.
            #[must_use]
            pub fn covered(&self, target: &Target) -> bool {
                match self {
                    $(Spec::$name(spec) => spec.covered(target),)*
                }
            }

            /// The launch on a device of `units` compute units; generates no source.
            ///
            /// # Errors
            /// As for the family.
            pub fn launch(
                &self,
                target: &Target,
                units: u32,
                size: Size,
            ) -> Result<Launch, SpecError> {
                match self {
                    $(Spec::$name(spec) => spec.launch(target, units, size),)*
                }
            }

            /// The step in a kernel of many steps.
            ///
            /// # Errors
            /// As for the family.
            pub fn inside(&self, target: &Target, inside: StepContext) -> Result<Step, SpecError> {
                match self {
                    $(Spec::$name(spec) => spec.inside(target, inside),)*
                }
            }

            /// The least work of a launch.
            #[must_use]
            pub fn work(&self, size: Size) -> Work {
                match self {
                    $(Spec::$name(spec) => spec.work(size),)*
                }
            }

            /// The size for timing the kernel, with `depth` tokens in the cache.
            #[must_use]
            pub fn timed_at(&self, depth: usize) -> Size {
                match self {
                    $(Spec::$name(spec) => spec.timed_at(depth),)*
                }
            }

            /// The tuning in use; `None` for a family without tunings, or if the spec is not
            /// supported.
            #[must_use]
            pub fn tuning(&self, target: &Target) -> Option<Tuning> {
                match self {
                    $(Spec::$name(spec) => choice(spec.tuning(target).ok()?).map(Tuning::$name),)*
                }
            }

            /// The tuning in use if this table were the shipped one.
            #[must_use]
            pub fn tuning_by(&self, table: &Table, target: &Target) -> Option<Tuning> {
                match self {
                    $(Spec::$name(spec) => {
                        choice(spec.tuning_by(table, target).ok()?).map(Tuning::$name)
                    })*
                }
            }

            /// This spec with a tuning. With `None`, or a tuning of a different family, the default
            /// is used.
            #[must_use]
            pub fn with(&self, tuning: Option<Tuning>) -> Spec {
                match self {
                    $(Spec::$name(spec) => {
                        let own = if let Some(Tuning::$name(t)) = tuning { Some(t) } else { None };
                        Spec::$name(spec.clone().with(own))
                    })*
                }
            }

            /// Tunings worth trying; some may not fit the target.
            fn candidates(&self, target: &Target) -> Vec<Tuning> {
                match self {
                    $(Spec::$name(spec) => {
                        spec.candidates(target).into_iter().map(Tuning::$name).collect()
                    })*
                }
            }

        }

        /// The family's name and the computation with its sizes, without the tuning.
        impl fmt::Display for Spec {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Spec::$name(spec) => SpecName(spec).fmt(f),)*
                }
            }
        }

        /// The fields with names: `wave: 32, block: 512, …`.
        impl fmt::Display for Tuning {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Tuning::$name(tuning) => f.write_str(&tuning.text()),)*
                }
            }
        }
    };
}

families!(registry);

/// A family that is in the registry.
pub trait Registered: Family + Into<Spec> + TryFrom<Spec> {}

impl<F: Family + Into<Spec> + TryFrom<Spec>> Registered for F {}

/// The tuning, if the family has tunings.
fn choice<T: Variant>(tuning: T) -> Option<T> {
    T::CHOICE.then_some(tuning)
}

impl Spec {
    /// Tunings worth trying on a device, the default first; each is a kernel for the target. Empty
    /// for a family without tunings.
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

    /// The tuning with this string.
    #[must_use]
    pub fn named(&self, target: &Target, text: &str) -> Option<Tuning> {
        let default = self.with(None).tuning(target)?;
        let mut all = std::iter::once(default).chain(self.candidates(target));
        let found = all.find(|t| t.to_string() == text)?;
        self.with(Some(found)).covered(target).then_some(found)
    }
}
