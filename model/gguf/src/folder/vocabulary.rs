//! Converts `tokenizer.json` to the vocabulary of a GGUF file. The ids are the same as in the GGUF
//! file of the model.
//!
//! Two kinds of BPE are supported. The first is byte-level (`gpt2` in GGUF) with a known
//! pre-tokenizer. The second works on characters, with bytes for unknown characters (`llama` in
//! GGUF, the format of SentencePiece). Its merges become scores: the first merge has the best
//! score.

use super::config::Config;
use super::error::FolderError;
use super::fail::fail;
use super::header::Header;
use super::json::{self, Object, short};
use super::pretokenizer;
use crate::{Error, QuotedText};
use serde::Deserialize;
use serde::de::{self, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;
use std::path::Path;

/// The used part of `tokenizer.json`.
#[derive(Deserialize)]
struct TokenizerJson<'a> {
    #[serde(default, deserialize_with = "read_bounded")]
    added_tokens: Vec<AddedToken>,
    // The steps as raw text: parsed values would take many times their length in memory.
    #[serde(borrow)]
    normalizer: Option<&'a RawValue>,
    #[serde(borrow)]
    pre_tokenizer: Option<&'a RawValue>,
    #[serde(borrow)]
    post_processor: Option<&'a RawValue>,
    model: Model,
}

/// Maximum bytes of a step. A step with a large character table has 400 kB.
const MAX_STEP: usize = json::MAX_SETTINGS as usize;

/// Maximum number of tokens, and of merges: four times the largest vocabulary, and twice its
/// merges.
const MAX_ENTRIES: usize = 1 << 20;

/// An added token. Merges do not produce it.
#[derive(Deserialize)]
struct AddedToken {
    id: u32,
    content: String,
    #[serde(default)]
    special: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    normalized: bool,
}

#[derive(Deserialize)]
struct Model {
    #[serde(deserialize_with = "read_bounded")]
    vocab: HashMap<String, u32>,
    #[serde(deserialize_with = "read_bounded")]
    merges: Vec<Merge>,
    unk_token: Option<String>,
    #[serde(default)]
    byte_fallback: Option<bool>,
    #[serde(default)]
    ignore_merges: Option<bool>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
}

/// The two parts of a merge. Old files have both parts in one string.
enum Merge {
    Text(String),
    Pair(String, String),
}

impl<'de> Deserialize<'de> for Merge {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Merge, D::Error> {
        from.deserialize_any(OneMerge)
    }
}

/// Deserialises a merge, and stops early if the value has a different structure.
struct OneMerge;

impl<'de> Visitor<'de> for OneMerge {
    type Value = Merge;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of two strings, or one string with a space")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Merge, E> {
        Ok(Merge::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Merge, A::Error> {
        match (list.next_element()?, list.next_element()?, list.next_element::<IgnoredAny>()?) {
            (Some(left), Some(right), None) => Ok(Merge::Pair(left, right)),
            _ => Err(de::Error::invalid_length(0, &self)),
        }
    }
}

/// Reads a list or a table of at most [`MAX_ENTRIES`] entries.
fn read_bounded<'de, D: Deserializer<'de>, T: Deserialize<'de> + Entries<'de>>(
    from: D,
) -> Result<T, D::Error> {
    T::read(from)
}

/// A container that is filled entry by entry.
trait Entries<'de>: Sized {
    fn read<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error>;
}

fn check_entry_count<E: de::Error>(have: usize) -> Result<(), E> {
    match have < MAX_ENTRIES {
        true => Ok(()),
        false => Err(E::custom(format_args!("more than the limit of {MAX_ENTRIES} entries"))),
    }
}

impl<'de, T: Deserialize<'de>> Entries<'de> for Vec<T> {
    fn read<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct List<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for List<T> {
            type Value = Vec<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Vec<T>, A::Error> {
                let mut list = vec![];
                while let Some(entry) = from.next_element()? {
                    check_entry_count(list.len())?;
                    list.push(entry);
                }
                Ok(list)
            }
        }
        from.deserialize_seq(List(PhantomData))
    }
}

impl<'de> Entries<'de> for HashMap<String, u32> {
    fn read<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Table;
        impl<'de> Visitor<'de> for Table {
            type Value = HashMap<String, u32>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with a number for each token")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Self::Value, A::Error> {
                let mut table = HashMap::new();
                while let Some((key, value)) = from.next_entry()? {
                    check_entry_count(table.len())?;
                    table.insert(key, value);
                }
                Ok(table)
            }
        }
        from.deserialize_map(Table)
    }
}

