//! The prefix cache: a radix tree of pages with the keys and values of earlier texts. Each node is
//! a page of tokens. The last page of a text may be partly filled. The tree uses no sequence slot.
//! A sequence with a cached prefix shares its pages, and copies the last page before it writes to
//! it. Each owner has a separate tree, so that a request cannot find the text of another owner.
//!
//! Recurrent states are not in pages. The tree has saved copies of them. Each copy was saved after
//! a number of tokens and belongs to a node. A text starts from the last copy on its path.

use super::block_events::{BlockEvent, BlockHash, BlockSink, StoredRun, publishable};
use super::request::Owner;
use super::retained::MIN_SHARED_TOKENS;
use crate::gpu::PageCount;
use std::collections::HashMap;

const PAGE: usize = PageCount::POSITIONS;

/// A page of tokens that follow the tokens of the parent nodes, with keys and values.
struct Node {
    tokens: Vec<u32>,
    page: u32,
    parent: Under,
    children: Vec<usize>,
    /// Value of the tree's counter at the last use.
    used: u64,
    /// Saved recurrent states: the number of tokens of this page before them, and the slot of the
    /// copy.
    copy: Option<(usize, usize)>,
    /// The hash of a whole page, if events are published.
    block: Option<BlockHash>,
}

/// The parent of a node.
#[derive(Debug, Clone, Copy)]
enum Under {
    /// There is no parent: the node begins texts of this owner.
    Owner(Owner),
    /// The parent is this node.
    Node(usize),
}

/// A cached prefix with saved recurrent states.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CachedPrefix {
    /// The pages.
    pub pages: Vec<u32>,
    /// The number of tokens.
    pub len: usize,
    /// The slot of the saved states.
    pub copy: usize,
}

/// The tree of cached pages.
#[derive(Default)]
pub(super) struct Prefixes {
    nodes: Vec<Option<Node>>,
    /// Root nodes by owner.
    first: HashMap<Owner, Vec<usize>>,
    now: u64,
    /// Receives the changes of whole pages.
    pub events: Option<BlockSink>,
}

/// Changes of page references caused by adding a text.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct PageChanges {
    /// Pages that the tree now references.
    pub held: Vec<u32>,
    /// Pages that the tree no longer references.
    pub released: Vec<u32>,
}

impl Prefixes {
    /// An empty cache that publishes the changes of whole pages.
    pub fn publishing(events: Option<BlockSink>) -> Prefixes {
        Prefixes { events, ..Prefixes::default() }
    }

    /// The pages of all nodes.
    pub fn pages(&self) -> impl Iterator<Item = u32> {
        self.nodes.iter().flatten().map(|node| node.page)
    }

    /// The pages of all nodes, each with its number of tokens.
    pub fn filled(&self) -> impl Iterator<Item = (u32, usize)> {
        self.nodes.iter().flatten().map(|node| (node.page, node.tokens.len()))
    }

    /// The pages of the longest cached prefix of `tokens`, and its length. The last page may hold
    /// more tokens than match.
    pub fn find(&self, owner: Owner, tokens: &[u32]) -> (Vec<u32>, usize) {
        let (path, len) = self.path(owner, tokens, MIN_SHARED_TOKENS);
        (path.into_iter().filter_map(|at| self.node(at)).map(|node| node.page).collect(), len)
    }

    /// Marks the pages of a prefix as used now.
    pub fn touch(&mut self, owner: Owner, tokens: &[u32]) {
        self.now += 1;
        for at in self.path(owner, tokens, MIN_SHARED_TOKENS).0 {
            if let Some(Some(node)) = self.nodes.get_mut(at) {
                node.used = self.now;
            }
        }
    }

    /// The longest cached prefix of `tokens` with saved recurrent states.
    pub fn find_copy(&self, owner: Owner, tokens: &[u32]) -> Option<CachedPrefix> {
        let (way, len, copy) = self.way_to_copy(owner, tokens)?;
        let pages = way.into_iter().filter_map(|at| self.node(at)).map(|node| node.page).collect();
        Some(CachedPrefix { pages, len, copy })
    }

    /// Marks the copy from which these tokens start, and the pages before it, as used now.
    pub fn touch_copy(&mut self, owner: Owner, tokens: &[u32]) {
        self.now += 1;
        for at in self.way_to_copy(owner, tokens).map_or(vec![], |(way, ..)| way) {
            if let Some(Some(node)) = self.nodes.get_mut(at) {
                node.used = self.now;
            }
        }
    }

