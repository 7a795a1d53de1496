//! Token types, special tokens and end-of-generation tokens, with defaults for missing keys.

use super::error::TokenizerError;
use super::table::TokenTable;
use super::vocabulary::{FimIds, Vocabulary};
use crate::special_ids::SpecialIds;

/// Types and attributes of a token as a bit set. kjit's corrections are added to the file's types.
pub mod attr {
    pub const NORMAL: u8 = 1;
    pub const UNKNOWN: u8 = 2;
    pub const CONTROL: u8 = 4;
    pub const USER_DEFINED: u8 = 8;
    pub const UNUSED: u8 = 16;
    pub const BYTE: u8 = 32;
    /// White space before the token belongs to it.
    pub const LSTRIP: u8 = 64;
    /// White space after the token belongs to it.
    pub const RSTRIP: u8 = 128;
}

/// The attributes of a token type of the file (`tokenizer.ggml.token_type`).
fn of_type(ty: i32) -> u8 {
    match ty {
        1 => attr::NORMAL,
        2 => attr::UNKNOWN,
        3 => attr::CONTROL,
        4 => attr::USER_DEFINED,
        5 => attr::UNUSED,
        6 => attr::BYTE,
        _ => 0,
    }
}

const EOT: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "<｜end▁of▁sentence｜>",
    "<end_of_utterance>",
];
const EOM: &[&str] = &["<|eom_id|>"];
const FIM_PRE: &[&str] = &[
    "<|fim_prefix|>",
    "<fim-prefix>",
    "<fim_prefix>",
    "<｜fim▁begin｜>",
    "<PRE>",
    "▁<PRE>",
    "<|code_prefix|>",
    "<|prefix|>",
];
const FIM_SUF: &[&str] = &[
    "<|fim_suffix|>",
    "<fim-suffix>",
    "<fim_suffix>",
    "<｜fim▁hole｜>",
    "<SUF>",
    "▁<SUF>",
    "<|code_suffix|>",
    "<|suffix|>",
];
const FIM_MID: &[&str] = &[
    "<|fim_middle|>",
    "<fim-middle>",
    "<fim_middle>",
    "<｜fim▁end｜>",
    "<MID>",
    "▁<MID>",
    "<|code_middle|>",
    "<|middle|>",
];
const FIM_PAD: &[&str] = &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"];
const FIM_REP: &[&str] = &["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"];
const FIM_SEP: &[&str] = &["<|file_sep|>"];

/// Tokens that end a generation, regardless of their type in the file.
const EOG: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];

/// Tokens that are treated as text although files mark them as control tokens (gpt-oss).
const ALWAYS_TEXT: &[&str] = &["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"];

/// The result of [`resolve`].
#[derive(Debug)]
pub struct Resolved {
    pub ids: SpecialIds,
    /// Ids for fill-in-the-middle.
    pub fim: FimIds,
    /// Attributes of each token.
    pub attrs: Vec<u8>,
    /// Ids that end a generation, in ascending order.
    pub eog: Vec<u32>,
    /// Warnings about ignored parts of the file.
    pub remarks: Vec<String>,
}

/// Resolves ids from the file, the algorithm's `defaults` and well-known texts. Corrects types that
/// are wrong in some files.
pub fn resolve(
    vocabulary: &Vocabulary<'_>,
    table: &TokenTable,
    n_vocab: u32,
    defaults: SpecialIds,
) -> Result<Resolved, TokenizerError> {
    let mut attrs: Vec<u8> = match &vocabulary.types {
        Some(types) => types.iter().map(|&ty| of_type(ty)).collect(),
        None => vec![attr::NORMAL; n_vocab as usize],
    };
    attrs.truncate(n_vocab as usize);
    let mut remarks = Vec::new();
    let mut ids = given(vocabulary, n_vocab, defaults, &mut remarks)?;

    let find = |text: &str| table.get(text.as_bytes()).filter(|&id| id < n_vocab);
    let set = |attrs: &mut Vec<u8>, id: u32, f: fn(u8) -> u8| {
        if let Some(a) = attrs.get_mut(id as usize) {
            *a = f(*a);
        }
    };
    let control = |a: u8| a | attr::CONTROL;
    let mut by_text = |names: &[&str]| {
        let id = names.iter().find_map(|text| find(text))?;
        set(&mut attrs, id, control);
        Some(id)
    };
    ids.eot = ids.eot.or_else(|| by_text(EOT));
    ids.eom = ids.eom.or_else(|| by_text(EOM));
    let named = vocabulary.special_fim;
    let mut fim_id = |named: Option<u32>, texts| match named.filter(|id| *id < n_vocab) {
        Some(id) => Some(id),
        // The file names a token, so the well-known texts are not control tokens.
        None if named.is_some() => None,
        None => by_text(texts),
    };
    let fim = FimIds {
        pre: fim_id(named.pre, FIM_PRE),
        suf: fim_id(named.suf, FIM_SUF),
        mid: fim_id(named.mid, FIM_MID),
    };
    ids.fim_pad = ids.fim_pad.or_else(|| by_text(FIM_PAD));
    ids.fim_rep = ids.fim_rep.or_else(|| by_text(FIM_REP));
    ids.fim_sep = ids.fim_sep.or_else(|| by_text(FIM_SEP));

    let mut eog: Vec<u32> = [ids.fim_pad, ids.fim_rep, ids.fim_sep].into_iter().flatten().collect();
    for id in EOG.iter().filter_map(|text| find(text)) {
        eog.push(id);
        set(&mut attrs, id, control);
    }
    for id in ALWAYS_TEXT.iter().filter_map(|text| find(text)) {
        set(&mut attrs, id, |_| attr::USER_DEFINED);
    }
    eog.extend([ids.eos, ids.eot, ids.eom].into_iter().flatten());
    eog.extend(vocabulary.eog.iter().filter(|id| **id < n_vocab));

    // If <|return|> or <|flush|> ends a turn and calls have their own end token, <|end|> ends only
    // a message.
    let has = |eog: &[u32], text: &str| find(text).filter(|id| eog.contains(id));
    let calls = has(&eog, "<|call|>").or(has(&eog, "<|calls|>")).is_some();
    let own_end = has(&eog, "<|return|>").is_some() || has(&eog, "<|flush|>").is_some();
    if let (true, true, Some(end)) = (calls, own_end, has(&eog, "<|end|>")) {
        eog.retain(|&id| id != end);
        set(&mut attrs, end, |_| attr::USER_DEFINED);
    }
    // Vocabularies with their own end tokens. In them, </s> is text.
    let marked = has(&eog, "<|tool_response>").or(has(&eog, "<|plamo:eos|>")).is_some();
    if let (true, Some(s)) = (marked, has(&eog, "</s>")) {
        eog.retain(|&id| id != s);
        set(&mut attrs, s, |_| attr::NORMAL);
    }
    eog.sort_unstable();
    eog.dedup();

    set_strip_flags(vocabulary, &find, &mut attrs);
    Ok(Resolved { ids, fim, attrs, eog, remarks })
}

