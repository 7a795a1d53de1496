//! Tests sessions of several sequences on the CPU. The logits and tokens of each sequence equal
//! those of the sequence alone.

use crate::it::support::files::{model_path, tiny_models};
use crate::it::support::near::off;
use crate::it::support::reproducible::Text;
use crate::it::support::side_by_side;
use crate::it::support::solo_session::SoloSession;
use kjit_model::gguf::Gguf;
use kjit_model::host::Isa;
use kjit_model::sample::{SampleOptions, Sampler};
use kjit_model::session::{KvType, OpenOptions, Session, SessionError, Want};
use std::path::Path;
use std::sync::Arc;

fn options(precise: bool, sequences: usize) -> OpenOptions {
    OpenOptions { threads: 2, precise, sequences, prefill_chunk: Some(6), ..OpenOptions::new(24) }
}

#[test]
fn batched_sequences_on_cpu_match_single_ones() {
    for path in tiny_models() {
        let gguf = Arc::new(Gguf::open(&path).unwrap());
        let Ok(graph) = kjit_model::arch::build(&gguf) else { continue };
        let name = path.display();
        for precise in [true, false] {
            let mut alone = SoloSession::cpu(&gguf, &graph, &options(precise, 1));
            let mut session =
                Session::on_cpu(Arc::clone(&gguf), graph.clone(), &options(precise, 9)).unwrap();
            // Few rows and many rows use different kernels. With `precise` only the order of sums
            // differs. By default, fewer than eight rows are rounded to 16 bits, and a near-tie may
            // change the choice of an expert.
            let routes = graph.ops.iter().any(|op| format!("{op:?}").starts_with("Route"));
            let most = if precise {
                1e-4
            } else if routes {
                5e-2
            } else {
                2e-3
            };
            for n in [1, 3, 9] {
                let seen = side_by_side::scores(&mut session, &mut alone, n);
                let worst = seen.iter().copied().fold(0.0, f64::max);
                assert!(worst < most, "{name}, precise {precise}, {n} sequences: {seen:?}");
            }
            let seen = side_by_side::mixed(&mut session, &mut alone);
            assert!(seen.iter().all(|x| *x < most), "{name}, precise {precise}: {seen:?}");
            if precise {
                assert!(side_by_side::answers(&mut session, &mut alone, 4, 4) < 1e-2, "{name}");
                assert!(side_by_side::joining(&mut session, &mut alone, 3) < 1e-2, "{name}");
                side_by_side::options(&mut session, 6, true);
                side_by_side::limits(&mut session);
                let first = side_by_side::draws(&mut session, [7, 8], 7);
                assert_eq!(first, side_by_side::draws(&mut session, [7, 8], 7), "{name}");
                let other = side_by_side::draws(&mut session, [9, 8], 7);
                assert!(
                    first[0] != other[0] && first[1..] == other[1..],
                    "{name}: {first:?} {other:?}"
                );
            }
        }
    }
}

/// Opens a reproducible session with these threads.
fn reproducible(
    path: &Path,
    isa: Isa,
    (threads, chunk): (usize, usize),
    with: &OpenOptions,
) -> Session {
    let gguf = Arc::new(Gguf::open(path).unwrap());
    let graph = kjit_model::arch::build(&gguf).unwrap();
    let options =
        OpenOptions { threads, prefill_chunk: Some(chunk), reproducible: true, ..with.clone() };
    Session::on_cpu_with(gguf, graph, &options, isa).unwrap()
}

#[test]
fn reproducible_cpu_scores_are_independent_of_batching() {
    for path in tiny_models() {
        let llama = path.ends_with("tiny-llama-q4_k_m.gguf");
        for isa in if llama { Isa::available() } else { vec![Isa::best()] } {
            // A block of attention has 128 positions.
            let whole = llama && isa == Isa::best();
            let (tokens, most) = if whole { (140, 64) } else { (30, 9) };
            let options = OpenOptions { sequences: most, ..OpenOptions::new(200) };
            let mut session = reproducible(&path, isa, (2, 512), &options);
            let text = Text::new(&mut session, tokens);
            text.in_pieces(&mut session, &[tokens, 7]);
            [2, 9, 33, 64]
                .into_iter()
                .filter(|n| *n <= most)
                .for_each(|n| text.side_by_side(&mut session, n));
            text.forked(&mut session, &[1, tokens / 2]);
            let greedy = Text::greedy(&mut session, 20, 40);
            greedy.drafted(&mut session, 20, &[1, 8]);
            // The number of threads and the pieces of a pass are different.
            let mut other = reproducible(&path, isa, (3, 48), &options);
            text.in_pieces(&mut other, &[tokens]);
        }
    }
}

