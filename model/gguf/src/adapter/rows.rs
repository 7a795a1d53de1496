//! The row order of queries and keys. In llama's architecture, GGUF converters reorder these rows,
//! so that elements that rotate together are adjacent. Folders have the trained order.

use super::{AdapterError, LowRank};
use crate::Gguf;
use std::path::Path;

/// The order of an adapter's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// The trained order: element i of a head rotates with i + n/2.
    Trained,
    /// The order of GGUF files: element 2i of a head rotates with 2i + 1.
    Adjacent,
}

/// Reorders a pair's rows into the order of the base model, if its architecture has two orders.
pub(crate) fn reorder(
    path: &Path,
    base: &Gguf,
    pair: &mut LowRank,
    from: Order,
) -> Result<(), AdapterError> {
    let to = if base.is_folder() { Order::Trained } else { Order::Adjacent };
    if from == to || base.architecture()? != "llama" {
        return Ok(());
    }
    let key = match pair.tensor.rsplit_once(".attn_") {
        Some((_, "q.weight")) => "llama.attention.head_count",
        Some((_, "k.weight")) => "llama.attention.head_count_kv",
        _ => return Ok(()),
    };
    let layers = base.require_u32("llama.block_count")? as usize;
    let heads = match base.opt_per_layer_u32(key, layers)? {
        Some(heads) => heads,
        None => base.per_layer_u32("llama.attention.head_count", layers)?,
    };
    let layer = pair.tensor.split('.').nth(1).and_then(|n| n.parse::<usize>().ok()).unwrap_or(0);
    let heads = heads.get(layer).copied().unwrap_or(0) as usize;
    let head = pair.rows.checked_div(heads).unwrap_or(0);
    if head == 0 || heads * head != pair.rows || !head.is_multiple_of(2) {
        let (path, tensor, rows) = (path.to_owned(), pair.tensor.clone(), pair.rows);
        return Err(AdapterError::Heads { path, tensor, rows, heads });
    }
    let (rank, mut b) = (pair.rank, vec![0.0; pair.b.len()]);
    for row in 0..pair.rows {
        let (first, i) = (row / head * head, row % head);
        let adjacent = first + if i < head / 2 { 2 * i } else { 2 * (i - head / 2) + 1 };
        let (source, target) =
            if to == Order::Adjacent { (row, adjacent) } else { (adjacent, row) };
        if let (Some(source), Some(target)) = (
            pair.b.get(source * rank..(source + 1) * rank),
            b.get_mut(target * rank..(target + 1) * rank),
        ) {
            target.copy_from_slice(source);
        }
    }
    pair.b = b;
    Ok(())
}
