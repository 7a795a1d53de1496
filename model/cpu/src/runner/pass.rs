//! The tokens that one pass processes.

/// Successive tokens of one sequence in a pass.
#[derive(Clone, Copy)]
pub(super) struct PassSpan {
    pub(super) slot: usize,
    /// Position of the first token.
    pub(super) first: usize,
    /// Index of its first row among all rows.
    pub(super) start: usize,
    /// Number of tokens.
    pub(super) tokens: usize,
    /// Number of rows with requested logits. They are the last rows.
    pub(super) wanted: usize,
}

/// The tokens that one pass processes.
#[derive(Default)]
pub(super) struct StepPass {
    pub(super) tokens: Vec<u32>,
    pub(super) parts: Vec<PassSpan>,
}

impl StepPass {
    pub(super) fn add(&mut self, slot: usize, first: usize, tokens: &[u32], wanted: usize) {
        self.parts.push(PassSpan {
            slot,
            first,
            start: self.tokens.len(),
            tokens: tokens.len(),
            wanted,
        });
        self.tokens.extend_from_slice(tokens);
    }

    pub(super) fn wanted(&self) -> usize {
        self.parts.iter().map(|p| p.wanted).sum()
    }

    /// The number of rows of a step: all tokens, or those with requested logits.
    pub(super) fn rows(&self, full: bool) -> usize {
        if full { self.tokens.len() } else { self.wanted() }
    }

    /// The rows with requested logits, from a value with a row for every token; `width` elements
    /// each.
    pub(super) fn requested_rows<T: Copy>(&self, all: &[T], width: usize) -> Vec<T> {
        let rows = self.parts.iter().map(|p| p.start + p.tokens - p.wanted..p.start + p.tokens);
        rows.flat_map(|r| &all[r.start * width..r.end * width]).copied().collect()
    }

    /// Index of the first requested row if the requested rows are contiguous.
    pub(super) fn contiguous_start(&self) -> Option<usize> {
        let mut parts = self.parts.iter().filter(|p| p.wanted > 0);
        let first = parts.next()?;
        let mut end = first.start + first.tokens;
        let begin = end - first.wanted;
        for p in parts {
            if p.start + p.tokens - p.wanted != end {
                return None;
            }
            end = p.start + p.tokens;
        }
        Some(begin)
    }
}

/// The hint of a memory error, if memory does not suffice for rows of `elems` numbers: smaller
/// chunks for a single prompt, fewer sequences for a batch (with the number that fits).
pub(super) fn memory_hint(pass: &StepPass, elems: usize) -> String {
    let several = pass.parts.len();
    if several < 2 || pass.tokens.len() > several {
        return "use a smaller --prefill-chunk".into();
    }
    let has_room = |n: &usize| Vec::<f32>::new().try_reserve_exact(n.saturating_mul(elems)).is_ok();
    let fit =
        std::iter::successors(Some(several / 2), |n| Some(n / 2).filter(|n| *n > 0)).find(has_room);
    format!(
        "the memory suffices for about {} sequences at once, not for {several}",
        fit.unwrap_or(1)
    )
}