/// The algorithm of a file. It is read first, because files of other algorithms have a different
/// structure.
#[derive(Deserialize)]
struct ModelType {
    model: ModelTypeField,
}

#[derive(Deserialize)]
struct ModelTypeField {
    #[serde(rename = "type")]
    name: Option<String>,
}

/// Token types as numbered in GGUF.
mod types {
    pub const NORMAL: i32 = 1;
    pub const UNKNOWN: i32 = 2;
    pub const CONTROL: i32 = 3;
    pub const USER_DEFINED: i32 = 4;
    pub const UNUSED: i32 = 5;
    pub const BYTE: i32 = 6;
}

/// The score of tokens that no merge produces. The tokenizer never produces them by a merge
/// (`tokenizer.ggml.never_score`).
const NEVER: f32 = -1e9;

/// Writes the vocabulary. Returns warnings for the user.
pub fn write(folder: &Path, config: &Config, header: &mut Header) -> Result<Vec<String>, Error> {
    let path = folder.join("tokenizer.json");
    let Some(bytes) = json::json_bytes(&path, json::MAX_TOKENIZER)? else {
        let hint = ": kjit reads the vocabulary from tokenizer.json, not from tokenizer.model";
        return Err(fail(&path, FolderError::NotThere { hint }));
    };
    let refuse = |what, found| fail(&path, FolderError::Tokenizer { what, found });
    if let Some(name) =
        json::parse::<ModelType>(&path, &bytes)?.model.name.filter(|name| name != "BPE")
    {
        return Err(refuse("the tokenizer's model", name));
    }
    let file: TokenizerJson = json::parse(&path, &bytes)?;
    let step = |name: &str, raw: Option<&RawValue>| -> Result<Option<Value>, Error> {
        let Some(raw) = raw else { return Ok(None) };
        if raw.get().len() > MAX_STEP {
            let why =
                format!("{name} has {} bytes, more than the limit of {MAX_STEP}", raw.get().len());
            return Err(fail(&path, FolderError::Json { why }));
        }
        json::parse::<Option<Value>>(&path, raw.get().as_bytes())
    };
    let normalizer = step("normalizer", file.normalizer)?;
    let pre = step("pre_tokenizer", file.pre_tokenizer)?;
    let post_processor = step("post_processor", file.post_processor)?;
    let (normalizer, pre) = (normalizer.as_ref(), pre.as_ref());
    for (what, affix) in [
        ("continuing_subword_prefix", &file.model.continuing_subword_prefix),
        ("end_of_word_suffix", &file.model.end_of_word_suffix),
    ] {
        if let Some(found) = affix.clone().filter(|affix| !affix.is_empty()) {
            return Err(refuse(what, found));
        }
    }
    let pieces = file.model.byte_fallback.unwrap_or(false);
    let mut tokens = Tokens::new(&path, &file, config.vocab, pieces)?;
    if pieces {
        let front =
            pretokenizer::spaces(normalizer, pre).map_err(|(what, found)| refuse(what, found))?;
        header.str("tokenizer.ggml.model", "llama");
        header.str("tokenizer.ggml.pre", "default");
        header.bool("tokenizer.ggml.add_space_prefix", front);
        if file.model.ignore_merges == Some(true) {
            return Err(refuse("ignore_merges", "true".to_owned()));
        }
        header.f32s("tokenizer.ggml.scores", &scores(&path, &file.model.merges, &tokens)?);
        header.f32("tokenizer.ggml.never_score", NEVER.into());
        if let Some(unk) = file.model.unk_token.as_deref().and_then(|text| tokens.id(text)) {
            header.u32("tokenizer.ggml.unknown_token_id", unk);
            tokens.set(unk, types::UNKNOWN);
        }
    } else {
        // Text is not normalised to NFC: GGUF files do not require that, and ids must be equal.
        if let Some(other) = normalizer.filter(|n| !is_nfc(n)) {
            return Err(refuse("the normalizer", short(other)));
        }
        let name = pretokenizer::byte_level(pre, file.model.ignore_merges.unwrap_or(false))
            .map_err(|found| refuse("the pre_tokenizer", found))?;
        header.str("tokenizer.ggml.model", "gpt2");
        header.str("tokenizer.ggml.pre", name);
        let merges: Vec<String> = file.model.merges.iter().map(Merge::text).collect();
        header.strs("tokenizer.ggml.merges", merges.iter().map(String::as_str));
    }
    let mut remarks: Vec<String> = tokens.remark().into_iter().collect();
    // Byte-level BPE does not normalise text, so the flag has no effect for it.
    let normalized: Vec<&AddedToken> =
        file.added_tokens.iter().filter(|added| pieces && added.normalized).collect();
    if let [first, ..] = normalized[..] {
        let (n, first) = (normalized.len(), QuotedText(&first.content));
        remarks.push(format!(
            "{n} added tokens, such as {first}, \
             are matched in the original text, although tokenizer.json marks them \"normalized\""
        ));
    }
    #[allow(clippy::type_complexity, reason = "a flag's name and the flag")]
    let flags: [(&str, fn(&AddedToken) -> bool); 2] =
        [("lstrip", |added| added.lstrip), ("rstrip", |added| added.rstrip)];
    for (key, has) in flags {
        let ids = file
            .added_tokens
            .iter()
            .filter(|added| has(added))
            .filter_map(|added| i32::try_from(added.id).ok());
        let ids: Vec<i32> = ids.filter(|id| (*id as usize) < tokens.texts.len()).collect();
        if !ids.is_empty() {
            header.i32s(&format!("tokenizer.ggml.{key}_token_ids"), &ids);
        }
    }
    let ends = ends(&path, post_processor.as_ref())?;
    remarks.extend(roles(folder, &path, config, &tokens, ends, header)?);
    header.strs("tokenizer.ggml.tokens", tokens.texts.iter().map(String::as_str));
    header.i32s("tokenizer.ggml.token_type", &tokens.types);
    Ok(remarks)
}

