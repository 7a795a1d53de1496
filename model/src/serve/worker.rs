//! The worker thread, which owns the session. In each iteration it admits requests, runs a step,
//! and publishes the status.

use super::Reopen;
use super::SavedPages;
use super::adapters::names;
use super::block_events::SequenceBlocks;
use super::held_tokens::held;
use super::launched::{LaunchedStep, Leaving};
use super::masks::Masks;
use super::pace::Pace;
use super::prefixes::Prefixes;
use super::request::{Failure, Reason, Refused};
use super::retained::RetainedSequences;
use super::running::{ActiveRequest, End, Running, guarded};
use super::shared::{Embed, Facts, SchedulerOptions, Shared};
use super::status::{State, Status};
use crate::prompt_lookup::DraftPolicy;
use crate::session::{Session, SessionError};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum time that an idle iteration waits.
const MAX_IDLE_WAIT: Duration = Duration::from_secs(1);
/// Maximum time that an iteration waits while all sequences wait for their constraints.
const MAX_MASK_WAIT: Duration = Duration::from_millis(100);

/// The facts about this session's model.
pub(super) fn facts(session: &Session) -> Facts {
    let graph = session.graph();
    Facts {
        arch: graph.arch.clone(),
        encoder: graph.pooling.is_some(),
        adapters: match session.adapter_slots() {
            0 => graph.adapters.iter().map(|adapter| adapter.name.clone()).collect(),
            _ => vec![],
        },
        adapter_slots: session.adapter_slots(),
        context: session.context(),
        n_vocab: session.n_vocab(),
        slots: session.sequences(),
        bytes_per_token: session.kv().bytes(graph.kv_elems_per_token()),
        end_ids: session.end_ids().to_vec(),
    }
}

pub(super) struct Worker {
    /// `None` while the session is being reopened.
    pub session: Option<Session>,
    /// The step that the device computes, if it was launched ahead.
    pub launched: Option<LaunchedStep>,
    /// Sequences whose requests have ended, and that are in the launched step.
    pub leaving: Vec<Leaving>,
    /// When the last launched step ended.
    pub collected: Instant,
    pub shared: Arc<Shared>,
    /// Running sequences, the oldest first.
    pub running: Vec<Running>,
    /// Retained sequences (without pages).
    pub kept: RetainedSequences,
    /// The prefix cache (with pages).
    pub prefixes: Prefixes,
    /// The published blocks of retained sequences.
    pub blocks: Option<SequenceBlocks>,
    /// The threads for constraints; `None` until a request has one.
    pub masks: Option<Masks>,
    /// Whether all running sequences wait for their constraints.
    pub stuck: bool,
    /// Time of the last step, without waits for masks.
    pub step_time: Duration,
    /// Whether drafts are faster than plain steps.
    pub pays: DraftPolicy,
    /// Whether drafts are faster than a device that runs ahead.
    pub pays_ahead: DraftPolicy,
    /// Whether the last step had drafts.
    pub drafted: bool,
    /// Memory was short, so no request is admitted until a sequence has ended.
    pub crowded: bool,
    /// A sequence that is not alone lacked memory in this step.
    pub lacks: bool,
    /// Number of tokens of the step that last lacked memory.
    pub lacked: usize,
    pub budget: Option<usize>,
    /// Chooses the budget on a GPU from step times, if no budget is given.
    pub pace: Pace,
    pub held_tokens: usize,
    /// Names of the adapters that the model was opened with.
    adapter_names: Vec<String>,
    pub reuse: bool,
    /// The status to publish.
    pub seen: Status,
    /// Pages on disk.
    pub saved: Option<SavedPages>,
    reopen: Option<Reopen>,
    /// Mean seconds from start to end of recent requests.
    pub usual: f64,
}

impl Worker {
    pub fn new(session: Session, options: SchedulerOptions, shared: Arc<Shared>) -> Worker {
        let seen = shared.lock().status.clone();
        let adapter_names = shared.lock().facts.adapters.clone();
        Worker {
            adapter_names,
            session: Some(session),
            launched: None,
            leaving: vec![],
            collected: Instant::now(),
            shared,
            running: vec![],
            kept: RetainedSequences::default(),
            prefixes: Prefixes::publishing(options.block_events.clone()),
            blocks: options.block_events.map(SequenceBlocks::new),
            masks: None,
            stuck: false,
            step_time: Duration::from_millis(20),
            pays: DraftPolicy::default(),
            pays_ahead: DraftPolicy::default(),
            drafted: false,
            crowded: false,
            lacks: false,
            lacked: 0,
            budget: options.token_budget,
            pace: Pace::new(options.latency_target),
            held_tokens: options.held_tokens.unwrap_or(usize::MAX),
            reuse: options.reuse,
            seen,
            saved: options.saved_pages,
            reopen: options.reopen,
            usual: 1.0,
        }
    }

