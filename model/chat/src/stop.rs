//! Converts token ids to the text of an answer, step by step, until a stop string occurs.

use kjit_tokenizer::{Detokenizer, Tokenizer};
use std::ops::ControlFlow;

/// Why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum StopReason {
    /// The model chose an end-of-generation token.
    EndOfGeneration,
    /// The requested number of tokens was reached.
    Length,
    /// A stop string occurred. The answer ends before it.
    StopText,
    /// The context is full.
    ContextFull,
    /// The caller interrupted.
    Interrupted,
}

impl StopReason {
    /// The name of the reason in JSON output.
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
/// Decodes ids and holds back text that may be the start of a stop string.
pub struct StopWatcher<'a> {
    detokenizer: Detokenizer<'a>,
    stop: &'a [String],
    /// The text of the answer so far.
    text: String,
    /// Number of bytes of `text` that were passed to the callback.
    shown: usize,
    /// Index of the stop string that occurred.
    stopped_by: Option<usize>,
}

impl<'a> StopWatcher<'a> {
    /// A watcher for an answer that ends at any of the strings in `stop`.
    pub fn new(tokenizer: &'a Tokenizer, stop: &'a [String]) -> Self {
        StopWatcher {
            detokenizer: Detokenizer::new(tokenizer, false),
            stop,
            text: String::new(),
            shown: 0,
            stopped_by: None,
        }
    }

    /// Like [`StopWatcher::new`], but the control tokens in `markers` appear in the text. A
    /// [reply's format](crate::Form) is recognised by these tokens.
    pub fn showing(tokenizer: &'a Tokenizer, stop: &'a [String], markers: &[&str]) -> Self {
        let markers = markers.iter().filter_map(|text| tokenizer.special_id(text)).collect();
        let detokenizer = Detokenizer::new(tokenizer, false).showing(markers);
        StopWatcher { detokenizer, stop, text: String::new(), shown: 0, stopped_by: None }
    }

    /// Adds the next token. Text that cannot start a stop string is passed to `on_text`; `Break`
    /// interrupts.
    pub fn push(
        &mut self,
        id: u32,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> ControlFlow<StopReason> {
        // An id without text is ignored: vocabularies may be padded with unused ids.
        let Ok(Some(piece)) = self.detokenizer.push(id) else { return ControlFlow::Continue(()) };
        // A stop string may begin in earlier pieces, but not in text that was passed to the
        // callback.
        self.text.push_str(&piece);
        let unseen = self.text.get(self.shown..).unwrap_or_default();
        let found = self
            .stop
            .iter()
            .enumerate()
            .filter(|(_, s)| !s.is_empty())
            .filter_map(|(i, s)| Some((unseen.find(s.as_str())?, i)))
            .min();
        if let Some((at, i)) = found {
            self.stopped_by = Some(i);
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

    /// Ends an answer without a stop string: passes the text that was held back to `on_text`.
    pub fn finish(&mut self, on_text: &mut dyn FnMut(&str) -> ControlFlow<()>) {
        let rest = self.detokenizer.finish().unwrap_or_default();
        self.text.push_str(&rest);
        let _ = self.show(self.text.len(), on_text);
    }

    /// Ends a truncated answer. Like [`StopWatcher::finish`], but an incomplete last character is
    /// dropped.
    pub fn cut(&mut self, on_text: &mut dyn FnMut(&str) -> ControlFlow<()>) {
        self.detokenizer.finish();
        let _ = self.show(self.text.len(), on_text);
    }

    /// Index of the stop string that ended the answer.
    pub fn stopped_by(&self) -> Option<usize> {
        self.stopped_by
    }

    /// The answer's whole text.
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

/// The length of the longest proper prefix of `stop` with which `text` ends.
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
    fn possible_stop_prefix_is_held_back() {
        assert_eq!(partial_suffix("hello <|im", "<|im_end|>"), 4);
        assert_eq!(partial_suffix("hello", "<|im_end|>"), 0);
        assert_eq!(partial_suffix("aab", "aabaac"), 3);
        assert_eq!(partial_suffix("ü", "üx"), 2);
    }
}
