//! Compares two sessions of one model on a device. Only the second stores its keys and values in
//! pages. The results must be bit for bit equal, regardless of which pages are shared. For any
//! device.

use kjit_model::sample::SampleOptions;
use kjit_model::session::{
    DecodeControl, OpenOptions, SequenceId, Session, SessionError, StepOutput, Want, Work,
};

/// Tokens in a page.
pub const PAGE: usize = 128;

/// A text of `len` tokens. Each `number` gives another text.
pub fn text(number: usize, len: usize, vocab: usize) -> Vec<u32> {
    (0..len).map(|i| ((number * 131 + i * i * 7 + i * 37 + 5) % vocab) as u32).collect()
}

fn add(session: &mut Session) -> SequenceId {
    session.add(SampleOptions::default()).unwrap()
}

/// Feeds all sequences in one step. Returns the logits after the last token of each.
fn step(session: &mut Session, work: &[(SequenceId, &[u32])]) -> Vec<Vec<f32>> {
    let work: Vec<_> = work
        .iter()
        .map(|&(sequence, tokens)| Work { sequence, tokens, want: Want::Last })
        .collect();
    let given = session.step(&work).unwrap().into_iter();
    given.map(|g| if let StepOutput::Logits(row) = g { row } else { panic!("{g:?}") }).collect()
}

/// Generates `tokens` tokens for each sequence.
fn answers(session: &mut Session, starts: &[(SequenceId, &[u32])], tokens: usize) -> Vec<Vec<u32>> {
    let mut all = vec![vec![]; starts.len()];
    session
        .decode(starts, &mut |id, token| {
            let i = starts.iter().position(|s| s.0 == id).unwrap();
            all[i].push(token);
            if all[i].len() == tokens { DecodeControl::End } else { DecodeControl::Go }
        })
        .unwrap();
    all
}

/// Options of the two sessions.
pub fn options(options: OpenOptions) -> [OpenOptions; 2] {
    let plain =
        OpenOptions { sequences: 4, prefill_chunk: Some(160), context: Some(300), ..options };
    let paged = OpenOptions { paged: Some(7 * PAGE), ..plain.clone() };
    [plain, paged]
}