impl Merge {
    fn text(&self) -> String {
        match self {
            Merge::Text(text) => text.clone(),
            Merge::Pair(left, right) => format!("{left} {right}"),
        }
    }

    /// The result of the merge.
    fn joined(&self) -> String {
        match self {
            // No token of these vocabularies contains a space.
            Merge::Text(text) => text.replacen(' ', "", 1),
            Merge::Pair(left, right) => format!("{left}{right}"),
        }
    }
}

/// All tokens, one for each row of the embedding.
struct Tokens {
    texts: Vec<String>,
    types: Vec<i32>,
    ids: HashMap<String, u32>,
    /// Number of added tokens after the embedding's last row.
    beyond: usize,
}

impl Tokens {
    fn new(
        path: &Path,
        file: &TokenizerJson<'_>,
        rows: u32,
        pieces: bool,
    ) -> Result<Tokens, Error> {
        let refuse = |text: &str, id: u32, why: String| {
            fail(path, FolderError::Token { text: text.to_owned(), id: id.into(), why })
        };
        // The number of rows must not exceed the entries of this file: a number alone must not
        // cause a large allocation.
        let n = rows as usize;
        let most = file.model.vocab.len() + file.added_tokens.len();
        if n > most.saturating_mul(4).max(1 << 20) {
            let why =
                format!("vocab_size in config.json is {rows}, but this file has {most} tokens");
            return Err(fail(path, FolderError::Json { why }));
        }
        let mut texts: Vec<Option<&str>> = vec![None; n];
        let mut all =
            Tokens { texts: vec![], types: vec![types::NORMAL; n], ids: HashMap::new(), beyond: 0 };
        for (text, &id) in &file.model.vocab {
            match texts.get_mut(id as usize) {
                None => {
                    return Err(refuse(text, id, format!("the embedding has only {rows} rows")));
                }
                Some(Some(other)) => {
                    return Err(refuse(text, id, format!("{} has the same id", QuotedText(other))));
                }
                Some(room) => *room = Some(text),
            }
            if pieces && is_byte(text) {
                all.set(id, types::BYTE);
            }
        }
        for added in &file.added_tokens {
            let (id, text) = (added.id, added.content.as_str());
            match texts.get_mut(id as usize) {
                // Gemma 3 has a token for images. Its text-only models have no row for this token.
                None => {
                    all.beyond += 1;
                    continue;
                }
                Some(Some(other)) if *other != text => {
                    return Err(refuse(text, id, format!("{} has the same id", QuotedText(other))));
                }
                Some(room) => *room = Some(text),
            }
            if added.single_word {
                let why = "single_word is not supported";
                return Err(refuse(text, id, why.to_owned()));
            }
            let control = added.special || looks_special(text);
            all.set(id, if control { types::CONTROL } else { types::USER_DEFINED });
        }
        for (id, text) in texts.into_iter().enumerate() {
            let text = match text {
                Some(text) => text.to_owned(),
                None => {
                    all.set(id as u32, types::UNUSED);
                    format!("[PAD{id}]")
                }
            };
            all.ids.insert(text.clone(), id as u32);
            // These tokens are matched in the original text, which still contains spaces.
            let spelled = pieces && all.types.get(id) == Some(&types::USER_DEFINED);
            all.texts.push(if spelled { text.replace('\u{2581}', " ") } else { text });
        }
        Ok(all)
    }

