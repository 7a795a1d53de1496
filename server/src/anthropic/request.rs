//! Reads requests of `/v1/messages` and `/v1/messages/count_tokens`.

use super::blocks::{system, turns};
use crate::caller::Caller;
use crate::choice::Choice;
use crate::constrain::ContentFormat;
use crate::conversation::{Conversation, Turn};
use crate::conversation_request::ConversationRequest;
use crate::fields::Fields;
use crate::openai::place;
use crate::refusal::Refusal;
use crate::sampling::{self, Ends};
use crate::service::Service;
use crate::tool::Tool;
use crate::tool_list::ToolList;
use serde_json::{Map, Value};

/// Fields that are accepted without effect: accounts, billing, caches, regions.
const IGNORED: [&str; 6] =
    ["metadata", "service_tier", "inference_geo", "speed", "cache_control", "context_management"];

/// Fields that are refused by name, because they would change the answer.
const REFUSED: [(&str, &str); 2] = [
    ("mcp_servers", "there are no hosted tools here"),
    ("container", "there are no hosted tools here"),
];

/// A request for a message.
pub struct MessagesRequest {
    pub ask: ConversationRequest,
    /// The model's index.
    pub at: usize,
    pub stream: bool,
    /// Whether the answer may have several calls.
    pub parallel: bool,
}

