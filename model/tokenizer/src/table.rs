//! The texts of tokens, with a lookup from text to id.

/// The texts are numbered from 0 and stored in one allocation, with an open-addressing index. The
/// table of 128,256 tokens is built in a few milliseconds. A `HashMap` with owned keys takes
/// several times as long and needs an allocation per token.
#[derive(Debug, Default)]
pub struct TokenTable {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    /// id + 1, or 0 for a free slot. The length is a power of two; at most half of the slots are
    /// used.
    slots: Vec<u32>,
}

impl TokenTable {
    /// An empty table with capacity for `n` texts of `bytes` bytes in total.
    pub fn with_capacity(n: usize, bytes: usize) -> Self {
        let slots = (2 * n.max(8)).next_power_of_two();
        TokenTable {
            bytes: Vec::with_capacity(bytes),
            ends: Vec::with_capacity(n),
            slots: vec![0; slots],
        }
    }

    /// Number of texts.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// The text of an id.
    pub fn text(&self, id: u32) -> Option<&[u8]> {
        let i = id as usize;
        let end = *self.ends.get(i)?;
        let start = match i {
            0 => 0,
            _ => *self.ends.get(i - 1)?,
        };
        self.bytes.get(start..end)
    }

    /// The id of a text.
    pub fn get(&self, text: &[u8]) -> Option<u32> {
        match self.slots.get(self.find(text)) {
            Some(&entry) if entry > 0 => Some(entry - 1),
            _ => None,
        }
    }

    /// Returns the id of a text. Adds the text if it is new. The result is `(id, whether it was
    /// new)`.
    pub fn intern(&mut self, text: &[u8]) -> (u32, bool) {
        let slot = self.find(text);
        match self.slots.get(slot) {
            Some(&entry) if entry > 0 => return (entry - 1, false),
            _ => {}
        }
        let id = self.ends.len() as u32;
        self.bytes.extend_from_slice(text);
        self.ends.push(self.bytes.len());
        if let Some(entry) = self.slots.get_mut(slot) {
            *entry = id + 1;
        }
        if 2 * self.ends.len() > self.slots.len() {
            self.grow();
        }
        (id, true)
    }

    fn grow(&mut self) {
        self.slots = vec![0; 2 * self.slots.len()];
        for id in 0..self.ends.len() as u32 {
            let slot = self.text(id).map(|text| self.find(text));
            if let Some(entry) = slot.and_then(|slot| self.slots.get_mut(slot)) {
                *entry = id + 1;
            }
        }
    }

    /// The slot of a text, or the free slot for it.
    fn find(&self, text: &[u8]) -> usize {
        let mask = self.slots.len() - 1;
        let mut slot = hash_bytes(text) as usize & mask;
        loop {
            match self.slots.get(slot) {
                Some(&entry) if entry > 0 && self.text(entry - 1) != Some(text) => {
                    slot = (slot + 1) & mask
                }
                _ => return slot,
            }
        }
    }
}

/// A map from pairs of symbols to their merge. If a pair is inserted twice, the first value stays.
#[derive(Debug)]
pub struct PairMap {
    /// Key (`u64::MAX`: free) and value.
    slots: Vec<(u64, Merge)>,
}

/// One merge of byte-pair encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Merge {
    /// Rank of the merge in the list of merges. Merges with lower ranks are applied first.
    pub rank: u32,
    /// The resulting symbol.
    pub into: u32,
}

const FREE: (u64, Merge) = (u64::MAX, Merge { rank: 0, into: 0 });

impl PairMap {
    /// An empty map for at most `n` pairs.
    pub fn with_capacity(n: usize) -> Self {
        PairMap { slots: vec![FREE; (2 * n.max(8)).next_power_of_two()] }
    }

    /// Adds a pair unless it is present. At most `n` pairs may be added.
    pub fn insert(&mut self, left: u32, right: u32, merge: Merge) {
        let slot = self.find(left, right);
        if let Some(entry) = self.slots.get_mut(slot)
            && entry.0 == u64::MAX
        {
            *entry = (key(left, right), merge);
        }
    }

    /// The merge of a pair.
    pub fn get(&self, left: u32, right: u32) -> Option<Merge> {
        self.slots
            .get(self.find(left, right))
            .filter(|entry| entry.0 != u64::MAX)
            .map(|entry| entry.1)
    }

    fn find(&self, left: u32, right: u32) -> usize {
        let key = key(left, right);
        let mask = self.slots.len() - 1;
        let mut slot = mix(key) as usize & mask;
        loop {
            match self.slots.get(slot) {
                Some(entry) if entry.0 != key && entry.0 != u64::MAX => slot = (slot + 1) & mask,
                _ => return slot,
            }
        }
    }
}

fn key(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

/// A bijective mixer (the finaliser of SplitMix64).
fn mix(mut x: u64) -> u64 {
    x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ x >> 31
}

fn hash_bytes(text: &[u8]) -> u64 {
    let mut hash = text.len() as u64;
    let mut chunks = text.chunks_exact(8);
    for chunk in &mut chunks {
        if let Ok(word) = chunk.try_into() {
            hash = mix(hash ^ u64::from_le_bytes(word));
        }
    }
    let tail = chunks.remainder().iter().fold(0, |word, &b| word << 8 | u64::from(b));
    mix(hash ^ tail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_found_after_index_growth() {
        let mut table = TokenTable::with_capacity(0, 0);
        for i in 0..5000u32 {
            assert_eq!(table.intern(format!("token {i}").as_bytes()), (i, true));
        }
        for i in 0..5000u32 {
            let text = format!("token {i}");
            assert_eq!(table.get(text.as_bytes()), Some(i));
            assert_eq!(table.text(i), Some(text.as_bytes()));
            assert_eq!(table.intern(text.as_bytes()), (i, false));
        }
        assert_eq!(table.get(b"token 5000"), None);
        assert_eq!(table.get(b""), None);
        assert_eq!(table.text(5000), None);
    }

    #[test]
    fn first_of_two_equal_merges_wins() {
        let mut map = PairMap::with_capacity(2);
        map.insert(1, 2, Merge { rank: 0, into: 7 });
        map.insert(1, 2, Merge { rank: 1, into: 8 });
        assert_eq!(map.get(1, 2), Some(Merge { rank: 0, into: 7 }));
        assert_eq!(map.get(2, 1), None);
    }
}
