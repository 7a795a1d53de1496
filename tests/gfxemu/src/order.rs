//! Order of memory accesses: the last accesses to a byte, and when they were complete.

/// The last access to a byte: the wave, and the number of its store or load.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LastAccess {
    /// The number of the wave + 1; 0 means no access.
    pub wave: u32,
    /// The number of the wave's store or load.
    pub number: u32,
    /// Whether it was an atomic.
    pub atomic: bool,
    /// Whether `number` counts loads: for an atomic with a result, or a reader.
    pub load: bool,
}

impl LastAccess {
    /// Packs the mark. 0 means no access, so zeroed memory needs no initialisation.
    pub fn pack(self) -> u64 {
        let flags = u64::from(self.atomic) << 63 | u64::from(self.load) << 62;
        flags | u64::from(self.wave) << 32 | u64::from(self.number)
    }
    /// Unpacks a mark.
    pub fn of(packed: u64) -> LastAccess {
        LastAccess {
            wave: (packed >> 32) as u32 & 0x3fff_ffff,
            number: packed as u32,
            atomic: packed >> 63 & 1 == 1,
            load: packed >> 62 & 1 == 1,
        }
    }
}

/// Accesses of one kind by a wave. They complete in order.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// Number of accesses so far.
    pub issued: u32,
    /// Completions: the number of complete accesses, and the time.
    done: Vec<(u32, u64)>,
    /// The number of accesses before each barrier, and the number of complete ones.
    barriers: Vec<(u32, u32)>,
}

fn since(list: &[(u32, u64)], number: u32) -> Option<u64> {
    let i = list.partition_point(|&(upto, _)| upto < number);
    list.get(i).map(|&(_, time)| time)
}

fn reach(list: &mut Vec<(u32, u64)>, number: u32, now: u64) {
    if list.last().is_none_or(|&(upto, _)| upto < number) {
        list.push((number, now));
    }
}

impl Row {
    /// Counts the next access. Returns its number.
    pub fn count(&mut self) -> u32 {
        self.issued += 1;
        self.issued
    }
    /// Records that all accesses up to this number are complete.
    pub fn reach(&mut self, number: u32, now: u64) {
        reach(&mut self.done, number, now);
    }
    /// The time at which an access was complete.
    pub fn since(&self, number: u32) -> Option<u64> {
        since(&self.done, number)
    }
    /// The number up to which all accesses are complete.
    pub fn complete(&self) -> u32 {
        self.done.last().map_or(0, |d| d.0)
    }
    /// The phase (number of barriers before it) of an access.
    pub fn phase(&self, number: u32) -> u32 {
        self.barriers.partition_point(|&(before, _)| before < number) as u32
    }
    /// Whether an access was complete when the wave reached the last of `barriers` barriers.
    pub fn settled(&self, number: u32, barriers: u32) -> bool {
        let last = (barriers as usize).checked_sub(1).and_then(|b| self.barriers.get(b));
        last.is_some_and(|&(_, complete)| number <= complete)
    }
    fn barrier(&mut self) {
        self.barriers.push((self.issued, self.complete()));
    }
}

/// The accesses of a wave.
#[derive(Clone, Debug, Default)]
pub struct Writer {
    /// The block of the wave.
    pub block: u32,
    /// Stores of the wave, and atomics without a result.
    pub stores: Row,
    /// Loads of the wave, and atomics with a result.
    pub loads: Row,
    /// Write-backs: the number up to which stores were written back, and the time.
    released: Vec<(u32, u64)>,
}

impl Writer {
    /// A wave of this block that has made no access.
    pub fn of(block: u32) -> Writer {
        Writer { block, ..Writer::default() }
    }
    /// The kind of accesses that a mark belongs to.
    pub fn row(&self, mark: LastAccess) -> &Row {
        if mark.load { &self.loads } else { &self.stores }
    }
    /// Records that the wave reaches a barrier.
    pub fn barrier(&mut self) {
        self.stores.barrier();
        self.loads.barrier();
    }
    /// Records that stores up to this number are written back.
    pub fn release(&mut self, store: u32, now: u64) {
        reach(&mut self.released, store, now);
    }
    /// The time from which other blocks may see the marked access. Atomics happen in the cache that
    /// all blocks share.
    pub fn released(&self, mark: LastAccess) -> Option<u64> {
        if mark.atomic {
            self.row(mark).since(mark.number)
        } else {
            since(&self.released, mark.number)
        }
    }
}