/// The fields that both routes use.
struct CommonFields {
    at: usize,
    conversation: Conversation,
    offered: Vec<Tool>,
    choice: Choice,
    parallel: bool,
    form: Option<(ContentFormat, &'static str)>,
    /// Maximum tokens of the reasoning.
    thinking: Option<Option<usize>>,
    caller: Caller,
}

/// Reads a request of `/v1/messages`.
pub fn message(service: &Service, body: &[u8], caller: Caller) -> Result<MessagesRequest, Refusal> {
    let mut f = Fields::parse(body)?;
    let words = words(&mut f, service, caller)?;
    let max_tokens = f.count("max_tokens", 1..=i64::MAX)?;
    if max_tokens.is_none() {
        return Err(f.wrong("max_tokens", "is missing"));
    }
    let stream = f.flag("stream")?.unwrap_or(false);
    let sampling = sampling::openai(&mut f)?;
    let stop = sampling::stops(&mut f, "stop_sequences")?;
    f.done()?;
    let ask = ConversationRequest {
        conversation: words.conversation,
        follow: words.choice.follow(words.offered, words.form, words.parallel)?,
        n: 1,
        max_tokens,
        sampling,
        stop,
        ends: Ends::default(),
        ignore_eos: false,
        logprobs: None,
        thinking: words.thinking,
        ids: false,
        caller: words.caller,
    };
    Ok(MessagesRequest { ask, at: words.at, stream, parallel: words.parallel })
}

/// Reads a request of `/v1/messages/count_tokens`: the model's index, the conversation, the client.
pub fn counted(
    service: &Service,
    body: &[u8],
    caller: Caller,
) -> Result<(usize, Conversation, Caller), Refusal> {
    let mut f = Fields::parse(body)?;
    let words = words(&mut f, service, caller)?;
    f.done()?;
    Ok((words.at, words.conversation, words.caller))
}

fn words(f: &mut Fields, service: &Service, caller: Caller) -> Result<CommonFields, Refusal> {
    f.ignore(&IGNORED);
    f.refuse(&REFUSED)?;
    let (at, caller) = (place(f, service)?, caller.of_request(f)?);
    let mut all: Vec<Turn> = system(f)?.into_iter().collect();
    all.extend(turns(f)?);
    let offer = tools(f)?;
    let (choice, parallel) = tool_choice(f, &offer)?;
    let (mut variables, thinking) = thinking(f)?;
    let form = output(f, &mut variables)?;
    let (offered, tools) = offer.into_parts();
    // The prompt does not contain tools that must not be called.
    let tools = tools.filter(|_| choice != Choice::None);
    let conversation = Conversation { turns: all, tools, variables, ..Conversation::default() };
    Ok(CommonFields { at, conversation, offered, choice, parallel, form, thinking, caller })
}

fn tools(f: &mut Fields) -> Result<ToolList, Refusal> {
    let mut offer = ToolList::default();
    for (i, value) in f.list("tools")?.unwrap_or_default().into_iter().enumerate() {
        let mut tool = Fields::of(value, &format!("tools[{i}]"))?;
        if let Some(kind) = tool.text("type")?.filter(|kind| kind != "custom") {
            let why = format_args!("'{kind}' is a hosted tool: give tools with an input_schema");
            return Err(tool.wrong("type", why));
        }
        tool.ignore(&[
            "cache_control",
            "eager_input_streaming",
            "input_examples",
            "defer_loading",
            "allowed_callers",
        ]);
        offer.add(&mut tool, "input_schema")?;
        tool.done()?;
    }
    Ok(offer)
}

/// Reads `tool_choice`: which tools are called, and whether several may be.
fn tool_choice(f: &mut Fields, offer: &ToolList) -> Result<(Choice, bool), Refusal> {
    let Some(mut choice) = f.object("tool_choice")? else { return Ok((Choice::Auto, true)) };
    let chosen = match choice.needed_text("type")?.as_str() {
        "auto" => Choice::Auto,
        "none" => Choice::None,
        "any" if offer.is_empty() => return Err(choice.wrong("type", "there are no tools to call")),
        "any" => Choice::Required,
        "tool" => match choice.needed_text("name")? {
            name if offer.has(&name) => Choice::Tool(name),
            _ => return Err(choice.wrong("name", "no such tool is among the tools")),
        },
        _ => return Err(choice.wrong("type", "give auto, any, tool or none")),
    };
    let parallel = !choice.flag("disable_parallel_tool_use")?.unwrap_or(false);
    choice.done()?;
    Ok((chosen, parallel))
}

/// The most tokens of a thought: not given, given as without a bound, or a number.
type Budget = Option<Option<usize>>;

/// Reads `thinking` into template variables. A model that can answer without reasoning reasons only
/// on request, as in Anthropic's service.
fn thinking(f: &mut Fields) -> Result<(Map<String, Value>, Budget), Refusal> {
    let (mut reasons, mut most) = (false, None);
    if let Some(mut thinking) = f.object("thinking")? {
        reasons = match thinking.needed_text("type")?.as_str() {
            "enabled" | "adaptive" => true,
            "disabled" => false,
            _ => return Err(thinking.wrong("type", "give enabled, adaptive or disabled")),
        };
        most = thinking.count("budget_tokens", 1..=i64::MAX)?.map(Some);
        thinking.ignore(&["display"]);
        thinking.done()?;
    }
    let variables = [("enable_thinking".to_owned(), reasons.into())].into_iter().collect();
    Ok((variables, most))
}

/// Reads the format of the text (`output_config` or the older `output_format`) and the effort.
fn output(
    f: &mut Fields,
    variables: &mut Map<String, Value>,
) -> Result<Option<(ContentFormat, &'static str)>, Refusal> {
    let mut config = f.object("output_config")?;
    if let Some(config) = &mut config
        && let Some(effort) = config.text("effort")?
    {
        let effort = match effort.as_str() {
            "low" | "medium" | "high" => effort,
            "xhigh" | "max" => "high".to_owned(),
            _ => return Err(config.wrong("effort", "give low, medium, high, xhigh or max")),
        };
        variables.insert("reasoning_effort".to_owned(), effort.into());
    }
    let (format, field) = match config.as_mut().map(|config| config.object("format")).transpose()? {
        Some(Some(format)) => (Some(format), "output_config.format.schema"),
        _ => (f.object("output_format")?, "output_format.schema"),
    };
    if let Some(config) = config {
        config.done()?;
    }
    let Some(mut format) = format else { return Ok(None) };
    if format.needed_text("type")? != "json_schema" {
        return Err(format.wrong("type", "give json_schema"));
    }
    let schema = match format.take("schema") {
        Some(schema @ Value::Object(_)) => schema,
        _ => return Err(format.wrong("schema", "give a JSON schema: an object")),
    };
    format.done()?;
    Ok(Some((ContentFormat::json(schema), field)))
}
