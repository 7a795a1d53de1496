//! What is measured: every kernel of a model's plan, or one of each kernel at common sizes.

use crate::gpu::plan::{JobId, Plan};
use kjit_engine::Target;
use kjit_kernels::SpecError;
use kjit_kernels::cases::Size;
use kjit_kernels::matrix;
use kjit_kernels::read::ReadSpec;
use kjit_kernels::spec::Spec;

/// A kernel at a size.
#[derive(Debug, Clone, PartialEq)]
pub struct Subject {
    /// What people call it: where a plan launches it first, or its name among the common sizes.
    pub name: String,
    /// The kernel.
    pub spec: Spec,
    /// What its launches depend on.
    pub size: Size,
    /// Launches that a run of its program has; 0 where there is no program.
    pub launches: usize,
    /// The program: `decode`, `prompt 512`, `load`; empty where there is none.
    pub program: String,
}

/// The kernels of a plan, each at the size of the largest program that launches it, with `depth` tokens in the cache of those that decode.
#[must_use]
pub fn of_plan(plan: &Plan, depth: usize) -> Vec<Subject> {
    let mut all: Vec<Subject> = vec![];
    let decode = (&plan.decode, "decode".to_owned(), Size { tokens: 1, past: depth });
    let prompts = plan.prompts.iter().map(|p| {
        let tokens = p.tokens as usize;
        (p, format!("prompt {tokens}"), Size { tokens, past: 0 })
    });
    for (i, job) in plan.jobs.iter().enumerate() {
        let id = JobId(i as u32);
        let programs = std::iter::once(decode.clone()).chain(prompts.clone());
        let uses = programs.filter_map(|(program, name, size)| {
            // The choice of a token belongs to decoding.
            let choices: &[_] = if size.tokens == 1 { &[&plan.greedy, &plan.draw] } else { &[] };
            let launches = program.launches.iter().chain(choices.iter().copied());
            let mut found = launches.filter(|l| l.job == id);
            let first = found.next()?;
            Some(Subject {
                name: first.name.clone(),
                spec: job.spec.clone(),
                size,
                launches: 1 + found.count(),
                program: name,
            })
        });
        // Where a kernel serves one token and many, both are of interest.
        let mut uses: Vec<Subject> = uses.collect();
        if uses.is_empty() {
            let size = Size { tokens: 1, past: 0 };
            uses.push(Subject {
                name: job.spec.to_string(),
                spec: job.spec.clone(),
                size,
                launches: 0,
                program: "load".to_owned(),
            });
        }
        all.extend(uses);
    }
    all
}

/// One of each kernel at the sizes of real models.
///
/// # Errors
/// The list itself is at fault.
pub fn representative(target: &Target, depth: usize) -> Result<Vec<Subject>, SpecError> {
    let named = |(name, spec): (String, Spec)| {
        let size = usual(&spec, depth);
        Subject { name, spec, size, launches: 0, program: String::new() }
    };
    let read = ("read".to_owned(), ReadSpec { flight: 8 }.into());
    let all = matrix::representative(target)?.into_iter().filter_map(|s| Some((s.name, s.spec?)));
    Ok(std::iter::once(read).chain(all).map(named).collect())
}

/// Tokens of a prompt.
const PROMPT: usize = 512;
/// MiB that are read.
const READ: usize = 1024;

fn usual(spec: &Spec, depth: usize) -> Size {
    match spec {
        Spec::Gemm(s) => Size { tokens: s.tokens, past: 0 },
        Spec::Flash(_) | Spec::Tiles(_) | Spec::Moe(_) | Spec::RopeKv(_) => Size { tokens: PROMPT, past: 0 },
        Spec::Read(_) => Size { tokens: READ, past: 0 },
        _ => Size { tokens: 1, past: depth },
    }
}
