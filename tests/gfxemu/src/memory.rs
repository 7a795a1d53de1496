//! Global memory: the regions of a launch, and for each byte the last writer, the last readers and
//! whether other waves may see the store.
//!
//! A store changes the bytes immediately, so its own wave reads the new value. If another wave
//! reads these bytes before a wait, a write-back and an invalidation have made them visible, that
//! is a fault. It is also a fault if a wave overwrites bytes that other waves may still be reading.
//! This is stricter than any order in which a card executes stores.

mod access;
mod delayed_atomics;
mod in_flight;
mod reordered_stores;

use crate::order::{LastAccess, Writer};
use crate::region::Region;
use crate::target::Target;
pub use access::Access;
use in_flight::PendingAtomic;
use in_flight::StoresInFlight;
use std::collections::HashMap;

/// Maximum number of other waves that are remembered because they stored the same value.
const MAX_AGREEING_WAVES: usize = 64;

/// The complete memory of a launch.
#[derive(Debug)]
pub struct Memory {
    /// The regions, sorted by address.
    pub regions: Vec<Region>,
    /// The state of each wave, by number.
    pub writers: Vec<Writer>,
    /// The time: number of instructions executed so far.
    pub now: u64,
    /// The times of actions that other blocks can observe, for each block. Such actions are atomics
    /// and stores that bypass the caches.
    signals: Vec<Vec<u64>>,
    /// The time since when the shared caches of a block contain no old data, for each block.
    invalidated: Vec<u64>,
    late: Vec<PendingAtomic>,
    /// Stores in flight in loose mode. If `None`, the memory rules are checked.
    chosen: Option<StoresInFlight>,
    /// Other waves that stored the same value before, for each address.
    same: HashMap<u64, Vec<u64>>,
    split_caches: bool,
    needs_write_back: bool,
    last: usize,
}

impl Memory {
    /// The memory of these regions, for a kernel with this first resource word.
    pub fn new(mut regions: Vec<Region>, target: &Target, resources: u32) -> Memory {
        regions.sort_by_key(|r| r.address);
        Memory {
            regions,
            writers: Vec::new(),
            now: 1,
            signals: Vec::new(),
            invalidated: Vec::new(),
            late: Vec::new(),
            chosen: None,
            same: HashMap::new(),
            split_caches: target.split_caches(resources),
            needs_write_back: target.needs_write_back(),
            last: 0,
        }
    }

    /// The region that contains all these bytes, and their offset in it.
    fn place(&mut self, address: u64, size: usize) -> Result<(usize, usize), String> {
        let inside = |r: &Region| {
            address.checked_sub(r.address).map(|o| o as usize).filter(|o| *o < r.bytes.len())
        };
        let mut i = self.last;
        let offset = match self.regions.get(i).and_then(inside) {
            Some(offset) => offset,
            None => {
                i = self.regions.partition_point(|r| r.address <= address).wrapping_sub(1);
                match self.regions.get(i).and_then(inside) {
                    Some(offset) => offset,
                    None => {
                        return Err(format!(
                            "{size} bytes at {address:#x}: {}",
                            self.near(address)
                        ));
                    }
                }
            }
        };
        if offset + size > self.regions[i].bytes.len() {
            return Err(format!("{size} bytes at {address:#x}: {}", self.near(address)));
        }
        self.last = i;
        Ok((i, offset))
    }

    /// Describes the regions around an unmapped address.
    fn near(&self, address: u64) -> String {
        let far = |r: &&Region| {
            let end = r.address + r.bytes.len() as u64;
            if address < r.address { r.address - address } else { address.saturating_sub(end) }
        };
        match self.regions.iter().min_by_key(far) {
            Some(r) if address < r.address => {
                format!("{} bytes before {}", r.address - address, r.what)
            }
            Some(r) => {
                format!(
                    "from byte {} of {}, which has {}",
                    address - r.address,
                    r.what,
                    r.bytes.len()
                )
            }
            None => "there is no memory".into(),
        }
    }

