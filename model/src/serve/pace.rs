//! The number of prompt tokens in a step while answers run, chosen by the times of steps.

use super::step::BUDGET_ON_GPU;
use std::time::Duration;

/// Maximum number of prompt tokens of a step: a pass of the usual plan.
const MAX_PROMPT_TOKENS: usize = 2048;
/// The largest change of the budget in a step, as a factor.
const CHANGE: f64 = 1.25;
/// The share of the target that a step aims at, because times vary by some percent.
const AIM: f64 = 0.9;

/// Adjusts the number of prompt tokens of a step so that its time is near a target. The largest
/// budget for this target gives prompts the most throughput, because products of many rows are
/// faster.
#[derive(Debug, Clone)]
pub(super) struct Pace {
    target: Duration,
    budget: f64,
}

impl Pace {
    pub fn new(target: Duration) -> Pace {
        Pace { target, budget: BUDGET_ON_GPU as f64 }
    }

    /// The most prompt tokens of the next step.
    pub fn budget(&self) -> usize {
        self.budget as usize
    }

    /// A step with answers and this many prompt tokens took this long.
    pub fn saw(&mut self, prompts: usize, took: Duration) {
        let change = (AIM * self.target.as_secs_f64() / took.as_secs_f64().max(1e-6))
            .clamp(1.0 / CHANGE, CHANGE);
        // A step that did not fill its budget does not show that a larger one would fit.
        let filled = prompts as f64 >= 0.75 * self.budget;
        if prompts > 0 && (filled || change < 1.0) {
            self.budget =
                (self.budget * change).clamp(BUDGET_ON_GPU as f64, MAX_PROMPT_TOKENS as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{BUDGET_ON_GPU, MAX_PROMPT_TOKENS, Pace};
    use std::time::Duration;

    /// The budget after steps that take `base` and `per_token`.
    fn after(base: f64, per_token: f64, steps: usize) -> usize {
        let mut pace = Pace::new(Duration::from_millis(50));
        for _ in 0..steps {
            let tokens = pace.budget();
            pace.saw(tokens, Duration::from_secs_f64(base + per_token * tokens as f64));
        }
        pace.budget()
    }

    #[test]
    fn budget_reaches_the_target_time() {
        // 19 ms for 256 answers and 32 µs per token: 812 tokens fit in 45 ms.
        assert!((750..880).contains(&after(0.019, 32e-6, 50)));
        assert_eq!(after(0.0, 1e-6, 50), MAX_PROMPT_TOKENS);
        assert_eq!(after(0.1, 1e-3, 50), BUDGET_ON_GPU);
    }

    #[test]
    fn half_filled_steps_do_not_raise_the_budget() {
        let mut pace = Pace::new(Duration::from_millis(50));
        (0..9).for_each(|_| pace.saw(100, Duration::from_millis(5)));
        assert_eq!(pace.budget(), BUDGET_ON_GPU);
        pace.saw(512, Duration::from_millis(5));
        assert!(pace.budget() > BUDGET_ON_GPU);
        (0..9).for_each(|_| pace.saw(0, Duration::from_millis(500)));
        assert!(pace.budget() > BUDGET_ON_GPU);
    }
}