    /// The nodes up to the last copy on the path of these tokens, the number of tokens up to it,
    /// and the copy. All children are searched: if two texts diverge inside a page, only one of
    /// them may have a copy before that point.
    fn way_to_copy(&self, owner: Owner, tokens: &[u32]) -> Option<(Vec<usize>, usize, usize)> {
        let (mut way, mut parent, mut found) = (vec![], Under::Owner(owner), None);
        while let Some(rest) = tokens.get(way.len() * PAGE..).filter(|rest| !rest.is_empty()) {
            let here = self.children(parent).iter().filter_map(|at| Some((*at, self.node(*at)?)));
            let here: Vec<_> =
                here.map(|(at, node)| (common(&node.tokens, rest), at, node.copy)).collect();
            let copies =
                here.iter().filter_map(|(n, at, copy)| Some((copy.filter(|(m, _)| m <= n)?, *at)));
            if let Some(((n, copy), at)) = copies.max() {
                found = Some(([&way[..], &[at]].concat(), way.len() * PAGE + n, copy));
            }
            let Some((_, at, _)) = here.into_iter().find(|(n, ..)| *n == PAGE) else { break };
            way.push(at);
            parent = Under::Node(at);
        }
        found
    }

    /// Assigns one of `copies` slots to the states after `tokens`. The pages of `tokens` must be in
    /// the tree. The slot is free, or otherwise the least recently used one. `None` if a copy at
    /// this position of the page, or after it, exists.
    pub fn place_copy(&mut self, owner: Owner, tokens: &[u32], copies: usize) -> Option<usize> {
        let (path, len) = self.path(owner, tokens, 1);
        let at = path.last().copied().filter(|_| len == tokens.len())?;
        let n = len - (path.len() - 1) * PAGE;
        let before = match self.node(at)?.copy {
            Some((m, _)) if m >= n => return None,
            before => before.map(|(_, copy)| copy),
        };
        let taken: Vec<usize> =
            self.nodes.iter().flatten().filter_map(|node| Some(node.copy?.1)).collect();
        let copy =
            before.or_else(|| (0..copies).find(|copy| !taken.contains(copy))).or_else(|| {
                let with = self.nodes.iter_mut().flatten().filter(|node| node.copy.is_some());
                with.min_by_key(|node| node.used)?.copy.take().map(|(_, copy)| copy)
            })?;
        self.nodes.get_mut(at)?.as_mut()?.copy = Some((n, copy));
        Some(copy)
    }

    /// Marks a copy's slot as empty.
    pub fn forget_copy(&mut self, copy: usize) {
        let with = self
            .nodes
            .iter_mut()
            .flatten()
            .filter(|node| node.copy.is_some_and(|(_, c)| c == copy));
        with.for_each(|node| node.copy = None);
    }

    /// The number of saved copies.
    pub fn copies(&self) -> usize {
        self.nodes.iter().flatten().filter(|node| node.copy.is_some()).count()
    }

    /// Adds a text whose keys and values are in `pages`. Pages already in the tree stay.
    pub fn enter(&mut self, owner: Owner, tokens: &[u32], pages: &[u32]) -> PageChanges {
        self.now += 1;
        let mut done = PageChanges::default();
        let mut parent = Under::Owner(owner);
        let events = self.events.clone();
        let mut run = events.as_ref().map(|events| StoredRun::new(events, owner));
        for (chunk, &page) in tokens.chunks(PAGE).zip(pages) {
            let common = |at: &usize| self.node(*at).map_or(0, |node| common(&node.tokens, chunk));
            let like = self.children(parent).iter().copied().find(|at| {
                // The node equals the chunk, or one of them is a prefix of the other.
                let n = common(at);
                n == chunk.len() || self.node(*at).is_some_and(|node| node.tokens.len() == n)
            });
            let at = match like {
                Some(at) => {
                    let now = self.now;
                    if let Some(Some(node)) = self.nodes.get_mut(at) {
                        node.used = now;
                        if node.tokens.len() < chunk.len() {
                            done.released.push(std::mem::replace(&mut node.page, page));
                            done.held.push(page);
                            node.tokens = chunk.to_vec();
                        }
                    }
                    at
                }
                None => {
                    done.held.push(page);
                    self.add(parent, chunk, page)
                }
            };
            parent = Under::Node(at);
            run = run.filter(|_| is_publishable(chunk));
            if let (Some(run), Some(Some(node))) = (&mut run, self.nodes.get_mut(at)) {
                match node.block {
                    Some(block) => run.known(block),
                    None => {
                        let block = *node.block.insert(run.hash(chunk));
                        run.stored(block, chunk);
                    }
                }
            }
        }
        done
    }