    /// Checks whether `who` may rely on a byte with this mark. If not, returns the reason.
    fn hidden(&self, mark: LastAccess, who: &Access) -> Option<String> {
        if mark.wave == 0 || mark.wave == who.wave + 1 && !who.scalar || mark.atomic && who.bypass {
            return None;
        }
        let other = mark.wave - 1;
        let writer = &self.writers[other as usize];
        let row = writer.row(mark);
        let same = writer.block == self.writers[who.wave as usize].block;
        if who.scalar {
            return Some(format!("the scalar cache does not know of wave {other}'s store"));
        }
        if same && row.phase(mark.number) >= who.phase {
            return Some(format!(
                "wave {other} of the same block stored it with no barrier between"
            ));
        }
        if same && !self.split_caches && !mark.atomic {
            // The waves of the block share a cache that handles their accesses in order, so a
            // barrier is enough.
            return None;
        }
        let since = if same { row.since(mark.number) } else { writer.released(mark) };
        let Some(since) = since else {
            let missing = match (same, row.since(mark.number)) {
                (false, Some(_)) => "was not written back",
                _ => "was not waited for",
            };
            return Some(format!("wave {other}'s store to it {missing}"));
        };
        if same && !row.settled(mark.number, who.phase) {
            return Some(format!(
                "wave {other}'s store to it was not waited for before the barrier"
            ));
        }
        // Another block learns about a store from a later action of the storing block.
        let since = if same {
            since
        } else {
            match self.signalled(writer.block, since) {
                Some(at) => at,
                None => {
                    return Some(format!(
                        "wave {other}'s store to it was not there before its block signalled"
                    ));
                }
            }
        };
        let block = self.writers[who.wave as usize].block as usize;
        let far = self.invalidated.get(block).copied().unwrap_or(0);
        let fresh = match (same, self.split_caches) {
            (true, true) => who.near,
            (false, true) => far.min(who.near),
            (_, false) => far,
        };
        (!who.bypass && fresh <= since).then(|| {
            format!("wave {other} stored it since this wave's caches were last invalidated")
        })
    }

    /// The first time from `since` on at which a block made an action that others can observe.
    fn signalled(&self, block: u32, since: u64) -> Option<u64> {
        let signals = self.signals.get(block as usize).map_or(&[][..], Vec::as_slice);
        signals.get(signals.partition_point(|&at| at < since)).copied()
    }

    /// Checks whether `who` may overwrite bytes with this mark of a reader. If not, returns the
    /// reason.
    fn still_read(&self, mark: LastAccess, who: &Access) -> Option<String> {
        if mark.wave == 0 || mark.wave == who.wave + 1 {
            return None;
        }
        let other = mark.wave - 1;
        let reader = &self.writers[other as usize];
        let block = self.writers[who.wave as usize].block;
        let same = reader.block == block;
        if same && reader.loads.phase(mark.number) >= who.phase {
            return Some(format!("wave {other} of the same block read it with no barrier between"));
        }
        if same {
            let late = self.split_caches && !reader.loads.settled(mark.number, who.phase);
            return late.then(|| {
                format!("wave {other} did not wait for its load of it before the barrier")
            });
        }
        let Some(since) = reader.loads.since(mark.number) else {
            return Some(format!("wave {other} of another block did not wait for its load of it"));
        };
        let seen = self.invalidated.get(block as usize).copied().unwrap_or(0);
        let seen =
            seen.max(self.signals.get(block as usize).and_then(|s| s.last()).copied().unwrap_or(0));
        match self.signalled(reader.block, since) {
            Some(at) if at <= seen => None,
            Some(_) => Some(format!(
                "wave {other} read it, and this block has not heard since that it did"
            )),
            None => Some(format!("wave {other} read it, and its block did not signal since")),
        }
    }

    /// Checks whether the readers of a byte allow `who` to change it. If not, returns the reason.
    fn read_at(&self, region: usize, at: usize, who: &Access) -> Option<String> {
        let region = &self.regions[region];
        let readers = region.readers.get(at / 2)?;
        let why = readers.iter().find_map(|&m| self.still_read(LastAccess::of(m), who))?;
        Some(format!("byte {at} of {} is overwritten: {why}", region.what))
    }

    /// Reads `out.len()` bytes.
    pub fn read(&mut self, who: &Access, address: u64, out: &mut [u8]) -> Result<(), String> {
        let (i, at) = self.place(address, out.len())?;
        self.land(|l| {
            l.wave == who.wave && l.address < address + out.len() as u64 && address < l.address + 8
        });
        if self.chosen.is_some() {
            self.read_chosen(who, address, (i, at), out);
            return Ok(());
        }
        let region = &self.regions[i];
        out.copy_from_slice(&region.bytes[at..at + out.len()]);
        if !region.marks.is_empty() {
            for (k, mark) in region.marks[at..at + out.len()].iter().enumerate() {
                if let Some(why) = self.hidden(LastAccess::of(*mark), who)
                    && !self.agreed(address + k as u64, who)
                {
                    return Err(format!("byte {} of {}: {why}", at + k, region.what));
                }
            }
        }
        if who.load != 0 && !who.bypass && region.writable {
            let region = &mut self.regions[i];
            if region.readers.is_empty() {
                region.readers = vec![[0; 2]; region.bytes.len().div_ceil(2)];
            }
            let mark =
                LastAccess { wave: who.wave + 1, number: who.load, load: true, atomic: false };
            for last in &mut region.readers[at / 2..(at + out.len()).div_ceil(2)] {
                if LastAccess::of(last[0]).wave != mark.wave {
                    last[1] = last[0];
                }
                last[0] = mark.pack();
            }
        }
        Ok(())
    }

    /// Whether another wave stored the same value, and `who` may rely on its store.
    fn agreed(&self, address: u64, who: &Access) -> bool {
        let others = self.same.get(&address).map_or(&[][..], Vec::as_slice);
        others.iter().any(|&m| self.hidden(LastAccess::of(m), who).is_none())
    }

