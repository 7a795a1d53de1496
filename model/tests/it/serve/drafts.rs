//! Drafted tokens in a session and in the scheduler.

use super::{TINY, all, prompt, scheduler, session};
use crate::it::support::submitted_request::ask;
use kjit_model::prompt_lookup::{self, Drafts};
use kjit_model::sample::{SampleOptions, TokenMask};
use kjit_model::serve::{Reason, SchedulerOptions};
use kjit_model::session::{DecodeControl, SessionError, StepOutput, Want, Work};

/// Options that always choose this token.
fn always(token: u32) -> SampleOptions {
    SampleOptions { bias: vec![(token, 1e4)], ..SampleOptions::default() }
}

#[test]
fn drafted_tokens_do_not_change_answers() {
    let Some(scheduler) = scheduler(4, 300, SchedulerOptions::default()) else { return };
    // A random model does not continue repetitions, so its drafts are wrong. Drafts are right if
    // the model always repeats one token.
    let text = |i: usize| prompt(i, 12).repeat(4);
    let warm = SampleOptions {
        temperature: 0.7,
        seed: 3,
        repeat_penalty: 1.1,
        ..SampleOptions::default()
    };
    let mut drafted = 0;
    for sampling in [SampleOptions::default(), warm, always(7)] {
        let go = |lookup| {
            let ask = |i| {
                ask(&scheduler, &text(i), 60 + i, |r| {
                    (r.lookup, r.sampling, r.logprobs) =
                        (lookup, sampling.clone(), (i == 2).then_some(3));
                })
            };
            all((0..6).map(ask).collect())
        };
        let (plain, with) = (go(false), go(true));
        for (i, (plain, with)) in plain.iter().zip(&with).enumerate() {
            assert_eq!(plain.ids, with.ids, "request {i}");
            assert_eq!(with.reason(), Reason::Length);
            drafted += with.end.as_ref().unwrap().1.drafted_tokens;
        }
    }
    let status = scheduler.status();
    assert!(
        drafted > 0 && status.accepted_tokens > 0 && status.accepted_tokens < status.drafted_tokens,
        "{status:?}"
    );
}

/// The loop of `run --lookup on`.
#[test]
fn drafts_do_not_change_a_single_sequence() {
    let Some(mut session) = session(TINY, 1, 300) else { return };
    let warm = SampleOptions { temperature: 0.7, seed: 3, ..SampleOptions::default() };
    let mut drafts = Drafts::default();
    for (i, sampling) in [SampleOptions::default(), warm, always(7)].into_iter().enumerate() {
        let text = prompt(i, 12).repeat(4);
        let mut plain = vec![];
        let id = session.add(sampling.clone()).unwrap();
        let until = |ids: &mut Vec<u32>, n: usize, id| {
            ids.push(id);
            if ids.len() == n { DecodeControl::End } else { DecodeControl::Go }
        };
        session.decode(&[(id, &text)], &mut |_, id| until(&mut plain, 150, id)).unwrap();
        session.remove(id).unwrap();
        let mut with = vec![];
        let id = session.add(sampling).unwrap();
        let fed = session.feed(id, &text[..20], Want::Nothing).unwrap();
        assert!(fed.is_empty());
        let found = prompt_lookup::decode(&mut session, id, text.clone(), 28, &mut |id| {
            until(&mut with, 150, id)
        })
        .unwrap();
        assert_eq!(
            (&with, session.len(id).unwrap()),
            (&plain, 48 + 149),
            "the last token is not fed"
        );
        drafts.drafted += found.drafted;
        drafts.accepted += found.accepted;
        // Until the context is full.
        let rest = [&text[..], &with].concat();
        prompt_lookup::decode(&mut session, id, rest, 1, &mut |id| {
            until(&mut with, usize::MAX, id)
        })
        .unwrap();
        assert_eq!(with.len(), 300 - 48 + 1);
        session.remove(id).unwrap();
    }
    assert!(drafts.accepted > 0 && drafts.accepted < drafts.drafted, "{drafts:?}");
}

/// The next turn of a conversation: tokens drawn for drafts after the end are not in the sampler's
/// history. After 24 sevens another token is more likely.
#[test]
fn answer_ending_within_drafts_leaves_sampler_history_exact() {
    let Some(mut session) = session(TINY, 1, 120) else { return };
    let warm = SampleOptions { temperature: 0.7, seed: 3, frequency_penalty: 420.0, ..always(7) };
    let text = prompt(1, 9).repeat(3);
    let mut within = 0;
    for n in (8..30).step_by(3) {
        let mut ends = [(vec![], vec![]), (vec![], vec![])];
        for (with, (ids, after)) in [false, true].into_iter().zip(&mut ends) {
            let id = session.add(warm.clone()).unwrap();
            let mut until = |id| {
                ids.push(id);
                if ids.len() == n { DecodeControl::End } else { DecodeControl::Go }
            };
            match with {
                false => session.decode(&[(id, &text)], &mut |_, id| until(id)).unwrap(),
                true => {
                    let found = prompt_lookup::decode(
                        &mut session,
                        id,
                        text.clone(),
                        text.len(),
                        &mut until,
                    )
                    .unwrap();
                    within += usize::from(found.accepted > 0);
                }
            }
            let next = [&ids[n - 1..], &[5, 6]].concat();
            let third = &mut |_, token| {
                after.push(token);
                if after.len() == 3 { DecodeControl::End } else { DecodeControl::Go }
            };
            session.decode(&[(id, &next)], third).unwrap();
            session.remove(id).unwrap();
        }
        assert_eq!(ends[0], ends[1], "{n} tokens");
    }
    assert!(within > 2, "{within} answers had accepted drafts");
}

#[test]
fn failed_draft_step_draws_nothing() {
    let Some(mut session) = session(TINY, 2, 60) else { return };
    // After five sevens in the history another token is more likely.
    let warm = SampleOptions { temperature: 0.9, seed: 5, frequency_penalty: 2100.0, ..always(7) };
    let (one, other) = (session.add(warm).unwrap(), session.add(SampleOptions::default()).unwrap());
    session.feed(one, &[1, 2], Want::Nothing).unwrap();
    session.feed(other, &[1, 2], Want::Nothing).unwrap();
    session.sampler(other).unwrap().set_mask(Some(TokenMask::new(250, [])));
    let drafts = |sequence| Work { sequence, tokens: &[3, 7, 7], want: Want::Drafted(2) };
    for _ in 0..2 {
        let failed = session.step(&[drafts(one), drafts(other)]);
        assert!(matches!(failed, Err(SessionError::NothingAllowed)), "{failed:?}");
        assert_eq!((session.len(one).unwrap(), session.len(other).unwrap()), (2, 2));
    }
    session.sampler(other).unwrap().set_mask(Some(TokenMask::new(250, [9])));
    let given = session.step(&[drafts(one), drafts(other)]).unwrap();
    assert_eq!(given, [StepOutput::Tokens(vec![7, 7, 7]), StepOutput::Tokens(vec![9])]);
}
