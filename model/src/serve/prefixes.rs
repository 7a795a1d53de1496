//! Beginnings of texts whose keys and values are kept in pages, because the next prompt may begin
//! as they do: a radix tree. Each node is a page of tokens; the last one of a text may be shorter.
//! A slot is taken by none of them: a sequence that begins so shares the pages, and what it writes
//! into the last of them it writes into a copy. Each owner has a tree of his own: nobody finds
//! another's texts.
//!
//! States that do not grow (recurrent ones) have no pages: what is kept of them are copies of a
//! sequence's states as they were behind some tokens, each at a node. A text begins at the last of
//! them that is on its way.

use super::kept::WORTH;
use super::request::Owner;
use crate::gpu::PageCount;
use std::collections::HashMap;

const PAGE: usize = PageCount::POSITIONS;

/// Some tokens behind those of its parents, and the page that has their keys and values.
struct Node {
    tokens: Vec<u32>,
    page: u32,
    parent: Under,
    children: Vec<usize>,
    /// When it was last of use: a number that rises.
    used: u64,
    /// So many of the tokens, and which copy has the states behind them.
    copy: Option<(usize, usize)>,
}

/// What stands before a node.
#[derive(Debug, Clone, Copy)]
enum Under {
    /// Nothing: it begins this owner's texts.
    Owner(Owner),
    /// This one.
    Node(usize),
}

/// A beginning whose states are kept.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Begun {
    /// Its pages.
    pub pages: Vec<u32>,
    /// Its tokens.
    pub len: usize,
    /// The copy of its states.
    pub copy: usize,
}

/// A tree of pages by the tokens that are in them.
#[derive(Default)]
pub(super) struct Prefixes {
    nodes: Vec<Option<Node>>,
    /// Those that begin a text, by its owner.
    first: HashMap<Owner, Vec<usize>>,
    now: u64,
}

/// What became of pages when a text was entered.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Entered {
    /// The tree has these now, too.
    pub held: Vec<u32>,
    /// And these no more.
    pub released: Vec<u32>,
}

impl Prefixes {
    /// The pages of all nodes.
    pub fn pages(&self) -> impl Iterator<Item = u32> {
        self.nodes.iter().flatten().map(|node| node.page)
    }

    /// The same, with the tokens that are of use in each.
    pub fn filled(&self) -> impl Iterator<Item = (u32, usize)> {
        self.nodes.iter().flatten().map(|node| (node.page, node.tokens.len()))
    }

    /// The pages that have the longest beginning of these tokens, and its length. The last page may
    /// have more, or less, than is asked for.
    pub fn find(&self, owner: Owner, tokens: &[u32]) -> (Vec<u32>, usize) {
        let (path, len) = self.path(owner, tokens, WORTH);
        (path.into_iter().filter_map(|at| self.node(at)).map(|node| node.page).collect(), len)
    }

    /// These tokens' pages were of use.
    pub fn touch(&mut self, owner: Owner, tokens: &[u32]) {
        self.now += 1;
        for at in self.path(owner, tokens, WORTH).0 {
            if let Some(Some(node)) = self.nodes.get_mut(at) {
                node.used = self.now;
            }
        }
    }

    /// The longest beginning of these tokens of which the states are kept, too.
    pub fn find_copy(&self, owner: Owner, tokens: &[u32]) -> Option<Begun> {
        let (way, len, copy) = self.way_to_copy(owner, tokens)?;
        let pages = way.into_iter().filter_map(|at| self.node(at)).map(|node| node.page).collect();
        Some(Begun { pages, len, copy })
    }

    /// The copy at which these tokens begin was of use, and so were the pages on its way.
    pub fn touch_copy(&mut self, owner: Owner, tokens: &[u32]) {
        self.now += 1;
        for at in self.way_to_copy(owner, tokens).map_or(vec![], |(way, ..)| way) {
            if let Some(Some(node)) = self.nodes.get_mut(at) {
                node.used = self.now;
            }
        }
    }

    /// The nodes to the last copy that these tokens come by, their tokens up to it, and the copy.
    /// Of two texts that part within a page the one may have a copy before that place, and the
    /// other not.
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

    /// Which of `copies` is to have the states behind these tokens, whose pages are kept: one that
    /// nobody has, or that was of no use for longest. None where there is one already, or one of a
    /// whole page where the tokens end in its middle.
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

    /// This copy has nothing.
    pub fn forget_copy(&mut self, copy: usize) {
        let with = self
            .nodes
            .iter_mut()
            .flatten()
            .filter(|node| node.copy.is_some_and(|(_, c)| c == copy));
        with.for_each(|node| node.copy = None);
    }

    /// Copies of states that are kept.
    pub fn copies(&self) -> usize {
        self.nodes.iter().flatten().filter(|node| node.copy.is_some()).count()
    }

