//! Global memory: the launch's regions and nothing between them, and of every byte who wrote it last and
//! whether that may be seen.
//!
//! A store changes the bytes at once, so that its own wave reads what it wrote; everybody else who reads them
//! before a wait, a write-back and an invalidation have made them visible is at fault. That is stricter than
//! any order in which a card might let stores arrive.

use crate::target::Target;
use std::collections::HashMap;

/// A region's bytes: its own, or those of the process.
#[derive(Debug)]
pub enum Bytes {
    /// Its own.
    Own(Vec<u8>),
    /// Somebody else's, lent by [`Region::lent`].
    Lent(*mut u8, usize),
}

impl std::ops::Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Own(bytes) => bytes,
            // SAFETY: whoever called `Region::lent` promised so many bytes there for as long as the region
            // lives.
            Bytes::Lent(at, len) => unsafe { std::slice::from_raw_parts(*at, *len) },
        }
    }
}

impl std::ops::DerefMut for Bytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Bytes::Own(bytes) => bytes,
            // SAFETY: as above, and nobody else touches them meanwhile.
            Bytes::Lent(at, len) => unsafe { std::slice::from_raw_parts_mut(*at, *len) },
        }
    }
}

/// A piece of memory that the launch was given.
#[derive(Debug)]
pub struct Region {
    /// For messages: "buffer 2 (out)".
    pub what: String,
    /// Where it begins.
    pub address: u64,
    /// What is in it.
    pub bytes: Bytes,
    /// Whether the kernel may write there.
    pub writable: bool,
    /// By byte, once something was written: see [`Mark`].
    marks: Vec<u64>,
}

impl Region {
    /// A region with its content.
    pub fn new(what: impl Into<String>, address: u64, bytes: Vec<u8>, writable: bool) -> Region {
        Region { what: what.into(), address, bytes: Bytes::Own(bytes), writable, marks: Vec::new() }
    }

    /// Memory of this process, at its own address.
    ///
    /// # Safety
    /// `len` bytes from `at` on are there, and nobody else touches them, as long as the region lives.
    pub unsafe fn lent(what: impl Into<String>, at: *mut u8, len: usize, writable: bool) -> Region {
        Region { what: what.into(), address: at as u64, bytes: Bytes::Lent(at, len), writable, marks: Vec::new() }
    }
}

/// Who wrote a byte last: wave number + 1, and which of its stores.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Mark {
    wave: u32,
    store: u32,
}

impl Mark {
    /// As one number: memory full of zeros costs nothing before it is used.
    fn pack(self) -> u64 {
        u64::from(self.wave) << 32 | u64::from(self.store)
    }
    fn of(packed: u64) -> Mark {
        Mark { wave: (packed >> 32) as u32, store: packed as u32 }
    }
}

/// What is known of a wave's stores.
#[derive(Clone, Debug, Default)]
pub struct Writer {
    /// Which block it belongs to.
    pub block: u32,
    /// Stores so far.
    pub issued: u32,
    /// Up to which store all are complete, and since when; likewise below.
    done: Vec<(u32, u64)>,
    released: Vec<(u32, u64)>,
    /// By barrier: stores before it.
    barriers: Vec<u32>,
}

impl Writer {
    /// A wave of this block, which has stored nothing.
    pub fn of(block: u32) -> Writer {
        Writer { block, ..Writer::default() }
    }
    fn since(list: &[(u32, u64)], store: u32) -> Option<u64> {
        let i = list.partition_point(|&(upto, _)| upto < store);
        list.get(i).map(|&(_, time)| time)
    }
    fn reach(list: &mut Vec<(u32, u64)>, store: u32, now: u64) {
        if list.last().is_none_or(|&(upto, _)| upto < store) {
            list.push((store, now));
        }
    }
    /// In which phase between two barriers the wave made a store.
    fn phase(&self, store: u32) -> u32 {
        self.barriers.partition_point(|&before| before < store) as u32
    }
    /// The wave comes to a barrier.
    pub fn barrier(&mut self) {
        self.barriers.push(self.issued);
    }
    /// Up to which store all have arrived in the cache that the block's waves share.
    pub fn complete(&self) -> u32 {
        self.done.last().map_or(0, |d| d.0)
    }
}

/// Who reads or writes.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// The wave's number in the launch.
    pub wave: u32,
    /// Barriers that it has passed.
    pub phase: u32,
    /// Since when the cache nearest to it holds nothing old (RDNA: the waves of a block have two such
    /// caches).
    pub near: u64,
    /// Reads past the caches: atomics, and loads that say so.
    pub bypass: bool,
    /// Reads through the scalar cache, which knows of no stores.
    pub scalar: bool,
}

