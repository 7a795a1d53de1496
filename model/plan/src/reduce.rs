//! Lowers reductions over devices to `kjit_kernels::reduce`.

use super::lower::Lower;
use super::{AllReduceArg, Bind, Dim, Launch, ONE, Plan, PlanError, Program};
use kjit_graph::ValueId;
use kjit_graph::op::Reduce;
use kjit_kernels::reduce::{BLOCKS_PER_UNIT, ReduceArgs, ReduceSpec, STRETCH, words_of_stretches};
pub use kjit_kernels::reduce::{RANKS, WORDS};

// The maximum number of devices of a graph equals the maximum of its kernels.
const _: () = assert!(kjit_graph::RANKS == RANKS);
use kjit_kernels::spec::Spec;

impl Lower<'_> {
    /// Combines the devices' parts, and adds a residual.
    pub(super) fn reduce(
        &mut self,
        reduce: &Reduce,
        residual: Option<ValueId>,
        out: ValueId,
    ) -> Result<(), PlanError> {
        let name = self.graph.value(out).name.clone();
        let from = self.graph.value(reduce.x);
        let &Reduce { ranks, join, gathered, .. } = reduce;
        let cols = from.slots * from.width;
        // Rows of a prompt have many values. A row of a decoding step has fewer values than one
        // range.
        let stretches = !gathered
            && !self.batch
            && self.program.tokens() > 1
            && !join
            && cols.is_multiple_of(4);
        let spec =
            ReduceSpec { ranks, cols, join, residual: residual.is_some(), stretches, gathered };
        let job = self.job(&name, spec.clone())?;
        let most = spec.blocks(self.program.tokens() as usize);
        let blocks = Dim::Fill { per_unit: BLOCKS_PER_UNIT, most };
        let x = self.value(reduce.x)?;
        let added = residual.map_or(Ok(Bind::Null), |r| self.value(r))?;
        let y = match residual {
            Some(r) => self.program.make_over(out, r, &[reduce.x]),
            None => self.program.make(out),
        };
        let (inbox, room) = match (gathered, stretches) {
            (true, _) => (AllReduceArg::Gathered, AllReduceArg::Room),
            (_, true) => (AllReduceArg::Rows, AllReduceArg::RowsRoom),
            _ => (AllReduceArg::Inbox, AllReduceArg::Room),
        };
        let to = |i: usize| match (i + 1 < ranks && !gathered, stretches) {
            (false, _) => Bind::Null,
            (true, true) => Bind::Meeting(AllReduceArg::RowsTo(i as u32)),
            (true, false) => Bind::Meeting(AllReduceArg::To(i as u32)),
        };
        let [to0, to1, to2, to3, to4, to5, to6] = std::array::from_fn::<_, { RANKS - 1 }, _>(to);
        let args = ReduceArgs {
            x,
            residual: added,
            y,
            words: Bind::Meeting(AllReduceArg::Words),
            late: Bind::Meeting(AllReduceArg::Late),
            inbox: Bind::Meeting(inbox),
            to0,
            to1,
            to2,
            to3,
            to4,
            to5,
            to6,
            count: Bind::Elements(spec.cols as u64),
            room: Bind::Meeting(room),
            limit: Bind::Meeting(AllReduceArg::Limit),
            rank: Bind::U32(reduce.rank as u32),
            blocks: Bind::Dim(blocks),
        };
        self.run(name, &job, [blocks, ONE, ONE], args);
        Ok(())
    }
}

/// Sizes of the exchange buffers for each device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ExchangeSizes {
    /// Number of packets.
    pub packets: u64,
    /// Number of values of prompt rows, a multiple of a range.
    pub values: u64,
    /// Number of values that a library gathers.
    pub gathered: u64,
}

impl ExchangeSizes {
    /// Whether these sizes are large enough for `wanted`.
    pub fn holds(&self, wanted: ExchangeSizes) -> bool {
        wanted.packets <= self.packets
            && wanted.values <= self.values
            && wanted.gathered <= self.gathered
    }

