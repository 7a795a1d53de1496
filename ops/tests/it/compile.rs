//! Compiles the kernels' texts with the vendors' compilers, without a device: nvrtc for NVIDIA,
//! clang for AMD.

use crate::{Random, tensor};
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

fn compiles(test: &str, target: &str, dtypes: &[DType], kind: &str) {
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
    for (job, code) in jobs(&target, dtypes).iter().zip(engine.compile_all(&jobs(&target, dtypes)))
    {
        let code = code.unwrap_or_else(|why| panic!("{why}\n{}", job.source.main_text()));
        assert_eq!(code.kernels().len(), 1);
    }
}

#[test]
fn nvrtc_takes_every_operation_for_nvidia() {
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
    compiles("nvrtc_takes_every_operation_for_nvidia", "sm_90", &all, "nvrtc");
}

#[test]
fn clang_takes_every_operation_for_amd() {
    let some = [DType::F32, DType::F64, DType::BF16, DType::I64, DType::U8];
    compiles("clang_takes_every_operation_for_amd", "gfx1100", &some, "clang");
}