/// The ids of the file, or the defaults if it has none. Some converters write `u32::MAX` for
/// "none". The padding token is optional: if its id is outside the vocabulary, this is a warning
/// and not an error.
fn given(
    vocabulary: &Vocabulary<'_>,
    n_vocab: u32,
    defaults: SpecialIds,
    remarks: &mut Vec<String>,
) -> Result<SpecialIds, TokenizerError> {
    let pick = |key: &str, given: Option<u32>, default: Option<u32>| match given {
        Some(id) if id < n_vocab => Ok(Some(id)),
        Some(id) if id != u32::MAX => Err(TokenizerError::vocabulary(
            &format!("tokenizer.ggml.{key}"),
            format!("{id} is outside the vocabulary (0..{n_vocab})"),
        )),
        _ => Ok(default.filter(|&id| id < n_vocab)),
    };
    let s = vocabulary.special;
    let pad = s.pad.filter(|&id| id < n_vocab || id == u32::MAX);
    if let Some(id) = s.pad.filter(|_| pad.is_none()) {
        remarks.push(format!(
            "tokenizer.ggml.padding_token_id {id} is outside the vocabulary (0..{n_vocab}): ignored"
        ));
    }
    Ok(SpecialIds {
        bos: pick("bos_token_id", s.bos, defaults.bos.filter(|_| !vocabulary.no_bos))?,
        eos: pick("eos_token_id", s.eos, defaults.eos)?,
        eot: pick("eot_token_id", s.eot, defaults.eot)?,
        eom: pick("eom_token_id", s.eom, defaults.eom)?,
        unk: pick("unknown_token_id", s.unk, defaults.unk)?,
        sep: pick("seperator_token_id", s.sep, defaults.sep)?,
        pad: pick("padding_token_id", pad, defaults.pad)?,
        mask: pick("mask_token_id", s.mask, defaults.mask)?,
        fim_pad: pick("fim_pad_token_id", s.fim_pad, defaults.fim_pad)?,
        fim_rep: pick("fim_rep_token_id", s.fim_rep, defaults.fim_rep)?,
        fim_sep: pick("fim_sep_token_id", s.fim_sep, defaults.fim_sep)?,
    })
}

/// Sets the special tokens that include adjacent white space. Folders contain this information.
/// GGUF files do not contain it, although the models' own tokenizers use it.
fn set_strip_flags(
    vocabulary: &Vocabulary<'_>,
    find: &dyn Fn(&str) -> Option<u32>,
    attrs: &mut [u8],
) {
    let pre = vocabulary.pre.unwrap_or_default();
    let arch = vocabulary.architecture.unwrap_or_default();
    let name = vocabulary.name.unwrap_or_default().to_lowercase();
    let change = |attrs: &mut [u8], text: &str, f: fn(u8) -> u8| {
        if let Some(a) = find(text).and_then(|id| attrs.get_mut(id as usize)) {
            *a = f(*a);
        }
    };
    if ["jina-v2-de", "jina-v2-es", "jina-v2-code"].iter().any(|p| pre.contains(p))
        || ["nomic-bert-moe", "jina-bert-v3"].iter().any(|a| arch.contains(a))
    {
        change(attrs, "<mask>", |a| a | attr::LSTRIP);
    } else if name.contains("phi-3") || name.contains("phi3") {
        for a in attrs
            .iter_mut()
            .filter(|a| **a & (attr::CONTROL | attr::USER_DEFINED | attr::UNKNOWN) != 0)
        {
            *a |= attr::RSTRIP;
        }
        change(attrs, "</s>", |a| a | attr::RSTRIP);
        for text in ["<unk>", "<s>", "<|endoftext|>"] {
            change(attrs, text, |a| a & !attr::RSTRIP);
        }
    } else if name.contains("modern-bert") {
        change(attrs, "[MASK]", |a| a | attr::LSTRIP);
    }
    for (ids, flag) in [(&vocabulary.lstrip, attr::LSTRIP), (&vocabulary.rstrip, attr::RSTRIP)] {
        for id in ids {
            if let Some(a) = attrs.get_mut(*id as usize) {
                *a |= flag;
            }
        }
    }
}