#[test]
fn reproducible_cpu_layer_kinds_are_independent_of_batching() {
    let tokens = 70;
    for arch in REPRODUCIBLE {
        let Some(path) = crate::it::support::files::model_path(&format!("archs/{arch}.gguf"))
        else {
            return;
        };
        for precise in [false, true] {
            let kv = if precise { KvType::F16 } else { KvType::Q8_0 };
            let options = OpenOptions { sequences: 9, precise, kv, ..OpenOptions::new(100) };
            let mut session = reproducible(&path, Isa::best(), (3, 24), &options);
            let text = Text::new(&mut session, tokens);
            text.in_pieces(&mut session, &[70, 16, 9]);
            [2, 9].into_iter().for_each(|n| text.side_by_side(&mut session, n));
            text.forked(&mut session, &[5, 40]);
        }
    }
}

/// Models with windows, chunks and sinks, latents with all and with chosen keys, experts, scans,
/// linear attention, shared keys.
const REPRODUCIBLE: &[&str] = &[
    "deepseek2-lite",
    "deepseek32",
    "falcon-h1",
    "gemma2",
    "gemma3n",
    "gpt-oss-mxfp4",
    "jamba",
    "kimi-linear",
    "lfm2",
    "llama4",
    "mamba2",
    "mpt",
    "qwen3moe-q4_k_m",
    "qwen3next",
    "rwkv7",
];

#[test]
fn fork_shares_prefix_and_then_diverges() {
    let tokens: Vec<u32> = (0..70).map(|i| (i * i * 7 + 11) % 200).collect();
    for path in tiny_models() {
        let gguf = Arc::new(Gguf::open(&path).unwrap());
        let Ok(graph) = kjit_model::arch::build(&gguf) else { continue };
        for kv in [KvType::F16, KvType::Q8_0] {
            let options = OpenOptions {
                threads: 2,
                precise: kv == KvType::F16,
                kv,
                sequences: 2,
                ..OpenOptions::new(80)
            };
            let mut session = Session::on_cpu(Arc::clone(&gguf), graph.clone(), &options).unwrap();
            let a = session.add(SampleOptions::default()).unwrap();
            session.feed(a, &tokens[..60], Want::Nothing).unwrap();
            let b = session.fork(a, 45, SampleOptions::default()).unwrap();
            assert!(matches!(
                session.fork(a, 1, SampleOptions::default()),
                Err(SessionError::Full { .. })
            ));
            let at = session.len(b).unwrap();
            assert!(at == 45 || graph.is_recurrent() && at < 45, "{}: {at}", path.display());
            let forked = session.feed(b, &tokens[at..70], Want::Last).unwrap();
            // The original sequence is unchanged.
            let other = session.feed(a, &tokens[60..70], Want::Last).unwrap();
            session.remove(b).unwrap();
            let c = session.add(SampleOptions::default()).unwrap();
            session.feed(c, &tokens[..at], Want::Nothing).unwrap();
            let fresh = session.feed(c, &tokens[at..70], Want::Last).unwrap();
            // Other pieces have another order of sums. Without `precise` they are also rounded
            // differently.
            let most = if kv == KvType::F16 { 1e-4 } else { 5e-2 };
            assert!(off(&forked, &fresh) < most, "{}: {}", path.display(), off(&forked, &fresh));
            assert!(off(&other, &fresh) < most, "{}: {}", path.display(), off(&other, &fresh));
        }
    }
}

