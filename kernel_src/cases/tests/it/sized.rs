//! Cases at the sizes that are used for timing kernels.

use kjit_engine::Target;
use kjit_kernel_cases::matrix;
use kjit_kernel_cases::{Case, CaseArg, Random, SharedData, case};
use kjit_kernels::Size;
use kjit_kernels::activations::Prologue;
use kjit_kernels::argmax::ArgmaxSpec;
use kjit_kernels::attend::AttendSpec;
use kjit_kernels::batch_gemm::BatchGemmSpec;
use kjit_kernels::draw::DrawSpec;
use kjit_kernels::experts::{ExpertFinish, ExpertsSpec};
use kjit_kernels::flash::FlashSpec;
use kjit_kernels::format::Format;
use kjit_kernels::gemm::GemmSpec;
use kjit_kernels::heads::{HeadsForm, RopeForm, Scores};
use kjit_kernels::kv::{KvLayout, KvStorage};
use kjit_kernels::latent_flash::LatentFlashSpec;
use kjit_kernels::matvec::MatvecSpec;
use kjit_kernels::moe::{MoeCountSpec, MoeGroupSpec, MoeSpec, MoeSumSpec};
use kjit_kernels::norm::{NormKind, NormSpec};
use kjit_kernels::rope_kv::RopeKvSpec;
use kjit_kernels::route::{Gating, RouteSpec};
use kjit_kernels::segments::{Finish, Segment};
use kjit_kernels::small_gemm::SmallGemmSpec;
use kjit_kernels::softmax::SoftmaxSpec;
use kjit_kernels::spec::Spec;
use kjit_kernels::tiles::{TileLayout, TilesSpec};
use std::collections::BTreeSet;
use std::sync::Arc;

/// One spec of each family that has a choice, at sizes with a fast oracle.
fn specs() -> Vec<Spec> {
    let q4 = Format::by_name("Q4_K").unwrap();
    let kv = KvLayout { heads: 2, head_dim: 64, storage: KvStorage::F16 };
    let form = HeadsForm {
        heads: 8,
        kv,
        qk_norm: false,
        rope: RopeForm { dims: 64, halves: false },
        kept_before: false,
        paged: false,
    };
    let segments = vec![Segment { format: q4, rows: 96, bias: false }; 2];
    let latents = KvLayout { heads: 1, head_dim: 192, ..kv };
    vec![
        MatvecSpec { segments, finish: Finish::Silu, ..MatvecSpec::new(q4, 96, 256) }.into(),
        ExpertsSpec {
            format: q4,
            rows: 64,
            cols: 256,
            tokens: 1,
            top: 2,
            per_slot: false,
            prologue: Prologue::Norm,
            quantized: false,
            all: false,
            bias: false,
            finish: ExpertFinish::Silu,
            tuning: None,
        }
        .into(),
        GemmSpec::new(q4, 96, 1024, 33).into(),
        GemmSpec::new(q4, 96, 1024, 16).into(),
        AttendSpec { form, scores: Scores::default(), tuning: None }.into(),
        FlashSpec {
            heads: 8,
            kv,
            scale: 0.125,
            scores: Scores::default(),
            paged: false,
            tuning: None,
        }
        .into(),
        LatentFlashSpec {
            heads: 4,
            kv: latents,
            rank: 128,
            paged: false,
            chosen: None,
            tuning: None,
        }
        .into(),
        SmallGemmSpec::new(q4, 96, 2048, 8).into(),
        BatchGemmSpec::new(q4, 96, 2048, 40).into(),
        RopeKvSpec { form, half: false, tuning: None }.into(),
        TilesSpec {
            cols: 256,
            prologue: Prologue::Norm,
            gather: false,
            form: TileLayout::Tiles,
            tuning: None,
        }
        .into(),
        MoeCountSpec::from(MOE).into(),
        MoeGroupSpec::from(MOE).into(),
        MoeSumSpec::from(MOE).into(),
        NormSpec { cols: 300, kind: NormKind::Rms, weights: 1, residual: true, tuning: None }
            .into(),
        SoftmaxSpec { cols: 64, tuning: None }.into(),
        RouteSpec {
            experts: 9,
            top: 2,
            renormalise: true,
            gating: Gating::Softmax,
            bias: false,
            factors: false,
            groups: None,
            alike: 1,
            tuning: None,
        }
        .into(),
        ArgmaxSpec { vocab: 5000, tuning: None }.into(),
        DrawSpec { vocab: 5000, tuning: None }.into(),
    ]
}

const MOE: MoeSpec = MoeSpec { experts: 5, top: 2, tile: 16, cols: 64 };

/// All of a launch except the data.
fn shape(case: &Case) -> String {
    let arg = |a: &CaseArg| match a {
        CaseArg::Buffer { name, .. } => format!("{name} "),
        other => format!("{other:?} "),
    };
    let args: String = case.args.iter().map(arg).collect();
    format!("{:?} {} {} {args}", case.geometry, case.kernel.entry, case.kernel.constants)
}

