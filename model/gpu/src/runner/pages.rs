//! The owners of pages of keys and values.
//!
//! A page has the keys and values of [`PAGE`] positions of all layers. Each slot has a table of
//! pages by position. Sequences with a common prefix share its pages, and the prefix cache may also
//! reference pages. If a slot writes to a shared page, it first gets a copy of the part before that
//! position. This module does not use a device. It returns the work as [`PageOperation`]s in stream
//! order, so a page that is freed here can be reused immediately.

use kjit_exec::PageCount;
use kjit_kernels::kv::PAGE;

/// Work on the device before positions are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PageOperation {
    /// Sets an entry of a slot's table.
    Entry { slot: usize, at: usize, page: u32 },
    /// Copies a page.
    Copy { from: u32, to: u32 },
}

/// The owners of pages.
#[derive(Debug, Clone)]
pub(super) struct Pages {
    /// Users of each page: tables and other owners.
    counts: Vec<u32>,
    free: Vec<u32>,
    /// Page tables by slot.
    tables: Vec<Vec<u32>>,
}

impl Pages {
    pub fn new(pages: usize, slots: usize) -> Pages {
        let free = (0..u32::try_from(pages).unwrap_or(u32::MAX)).rev().collect::<Vec<_>>();
        Pages { counts: vec![0; free.len()], free, tables: vec![vec![]; slots] }
    }

    pub fn count(&self) -> PageCount {
        let shared = self.counts.iter().filter(|n| **n > 1).count();
        PageCount { total: self.counts.len(), used: self.counts.len() - self.free.len(), shared }
    }

    /// The pages of a slot in order.
    pub fn of(&self, slot: usize) -> &[u32] {
        self.tables.get(slot).map_or(&[], Vec::as_slice)
    }

    /// Pages needed to write positions `first..end`.
    pub fn need(&self, slot: usize, first: usize, end: usize) -> usize {
        if first >= end {
            return 0;
        }
        let table = self.of(slot);
        (first / PAGE..end.div_ceil(PAGE))
            .filter(|at| table.get(*at).is_none_or(|page| self.is_shared(*page)))
            .count()
    }

    /// Gives a slot exclusive pages for positions `first..end`. Returns the work on the device. If
    /// too few pages are free, it changes nothing and returns `None`.
    pub fn reserve(&mut self, slot: usize, first: usize, end: usize) -> Option<Vec<PageOperation>> {
        if self.need(slot, first, end) > self.free.len() {
            return None;
        }
        let mut changes = vec![];
        if first >= end {
            return Some(changes);
        }
        for at in first / PAGE..end.div_ceil(PAGE) {
            let before = self.of(slot).get(at).copied();
            if before.is_some_and(|page| !self.is_shared(page)) {
                continue;
            }
            let page = self.free.pop()?;
            self.hold(&[page]);
            if let Some(before) = before {
                // Positions from `first` on will be overwritten.
                if first > at * PAGE {
                    changes.push(PageOperation::Copy { from: before, to: page });
                }
                self.release(&[before]);
            }
            let table = self.tables.get_mut(slot)?;
            match table.get_mut(at) {
                Some(entry) => *entry = page,
                None => table.push(page),
            }
            changes.push(PageOperation::Entry { slot, at, page });
        }
        Some(changes)
    }

    /// Releases all pages of a slot except those of its first `len` positions.
    pub fn truncate(&mut self, slot: usize, len: usize) {
        let Some(table) = self.tables.get_mut(slot) else { return };
        let gone = table.split_off(len.div_ceil(PAGE).min(table.len()));
        self.release(&gone);
    }

    /// Starts an empty slot with `pages`.
    pub fn begin(&mut self, slot: usize, pages: &[u32]) -> Vec<PageOperation> {
        self.truncate(slot, 0);
        self.hold(pages);
        if let Some(table) = self.tables.get_mut(slot) {
            table.extend_from_slice(pages);
        }
        pages
            .iter()
            .enumerate()
            .map(|(at, &page)| PageOperation::Entry { slot, at, page })
            .collect()
    }

    /// Adds one reference to each page.
    pub fn hold(&mut self, pages: &[u32]) {
        for &page in pages {
            if let Some(count) = self.counts.get_mut(page as usize) {
                *count += 1;
            }
        }
    }

    /// Drops one reference to each page.
    pub fn release(&mut self, pages: &[u32]) {
        for &page in pages {
            let Some(count) = self.counts.get_mut(page as usize).filter(|count| **count > 0) else {
                continue;
            };
            *count -= 1;
            if *count == 0 {
                self.free.push(page);
            }
        }
    }

    /// The number of users of a page.
    pub fn users(&self, page: u32) -> usize {
        self.counts.get(page as usize).map_or(0, |n| *n as usize)
    }

