//! A step of the scheduler: composes it, runs it, and passes its results to the requests.

use super::batching::compose;
use super::constrained::{Constrained, lost_constraint, patience};
use super::deliver_tokens::hand_out;
use super::device_decode::MAX_AHEAD_ANSWERS;
use super::host_sampling::choose;
use super::request::{Failure, Refused};
use super::running::{ActiveRequest, End, Running, guarded};
use super::worker::Worker;
use crate::exec::uncut_images;
use crate::sample::TokenMask;
use crate::session::{SequenceId, Session, SessionError, StepOutput, Want, Work};
use std::time::{Duration, Instant};

/// Prompt tokens in a step on a GPU while answers run, before step times are measured: about 20 ms
/// for an 8B model on an H200.
pub(super) const BUDGET_ON_GPU: usize = 512;
/// Maximum number of prompt tokens in a step on the CPU: a fraction of a second.
const BUDGET_ON_CPU: usize = 64;
/// Minimum number of tokens of a prompt piece on a GPU, unless the piece ends the prompt.
const MIN_BUDGET_ON_GPU: usize = 128;
/// The factor of the budget if no answer runs.
const PROMPT_ONLY_FACTOR: usize = 4;

/// The part of a step for one sequence.
struct Part {
    /// Index of the sequence in `running`.
    at: usize,
    /// Tokens to feed.
    tokens: Vec<u32>,
    /// Number of drafts at the end of `tokens`.
    drafted: usize,
    want: Want,
}

impl Worker {
    /// Runs a step of all running sequences. If the scheduler must end, returns the reason.
    pub fn step(&mut self) -> Option<Refused> {
        if self.can_launch() {
            return self.launch_step();
        }
        if let Some(why) = self.collect_step() {
            return Some(why);
        }
        if self.running.is_empty() {
            return None;
        }
        if self.can_run_ahead() {
            return self.run_ahead();
        }
        self.step_together()
    }

    /// Like [`Worker::step`], but without running ahead: one token of each answer.
    pub(super) fn step_together(&mut self) -> Option<Refused> {
        let went_on = self.follow_constraints();
        let mut take = self.compose();
        if self.held_tokens < usize::MAX {
            self.make_room(take.iter().sum());
            take = self.compose();
        }
        if self.session.as_ref().is_some_and(|s| s.pages().is_some()) {
            take = self.make_pages();
        }
        let beside_ahead = self.are_few_and_plain();
        let drafts = self.drafts(beside_ahead);
        let parts = self.parts(&take, drafts);
        if parts.is_empty() {
            // All sequences wait for masks, or for the pages of sequences that wait for masks.
            self.stuck = !went_on;
            return None;
        }
        let constrained =
            |p: &Part| self.running.get(p.at).is_some_and(|r| r.job.constraint.is_some());
        // If the session chooses tokens, it needs the masks during the step. If the host samples,
        // the masks are needed only with the logits.
        let late = parts.iter().any(|p| p.want == Want::Choose && constrained(p));
        let Worker { session, running, .. } = self;
        let session = session.as_mut()?;
        let ids: Vec<(usize, SequenceId)> =
            parts.iter().filter_map(|p| Some((p.at, running.get(p.at)?.id))).collect();
        let with = ids.iter().zip(&parts);
        let work: Vec<Work<'_>> = with
            .map(|(&(_, sequence), p)| Work { sequence, tokens: &p.tokens, want: p.want })
            .collect();
        let (start, usual) = (Instant::now(), self.step_time);
        let mut waited = Duration::ZERO;
        let mut known: Option<Vec<(SequenceId, Option<TokenMask>)>> = None;
        let mut ask = || {
            let asked = Instant::now();
            let get = || masks(&ids, &parts, running, asked + patience(usual, true));
            let known = known.get_or_insert_with(get).clone();
            waited += asked.elapsed();
            known
        };
        let done = guarded(|| together_or_alone(session, &work, late.then_some(&mut ask)));
        let took = start.elapsed().saturating_sub(waited);
        self.step_time = took;
        let decodes = parts.iter().any(|p| p.want != Want::Nothing && p.tokens.len() == 1);
        let prompts = parts.iter().filter(|p| p.tokens.len() > 1).map(|p| p.tokens.len()).sum();
        if decodes {
            self.pace.saw(prompts, took);
        }
        self.seen.busy += took.as_secs_f64();
        self.seen.steps += 1;
        let until = Instant::now() + patience(took, false);
        for p in parts.iter().filter(|p| p.want != Want::Nothing) {
            if let Some(c) = self.constraint(p.at) {
                c.mask_by(until);
            }
        }
        let given = match done {
            Ok(Ok(given)) => given,
            Ok(Err(error)) => return self.fault(Failure::Device(error.to_string())),
            Err(failure) => return self.fault(failure),
        };
        let accepted_before = self.seen.accepted_tokens;
        let mut ends: Vec<(usize, End)> = vec![];
        for (part, given) in parts.iter().zip(given) {
            match self.enter(part, given) {
                Ok(None) => {}
                Ok(Some(end)) => ends.push((part.at, end)),
                Err(failure) => ends.push((part.at, End::Failed(failure))),
            }
        }
        if parts.iter().all(|p| p.tokens.len() == 1 + p.drafted) {
            let drafted = parts.iter().any(|p| p.drafted > 0);
            let accepted = (self.seen.accepted_tokens - accepted_before) as usize;
            let given = drafted.then_some(accepted);
            match beside_ahead {
                false => self.pays.saw(took, given),
                // A step without drafts between phases of running ahead waits until a client
                // arrives or leaves, so its time is not comparable.
                true if drafted => self.pays_ahead.saw(took, given),
                true => {}
            }
            self.drafted = drafted;
        }
        self.keep_at_borders();
        let lacks = std::mem::take(&mut self.lacks);
        if !lacks && ends.iter().all(|(_, end)| matches!(end, End::Done(_))) {
            self.has_memory();
        }
        // Starts from the last index, so that the other indices stay valid.
        for (at, end) in ends.into_iter().rev() {
            let r = self.running.remove(at);
            self.finish(r, end);
        }
        if lacks {
            self.make_way();
        }
        None
    }

