//! Options of a sampler.

use super::{Dry, DynamicTemperature, Mirostat, Xtc};
use crate::NonExhaustive;

/// Options of a sampler. They apply in this order: biases and the mask, penalties, DRY, then
/// (unless greedy) top-nσ, top-k, temperature, top-p, min-p, typical, XTC, and a draw. [`Mirostat`]
/// replaces all cuts from top-nσ on.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct SampleOptions {
    /// Divides logits before the softmax; 0 is greedy.
    pub temperature: f32,
    /// Keeps the `top_k` most likely tokens; 0 keeps all.
    pub top_k: usize,
    /// Keeps the most likely tokens up to this sum of probabilities; 1 keeps all.
    pub top_p: f32,
    /// Keeps tokens with at least `min_p` times the largest probability; 0 keeps all.
    pub min_p: f32,
    /// Divides positive logits of recent tokens and multiplies negative ones (Keskar et al. 2019,
    /// arXiv 1909.05858). With 1 there is no change.
    pub repeat_penalty: f32,
    /// Subtracted once from logits of recent tokens.
    pub presence_penalty: f32,
    /// Subtracted from logits of recent tokens for each occurrence.
    pub frequency_penalty: f32,
    /// The number of last tokens that count as recent.
    pub window: usize,
    /// The seed of the random numbers.
    pub seed: u64,
    /// Added to the logits of these tokens first; −∞ forbids a token.
    pub bias: Vec<(u32, f32)>,
    /// Keeps tokens whose logit is at most this many standard deviations below the largest (top-nσ,
    /// arXiv 2411.07641); 0 keeps all tokens. Only the CPU supports this field and all fields
    /// below.
    pub top_n_sigma: f32,
    /// Keeps the tokens whose surprise is nearest to the entropy, up to this sum of probabilities
    /// (locally typical sampling, arXiv 2202.00666); 1 keeps all.
    pub typical_p: f32,
    /// Removes likely tokens in some of the draws.
    pub xtc: Xtc,
    /// A temperature that follows the entropy.
    pub dynamic_temperature: DynamicTemperature,
    /// Penalises tokens that would continue a repetition.
    pub dry: Dry,
    /// Keeps the surprise of the answer near a target.
    pub mirostat: Option<Mirostat>,
    #[doc(hidden)]
    #[serde(skip)]
    pub _more: NonExhaustive,
}

impl SampleOptions {
    /// Whether logits depend on tokens that were chosen before.
    pub fn penalises(&self) -> bool {
        self.repeat_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }

    /// Whether the CPU must choose, because an option is not supported on a device.
    pub fn needs_host(&self) -> bool {
        let drawn = self.temperature > 0.0
            && (self.top_n_sigma > 0.0
                || self.typical_p < 1.0
                || self.xtc.cuts()
                || self.dynamic_temperature.range > 0.0
                || self.mirostat.is_some());
        drawn || self.dry.penalises()
    }
}

impl Default for SampleOptions {
    /// Greedy, without penalties.
    fn default() -> Self {
        SampleOptions {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repeat_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            window: 64,
            seed: 0,
            bias: vec![],
            top_n_sigma: 0.0,
            typical_p: 1.0,
            xtc: Xtc::default(),
            dynamic_temperature: DynamicTemperature::default(),
            dry: Dry::default(),
            mirostat: None,
            _more: NonExhaustive::default(),
        }
    }
}
