//! How many tokens of each sequence go into a step.

/// Tokens of each sequence for one step. `rest` says how many each has that were not fed, the
/// oldest sequence first. Who has one goes: a token of an answer that somebody waits for. Besides
/// go `budget` tokens of prompts: all that the oldest has, where that fits, else half of the budget
/// to it, so that no prompt waits forever; the rest to the shortest, which are done with it. A
/// piece that does not end its prompt has at least `least` tokens: on a GPU each piece is a pass
/// over all weights (an H200 and 8b Q4_K_M: 512 tokens in one piece take 20 ms, in two of 481 and
/// 31 more than 30).
pub(super) fn compose(rest: &[usize], budget: usize, least: usize) -> Vec<usize> {
    let mut take: Vec<usize> = rest.iter().map(|&n| n.min(1)).collect();
    let mut prompts: Vec<(usize, usize)> =
        (0..).zip(rest.iter().copied()).filter(|(_, n)| *n > 1).collect();
    // Whatever the budget, prompts go on.
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
        // What the oldest has besides is of the same piece.
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
    fn tokens_of_answers_always_go_and_prompts_share_what_is_left() {
        assert_eq!(compose(&[1, 1, 1], 2, 1), [1, 1, 1]);
        assert_eq!(compose(&[1, 500, 1], 64, 1), [1, 64, 1]);
        // The oldest has half, the shortest is done first, the oldest has what nobody needs.
        assert_eq!(compose(&[500, 10, 300], 64, 1), [32, 10, 22]);
        assert_eq!(compose(&[500, 10, 12], 64, 1), [42, 10, 12]);
        assert_eq!(compose(&[3, 500], 64, 1), [3, 61]);
        // However many answers there are, prompts go on.
        assert_eq!(compose(&[1, 1, 1, 9], 1, 1), [1, 1, 1, 1]);
        assert_eq!(compose(&[], 2, 1), [0usize; 0]);
        // The oldest goes whole where it fits; what is left is no piece that would cost a pass for
        // little.
        assert_eq!(compose(&[1, 60, 500], 64, 16), [1, 60, 0]);
        assert_eq!(compose(&[1, 60, 500], 76, 16), [1, 60, 16]);
        assert_eq!(compose(&[500, 3, 300], 64, 16), [32, 3, 29]);
        assert_eq!(compose(&[500, 400], 24, 16), [24, 0]);
    }
}