    /// The number of tokens that the next step takes from each sequence.
    pub(super) fn compose(&self) -> Vec<usize> {
        let session = self.session.as_ref();
        let context = session.map_or(0, Session::context);
        let rest: Vec<usize> = self.running.iter().map(|r| r.next(context)).collect();
        let answers = rest.contains(&1);
        let aside = |s: &Session| {
            s.gpu()
                .is_some_and(|gpu| !gpu.plan().decode.pauses.is_empty() && gpu.copied().is_none())
        };
        let on_cpu = session.is_some_and(|s| s.cpu().is_some() || aside(s));
        // With streamed layers, every piece copies all layers. So a piece is as large as one pass
        // allows.
        let gpu = session.and_then(Session::gpu);
        let streamed = gpu
            .filter(|gpu| gpu.statistics().streamed.is_some())
            .and_then(|gpu| gpu.plan().prompts.last());
        let copied = gpu.filter(|gpu| gpu.copied().is_some()).and_then(|gpu| gpu.plan().copying());
        let chunk = copied.or(streamed).map(|p| p.tokens as usize);
        let (usual, least) = match chunk {
            _ if on_cpu => (BUDGET_ON_CPU, 1),
            Some(chunk) => (chunk.max(BUDGET_ON_GPU), MIN_BUDGET_ON_GPU),
            None if answers => (self.pace.budget(), MIN_BUDGET_ON_GPU),
            None => (BUDGET_ON_GPU, MIN_BUDGET_ON_GPU),
        };
        let alone = if answers { 1 } else { PROMPT_ONLY_FACTOR };
        let mut take = compose(&rest, self.budget.unwrap_or(usual).saturating_mul(alone), least);
        // A piece ends at the next position whose state is saved.
        for (r, n) in self.running.iter().zip(&mut take) {
            let next = r.borders.iter().filter(|border| **border > r.fed).min();
            *n = next.map_or(*n, |border| (*n).min(border - r.fed));
            if session.is_some_and(Session::has_whole_images) {
                *n = uncut_images(r.rest(), *n);
            }
        }
        take
    }

    /// Whether this step may have drafts. It has none with recurrent states: a rejection takes more
    /// time than drafts save. On a GPU it has drafts only for few sequences, because each sequence
    /// with drafts is a separate pass over all weights.
    pub fn drafts(&self, beside_ahead: bool) -> bool {
        let Some(session) = &self.session else { return false };
        let few = session.gpu().is_none() || self.running.len() <= MAX_AHEAD_ANSWERS;
        let pays = if beside_ahead { &self.pays_ahead } else { &self.pays };
        few && !session.graph().is_recurrent() && pays.go(self.running.len())
    }

