//! A step: what goes into it, and what becomes of what it gives.

use super::choose::choose;
use super::compose::compose;
use super::masks::{Mask, Masks};
use super::request::{Failure, Refused};
use super::running::{End, Job, Running, guarded};
use super::worker::Worker;
use crate::lookup::MOST;
use crate::sample::TokenMask;
use crate::session::{Given, Session, SessionError, Want, Work};
use std::time::Instant;

/// Tokens of a step where answers wait for it, on a GPU: some 20 ms of prompt for 8b on an H200.
const BUDGET_ON_GPU: usize = 512;
/// The same on the CPU: a fraction of a second.
const BUDGET_ON_CPU: usize = 64;
/// Fewer tokens than that are no piece of a prompt on a GPU, unless they end it.
const LEAST_ON_GPU: usize = 128;
/// So much more where no answer waits.
const ALONE: usize = 4;

/// What a step takes of a sequence.
struct Part {
    /// Its place among those that run.
    at: usize,
    /// Tokens that it was not fed.
    tokens: Vec<u32>,
    /// How many of them, the last ones, are drafted.
    drafted: usize,
    want: Want,
}

impl Worker {
    /// Runs a step of everybody who runs; why there is nothing to go on with, if so.
    pub fn step(&mut self) -> Option<Refused> {
        if self.can_run_ahead() {
            return self.run_ahead();
        }
        let mut take = self.compose();
        if self.held_tokens < usize::MAX {
            self.make_room(take.iter().sum());
            take = self.compose();
        }
        let parts = self.parts(&take);
        self.ask_masks(&parts);
        let session = self.session.as_mut()?;
        let with = parts.iter().filter_map(|p| Some((self.running.get(p.at)?.id, p)));
        let work: Vec<Work<'_>> =
            with.map(|(sequence, p)| Work { sequence, tokens: &p.tokens, want: p.want }).collect();
        let start = Instant::now();
        let done = guarded(|| together_or_alone(session, &work));
        let took = start.elapsed();
        self.seen.busy += took.as_secs_f64();
        self.seen.steps += 1;
        let mut masks = self.masks_of(&parts);
        let given = match done {
            Ok(Ok(given)) => given,
            Ok(Err(error)) => return self.fault(Failure::Device(error.to_string())),
            Err(failure) => return self.fault(failure),
        };
        let accepted_before = self.seen.accepted_tokens;
        let mut ends: Vec<(usize, End)> = vec![];
        for (part, given) in parts.iter().zip(given) {
            let mask = masks.iter().position(|(at, _)| *at == part.at).map(|i| masks.swap_remove(i).1);
            match self.enter(part, given, mask) {
                Ok(None) => {}
                Ok(Some(end)) => ends.push((part.at, end)),
                Err(failure) => ends.push((part.at, End::Failed(failure))),
            }
        }
        if parts.iter().all(|p| p.tokens.len() == 1 + p.drafted) {
            let drafted = parts.iter().any(|p| p.drafted > 0);
            let accepted = (self.seen.accepted_tokens - accepted_before) as usize;
            self.pays.saw(took, drafted.then_some(accepted));
        }
        // From the last on, so that the places of the others stay.
        for (at, end) in ends.into_iter().rev() {
            let r = self.running.remove(at);
            self.finish(r, end);
        }
        None
    }

    /// Tokens that the next step takes of each.
    fn compose(&self) -> Vec<usize> {
        let rest: Vec<usize> = self.running.iter().map(|r| r.rest().len()).collect();
        let session = self.session.as_ref();
        let on_cpu = session.is_some_and(|s| s.cpu().is_some());
        // Where layers are streamed a piece costs all their copies: as many tokens as go through at once.
        let gpu = session.and_then(Session::gpu).filter(|gpu| gpu.statistics().streamed.is_some());
        let chunk = gpu.and_then(|gpu| gpu.plan().prompts.last()).map(|p| p.tokens as usize);
        let (usual, least) = match chunk {
            _ if on_cpu => (BUDGET_ON_CPU, 1),
            Some(chunk) => (chunk.max(BUDGET_ON_GPU), LEAST_ON_GPU),
            None => (BUDGET_ON_GPU, LEAST_ON_GPU),
        };
        let alone = if rest.contains(&1) { 1 } else { ALONE };
        compose(&rest, self.budget.unwrap_or(usual).saturating_mul(alone), least)
    }

    /// The same as parts of a step, with drafts where they are wanted and pay.
    fn parts(&mut self, take: &[usize]) -> Vec<Part> {
        let Some(session) = &self.session else { return vec![] };
        let context = session.context();
        // A state that cannot go back step by step computes more than it wins.
        let drafts = !session.graph().is_recurrent() && self.pays.go(self.running.len());
        let mut parts = vec![];
        for (at, (r, &n)) in self.running.iter_mut().zip(take).enumerate().filter(|(_, (_, n))| **n > 0) {
            let all = n == r.rest().len();
            let mut tokens = r.rest().get(..n).unwrap_or_default().to_vec();
            let mut drafted = 0;
            if all && drafts && r.job.lookup && r.job.constraint.is_none() && r.job.usage.generated_tokens > 0 {
                // The last token of an answer need not be drafted, and none that does not fit.
                let left = r.job.max_tokens.saturating_sub(r.job.usage.generated_tokens + 1);
                let most = left.min(context - (r.fed + n)).min(MOST);
                let draft = r.lookup.draft(&r.job.tokens, most);
                drafted = draft.len();
                tokens.extend(draft);
            }
            let want = match (all, drafted) {
                (false, _) => Want::Nothing,
                (true, 1..) => Want::All,
                (true, 0) if chosen_here(&r.job) => Want::Last,
                (true, 0) => Want::Choose,
            };
            parts.push(Part { at, tokens, drafted, want });
        }
        parts
    }