    /// 64-bit words of a packet inbox, and 32-bit words of an inbox for prompt rows, for `ranks`
    /// devices. `None` on overflow.
    pub fn words(&self, ranks: usize) -> Option<(usize, usize)> {
        let packets = usize::try_from(self.packets).ok()?.checked_mul(2 * ranks)?;
        let values = usize::try_from(self.values).ok()?;
        values.checked_mul(4 * ranks)?;
        Some((packets, words_of_stretches(ranks, values)))
    }
}

impl Launch {
    /// The gather that a library runs before this launch: this device's part, the buffer for all
    /// parts, and the number of elements for each token.
    pub fn gathers(&self) -> Option<(&Bind, &Bind, u64)> {
        let (x, inbox) = (self.args.first()?, self.args.get(INBOX)?);
        match (inbox, self.args.get(COUNT)?) {
            (Bind::Meeting(AllReduceArg::Gathered), Bind::Elements(each)) => {
                Some((x, inbox, *each))
            }
            _ => None,
        }
    }
}

/// Indices of two arguments in [`ReduceArgs`].
const INBOX: usize = 5;
const COUNT: usize = 13;

/// A launch that sums rows over devices.
pub struct AllReduceLaunch<'p> {
    /// Program of the launch.
    pub program: &'p Program,
    /// The launch.
    pub launch: &'p Launch,
    /// Elements of a row.
    pub cols: usize,
    /// Whether a residual is added.
    pub residual: bool,
}

impl Plan {
    /// The exchange buffers that the launches need, for the largest reduction. `None` if there are
    /// no reductions.
    pub fn room(&self) -> Option<ExchangeSizes> {
        let mut room = None;
        for program in self.programs() {
            for launch in &program.launches {
                let Some(Spec::Reduce(spec)) =
                    self.jobs.get(launch.job.0 as usize).map(|j| &j.spec)
                else {
                    continue;
                };
                let values = spec.cols as u64 * u64::from(program.tokens);
                let all = room.get_or_insert_with(ExchangeSizes::default);
                match (spec.gathered, spec.stretches) {
                    (true, _) => all.gathered = all.gathered.max(values),
                    (_, true) => {
                        all.values = all.values.max(values.next_multiple_of(STRETCH as u64))
                    }
                    _ => all.packets = all.packets.max(values),
                }
            }
        }
        room
    }

    /// The first launch that sums rows in decoding, and in prompts.
    pub fn sums(&self) -> Vec<AllReduceLaunch<'_>> {
        std::iter::once(&self.decode)
            .chain(self.prompts.last())
            .filter_map(|p| self.first_sum(p))
            .collect()
    }

    fn first_sum<'p>(&'p self, program: &'p Program) -> Option<AllReduceLaunch<'p>> {
        program.launches.iter().find_map(|launch| {
            match &self.jobs.get(launch.job.0 as usize)?.spec {
                Spec::Reduce(spec) if !spec.join => Some(AllReduceLaunch {
                    program,
                    launch,
                    cols: spec.cols,
                    residual: spec.residual,
                }),
                _ => None,
            }
        })
    }

    /// Bytes of a device's inboxes.
    pub(super) fn inbox(&self) -> u64 {
        let ranks = self
            .jobs
            .iter()
            .find_map(|j| if let Spec::Reduce(spec) = &j.spec { Some(spec.ranks) } else { None });
        let words = self.room().zip(ranks).map(|(room, ranks)| room.words(ranks));
        match words {
            None => 0,
            Some(Some((packets, rows))) => {
                let (room, ranks) = (self.room().unwrap_or_default(), ranks.unwrap_or(0) as u64);
                (8 * packets as u64)
                    .saturating_add(4 * rows as u64)
                    .saturating_add(4 * ranks * room.gathered)
            }
            Some(None) => u64::MAX,
        }
    }
}
