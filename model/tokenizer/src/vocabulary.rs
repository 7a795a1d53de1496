//! A vocabulary as in the file, before defaults and corrections.

use super::error::TokenizerError;
use crate::special_ids::SpecialIds;
use kjit_gguf::{Gguf, Value};

/// The tokenizer keys of a file. Texts are borrowed: they are copied in [`super::Tokenizer::new`].
#[derive(Debug, Clone, Default)]
pub struct Vocabulary<'a> {
    /// `tokenizer.ggml.model`: the algorithm (`gpt2`, `llama`, `bert`, …).
    pub model: &'a str,
    /// `tokenizer.ggml.pre`: the pre-tokenizer of byte-level BPE.
    pub pre: Option<&'a str>,
    /// `tokenizer.ggml.tokens`: the token texts by id.
    pub tokens: Vec<&'a [u8]>,
    /// `tokenizer.ggml.scores`: one per token (SentencePiece).
    pub scores: Option<Vec<f32>>,
    /// `tokenizer.ggml.never_score`: a token with this score or a lower one is never the result of
    /// a join (SentencePiece; only folders of safetensors, in which no merge produces some tokens).
    pub never: Option<f32>,
    /// `tokenizer.ggml.token_type`: one per token (1 normal, 2 unknown, 3 control, 4 user-defined,
    /// 5 unused, 6 byte).
    pub types: Option<Vec<i32>>,
    /// `tokenizer.ggml.merges`: `left right`, by rank (BPE).
    pub merges: Option<Vec<&'a [u8]>>,
    /// Ids of special tokens that the file names.
    pub special: SpecialIds,
    /// Ids for fill-in-the-middle that the file names.
    pub special_fim: FimIds,
    /// `tokenizer.ggml.eog_token_ids`: further tokens that end a generation (only folders of
    /// safetensors).
    pub eog: Vec<u32>,
    /// `tokenizer.ggml.lstrip_token_ids`: tokens that include the white space before them (only
    /// folders of safetensors).
    pub lstrip: Vec<u32>,
    /// `tokenizer.ggml.rstrip_token_ids`: tokens that include the white space after them.
    pub rstrip: Vec<u32>,
    /// `tokenizer.ggml.no_bos_token`: there is no BOS. The algorithm's default is not used either
    /// (only folders of safetensors).
    pub no_bos: bool,
    /// `tokenizer.ggml.add_bos_token`.
    pub add_bos: Option<bool>,
    /// `tokenizer.ggml.add_eos_token`.
    pub add_eos: Option<bool>,
    /// `tokenizer.ggml.add_space_prefix`.
    pub add_space_prefix: Option<bool>,
    /// `tokenizer.ggml.normalizer.lowercase` (BERT).
    pub lowercase: Option<bool>,
    /// `tokenizer.ggml.normalizer.strip_accents` (BERT).
    pub strip_accents: Option<bool>,
    /// `tokenizer.ggml.remove_extra_whitespaces` (T5).
    pub merge_spaces: Option<bool>,
    /// `tokenizer.ggml.precompiled_charsmap`: the rules of normalisation (T5).
    pub charsmap: Vec<u8>,
    /// `general.name`: some rules depend on the model.
    pub name: Option<&'a str>,
    /// `general.architecture`.
    pub architecture: Option<&'a str>,
}

impl<'a> Vocabulary<'a> {
    /// Reads the keys `tokenizer.ggml.*` of a model or a vocabulary-only file.
    ///
    /// # Errors
    /// A key has the wrong type, or `tokenizer.ggml.model` is missing.
    pub fn from_gguf(file: &'a Gguf) -> Result<Vocabulary<'a>, TokenizerError> {
        let key = |name: &str| format!("tokenizer.ggml.{name}");
        let id = |name: &str| file.opt_u32(&key(name));
        let flag = |name: &str| file.opt_bool(&key(name));
        let either = |name: &str, old: &str| Ok::<_, TokenizerError>(id(name)?.or(id(old)?));
        // These two names only select rules. If they are not UTF-8, they select no rules.
        let name = |key: &str| match file.value(key) {
            Some(Value::Str(name)) => std::str::from_utf8(name).ok(),
            _ => None,
        };
        Ok(Vocabulary {
            model: file.require_str(&key("model"))?,
            pre: file.opt_str(&key("pre"))?,
            tokens: file.opt_strings(&key("tokens"))?.map(Iterator::collect).unwrap_or_default(),
            scores: scores(file, &key("scores"))?,
            never: file.opt_f32(&key("never_score"))?,
            types: file.opt_i32s(&key("token_type"))?,
            merges: file.opt_strings(&key("merges"))?.map(Iterator::collect),
            special: SpecialIds {
                bos: id("bos_token_id")?,
                eos: id("eos_token_id")?,
                eot: id("eot_token_id")?,
                eom: id("eom_token_id")?,
                unk: id("unknown_token_id")?,
                sep: id("seperator_token_id")?,
                pad: id("padding_token_id")?,
                mask: id("mask_token_id")?,
                fim_pad: id("fim_pad_token_id")?,
                fim_rep: id("fim_rep_token_id")?,
                fim_sep: id("fim_sep_token_id")?,
            },
            special_fim: FimIds {
                pre: either("fim_pre_token_id", "prefix_token_id")?,
                suf: either("fim_suf_token_id", "suffix_token_id")?,
                mid: either("fim_mid_token_id", "middle_token_id")?,
            },
            eog: file.opt_u32s(&key("eog_token_ids"))?.unwrap_or_default(),
            lstrip: file.opt_u32s(&key("lstrip_token_ids"))?.unwrap_or_default(),
            rstrip: file.opt_u32s(&key("rstrip_token_ids"))?.unwrap_or_default(),
            no_bos: flag("no_bos_token")?.unwrap_or(false),
            add_bos: flag("add_bos_token")?,
            add_eos: flag("add_eos_token")?,
            add_space_prefix: flag("add_space_prefix")?,
            lowercase: flag("normalizer.lowercase")?,
            strip_accents: flag("normalizer.strip_accents")?,
            merge_spaces: flag("remove_extra_whitespaces")?,
            charsmap: file
                .opt_i32s(&key("precompiled_charsmap"))?
                .map(|bytes| bytes.into_iter().map(|b| b as u8).collect())
                .unwrap_or_default(),
            name: name("general.name"),
            architecture: name("general.architecture"),
        })
    }
}

/// The scores: floats, or integers in some files.
fn scores(file: &Gguf, key: &str) -> Result<Option<Vec<f32>>, TokenizerError> {
    Ok(match file.value(key) {
        Some(Value::Array(array)) if !array.elem().is_float() => {
            file.opt_i32s(key)?.map(|scores| scores.into_iter().map(|score| score as f32).collect())
        }
        _ => file.opt_f32s(key)?,
    })
}

/// Ids of the fill-in-the-middle tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FimIds {
    /// Token before the text that precedes the gap.
    pub pre: Option<u32>,
    /// Token before the text that follows the gap.
    pub suf: Option<u32>,
    /// Token before the text that the model fills in.
    pub mid: Option<u32>,
}