    /// Asks the constraints of those that will choose, while the step computes.
    fn ask_masks(&mut self, parts: &[Part]) {
        for p in parts.iter().filter(|p| p.want != Want::Nothing) {
            let Some(r) = self.running.get_mut(p.at).filter(|r| r.job.constraint.is_some()) else { continue };
            if self.masks.is_none() {
                self.masks = Masks::new();
            }
            if let (Some(masks), Some(constraint)) = (&mut self.masks, r.job.constraint.take()) {
                masks.ask(p.at, constraint);
            }
        }
    }

    /// What the constraints allow. Each is its request's again.
    fn masks_of(&mut self, parts: &[Part]) -> Vec<(usize, Mask)> {
        let Some(masks) = &mut self.masks else { return vec![] };
        let mut all = vec![];
        for (at, constraint, mask) in masks.answers() {
            if let Some(r) = self.running.get_mut(at) {
                r.job.constraint = Some(constraint);
            }
            all.push((at, mask));
        }
        debug_assert!(all.len() <= parts.len());
        all
    }

    /// Enters what a step gave for a sequence; its end, if this was it.
    fn enter(
        &mut self,
        part: &Part,
        given: Result<Given, SessionError>,
        mask: Option<Mask>,
    ) -> Result<Option<End>, Failure> {
        let refused = |e: SessionError| Failure::Request(e.to_string());
        let (Some(session), Some(r)) = (&mut self.session, self.running.get_mut(part.at)) else { return Ok(None) };
        let given = given.map_err(refused)?;
        let (n, before) = (part.tokens.len() - part.drafted, r.fed);
        self.seen.prompt_tokens += n.min(r.job.prompt.saturating_sub(r.fed)) as u64;
        r.fed += n;
        let (n_vocab, context) = (session.n_vocab(), session.context());
        let row = match given {
            Given::Nothing => return Ok(None),
            Given::Token(id) => {
                let full = r.fed >= context;
                return Ok(hand_out(&mut self.seen, r, id, None, full));
            }
            Given::Logits(rows) => rows,
        };
        let mut mask: Option<TokenMask> = match (mask, r.job.constrained) {
            (Some(mask), _) => Some(mask?),
            (None, true) => return Err(Failure::Panic("a constraint was lost".to_owned())),
            (None, false) => None,
        };
        self.seen.drafted_tokens += part.drafted as u64;
        r.job.usage.drafted_tokens += part.drafted;
        let drafts = part.tokens.get(n..).unwrap_or_default();
        let mut end = None;
        // One row behind the last token that is sure, one behind each draft; those in front of it are of no interest.
        let first = (row.len() / n_vocab.max(1)).saturating_sub(1 + part.drafted);
        for (i, row) in row.chunks_exact(n_vocab).skip(first).enumerate() {
            let sampler = session.sampler(r.id).map_err(refused)?;
            let (id, logprobs) = choose(&r.job, sampler, mask.take(), row.to_vec())?;
            end = hand_out(&mut self.seen, r, id, logprobs, r.fed >= context);
            if end.is_some() || drafts.get(i) != Some(&id) {
                break;
            }
            // What was drafted is in the sequence.
            r.fed += 1;
            self.seen.accepted_tokens += 1;
            r.job.usage.accepted_tokens += 1;
        }
        if part.drafted > 0 {
            // Nothing recurrent is drafted for, so there is a way back.
            r.fed = session.truncate(r.id, r.fed).map_err(refused)?;
        }
        debug_assert!(r.fed > before || n == 0);
        Ok(end)
    }
}

/// Hands a token out; the end, if it was the last.
pub(super) fn hand_out(
    seen: &mut super::status::Status,
    r: &mut Running,
    id: u32,
    logprobs: Option<super::request::Logprobs>,
    full: bool,
) -> Option<End> {
    let first = r.job.usage.generated_tokens == 0;
    let (took, end) = r.job.token(id, logprobs, full);
    seen.generated_tokens += 1;
    if first {
        seen.first_token.add(took)
    } else {
        seen.between_tokens.add(took)
    }
    end
}

/// Whether a token is chosen here, of a row of logits, not by the session.
pub(super) fn chosen_here(job: &Job) -> bool {
    job.logprobs.is_some() || job.constrained
}

/// One step; where somebody in it makes that impossible, one for each, so that only he fails. An error: there is
/// nothing to go on with.
fn together_or_alone(
    session: &mut Session,
    work: &[Work<'_>],
) -> Result<Vec<Result<Given, SessionError>>, SessionError> {
    match session.step(work) {
        Ok(given) => return Ok(given.into_iter().map(Ok).collect()),
        Err(lost @ SessionError::Lost(_)) => return Err(lost),
        Err(error) if work.len() == 1 => return Ok(vec![Err(error)]),
        Err(_) => {}
    }
    let mut all = vec![];
    for w in work {
        all.push(match session.step(std::slice::from_ref(w)) {
            Ok(mut given) => Ok(given.pop().unwrap_or(Given::Nothing)),
            Err(lost @ SessionError::Lost(_)) => return Err(lost),
            Err(error) => Err(error),
        });
    }
    Ok(all)
}