    fn is_shared(&self, page: u32) -> bool {
        self.users(page) > 1
    }
}

#[cfg(test)]
mod tests {
    use super::{PAGE, PageOperation, Pages};
    use std::collections::HashMap;

    #[test]
    fn shared_page_is_copied_on_write_and_freed_unreferenced() {
        let mut pages = Pages::new(4, 2);
        assert_eq!(pages.reserve(0, 0, PAGE + 1).unwrap().len(), 2);
        let first = pages.of(0).to_vec();
        assert_eq!(pages.begin(1, &first).len(), 2);
        assert_eq!(
            (pages.count().used, pages.count().shared, pages.need(1, PAGE + 1, PAGE + 2)),
            (2, 2, 1)
        );
        // Writing no positions needs no page, even in a shared one.
        assert_eq!(
            (pages.need(1, PAGE + 1, PAGE + 1), pages.reserve(1, PAGE + 1, PAGE + 1)),
            (0, Some(vec![]))
        );
        let changes = pages.reserve(1, PAGE + 1, PAGE + 2).unwrap();
        let to = pages.of(1)[1];
        assert_eq!(
            changes,
            [
                PageOperation::Copy { from: first[1], to },
                PageOperation::Entry { slot: 1, at: 1, page: to }
            ]
        );
        // A page that is overwritten from its start needs no copy.
        assert!(matches!(
            pages.reserve(1, 0, 1).unwrap()[..],
            [PageOperation::Entry { slot: 1, at: 0, .. }]
        ));
        assert_eq!((pages.count().free(), pages.reserve(0, 0, 3 * PAGE)), (0, None));
        pages.truncate(1, 0);
        assert_eq!((pages.count().free(), pages.of(0)), (2, &first[..]));
        pages.truncate(0, PAGE);
        pages.truncate(0, 0);
        assert_eq!(pages.count().used, 0);
    }

    /// Random writes, shared prefixes and truncations: each slot must read its own tokens and the
    /// tokens of its prefix.
    #[test]
    fn slots_read_their_own_tokens_after_random_sharing() {
        let mut state = 7u64;
        let mut random = |n: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % n
        };
        const SLOTS: usize = 5;
        let mut pages = Pages::new(12, SLOTS);
        // The simulated device's tables and pages.
        let mut tables: HashMap<(usize, usize), u32> = HashMap::new();
        let mut memory = vec![[u64::MAX; PAGE]; 12];
        let mut want: Vec<Vec<u64>> = vec![vec![]; SLOTS];
        let (mut refused, mut copies) = (0, 0);
        for round in 0..4000u64 {
            let slot = random(SLOTS);
            let changes = match random(4) {
                0 => {
                    let len = random(want[slot].len() + 1);
                    want[slot].truncate(len);
                    pages.truncate(slot, len);
                    vec![]
                }
                1 => {
                    let of = random(SLOTS);
                    let len = random(want[of].len() + 1);
                    want[slot] = want[of][..len].to_vec();
                    let same = pages.of(of)[..len.div_ceil(PAGE)].to_vec();
                    pages.hold(&same);
                    let changes = pages.begin(slot, &same);
                    pages.release(&same);
                    changes
                }
                _ => {
                    let (first, n) = (want[slot].len(), 1 + random(200));
                    if first + n > 6 * PAGE {
                        continue;
                    }
                    match pages.reserve(slot, first, first + n) {
                        Some(changes) => {
                            want[slot].extend((0..n as u64).map(|i| round * 1000 + i));
                            changes
                        }
                        None => {
                            refused += 1;
                            continue;
                        }
                    }
                }
            };
            for change in &changes {
                match *change {
                    PageOperation::Entry { slot, at, page } => {
                        tables.insert((slot, at), page);
                    }
                    PageOperation::Copy { from, to } => {
                        memory[to as usize] = memory[from as usize];
                        copies += 1;
                    }
                }
            }
            // Writes the new positions through the table.
            for (p, &v) in want[slot].iter().enumerate().filter(|(_, v)| **v / 1000 == round) {
                memory[tables[&(slot, p / PAGE)] as usize][p % PAGE] = v;
            }
            for (slot, want) in want.iter().enumerate() {
                for (p, v) in want.iter().enumerate() {
                    assert_eq!(
                        memory[tables[&(slot, p / PAGE)] as usize][p % PAGE],
                        *v,
                        "round {round}, slot {slot}, {p}"
                    );
                }
            }
        }
        assert!(refused > 10 && copies > 10, "{refused} {copies}");
        (0..SLOTS).for_each(|slot| pages.truncate(slot, 0));
        assert_eq!(pages.count().used, 0);
    }
}
