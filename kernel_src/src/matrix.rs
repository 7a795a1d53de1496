//! One of each kernel at the sizes of real models: what the compile matrix is made of, and what may
//! not spill anywhere. Which those are, each family says itself ([`Family::samples`]).

use crate::attention::heads::{HeadsForm, RopeForm, Scores};
use crate::attention::kv::KvLayout;
use crate::products::segments::Segment;
use crate::spec;
use crate::spec::{Registered, Spec};
use crate::vocabulary::kernel::{Kernel, SpecError};
use crate::vocabulary::launch::{Size, Work};
use kjit_engine::Target;
use kjit_formats::format::{ALL, Encoding, Format};

/// A kernel at a size of a real model.
#[derive(Debug, Clone)]
pub struct Sample {
    /// Family, formats, sizes.
    pub name: String,
    /// The kernel.
    pub kernel: Kernel,
    /// What it is a specialisation of.
    pub spec: Spec,
    /// What one launch has to do at least.
    pub work: Work,
}

/// Tokens in the context where attention is sampled, and of a prompt.
pub(crate) const CONTEXT: usize = 4096;
pub(crate) const PROMPT: usize = 2048;
/// One token, or row.
pub(crate) const ONE: Size = Size { tokens: 1, past: 0 };
/// A prompt's tokens where a kernel is timed by itself.
pub(crate) const CHUNK: Size = Size { tokens: 512, past: 0 };

/// The kernels for a target: every one at its default wave width, and, where the target has another
/// width, those of each family whose geometry depends on it at that one too.
///
/// # Errors
/// One that cannot be specialised: then the list itself is at fault.
pub fn representative(target: &Target) -> Result<Vec<Sample>, SpecError> {
    let mut list = Samples { target, all: vec![] };
    spec::samples(&mut list)?;
    Ok(list.all)
}

/// Formats of which there are samples: all but those whose rows `scripts/kernel-matrix` has not
/// written yet.
pub(crate) fn formats() -> impl Iterator<Item = &'static Format> {
    let unwritten = |f: &Format| {
        matches!(f.ggml_id, 35) || matches!(f.encoding, Encoding::Blocks(b) if b.is_scattered())
    };
    ALL.iter().filter(move |f| !unwritten(f))
}

/// Gathers samples.
#[derive(Debug)]
pub struct Samples<'t> {
    /// What for.
    pub(crate) target: &'t Target,
    all: Vec<Sample>,
}

impl Samples<'_> {
    /// A sample; its work is that of a launch of this size.
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

/// A window and a cap where models with such heads have one.
pub(crate) fn sample_scores(head_dim: usize) -> Scores {
    let (window, soft_cap) = ((head_dim == 256).then_some(1024), (head_dim == 96).then_some(50.0));
    Scores { window, soft_cap, ..Scores::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_has_a_name_of_its_own_and_work_to_do() {
        for arch in kjit_engine::arch::ARCHS {
            let target = Target::parse(arch.id).unwrap();
            let all = representative(&target).unwrap();
            let names: std::collections::BTreeSet<&str> =
                all.iter().map(|s| s.name.as_str()).collect();
            assert_eq!(names.len(), all.len(), "{target}");
            assert!(
                all.iter().all(|s| s.work.bytes > 0 && !s.name.contains(',')),
                "{target}: names go into CSV files"
            );
            let widths: std::collections::BTreeSet<u32> =
                all.iter().map(|s| s.kernel.options.wave).collect();
            assert_eq!(widths.into_iter().collect::<Vec<_>>(), target.waves(), "{target}");
        }
    }

    #[test]
    fn the_floor_is_the_slower_of_memory_and_arithmetic() {
        let work = Work { bytes: 1_000_000, operations: 4_000_000 };
        assert!((work.floor_us(1000.0, 1.0) - 4.0).abs() < 1e-9);
        assert!((work.floor_us(100.0, 1000.0) - 10.0).abs() < 1e-9);
    }
}