    /// Removes the least recently used leaf whose page `may` accepts. Returns its page.
    pub fn forget(&mut self, may: impl Fn(u32) -> bool) -> Option<u32> {
        let ends =
            self.nodes.iter().enumerate().filter_map(|(at, node)| Some((at, node.as_ref()?)));
        let ends = ends.filter(|(_, node)| node.children.is_empty() && may(node.page));
        let (at, _) = ends.min_by_key(|(_, node)| node.used)?;
        let node = self.nodes.get_mut(at)?.take()?;
        match node.parent {
            Under::Node(parent) => {
                self.nodes.get_mut(parent)?.as_mut()?.children.retain(|other| *other != at)
            }
            Under::Owner(owner) => {
                let first = self.first.get_mut(&owner)?;
                first.retain(|other| *other != at);
                if first.is_empty() {
                    self.first.remove(&owner);
                }
            }
        }
        if let (Some(events), Some(block)) = (&self.events, node.block) {
            events(BlockEvent::Removed { blocks: vec![block] });
        }
        Some(node.page)
    }

    /// Removes all pages, and tells it.
    pub fn clear(&mut self) {
        if let Some(events) = &self.events {
            events(BlockEvent::Cleared);
        }
        *self = Prefixes::publishing(self.events.take());
    }

    /// The nodes of the longest prefix of `tokens`, each matching at least `least` tokens, and the
    /// prefix's length.
    fn path(&self, owner: Owner, tokens: &[u32], least: usize) -> (Vec<usize>, usize) {
        let (mut path, mut len, mut parent) = (vec![], 0, Under::Owner(owner));
        while let Some(rest) = tokens.get(len..).filter(|rest| !rest.is_empty()) {
            let of = |at: &usize| self.node(*at).map_or(0, |node| common(&node.tokens, rest));
            let best = self.children(parent).iter().map(|at| (of(at), *at)).max();
            // If only a few tokens of a page match, the page is not copied.
            let Some((n, at)) = best.filter(|(n, _)| *n >= least) else { break };
            path.push(at);
            len += n;
            if n < PAGE {
                break;
            }
            parent = Under::Node(at);
        }
        (path, len)
    }

    fn add(&mut self, parent: Under, tokens: &[u32], page: u32) -> usize {
        let node = Node {
            tokens: tokens.to_vec(),
            page,
            parent,
            children: vec![],
            used: self.now,
            copy: None,
            block: None,
        };
        let at = match self.nodes.iter_mut().enumerate().find(|(_, place)| place.is_none()) {
            Some((at, place)) => {
                *place = Some(node);
                at
            }
            None => {
                self.nodes.push(Some(node));
                self.nodes.len() - 1
            }
        };
        let siblings = match parent {
            Under::Owner(owner) => Some(self.first.entry(owner).or_default()),
            Under::Node(parent) => self
                .nodes
                .get_mut(parent)
                .and_then(Option::as_mut)
                .map(|parent| &mut parent.children),
        };
        if let Some(siblings) = siblings {
            siblings.push(at);
        }
        at
    }

    fn node(&self, at: usize) -> Option<&Node> {
        self.nodes.get(at)?.as_ref()
    }

    fn children(&self, of: Under) -> &[usize] {
        match of {
            Under::Owner(owner) => self.first.get(&owner).map_or(&[], Vec::as_slice),
            Under::Node(at) => self.node(at).map_or(&[], |node| &node.children),
        }
    }
}

/// Whether these tokens are a whole page without rows of images.
fn is_publishable(chunk: &[u32]) -> bool {
    publishable(chunk).next().is_some()
}

/// The length of the common prefix of two texts.
fn common(a: &[u32], b: &[u32]) -> usize {
    super::retained::common(a, b)
}

#[cfg(test)]
mod tests {
    use super::super::block_events::router::Router;
    use super::{CachedPrefix, Owner, PAGE, PageChanges, Prefixes};

    const ME: Owner = Owner([0; 32]);

    fn text(seed: u32, len: usize) -> Vec<u32> {
        (0..len as u32).map(|i| seed * 100_000 + i).collect()
    }