    /// Enters a text whose keys and values are in these pages. What is there already stays as it
    /// is.
    pub fn enter(&mut self, owner: Owner, tokens: &[u32], pages: &[u32]) -> Entered {
        self.now += 1;
        let mut done = Entered::default();
        let mut parent = Under::Owner(owner);
        for (chunk, &page) in tokens.chunks(PAGE).zip(pages) {
            let common = |at: &usize| self.node(*at).map_or(0, |node| common(&node.tokens, chunk));
            let like = self.children(parent).iter().copied().find(|at| {
                // The same, or the one's beginning.
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
        }
        done
    }

    /// Forgets the end of a text: of those for which `may` says so, the one that was of no use for
    /// longest. Its page.
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
        Some(node.page)
    }

    pub fn clear(&mut self) {
        *self = Prefixes::default();
    }

    /// The nodes that have the longest beginning of these tokens, and its length: of each at least
    /// so many.
    fn path(&self, owner: Owner, tokens: &[u32], least: usize) -> (Vec<usize>, usize) {
        let (mut path, mut len, mut parent) = (vec![], 0, Under::Owner(owner));
        while let Some(rest) = tokens.get(len..).filter(|rest| !rest.is_empty()) {
            let of = |at: &usize| self.node(*at).map_or(0, |node| common(&node.tokens, rest));
            let best = self.children(parent).iter().map(|at| (of(at), *at)).max();
            // Little of a page is not worth a copy of it.
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

/// Tokens that two texts have in common at their beginning.
fn common(a: &[u32], b: &[u32]) -> usize {
    super::kept::common(a, b)
}

#[cfg(test)]
mod tests {
    use super::{Begun, Entered, Owner, PAGE, Prefixes};

    const ME: Owner = Owner([0; 32]);

    fn text(seed: u32, len: usize) -> Vec<u32> {
        (0..len as u32).map(|i| seed * 100_000 + i).collect()
    }

    #[test]
    fn texts_share_the_pages_of_their_beginning_and_the_longest_unused_end_goes_first() {
        let mut tree = Prefixes::default();
        let one = text(1, 2 * PAGE + 20);
        assert_eq!(
            tree.enter(ME, &one, &[10, 11, 12]),
            Entered { held: vec![10, 11, 12], released: vec![] }
        );
        assert_eq!(
            tree.enter(ME, &one[..PAGE + 5], &[20, 21]),
            Entered::default(),
            "it begins one that is there"
        );
        assert_eq!(tree.find(ME, &one), (vec![10, 11, 12], one.len()));
        assert_eq!(tree.find(ME, &one[..PAGE + 40]), (vec![10, 11], PAGE + 40));
        assert_eq!(
            tree.find(ME, &one[..PAGE + 3]),
            (vec![10], PAGE),
            "three tokens are not worth a copy"
        );
        assert_eq!(tree.find(ME, &one[1..]), (vec![], 0));
        // The next turn: a page that is fuller takes the place of the one that was its beginning.
        let longer = text(1, 2 * PAGE + 90);
        assert_eq!(
            tree.enter(ME, &longer, &[10, 11, 13]),
            Entered { held: vec![13], released: vec![12] }
        );
        // Another way on from the middle of a page.
        let other = [&one[..PAGE + 60], &text(2, 190)].concat();
        assert_eq!(tree.find(ME, &other), (vec![10, 11], PAGE + 60));
        assert_eq!(tree.enter(ME, &other, &[10, 30, 31]).held, [30, 31]);
        assert_eq!(tree.find(ME, &other), (vec![10, 30, 31], other.len()));
        assert_eq!(tree.find(ME, &longer), (vec![10, 11, 13], longer.len()));
        assert_eq!(tokens(&tree), longer.len() + other.len() - PAGE);
        tree.touch(ME, &longer);
        assert_eq!(tree.forget(|page| page != 31), Some(13), "an end that may go");
        assert_eq!([tree.forget(|_| true), tree.forget(|_| true)], [Some(31), Some(30)]);
        assert_eq!(tree.find(ME, &longer), (vec![10, 11], 2 * PAGE));
        assert_eq!(
            [tree.forget(|_| true), tree.forget(|_| true), tree.forget(|_| true)],
            [Some(11), Some(10), None]
        );
        assert_eq!((tokens(&tree), tree.pages().count()), (0, 0));
    }

    #[test]
    fn a_text_begins_at_the_last_copy_on_its_way_and_the_longest_unused_one_is_taken_for_another() {
        let mut tree = Prefixes::default();
        let one = text(1, 2 * PAGE + 20);
        assert_eq!(
            (tree.place_copy(ME, &one[..PAGE], 3), tree.find_copy(ME, &one)),
            (None, None),
            "its pages are not kept"
        );
        tree.enter(ME, &one, &[10, 11, 12]);
        assert_eq!(tree.place_copy(ME, &one[..PAGE], 3), Some(0));
        assert_eq!(tree.place_copy(ME, &one[..PAGE], 3), None, "there is one");
        assert_eq!(tree.place_copy(ME, &one, 3), Some(1));
        let begun = |pages: &[u32], len, copy| Some(Begun { pages: pages.to_vec(), len, copy });
        assert_eq!(tree.find_copy(ME, &one), begun(&[10, 11, 12], one.len(), 1));
        assert_eq!(
            tree.find_copy(ME, &one[..one.len() - 1]),
            begun(&[10], PAGE, 0),
            "no state goes back"
        );
        assert_eq!(tree.find_copy(ME, &one[..PAGE - 1]), None);
        // The text goes on in the page: the copy of its end moves on, one of a whole page does not
        // go back.
        let longer = text(1, 2 * PAGE + 90);
        tree.enter(ME, &longer, &[10, 11, 13]);
        assert_eq!(tree.find_copy(ME, &longer), begun(&[10, 11, 13], one.len(), 1));
        assert_eq!(tree.place_copy(ME, &longer, 3), Some(1));
        assert_eq!(tree.find_copy(ME, &one), begun(&[10], PAGE, 0));
        assert_eq!(tree.place_copy(ME, &one[..PAGE - 5], 3), None);
        // All are taken: what nobody used for longest is another's.
        let other = text(2, PAGE + 3);
        tree.enter(ME, &other, &[20, 21]);
        assert_eq!(
            [tree.place_copy(ME, &other, 3), tree.place_copy(ME, &other[..PAGE], 3)],
            [Some(2), Some(0)]
        );
        assert_eq!((tree.find_copy(ME, &one), tree.copies()), (None, 3));
        tree.forget_copy(2);
        assert_eq!((tree.find_copy(ME, &other), tree.copies()), (begun(&[20], PAGE, 0), 2));
        // With its page a copy goes, too.
        tree.forget(|page| page == 13);
        assert_eq!((tree.find_copy(ME, &longer), tree.copies()), (None, 1));
    }

    #[test]
    fn a_copy_with_few_tokens_of_its_page_is_found_and_counts_as_used_when_it_is() {
        let mut tree = Prefixes::default();
        let copied = |tree: &mut Prefixes, seed, len, page| {
            let text = text(seed, len);
            tree.enter(ME, &text, &[page, page + 1]);
            tree.place_copy(ME, &text, 2).unwrap();
            text
        };
        // An answer that ends three tokens behind a page, and another text.
        let short = copied(&mut tree, 1, PAGE + 3, 10);
        let other = copied(&mut tree, 2, PAGE + 40, 20);
        let turn = [&short[..], &text(3, 9)].concat();
        tree.touch_copy(ME, &turn);
        copied(&mut tree, 4, PAGE + 40, 30);
        assert_eq!(
            tree.find_copy(ME, &turn).map(|begun| begun.len),
            Some(PAGE + 3),
            "it was used last"
        );
        assert_eq!(tree.find_copy(ME, &other), None);
        // Another way on behind the copy, in the same page: whoever has as much in common with both
        // begins at the copy.
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
    fn nobody_finds_what_another_entered() {
        let (mut tree, other) = (Prefixes::default(), Owner([7; 32]));
        let one = text(1, PAGE + 40);
        tree.enter(ME, &one, &[10, 11]);
        tree.place_copy(ME, &one, 2);
        assert_eq!((tree.find(other, &one), tree.find_copy(other, &one)), ((vec![], 0), None));
        assert_eq!(tree.place_copy(other, &one, 2), None, "he has no page of it");
        // The same text is the other's as well, in pages of his own, and neither is found by the
        // other's tokens.
        assert_eq!(tree.enter(other, &one, &[20, 21]).held, [20, 21]);
        assert_eq!((tree.find(ME, &one).0, tree.find(other, &one).0), (vec![10, 11], vec![20, 21]));
        let longer = [&one[..], &text(2, 30)].concat();
        assert_eq!(
            tree.enter(other, &longer, &[20, 22]),
            Entered { held: vec![22], released: vec![21] }
        );
        assert_eq!(
            (tree.find(ME, &longer).1, tree.find(other, &longer).1),
            (one.len(), longer.len())
        );
        while tree.forget(|page| page >= 20).is_some() {}
        assert_eq!((tree.find(ME, &one).1, tree.find(other, &one).1), (one.len(), 0));
        while tree.forget(|_| true).is_some() {}
        assert!(tree.first.is_empty(), "owners that have nothing are forgotten");
    }

    fn tokens(tree: &Prefixes) -> usize {
        tree.filled().map(|(_, tokens)| tokens).sum()
    }
}
