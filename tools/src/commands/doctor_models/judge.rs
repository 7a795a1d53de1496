//! Verdicts on the answers of a device, with the precise CPU's answers as the oracle.

use super::protocol::{Back, Opened, Step, Tokens};
use kjit_model::gpu::prove_plan::{KernelResult, KernelVerdict};
use std::fmt;

/// A verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// Equal, or within what rounding explains.
    Right,
    /// A difference that rounding may explain.
    Near,
    /// It could not be done, for a reason outside the kernels.
    Refused,
    /// Any other result.
    Wrong,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verdict::Right => "right",
            Verdict::Near => "near",
            Verdict::Refused => "refused",
            Verdict::Wrong => "wrong",
        })
    }
}

/// The result of one test of a model on a device.
#[derive(Debug, Clone, PartialEq)]
pub struct Check {
    /// The name.
    pub name: &'static str,
    /// The verdict.
    pub verdict: Verdict,
    /// The figures, or the reason.
    pub said: String,
}

impl Check {
    /// A result.
    pub fn new(name: &'static str, verdict: Verdict, said: impl Into<String>) -> Check {
        Check { name, verdict, said: said.into() }
    }
}

/// Scores differ by rounding: 8-bit activations have an error of up to 1 % of the scores'
/// deviation, f16 less. The difference of two scores has twice that, and 32 tokens see five times
/// the usual error.
const TIE_MARGIN: f64 = 0.1;
/// Relative differences of the perplexity. Over these few predictions, 8-bit activations change it
/// by some tenths of a percent.
const PERPLEXITY: [f64; 2] = [0.01, 0.05];
/// Cosines of vectors: as the project's tests demand, and as 8-bit activations of a long encoder
/// leave.
const COSINE: [f64; 2] = [0.9999, 0.99];
/// Relative differences of scores after going back. Tokens computed again may go through a
/// prompt's kernels, whose activations are f16.
const ROLLBACK_BOUNDS: [f64; 2] = [2e-3, 3e-2];
/// Memory besides the estimate: code, the driver's own pages, and rounding of allocations.
const MEMORY_BOUNDS: [u64; 2] = [64 << 20, 256 << 20];

/// The verdict of an error between two bounds. NaN is wrong.
fn within(error: f64, [right, near]: [f64; 2]) -> Verdict {
    if error <= right {
        Verdict::Right
    } else if error <= near {
        Verdict::Near
    } else {
        Verdict::Wrong
    }
}

/// Compares tokens with the tokens of the oracle.
pub fn tokens(got: &Tokens, oracle: &[Step]) -> Check {
    let check = |verdict, said| Check::new("tokens", verdict, said);
    if got.ids.len() != oracle.len() {
        let (got, all) = (got.ids.len(), oracle.len());
        return check(Verdict::Wrong, format!("{got} tokens came of {all}"));
    }
    let (mut same, mut most, mut far) = (0, 0f64, None);
    for (at, (id, step)) in got.ids.iter().zip(oracle).enumerate() {
        if *id == step.id {
            same += 1;
            continue;
        }
        let score = |id| step.best.iter().find(|(best, _)| *best == id).map(|(_, s)| f64::from(*s));
        let gap = score(step.id).zip(score(*id)).map(|(best, its)| (best - its) / step.deviation);
        // A token outside the highest scores, and NaN, are far.
        match gap.filter(|gap| *gap <= TIE_MARGIN) {
            Some(gap) => most = most.max(gap),
            None => far = far.or(Some((at, *id, step.id))),
        }
    }
    let all = oracle.len();
    match far {
        Some((at, id, want)) => check(
            Verdict::Wrong,
            format!(
                "{same} of {all} tokens equal the CPU's tokens; \
                 token {at} is {id}, but the CPU chose {want}"
            ),
        ),
        None if same == all => {
            check(Verdict::Right, format!("{all} of {all} tokens equal the CPU's tokens"))
        }
        None => check(
            Verdict::Near,
            format!(
                "{same} of {all} tokens equal the CPU's tokens; \
                 at the others, scores differ by at most {most:.3} deviations"
            ),
        ),
    }
}

