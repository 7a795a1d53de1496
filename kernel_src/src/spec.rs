//! Any family's spec as one value: what a plan is a list of, what benches time and what tuning is kept by.

use crate::activations::Prologue;
use crate::attend::{AttendSpec, HeadsForm, RopeKvSpec};
use crate::elementwise::{CombineSpec, RowsSpec};
use crate::embed::EmbedSpec;
use crate::experts::{ExpertSumSpec, ExpertsSpec, RouteSpec};
use crate::flash::FlashSpec;
use crate::gemm::GemmSpec;
use crate::kernel::{Kernel, SpecError};
use crate::matvec::MatvecSpec;
use crate::moe::{MoeSpec, MoeStep};
use crate::norm::{NormSpec, SoftmaxSpec};
use crate::prepare::PrepareSpec;
use crate::read::ReadSpec;
use crate::repack::RepackSpec;
use crate::sample::SampleSpec;
use crate::segments::Segment;
use crate::strips::StripsSpec;
use crate::tiles::TilesSpec;
use kjit_engine::Target;
use std::fmt;

/// One step of [`MoeSpec`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MoeKernel {
    /// The experts.
    pub spec: MoeSpec,
    /// The step.
    pub step: MoeStep,
}

impl MoeKernel {
    fn kernel(&self, target: &Target) -> Result<Kernel, SpecError> {
        self.spec.kernel(self.step, target)
    }
}

macro_rules! specs {
    ($($(#[$doc:meta])* $name:ident($spec:ty), $family:literal;)*) => {
        /// A spec of any family.
        #[derive(Debug, Clone, PartialEq, Eq, Hash)]
        pub enum Spec {
            $($(#[$doc])* $name($spec),)*
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
                    #[allow(unreachable_patterns, reason = "a family may be the only one")]
                    other => Err(other),
                }
            }
        })*

        impl Spec {
            /// The family's name.
            #[must_use]
            pub const fn family(&self) -> &'static str {
                match self {
                    $(Spec::$name(_) => $family,)*
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
        }
    };
}

specs! {
    /// Matrix × vector.
    Matvec(MatvecSpec), "matvec";
    /// Matrix × vector through chosen experts.
    Experts(ExpertsSpec), "experts";
    /// Matrix × matrix.
    Gemm(GemmSpec), "gemm";
    /// Matrix × a few rows.
    Strips(StripsSpec), "strips";
    /// Attention of new tokens, one a sequence.
    Attend(AttendSpec), "attend";
    /// Attention of a prompt.
    Flash(FlashSpec), "flash";
    /// Heads of a prompt.
    RopeKv(RopeKvSpec), "rope_kv";
    /// Columns of activations.
    Prepare(PrepareSpec), "prepare";
    /// Activations as halves in tiles.
    Tiles(TilesSpec), "tiles";
    /// Grouping by expert.
    Moe(MoeKernel), "moe";
    /// Rows of the embedding.
    Embed(EmbedSpec), "embed";
    /// Rows as they lie on a device.
    Repack(RepackSpec), "repack";
    /// Norms.
    Norm(NormSpec), "norm_rows";
    /// Softmax.
    Softmax(SoftmaxSpec), "softmax";
    /// Sums and gated units.
    Combine(CombineSpec), "combine";
    /// Copies of rows.
    Rows(RowsSpec), "rows";
    /// Choice of experts.
    Route(RouteSpec), "route";
    /// Weighted sums of experts' results.
    ExpertSum(ExpertSumSpec), "expert_sum";
    /// Choice of a token.
    Sample(SampleSpec), "sample";
    /// Memory, read as fast as it goes.
    Read(ReadSpec), "read";
}

/// `Q4_K 4096 + Q6_K 1024 with bias`.
struct Weights<'a>(&'a [Segment]);

impl fmt::Display for Weights<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, s) in self.0.iter().enumerate() {
            let (plus, bias) = (if i > 0 { " + " } else { "" }, if s.bias { " with bias" } else { "" });
            write!(f, "{plus}{} {}{bias}", s.format, s.rows)?;
        }
        Ok(())
    }
}

/// `, Norm`; nothing for no prologue.
struct First(Prologue, bool);

impl fmt::Display for First {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.1, self.0) {
            (true, _) => f.write_str(", prepared"),
            (false, Prologue::None) => Ok(()),
            (false, p) => write!(f, ", {p:?}"),
        }
    }
}

