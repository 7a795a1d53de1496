//! Tokenizing, detokenizing and applying templates, in llama.cpp's and vLLM's dialects.

use crate::caller::Caller;
use crate::conversation::{Conversation, ending, tools};
use crate::conversation_request::prompt;
use crate::fields::Fields;
use crate::openai::chat::{turns, variables};
use crate::openai::{json_response, place};
use crate::refusal::Refusal;
use crate::service::Service;
use axum::response::Response;
use hyper::body::Bytes;
use kjit_model::cancel::Cancel;
use kjit_model::tokenizer::{EncodeOptions, Limit, Stopped, Tokenizer};
use serde_json::{Value, json};
use std::sync::Arc;

/// Upper bound of answer tokens: more than any context.
const MAX_TOKENS: usize = 1 << 20;

/// `POST /tokenize`: `content` (llama.cpp), `prompt` or `messages` (vLLM).
///
/// # Errors
/// The request is refused.
pub async fn tokenize(
    service: Arc<Service>,
    body: Bytes,
    caller: Caller,
) -> Result<Response, Refusal> {
    let mut f = Fields::parse(&body)?;
    let at = place(&mut f, &service)?;
    let strings = f.flag("return_token_strs")?.unwrap_or(false);
    if f.peek("messages").is_some() {
        f.ignore(&["add_special_tokens"]);
        let conversation = conversation(&mut f, &body)?;
        f.done()?;
        let loaded = service.model(at, None).await?;
        let tokens = prompt(&service, &loaded, conversation, &caller).await?.tokens;
        return Ok(json_response(&counted(&loaded.tokenizer, loaded.context, &tokens, strings)));
    }
    let (text, special, pieces, vllm) = match f.text("prompt")? {
        Some(text) => (text, f.flag("add_special_tokens")?.unwrap_or(true), false, true),
        None => {
            let text = f.needed_text("content")?;
            let special = f.flag("add_special")?.unwrap_or(false);
            (text, special, f.flag("with_pieces")?.unwrap_or(false), false)
        }
    };
    let parse = f.flag("parse_special")?.unwrap_or(true);
    f.done()?;
    let loaded = service.model(at, None).await?;
    let of = loaded.clone();
    let options =
        EncodeOptions { add_special: special, parse_special: parse, ..EncodeOptions::default() };
    let work = move |cancel: &Cancel| {
        let limit = Limit { most: Some(MAX_TOKENS), cancel: cancel.clone() };
        of.tokenizer.encode_within(text.as_bytes(), options, &limit).map_err(|why| match why {
            Stopped::TooMany { least } => Refusal::longer(least, MAX_TOKENS),
            _ => Refusal::internal(why.to_string()),
        })
    };
    let tokens = service.prepare(&loaded, &caller, work).await?;
    if vllm {
        return Ok(json_response(&counted(&loaded.tokenizer, loaded.context, &tokens, strings)));
    }
    let tokens: Vec<Value> = match pieces {
        false => tokens.into_iter().map(Value::from).collect(),
        true => tokens.into_iter().map(|id| with_piece(&loaded.tokenizer, id)).collect(),
    };
    Ok(json_response(&json!({ "tokens": tokens })))
}

fn bytes(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    tokenizer.decode(&[id]).unwrap_or_default()
}

/// A token with its text, or with its bytes if they are not UTF-8.
fn with_piece(tokenizer: &Tokenizer, id: u32) -> Value {
    let piece = match String::from_utf8(bytes(tokenizer, id)) {
        Ok(text) => Value::from(text),
        Err(wrong) => Value::from(wrong.into_bytes()),
    };
    json!({ "id": id, "piece": piece })
}

/// The answer in vLLM's format.
fn counted(tokenizer: &Tokenizer, context: usize, tokens: &[u32], strings: bool) -> Value {
    let text = |id: &u32| String::from_utf8_lossy(&bytes(tokenizer, *id)).into_owned();
    let strings = strings.then(|| tokens.iter().map(text).collect::<Vec<_>>());
    json!({
        "count": tokens.len(), "max_model_len": context, "tokens": tokens, "token_strs": strings
    })
}

/// `GET /tokenizer_info` of the first model, as in vLLM. lm-evaluation-harness asks for it. The
/// chat template is not shown: `/apply-template` applies it.
///
/// # Errors
/// The model is not loaded.
pub fn info(service: &Service) -> Result<Value, Refusal> {
    let loaded = service.meant(None)?.1.loaded.ok_or_else(Refusal::loading)?;
    let of = &loaded.tokenizer;
    let text = |id: Option<u32>| {
        let text = id.and_then(|id| of.token_text(id).ok());
        text.map(|text| String::from_utf8_lossy(text).into_owned())
    };
    Ok(json!({
        "tokenizer_class": "kjit", "vocab_size": loaded.n_vocab(), "bos_token": text(of.bos()),
        "eos_token": text(of.eos()), "pad_token": null, "unk_token": null, "chat_template": null,
        "model_max_length": loaded.context
    }))
}

/// `POST /detokenize`.
///
/// # Errors
/// The request is refused.
pub async fn detokenize(
    service: Arc<Service>,
    body: Bytes,
    _: Caller,
) -> Result<Response, Refusal> {
    let mut f = Fields::parse(&body)?;
    let at = place(&mut f, &service)?;
    let ids = f.list("tokens")?.ok_or_else(|| f.wrong("tokens", "is missing"))?;
    let ids: Option<Vec<u32>> = ids.iter().map(|id| id.as_u64()?.try_into().ok()).collect();
    let ids = ids.ok_or_else(|| f.wrong("tokens", "give a list of token ids"))?;
    f.done()?;
    let loaded = service.model(at, None).await?;
    let text = loaded.tokenizer.decode(&ids).map_err(|why| Refusal::field("tokens", why))?;
    let text = String::from_utf8_lossy(&text);
    // llama.cpp names it `content`, vLLM `prompt`.
    Ok(json_response(&json!({ "content": text, "prompt": text })))
}

/// `POST /apply-template`: the prompt of a conversation.
///
/// # Errors
/// The request is refused.
pub async fn apply_template(
    service: Arc<Service>,
    body: Bytes,
    caller: Caller,
) -> Result<Response, Refusal> {
    let mut f = Fields::parse(&body)?;
    let at = place(&mut f, &service)?;
    let conversation = conversation(&mut f, &body)?;
    f.done()?;
    let loaded = service.model(at, None).await?;
    let prompt = prompt(&service, &loaded, conversation, &caller).await?;
    Ok(json_response(&json!({ "prompt": prompt.rendered() })))
}

fn conversation(f: &mut Fields, body: &[u8]) -> Result<Conversation, Refusal> {
    let (turns, variables) = (turns(f)?, variables(f)?);
    let ending = ending(f, &turns)?;
    let tools = tools(f, body)?.map(|(_, written)| written);
    Ok(Conversation { turns, tools, variables, ending })
}
