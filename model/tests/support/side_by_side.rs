//! Compares several sequences in one session with a single sequence on the CPU. For any device.

use super::near::off;
use super::solo_session::SoloSession;
use kjit_model::sample::{SampleOptions, TokenMask};
use kjit_model::session::{
    DecodeControl, SequenceId, Session, SessionError, StepOutput, Want, Work,
};

/// The tokens of this sequence: one to seven, so that sequences in adjacent slots have different
/// lengths.
fn sequence(number: usize, vocab: usize) -> Vec<u32> {
    (0..1 + number * 3 % 7).map(|i| ((number * 131 + i * 37 + 5) % vocab) as u32).collect()
}

fn greedy(session: &mut Session) -> Result<SequenceId, SessionError> {
    session.add(SampleOptions::default())
}

/// Adds `n` sequences in slots that are not in order. Some of the slots were used before.
fn occupy(session: &mut Session, n: usize) -> Vec<SequenceId> {
    let mut all: Vec<SequenceId> = std::iter::from_fn(|| greedy(session).ok()).collect();
    assert_eq!(all.len(), session.sequences(), "every slot was free");
    assert!(matches!(greedy(session), Err(SessionError::Full { .. })));
    for &id in all.iter().take(3) {
        session.feed(id, &[3, 1, 4], Want::Nothing).unwrap();
    }
    all.iter().for_each(|&id| session.remove(id).unwrap());
    assert!(
        matches!(session.len(all[0]), Err(SessionError::NoSequence)),
        "an id is not used twice"
    );
    all = all.iter().map(|_| greedy(session).unwrap()).collect();
    all.reverse();
    let rest = all.split_off(n);
    rest.into_iter().for_each(|id| session.remove(id).unwrap());
    all
}

fn release(session: &mut Session, all: &[SequenceId]) {
    all.iter().for_each(|&id| session.remove(id).unwrap());
    assert!(session.is_empty());
}

fn logits(given: StepOutput) -> Vec<f32> {
    match given {
        StepOutput::Logits(rows) => rows,
        other => panic!("expected logits, got {other:?}"),
    }
}

fn last<'a>(all: &[SequenceId], tokens: impl Fn(usize) -> &'a [u32]) -> Vec<Work<'a>> {
    let work = |(i, &sequence): (usize, &SequenceId)| Work {
        sequence,
        tokens: tokens(i),
        want: Want::Last,
    };
    all.iter().enumerate().map(work).collect()
}

/// Feeds `n` sequences of different lengths together, twice. Returns the distances of the logits
/// from the CPU's logits.
pub fn scores(session: &mut Session, host: &mut SoloSession, n: usize) -> Vec<f64> {
    let vocab = host.n_vocab();
    let ids = occupy(session, n);
    let all: Vec<Vec<u32>> = (0..n).map(|i| sequence(i, vocab)).collect();
    let mut offs = vec![];
    let rows = session.step(&last(&ids, |i| &all[i])).unwrap();
    let more = session.step(&last(&ids, |_| &[9])).unwrap();
    for (i, (rows, more)) in rows.into_iter().zip(more).enumerate() {
        host.truncate(0);
        offs.push(off(&logits(rows), &host.feed(&all[i], Want::Last).unwrap()));
        offs.push(off(&logits(more), &host.feed(&[9], Want::Last).unwrap()));
        assert_eq!(session.len(ids[i]).unwrap(), all[i].len() + 1);
    }
    release(session, &ids);
    offs
}

/// The largest gap along these tokens. The gap is how much less likely a token after the prompt is
/// than the choice of the CPU.
pub fn gap(host: &mut SoloSession, tokens: &[u32], prompt: usize) -> f32 {
    host.truncate(0);
    let mut logits = host.feed(&tokens[..prompt], Want::Last).unwrap();
    let mut worst = 0f32;
    for &id in &tokens[prompt..] {
        let best = logits.iter().copied().fold(f32::MIN, f32::max);
        worst = worst.max(best - logits[id as usize]);
        logits = host.feed(&[id], Want::Last).unwrap();
    }
    worst
}