    #[test]
    fn prompts_share_prefix_pages_and_lru_leaf_is_evicted() {
        let mut tree = Prefixes::default();
        let one = text(1, 2 * PAGE + 20);
        assert_eq!(
            tree.enter(ME, &one, &[10, 11, 12]),
            PageChanges { held: vec![10, 11, 12], released: vec![] }
        );
        assert_eq!(
            tree.enter(ME, &one[..PAGE + 5], &[20, 21]),
            PageChanges::default(),
            "it is a prefix of a cached text"
        );
        assert_eq!(tree.find(ME, &one), (vec![10, 11, 12], one.len()));
        assert_eq!(tree.find(ME, &one[..PAGE + 40]), (vec![10, 11], PAGE + 40));
        assert_eq!(
            tree.find(ME, &one[..PAGE + 3]),
            (vec![10], PAGE),
            "a page with three common tokens is not copied"
        );
        assert_eq!(tree.find(ME, &one[1..]), (vec![], 0));
        // The next turn: a fuller page replaces the page that is a prefix of it.
        let longer = text(1, 2 * PAGE + 90);
        assert_eq!(
            tree.enter(ME, &longer, &[10, 11, 13]),
            PageChanges { held: vec![13], released: vec![12] }
        );
        // A branch from the middle of a page.
        let other = [&one[..PAGE + 60], &text(2, 190)].concat();
        assert_eq!(tree.find(ME, &other), (vec![10, 11], PAGE + 60));
        assert_eq!(tree.enter(ME, &other, &[10, 30, 31]).held, [30, 31]);
        assert_eq!(tree.find(ME, &other), (vec![10, 30, 31], other.len()));
        assert_eq!(tree.find(ME, &longer), (vec![10, 11, 13], longer.len()));
        assert_eq!(tokens(&tree), longer.len() + other.len() - PAGE);
        tree.touch(ME, &longer);
        assert_eq!(tree.forget(|page| page != 31), Some(13), "a leaf that may be evicted");
        assert_eq!([tree.forget(|_| true), tree.forget(|_| true)], [Some(31), Some(30)]);
        assert_eq!(tree.find(ME, &longer), (vec![10, 11], 2 * PAGE));
        assert_eq!(
            [tree.forget(|_| true), tree.forget(|_| true), tree.forget(|_| true)],
            [Some(11), Some(10), None]
        );
        assert_eq!((tokens(&tree), tree.pages().count()), (0, 0));
    }

    #[test]
    fn prompt_starts_at_last_state_and_slots_are_lru() {
        let mut tree = Prefixes::default();
        let one = text(1, 2 * PAGE + 20);
        assert_eq!(
            (tree.place_copy(ME, &one[..PAGE], 3), tree.find_copy(ME, &one)),
            (None, None),
            "its pages are not cached"
        );
        tree.enter(ME, &one, &[10, 11, 12]);
        assert_eq!(tree.place_copy(ME, &one[..PAGE], 3), Some(0));
        assert_eq!(tree.place_copy(ME, &one[..PAGE], 3), None, "the state is already saved");
        assert_eq!(tree.place_copy(ME, &one, 3), Some(1));
        let begun =
            |pages: &[u32], len, copy| Some(CachedPrefix { pages: pages.to_vec(), len, copy });
        assert_eq!(tree.find_copy(ME, &one), begun(&[10, 11, 12], one.len(), 1));
        assert_eq!(
            tree.find_copy(ME, &one[..one.len() - 1]),
            begun(&[10], PAGE, 0),
            "a state cannot be rewound"
        );
        assert_eq!(tree.find_copy(ME, &one[..PAGE - 1]), None);
        // The text continues in the page. The copy at its end moves with it, but a copy never moves
        // to an earlier position.
        let longer = text(1, 2 * PAGE + 90);
        tree.enter(ME, &longer, &[10, 11, 13]);
        assert_eq!(tree.find_copy(ME, &longer), begun(&[10, 11, 13], one.len(), 1));
        assert_eq!(tree.place_copy(ME, &longer, 3), Some(1));
        assert_eq!(tree.find_copy(ME, &one), begun(&[10], PAGE, 0));
        assert_eq!(tree.place_copy(ME, &one[..PAGE - 5], 3), None);
        // Every slot is in use: the least recently used copy is replaced.
        let other = text(2, PAGE + 3);
        tree.enter(ME, &other, &[20, 21]);
        assert_eq!(
            [tree.place_copy(ME, &other, 3), tree.place_copy(ME, &other[..PAGE], 3)],
            [Some(2), Some(0)]
        );
        assert_eq!((tree.find_copy(ME, &one), tree.copies()), (None, 3));
        tree.forget_copy(2);
        assert_eq!((tree.find_copy(ME, &other), tree.copies()), (begun(&[20], PAGE, 0), 2));
        // A copy is removed with its page.
        tree.forget(|page| page == 13);
        assert_eq!((tree.find_copy(ME, &longer), tree.copies()), (None, 1));
    }