    /// Converts the composition to the parts of a step, with drafts if they are faster.
    fn parts(&mut self, take: &[usize], drafts: bool) -> Vec<Part> {
        let Some(session) = &self.session else { return vec![] };
        let (context, on_gpu) = (session.context(), session.gpu().is_some());
        let mut parts = vec![];
        for (at, (r, &n)) in
            self.running.iter_mut().zip(take).enumerate().filter(|(_, (_, n))| **n > 0)
        {
            let all = n == r.rest().len();
            let mut tokens = r.rest().get(..n).unwrap_or_default().to_vec();
            let mut drafted = 0;
            if all && drafts {
                let draft = r.draft(context);
                drafted = draft.len();
                tokens.extend(draft);
            }
            let want = match (all, drafted) {
                (false, _) => Want::Nothing,
                (true, 1..) if r.job.logprobs.is_none() => Want::Drafted(drafted),
                (true, 1..) => Want::All,
                (true, 0) if chosen_here(&r.job, on_gpu) => Want::Last,
                (true, 0) => Want::Choose,
            };
            parts.push(Part { at, tokens, drafted, want });
        }
        parts
    }

    fn constraint(&mut self, at: usize) -> Option<&mut Constrained> {
        self.running.get_mut(at)?.job.constraint.as_mut()
    }

    /// Adds the result of a step to a sequence. Returns the end, if the answer ends here. If the
    /// mask of its constraint is not known yet, the row of logits is stored.
    fn enter(
        &mut self,
        part: &Part,
        given: Result<StepOutput, SessionError>,
    ) -> Result<Option<End>, Failure> {
        let refused = |e: SessionError| Failure::Request(e.to_string());
        // The step failed because of another sequence, and there were no free pages to recompute
        // states that cannot be rewound. If the sequence is not alone, it continues when
        // `make_pages` has freed pages.
        if matches!(given, Err(SessionError::Pages { .. })) && self.running.len() > 1 {
            return Ok(None);
        }
        let alone = self.running.len() == 1 && self.kept.len() == 0;
        let (Some(session), Some(r)) = (&mut self.session, self.running.get_mut(part.at)) else {
            return Ok(None);
        };
        if given.is_err() {
            // A state that could not be recomputed is reset to the start of the sequence.
            r.fed = session.len(r.id).map_err(refused)?;
        }
        // The sequence also continues if the memory is used by other sequences.
        let given = match given {
            Err(error @ SessionError::Memory { .. }) if alone => {
                return Err(self.short(&error, part.tokens.len()));
            }
            Err(SessionError::Memory { .. }) => {
                self.lacks = true;
                return Ok(None);
            }
            given => given.map_err(refused)?,
        };
        r.forget_dry();
        let (n, before) = (part.tokens.len() - part.drafted, r.fed);
        self.seen.prompt_tokens += n.min(r.job.prompt.saturating_sub(r.fed)) as u64;
        r.fed += n;
        let (n_vocab, context) = (session.n_vocab(), session.context());
        let row = match given {
            StepOutput::Nothing => return Ok(None),
            StepOutput::Token(id) => {
                // The device applied the mask.
                if let Some(c) = &mut r.job.constraint
                    && c.take_mask().is_none()
                {
                    return Err(lost_constraint());
                }
                let full = r.fed >= context;
                return Ok(hand_out(&mut self.seen, r, id, None, full));
            }
            StepOutput::Tokens(ids) => return self.enter_drafted(part, &ids),
            StepOutput::Logits(rows) => rows,
        };
        let mut mask = None;
        if let Some(c) = &mut r.job.constraint {
            mask = c.take_mask();
            if mask.is_none() {
                // One row: an answer with a constraint has no drafts.
                r.row = Some(row);
                return Ok(None);
            }
        }
        self.seen.drafted_tokens += part.drafted as u64;
        r.job.usage.drafted_tokens += part.drafted;
        let drafts = part.tokens.get(n..).unwrap_or_default();
        let mut end = None;
        // The rows from the last certain token on: one row after it, and one after each draft.
        // Earlier rows are skipped.
        let first = (row.len() / n_vocab.max(1)).saturating_sub(1 + part.drafted);
        for (i, row) in row.chunks_exact(n_vocab).skip(first).enumerate() {
            let sampler = session.sampler(r.id).map_err(refused)?;
            let (id, logprobs) = choose(&r.job, sampler, r.fed, mask.take(), row.to_vec())?;
            end = hand_out(&mut self.seen, r, id, logprobs, r.fed >= context);
            if end.is_some() || drafts.get(i) != Some(&id) {
                break;
            }
            // The accepted draft is in the sequence already.
            r.fed += 1;
            self.seen.accepted_tokens += 1;
            r.job.usage.accepted_tokens += 1;
        }
        if part.drafted > 0 {
            // Only states that can be rewound have drafts, so this truncation is exact.
            r.fed = session.truncate(r.id, r.fed).map_err(refused)?;
        }
        debug_assert!(r.fed > before || n == 0);
        Ok(end)
    }

