//! Paged caches for cases: pages in random order, among unused pages that contain poison.

use crate::data::Random;
use kjit_kernels::kv::{KvLayout, PAGE};

/// The pages of the positions of some slots.
pub(crate) struct Pages {
    /// Number of positions of each slot in the table; entries after them do not name a page.
    lens: Vec<usize>,
    /// Page table, slot after slot.
    pub table: Vec<u32>,
    /// Number of pages in the pool.
    pages: usize,
}

impl Pages {
    /// Pages for slots of `capacity` positions, with `lens` of them in use.
    pub fn new(lens: &[usize], capacity: usize, random: &mut Random) -> Pages {
        let pages = lens.iter().map(|n| n.div_ceil(PAGE)).sum::<usize>() + 2;
        let mut free: Vec<u32> = (0..pages as u32).collect();
        let mut table = vec![];
        for n in lens {
            let mut of: Vec<u32> =
                (0..n.div_ceil(PAGE)).map(|_| free.swap_remove(random.below(free.len()))).collect();
            of.resize(capacity.div_ceil(PAGE), u32::MAX);
            table.extend(of);
        }
        Pages { lens: lens.to_vec(), table, pages }
    }

    /// The pool of pages for caches that are given slot after slot.
    pub fn pool(&self, kv: &KvLayout, caches: &[u8], capacity: usize) -> Vec<u8> {
        let (each, page) = (kv.bytes(capacity).unwrap_or(0), kv.page_bytes().unwrap_or(0));
        let mut pool = vec![0xff; self.pages * page];
        let tables = self.table.chunks(capacity.div_ceil(PAGE));
        for ((cache, table), &len) in caches.chunks(each).zip(tables).zip(&self.lens) {
            kv.put_in_pages(cache, capacity, len, table, &mut pool);
        }
        pool
    }

    /// Elements of `bytes` bytes in a pool.
    pub fn elements(&self, kv: &KvLayout, bytes: usize) -> usize {
        self.pages * kv.page_bytes().unwrap_or(0) / bytes
    }

    /// Index of the first element of a row in the first slot, for storage types without scales.
    pub fn element(&self, kv: &KvLayout, bytes: usize, head: usize, position: usize) -> usize {
        let page = self.table[position / PAGE] as usize * kv.page_bytes().unwrap_or(0) / bytes;
        page + (head * PAGE + position % PAGE) * kv.head_dim
    }
}