/// All the memory of a launch.
#[derive(Debug)]
pub struct Memory {
    /// Its regions, by address.
    pub regions: Vec<Region>,
    /// By wave number.
    pub writers: Vec<Writer>,
    /// Instructions executed so far: the time.
    pub now: u64,
    /// By block: when its waves did something that other blocks may have noticed, an atomic or a store past
    /// the caches.
    signals: Vec<Vec<u64>>,
    /// By block: since when the caches that its waves share hold nothing old.
    invalidated: Vec<u64>,
    /// By region and byte: who stored the same value there before the last one did. Whoever may rely on one of
    /// them may read it.
    alike: HashMap<(usize, usize), Vec<Mark>>,
    split_caches: bool,
    needs_write_back: bool,
    last: usize,
}

impl Memory {
    /// Memory of these regions and no more, for a kernel with this first resource word.
    pub fn new(mut regions: Vec<Region>, target: &Target, resources: u32) -> Memory {
        regions.sort_by_key(|r| r.address);
        Memory {
            regions,
            writers: Vec::new(),
            now: 1,
            signals: Vec::new(),
            invalidated: Vec::new(),
            alike: HashMap::new(),
            split_caches: target.split_caches(resources),
            needs_write_back: target.needs_write_back(),
            last: 0,
        }
    }

    /// The region that holds these bytes whole, and where in it.
    fn place(&mut self, address: u64, size: usize) -> Result<(usize, usize), String> {
        let inside = |r: &Region| address.checked_sub(r.address).map(|o| o as usize).filter(|o| *o < r.bytes.len());
        let mut i = self.last;
        let offset = match self.regions.get(i).and_then(inside) {
            Some(offset) => offset,
            None => {
                i = self.regions.partition_point(|r| r.address <= address).wrapping_sub(1);
                match self.regions.get(i).and_then(inside) {
                    Some(offset) => offset,
                    None => return Err(format!("{size} bytes at {address:#x}: {}", self.near(address))),
                }
            }
        };
        if offset + size > self.regions[i].bytes.len() {
            return Err(format!("{size} bytes at {address:#x}: {}", self.near(address)));
        }
        self.last = i;
        Ok((i, offset))
    }

    /// What lies around an address that is nowhere.
    fn near(&self, address: u64) -> String {
        let far = |r: &&Region| {
            let end = r.address + r.bytes.len() as u64;
            if address < r.address { r.address - address } else { address.saturating_sub(end) }
        };
        match self.regions.iter().min_by_key(far) {
            Some(r) if address < r.address => format!("{} bytes before {}", r.address - address, r.what),
            Some(r) => {
                format!("from byte {} of {}, which has {}", address - r.address, r.what, r.bytes.len())
            }
            None => "there is no memory".into(),
        }
    }

    /// Why `who` may not rely on a byte with this mark, if it may not.
    fn hidden(&self, mark: Mark, who: &Access) -> Option<String> {
        if mark.wave == 0 || mark.wave == who.wave + 1 && !who.scalar {
            return None;
        }
        let other = mark.wave - 1;
        let writer = &self.writers[other as usize];
        let same = writer.block == self.writers[who.wave as usize].block;
        if who.scalar {
            return Some(format!("the scalar cache does not know of wave {other}'s store"));
        }
        if same && writer.phase(mark.store) >= who.phase {
            return Some(format!("wave {other} of the same block stored it with no barrier between"));
        }
        if same && !self.split_caches {
            // The block's waves share a cache that takes their accesses in order: the barrier is enough.
            return None;
        }
        let list = if same { &writer.done } else { &writer.released };
        let Some(since) = Writer::since(list, mark.store) else {
            let missing = match (same, Writer::since(&writer.done, mark.store)) {
                (false, Some(_)) => "was not written back",
                _ => "was not waited for",
            };
            return Some(format!("wave {other}'s store to it {missing}"));
        };
        // Another block knows of a store by what its block did afterwards.
        let since = if same {
            since
        } else {
            let signals = self.signals.get(writer.block as usize).map_or(&[][..], Vec::as_slice);
            match signals.get(signals.partition_point(|&at| at < since)) {
                Some(&at) => at,
                None => return Some(format!("wave {other}'s store to it was not there before its block signalled")),
            }
        };
        let block = self.writers[who.wave as usize].block as usize;
        let far = self.invalidated.get(block).copied().unwrap_or(0);
        let fresh = match (same, self.split_caches) {
            (true, _) => who.near,
            (false, true) => far.min(who.near),
            (false, false) => far,
        };
        (!who.bypass && fresh <= since)
            .then(|| format!("wave {other} stored it since this wave's caches were last invalidated"))
    }

    fn alike(&self, region: usize, byte: usize) -> &[Mark] {
        self.alike.get(&(region, byte)).map_or(&[], Vec::as_slice)
    }

    /// Reads `out.len()` bytes.
    pub fn read(&mut self, who: &Access, address: u64, out: &mut [u8]) -> Result<(), String> {
        let (i, at) = self.place(address, out.len())?;
        let region = &self.regions[i];
        out.copy_from_slice(&region.bytes[at..at + out.len()]);
        if !region.marks.is_empty() {
            for (k, mark) in region.marks[at..at + out.len()].iter().enumerate() {
                if let Some(why) = self.hidden(Mark::of(*mark), who)
                    && !self.alike(i, at + k).iter().any(|m| self.hidden(*m, who).is_none())
                {
                    return Err(format!("byte {} of {}: {why}", at + k, region.what));
                }
            }
        }
        Ok(())
    }

