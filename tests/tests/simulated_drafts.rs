//! Drafted tokens on a simulated AMD device: a few of one sequence go through a program of their own, which
//! chooses what tokens one by one would, whatever is drafted.

use kjit_engine::Engine;
use kjit_model::gguf::Gguf;
use kjit_model::lookup;
use kjit_model::sample::SampleOptions;
use kjit_model::session::{After, Given, OpenOptions, SequenceId, Session, Want, Work};
use kjit_tests::files::model_path;
use kjit_tests::one::One;
use kjit_tests::side_by_side::gap;
use kjit_tests::simulator::{Setup, Simulated, cache, engine};
use std::sync::Arc;

const WORKER: &str = env!("CARGO_BIN_EXE_kjit-tests-cc");
const TEMPORARY: &str = env!("CARGO_TARGET_TMPDIR");
const ARCH: &str = "gfx1100";

fn options(sequences: usize) -> OpenOptions {
    OpenOptions { prefill_chunk: Some(16), threads: 2, drafts: true, sequences, ..OpenOptions::new(64) }
}

fn open(engine: &Engine, gguf: &Arc<Gguf>, sequences: usize) -> Session {
    let graph = kjit_model::arch::build(gguf).unwrap();
    let device = engine.device("rocm:0").unwrap();
    let session = Session::on_gpu(engine, &device, gguf, graph, &options(sequences)).unwrap();
    assert!(session.gpu().unwrap().plan().drafts.is_some());
    session
}

fn prompt() -> Vec<u32> {
    (0..21).map(|i| (i * i * 7 + i * 37 + 5) % 250).collect()
}

/// The prompt's first tokens are fed, then so many tokens are chosen, `most` drafted at once. A draft is what comes
/// without, but for each third one, whose token at place `wrong` is another.
fn drafted(session: &mut Session, how: &SampleOptions, plain: &[u32], most: usize, wrong: usize) -> (Vec<u32>, usize) {
    let id = session.add(how.clone()).unwrap();
    let text = prompt();
    let mut chosen = vec![];
    let mut tokens = text.clone();
    let mut steps = 0;
    while chosen.len() < plain.len() {
        let at = chosen.len();
        let mut draft: Vec<u32> = plain.iter().skip(at).take(if at == 0 { 0 } else { most }).copied().collect();
        if let Some(one) = draft.get_mut(wrong).filter(|_| steps % 3 == 2) {
            *one = (*one + 1) % 250;
        }
        tokens.extend(&draft);
        let before = session.len(id).unwrap() + tokens.len() - draft.len();
        let work = Work { sequence: id, tokens: &tokens, want: Want::Drafted(draft.len()) };
        let Some(Given::Tokens(ids)) = session.step(&[work]).unwrap().pop() else { panic!("no tokens") };
        assert_eq!(session.len(id).unwrap(), before + ids.len() - 1);
        chosen.extend(&ids);
        tokens = vec![*ids.last().unwrap()];
        steps += 1;
    }
    chosen.truncate(plain.len());
    session.remove(id).unwrap();
    (chosen, steps)
}

fn plain(session: &mut Session, how: &SampleOptions, n: usize) -> Vec<u32> {
    let id = session.add(how.clone()).unwrap();
    let mut chosen = vec![];
    let mut sink = |_: SequenceId, token| {
        chosen.push(token);
        if chosen.len() < n { After::Go } else { After::End }
    };
    session.decode(&[(id, &prompt())], &mut sink).unwrap();
    session.remove(id).unwrap();
    chosen
}

#[test]
fn what_is_drafted_on_simulated_gfx1100_changes_no_token() {
    let Some(path) = model_path("tiny/tiny-llama-q4_k_m.gguf") else { return };
    let setup = Setup::devices(ARCH).set("KJIT_HIPSIM_CLANG", "none").set("KJIT_HIPSIM_OPTIMISE", "-Og");
    setup.run("what_is_drafted_on_simulated_gfx1100_changes_no_token", TEMPORARY, || {
        let gguf = Arc::new(Gguf::open(&path).unwrap());
        let graph = kjit_model::arch::build(&gguf).unwrap();
        let mut host = One::cpu(&gguf, &graph, &OpenOptions { precise: true, ..options(1) });
        let engine = engine(&cache(TEMPORARY).join("none"), WORKER, "hiprtc");
        let before = Simulated::here().alive();
        let mut session = open(&engine, &gguf, 2);
        // What is drafted is in the second slot.
        let other = session.add(SampleOptions::default()).unwrap();
        session.feed(other, &[1, 2, 3], Want::Last).unwrap();
        let greedy = SampleOptions::default();
        let drawn = SampleOptions { temperature: 0.8, top_k: 40, seed: 7, ..SampleOptions::default() };
        for (name, how) in [("greedy", greedy), ("drawn", drawn)] {
            let n = 16;
            let without = plain(&mut session, &how, n);
            if name == "greedy" {
                let gap = gap(&mut host, &[&prompt()[..], &without].concat(), prompt().len());
                assert!(gap < 0.05, "a token is {gap} below the host's choice");
            }
            for (most, wrong) in [(7, 3), (2, 0)] {
                let (with, steps) = drafted(&mut session, &how, &without, most, wrong);
                assert_eq!(with, without, "{name}, {most} drafted, {wrong} wrong");
                assert!(steps < n, "{steps} steps");
            }
        }
        // The loop that `run` has: its text goes round.
        let round: Vec<u32> = (0..16).map(|i| [5, 60, 7, 80][i % 4]).collect();
        let how = SampleOptions { bias: vec![(7, 1e4)], ..SampleOptions::default() };
        for how in [SampleOptions::default(), how] {
            let mut ids = [vec![], vec![]];
            let id = session.add(how.clone()).unwrap();
            session.decode(&[(id, &round)], &mut |_, id| push(&mut ids[0], id)).unwrap();
            session.remove(id).unwrap();
            let id = session.add(how.clone()).unwrap();
            let drafts = lookup::decode(&mut session, id, round.clone(), 16, &mut |id| push(&mut ids[1], id)).unwrap();
            session.remove(id).unwrap();
            assert_eq!(ids[0], ids[1], "{drafts:?}");
            // Whether they pay by the simulator's clock is open; what was tried was right.
            assert!(how.bias.is_empty() || drafts.accepted >= 7, "{drafts:?}");
        }
        // Nobody else's tokens were touched.
        let after = session.feed(other, &[4], Want::Last).unwrap();
        let again = session.add(SampleOptions::default()).unwrap();
        session.feed(again, &[1, 2, 3], Want::Last).unwrap();
        assert_eq!(after, session.feed(again, &[4], Want::Last).unwrap());
        drop(session);
        assert_eq!(Simulated::here().fault(0), "");
        assert_eq!(Simulated::here().alive().bytes, before.bytes, "memory of the device is given back");
    });
}

fn push(ids: &mut Vec<u32>, id: u32) -> After {
    ids.push(id);
    if ids.len() < 20 { After::Go } else { After::End }
}
