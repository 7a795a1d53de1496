//! Events about cached blocks, for routers that send a prompt to the server that has most of it. A
//! block is a whole page of tokens with keys and values that later prompts may reuse.

use super::request::Owner;
use crate::exec::FIRST_IMAGE_ID;
use crate::gpu::PageCount;
use crate::session::SequenceId;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::sync::Arc;

const BLOCK: usize = PageCount::POSITIONS;

/// The hash of a block: SHA-256 of the hash before it (32 bytes; for the first block the owner) and
/// of its token ids (32 bits each, little-endian).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockHash(pub [u8; 32]);

impl BlockHash {
    fn of(before: &[u8; 32], tokens: &[u32]) -> BlockHash {
        let mut hash = Sha256::new_with_prefix(before);
        tokens.iter().for_each(|token| hash.update(token.to_le_bytes()));
        BlockHash(hash.finalize().into())
    }
}

/// A change of the cached blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BlockEvent {
    /// Blocks of one text that are now cached, in the order of the text.
    Stored {
        /// The block before them; `None` if they begin the text.
        parent: Option<BlockHash>,
        /// Their hashes.
        blocks: Vec<BlockHash>,
        /// Their token ids, [`BlockEvent::TOKENS`] for each block.
        tokens: Vec<u32>,
    },
    /// Blocks that are no longer cached.
    Removed {
        /// Their hashes.
        blocks: Vec<BlockHash>,
    },
    /// No block is cached any more.
    Cleared,
}

impl BlockEvent {
    /// Number of tokens in a block.
    pub const TOKENS: usize = BLOCK;
}

/// Receives the events of a scheduler, in order, on the thread that computes: it must not block.
pub type BlockSink = Arc<dyn Fn(BlockEvent) + Send + Sync>;

/// The whole blocks at the start of a text. Blocks with rows of images, and those after
/// them, are not published: their ids have no meaning elsewhere.
pub(super) fn publishable(tokens: &[u32]) -> impl Iterator<Item = &[u32]> {
    tokens.chunks_exact(BLOCK).take_while(|block| block.iter().all(|id| *id < FIRST_IMAGE_ID))
}

/// Neighbouring blocks of a text that become one event.
pub(super) struct StoredRun<'a> {
    sink: &'a BlockSink,
    owner: Owner,
    last: Option<BlockHash>,
    parent: Option<BlockHash>,
    blocks: Vec<BlockHash>,
    tokens: Vec<u32>,
}

impl<'a> StoredRun<'a> {
    pub fn new(sink: &'a BlockSink, owner: Owner) -> StoredRun<'a> {
        StoredRun { sink, owner, last: None, parent: None, blocks: vec![], tokens: vec![] }
    }

    /// The hash of the next block of the text.
    pub fn hash(&self, tokens: &[u32]) -> BlockHash {
        BlockHash::of(self.last.as_ref().map_or(&self.owner.0, |last| &last.0), tokens)
    }

    /// Goes on with a block that was cached before.
    pub fn known(&mut self, hash: BlockHash) {
        self.send();
        self.last = Some(hash);
    }

    /// Goes on with a new block.
    pub fn stored(&mut self, hash: BlockHash, tokens: &[u32]) {
        if self.blocks.is_empty() {
            self.parent = self.last;
        }
        self.blocks.push(hash);
        self.tokens.extend_from_slice(tokens);
        self.last = Some(hash);
    }

    /// Sends the new blocks.
    pub fn send(&mut self) {
        if !self.blocks.is_empty() {
            let (blocks, tokens) =
                (std::mem::take(&mut self.blocks), std::mem::take(&mut self.tokens));
            (self.sink)(BlockEvent::Stored { parent: self.parent, blocks, tokens });
        }
    }
}

impl Drop for StoredRun<'_> {
    fn drop(&mut self) {
        self.send();
    }
}

/// The blocks of retained sequences, which may have common prefixes. Used without pages.
pub(super) struct SequenceBlocks {
    sink: BlockSink,
    /// Number of sequences with each block.
    users: HashMap<BlockHash, usize>,
    of: HashMap<SequenceId, Vec<BlockHash>>,
}

impl SequenceBlocks {
    pub fn new(sink: BlockSink) -> SequenceBlocks {
        SequenceBlocks { sink, users: HashMap::new(), of: HashMap::new() }
    }

    /// A sequence was retained with these tokens.
    pub fn keep(&mut self, owner: Owner, id: SequenceId, tokens: &[u32]) {
        let before = self.of.remove(&id).unwrap_or_default();
        let mut run = StoredRun::new(&self.sink, owner);
        let mut now = vec![];
        for block in publishable(tokens) {
            let hash = run.hash(block);
            let users = self.users.entry(hash).or_default();
            *users += 1;
            match *users {
                1 => run.stored(hash, block),
                _ => run.known(hash),
            }
            now.push(hash);
        }
        drop(run);
        self.of.insert(id, now);
        self.drop_blocks(before);
    }

    /// Removes the blocks of all other sequences.
    pub fn keep_only(&mut self, alive: impl Fn(SequenceId) -> bool) {
        let gone: Vec<SequenceId> = self.of.keys().copied().filter(|id| !alive(*id)).collect();
        for id in gone {
            let blocks = self.of.remove(&id).unwrap_or_default();
            self.drop_blocks(blocks);
        }
    }

    /// All sequences are gone.
    pub fn clear(&mut self) {
        (self.users, self.of) = (HashMap::new(), HashMap::new());
    }

