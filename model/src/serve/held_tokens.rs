//! Counts the tokens in pages.

use crate::gpu::PageCount;

/// The number of tokens in `pages` pages. A shared page counts once, with its largest number of
/// tokens. `running` has the pages and tokens of each sequence, `kept` the pages and tokens of the
/// prefix cache.
pub(super) fn held<'a>(
    pages: usize,
    running: impl Iterator<Item = (&'a [u32], usize)>,
    kept: impl Iterator<Item = (u32, usize)>,
) -> usize {
    let mut most = vec![0; pages];
    let mut has = |page: u32, tokens: usize| {
        if let Some(most) = most.get_mut(page as usize) {
            *most = tokens.max(*most);
        }
    };
    for (pages, fed) in running {
        let begin = (0..fed).step_by(PageCount::POSITIONS);
        pages
            .iter()
            .zip(begin)
            .for_each(|(&page, at)| has(page, (fed - at).min(PageCount::POSITIONS)));
    }
    kept.for_each(|(page, tokens)| has(page, tokens));
    most.into_iter().sum()
}

#[cfg(test)]
mod tests {
    use super::{PageCount, held};

    #[test]
    fn shared_page_is_counted_once() {
        const PAGE: usize = PageCount::POSITIONS;
        assert_eq!(held(4, [(&[2, 0][..], PAGE + 7)].into_iter(), std::iter::empty()), PAGE + 7);
        // A page shared by three sequences and the cache, and the other pages of the sequences. One
        // sequence has a page without tokens.
        let two = [(&[2, 0][..], PAGE + 7), (&[2, 1][..], PAGE + 9), (&[2, 3][..], PAGE)];
        assert_eq!(held(4, two.into_iter(), [(2, PAGE)].into_iter()), PAGE + 7 + 9);
        // A partly shared page counts with its longest content.
        let begins = [(&[1][..], 60), (&[1][..], 20)];
        assert_eq!(held(4, begins.into_iter(), [(1, 70), (3, 5)].into_iter()), 75);
        assert_eq!(held(0, std::iter::empty(), std::iter::empty()), 0);
    }
}
