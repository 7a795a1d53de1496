//! Drafted tokens on a simulated AMD device: several tokens of one sequence are computed by a
//! special program. It chooses the same tokens as single steps, for any draft.

use crate::common::{TEMPORARY, WORKER};
use kjit_engine::Engine;
use kjit_model::gguf::Gguf;
use kjit_model::prompt_lookup;
use kjit_model::sample::SampleOptions;
use kjit_model::session::{
    DecodeControl, OpenOptions, SequenceId, Session, StepOutput, Want, Work,
};
use kjit_tests::files::model_path;
use kjit_tests::paged::PAGE;
use kjit_tests::side_by_side::gap;
use kjit_tests::simulator::{Setup, Simulated, cache, engine};
use kjit_tests::solo_session::SoloSession;
use std::sync::Arc;

const ARCH: &str = "gfx1100";

/// Options with or without pages. The context is large enough for a prompt that ends before the
/// first page does, and for the tokens after it.
fn options(paged: bool) -> OpenOptions {
    let paged = paged.then_some(3 * PAGE);
    OpenOptions {
        prefill_chunk: Some(16),
        threads: 2,
        drafts: true,
        sequences: 2,
        paged,
        ..OpenOptions::new(160)
    }
}

fn open(engine: &Engine, gguf: &Arc<Gguf>, paged: bool) -> Session {
    let graph = kjit_model::arch::build(gguf).unwrap();
    let device = engine.device("rocm:0").unwrap();
    let session = Session::on_gpu(engine, &device, gguf, graph, &options(paged)).unwrap();
    assert!(session.gpu().unwrap().plan().drafts.is_some());
    session
}

fn prompt(paged: bool) -> Vec<u32> {
    let first = if paged { 0 } else { PAGE as u32 - 28 };
    (first..PAGE as u32 - 7).map(|i| (i * i * 7 + i * 37 + 5) % 250).collect()
}

/// Adds a sequence that begins like `base`. Returns it and its last token.
fn like(session: &mut Session, base: &(SequenceId, u32), how: &SampleOptions) -> SequenceId {
    session.fork(base.0, usize::MAX, how.clone()).unwrap()
}

/// Chooses as many tokens as `plain` has, with at most `most` drafted at once. A draft is the next
/// part of `plain`, except that every third draft has a different token at index `wrong`. Returns
/// the tokens and the number of steps.
fn drafted(
    session: &mut Session,
    base: &(SequenceId, u32),
    how: &SampleOptions,
    plain: &[u32],
    most: usize,
    wrong: usize,
) -> (Vec<u32>, usize) {
    let id = like(session, base, how);
    let mut chosen = vec![];
    let mut tokens = vec![base.1];
    let mut steps = 0;
    while chosen.len() < plain.len() {
        let at = chosen.len();
        let mut draft: Vec<u32> =
            plain.iter().skip(at).take(if at == 0 { 0 } else { most }).copied().collect();
        if let Some(one) = draft.get_mut(wrong).filter(|_| steps % 3 == 2) {
            *one = (*one + 1) % 250;
        }
        tokens.extend(&draft);
        let before = session.len(id).unwrap() + tokens.len() - draft.len();
        let work = Work { sequence: id, tokens: &tokens, want: Want::Drafted(draft.len()) };
        let Some(StepOutput::Tokens(ids)) = session.step(&[work]).unwrap().pop() else {
            panic!("no tokens")
        };
        assert_eq!(session.len(id).unwrap(), before + ids.len() - 1);
        chosen.extend(&ids);
        tokens = vec![*ids.last().unwrap()];
        steps += 1;
    }
    chosen.truncate(plain.len());
    session.remove(id).unwrap();
    (chosen, steps)
}

fn plain(
    session: &mut Session,
    base: &(SequenceId, u32),
    how: &SampleOptions,
    n: usize,
) -> Vec<u32> {
    let id = like(session, base, how);
    let mut chosen = vec![];
    let mut sink = |_: SequenceId, token| {
        chosen.push(token);
        if chosen.len() < n { DecodeControl::Go } else { DecodeControl::End }
    };
    session.decode(&[(id, &[base.1])], &mut sink).unwrap();
    session.remove(id).unwrap();
    chosen
}

