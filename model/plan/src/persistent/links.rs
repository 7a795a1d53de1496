//! The values that steps pass as packets, and the barriers that packets replace.

use super::{Instruction, Number};
use crate::Bind;
use crate::arena::ALIGN;
use kjit_kernels::spec::Spec;
use kjit_kernels::step::{Step, packets};

/// The five instructions of a mixture, as the index of the first: the producer of its input, the
/// scores, the choice, the experts' first and second matrices.
#[derive(Clone, Copy)]
pub(super) struct Mixture(usize);

/// The mixtures of a program. `None` if a choice or a product of experts cannot get all its inputs
/// as packets.
pub(super) fn chosen(
    instructions: &[Instruction],
    steps: &[Step],
    specs: &[Spec],
    kept: &[Bind],
) -> Option<Vec<Mixture>> {
    let spec = |n: usize| instructions.get(n).and_then(|i| specs.get(i.step as usize));
    let step = |n: usize| instructions.get(n).and_then(|i| steps.get(i.step as usize));
    let arg = |n: usize, name: &str| instructions.get(n).and_then(|i| argument(specs, i, name));
    // Whether only `readers` read result `made` of an instruction.
    let only = |from: usize, made: &str, readers: &[(usize, &str)]| {
        let bind = arg(from, made).filter(|b| matches!(b, Bind::Buffer(_)) && !kept.contains(b));
        let Some(bind) = bind else { return false };
        let reads = |n: usize| readers.iter().any(|r| r.0 == n);
        let mut others = instructions.iter().enumerate().filter(|(n, _)| *n != from && !reads(*n));
        readers.iter().all(|&(n, read)| arg(n, read) == Some(bind))
            && others.all(|(_, i)| !i.args.contains(&Number::Bind(bind)))
    };
    let fits = |first: usize| -> Option<bool> {
        let [scores, choice, up, down] = [1, 2, 3, 4].map(|n| first + n);
        let (made, cols) = step(first)?.hands?;
        let inner = step(up)?.hands?.1;
        let alike = arg(scores, "x") == arg(first, made)
            && arg(up, "x") == arg(first, made)
            && arg(up, "aux") == arg(scores, "aux")
            && step(first)?.hands_values == Some(cols)
            && step(scores)?.takes_values == Some(cols)
            && step(scores)?.hands_values == step(choice)?.takes_values
            && step(up)?.takes == Some(cols)
            && step(down)?.takes == Some(inner);
        let buffer = matches!(arg(first, made), Some(Bind::Buffer(_)));
        Some(
            alike
                && buffer
                && matches!((spec(first)?, spec(scores)?), (Spec::Matvec(_), Spec::Matvec(_)))
                && matches!((spec(up)?, spec(down)?), (Spec::Experts(_), Spec::Experts(_)))
                && only(scores, "y0", &[(choice, "scores")])
                && only(choice, "experts", &[(up, "chosen"), (down, "chosen")])
                && only(choice, "shares", &[(down, "shares")])
                && only(up, "y", &[(down, "x")]),
        )
    };
    let mut found = vec![];
    for (n, i) in instructions.iter().enumerate() {
        match specs.get(i.step as usize)? {
            Spec::Route(_) => {
                let first = n.checked_sub(2).filter(|&first| fits(first) == Some(true))?;
                found.push(Mixture(first));
            }
            Spec::Experts(_) => {
                found.last().filter(|m| n == m.0 + 3 || n == m.0 + 4).map(|_| ())?
            }
            _ => {}
        }
    }
    Some(found)
}

/// Assigns packets to values that are passed on, and returns the bytes of the packets. `None` if a
/// mixture's values cannot be passed as packets.
pub(super) fn link(
    instructions: &mut [Instruction],
    steps: &[Step],
    specs: &[Spec],
    kept: &[Bind],
    mixtures: &[Mixture],
) -> Option<u64> {
    let found = linked(instructions, steps, specs, kept, mixtures)?;
    let mut bytes = 0;
    let mut room = |size: usize| {
        let at = bytes;
        bytes += (size as u64).next_multiple_of(ALIGN);
        at
    };
    let step = |i: &Instruction| steps.get(i.step as usize);
    for &n in &found {
        let Some([from, to]) = instructions.get_mut(n - 1..=n) else { continue };
        from.meets = false;
        // In a mixture, scores go to the choice, and values go to the scores. The step after the
        // choice gets no packets, because each block chooses.
        let of = mixtures.iter().map(|m| n.wrapping_sub(m.0)).find(|at| (1..=3).contains(at));
        if of == Some(3) {
            continue;
        }
        if of.is_some() || step(to).is_some_and(|s| s.takes_values.is_some()) {
            let at =
                room(packets::values_bytes(step(from).and_then(|s| s.hands_values).unwrap_or(0)));
            (from.values, to.takes) = (Some(at), Some(at));
            continue;
        }
        let at = room(packets::bytes(step(from).and_then(|s| s.hands).map_or(0, |h| h.1)));
        (from.hands, to.takes) =
            (Some((at, argument(specs, to, "aux").unwrap_or(Bind::Null))), Some(at));
    }
    for Mixture(first) in mixtures {
        let Some([from, _, _, up, ..]) = instructions.get_mut(*first..) else { continue };
        let at = room(packets::bytes(step(from).and_then(|s| s.hands).map_or(0, |h| h.1)));
        (from.hands, up.takes) =
            (Some((at, argument(specs, up, "aux").unwrap_or(Bind::Null))), Some(at));
    }
    unstore(instructions, specs, kept);
    Some(bytes)
}