    /// Writes `bytes` as the wave's latest store.
    pub fn write(&mut self, who: &Access, address: u64, bytes: &[u8]) -> Result<(), String> {
        let (i, at) = self.place(address, bytes.len())?;
        let region = &self.regions[i];
        if !region.writable {
            return Err(format!("{} is not to be written", region.what));
        }
        if !region.marks.is_empty() {
            let who = Access { bypass: true, ..*who };
            for (k, mark) in region.marks[at..at + bytes.len()].iter().enumerate() {
                // Two waves that store the same need no order.
                let mut all = std::iter::once(Mark::of(*mark)).chain(self.alike(i, at + k).iter().copied());
                if region.bytes[at + k] != bytes[k]
                    && let Some(why) = all.find_map(|m| self.hidden(m, &who))
                {
                    return Err(format!("byte {} of {} stored again, with another value: {why}", at + k, region.what));
                }
            }
        }
        if who.bypass {
            self.signal(who.wave);
        }
        let store = self.writers[who.wave as usize].issued;
        let region = &mut self.regions[i];
        if region.marks.is_empty() {
            region.marks = vec![0; region.bytes.len()];
        }
        for (k, byte) in bytes.iter().enumerate() {
            let (before, place) = (Mark::of(region.marks[at + k]), (i, at + k));
            if region.bytes[at + k] != *byte {
                self.alike.remove(&place);
            } else if before.wave != 0 && before.wave != who.wave + 1 {
                let list = self.alike.entry(place).or_default();
                list.retain(|m| m.wave != before.wave && m.wave != who.wave + 1);
                list.push(before);
            }
        }
        region.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        region.marks[at..at + bytes.len()].fill(Mark { wave: who.wave + 1, store }.pack());
        Ok(())
    }

    /// Changes `size` bytes (4 or 8) where all waves meet, and returns what was there.
    pub fn atomic(
        &mut self,
        who: &Access,
        address: u64,
        size: usize,
        change: impl Fn(u64) -> u64,
    ) -> Result<u64, String> {
        if !address.is_multiple_of(size as u64) {
            return Err(format!("an atomic of {size} bytes at {address:#x}, which is not aligned"));
        }
        self.signal(who.wave);
        let mut old = [0; 8];
        self.read(&Access { bypass: true, ..*who }, address, &mut old[..size])?;
        let (i, at) = self.place(address, size)?;
        let region = &mut self.regions[i];
        if !region.writable {
            return Err(format!("{} is not to be written", region.what));
        }
        let old = u64::from_le_bytes(old);
        region.bytes[at..at + size].copy_from_slice(&change(old).to_le_bytes()[..size]);
        if !region.marks.is_empty() {
            region.marks[at..at + size].fill(0);
            for k in 0..size {
                self.alike.remove(&(i, at + k));
            }
        }
        Ok(old)
    }

    /// The wave does something that other blocks may notice.
    fn signal(&mut self, wave: u32) {
        let block = self.writers[wave as usize].block as usize;
        self.signals.resize_with(self.signals.len().max(block + 1), Vec::new);
        self.signals[block].push(self.now);
    }

    /// A wave invalidates what its block shares before the device's cache.
    pub fn invalidate(&mut self, wave: u32) {
        let block = self.writers[wave as usize].block as usize;
        self.invalidated.resize(self.invalidated.len().max(block + 1), 0);
        self.invalidated[block] = self.now;
    }

    /// The wave's next store; what [`Memory::write`] writes until the next call belongs to it.
    pub fn next_store(&mut self, wave: u32) -> u32 {
        let writer = &mut self.writers[wave as usize];
        writer.issued += 1;
        writer.issued
    }

    /// The wave's stores up to this one have arrived.
    pub fn arrived(&mut self, wave: u32, store: u32) {
        let (now, visible) = (self.now, !self.needs_write_back);
        let writer = &mut self.writers[wave as usize];
        Writer::reach(&mut writer.done, store, now);
        if visible {
            Writer::reach(&mut writer.released, store, now);
        }
    }

    /// What a write-back that `wave` begins now will make visible: by wave of its block, up to which store.
    /// Its own go before it in order, others' must have arrived.
    pub fn begin_write_back(&self, wave: u32) -> Vec<(u32, u32)> {
        let block = self.writers[wave as usize].block;
        let of = |(i, w): (usize, &Writer)| {
            let upto = if i as u32 == wave { w.issued } else { w.complete() };
            (w.block == block && upto > 0).then_some((i as u32, upto))
        };
        self.writers.iter().enumerate().filter_map(of).collect()
    }

    /// It is over.
    pub fn end_write_back(&mut self, upto: &[(u32, u32)]) {
        let now = self.now;
        for &(wave, store) in upto {
            Writer::reach(&mut self.writers[wave as usize].released, store, now);
        }
    }
}
