//! Sparse attention: caches of index keys, and the choice of the positions that attention reads.

use super::lower::Lower;
use super::{Bind, Dim, ONE, PlanError, TOKENS};
use kjit_graph::op::TopKeys;
use kjit_graph::{StateId, ValueId};
use kjit_kernels::cache_rows::{CacheRowsArgs, CacheRowsSpec};
use kjit_kernels::indexer_scores::{IndexerScoresArgs, IndexerScoresSpec};
use kjit_kernels::top_keys::{TopKeysArgs, TopKeysSpec};

/// Maximum bytes of scores in memory. In a long context the tokens of a prompt are processed in
/// groups.
const MAX_SCORE_BYTES: u64 = 64 << 20;
/// Minimum number of tokens of a group. It is large enough to fill a device in a long context.
const MIN_GROUP: u32 = 16;

/// Tokens of a group.
fn group_tokens(tokens: u32, context: u32) -> u32 {
    let fit = MAX_SCORE_BYTES / (4 * u64::from(context.max(1)));
    u32::try_from(fit).unwrap_or(u32::MAX).max(MIN_GROUP).min(tokens)
}

impl Lower<'_> {
    /// Writes new tokens' rows to a cache with one head.
    pub(super) fn keep(
        &mut self,
        name: String,
        row: ValueId,
        cache: StateId,
    ) -> Result<(), PlanError> {
        let spec = CacheRowsSpec { kv: self.kv(cache), one: !self.batch, paged: self.paged };
        let job = self.job(&name, spec.clone())?;
        let args = CacheRowsArgs {
            row: self.value(row)?,
            slots: self.slots(),
            position: self.position(),
            rows: Bind::Keys(cache),
            tokens: Bind::Dim(TOKENS),
            capacity: Bind::U32(self.context),
            sequence_bytes: self.sequence_bytes(&name, cache)?,
            table: self.table(),
        };
        let blocks = Dim::Tokens { per: spec.rows(&self.target), each: 1 };
        self.run(name, &job, [blocks, ONE, ONE], args);
        Ok(())
    }

    /// The positions of the best keys for a token: computes all scores, then the largest ones.
    pub(super) fn top_keys(&mut self, keys: &TopKeys) -> Result<(), PlanError> {
        let &TopKeys { q, w, state, top, out } = keys;
        let (name, one) = (self.graph.value(out).name.clone(), !self.batch);
        let scores =
            IndexerScoresSpec { heads: self.graph.value(w).width, kv: self.kv(state), one };
        let best = TopKeysSpec { top, one };
        let (all, capacity) = (self.program.tokens(), Bind::U32(self.context));
        let rows = group_tokens(all, self.context);
        let (scoring, choosing) = (self.job(&name, scores.clone())?, self.job(&name, best)?);
        let (q, w, slots, position) =
            (self.value(q)?, self.value(w)?, self.slots(), self.position());
        let sequence_bytes = self.sequence_bytes(&name, state)?;
        let held = self
            .program
            .scratch(format!("{name}.scores"), 4 * u64::from(rows) * u64::from(self.context));
        let (chosen, tokens) = (self.program.make(out), Bind::Dim(TOKENS));
        let (per_unit, most) = (IndexerScoresSpec::BLOCKS_PER_UNIT, scores.blocks(self.context));
        // With many rows a block has several tiles and reads their queries once.
        let (splits, lines) = match rows == all {
            true => (Dim::Spread { per_unit, over: 1, most }, TOKENS),
            false => (Dim::Fill { per_unit, most: most.div_ceil(8) }, Dim::Is(rows)),
        };
        for first in (0..all).step_by(rows.max(1) as usize) {
            let first = Bind::U32(first);
            let args = IndexerScoresArgs {
                q,
                w,
                slots,
                position,
                rows: Bind::Keys(state),
                scores: held,
                first,
                tokens,
                capacity,
                splits: Bind::Dim(splits),
                sequence_bytes,
            };
            self.run(format!("{name}.scores"), &scoring, [splits, lines, ONE], args);
            let args =
                TopKeysArgs { scores: held, slots, position, chosen, first, tokens, capacity };
            self.run(name.clone(), &choosing, [lines, ONE, ONE], args);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::group_tokens;

    #[test]
    fn indexer_scores_are_chunked_for_long_contexts() {
        assert_eq!(group_tokens(1, 1 << 20), 1);
        assert_eq!(group_tokens(512, 4096), 512);
        assert_eq!(group_tokens(512, 163_840), 102);
        assert_eq!(group_tokens(512, u32::MAX), 16);
        assert_eq!(group_tokens(3, 0), 3);
    }
}
