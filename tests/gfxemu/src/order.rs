//! Who touched memory, and what is known of when that was done: what order between two accesses is
//! told from.

/// Who touched a byte last: wave number + 1, and as which of its stores, or of its loads.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Mark {
    /// The wave's number + 1; 0 is nobody.
    pub wave: u32,
    /// Which of its stores, or of its loads.
    pub number: u32,
    /// It was an atomic.
    pub atomic: bool,
    /// Its number is one of a load: an atomic with an answer, or a reader.
    pub load: bool,
}

impl Mark {
    /// As one number: memory full of zeros costs nothing before it is used.
    pub fn pack(self) -> u64 {
        let flags = u64::from(self.atomic) << 63 | u64::from(self.load) << 62;
        flags | u64::from(self.wave) << 32 | u64::from(self.number)
    }
    /// The opposite.
    pub fn of(packed: u64) -> Mark {
        Mark {
            wave: (packed >> 32) as u32 & 0x3fff_ffff,
            number: packed as u32,
            atomic: packed >> 63 & 1 == 1,
            load: packed >> 62 & 1 == 1,
        }
    }
}

/// Accesses of one kind by a wave: in order among themselves.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// How many so far.
    pub issued: u32,
    /// Up to which all are complete, and since when.
    done: Vec<(u32, u64)>,
    /// By barrier: how many there were, and how many of them were complete.
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
    /// Counts the next one: its number.
    pub fn count(&mut self) -> u32 {
        self.issued += 1;
        self.issued
    }
    /// All up to this one are complete.
    pub fn reach(&mut self, number: u32, now: u64) {
        reach(&mut self.done, number, now);
    }
    /// Since when one is complete.
    pub fn since(&self, number: u32) -> Option<u64> {
        since(&self.done, number)
    }
    /// Up to which all are complete.
    pub fn complete(&self) -> u32 {
        self.done.last().map_or(0, |d| d.0)
    }
    /// In which phase between two barriers one was made.
    pub fn phase(&self, number: u32) -> u32 {
        self.barriers.partition_point(|&(before, _)| before < number) as u32
    }
    /// Whether one was complete when the wave came to the last of so many barriers.
    pub fn settled(&self, number: u32, barriers: u32) -> bool {
        let last = (barriers as usize).checked_sub(1).and_then(|b| self.barriers.get(b));
        last.is_some_and(|&(_, complete)| number <= complete)
    }
    fn barrier(&mut self) {
        self.barriers.push((self.issued, self.complete()));
    }
}

/// What is known of a wave's accesses.
#[derive(Clone, Debug, Default)]
pub struct Writer {
    /// Which block it belongs to.
    pub block: u32,
    /// Its stores, and atomics without an answer.
    pub stores: Row,
    /// Its loads, and atomics with an answer.
    pub loads: Row,
    /// Up to which store all are written back, and since when.
    released: Vec<(u32, u64)>,
}

impl Writer {
    /// A wave of this block, which has touched nothing.
    pub fn of(block: u32) -> Writer {
        Writer { block, ..Writer::default() }
    }
    /// The accesses that a mark is one of.
    pub fn row(&self, mark: Mark) -> &Row {
        if mark.load { &self.loads } else { &self.stores }
    }
    /// The wave comes to a barrier.
    pub fn barrier(&mut self) {
        self.stores.barrier();
        self.loads.barrier();
    }
    /// Stores up to this one are written back.
    pub fn release(&mut self, store: u32, now: u64) {
        reach(&mut self.released, store, now);
    }
    /// Since when others may see what a mark says. Atomics happen where all meet.
    pub fn released(&self, mark: Mark) -> Option<u64> {
        if mark.atomic {
            self.row(mark).since(mark.number)
        } else {
            since(&self.released, mark.number)
        }
    }
}
