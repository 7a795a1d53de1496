//! The ids of special tokens.

/// The ids of special tokens; `None` if the vocabulary lacks the token or the file does not name
/// it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpecialIds {
    /// Begin of sequence (BERT: CLS).
    pub bos: Option<u32>,
    /// End of sequence.
    pub eos: Option<u32>,
    /// End of turn.
    pub eot: Option<u32>,
    /// End of message (a tool call follows).
    pub eom: Option<u32>,
    /// Unknown.
    pub unk: Option<u32>,
    /// Separator.
    pub sep: Option<u32>,
    /// Padding.
    pub pad: Option<u32>,
    /// Mask.
    pub mask: Option<u32>,
    /// Fill in the middle: padding.
    pub fim_pad: Option<u32>,
    /// Fill in the middle: name of the repository.
    pub fim_rep: Option<u32>,
    /// Fill in the middle: next file.
    pub fim_sep: Option<u32>,
}
