//! Tuning as data: spaces that contain their defaults, names that identify one variant each, and
//! valid shipped lines.

use kjit_engine::Target;
use kjit_engine::arch::ARCHS;
use kjit_kernels::format::Format;
use kjit_kernels::gemm::GemmSpec;
use kjit_kernels::matvec::MatvecSpec;
use kjit_kernels::segments::{Finish, Segment};
use kjit_kernels::spec::{FAMILIES, Spec};
use kjit_kernels::tuning::shipped;
use kjit_kernels::{gemm, matvec};
use std::collections::HashSet;

fn format(name: &str) -> &'static Format {
    Format::by_name(name).unwrap()
}

fn specs() -> Vec<Spec> {
    let q4 = format("Q4_K");
    let segment = |rows| Segment { format: q4, rows, bias: false };
    let gated = MatvecSpec {
        segments: vec![segment(14336); 2],
        finish: Finish::Silu,
        ..MatvecSpec::new(q4, 14336, 4096)
    };
    vec![
        gated.into(),
        MatvecSpec::new(format("Q8_0"), 576, 576).into(),
        MatvecSpec::new(format("F16"), 128_256, 2048).into(),
        GemmSpec::new(q4, 4096, 4096, 512).into(),
        GemmSpec::new(q4, 4096, 4096, 16).into(),
    ]
}

#[test]
fn tuning_space_starts_with_default_and_texts_are_unique() {
    for arch in ARCHS {
        let target = Target::parse(arch.id).unwrap();
        for spec in specs() {
            let space = spec.space(&target);
            assert_eq!(space.first().copied(), spec.tuning(&target), "{spec} on {target}");
            assert!(
                space.len() > 3 && space.len() < 200,
                "{spec} on {target} has {} variants",
                space.len()
            );
            let texts: HashSet<String> = space.iter().map(ToString::to_string).collect();
            assert_eq!(texts.len(), space.len(), "{spec} on {target}");
            for tuning in space.iter().step_by(17) {
                assert_eq!(spec.named(&target, &tuning.to_string()), Some(*tuning));
                assert_eq!(spec.with(Some(*tuning)).tuning(&target), Some(*tuning));
                // A computation has the same name with all tunings.
                assert_eq!(spec.with(Some(*tuning)).to_string(), spec.to_string());
            }
            assert_eq!(spec.named(&target, "block: 7"), None);
        }
    }
}

#[test]
fn different_specs_have_different_texts() {
    let base = MatvecSpec::new(format("Q4_K"), 4096, 4096);
    let mut with_bias = base.clone();
    with_bias.segments[0].bias = true;
    let others: Vec<Spec> = vec![
        base.clone().into(),
        with_bias.into(),
        MatvecSpec { columns: 2, ..base.clone() }.into(),
        MatvecSpec { quantized: true, ..base.clone() }.into(),
        MatvecSpec { finish: Finish::Add, ..base.clone() }.into(),
        MatvecSpec::new(format("Q4_K"), 4096, 2048).into(),
        MatvecSpec::new(format("Q5_K"), 4096, 4096).into(),
        GemmSpec::new(format("Q4_K"), 4096, 4096, 512).into(),
        GemmSpec::new(format("Q4_K"), 4096, 4096, 64).into(),
    ];
    let texts: HashSet<String> = others.iter().map(ToString::to_string).collect();
    assert_eq!(texts.len(), others.len(), "{texts:?}");
}

#[test]
fn shipped_lines_name_architecture_family_and_source() {
    let mut seen = HashSet::new();
    for row in shipped::all() {
        let row = row.unwrap();
        assert!(ARCHS.iter().any(|a| a.id == row.arch), "{row:?}");
        let family = row.spec.split(' ').next().unwrap();
        assert!(FAMILIES.contains(&family), "{row:?}");
        assert!(row.tuning.contains(": ") && !row.measured.is_empty(), "{row:?}");
        assert!(seen.insert((row.arch, row.spec)), "twice: {row:?}");
    }
}

#[test]
fn line_with_wrong_field_count_is_named_by_number() {
    let lines: Vec<_> =
        shipped::rows("# a comment\n\nsm_90\ta\tb\tc\nsm_90\ta\nsm_90\ta\tb\tc\td\n").collect();
    assert!(lines[0].is_ok());
    assert_eq!(lines[1].clone().unwrap_err().line, 4);
    assert_eq!(lines[2].clone().unwrap_err().to_string().split(':').next(), Some("line 5"));
}

#[test]
fn every_vendor_has_documented_tuning_starts() {
    for arch in ARCHS {
        assert_eq!(
            matvec::STARTS.iter().filter(|f| f.vendor == arch.vendor && !f.roomy).count(),
            2,
            "{}",
            arch.id
        );
        assert!(gemm::STARTS.iter().any(|f| f.vendor == arch.vendor), "{}", arch.id);
    }
    assert!(
        matvec::STARTS.iter().all(|f| !f.from.is_empty())
            && gemm::STARTS.iter().all(|f| !f.from.is_empty())
    );
}