    /// Runs until it is stopped or the model is permanently lost.
    pub fn run(mut self) {
        let why = loop {
            match guarded(|| self.turn()) {
                Ok(None) => {}
                Ok(Some(why)) => break why,
                Err(failure) => {
                    if let Some(why) = self.fault(failure) {
                        break why;
                    }
                }
            }
        };
        let failure = match &why {
            Refused::Lost(why) => Failure::Device(why.clone()),
            _ => Failure::Stopped,
        };
        if let Some(session) = self.session.as_mut().filter(|_| self.launched.is_some()) {
            // The device must not use the memory that is freed here.
            let _ = guarded(|| session.collect());
        }
        // Device memory is released first: a caller that waits for the end may need the memory.
        self.session = None;
        self.forget_all();
        for r in std::mem::take(&mut self.running) {
            self.end(r.job, End::Failed(failure.clone()));
        }
        self.publish();
        let (jobs, embeds) = self.shared.close(why);
        for job in jobs {
            self.end(job, End::Failed(failure.clone()));
        }
        embeds.into_iter().for_each(|e| drop(guarded(|| (e.sink)(Err(failure.clone())))));
        self.publish();
        // Waits until all pages are written.
        self.saved = None;
        self.shared.leave();
    }

    /// Runs one iteration. If it is the last one, returns the reason.
    fn turn(&mut self) -> Option<Refused> {
        let (embed, gone, renew) = {
            let mut inner = self.shared.lock();
            loop {
                if inner.stop.is_some_and(|until| Instant::now() >= until) {
                    return Some(Refused::Stopping);
                }
                let news = self.shared.heard();
                let idle = match self.running.is_empty() {
                    true => inner.waiting.len() == 0 && self.launched.is_none(),
                    false => self.stuck && !news,
                };
                let gone = inner.waiting.drain(ActiveRequest::is_cancelled);
                let embed = inner.embeds.pop_front();
                let renew = inner.renew.take();
                if renew.is_some() || embed.is_some() || !gone.is_empty() || !idle {
                    break (embed, gone, renew);
                }
                if inner.stop.is_some() && self.running.is_empty() {
                    return Some(Refused::Stopping);
                }
                let most = if self.running.is_empty() { MAX_IDLE_WAIT } else { MAX_MASK_WAIT };
                inner = self.shared.wait(inner, most);
                self.stuck = false;
                if self.seen.state == State::Short {
                    break (None, vec![], None);
                }
            }
        };
        gone.into_iter().for_each(|job| self.end(job, End::Done(Reason::Cancelled)));
        self.cancel();
        if let Some(why) = renew
            && let Some(ended) = self.fault(Failure::Device(why))
        {
            return Some(ended);
        }
        if let Some(embed) = embed
            && let Some(ended) = self.embed(embed)
        {
            return Some(ended);
        }
        self.admit();
        self.stuck = false;
        let idle = self.running.is_empty() && self.launched.is_none();
        let lost = if idle { None } else { self.step() };
        if self.seen.state == State::Short && self.running.is_empty() {
            self.try_memory();
        }
        self.publish();
        lost
    }

    /// Ends cancelled requests.
    fn cancel(&mut self) {
        let (gone, going): (Vec<Running>, _) =
            std::mem::take(&mut self.running).into_iter().partition(|r| r.job.is_cancelled());
        self.running = going;
        gone.into_iter().for_each(|r| self.finish(r, End::Done(Reason::Cancelled)));
    }

    /// Ends a request.
    pub fn end(&mut self, mut job: ActiveRequest, end: End) {
        match &end {
            End::Done(Reason::Cancelled) => self.seen.cancelled += 1,
            End::Done(reason) => {
                let cut = matches!(reason, Reason::Length | Reason::ContextFull);
                self.seen.ended(&job.usage, job.submitted.elapsed(), cut);
            }
            End::Failed(_) => self.seen.failed += 1,
        }
        // The status is published first, so a client that sees the end finds its request counted.
        self.publish();
        job.end(end);
        let took = job.usage.total.saturating_sub(job.usage.queued).as_secs_f64();
        self.usual += (took - self.usual) / 16.0;
    }