/// Compares perplexities.
pub fn perplexity(got: f64, oracle: f64) -> Check {
    let error = (got / oracle - 1.0).abs();
    let verdict = if got.is_finite() { within(error, PERPLEXITY) } else { Verdict::Wrong };
    Check::new("perplexity", verdict, format!("{got:.3}, the CPU's is {oracle:.3}"))
}

/// Compares vectors.
pub fn vectors(got: &[Vec<f32>], oracle: &[Vec<f32>]) -> Check {
    let cosine = |a: &[f32], b: &[f32]| -> f64 {
        let dot = |a: &[f32], b: &[f32]| -> f64 {
            a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum()
        };
        if a.len() == b.len() { dot(a, b) / (dot(a, a) * dot(b, b)).sqrt() } else { f64::NAN }
    };
    // The largest distance; NaN stays.
    let far = got.iter().zip(oracle).map(|(a, b)| 1.0 - cosine(a, b)).fold(0.0, |far: f64, one| {
        if one.is_nan() || far.is_nan() { f64::NAN } else { far.max(one) }
    });
    let same = got.len() == oracle.len() && !oracle.is_empty();
    let verdict = if same { within(far, COSINE.map(|c| 1.0 - c)) } else { Verdict::Wrong };
    let said = format!("cosine to the CPU's vectors at least {:.6}", 1.0 - far);
    Check::new("vectors", verdict, said)
}

/// Judges a sequence that went back.
pub fn back(got: &Back) -> Check {
    let kind = if got.recurrent { "recurrent state" } else { "keys and values" };
    let said = format!(
        "{kind} back to {} of {} tokens, the rest computed again: scores differ by {:.1e}",
        got.kept, got.at, got.off
    );
    Check::new("state", within(got.off, ROLLBACK_BOUNDS), said)
}

/// Compares a GPU's memory with the estimate of `kjit inspect`. `None` on the CPU.
pub fn memory(opened: &Opened) -> Option<Check> {
    let (estimate, taken) = (opened.estimate?, opened.taken?);
    let [right, near] = [(20, MEMORY_BOUNDS[0]), (7, MEMORY_BOUNDS[1])]
        .map(|(part, slack)| estimate / part + slack);
    let difference = taken.abs_diff(estimate);
    let verdict = match difference {
        d if d <= right => Verdict::Right,
        // Less than the estimate breaks no promise.
        d if d <= near || taken < estimate => Verdict::Near,
        _ => Verdict::Wrong,
    };
    let [taken, estimate] = [taken, estimate].map(crate::report::bytes);
    Some(Check::new("memory", verdict, format!("{taken} taken, {estimate} estimated")))
}

