//! Atomics. An atomic without a result does not conflict with other atomics, so it is delayed: it
//! is executed at a wait, or earlier if the seed chooses that.

use super::Memory;
use super::access::Access;
use super::in_flight::PendingAtomic;
use crate::atomic::AtomicUpdate;
use crate::order::LastAccess;

impl Memory {
    /// Changes `size` bytes (4 or 8) in the cache that all waves share. Either immediately, with
    /// the old value as the result, or later, like a store of the wave.
    pub fn atomic(
        &mut self,
        who: &Access,
        address: u64,
        size: usize,
        (change, by): (AtomicUpdate, u128),
        answers: bool,
    ) -> Result<u64, String> {
        if !address.is_multiple_of(size as u64) {
            return Err(format!("an atomic of {size} bytes at {address:#x}, which is not aligned"));
        }
        self.signal(who.wave);
        let (block, split) = (self.writers[who.wave as usize].block, self.split_caches);
        let blocks: Vec<u32> = if self.chosen.is_some() {
            self.writers.iter().map(|w| w.block).collect()
        } else {
            vec![]
        };
        let ours = |wave: u32, to: u64, len: usize| {
            let one = wave == who.wave || !split && blocks.get(wave as usize) == Some(&block);
            one && to < address + size as u64 && address < to + len as u64
        };
        self.arrive(|wave, _, to, len| ours(wave, to, len));
        self.written_back(|wave, _, to, len| ours(wave, to, len));
        let mut old = [0; 8];
        self.read(&Access { bypass: true, ..*who }, address, &mut old[..size])?;
        let (i, at) = self.place(address, size)?;
        let before = u64::from_le_bytes(old);
        if self.chosen.is_none()
            && change(before, by) != before
            && let Some(why) = self.read_at(i, at, who)
        {
            return Err(why);
        }
        let region = &mut self.regions[i];
        if !region.writable {
            return Err(format!("{} is not to be written", region.what));
        }
        let number = if answers { who.load } else { self.writers[who.wave as usize].stores.issued };
        let mark = LastAccess { wave: who.wave + 1, number, load: answers, atomic: true };
        if region.marks.is_empty() {
            region.marks = vec![0; region.bytes.len()];
        }
        region.marks[at..at + size].fill(mark.pack());
        let late = PendingAtomic { wave: who.wave, store: number, address, size, change, by };
        if answers {
            self.happen(&late);
        } else {
            self.late.push(late);
        }
        Ok(before)
    }

    fn happen(&mut self, late: &PendingAtomic) {
        // The address was checked when the atomic was issued.
        let Ok((i, at)) = self.place(late.address, late.size) else { return };
        let bytes = &mut self.regions[i].bytes[at..at + late.size];
        let mut old = [0; 8];
        old[..late.size].copy_from_slice(bytes);
        let new = (late.change)(u64::from_le_bytes(old), late.by);
        bytes.copy_from_slice(&new.to_le_bytes()[..late.size]);
    }

    /// Executes the delayed atomics that `which` selects.
    pub(super) fn land(&mut self, which: impl Fn(&PendingAtomic) -> bool) {
        if self.late.is_empty() {
            return;
        }
        let (now, later) = std::mem::take(&mut self.late).into_iter().partition(which);
        self.late = later;
        let now: Vec<PendingAtomic> = now;
        now.iter().for_each(|l| self.happen(l));
    }

    /// Executes one delayed atomic, if `choose` returns its index (below the number of them).
    pub fn land_one(&mut self, choose: impl FnOnce(usize) -> usize) {
        self.let_some_on();
        if !self.late.is_empty() {
            let chosen = &self.late[choose(self.late.len())];
            let at = (chosen.wave, chosen.address);
            // Atomics of one wave to the same address stay in order.
            let first = self.late.iter().position(|l| (l.wave, l.address) == at);
            let late = self.late.remove(first.unwrap_or(0));
            self.happen(&late);
        }
    }

    /// Executes all delayed operations at the end of the launch.
    pub fn finish(&mut self) {
        self.land(|_| true);
        self.arrive(|_, _, _, _| true);
        self.written_back(|_, _, _, _| true);
    }
}