    /// Handles a fault: all running requests fail, and the model is reopened. If it cannot be
    /// reopened, returns the reason.
    pub fn fault(&mut self, failure: Failure) -> Option<Refused> {
        // The session must release the device before it can be reopened.
        self.session = None;
        (self.launched, self.leaving) = (None, vec![]);
        self.forget_all();
        // These threads have the constraints of failed requests.
        self.masks = None;
        self.seen.state = State::Reopening;
        for r in std::mem::take(&mut self.running) {
            self.end(r.job, End::Failed(failure.clone()));
        }
        self.publish();
        let Some(reopen) = &mut self.reopen else {
            return Some(Refused::Lost(failure.to_string()));
        };
        match guarded(reopen) {
            Ok(Ok(session)) => {
                {
                    let mut inner = self.shared.lock();
                    // Reopening also satisfies the requests to reopen that arrived meanwhile.
                    (inner.facts, inner.renew) = (facts(&session), None);
                }
                self.session = Some(session);
                self.seen.reopened += 1;
                self.seen.state = State::Ready;
                None
            }
            Ok(Err(why)) => Some(Refused::Lost(why)),
            Err(again) => Some(Refused::Lost(again.to_string())),
        }
    }

    /// Computes an embedding. After a fault the model is reopened. If it cannot be reopened,
    /// returns the reason.
    fn embed(&mut self, embed: Embed) -> Option<Refused> {
        let made = match &mut self.session {
            Some(session) => guarded(|| session.embed(&embed.tokens)),
            None => Err(Failure::Request("the model is being opened again".to_owned())),
        };
        let made = made.and_then(|made| {
            made.map_err(|e| match e {
                SessionError::Lost(why) => Failure::Device(why),
                e @ SessionError::Memory { .. } => Failure::Memory(e.to_string()),
                e => Failure::Request(e.to_string()),
            })
        });
        let fault = match &made {
            Err(failure @ (Failure::Device(_) | Failure::Panic(_))) => Some(failure.clone()),
            _ => None,
        };
        match &made {
            Ok(_) => {
                (self.seen.embeddings, self.seen.done) =
                    (self.seen.embeddings + 1, self.seen.done + 1)
            }
            Err(_) => self.seen.failed += 1,
        }
        self.publish();
        let _ = guarded(|| (embed.sink)(made));
        fault.and_then(|failure| self.fault(failure))
    }

    /// Removes all cached texts.
    fn forget_all(&mut self) {
        self.kept.clear();
        self.prefixes.clear();
        self.blocks.iter_mut().for_each(SequenceBlocks::clear);
    }

    /// Publishes the status.
    pub fn publish(&mut self) {
        // Pages that a running sequence also references are counted for the sequence.
        let alone =
            |page: u32| self.session.as_ref().is_some_and(|session| session.page_users(page) == 1);
        let in_pages: usize =
            self.prefixes.filled().filter(|(page, _)| alone(*page)).map(|(_, tokens)| tokens).sum();
        let kept_tokens = self.kept.tokens() + in_pages;
        self.seen.pages = self.session.as_ref().and_then(Session::pages);
        self.seen.running = self.running.len();
        let with_adapters =
            |r: &Running| r.job.adapters.is_some() || !r.job.loaded_adapters.is_empty();
        self.seen.running_adapters = match self.running.iter().any(with_adapters) {
            true => names(self.running.iter().map(|r| &r.job), &self.adapter_names),
            false => vec![],
        };
        self.seen.prefilling = self.running.iter().filter(|r| r.rest().len() > 1).count();
        self.seen.kept_slots = self.kept.len();
        self.seen.kept_tokens = kept_tokens;
        self.seen.kept_states = self.prefixes.copies();
        self.seen.held_tokens = match (&self.session, self.seen.pages) {
            (Some(session), Some(pages)) => {
                let running = self.running.iter().map(|r| (session.pages_of(r.id), r.fed));
                held(pages.total, running, self.prefixes.filled())
            }
            _ => kept_tokens + self.running.iter().map(|r| r.fed).sum::<usize>(),
        };
        if let Some(blocks) = &mut self.blocks {
            blocks.keep_only(|id| {
                self.kept.has(id)
                    || self.running.iter().any(|r| r.id == id)
                    || self.leaving.iter().any(|leaving| leaving.id == id)
            });
        }
        self.shared.show(&self.seen, self.usual);
    }
}
