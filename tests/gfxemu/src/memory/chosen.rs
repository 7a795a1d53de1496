//! Stores in an order that a seed chooses, instead of rules that a reader must obey: what a wave
//! has stored lies in front of the caches until a wait, or the seed, lets it arrive, in any order
//! but that of its own stores to one place; where a write-back is needed, it lies in the block's
//! cache until that, or the seed, takes it on; and who reads through a cache that was not
//! invalidated since may get what was there before. A missing wait, write-back, invalidation or
//! barrier then shows in what is computed, with some seed.
//!
//! Loads are not late here: an overwriting of what others may still be reading only the rules see.

use super::{Access, Memory};
use crate::machine::Random;
use std::collections::HashMap;

/// A store on its way.
#[derive(Clone, Debug)]
struct Pending {
    wave: u32,
    block: u32,
    /// As which of the wave's stores, and of all.
    store: u32,
    turn: u64,
    address: u64,
    bytes: [u8; 16],
    len: usize,
    /// Past the caches.
    through: bool,
    /// When it came to its block's cache, 0 before.
    arrived: u64,
}

impl Pending {
    fn meets(&self, address: u64, len: usize) -> bool {
        self.address < address + len as u64 && address < self.address + self.len as u64
    }
    /// Puts what it has of a range there.
    fn lay_over(&self, address: u64, out: &mut [u8]) {
        for (k, byte) in out.iter_mut().enumerate() {
            let at = (address + k as u64).checked_sub(self.address).map(|at| at as usize);
            if let Some(at) = at.filter(|&at| at < self.len) {
                *byte = self.bytes[at];
            }
        }
    }
}

/// A byte that another took the place of.
#[derive(Clone, Copy, Debug)]
struct Old {
    /// Since when others may see what came, and its own block.
    time: u64,
    arrived: u64,
    wave: u32,
    block: u32,
    byte: u8,
}

/// Of so many bytes at a place that others took the place of, the last are kept.
const KEPT: usize = 8;

/// What is on its way, and what caches may still hold.
#[derive(Debug)]
pub(super) struct Chosen {
    random: Random,
    turns: u64,
    /// In front of the caches, and in those of the blocks.
    front: Vec<Pending>,
    cached: Vec<Pending>,
    old: HashMap<u64, Vec<Old>>,
}

impl Memory {
    /// From now on stores arrive in an order that a seed chooses.
    pub fn choose_order(&mut self, seed: u64) {
        let random = Random::new(seed ^ 0x6f_7264_6572);
        self.chosen =
            Some(Chosen { random, turns: 0, front: vec![], cached: vec![], old: HashMap::new() });
    }

    /// A byte as who reads may see it, given what it is now.
    fn as_cached(&self, chosen: &Chosen, who: &Access, address: u64, now: u8) -> u8 {
        let Some(olds) = chosen.old.get(&address) else { return now };
        let block = self.writers[who.wave as usize].block;
        let far = self.invalidated.get(block as usize).copied().unwrap_or(0);
        let hidden = |old: &Old| {
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
        // Those from the last on that a cache may not have seen: what lay there before the first of
        // these.
        let unseen = olds.iter().rev().take_while(|old| hidden(old)).last();
        unseen.map_or(now, |old| old.byte)
    }

    /// Reads a region's bytes, as `who` may see them.
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

    /// Takes a store of a wave on its way.
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

    /// One arrives where all blocks see it.
    fn apply(&mut self, p: &Pending) {
        let Ok((i, at)) = self.place(p.address, p.len) else { return };
        let now = self.now;
        let Some(chosen) = &mut self.chosen else { return };
        let bytes = &mut self.regions[i].bytes[at..at + p.len];
        for (k, (old, &new)) in bytes.iter_mut().zip(&p.bytes).enumerate() {
            let olds = chosen.old.entry(p.address + k as u64).or_default();
            if olds.len() == KEPT {
                olds.remove(0);
            }
            let arrived = if p.arrived == 0 { now } else { p.arrived };
            olds.push(Old { time: now, arrived, wave: p.wave, block: p.block, byte: *old });
            *old = new;
        }
    }

    /// Those of the front, or of the caches, that `which` says (the wave, which of its stores,
    /// address, length), and what must come before them.
    fn take(&mut self, cached: bool, which: impl Fn(u32, u32, u64, usize) -> bool) -> Vec<Pending> {
        let split = self.split_caches;
        let Some(chosen) = &mut self.chosen else { return vec![] };
        let list = if cached { &mut chosen.cached } else { &mut chosen.front };
        let mut now: Vec<bool> =
            list.iter().map(|p| which(p.wave, p.store, p.address, p.len)).collect();
        // From the last on, so that who goes takes along whoever comes before it, and they those
        // before them.
        for k in (0..list.len()).rev() {
            if !now[k] {
                continue;
            }
            let p = &list[k];
            for (j, q) in list[..k].iter().enumerate() {
                // A cache takes what its waves ask for in order.
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

    /// Those in front that `which` says arrive.
    pub(super) fn arrive(&mut self, which: impl Fn(u32, u32, u64, usize) -> bool) {
        let now = self.take(false, which);
        self.go_on(false, now);
    }

    /// Those of the blocks' caches that `which` says are written back.
    pub(super) fn written_back(&mut self, which: impl Fn(u32, u32, u64, usize) -> bool) {
        let now = self.take(true, which);
        self.go_on(true, now);
    }

    /// The seed lets some go on.
    pub(super) fn let_some_on(&mut self) {
        for cached in [true, false] {
            let Some(chosen) = &mut self.chosen else { return };
            let list = if cached { &chosen.cached } else { &chosen.front };
            if list.is_empty() || chosen.random.below(2) == 0 {
                continue;
            }
            // Some stores of one wave, since a case has thousands.
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