/// Computes greedy answers of `n` sequences together. The first ends after one token, the second
/// after two, and all pause in between. Returns the largest [`gap`] along the device's own answers.
pub fn answers(session: &mut Session, host: &mut SoloSession, n: usize, tokens: usize) -> f32 {
    let vocab = host.n_vocab();
    let all = occupy(session, n);
    let mut ids: Vec<Vec<u32>> = (0..n).map(|i| sequence(i, vocab)).collect();
    let prompts: Vec<usize> = ids.iter().map(Vec::len).collect();
    // The device runs ahead; the sink determines the length of each answer.
    let wanted = |i: usize| if i < 2 && n > 2 { i + 1 } else { tokens };
    let mut paused = false;
    loop {
        let going: Vec<usize> = (0..n).filter(|&i| ids[i].len() < prompts[i] + wanted(i)).collect();
        if going.is_empty() {
            break;
        }
        let fed: Vec<Vec<u32>> =
            going.iter().map(|&i| ids[i][session.len(all[i]).unwrap()..].to_vec()).collect();
        let starts: Vec<(SequenceId, &[u32])> =
            going.iter().zip(&fed).map(|(&i, tokens)| (all[i], tokens.as_slice())).collect();
        let mut seen = 0;
        let stop = if paused { usize::MAX } else { n + n.div_ceil(2) };
        session
            .decode(&starts, &mut |id, token| {
                let i = all.iter().position(|&a| a == id).unwrap();
                ids[i].push(token);
                seen += 1;
                match ids[i].len() == prompts[i] + wanted(i) {
                    true => DecodeControl::End,
                    false if seen == stop => DecodeControl::Pause,
                    false => DecodeControl::Go,
                }
            })
            .unwrap();
        paused = true;
    }
    let mut worst = 0f32;
    for (i, tokens) in ids.iter().enumerate() {
        assert_eq!(tokens.len(), prompts[i] + wanted(i), "the answer of sequence {i}");
        assert_eq!(session.len(all[i]).unwrap(), tokens.len() - 1, "the last token is not fed");
        worst = worst.max(gap(host, tokens, prompts[i]));
    }
    release(session, &all);
    worst
}

/// Adds and removes sequences between steps. Tokens are chosen one step at a time. The prompt of a
/// new sequence is computed with the tokens of the others. Returns the largest [`gap`].
pub fn joining(session: &mut Session, host: &mut SoloSession, tokens: usize) -> f32 {
    let vocab = host.n_vocab();
    // Each sequence with its tokens and the length of its prompt.
    let mut here: Vec<(SequenceId, Vec<u32>, usize)> = vec![];
    let mut done: Vec<(Vec<u32>, usize)> = vec![];
    let mut next = 0;
    while done.len() < 5 {
        if next < 5 && here.len() < session.sequences() {
            let prompt = sequence(next + 2, vocab);
            here.push((greedy(session).unwrap(), prompt.clone(), prompt.len()));
            next += 1;
        }
        let fed: Vec<usize> = here.iter().map(|(id, ..)| session.len(*id).unwrap()).collect();
        let work: Vec<Work> = here
            .iter()
            .zip(fed)
            .map(|((id, ids, _), fed)| Work {
                sequence: *id,
                tokens: &ids[fed..],
                want: Want::Choose,
            })
            .collect();
        let given = session.step(&work).unwrap();
        for ((_, ids, _), given) in here.iter_mut().zip(given) {
            let StepOutput::Token(token) = given else { panic!("expected a token, got {given:?}") };
            ids.push(token);
        }
        for at in (0..here.len())
            .rev()
            .filter(|&at| here[at].1.len() == here[at].2 + tokens)
            .collect::<Vec<_>>()
        {
            let (id, ids, prompt) = here.remove(at);
            session.remove(id).unwrap();
            done.push((ids, prompt));
        }
    }
    assert!(session.is_empty());
    done.iter().fold(0.0, |worst, (ids, prompt)| worst.max(gap(host, ids, *prompt)))
}

