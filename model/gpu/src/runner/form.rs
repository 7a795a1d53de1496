//! The forms in which a token's work is given to the device, and the choice between them.

use super::GpuRunner;
use kjit_exec::{
    DecodeControl, Runner as _, SampleOptions, Sampler, SessionError, StepOutput, Task, Want,
};
use std::time::{Duration, Instant};

/// The form in which a token's work is given to the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// Each kernel is a launch by the host.
    Launches,
    /// The launches are a captured graph, which the host replays.
    Graph,
    /// One launch of a persistent kernel computes the token. A captured graph contains it and the
    /// choice of the next token.
    OneLaunch,
}

impl Form {
    /// All forms.
    pub const ALL: [Form; 3] = [Form::Launches, Form::Graph, Form::OneLaunch];

    /// The name in reports and in the cache.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Form::Launches => "launches",
            Form::Graph => "graph",
            Form::OneLaunch => "one_launch",
        }
    }

    /// The form of this name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Form> {
        Form::ALL.into_iter().find(|form| form.name() == name)
    }
}

/// Tokens before a measurement.
const WARMUP_TOKENS: usize = 3;
/// Tokens between two readings of the clock.
const CLOCK_TOKENS: usize = 8;

impl GpuRunner {
    /// The form in use.
    #[must_use]
    pub fn form(&self) -> Form {
        match (self.loaded.persistent.is_empty(), self.captures) {
            (false, _) => Form::OneLaunch,
            (true, true) => Form::Graph,
            (true, false) => Form::Launches,
        }
    }

    /// Whether this model on this device has a form: the runtime captures graphs, or there is a
    /// persistent kernel.
    #[must_use]
    pub fn has_form(&self, form: Form) -> bool {
        match form {
            Form::Launches => true,
            Form::Graph => self.may_capture,
            Form::OneLaunch => !self.loaded.persistent.is_empty() || !self.shelved.is_empty(),
        }
    }

    /// Switches to a form between two tokens. Returns `false`, and changes nothing, if the form
    /// does not exist here.
    ///
    /// # Errors
    /// A device fault.
    pub fn set_form(&mut self, form: Form) -> Result<bool, SessionError> {
        if !self.has_form(form) {
            return Ok(false);
        }
        if form == self.form() {
            return Ok(true);
        }
        // A captured graph must not be dropped while it runs.
        self.loaded.stream.synchronize()?;
        self.recordings.clear();
        self.drafts.clear();
        let one = form == Form::OneLaunch;
        if one == self.loaded.persistent.is_empty() {
            std::mem::swap(&mut self.loaded.persistent, &mut self.shelved);
        }
        self.captures = self.may_capture && form != Form::Launches;
        Ok(true)
    }

    /// Frees the persistent kernels if another form is in use. A persistent kernel that is still
    /// being compiled is then not used by this runner.
    pub(crate) fn keep_form(&mut self) {
        self.shelved.clear();
        self.untried = true;
    }

    /// Whether the persistent kernel is still being compiled.
    pub(crate) fn compiles_one_launch(&self) -> bool {
        self.one_launch_late
    }

    /// Seconds of a token in the form in use, decoded greedily from an empty sequence, for about
    /// `at_most`. No sequence may be open.
    pub(crate) fn seconds_a_token(&mut self, at_most: Duration) -> Result<f64, SessionError> {
        let room = self.context.saturating_sub(2);
        self.decode_some(WARMUP_TOKENS.min(room).max(1))?;
        let (began, mut tokens) = (Instant::now(), 0);
        loop {
            let n = CLOCK_TOKENS.min(room).max(1);
            self.decode_some(n)?;
            tokens += n;
            let spent = began.elapsed();
            if spent >= at_most {
                return Ok(spent.as_secs_f64() / tokens as f64);
            }
        }
    }

    /// Decodes `n` tokens of an empty sequence and removes them.
    fn decode_some(&mut self, n: usize) -> Result<(), SessionError> {
        let mut sampler = Sampler::new(SampleOptions::default());
        let mut left = n;
        let task =
            Task { slot: 0, first: 0, tokens: &[1], want: Want::Choose, sampler: &mut sampler };
        let (_, done) = self.decode(&mut [task], &mut |_, _| {
            left = left.saturating_sub(1);
            if left == 0 { DecodeControl::End } else { DecodeControl::Go }
        });
        self.remove(0);
        done
    }

    /// The logits after two tokens in the form in use. No sequence may be open.
    pub(crate) fn trial_logits(&mut self) -> Result<Vec<f32>, SessionError> {
        let mut logits = vec![];
        for (first, token) in [1u32, 2].into_iter().enumerate() {
            let mut sampler = Sampler::new(SampleOptions::default());
            let tokens = &[token];
            let task = Task { slot: 0, first, tokens, want: Want::Last, sampler: &mut sampler };
            if let Some(StepOutput::Logits(row)) = self.step(&mut [task], None)?.pop() {
                logits = row;
            }
        }
        self.remove(0);
        Ok(logits)
    }
}