    fn set(&mut self, id: u32, ty: i32) {
        if let Some(place) = self.types.get_mut(id as usize) {
            *place = ty;
        }
    }

    fn id(&self, text: &str) -> Option<u32> {
        self.ids.get(text).copied()
    }

    fn text(&self, id: u32) -> String {
        self.texts.get(id as usize).cloned().unwrap_or_default()
    }

    fn remark(&self) -> Option<String> {
        let n = self.beyond;
        (n > 0).then(|| {
            format!(
                "{n} added tokens are ignored: the embedding has only {} rows",
                self.texts.len()
            )
        })
    }
}

/// Whether a token is a byte, such as `<0x0A>`.
fn is_byte(text: &str) -> bool {
    let hex = text.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
    hex.is_some_and(|hex| hex.len() == 2 && u8::from_str_radix(hex, 16).is_ok())
}

/// Whether a token is markup that some files do not mark as special. The text of a user must not
/// become this token.
fn looks_special(text: &str) -> bool {
    [("<|", "|>"), ("<\u{ff5c}", "\u{ff5c}>"), ("<unused", ">")]
        .iter()
        .any(|(begin, end)| text.starts_with(begin) && text.ends_with(end))
}

fn is_nfc(normalizer: &Value) -> bool {
    match normalizer.get("type").and_then(Value::as_str) {
        Some("NFC") => true,
        Some("Sequence") => normalizer
            .get("normalizers")
            .and_then(Value::as_array)
            .is_some_and(|list| list.iter().all(is_nfc)),
        _ => false,
    }
}

/// A score for each token: minus the index of the first merge that produces the token. This
/// requires that all merges of a token are adjacent. Other vocabularies are refused.
fn scores(path: &Path, merges: &[Merge], tokens: &Tokens) -> Result<Vec<f32>, Error> {
    let mut scores: Vec<Option<f32>> = vec![None; tokens.texts.len()];
    let mut last = None;
    for (rank, merge) in merges.iter().enumerate() {
        let text = merge.joined();
        let Some(id) = tokens.id(&text) else { continue };
        let Some(score) = scores.get_mut(id as usize) else { continue };
        // Added tokens are matched before the merges. In some vocabularies, runs of one character
        // had one score for all lengths, while merges order them by length.
        let mut letters = text.chars();
        let first = letters.next();
        if tokens.types.get(id as usize) == Some(&types::NORMAL)
            && letters.any(|c| Some(c) != first)
        {
            if score.is_some() && last != Some(id) {
                let why = format!(
                    "its merges are not adjacent (merge {rank}), \
                     but kjit supports one rank per token"
                );
                return Err(fail(path, FolderError::Token { text, id: id.into(), why }));
            }
            last = Some(id);
        }
        score.get_or_insert(-(rank as f32));
    }
    Ok(scores.into_iter().map(|score| score.unwrap_or(NEVER)).collect())
}

/// The tokens that the post-processor adds at the start and the end of a text.
#[derive(Default)]
struct AddedEnds {
    first: Option<String>,
    last: Option<String>,
}

fn ends(path: &Path, post: Option<&Value>) -> Result<AddedEnds, Error> {
    let Some(post) = post.filter(|post| !post.is_null()) else { return Ok(AddedEnds::default()) };
    let list =
        |key: &str| post.get(key).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let refuse =
        || fail(path, FolderError::Tokenizer { what: "the post_processor", found: short(post) });
    match post.get("type").and_then(Value::as_str) {
        Some("ByteLevel") => Ok(AddedEnds::default()),
        Some("Sequence") => {
            let mut all = AddedEnds::default();
            for one in list("processors") {
                let ends = ends(path, Some(one))?;
                all = AddedEnds { first: ends.first.or(all.first), last: ends.last.or(all.last) };
            }
            Ok(all)
        }
        Some("TemplateProcessing") => {
            let special =
                |part: &Value| Some(part.get("SpecialToken")?.get("id")?.as_str()?.to_owned());
            let (first, rest) = match list("single") {
                [first, rest @ ..] if special(first).is_some() => (special(first), rest),
                all => (None, all),
            };
            let last = match rest {
                [text] if text.get("Sequence").is_some() => None,
                [text, last] if text.get("Sequence").is_some() && special(last).is_some() => {
                    special(last)
                }
                _ => return Err(refuse()),
            };
            Ok(AddedEnds { first, last })
        }
        _ => Err(refuse()),
    }
}

