//! The subjects of measurements: every kernel of a model's plan, or one kernel of each kind at
//! typical sizes.

use kjit_engine::Target;
use kjit_kernel_cases::matrix;
use kjit_kernels::spec::Spec;
use kjit_kernels::{Size, SpecError};
use kjit_plan::{JobId, Launch, Plan, Program};

/// A kernel with a size.
#[derive(Debug, Clone, PartialEq)]
pub struct MeasuredKernel {
    /// Name: of the first launch in a plan, or among the typical sizes.
    pub name: String,
    /// The kernel.
    pub spec: Spec,
    /// The size that determines its launches.
    pub size: Size,
    /// Number of launches in one run of its program; 0 without a program.
    pub launches: usize,
    /// The program: `decode`, `prompt 512`, `load`; empty without one.
    pub program: String,
}

/// A program with its name, its launches' size, and the launches that choose the next token.
type NamedProgram<'p> = (&'p Program, String, Size, Vec<&'p Launch>);

/// The programs of a plan by number of rows. Those that decode have `depth` tokens in the cache.
fn programs(plan: &Plan, depth: usize) -> Vec<NamedProgram<'_>> {
    let decode = Size { tokens: 1, past: depth };
    let mut all = vec![(
        &plan.decode,
        "decode".to_owned(),
        decode,
        all_of([&plan.adjust, &plan.greedy, &plan.draw]),
    )];
    all.extend(plan.prompts.iter().map(|p| {
        let size = Size { tokens: p.tokens as usize, past: 0 };
        (p, format!("prompt {}", p.tokens), size, vec![])
    }));
    all.extend(plan.batches.iter().map(|b| {
        let size = Size { tokens: b.program.tokens as usize, past: depth };
        (
            &b.program,
            format!("{} sequences", b.program.tokens),
            size,
            all_of([&b.adjust, &b.greedy, &b.draw]),
        )
    }));
    all
}

/// The launches that choose, if they exist.
fn all_of(launches: [&Option<Launch>; 3]) -> Vec<&Launch> {
    launches.into_iter().flatten().collect()
}

/// The kernels of a plan, once for each program that launches them. A kernel may be used for one
/// token and for many tokens.
#[must_use]
pub fn of_plan(plan: &Plan, depth: usize) -> Vec<MeasuredKernel> {
    let (mut all, programs) = (vec![], programs(plan, depth));
    for (i, job) in plan.jobs.iter().enumerate() {
        let (id, before) = (JobId(i as u32), all.len());
        for (program, name, size, choices) in &programs {
            let launches = program.launches.iter().chain(choices.iter().copied());
            let mut found = launches.filter(|l| l.job == id);
            let Some(first) = found.next() else { continue };
            let (launches, program) = (1 + found.count(), name.clone());
            all.push(MeasuredKernel {
                name: first.name.clone(),
                spec: job.spec.clone(),
                size: *size,
                launches,
                program,
            });
        }
        if all.len() == before {
            let (spec, size) = (job.spec.clone(), Size { tokens: 1, past: 0 });
            all.push(MeasuredKernel {
                name: spec.to_string(),
                spec,
                size,
                launches: 0,
                program: "load".to_owned(),
            });
        }
    }
    all
}

/// One kernel of each kind, at sizes of real models.
///
/// # Errors
/// An unsupported spec in the list.
pub fn representative(target: &Target, depth: usize) -> Result<Vec<MeasuredKernel>, SpecError> {
    let subject = |s: matrix::Sample| {
        let size = s.spec.timed_at(depth);
        MeasuredKernel { name: s.name, spec: s.spec, size, launches: 0, program: String::new() }
    };
    Ok(matrix::representative(target)?.into_iter().map(subject).collect())
}