#[test]
fn drafts_on_simulated_gfx1100_change_no_token() {
    let Some(path) = model_path("tiny/tiny-llama-q4_k_m.gguf") else { return };
    let setup = Setup::devices(ARCH).set("HIPSIM_CLANG", "none").set("HIPSIM_OPTIMISE", "-Og");
    setup.run("simulated_drafts::drafts_on_simulated_gfx1100_change_no_token", TEMPORARY, || {
        let gguf = Arc::new(Gguf::open(&path).unwrap());
        let graph = kjit_model::arch::build(&gguf).unwrap();
        let mut host = SoloSession::cpu(
            &gguf,
            &graph,
            &OpenOptions { precise: true, paged: None, ..options(false) },
        );
        let engine = engine(&cache(TEMPORARY).join("none"), WORKER, "hiprtc");
        let before = Simulated::here().alive();
        let greedy = SampleOptions::default();
        let drawn =
            SampleOptions { temperature: 0.8, top_k: 40, seed: 7, ..SampleOptions::default() };
        for (paged, how) in [(false, greedy), (true, drawn)] {
            let mut session = open(&engine, &gguf, paged);
            // The prefix is shared: drafts write to the second slot, and to a copy of a page.
            let (prompt, first) = (prompt(paged), session.add(SampleOptions::default()).unwrap());
            let base = (first, *prompt.last().unwrap());
            session.feed(first, &prompt[..prompt.len() - 1], Want::Nothing).unwrap();
            let n = 16;
            let without = plain(&mut session, &base, &how, n);
            if !paged {
                let gap = gap(&mut host, &[&prompt[..], &without].concat(), prompt.len());
                assert!(gap < 0.05, "a token is {gap} below the host's choice");
            }
            for (most, wrong) in [(7, 3), (2, 0)] {
                let (with, steps) = drafted(&mut session, &base, &how, &without, most, wrong);
                assert_eq!(with, without, "{how:?}, {most} drafted, {wrong} wrong");
                assert!(steps < n, "{steps} steps");
                let pages = session.pages().map(|p| (p.used, p.shared));
                assert_eq!(pages, paged.then_some((1, 0)), "what was taken is given back");
            }
            // The other sequence's tokens are unchanged.
            assert_eq!(plain(&mut session, &base, &how, n), without);
            if paged {
                session.remove(first).unwrap();
                goes_round(&mut session);
            }
        }
        assert_eq!(Simulated::here().fault(0), "");
        assert_eq!(
            Simulated::here().alive().bytes,
            before.bytes,
            "memory of the device is given back"
        );
    });
}

/// Drafts as in the loop of the `run` command: the text repeats.
fn goes_round(session: &mut Session) {
    let round: Vec<u32> = (0..16).map(|i| [5, 60, 7, 80][i % 4]).collect();
    let how = SampleOptions { bias: vec![(7, 1e4)], ..SampleOptions::default() };
    for how in [SampleOptions::default(), how] {
        let mut ids = [vec![], vec![]];
        let id = session.add(how.clone()).unwrap();
        session.decode(&[(id, &round)], &mut |_, id| push(&mut ids[0], id)).unwrap();
        session.remove(id).unwrap();
        let id = session.add(how.clone()).unwrap();
        let drafts =
            prompt_lookup::decode(session, id, round.clone(), 16, &mut |id| push(&mut ids[1], id))
                .unwrap();
        session.remove(id).unwrap();
        assert_eq!(ids[0], ids[1], "{drafts:?}");
        // With the simulator's clock drafts may seem too slow to be worth it. Those that were tried
        // were accepted.
        assert!(how.bias.is_empty() || drafts.accepted >= 7, "{drafts:?}");
    }
}

fn push(ids: &mut Vec<u32>, id: u32) -> DecodeControl {
    ids.push(id);
    if ids.len() < 20 { DecodeControl::Go } else { DecodeControl::End }
}
