//! Collects samples of kernels, at sizes of real models.

use kjit_engine::Target;
use kjit_formats::format::{ALL, Format};
use kjit_kernels::heads::{HeadsForm, RopeForm, Scores};
use kjit_kernels::kv::KvLayout;
use kjit_kernels::launch::Work;
use kjit_kernels::segments::Segment;
use kjit_kernels::spec::{Registered, Spec};
use kjit_kernels::{Kernel, Size, SpecError};

/// A kernel at a size of a real model.
#[derive(Debug, Clone)]
pub struct Sample {
    /// Family, formats and sizes.
    pub name: String,
    /// The kernel.
    pub kernel: Kernel,
    /// Spec of the kernel.
    pub spec: Spec,
    /// The least work of one launch.
    pub work: Work,
}

/// Tokens in the context of attention samples, and in a prompt.
pub(crate) const CONTEXT: usize = 4096;
pub(crate) const PROMPT: usize = 2048;

/// Collects samples.
#[derive(Debug)]
pub struct Samples<'t> {
    /// The target.
    pub(crate) target: &'t Target,
    pub(crate) all: Vec<Sample>,
}

impl Samples<'_> {
    /// Adds a sample; its work is that of a launch of this size.
    pub(crate) fn add(
        &mut self,
        name: String,
        spec: impl Registered,
        size: Size,
    ) -> Result<(), SpecError> {
        let (kernel, work) = (spec.kernel(self.target)?, spec.work(size));
        self.all.push(Sample { name, kernel, spec: spec.into(), work });
        Ok(())
    }

    /// The widths of a wave that are not the target's default.
    pub(crate) fn other_waves(&self) -> Vec<u32> {
        self.target.waves().iter().copied().filter(|w| *w != self.target.default_wave()).collect()
    }
}

pub(crate) fn format(name: &str) -> &'static Format {
    Format::by_name(name).unwrap_or(&ALL[0])
}

pub(crate) fn segment(name: &str, rows: usize) -> Segment {
    Segment { format: format(name), rows, bias: false }
}

/// Query heads, key heads and head sizes of real models.
pub(crate) const HEADS: [(usize, usize, usize); 7] =
    [(9, 3, 64), (14, 2, 64), (32, 8, 128), (32, 4, 128), (32, 32, 80), (32, 32, 96), (8, 4, 256)];

pub(crate) fn heads_form(heads: usize, kv: KvLayout) -> HeadsForm {
    let head_dim = kv.head_dim;
    let rope = RopeForm { dims: head_dim, halves: heads != 32 };
    HeadsForm { heads, kv, qk_norm: head_dim >= 128, rope, kept_before: false, paged: false }
}

/// A window and a cap if models with such heads have one.
pub(crate) fn sample_scores(head_dim: usize) -> Scores {
    let (window, soft_cap) = ((head_dim == 256).then_some(1024), (head_dim == 96).then_some(50.0));
    Scores { window, soft_cap, ..Scores::default() }
}
