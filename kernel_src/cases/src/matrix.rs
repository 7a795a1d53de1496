//! The compile matrix: one kernel of each kind at sizes of real models. None of them may spill.
//! Each family chooses its samples ([`Cases::samples`](crate::Cases::samples)).

pub use crate::samples::Sample;

use crate::registry;
use crate::samples::Samples;
use kjit_engine::Target;
use kjit_kernels::SpecError;

/// The kernels for a target: every kernel at its default wave width. If the target has a second
/// wave width, also the kernels whose geometry depends on it, at that width.
///
/// # Errors
/// A kernel that cannot be specialised: then the list is wrong.
pub fn representative(target: &Target) -> Result<Vec<Sample>, SpecError> {
    let mut list = Samples { target, all: vec![] };
    registry::samples(&mut list)?;
    Ok(list.all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kjit_kernels::launch::Work;

    #[test]
    fn kernel_names_are_unique_and_work_is_positive() {
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
    fn floor_is_slower_of_memory_and_arithmetic() {
        let work = Work { bytes: 1_000_000, operations: 4_000_000 };
        assert!((work.floor_us(1000.0, 1.0) - 4.0).abs() < 1e-9);
        assert!((work.floor_us(100.0, 1000.0) - 10.0).abs() < 1e-9);
    }
}