fn bytes(case: &Case, named: &str) -> usize {
    let of = |a: &CaseArg| match a {
        CaseArg::Buffer { name, before, .. } if *name == named => before.len(),
        _ => 0,
    };
    case.args.iter().map(of).sum()
}

#[test]
fn varied_case_launches_like_a_new_case() {
    for arch in ["sm_86", "sm_90", "gfx1100", "gfx942"] {
        let target = Target::parse(arch).unwrap();
        for spec in specs().into_iter().filter(|s| s.covered(&target)) {
            let size =
                Size { tokens: if matches!(spec, Spec::Attend(_)) { 1 } else { 33 }, past: 70 };
            let first = case(&spec, &target, 60, size, &mut Random::new(1)).unwrap();
            let space = spec.space(&target);
            for tuning in space.iter().step_by(space.len().div_ceil(12)) {
                let variant = spec.with(Some(*tuning));
                let own = case(&variant, &target, 60, size, &mut Random::new(1)).unwrap();
                let mut varied = first.clone();
                varied.vary(&variant, &target, 60, size).unwrap();
                for working in ["part", "parts", "counters", "work", "said"] {
                    assert!(
                        bytes(&varied, working) >= bytes(&own, working),
                        "{variant} {tuning} on {arch}"
                    );
                }
                // There may be working memory that the variant does not use.
                let plain =
                    |c: &Case| shape(c).replace("parts ", "Null ").replace("counters ", "Null ");
                assert_eq!(plain(&varied), plain(&own), "{variant} {tuning} on {arch}");
            }
        }
    }
}

#[test]
fn every_tunable_family_is_tested_here() {
    let target = Target::parse("sm_90").unwrap();
    let here: BTreeSet<&str> = specs().iter().map(|s| s.family()).collect();
    let samples = matrix::representative(&target).unwrap();
    let chosen: BTreeSet<&str> = samples
        .iter()
        .filter(|s| s.spec.tuning(&target).is_some())
        .map(|s| s.spec.family())
        .collect();
    assert_eq!(here, chosen);
}

#[test]
fn family_without_variants_cannot_be_varied() {
    let target = Target::parse("sm_90").unwrap();
    let spec: Spec = kjit_kernels::copy_rows::CopyRowsSpec { words: 64 }.into();
    let size = Size { tokens: 1, past: 0 };
    let mut case = case(&spec, &target, 4, size, &mut Random::new(1)).unwrap();
    assert!(case.vary(&spec, &target, 4, size).unwrap_err().to_string().contains("no variants"));
    assert!(spec.space(&target).is_empty());
}

#[test]
fn common_set_kernels_have_small_cases() {
    let target = Target::parse("sm_90").unwrap();
    let few = Arc::default();
    for matrix::Sample { spec, .. } in matrix::representative(&target).unwrap() {
        let size = Size { tokens: 3, past: 5 };
        case(&spec, &target, 60, size, &mut Random::new(1).sharing(&few))
            .unwrap_or_else(|e| panic!("{spec}: {e}"));
        assert!(spec.work(size).bytes > 0, "{spec}");
    }
}

/// Rows of matrices are made once, by the first request; all matrices begin with different rows.
#[test]
fn shared_case_data_is_independent_of_order() {
    let target = Target::parse("gfx1100").unwrap();
    let made = |few: &Arc<SharedData>, name: &str, rows: usize| {
        let q = Format::by_name(name).unwrap();
        let segments = vec![Segment { format: q, rows, bias: false }; 3];
        let spec: Spec = MatvecSpec { segments, ..MatvecSpec::new(q, rows, 512) }.into();
        let (size, mut random) = (Size { tokens: 1, past: 0 }, Random::new(7).sharing(few));
        let case = case(&spec, &target, 8, size, &mut random).unwrap();
        let weights = |arg: &CaseArg| match arg {
            CaseArg::Buffer { name: "w", before, .. } => Some(before.to_vec()),
            _ => None,
        };
        case.args.iter().filter_map(weights).collect::<Vec<_>>()
    };
    let (one, other) = (Arc::default(), Arc::default());
    let first = [made(&one, "Q4_K", 200), made(&one, "F16", 40), made(&one, "Q4_K", 40)];
    let mut second = [made(&other, "Q4_K", 40), made(&other, "F16", 40), made(&other, "Q4_K", 200)];
    second.reverse();
    assert_eq!(first, second);
    for weights in &first {
        assert!(weights[0] != weights[1] && weights[1] != weights[2] && weights[0] != weights[2]);
    }
    // Rows from the 62nd on repeat the first ones.
    let row = first[0][0].len() / 200;
    assert_eq!(first[0][0][..row], first[0][0][61 * row..62 * row]);
}