/// Compares the two sessions. There are prompts and answers that cross the end of a page, shared
/// and copied prefixes, and too few pages.
pub fn assert_matches_unpaged(want: &mut Session, got: &mut Session) {
    let pages = |session: &Session| session.pages().map(|p| (p.used, p.shared, p.total)).unwrap();
    assert_eq!((want.pages(), pages(got)), (None, (0, 0, 7)));
    let vocab = want.n_vocab();
    let texts = [text(1, 3, vocab), text(2, PAGE - 1, vocab), text(3, 170, vocab)];

    // Prompts of all lengths in one step, then answers that cross the end of a page while the
    // device runs ahead of the host.
    let both = [&mut *want, &mut *got].map(|session| {
        let ids: Vec<SequenceId> = texts.iter().map(|_| add(session)).collect();
        let work: Vec<_> =
            ids.iter().zip(&texts).map(|(id, text)| (*id, text.as_slice())).collect();
        let rows = step(session, &work);
        let starts: Vec<_> = ids.iter().map(|id| (*id, &[7u32][..])).collect();
        let answers = answers(session, &starts, 5);
        (ids, rows, answers)
    });
    let [(_, rows, tokens), (ids, paged_rows, paged_tokens)] = &both;
    assert!(rows == paged_rows, "logits differ with pages");
    assert_eq!(tokens, paged_tokens);
    assert_eq!(pages(got), (1 + 2 + 2, 0, 7));

    // Prefixes are shared. The first sequence that writes in the middle of a shared page copies the
    // page. This sequence may be the new or the old one.
    let shared = [(&mut *want, &both[0].0), (&mut *got, ids)].map(|(session, ids)| {
        let of = ids[2];
        let forked = session.fork(of, 150, SampleOptions::default()).unwrap();
        assert_eq!(session.len(forked).unwrap(), 150);
        let shared = session.pages().map(|p| (p.used, p.shared));
        let new = step(session, &[(forked, &text(9, 11, vocab))]);
        let old = step(session, &[(of, &[5, 6])]);
        let copied = session.pages().map(|p| (p.used, p.shared));
        session.truncate(of, 160).unwrap();
        let both = step(session, &[(of, &[1, 2, 3]), (forked, &[4])]);
        session.truncate(forked, PAGE).unwrap();
        let again = step(session, &[(forked, &text(3, 170, vocab)[PAGE..])]);
        session.remove(forked).unwrap();
        (shared, copied, [new, old, both, again])
    });
    assert!(shared[0].2 == shared[1].2, "logits differ with shared pages");
    assert_eq!((shared[1].0, shared[1].1), (Some((5, 2)), Some((6, 1))));

    // If there are not enough pages, the whole step is rejected. Other sequences can use the pages
    // of a removed sequence.
    let long = text(4, 2 * PAGE + 1, vocab);
    let id = add(got);
    let refused = got.step(&[
        Work { sequence: ids[0], tokens: &[1], want: Want::Last },
        Work { sequence: id, tokens: &long, want: Want::Last },
    ]);
    assert!(matches!(refused, Err(SessionError::Pages { needed: 3, free: 2 })), "{refused:?}");
    assert_eq!(
        (got.len(ids[0]).unwrap(), got.len(id).unwrap(), pages(got)),
        (texts[0].len() + 5, 0, (5, 0, 7))
    );
    assert_eq!(got.pages_needed(id, long.len()).unwrap(), 3);
    got.remove(ids[1]).unwrap();
    let alone = add(want);
    assert!(step(got, &[(id, &long)]) == step(want, &[(alone, &long)]));
    // An answer that runs ahead pauses before the page that is not available, and continues when a
    // page is free.
    let (left, right) = (PAGE - got.len(ids[0]).unwrap(), got.pages().unwrap().free());
    let hold = add(got);
    got.feed(hold, &text(5, right * PAGE, vocab), Want::Nothing).unwrap();
    let mut came = vec![];
    let mut next = vec![7];
    let count = |came: &mut Vec<u32>, got: &mut Session, next: &[u32]| {
        got.decode(&[(ids[0], next)], &mut |_, token| {
            came.push(token);
            if came.len() == left + 3 { DecodeControl::End } else { DecodeControl::Go }
        })
    };
    count(&mut came, got, &next).unwrap();
    assert_eq!((came.len(), got.len(ids[0]).unwrap()), (left, PAGE));
    next = vec![*came.last().unwrap()];
    assert!(matches!(
        count(&mut came, got, &next),
        Err(SessionError::Pages { needed: 1, free: 0 })
    ));
    got.remove(hold).unwrap();
    count(&mut came, got, &next).unwrap();
    assert_eq!(came, answers(want, &[(both[0].0[0], &[7])], left + 3).remove(0));
    got.remove(ids[0]).unwrap();
    got.remove(ids[2]).unwrap();
    want.remove(both[0].0[1]).unwrap();
    if got.gpu().unwrap().plan().drafts.is_some() {
        drafts(want, alone, got, id);
    }
    got.remove(id).unwrap();
    assert_eq!(pages(got), (0, 0, 7));
}

/// Tests drafts that begin in a page shared with a sequence of the same text, and that cross the
/// end of the page.
fn drafts(want: &mut Session, in_want: SequenceId, got: &mut Session, in_got: SequenceId) {
    let used = got.pages().unwrap().used;
    let [want, got] = [(want, in_want), (got, in_got)].map(|(session, of)| {
        let vocab = session.n_vocab() as u32;
        let fork =
            |session: &mut Session| session.fork(of, PAGE - 4, SampleOptions::default()).unwrap();
        let first = fork(session);
        let plain = answers(session, &[(first, &[5])], 9).remove(0);
        session.remove(first).unwrap();
        let id = fork(session);
        let draft = |session: &mut Session, tokens: &[u32]| {
            let work = Work { sequence: id, tokens, want: Want::Drafted(tokens.len() - 1) };
            let Some(StepOutput::Tokens(chosen)) = session.step(&[work]).unwrap().pop() else {
                panic!("no tokens")
            };
            (chosen, session.len(id).unwrap(), session.pages().map(|p| p.used))
        };
        // The second draft is wrong: pages taken for later drafts are returned.
        let mut tokens = [&[5], &plain[..7]].concat();
        tokens[2] = (tokens[2] + 1) % vocab;
        let wrong = draft(session, &tokens);
        let mut tokens = vec![*wrong.0.last().unwrap()];
        tokens.extend(&plain[2..8]);
        let right = draft(session, &tokens);
        let rows = step(session, &[(id, &[3])]);
        session.remove(id).unwrap();
        (plain, wrong, right, rows)
    });
    assert_eq!((&want.0, &want.1.0, &want.2.0), (&got.0, &got.1.0, &got.2.0));
    assert!(want.3 == got.3, "logits differ after drafts in pages");
    let (_, (_, wrong_len, wrong_used), (_, right_len, right_used), _) = got;
    assert!((PAGE - 3..PAGE - 1).contains(&wrong_len), "{wrong_len}");
    assert_eq!((wrong_used, right_used), (Some(used + 1), Some(used + right_len.div_ceil(PAGE))));
}
