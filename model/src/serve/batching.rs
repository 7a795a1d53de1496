//! The number of tokens of each sequence in a step.

/// Composes a step. `rest` is the number of tokens that each sequence has not fed yet; the oldest
/// sequence comes first. Every sequence with one such token is in the step, because its client
/// waits for the next token. In addition, up to `budget` tokens of prompts are in the step. The
/// whole oldest prompt comes first if it fits, otherwise half of the budget, so that no prompt
/// waits forever. Then come the shortest prompts that the rest of the budget completes. A piece
/// that does not end its prompt has at least `least` tokens, because on a GPU each piece is a pass
/// over all weights (H200, 8B Q4_K_M: 512 tokens take 20 ms in one piece, and more than 30 ms in
/// pieces of 481 and 31).
pub(super) fn compose(rest: &[usize], budget: usize, least: usize) -> Vec<usize> {
    let mut take: Vec<usize> = rest.iter().map(|&n| n.min(1)).collect();
    let mut prompts: Vec<(usize, usize)> =
        (0..).zip(rest.iter().copied()).filter(|(_, n)| *n > 1).collect();
    // Prompts progress with any budget.
    let mut left = budget.max(1);
    let Some(&(oldest, all)) = prompts.first() else { return take };
    prompts.iter().for_each(|(i, _)| set(&mut take, *i, 0));
    let first = if all <= left { all } else { left.div_ceil(2).max(least).min(left) };
    left -= first;
    set(&mut take, oldest, first);
    prompts.sort_by_key(|(i, n)| if *i == oldest { n - first } else { *n });
    for (i, n) in prompts {
        let before = if i == oldest { first } else { 0 };
        let more = (n - before).min(left);
        // More tokens of the oldest prompt join its piece, so `least` does not apply.
        if i != oldest && more < n && more < least {
            continue;
        }
        left -= more;
        set(&mut take, i, before + more);
    }
    take
}

fn set(take: &mut [usize], at: usize, n: usize) {
    if let Some(place) = take.get_mut(at) {
        *place = n;
    }
}

#[cfg(test)]
mod tests {
    use super::compose;

    #[test]
    fn decoding_always_runs_and_prompts_share_the_budget() {
        assert_eq!(compose(&[1, 1, 1], 2, 1), [1, 1, 1]);
        assert_eq!(compose(&[1, 500, 1], 64, 1), [1, 64, 1]);
        // The oldest prompt gets half of the budget, the shortest finishes first, the oldest gets
        // the rest.
        assert_eq!(compose(&[500, 10, 300], 64, 1), [32, 10, 22]);
        assert_eq!(compose(&[500, 10, 12], 64, 1), [42, 10, 12]);
        assert_eq!(compose(&[3, 500], 64, 1), [3, 61]);
        // Prompts progress together with any number of answers.
        assert_eq!(compose(&[1, 1, 1, 9], 1, 1), [1, 1, 1, 1]);
        assert_eq!(compose(&[], 2, 1), [0usize; 0]);
        // The oldest prompt runs whole if it fits. A rest below `least` starts no piece.
        assert_eq!(compose(&[1, 60, 500], 64, 16), [1, 60, 0]);
        assert_eq!(compose(&[1, 60, 500], 76, 16), [1, 60, 16]);
        assert_eq!(compose(&[500, 3, 300], 64, 16), [32, 3, 29]);
        assert_eq!(compose(&[500, 400], 24, 16), [24, 0]);
    }
}
