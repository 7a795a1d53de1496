//! Fill in the middle: `POST /infill` in llama.cpp's dialect, and `suffix` of completions. The
//! prompt is the text before the gap and the text after it, marked by special tokens of the
//! vocabulary.

use super::completion;
use crate::caller::Caller;
use crate::fields::Fields;
use crate::loaded::Loaded;
use crate::openai::completions::Text;
use crate::openai::place;
use crate::refusal::Refusal;
use crate::service::Service;
use axum::response::Response;
use hyper::body::Bytes;
use kjit_model::cancel::Cancel;
use kjit_model::tokenizer::{EncodeOptions, FimIds};
use std::sync::Arc;

/// Text before and after a gap.
pub struct InfillText {
    /// Text before the gap.
    pub before: String,
    /// Text after the gap.
    pub after: String,
    /// Other files, each with its name.
    pub files: Vec<(String, String)>,
    /// The field that an error names.
    pub field: &'static str,
}

/// Maximum number of other files in a request.
const MAX_FILES: usize = 64;
/// Name of the file with the gap, as llama.cpp writes it.
const THIS_FILE: &str = "filename\n";

/// `POST /infill`.
///
/// # Errors
/// The request is refused, or the answer fails.
pub async fn answer(
    service: Arc<Service>,
    body: Bytes,
    caller: Caller,
) -> Result<Response, Refusal> {
    let mut f = Fields::parse(&body)?;
    let (at, caller) = (place(&mut f, &service)?, caller.of_request(&mut f)?);
    let mut before = f.needed_text("input_prefix")?;
    let after = f.needed_text("input_suffix")?;
    // `prompt` is the start of the text in the gap.
    before += &f.text("prompt")?.unwrap_or_default();
    let mut files = vec![];
    for (i, file) in f.list("input_extra")?.unwrap_or_default().into_iter().enumerate() {
        let mut file = Fields::of(file, &format!("input_extra[{i}]"))?;
        let name = file.text("filename")?.unwrap_or_else(|| "tmp".to_owned());
        files.push((name, file.needed_text("text")?));
        file.done()?;
    }
    if files.len() > MAX_FILES {
        return Err(f.wrong("input_extra", format_args!("give at most {MAX_FILES} files")));
    }
    f.ignore(&["t_max_predict_ms", "t_max_prompt_ms", "n_indent"]);
    let gap = InfillText { before, after, files, field: "input_prefix" };
    completion::go(service, f, at, caller, Text::Gap(Box::new(gap))).await
}

impl InfillText {
    /// The prompt: prefix, suffix, and the start of the middle.
    ///
    /// # Errors
    /// The vocabulary has no infill tokens, or the prompt is too long.
    pub fn tokens(self, loaded: &Loaded, cancel: &Cancel) -> Result<Vec<u32>, Refusal> {
        let tokenizer = &loaded.tokenizer;
        let FimIds { pre: Some(pre), suf: Some(suf), mid: Some(mid) } = tokenizer.fim() else {
            let why = "the model has no tokens for filling in the middle: use one trained for that";
            return Err(Refusal::field(self.field, why));
        };
        let plain = |text: &str| {
            loaded.tokens(cancel, |tokenizer, limit| {
                tokenizer.encode_within(text.as_bytes(), EncodeOptions::PLAIN, limit)
            })
        };
        let wrong = |why: Refusal| why.of(self.field);
        // Tokens that begin every text, such as BOS.
        let start = EncodeOptions { add_special: true, ..EncodeOptions::default() };
        let bos = tokenizer.bos();
        let mut ids: Vec<u32> = tokenizer.encode(b"", start).into_iter().take(1).collect();
        ids.retain(|id| bos == Some(*id));
        if !self.files.is_empty() {
            let Some(separator) = tokenizer.special().fim_sep else {
                let why = "the model has no token between files: remove the other files";
                return Err(Refusal::field("input_extra", why));
            };
            for (name, text) in &self.files {
                ids.push(separator);
                ids.extend(plain(&format!("{name}\n")).map_err(wrong)?);
                ids.extend(plain(text).map_err(wrong)?);
            }
            ids.push(separator);
            ids.extend(plain(THIS_FILE).map_err(wrong)?);
        }
        ids.push(pre);
        ids.extend(plain(&self.before).map_err(wrong)?);
        ids.push(suf);
        ids.extend(plain(&self.after).map_err(wrong)?);
        ids.push(mid);
        Ok(ids)
    }
}