/// Runs a step whose sequences want different rows, and drafts. Returns the distances from the
/// CPU's logits.
pub fn mixed(session: &mut Session, host: &mut SoloSession) -> Vec<f64> {
    let vocab = host.n_vocab();
    let all = occupy(session, session.sequences().min(4));
    let prompt: Vec<u32> = (0..9).map(|i| (i * 53 + 7) % vocab as u32).collect();
    let mut offs = vec![];
    // Drafts after the fed tokens: each must have the same row as if it was fed alone.
    session.feed(all[0], &prompt[..3], Want::Nothing).unwrap();
    let others =
        [(Want::Last, &prompt[..1]), (Want::Nothing, &prompt[..5]), (Want::Choose, &prompt[..2])];
    let mut work = vec![Work { sequence: all[0], tokens: &prompt[3..7], want: Want::All }];
    let rest = all.iter().skip(1).zip(others);
    work.extend(rest.map(|(&sequence, (want, tokens))| Work { sequence, tokens, want }));
    let given = session.step(&work).unwrap();
    host.truncate(0);
    host.feed(&prompt[..3], Want::Nothing).unwrap();
    let rows = logits(given[0].clone());
    assert_eq!(rows.len(), 4 * vocab);
    for (row, id) in rows.chunks_exact(vocab).zip(&prompt[3..7]) {
        offs.push(off(row, &host.feed(&[*id], Want::Last).unwrap()));
    }
    // Two of the drafts are accepted; the sequence continues after them.
    assert_eq!(session.truncate(all[0], 5).unwrap(), 5);
    host.truncate(5);
    let more = session.feed(all[0], &prompt[7..], Want::Last).unwrap();
    offs.push(off(&more, &host.feed(&prompt[7..], Want::Last).unwrap()));
    for ((given, work), i) in given.into_iter().zip(&work).skip(1).zip(1..) {
        assert_eq!(session.len(all[i]).unwrap(), work.tokens.len());
        host.truncate(0);
        let want = host.feed(work.tokens, Want::Last).unwrap();
        match (given, work.want) {
            (StepOutput::Nothing, Want::Nothing) => {}
            (StepOutput::Logits(row), Want::Last) => offs.push(off(&row, &want)),
            (StepOutput::Token(id), Want::Choose) => {
                let best = want.iter().copied().fold(f32::MIN, f32::max);
                assert!(best - want[id as usize] < 0.05, "{id} is not a likely token");
            }
            (given, want) => panic!("expected {want:?}, got {given:?}"),
        }
    }
    release(session, &all);
    offs
}

/// Answers under different sampling options in one session. Another seed must change its own
/// sequence only. With `same`, each answer must also equal the answer of the sequence alone. One
/// row and several rows may be rounded differently, which can change a draw near an edge.
pub fn options(session: &mut Session, tokens: usize, same: bool) {
    let warm = SampleOptions { temperature: 1.0, top_k: 40, ..SampleOptions::default() };
    let all = [
        SampleOptions { repeat_penalty: 1.3, seed: 1, ..warm.clone() },
        SampleOptions { seed: 2, ..warm.clone() },
        SampleOptions { presence_penalty: 0.7, frequency_penalty: 0.3, ..SampleOptions::default() },
        SampleOptions { bias: vec![(5, 30.0), (6, f32::NEG_INFINITY)], seed: 3, ..warm },
    ];
    let mask = TokenMask::new(session.n_vocab(), (0..64).filter(|id| id % 3 == 1));
    let mut answers = |which: &[usize], seed: u64| -> Vec<Vec<u32>> {
        let of = |i: usize| {
            if i == 0 { SampleOptions { seed, ..all[0].clone() } } else { all[i].clone() }
        };
        let ids: Vec<SequenceId> = which.iter().map(|&i| session.add(of(i)).unwrap()).collect();
        if let Some(at) = which.iter().position(|&i| i == 2) {
            session.sampler(ids[at]).unwrap().set_mask(Some(mask.clone()));
        }
        let starts: Vec<(SequenceId, &[u32])> =
            ids.iter().map(|&id| (id, &[7, 8, 9][..])).collect();
        let mut out = vec![vec![]; which.len()];
        session
            .decode(&starts, &mut |id, token| {
                let i = ids.iter().position(|&a| a == id).unwrap();
                out[i].push(token);
                if out[i].len() == tokens { DecodeControl::End } else { DecodeControl::Go }
            })
            .unwrap();
        ids.iter().for_each(|&id| session.remove(id).unwrap());
        out
    };
    let together = answers(&[0, 1, 2, 3], 1);
    let other = answers(&[0, 1, 2, 3], 99);
    assert!(together[0] != other[0] && together[1..] == other[1..], "{together:?}, {other:?}");
    for (i, together) in together.iter().enumerate().filter(|_| same) {
        assert_eq!(*together, answers(&[i], 1)[0], "options {i}");
    }
    assert!(
        together[2].iter().all(|id| id % 3 == 1 && *id < 64),
        "the mask allows only its own tokens: {together:?}"
    );
    assert!(
        together[3].contains(&5) && !together[3].contains(&6),
        "biases favour and forbid: {together:?}"
    );
}