/// The special tokens, from the three files that may name them.
fn roles(
    folder: &Path,
    path: &Path,
    config: &Config,
    tokens: &Tokens,
    ends: AddedEnds,
    header: &mut Header,
) -> Result<Option<String>, Error> {
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let keys = ["bos_token", "eos_token", "add_bos_token", "add_eos_token"];
    let of_tokenizer =
        Object::read_keys(folder.join("tokenizer_config.json"), json::MAX_TOKENIZER_CONFIG, &keys)?;
    let of_generation = Object::read(folder.join("generation_config.json"))?;
    // A string, or an object with `content`.
    let named = |role: &str| -> Result<Option<u32>, Error> {
        let Some(file) = &of_tokenizer else { return Ok(None) };
        let Some(value) = file.get(role) else { return Ok(None) };
        let text = value.as_str().or_else(|| value.get("content").and_then(Value::as_str));
        let text = text.ok_or_else(|| file.bad(role, "expected a token"))?;
        tokens
            .id(text)
            .map(Some)
            .ok_or_else(|| file.bad(role, "the vocabulary does not contain this token"))
    };
    let ids = |role: &str| -> Result<Vec<u32>, Error> {
        let mut all = vec![];
        for file in of_generation.iter().chain([&config.file]) {
            let ids = file.ids(role)?;
            if let Some(id) = ids.iter().find(|id| **id as usize >= tokens.texts.len()) {
                return Err(file.bad(
                    role,
                    format!("id {id} is outside the vocabulary (0..{})", tokens.texts.len()),
                ));
            }
            all.extend(ids);
        }
        Ok(all)
    };
    let flag = |name: &str| of_tokenizer.as_ref().map_or(Ok(None), |file| file.bool(name));
    let (add_bos, add_eos) = (flag("add_bos_token")?, flag("add_eos_token")?);
    let refuse = |what, found| fail(path, FolderError::Tokenizer { what, found });
    // Flags take precedence over tokenizer.json.
    let at_end = |text: Option<String>, flag: Option<bool>| match text.filter(|_| flag.is_none()) {
        None => Ok(None),
        Some(text) => {
            tokens.id(&text).map(Some).ok_or_else(|| refuse("a token of the post_processor", text))
        }
    };
    let (first, last) = (at_end(ends.first, add_bos)?, at_end(ends.last, add_eos)?);
    let (starts, mut stops) = (ids("bos_token_id")?, ids("eos_token_id")?);
    // `null` means that the token does not exist, even if other files name one.
    let no_bos =
        of_tokenizer.as_ref().is_some_and(|file| file.is_null("bos_token")) && first.is_none();
    let bos = named("bos_token")?.or(starts.first().copied().filter(|_| !no_bos)).or(first);
    if let (Some(file), None, Some(true)) = (&of_tokenizer, bos, add_bos) {
        return Err(file.bad("add_bos_token", "bos_token is missing"));
    }
    if let Some(first) = first.filter(|first| Some(*first) != bos) {
        return Err(refuse(
            "the first token of the post_processor (not bos_token)",
            tokens.text(first),
        ));
    }
    let mut eos = named("eos_token")?.or(stops.first().copied());
    let mut remark = None;
    // Embedding models: the end token of a text differs from the end token of an answer.
    if let Some(last) = last.filter(|last| Some(*last) != eos)
        && let Some(old) = eos.replace(last)
    {
        let (end, also) = (tokens.text(last), tokens.text(old));
        let (end, also) = (QuotedText(&end), QuotedText(&also));
        remark = Some(format!(
            "{end} is the eos token (tokenizer.json adds it to texts); {also} also ends an answer"
        ));
        stops.push(old);
    }
    if eos.is_none() {
        return Err(fail(folder, FolderError::NoEnd));
    }
    header.bool(&key("no_bos_token"), no_bos);
    for (role, id) in [("bos", bos), ("eos", eos)] {
        if let Some(id) = id {
            header.u32(&key(&format!("{role}_token_id")), id);
        }
    }
    // In instruction models, a message and a text end with different tokens.
    let stops: Vec<i32> = stops.iter().filter_map(|id| i32::try_from(*id).ok()).collect();
    if !stops.is_empty() {
        header.i32s(&key("eog_token_ids"), &stops);
    }
    header.bool(&key("add_bos_token"), add_bos.unwrap_or(first.is_some()));
    header.bool(&key("add_eos_token"), add_eos.unwrap_or(last.is_some()));
    Ok(remark)
}