/// Sums up the verdicts on kernels.
pub fn kernels(name: &'static str, all: &[KernelResult]) -> Check {
    let verdict = |one: &KernelResult| match &one.verdict {
        KernelVerdict::Right => (Verdict::Right, ""),
        KernelVerdict::Near(_) => (Verdict::Near, "near: "),
        KernelVerdict::NotRun(_) => (Verdict::Refused, "not run: "),
        KernelVerdict::Wrong(_) => (Verdict::Wrong, ""),
    };
    let worst = all.iter().max_by_key(|one| verdict(one).0);
    let Some(worst) = worst else {
        return Check::new(name, Verdict::Refused, "no kernel was run");
    };
    let right = all.iter().filter(|one| one.verdict == KernelVerdict::Right).count();
    let mut said = format!("{right} of {} right", all.len());
    if let KernelVerdict::Near(why) | KernelVerdict::NotRun(why) | KernelVerdict::Wrong(why) =
        &worst.verdict
    {
        said += &format!("; {}{}: {why}", verdict(worst).1, worst.kernel);
    }
    Check::new(name, verdict(worst).0, said)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(id: u32, best: &[(u32, f32)]) -> Step {
        Step { id, best: best.to_vec(), deviation: 2.0 }
    }

    #[test]
    fn a_token_of_nearly_equal_score_is_near_and_another_is_wrong() {
        let oracle = [step(1, &[(1, 5.0), (2, 4.9), (3, 4.0)]), step(7, &[(7, 3.0), (1, 0.0)])];
        let said = |ids: &[u32]| {
            tokens(&Tokens { ids: ids.to_vec(), ..Tokens::default() }, &oracle).verdict
        };
        assert_eq!(said(&[1, 7]), Verdict::Right);
        assert_eq!(said(&[2, 7]), Verdict::Near);
        assert_eq!(said(&[3, 7]), Verdict::Wrong);
        assert_eq!(said(&[1, 9]), Verdict::Wrong);
        assert_eq!(said(&[1]), Verdict::Wrong);
        let nan = [step(1, &[(1, f32::NAN), (2, 4.9)])];
        let got = Tokens { ids: vec![2], ..Tokens::default() };
        assert_eq!(tokens(&got, &nan).verdict, Verdict::Wrong);
    }

    #[test]
    fn errors_have_two_bounds_and_nan_is_wrong() {
        for (got, verdict) in [
            (10.05, Verdict::Right),
            (10.4, Verdict::Near),
            (9.6, Verdict::Near),
            (11.0, Verdict::Wrong),
            (f64::NAN, Verdict::Wrong),
            (f64::INFINITY, Verdict::Wrong),
        ] {
            assert_eq!(perplexity(got, 10.0).verdict, verdict, "{got}");
        }
        let off = |off| back(&Back { at: 9, kept: 0, off, recurrent: true }).verdict;
        assert_eq!(
            [0.0, 1e-2, 0.5, f64::NAN].map(off),
            [Verdict::Right, Verdict::Near, Verdict::Wrong, Verdict::Wrong]
        );
        let want = [vec![1.0, 0.0], vec![0.0, 1.0]];
        let all = |a: [f32; 2], b: [f32; 2]| vectors(&[a.to_vec(), b.to_vec()], &want).verdict;
        assert_eq!(all([2.0, 0.0], [0.0, 0.5]), Verdict::Right);
        assert_eq!(all([1.0, 0.1], [0.0, 1.0]), Verdict::Near);
        assert_eq!(all([1.0, 0.0], [1.0, 0.0]), Verdict::Wrong);
        // NaN stays whether it comes first or last.
        assert_eq!(all([f32::NAN, 0.0], [0.0, 1.0]), Verdict::Wrong);
        assert_eq!(all([1.0, 0.0], [f32::NAN, 1.0]), Verdict::Wrong);
        assert_eq!(vectors(&[], &want).verdict, Verdict::Wrong);
    }

    #[test]
    fn memory_above_the_estimate_is_wrong_and_below_it_near() {
        let verdict = |taken_mib: u64| {
            let (estimate, taken) = (Some(1000 << 20), Some(taken_mib << 20));
            memory(&Opened { estimate, taken, ..Opened::default() }).map(|c| c.verdict)
        };
        assert_eq!(verdict(1050), Some(Verdict::Right));
        assert_eq!(verdict(1300), Some(Verdict::Near));
        assert_eq!(verdict(1500), Some(Verdict::Wrong));
        assert_eq!(verdict(100), Some(Verdict::Near));
        assert_eq!(memory(&Opened::default()), None);
    }

    #[test]
    fn the_worst_kernel_is_named() {
        let one = |kernel: &str, verdict| KernelResult { kernel: kernel.into(), verdict };
        let mut all =
            vec![one("a", KernelVerdict::Right), one("b", KernelVerdict::Near("off".into()))];
        let said = kernels("kernels", &all);
        assert_eq!(
            (said.verdict, said.said.as_str()),
            (Verdict::Near, "1 of 2 right; near: b: off")
        );
        all.push(one("c", KernelVerdict::Wrong("far".into())));
        all.push(one("d", KernelVerdict::NotRun("no room".into())));
        let said = kernels("kernels", &all);
        assert_eq!((said.verdict, said.said.as_str()), (Verdict::Wrong, "1 of 4 right; c: far"));
        assert_eq!(kernels("kernels", &[]).verdict, Verdict::Refused);
    }
}