    fn drop_blocks(&mut self, mut blocks: Vec<BlockHash>) {
        blocks.retain(|hash| match self.users.get_mut(hash) {
            Some(users) if *users > 1 => {
                *users -= 1;
                false
            }
            _ => self.users.remove(hash).is_some(),
        });
        if !blocks.is_empty() {
            (self.sink)(BlockEvent::Removed { blocks });
        }
    }
}

/// The blocks that a router that follows the events believes to be cached. For tests.
#[cfg(test)]
pub(super) mod router {
    use super::{BLOCK, BlockEvent, BlockHash, BlockSink};
    use std::collections::HashMap;
    use std::sync::{Arc, Mutex};

    /// Each block with its parent and tokens.
    type Blocks = HashMap<BlockHash, (Option<BlockHash>, Vec<u32>)>;

    #[derive(Default, Clone)]
    pub struct Router(Arc<Mutex<Blocks>>);

    impl Router {
        pub fn sink(&self) -> BlockSink {
            let router = self.clone();
            Arc::new(move |event| router.follow(event))
        }

        fn follow(&self, event: BlockEvent) {
            let mut blocks = self.0.lock().unwrap();
            match event {
                BlockEvent::Stored { mut parent, blocks: new, tokens } => {
                    assert_eq!(tokens.len(), new.len() * BLOCK);
                    assert!(parent.is_none_or(|parent| blocks.contains_key(&parent)));
                    for (hash, tokens) in new.into_iter().zip(tokens.chunks(BLOCK)) {
                        let before = blocks.insert(hash, (parent, tokens.to_vec()));
                        assert!(before.is_none(), "a block is stored twice");
                        parent = Some(hash);
                    }
                }
                BlockEvent::Removed { blocks: gone } => gone.iter().for_each(|hash| {
                    assert!(blocks.remove(hash).is_some(), "an unknown block is removed");
                }),
                BlockEvent::Cleared => blocks.clear(),
            }
        }

        /// The tokens before and in each block, sorted.
        pub fn texts(&self) -> Vec<Vec<u32>> {
            let blocks = self.0.lock().unwrap();
            let text = |at: &BlockHash| {
                let (mut at, mut parts) = (Some(*at), vec![]);
                while let Some((parent, tokens)) = at.and_then(|at| blocks.get(&at)) {
                    parts.push(tokens.clone());
                    at = *parent;
                }
                parts.reverse();
                parts.concat()
            };
            let mut all: Vec<Vec<u32>> = blocks.keys().map(text).collect();
            all.sort();
            all
        }
    }
}

#[cfg(test)]
mod tests {
    use super::router::Router;
    use super::{BLOCK, BlockHash, FIRST_IMAGE_ID, SequenceBlocks};
    use crate::serve::Owner;
    use crate::session::SequenceId;

    fn text(seed: u32, len: usize) -> Vec<u32> {
        (0..len as u32).map(|i| seed * 100_000 + i).collect()
    }

    #[test]
    fn hash_depends_on_owner_tokens_and_what_comes_before() {
        let (one, two) = (text(1, BLOCK), text(2, BLOCK));
        let first = BlockHash::of(&[0; 32], &one);
        let all = [
            first,
            BlockHash::of(&[1; 32], &one),
            BlockHash::of(&[0; 32], &two),
            BlockHash::of(&first.0, &one),
        ];
        for (i, a) in all.iter().enumerate() {
            assert!(all.iter().skip(i + 1).all(|b| a != b));
        }
        // As Python computes it: sha256(bytes(32) + struct.pack("<128I", *range(100000, 100128))).
        let wanted = "ceba88a637c1eff0c12f1ee264a8d2f22c66f2f3c3208c096db28d11641c5183";
        let hex: String = first.0.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, wanted);
    }

    #[test]
    fn blocks_of_sequences_are_stored_once_and_removed_with_the_last() {
        let router = Router::default();
        let mut blocks = SequenceBlocks::new(router.sink());
        let (me, other) = (Owner([0; 32]), Owner([7; 32]));
        let [a, b, c] = [0, 1, 2].map(SequenceId::for_tests);
        let one = text(1, 3 * BLOCK + 5);
        let two = [&one[..2 * BLOCK], &text(2, BLOCK)].concat();
        blocks.keep(me, a, &one);
        blocks.keep(me, b, &two);
        let wanted = |all: &[&[u32]]| {
            let mut all: Vec<Vec<u32>> = all.iter().map(|text| text.to_vec()).collect();
            all.sort();
            all
        };
        let (first, second, third) = (&one[..BLOCK], &one[..2 * BLOCK], &one[..3 * BLOCK]);
        assert_eq!(router.texts(), wanted(&[first, second, third, &two]));
        // Another owner's blocks are other blocks.
        blocks.keep(other, c, &one[..BLOCK]);
        assert_eq!(router.texts(), wanted(&[first, first, second, third, &two]));
        // A sequence that goes on: nothing is stored twice.
        blocks.keep(me, a, &[&one[..], &text(3, BLOCK)].concat());
        assert_eq!(router.texts().len(), 6);
        blocks.keep_only(|id| id == b || id == c);
        assert_eq!(router.texts(), wanted(&[first, first, second, &two]));
        // Rows of images have no ids that mean anything elsewhere.
        let mut shown = text(4, 3 * BLOCK);
        shown[BLOCK + 3] = FIRST_IMAGE_ID;
        blocks.keep(me, b, &shown);
        assert_eq!(router.texts(), wanted(&[first, &shown[..BLOCK]]));
    }
}