    /// Writes `bytes` as the latest store of the wave.
    pub fn write(&mut self, who: &Access, address: u64, bytes: &[u8]) -> Result<(), String> {
        let (i, at) = self.place(address, bytes.len())?;
        self.land(|l| {
            l.wave == who.wave
                && l.address < address + bytes.len() as u64
                && address < l.address + 8
        });
        let region = &self.regions[i];
        if !region.writable {
            return Err(format!("{} is not to be written", region.what));
        }
        if self.chosen.is_some() {
            self.write_chosen(who, address, bytes);
            return Ok(());
        }
        let far = Access { bypass: true, ..*who };
        for (k, &byte) in bytes.iter().enumerate() {
            // Two waves that store the same value need no order between them or for readers.
            if region.bytes[at + k] == byte {
                continue;
            }
            let mark =
                region.marks.get(at + k).map_or(LastAccess::default(), |m| LastAccess::of(*m));
            let alike = self.same.get(&(address + k as u64)).map_or(&[][..], Vec::as_slice);
            let mut all = std::iter::once(mark).chain(alike.iter().map(|&m| LastAccess::of(m)));
            if let Some(why) = all.find_map(|m| self.hidden(m, &far)) {
                return Err(format!(
                    "byte {} of {} stored again, with another value: {why}",
                    at + k,
                    region.what
                ));
            }
            if let Some(why) = self.read_at(i, at + k, who) {
                return Err(why);
            }
        }
        if who.bypass {
            self.signal(who.wave);
        }
        let number = self.writers[who.wave as usize].stores.issued;
        let mark = LastAccess { wave: who.wave + 1, number, load: false, atomic: false }.pack();
        let region = &mut self.regions[i];
        if region.marks.is_empty() {
            region.marks = vec![0; region.bytes.len()];
        }
        for (k, &byte) in bytes.iter().enumerate() {
            let (old, place) = (&mut region.marks[at + k], address + k as u64);
            if *old != 0 && *old >> 32 != mark >> 32 && region.bytes[at + k] == byte {
                let others = self.same.entry(place).or_default();
                if others.len() < MAX_AGREEING_WAVES {
                    others.push(*old);
                }
            } else if !self.same.is_empty() && region.bytes[at + k] != byte {
                self.same.remove(&place);
            }
            *old = mark;
            region.bytes[at + k] = byte;
        }
        Ok(())
    }

    /// Records that the wave makes an action that other blocks can observe.
    fn signal(&mut self, wave: u32) {
        let block = self.writers[wave as usize].block as usize;
        self.signals.resize_with(self.signals.len().max(block + 1), Vec::new);
        self.signals[block].push(self.now);
    }

    /// Records that a wave invalidates the caches between its block and the cache of the device.
    pub fn invalidate(&mut self, wave: u32) {
        let block = self.writers[wave as usize].block as usize;
        self.invalidated.resize(self.invalidated.len().max(block + 1), 0);
        self.invalidated[block] = self.now;
    }

    /// Returns the number of the wave's next store. [`Memory::write`] uses it until the next call.
    pub fn next_store(&mut self, wave: u32) -> u32 {
        self.writers[wave as usize].stores.count()
    }

    /// Returns the number of the wave's next load.
    pub fn next_load(&mut self, wave: u32) -> u32 {
        self.writers[wave as usize].loads.count()
    }

    /// Records that the stores of the wave up to this number are complete.
    pub fn arrived(&mut self, wave: u32, store: u32) {
        self.land(|l| l.wave == wave && l.store <= store);
        self.arrive(|w, s, _, _| w == wave && s <= store);
        let writer = &mut self.writers[wave as usize];
        writer.stores.reach(store, self.now);
        if !self.needs_write_back {
            writer.release(store, self.now);
        }
    }

    /// Records that the loads of the wave up to this number are complete.
    pub fn loaded(&mut self, wave: u32, load: u32) {
        self.writers[wave as usize].loads.reach(load, self.now);
    }

    /// The stores that a write-back by `wave` will make visible if it begins now: for each wave of
    /// its block, the last store. Its own stores precede the write-back in order; stores of other
    /// waves must be complete.
    pub fn begin_write_back(&self, wave: u32) -> Vec<(u32, u32)> {
        let block = self.writers[wave as usize].block;
        let of = |(i, w): (usize, &Writer)| {
            let upto = if i as u32 == wave { w.stores.issued } else { w.stores.complete() };
            (w.block == block && upto > 0).then_some((i as u32, upto))
        };
        self.writers.iter().enumerate().filter_map(of).collect()
    }

    /// Ends a write-back.
    pub fn end_write_back(&mut self, upto: &[(u32, u32)]) {
        let now = self.now;
        self.written_back(|w, s, _, _| upto.iter().any(|&(wave, store)| w == wave && s <= store));
        for &(wave, store) in upto {
            self.writers[wave as usize].release(store, now);
        }
    }
}