    /// Adds accepted drafts and the token after them. Returns the end, if the answer ends with one
    /// of them.
    fn enter_drafted(&mut self, part: &Part, ids: &[u32]) -> Result<Option<End>, Failure> {
        let (Some(session), Some(r)) = (&mut self.session, self.running.get_mut(part.at)) else {
            return Ok(None);
        };
        self.seen.drafted_tokens += part.drafted as u64;
        r.job.usage.drafted_tokens += part.drafted;
        let (context, mut end) = (session.context(), None);
        for (i, &id) in ids.iter().enumerate() {
            end = hand_out(&mut self.seen, r, id, None, r.fed >= context);
            if end.is_some() || i + 1 == ids.len() {
                break;
            }
            // The accepted draft is in the sequence already.
            r.fed += 1;
            self.seen.accepted_tokens += 1;
            r.job.usage.accepted_tokens += 1;
        }
        // Only states that can be rewound have drafts, so this truncation is exact.
        r.fed = session.truncate(r.id, r.fed).map_err(|e| Failure::Request(e.to_string()))?;
        Ok(end)
    }
}

/// The masks of sequences whose tokens the device chooses. Waits for them until `until`. `None`:
/// the mask is not known yet.
fn masks(
    ids: &[(usize, SequenceId)],
    parts: &[Part],
    running: &mut [Running],
    until: Instant,
) -> Vec<(SequenceId, Option<TokenMask>)> {
    let mut all = vec![];
    for (&(at, id), _) in ids.iter().zip(parts).filter(|(_, p)| p.want == Want::Choose) {
        if let Some(c) = running.get_mut(at).and_then(|r| r.job.constraint.as_mut()) {
            all.push((id, c.mask_by(until).cloned()));
        }
    }
    all
}

/// Whether the host chooses a token from a row of logits. A GPU applies the mask and chooses. On
/// the CPU the row is already in host memory, and it is computed at the same time as the mask.
fn chosen_here(job: &ActiveRequest, on_gpu: bool) -> bool {
    job.logprobs.is_some() || job.constraint.is_some() && !on_gpu
}

/// Returns masks while a step is computed.
type LateMasks<'a> = &'a mut dyn FnMut() -> Vec<(SequenceId, Option<TokenMask>)>;

/// Runs one step. If it fails, runs a step for each sequence, so that only the faulty sequence
/// fails. An error means that the device is lost.
fn together_or_alone(
    session: &mut Session,
    work: &[Work<'_>],
    mut masks: Option<LateMasks<'_>>,
) -> Result<Vec<Result<StepOutput, SessionError>>, SessionError> {
    let mut step = |work: &[Work<'_>]| match &mut masks {
        Some(masks) => session.step_masked(work, masks),
        None => session.step(work),
    };
    match step(work) {
        Ok(given) => return Ok(given.into_iter().map(Ok).collect()),
        Err(lost @ SessionError::Lost(_)) => return Err(lost),
        Err(error) if work.len() == 1 => return Ok(vec![Err(error)]),
        Err(_) => {}
    }
    let mut all = vec![];
    for w in work {
        all.push(match step(std::slice::from_ref(w)) {
            Ok(mut given) => Ok(given.pop().unwrap_or(StepOutput::Nothing)),
            Err(lost @ SessionError::Lost(_)) => return Err(lost),
            Err(error) => Err(error),
        });
    }
    Ok(all)
}