#[test]
fn fork_of_recurrent_state_replays_from_last_copy() {
    let Some(path) = crate::it::support::files::model_path("archs/mamba.gguf") else { return };
    let gguf = Arc::new(Gguf::open(&path).unwrap());
    let graph = kjit_model::arch::build(&gguf).unwrap();
    let (first, tokens) =
        (graph.ops[0].writes()[0], (0..400).map(|i| (i * i * 7 + 11) % 200).collect::<Vec<u32>>());
    let name = graph.value(first).name.clone();
    let options = OpenOptions { threads: 2, precise: true, sequences: 2, ..OpenOptions::new(410) };
    let mut session = Session::on_cpu(gguf, graph, &options).unwrap();
    // Each piece stores a copy of the state; four are left at the end.
    let run = |session: &mut Session, copy: bool| {
        let a = session.add(SampleOptions::default()).unwrap();
        for (i, piece) in tokens.chunks(25).enumerate() {
            session.feed(a, piece, Want::Nothing).unwrap();
            assert!(i != 3 || !copy || session.checkpoint(a).unwrap());
        }
        assert!(session.cpu_mut().unwrap().tap(&name));
        let b = session.fork(a, 103, SampleOptions::default()).unwrap();
        let tap = session.cpu().unwrap().tapped(&name).unwrap();
        let again = tap.data.len() / tap.width;
        let row = session.feed(b, &tokens[103..120], Want::Last).unwrap();
        session.remove(a).unwrap();
        session.remove(b).unwrap();
        (again, row)
    };
    let (without, want) = run(&mut session, false);
    let (with, got) = run(&mut session, true);
    assert_eq!((without, with), (103, 3));
    assert!(off(&want, &got) < 1e-4, "{}", off(&want, &got));
}

#[test]
fn sequence_of_other_session_is_refused() {
    let Some(path) = tiny_models().into_iter().next() else { return };
    let gguf = Arc::new(Gguf::open(&path).unwrap());
    let graph = kjit_model::arch::build(&gguf).unwrap();
    let (one, other) = (
        SoloSession::cpu(&gguf, &graph, &options(false, 1)),
        SoloSession::cpu(&gguf, &graph, &options(false, 1)),
    );
    assert!(matches!(one.session.len(other.id), Err(SessionError::NoSequence)));
}

/// The scores of a text computed in one pass differ in their last digits from scores computed token
/// by token, as with a cached prefix. Therefore fewer than 1 in 1000 draws may choose another
/// token.
#[test]
fn seed_draws_equal_tokens_for_split_prompts() {
    let Some(path) = model_path("SmolLM2-135M-Instruct.Q4_1.gguf") else { return };
    let gguf = Arc::new(Gguf::open(&path).unwrap());
    let graph = kjit_model::arch::build(&gguf).unwrap();
    let options = OpenOptions { threads: 2, sequences: 2, ..OpenOptions::new(24) };
    let mut session = Session::on_cpu(Arc::clone(&gguf), graph, &options).unwrap();
    let [whole, pieces] = [(); 2].map(|()| session.add(SampleOptions::default()).unwrap());
    let text = [504, 3575, 282, 4649, 314, 260, 550, 282, 504, 1109];
    let once = session.feed(whole, &text, Want::All).unwrap();
    let n_vocab = session.n_vocab();
    let (mut differ, mut draws, mut moved) = (0, 0, 0);
    for (i, (token, row)) in text.iter().zip(once.chunks_exact(n_vocab)).enumerate() {
        let other = session.feed(pieces, &[*token], Want::Last).unwrap();
        moved += usize::from(row != &other[..]);
        for seed in 0..200 {
            let mut sampler =
                Sampler::new(SampleOptions { temperature: 1.0, seed, ..SampleOptions::default() });
            let (one, two) = (
                sampler.sample(i + 1, &mut row.to_vec()),
                sampler.sample(i + 1, &mut other.clone()),
            );
            differ += usize::from(one != two);
            draws += 1;
        }
    }
    assert!(moved > 5, "both ways compute bit-for-bit equal results: this test has no effect");
    // One or two of 2000 are expected.
    assert!(differ <= 4, "{differ} of {draws}");
}