/// Draws of three sequences in one session, one of them greedy. Returns their ids. Equal seeds must
/// give equal ids.
pub fn draws(session: &mut Session, seeds: [u64; 2], tokens: usize) -> Vec<Vec<u32>> {
    let warm = |seed| SampleOptions {
        temperature: 1.0,
        top_k: 40,
        top_p: 0.95,
        seed,
        ..SampleOptions::default()
    };
    let options = [warm(seeds[0]), SampleOptions::default(), warm(seeds[1])];
    let all = options.map(|o| session.add(o).unwrap());
    let mut ids = vec![vec![]; 3];
    let starts = all.map(|id| (id, &[7u32, 8][..]));
    // Half of the tokens are drawn in the loop that runs ahead, the others step by step. Both use
    // one chain of random numbers.
    session
        .decode(&starts, &mut |id, token| {
            let i = all.iter().position(|&a| a == id).unwrap();
            ids[i].push(token);
            if ids[i].len() == tokens.div_ceil(2) { DecodeControl::End } else { DecodeControl::Go }
        })
        .unwrap();
    while ids[0].len() < tokens {
        let last: Vec<u32> = ids.iter().map(|ids| ids[ids.len() - 1]).collect();
        let work = all.iter().zip(&last);
        let work = work.map(|(&sequence, id)| Work {
            sequence,
            tokens: std::slice::from_ref(id),
            want: Want::Choose,
        });
        for (ids, given) in ids.iter_mut().zip(session.step(&work.collect::<Vec<_>>()).unwrap()) {
            let StepOutput::Token(token) = given else { panic!("expected a token, got {given:?}") };
            ids.push(token);
        }
    }
    release(session, &all);
    ids
}

/// Sequences that reach the end of their context at different times, and requests that must be
/// rejected.
pub fn limits(session: &mut Session) {
    let (all, context) = (occupy(session, 2), session.context());
    let long: Vec<u32> = (0..context as u32 - 2).map(|i| i % 50).collect();
    let mut seen = [0usize; 2];
    session
        .decode(&[(all[0], &long), (all[1], &[1])], &mut |id, _| {
            seen[usize::from(id == all[1])] += 1;
            if seen[1] == 6 { DecodeControl::End } else { DecodeControl::Go }
        })
        .unwrap();
    // Two tokens fit. The token chosen after the last position is returned as well.
    assert_eq!(seen, [3, 6]);
    assert_eq!((session.len(all[0]).unwrap(), session.len(all[1]).unwrap()), (context, 6));
    // One sequence is full. The whole step is rejected and changes neither sequence. The other one
    // continues alone.
    let work = |sequence, tokens, want| Work { sequence, tokens, want };
    let both = [work(all[0], &[1][..], Want::Last), work(all[1], &[1][..], Want::Last)];
    let full = session.step(&both).unwrap_err();
    assert!(matches!(full, SessionError::Context { .. }), "{full}");
    assert!(session.check(&both[0]).is_err() && session.check(&both[1]).is_ok());
    assert_eq!((session.len(all[0]).unwrap(), session.len(all[1]).unwrap()), (context, 6));
    let alone = session.feed(all[1], &[1], Want::Last).unwrap();
    assert_eq!(alone.len(), session.n_vocab());
    for (refused, want) in [
        (vec![work(all[1], &[u32::MAX][..], Want::Last)], "outside the vocabulary"),
        (vec![work(all[1], &[1][..], Want::Last); 2], "twice"),
        (vec![work(all[1], &[][..], Want::Choose)], "no token to continue from"),
    ] {
        let error = session.step(&refused).unwrap_err().to_string();
        assert!(error.contains(want), "{error}");
        assert_eq!(session.len(all[1]).unwrap(), 7);
    }
    assert_eq!(session.step(&[work(all[1], &[], Want::Nothing)]).unwrap(), [StepOutput::Nothing]);
    // If the constraint allows no token, no token is fed.
    let none = TokenMask::new(session.n_vocab(), []);
    session.sampler(all[1]).unwrap().set_mask(Some(none));
    let nothing = session.step(&[work(all[1], &[1], Want::Choose)]).unwrap_err();
    assert!(matches!(nothing, SessionError::NothingAllowed), "{nothing}");
    assert_eq!(session.len(all[1]).unwrap(), 7);
    session.sampler(all[1]).unwrap().set_mask(None);
    session.truncate(all[1], 6).unwrap();
    let again = session.feed(all[1], &[1], Want::Last).unwrap();
    assert!(off(&again, &alone) < 1e-6, "the refused requests changed no state");
    release(session, &all);
    let gone = session.feed(all[0], &[1], Want::Last).unwrap_err();
    assert!(matches!(gone, SessionError::NoSequence), "{gone}");
}
