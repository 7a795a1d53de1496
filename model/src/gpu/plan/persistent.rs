//! A token's launches as one: the steps of the program for one token, in its order, in a kernel that is
//! rendered for this model
//! (`kjit_kernels::persistent`). The launches stay in the plan: they are what runs where one kernel cannot.

use super::{Bind, Dim, Job, Launch, Now, Program};
use kjit_engine::Target;
use kjit_kernels::SpecError;
use kjit_kernels::persistent::Persistent;
use kjit_kernels::spec::Spec;

/// One launch for all steps of a token, but for the choice of the next one.
#[derive(Debug, Clone, PartialEq)]
pub struct OneLaunch {
    /// What is compiled.
    pub job: kjit_engine::Job,
    /// The kernel.
    pub entry: &'static str,
    /// Threads of a block.
    pub block: u32,
    /// Dynamic shared memory of a block, in bytes.
    pub shared: u32,
    /// 64-bit words of an instruction.
    pub words: usize,
    /// What is done, in order. Between two of them all blocks meet.
    pub instructions: Vec<Instruction>,
}

/// A step of the kernel, with its arguments.
#[derive(Debug, Clone, PartialEq)]
pub struct Instruction {
    /// The launch that it stands for.
    pub name: String,
    /// Which of the kernel's steps.
    pub step: u32,
    /// The step's grid.
    pub shares: [Number; 3],
    /// Its arguments in the kernel's order.
    pub args: Vec<Number>,
}

/// A word of an instruction.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Number {
    /// As launches are given it.
    Bind(Bind),
    /// The blocks of the launch.
    Blocks,
}

/// Blocks of each compute unit.
pub const BLOCKS_PER_UNIT: u32 = 1;

impl OneLaunch {
    /// The launches of a program as one.
    ///
    /// # Errors
    /// A step that has no part in such a kernel, by name.
    pub fn of(program: &Program, jobs: &[Job], target: &Target) -> Result<OneLaunch, String> {
        let spec_of =
            |l: &Launch| jobs.get(l.job.0 as usize).map(|j| j.spec.with(None)).ok_or("a launch without a job");
        let mut specs: Vec<Spec> = vec![];
        let mut which = vec![];
        for launch in &program.launches {
            let spec = spec_of(launch)?;
            let at = specs.iter().position(|s| *s == spec).unwrap_or(specs.len());
            if at == specs.len() {
                specs.push(spec);
            }
            which.push(at);
        }
        let made = Persistent::new(&specs, target).map_err(|e: SpecError| e.to_string())?;
        let mut instructions = vec![];
        for (launch, at) in program.launches.iter().zip(which) {
            let (Some(step), Some(spec)) = (made.steps.get(at), specs.get(at)) else { continue };
            let shares = match (step.of_all_blocks, step.shares) {
                (true, _) => [Number::Blocks, Number::Bind(Bind::U32(1)), Number::Bind(Bind::U32(1))],
                (false, Some(shares)) => shares.map(|n| Number::Bind(Bind::U32(n))),
                (false, None) => launch.grid.map(|d| Number::Bind(Bind::Dim(d))),
            };
            let names = spec.arguments().iter().map(|d| d.name);
            let args = launch.args.iter().zip(names).map(|(&bind, name)| match name {
                "blocks" if step.of_all_blocks => Number::Blocks,
                _ => Number::Bind(bind),
            });
            let (name, args) = (launch.name.clone(), args.collect());
            instructions.push(Instruction { name, step: at as u32, shares, args });
        }
        let job = made.kernel.job(target);
        job.check().map_err(|e| e.to_string())?;
        let (entry, shared) = (made.kernel.entry, made.kernel.shared);
        Ok(OneLaunch { job, entry, block: made.block, shared, words: made.words, instructions })
    }

    /// The instructions as the kernel reads them, on so many blocks; `address` says where the memory of an
    /// argument is, none for what is
    /// none.
    ///
    /// # Errors
    /// What `address` says.
    pub fn words<E>(
        &self,
        now: &Now,
        blocks: u32,
        mut address: impl FnMut(&str, &Bind) -> Result<Option<u64>, E>,
    ) -> Result<Vec<u64>, E> {
        let mut all = Vec::with_capacity(self.words * self.instructions.len());
        for i in &self.instructions {
            let begin = all.len();
            all.push(u64::from(i.step));
            for number in i.shares.iter().chain(&i.args) {
                all.push(match number {
                    Number::Blocks => u64::from(blocks),
                    Number::Bind(bind) => match (bind, address(&i.name, bind)?) {
                        (_, Some(address)) => address,
                        (Bind::Dim(dim), None) => u64::from(dim.at(now)),
                        (Bind::U32(n), None) => u64::from(*n),
                        (Bind::U64(n), None) => *n,
                        (Bind::F32(x), None) => u64::from(x.to_bits()),
                        (Bind::Elements(each), None) => each.saturating_mul(u64::from(now.tokens)),
                        (_, None) => 0,
                    },
                });
            }
            all.resize(begin + self.words, 0);
        }
        Ok(all)
    }

    /// The grid: as many blocks as are resident.
    #[must_use]
    pub const fn grid() -> Dim {
        Dim::Fill { per_unit: BLOCKS_PER_UNIT, most: u32::MAX }
    }
}
