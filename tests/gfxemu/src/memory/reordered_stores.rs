//! Loose mode: a seed chooses the order of stores, and no memory rules are checked. A store waits
//! before the caches until a wait instruction or the seed completes it. The order is free, but
//! stores of a wave to the same address stay in order. If a write-back is needed, the store then
//! stays in the block's cache until a write-back or the seed moves it on. A reader through a cache
//! that was not invalidated after that may get the old value. So a missing wait, write-back,
//! invalidation or barrier changes the result for some seed.
//!
//! Loads are not delayed here. A store over bytes that others may still be reading is only detected
//! by the memory rules.

use super::Memory;
use super::access::Access;
use super::in_flight::{OverwrittenByte, Pending, StoresInFlight};
use crate::random::Random;
use std::collections::HashMap;

/// Number of old values that are kept for each address.
const MAX_OLD_VALUES: usize = 8;

impl Memory {
    /// Starts loose mode for all later stores.
    pub fn choose_order(&mut self, seed: u64) {
        let random = Random::new(seed ^ 0x6f_7264_6572);
        self.chosen = Some(StoresInFlight {
            random,
            turns: 0,
            front: vec![],
            cached: vec![],
            old: HashMap::new(),
        });
    }

    /// A byte as `who` may see it; `now` is its current value.
    fn as_cached(&self, chosen: &StoresInFlight, who: &Access, address: u64, now: u8) -> u8 {
        let Some(olds) = chosen.old.get(&address) else { return now };
        let block = self.writers[who.wave as usize].block;
        let far = self.invalidated.get(block as usize).copied().unwrap_or(0);
        let hidden = |old: &OverwrittenByte| {
            let same = old.block == block;
            if who.scalar {
                return true;
            }
            if old.wave == who.wave || same && !self.split_caches {
                return false;
            }
            match (same, self.split_caches) {
                (true, _) => who.near <= old.arrived,
                (false, true) => far.min(who.near) <= old.time,
                (false, false) => far <= old.time,
            }
        };
        // The oldest value that the cache may still contain: the cache may have missed all later
        // stores.
        let unseen = olds.iter().rev().take_while(|old| hidden(old)).last();
        unseen.map_or(now, |old| old.byte)
    }

    /// Reads bytes of a region as `who` may see them.
    pub(super) fn read_chosen(
        &mut self,
        who: &Access,
        address: u64,
        (i, at): (usize, usize),
        out: &mut [u8],
    ) {
        let Some(mut chosen) = self.chosen.take() else { return };
        out.copy_from_slice(&self.regions[i].bytes[at..at + out.len()]);
        let stale = !who.bypass && chosen.random.below(2) == 0;
        if stale && !chosen.old.is_empty() {
            for (k, byte) in out.iter_mut().enumerate() {
                *byte = self.as_cached(&chosen, who, address + k as u64, *byte);
            }
        }
        let block = self.writers[who.wave as usize].block;
        if !who.scalar {
            let near = |p: &&Pending| p.wave == who.wave || p.block == block && !self.split_caches;
            let seen = chosen.cached.iter().filter(|p| p.block == block);
            let mut seen: Vec<_> = seen.chain(chosen.front.iter().filter(near)).collect();
            seen.retain(|p| p.meets(address, out.len()));
            seen.sort_by_key(|p| p.turn);
            seen.iter().for_each(|p| p.lay_over(address, out));
        }
        self.chosen = Some(chosen);
    }

    /// Puts a store of the wave in flight.
    pub(super) fn write_chosen(&mut self, who: &Access, address: u64, bytes: &[u8]) {
        let (wave, through) = (who.wave, who.bypass);
        let writer = &self.writers[wave as usize];
        let (block, store) = (writer.block, writer.stores.issued);
        let Some(chosen) = &mut self.chosen else { return };
        chosen.turns += 1;
        let mut all = [0; 16];
        all[..bytes.len()].copy_from_slice(bytes);
        let (turn, len) = (chosen.turns, bytes.len());
        chosen.front.push(Pending {
            wave,
            block,
            store,
            turn,
            address,
            bytes: all,
            len,
            through,
            arrived: 0,
        });
    }

    /// Moves a store to where all blocks see it.
    fn apply(&mut self, p: &Pending) {
        let Ok((i, at)) = self.place(p.address, p.len) else { return };
        let now = self.now;
        let Some(chosen) = &mut self.chosen else { return };
        let bytes = &mut self.regions[i].bytes[at..at + p.len];
        for (k, (old, &new)) in bytes.iter_mut().zip(&p.bytes).enumerate() {
            let olds = chosen.old.entry(p.address + k as u64).or_default();
            if olds.len() == MAX_OLD_VALUES {
                olds.remove(0);
            }
            let arrived = if p.arrived == 0 { now } else { p.arrived };
            olds.push(OverwrittenByte {
                time: now,
                arrived,
                wave: p.wave,
                block: p.block,
                byte: *old,
            });
            *old = new;
        }
    }

    /// Takes the stores before the caches, or in the caches, that `which` selects by wave, number
    /// of the store, address and length. It also takes all stores that must precede them.
    fn take(&mut self, cached: bool, which: impl Fn(u32, u32, u64, usize) -> bool) -> Vec<Pending> {
        let split = self.split_caches;
        let Some(chosen) = &mut self.chosen else { return vec![] };
        let list = if cached { &mut chosen.cached } else { &mut chosen.front };
        let mut now: Vec<bool> =
            list.iter().map(|p| which(p.wave, p.store, p.address, p.len)).collect();
        // The loop runs backwards, so that a selected store also takes the stores before it.
        for k in (0..list.len()).rev() {
            if !now[k] {
                continue;
            }
            let p = &list[k];
            for (j, q) in list[..k].iter().enumerate() {
                // A cache handles the accesses of its waves in order.
                let one = q.wave == p.wave || q.block == p.block && (cached || !split);
                now[j] |= one && q.meets(p.address, p.len);
            }
        }
        let mut now = now.into_iter();
        list.extract_if(.., |_| now.next() == Some(true)).collect()
    }

    fn go_on(&mut self, cached: bool, now: Vec<Pending>) {
        for p in now {
            match (&mut self.chosen, !cached && self.needs_write_back && !p.through) {
                (Some(chosen), true) => chosen.cached.push(Pending { arrived: self.now, ..p }),
                _ => self.apply(&p),
            }
        }
    }

    /// Completes the selected stores before the caches.
    pub(super) fn arrive(&mut self, which: impl Fn(u32, u32, u64, usize) -> bool) {
        let now = self.take(false, which);
        self.go_on(false, now);
    }

    /// Writes back the selected stores in the caches of the blocks.
    pub(super) fn written_back(&mut self, which: impl Fn(u32, u32, u64, usize) -> bool) {
        let now = self.take(true, which);
        self.go_on(true, now);
    }

    /// Lets some stores continue, as the seed chooses.
    pub(super) fn let_some_on(&mut self) {
        for cached in [true, false] {
            let Some(chosen) = &mut self.chosen else { return };
            let list = if cached { &chosen.cached } else { &chosen.front };
            if list.is_empty() || chosen.random.below(2) == 0 {
                continue;
            }
            // Only a few stores of one wave, because a case has thousands.
            let picked = &list[chosen.random.below(list.len())];
            let (wave, one, many) =
                (picked.wave, (picked.store, picked.address), chosen.random.below(4) == 0);
            let now = self.take(cached, |w, store, address, _| {
                w == wave && (many || (store, address) == one)
            });
            self.go_on(cached, now);
        }
    }
}
