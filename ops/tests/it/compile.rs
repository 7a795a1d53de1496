//! Compiles the kernels' texts with the vendors' compilers, without a device: nvrtc for NVIDIA,
//! clang for AMD.

use crate::it::{Random, tensor};
use kjit_engine::{Config, Engine, Isolation, Job, Target};
use kjit_ops::{BinOp, DType, Scalar, Tensor, UnOp};

/// All operations of a dtype, in chains that fit into one group.
fn chains(dtype: DType) -> Vec<Tensor> {
    let mut random = Random(11);
    let x = random.tensor(&[3, 5], dtype, 3.0);
    let y = random.tensor(&[5], dtype, 3.0);
    let un = UnOp::ALL.iter().filter_map(|op| x.unary(*op).ok());
    let bin = BinOp::ALL.iter().filter_map(|op| x.binary(*op, &y).ok());
    let all: Vec<Tensor> = un.chain(bin).map(|t| t.astype(DType::F32).unwrap()).collect();
    all.chunks(16)
        .map(|part| part.iter().skip(1).fold(part[0].clone(), |sum, t| sum.add(t).unwrap()))
        .collect()
}

fn jobs(target: &Target, dtypes: &[DType]) -> Vec<Job> {
    let mut jobs = Vec::new();
    for dtype in dtypes {
        for chain in chains(*dtype) {
            jobs.push(chain.kernel_job(target).unwrap());
        }
        let mut random = Random(12);
        let x = random.tensor(&[70, 9], *dtype, 3.0);
        jobs.extend(kjit_ops::order_jobs(*dtype, target));
        // A chain with a look-up.
        let rows = tensor(&[Scalar::Int(3), Scalar::Int(-1)], DType::I64, &[2]);
        jobs.push(x.take(&rows, 0).unwrap().kernel_job(target).unwrap());
        for t in [x.sum(Some(&[0]), false, None), x.argmin(Some(1), false)] {
            jobs.push(t.unwrap().kernel_job(target).unwrap());
        }
    }
    jobs
}

/// Products with fused operations, for several operand layouts; rows in registers, and longer rows.
fn skeletons(target: &Target, dtypes: &[DType]) -> Vec<Job> {
    let mut random = Random(13);
    let mut out = Vec::new();
    for dtype in dtypes {
        let (m, k, n) = (64, 128, 256);
        let [a, b, c] = [[m, k], [n, k], [m, n]].map(|shape| random.tensor(&shape, *dtype, 1.0));
        out.push(a.matmul(&b.matrix_transpose().unwrap()).unwrap());
        out.push(a.matrix_transpose().unwrap().matmul(&c).unwrap().relu().unwrap());
        let (m, k, n) = (5, 33, 7);
        let [a, b] = [[m, k], [n, k]].map(|shape| random.tensor(&shape, *dtype, 1.0));
        let bias = random.tensor(&[n], *dtype, 1.0);
        out.push(a.linear(&b, Some(&bias)).unwrap().gelu(false).unwrap());
    }
    for (n, dtype) in [(7, DType::BF16), (3000, DType::F16), (40_000, DType::F32)] {
        let x = random.tensor(&[3, n], dtype, 2.0);
        out.push(x.softmax(-1).unwrap());
        out.push(x.layer_norm(&[n], None, None, 1e-5).unwrap());
    }
    out.iter().map(|t| t.kernel_job(target).unwrap()).collect()
}

fn compiles(test: &str, target: &str, dtypes: &[DType], kind: &str) {
    compile(test, target, kind, |target| jobs(target, dtypes));
}

fn compile(test: &str, target: &str, kind: &str, jobs: impl Fn(&Target) -> Vec<Job>) {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::new(
        Config::new()
            .cache(kjit_cache::Config::for_app("kjit").ignore_environment().dir(dir.path()))
            .isolation(Isolation::InProcess)
            .compiler_kind(kind),
    );
    let target: Target = target.parse().unwrap();
    if let Err(why) = engine.compiler_for(&target) {
        eprintln!("SKIPPED {test}: {why}");
        return;
    }
    let jobs = jobs(&target);
    for (job, code) in jobs.iter().zip(engine.compile_all(&jobs)) {
        let code = code.unwrap_or_else(|why| panic!("{why}\n{}", job.source.main_text()));
        assert_eq!(code.kernels().len(), 1);
    }
}

#[test]
fn nvrtc_compiles_every_operation_for_nvidia() {
    let all = [
        DType::Bool,
        DType::I8,
        DType::I64,
        DType::U64,
        DType::F16,
        DType::BF16,
        DType::F32,
        DType::F64,
    ];
    compiles("nvrtc_compiles_every_operation_for_nvidia", "sm_90", &all, "nvrtc");
}

#[test]
fn clang_compiles_every_operation_for_amd() {
    let some = [DType::F32, DType::F64, DType::BF16, DType::I64, DType::U8];
    compiles("clang_compiles_every_operation_for_amd", "gfx1100", &some, "clang");
}

/// Attention of all widths, with masks and windows, of the dtypes that the target's kernel takes.
fn attention(target: &Target, dtypes: &[DType]) -> Vec<Job> {
    let mut random = Random(14);
    let mut jobs = Vec::new();
    let shapes = [(64, (None, Some(0))), (128, (None, None)), (192, (Some(9), Some(0)))];
    for (dtype, (width, window)) in dtypes.iter().flat_map(|d| shapes.map(|shape| (d, shape))) {
        let [q, k, v] = [(); 3].map(|()| random.tensor(&[2, 70, width], *dtype, 1.0));
        jobs.push(q.attention_job(&k, &v, None, window, target).unwrap());
    }
    for (width, of_bools) in [(64, true), (128, false), (256, true)] {
        let dtype = dtypes[0];
        let [q, k, v] = [(); 3].map(|()| random.tensor(&[2, 70, width], dtype, 1.0));
        let mask = random.tensor(&[70, 70], if of_bools { DType::Bool } else { dtype }, 1.0);
        jobs.push(q.attention_job(&k, &v, Some(&mask), (None, None), target).unwrap());
    }
    jobs
}

const HALVES: [DType; 3] = [DType::F16, DType::BF16, DType::F32];

#[test]
fn nvrtc_compiles_matmul_and_row_kernels() {
    for target in ["sm_75", "sm_90"] {
        let test = "nvrtc_compiles_matmul_and_row_kernels";
        compile(test, target, "nvrtc", |target| skeletons(target, &HALVES));
        let taken = if target == "sm_75" { &HALVES[..1] } else { &HALVES[..2] };
        compile(test, target, "nvrtc", |target| attention(target, taken));
    }
}

#[test]
fn clang_compiles_matmul_and_row_kernels() {
    for target in ["gfx803", "gfx942", "gfx1201"] {
        let test = "clang_compiles_matmul_and_row_kernels";
        compile(test, target, "clang", |target| skeletons(target, &HALVES[..1]));
        if target != "gfx803" {
            compile(test, target, "clang", |target| attention(target, &HALVES[..1]));
        }
    }
}
