//! Steps in which several devices put together what each has made: `kjit_kernels::reduce`.

use super::lower::Lower;
use super::{Bind, Dim, Launch, Meeting, ONE, Plan, PlanError};
use crate::graph::ValueId;
use crate::graph::op::Reduce;
use kjit_kernels::reduce::{BLOCKS_PER_UNIT, ReduceArgs, ReduceSpec};
pub(crate) use kjit_kernels::reduce::{RANKS, WORDS};
use kjit_kernels::spec::Spec;

impl Lower<'_> {
    /// Parts put together, and a residual added.
    pub(super) fn reduce(&mut self, reduce: &Reduce, residual: Option<ValueId>, out: ValueId) -> Result<(), PlanError> {
        let name = self.graph.value(out).name.clone();
        let from = self.graph.value(reduce.x);
        let &Reduce { ranks, join, .. } = reduce;
        let spec = ReduceSpec { ranks, cols: from.slots * from.width, join, residual: residual.is_some() };
        let job = self.job(&name, spec.clone())?;
        let most = spec.blocks(self.program.tokens() as usize);
        let blocks = Dim::Fill { per_unit: BLOCKS_PER_UNIT, most };
        let x = self.value(reduce.x)?;
        let added = residual.map_or(Ok(Bind::Null), |r| self.value(r))?;
        let y = match residual {
            Some(r) => self.program.make_over(out, r, &[reduce.x]),
            None => self.program.make(out),
        };
        let to = |i: usize| if i + 1 < ranks { Bind::Meeting(Meeting::To(i as u32)) } else { Bind::Null };
        let [to0, to1, to2, to3, to4, to5, to6] = std::array::from_fn::<_, { RANKS - 1 }, _>(to);
        let args = ReduceArgs {
            x,
            residual: added,
            y,
            words: Bind::Meeting(Meeting::Words),
            late: Bind::Meeting(Meeting::Late),
            inbox: Bind::Meeting(Meeting::Inbox),
            to0,
            to1,
            to2,
            to3,
            to4,
            to5,
            to6,
            count: Bind::Elements(spec.cols as u64),
            room: Bind::Meeting(Meeting::Room),
            limit: Bind::Meeting(Meeting::Limit),
            rank: Bind::U32(reduce.rank as u32),
            blocks: Bind::Dim(blocks),
        };
        self.run(name, &job, [blocks, ONE, ONE], args);
        Ok(())
    }
}

impl Plan {
    /// Packets that a device's inbox has for each rank: those of the largest row, or rows, that devices put
    /// together. None where they do not.
    pub fn packets(&self) -> Option<u64> {
        let of = |tokens: u32, job: super::JobId| match self.jobs.get(job.0 as usize).map(|j| &j.spec) {
            Some(Spec::Reduce(spec)) => Some(spec.cols as u64 * u64::from(tokens)),
            _ => None,
        };
        self.programs().into_iter().flat_map(|p| p.launches.iter().filter_map(move |l| of(p.tokens, l.job))).max()
    }

    /// The first launch of a token that adds up, elements of its rows, and whether a residual is added.
    pub(in crate::gpu) fn first_sum(&self) -> Option<(&Launch, usize, bool)> {
        self.decode.launches.iter().find_map(|l| match &self.jobs.get(l.job.0 as usize)?.spec {
            Spec::Reduce(spec) if !spec.join => Some((l, spec.cols, spec.residual)),
            _ => None,
        })
    }

    /// Bytes of a device's inbox.
    pub(super) fn inbox(&self) -> u64 {
        let ranks =
            self.jobs.iter().find_map(|j| if let Spec::Reduce(spec) = &j.spec { Some(spec.ranks) } else { None });
        self.packets().zip(ranks).map_or(0, |(room, ranks)| room.saturating_mul(16 * ranks as u64))
    }
}