    #[test]
    fn state_in_partial_page_is_found_and_marked_used() {
        let mut tree = Prefixes::default();
        let copied = |tree: &mut Prefixes, seed, len, page| {
            let text = text(seed, len);
            tree.enter(ME, &text, &[page, page + 1]);
            tree.place_copy(ME, &text, 2).unwrap();
            text
        };
        // An answer that ends three tokens after the end of a page, and another text.
        let short = copied(&mut tree, 1, PAGE + 3, 10);
        let other = copied(&mut tree, 2, PAGE + 40, 20);
        let turn = [&short[..], &text(3, 9)].concat();
        tree.touch_copy(ME, &turn);
        copied(&mut tree, 4, PAGE + 40, 30);
        assert_eq!(
            tree.find_copy(ME, &turn).map(|begun| begun.len),
            Some(PAGE + 3),
            "it was used most recently"
        );
        assert_eq!(tree.find_copy(ME, &other), None);
        // A branch after the copy in the same page. A text that matches both branches equally
        // starts from the copy.
        let mut tree = Prefixes::default();
        let one = copied(&mut tree, 1, PAGE + 20, 10);
        let longer = [&one[..], &text(5, 40)].concat();
        tree.enter(ME, &longer, &[10, 12]);
        let parted = [&longer[..PAGE + 30], &text(6, 30)].concat();
        tree.enter(ME, &parted, &[10, 13]);
        let asked = [&longer[..PAGE + 30], &text(7, 30)].concat();
        assert_eq!(
            tree.find_copy(ME, &asked).map(|begun| (begun.pages, begun.len)),
            Some((vec![10, 12], PAGE + 20))
        );
    }

    #[test]
    fn events_tell_which_whole_pages_are_cached() {
        let router = Router::default();
        let mut tree = Prefixes::publishing(Some(router.sink()));
        let one = text(1, 2 * PAGE + 20);
        tree.enter(ME, &one, &[10, 11, 12]);
        assert_eq!(router.texts(), [&one[..PAGE], &one[..2 * PAGE]]);
        // A fuller page replaces the last one, and another text branches off.
        let longer = text(1, 3 * PAGE);
        tree.enter(ME, &longer, &[10, 11, 13]);
        let other = [&one[..PAGE + 60], &text(2, 2 * PAGE)].concat();
        tree.enter(ME, &other, &[10, 30, 31, 32]);
        tree.enter(Owner([7; 32]), &one, &[40, 41, 42]);
        let mut wanted = vec![&one[..PAGE], &one[..PAGE], &one[..2 * PAGE], &one[..2 * PAGE]];
        wanted.extend([&longer[..], &other[..2 * PAGE], &other[..3 * PAGE]]);
        wanted.sort();
        assert_eq!(router.texts(), wanted);
        while tree.forget(|page| page != 31 && page < 40).is_some() {}
        let mut wanted = vec![
            &one[..PAGE],
            &one[..PAGE],
            &one[..2 * PAGE],
            &other[..2 * PAGE],
            &other[..3 * PAGE],
        ];
        wanted.sort();
        assert_eq!(router.texts(), wanted);
        tree.clear();
        tree.enter(ME, &one[..PAGE], &[10]);
        assert!(tree.events.is_some());
    }

    #[test]
    fn owners_do_not_share_prefixes() {
        let (mut tree, other) = (Prefixes::default(), Owner([7; 32]));
        let one = text(1, PAGE + 40);
        tree.enter(ME, &one, &[10, 11]);
        tree.place_copy(ME, &one, 2);
        assert_eq!((tree.find(other, &one), tree.find_copy(other, &one)), ((vec![], 0), None));
        assert_eq!(tree.place_copy(other, &one, 2), None, "this owner has no pages of the text");
        // The other owner adds the same text in its own pages. Neither owner finds the pages of the
        // other.
        assert_eq!(tree.enter(other, &one, &[20, 21]).held, [20, 21]);
        assert_eq!((tree.find(ME, &one).0, tree.find(other, &one).0), (vec![10, 11], vec![20, 21]));
        let longer = [&one[..], &text(2, 30)].concat();
        assert_eq!(
            tree.enter(other, &longer, &[20, 22]),
            PageChanges { held: vec![22], released: vec![21] }
        );
        assert_eq!(
            (tree.find(ME, &longer).1, tree.find(other, &longer).1),
            (one.len(), longer.len())
        );
        while tree.forget(|page| page >= 20).is_some() {}
        assert_eq!((tree.find(ME, &one).1, tree.find(other, &one).1), (one.len(), 0));
        while tree.forget(|_| true).is_some() {}
        assert!(tree.first.is_empty(), "owners without pages are removed");
    }

    fn tokens(tree: &Prefixes) -> usize {
        tree.filled().map(|(_, tokens)| tokens).sum()
    }
}
