//! Ids to the text of an answer, piece by piece, up to a stop text.

use kjit_tokenizer::{Detokenizer, Tokenizer};
use std::ops::ControlFlow;

/// Why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum StopReason {
    /// The model chose an end-of-generation token.
    EndOfGeneration,
    /// The requested number of tokens was reached.
    Length,
    /// A stop text appeared. The answer ends before it.
    StopText,
    /// The context is full.
    ContextFull,
    /// The caller interrupted.
    Interrupted,
}

impl StopReason {
    /// The name in JSON output.
    pub fn as_str(self) -> &'static str {
        match self {
            StopReason::EndOfGeneration => "end_of_generation",
            StopReason::Length => "length",
            StopReason::StopText => "stop_text",
            StopReason::ContextFull => "context_full",
            StopReason::Interrupted => "interrupted",
        }
    }
}

/// Turns ids into text and holds back what may be the start of a stop text.
pub struct StopWatcher<'a> {
    detokenizer: Detokenizer<'a>,
    stop: &'a [String],
    /// All text so far that belongs to the answer.
    text: String,
    /// Bytes of `text` that were handed out.
    shown: usize,
}

impl<'a> StopWatcher<'a> {
    /// An answer that any of these texts ends.
    pub fn new(tokenizer: &'a Tokenizer, stop: &'a [String]) -> Self {
        StopWatcher {
            detokenizer: Detokenizer::new(tokenizer, false),
            stop,
            text: String::new(),
            shown: 0,
        }
    }

    /// The same where these control tokens are text too: those that a [reply's
    /// form](crate::Form) is told by.
    pub fn showing(tokenizer: &'a Tokenizer, stop: &'a [String], markers: &[&str]) -> Self {
        let markers = markers.iter().filter_map(|text| tokenizer.special_id(text)).collect();
        let detokenizer = Detokenizer::new(tokenizer, false).showing(markers);
        StopWatcher { detokenizer, stop, text: String::new(), shown: 0 }
    }

    /// The next token. What is certain goes to `on_text`; breaking there interrupts.
    pub fn push(
        &mut self,
        id: u32,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> ControlFlow<StopReason> {
        // An id without text (a vocabulary padded beyond its tokens) says nothing.
        let Ok(Some(piece)) = self.detokenizer.push(id) else { return ControlFlow::Continue(()) };
        // A stop text may have begun in earlier pieces, but not before what was shown.
        self.text.push_str(&piece);
        let unseen = self.text.get(self.shown..).unwrap_or_default();
        let found = self
            .stop
            .iter()
            .filter(|s| !s.is_empty())
            .filter_map(|s| unseen.find(s.as_str()))
            .min();
        if let Some(at) = found {
            self.text.truncate(self.shown + at);
            let _ = self.show(self.text.len(), on_text);
            return ControlFlow::Break(StopReason::StopText);
        }
        let held = self.stop.iter().map(|s| partial_suffix(unseen, s)).max().unwrap_or(0);
        match self.show(self.text.len() - held, on_text) {
            ControlFlow::Break(()) => ControlFlow::Break(StopReason::Interrupted),
            ControlFlow::Continue(()) => ControlFlow::Continue(()),
        }
    }

    /// The end, unless a stop text was it: text that was held back turned out to begin none.
    pub fn finish(&mut self, on_text: &mut dyn FnMut(&str) -> ControlFlow<()>) {
        let rest = self.detokenizer.finish().unwrap_or_default();
        self.text.push_str(&rest);
        let _ = self.show(self.text.len(), on_text);
    }

    /// The end where the answer was cut: as [`StopWatcher::finish`], without a character whose last
    /// bytes did not come.
    pub fn cut(&mut self, on_text: &mut dyn FnMut(&str) -> ControlFlow<()>) {
        self.detokenizer.finish();
        let _ = self.show(self.text.len(), on_text);
    }

    /// All of the answer's text.
    pub fn into_text(self) -> String {
        self.text
    }

    fn show(
        &mut self,
        until: usize,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let piece = self.text.get(self.shown..until).unwrap_or_default();
        self.shown = until;
        if piece.is_empty() { ControlFlow::Continue(()) } else { on_text(piece) }
    }
}

/// The length of the longest end of `text` that begins `stop` without being all of it.
pub(crate) fn partial_suffix(text: &str, stop: &str) -> usize {
    stop.char_indices()
        .map(|(i, _)| i)
        .skip(1)
        .filter(|&i| text.ends_with(stop.get(..i).unwrap_or(stop)))
        .max()
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::partial_suffix;

    #[test]
    fn the_longest_possible_beginning_of_a_stop_text_is_held_back() {
        assert_eq!(partial_suffix("hello <|im", "<|im_end|>"), 4);
        assert_eq!(partial_suffix("hello", "<|im_end|>"), 0);
        assert_eq!(partial_suffix("aab", "aabaac"), 3);
        assert_eq!(partial_suffix("ü", "üx"), 2);
    }
}