/// Removes the stores of values that only packets carry. Their memory may already contain a
/// different value.
fn unstore(instructions: &mut [Instruction], specs: &[Spec], kept: &[Bind]) {
    const RESULTS: [&str; 4] = ["y0", "y1", "y2", "y"];
    // The inputs that steps read from memory.
    let mut read: Vec<Bind> = kept.to_vec();
    for i in instructions.iter() {
        let Some(spec) = specs.get(i.step as usize) else { continue };
        for (d, number) in spec.arguments().iter().zip(&i.args) {
            let handed: &[&str] = match spec {
                Spec::Attend(_) => &["q", "k", "v"],
                Spec::Route(_) => &["scores"],
                _ => &["x"],
            };
            if let (Number::Bind(bind), false) =
                (number, i.takes.is_some() && handed.contains(&d.name))
                && !RESULTS.contains(&d.name)
            {
                read.push(*bind);
            }
        }
    }
    for i in instructions.iter_mut() {
        let Some(spec) = specs.get(i.step as usize) else { continue };
        if i.meets || matches!(spec, Spec::Attend(_)) {
            continue;
        }
        for (d, number) in spec.arguments().iter().zip(&mut i.args) {
            if let Number::Bind(bind @ Bind::Buffer(_)) = number
                && RESULTS.contains(&d.name)
                && !read.contains(bind)
            {
                *number = Number::Bind(Bind::Null);
            }
        }
    }
}

/// The argument with this name.
fn argument(specs: &[Spec], i: &Instruction, name: &str) -> Option<Bind> {
    let at = specs.get(i.step as usize)?.arguments().iter().position(|d| d.name == name)?;
    i.args
        .get(at)
        .and_then(|number| if let Number::Bind(bind) = number { Some(*bind) } else { None })
}

/// The instructions that read the packets of the previous instruction and need no other result of
/// it.
fn linked(
    instructions: &[Instruction],
    steps: &[Step],
    specs: &[Spec],
    kept: &[Bind],
    mixtures: &[Mixture],
) -> Option<Vec<usize>> {
    let step = |n: usize| instructions.get(n).and_then(|i| steps.get(i.step as usize));
    let arg = |n: usize, name: &str| instructions.get(n).and_then(|i| argument(specs, i, name));
    let hands = |n: usize| step(n).and_then(|s| s.hands);
    // Whether a buffer is used only as this argument of a step and as that result of the previous
    // step.
    let alone = |n: usize, (mine, made): (&str, &str)| {
        let mut others = instructions.iter().enumerate().filter(|(m, _)| *m != n && m + 1 != n);
        arg(n, mine).is_some_and(|bind| {
            matches!(bind, Bind::Buffer(_))
                && arg(n - 1, made) == Some(bind)
                && !kept.contains(&bind)
                && others.all(|(_, i)| !i.args.contains(&Number::Bind(bind)))
        })
    };
    // A block that has its heads computes attention and writes results while other blocks still
    // read the projection's input. That input must not be overwritten until all blocks have
    // continued, so it needs a reader after attention. A residual is such a reader. The result of a
    // separate norm has none.
    let heads = |n: usize| {
        let attends = instructions.get(n).and_then(|i| specs.get(i.step as usize));
        let all = step(n)
            .and_then(|s| s.takes_values)
            .filter(|_| matches!(attends, Some(Spec::Attend(_))));
        let stays = arg(n - 1, "x").is_some_and(|x| {
            instructions
                .get(n..)
                .is_some_and(|behind| behind.iter().any(|i| i.args.contains(&Number::Bind(x))))
        });
        all.is_some()
            && step(n - 1).and_then(|s| s.hands_values) == all
            && stays
            && [("q", "y0"), ("k", "y1"), ("v", "y2")].into_iter().all(|pair| alone(n, pair))
    };
    let mut found: Vec<usize> = (1..instructions.len())
        .filter(|&n| {
            if heads(n) || mixtures.iter().any(|m| (m.0 + 1..=m.0 + 4).contains(&n)) {
                return true;
            }
            let values = hands(n - 1).filter(|h| step(n).and_then(|s| s.takes) == Some(h.1));
            values.is_some_and(|(name, _)| match name {
                // Attention's results are not stored if they are passed as packets.
                "out" => alone(n, ("x", name)),
                _ => {
                    matches!(arg(n, "x"), Some(Bind::Buffer(_))) && arg(n - 1, name) == arg(n, "x")
                }
            })
        })
        .collect();
    // A residual must be from a step before a grid barrier, or from the same block and rows: rows
    // of vectors that are passed as packets always have the same distribution over blocks.
    let writes = |n: usize, b: Bind| {
        ["y0", "y1", "y2", "y", "out"].iter().any(|name| arg(n, name) == Some(b))
    };
    let rows = |n: usize, found: &[usize]| {
        // Results of experts have the same distribution for any reader. Scores do not.
        let experts = mixtures.iter().any(|m| n == m.0 + 4);
        let packets = found.contains(&(n + 1)) && !mixtures.iter().any(|m| n == m.0 + 1);
        let dealt = (packets || experts) && step(n).is_some_and(|s| s.of_all_blocks);
        if dealt { hands(n).map(|h| h.1) } else { None }
    };
    let fits = |n: usize, found: &[usize]| match arg(n, "residual") {
        None | Some(Bind::Null) => true,
        Some(residual) => (0..n).rev().find(|&w| writes(w, residual)).is_some_and(|w| {
            let met = (w + 1..=n).any(|m| !found.contains(&m));
            met || rows(w, found).is_some_and(|r| rows(n, found) == Some(r))
        }),
    };
    // Each removal adds one grid barrier and removes one vector of packets.
    while let Some(at) = found.iter().position(|&n| !fits(n, &found)) {
        let n = found.remove(at);
        if mixtures.iter().any(|m| (m.0 + 1..=m.0 + 4).contains(&n)) {
            return None;
        }
    }
    Some(found)
}
