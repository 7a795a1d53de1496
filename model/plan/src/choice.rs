//! The choice of a token, and its arguments.

/// The method that chooses the next token from the logits.
#[derive(Debug, Clone, Copy, PartialEq)]
#[doc(hidden)]
pub enum Choice {
    /// The most likely token.
    Greedy,
    /// A random token.
    Draw {
        /// Chooses among the `top_k` most likely tokens; 0: all tokens.
        top_k: u32,
        /// Factor of logits: 1 / temperature.
        inverse: f32,
        /// Draws among the most likely tokens up to this sum of probabilities.
        top_p: f32,
        /// Draws among tokens with at least this fraction of the largest probability.
        min_p: f32,
    },
}

/// An argument of the choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[doc(hidden)]
pub enum SamplingArg {
    /// Top-k of [`Choice::Draw`].
    TopK,
    /// The inverse temperature of [`Choice::Draw`].
    Inverse,
    /// Top-p of [`Choice::Draw`].
    TopP,
    /// Min-p of [`Choice::Draw`].
    MinP,
}

/// A kernel argument's value.
#[derive(Debug, Clone, Copy, PartialEq)]
#[doc(hidden)]
pub enum Number {
    /// An integer.
    U32(u32),
    /// A float.
    F32(f32),
}

impl SamplingArg {
    /// The argument's value.
    pub fn of(self, choice: Choice) -> Number {
        let (top_k, inverse, top_p, min_p) = match choice {
            Choice::Greedy => (1, 1.0, 1.0, 0.0),
            Choice::Draw { top_k, inverse, top_p, min_p } => (top_k, inverse, top_p, min_p),
        };
        match self {
            SamplingArg::TopK => Number::U32(top_k),
            SamplingArg::Inverse => Number::F32(inverse),
            SamplingArg::TopP => Number::F32(top_p),
            SamplingArg::MinP => Number::F32(min_p),
        }
    }
}
