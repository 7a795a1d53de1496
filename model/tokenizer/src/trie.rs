//! A trie of texts, for algorithms that need every token at a position.

/// Maximum bytes of all texts. The trie takes nine bytes per byte.
const MAX_BYTES: usize = 64 << 20;

const NONE: u32 = u32::MAX;

/// A trie whose nodes are numbered level by level. The children of a node are consecutive, and the
/// node at the end of an edge has the number of the edge plus one. So neither is stored.
#[derive(Debug)]
pub struct Trie {
    /// The first edge of each node, and the end.
    starts: Vec<u32>,
    /// The byte of each edge.
    bytes: Vec<u8>,
    /// The id of the text that ends at each node.
    ids: Vec<u32>,
}

/// The root.
pub const ROOT: u32 = 0;

impl Trie {
    /// Builds a trie. Among equal texts the last one is used. `None` if the texts are too large.
    pub fn new(mut texts: Vec<(&[u8], u32)>) -> Option<Trie> {
        if texts.iter().map(|(text, _)| text.len()).sum::<usize>() > MAX_BYTES {
            return None;
        }
        texts.retain(|(text, _)| !text.is_empty());
        texts.sort_unstable();
        let mut trie = Trie { starts: Vec::new(), bytes: Vec::new(), ids: vec![NONE] };
        // Nodes in the order of their numbers, with the texts through them and their depth.
        let mut nodes = std::collections::VecDeque::from([(0, texts.len(), 0)]);
        let mut number = 0;
        while let Some((mut from, to, depth)) = nodes.pop_front() {
            trie.starts.push(trie.bytes.len() as u32);
            while let Some((_, id)) =
                texts.get(from).filter(|(text, _)| from < to && text.len() == depth)
            {
                if let Some(slot) = trie.ids.get_mut(number) {
                    *slot = *id;
                }
                from += 1;
            }
            while let Some(&byte) =
                texts.get(from).filter(|_| from < to).and_then(|(text, _)| text.get(depth))
            {
                let rest = texts.get(from..to).unwrap_or_default();
                let same =
                    rest.partition_point(|(text, _)| text.get(depth).is_some_and(|b| *b <= byte));
                trie.bytes.push(byte);
                trie.ids.push(NONE);
                nodes.push_back((from, from + same, depth + 1));
                from += same;
            }
            number += 1;
        }
        trie.starts.push(trie.bytes.len() as u32);
        Some(trie)
    }

    /// The child of a node for a byte.
    pub fn child(&self, node: u32, byte: u8) -> Option<u32> {
        let start = *self.starts.get(node as usize)? as usize;
        let end = *self.starts.get(node as usize + 1)? as usize;
        let at = self.bytes.get(start..end)?.binary_search(&byte).ok()?;
        Some((start + at) as u32 + 1)
    }

    /// The id of the text that ends at a node.
    pub fn id(&self, node: u32) -> Option<u32> {
        self.ids.get(node as usize).copied().filter(|&id| id != NONE)
    }

    /// Calls `found` with the length and the id of every text that is a prefix of `text`, shortest
    /// first.
    pub fn prefixes(&self, text: &[u8], mut found: impl FnMut(usize, u32)) {
        let mut node = ROOT;
        for (at, &byte) in text.iter().enumerate() {
            let Some(child) = self.child(node, byte) else { return };
            node = child;
            if let Some(id) = self.id(node) {
                found(at + 1, id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_prefixes_are_found_shortest_first() {
        let texts: [&[u8]; 7] = [b"a", b"abc", b"ab", b"b", b"", b"\xFF\x00", b"ab"];
        let trie =
            Trie::new(texts.iter().zip(0..).map(|(text, id)| (*text, id)).collect()).unwrap();
        let all = |text: &[u8]| {
            let mut out = Vec::new();
            trie.prefixes(text, |len, id| out.push((len, id)));
            out
        };
        assert_eq!(all(b"abcd"), [(1, 0), (2, 6), (3, 1)]);
        assert_eq!(all(b"ba"), [(1, 3)]);
        assert_eq!(all(b"\xFF\x00"), [(2, 5)]);
        assert!(all(b"").is_empty() && all(b"x").is_empty());
    }
}