struct Heads<'a>(&'a HeadsForm);

impl fmt::Display for Heads<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let h = self.0;
        let norm = if h.qk_norm { ", norm" } else { "" };
        let halves = if h.rope.halves { " in halves" } else { "" };
        write!(f, "{}/{} × {} {:?}{norm}", h.heads, h.kv.heads, h.kv.head_dim, h.kv.storage)?;
        write!(f, ", {} turn{halves}", h.rope.dims)
    }
}

/// What is computed, at which sizes, without the tuning: two specs that compute the same have one text, and two texts are two kernels. Tuning
/// is kept by it.
impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seen = |window: Option<usize>, cap: Option<f32>| {
            let window = window.map_or(String::new(), |w| format!(", window {w}"));
            cap.map_or(window.clone(), |c| format!("{window}, cap {c}"))
        };
        write!(f, "{} ", self.family())?;
        match self {
            Spec::Matvec(s) => {
                write!(f, "{} × {}, {:?}{}", Weights(&s.segments), s.cols, s.finish, First(s.prologue, s.prepared))?;
                if s.columns > 1 { write!(f, ", {} columns", s.columns) } else { Ok(()) }
            }
            Spec::Experts(s) => {
                let slots = if s.per_slot { ", a column for each" } else { "" };
                write!(f, "{} {} × {}, {:?}", s.format, s.rows, s.cols, s.finish)?;
                write!(f, "{}, {} tokens × {}{slots}", First(s.prologue, s.prepared), s.tokens, s.top)
            }
            Spec::Gemm(s) => {
                let tiled = if s.tiled { ", tiled" } else { "" };
                write!(f, "{} × {}, {:?}{tiled}, {} tokens", Weights(&s.segments), s.cols, s.finish, s.tokens)?;
                if s.experts > 1 { write!(f, ", {} experts", s.experts) } else { Ok(()) }
            }
            Spec::Strips(s) => {
                let out = if s.strips { ", strips" } else { "" };
                write!(f, "{} × {}, {:?}{out}, {} tokens", Weights(&s.segments), s.cols, s.finish, s.tokens)
            }
            Spec::Attend(s) => write!(f, "{}{}", Heads(&s.form), seen(s.window, s.soft_cap)),
            Spec::Flash(s) => {
                let (kv, seen) = (s.kv, seen(s.window, s.soft_cap));
                write!(f, "{}/{} × {} {:?}, scale {}{seen}", s.heads, kv.heads, kv.head_dim, kv.storage, s.scale)
            }
            Spec::RopeKv(s) => write!(f, "{}{}", Heads(&s.form), if s.half { ", halves out" } else { "" }),
            Spec::Prepare(s) => write!(f, "{}, {:?}{}", s.column.cols, s.column.form, First(s.prologue, false)),
            Spec::Tiles(s) => {
                let (gather, form) = (if s.gather { ", gathered" } else { "" }, if s.strips { ", strips" } else { "" });
                write!(f, "{}{}{gather}{form}", s.cols, First(s.prologue, false))
            }
            Spec::Moe(m) => {
                let MoeSpec { experts, top, tile, cols } = m.spec;
                write!(f, "{:?}, {top} of {experts}, tiles of {tile}, rows of {cols}", m.step)
            }
            Spec::Embed(s) => {
                write!(f, "{} × {}{}", s.layout.format, s.layout.cols, if s.batch { ", batch" } else { "" })
            }
            Spec::Repack(s) => write!(f, "{} × {}", s.layout.format, s.layout.cols),
            Spec::Norm(s) => {
                write!(f, "{:?} {}{}", s.kind, s.cols, if s.residual { ", residual" } else { "" })
            }
            Spec::Softmax(s) => write!(f, "{}", s.cols),
            Spec::Combine(s) => write!(f, "{:?}", s.op),
            Spec::Rows(_) => f.write_str("of words"),
            Spec::Route(s) => {
                write!(f, "{} of {}{}", s.top, s.experts, if s.renormalise { ", to one" } else { "" })
            }
            Spec::ExpertSum(s) => {
                write!(f, "{} × {}{}", s.top, s.cols, if s.residual { ", residual" } else { "" })
            }
            Spec::Sample(s) => write!(f, "{:?} of {}", s.choice, s.vocab),
            Spec::Read(s) => write!(f, "{} in flight", s.flight),
        }
    }
}
