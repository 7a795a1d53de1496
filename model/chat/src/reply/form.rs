//! The formats of reasoning and tool calls, and the choice of a model's format by its template.

/// The format in which a model writes reasoning and tool calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Hermes, Qwen, and models without their own format: `<think>…</think>`, `<tool_call>{"name":
    /// …, "arguments": …}</tool_call>`. The body may also be Qwen3-Coder's
    /// `<function=…><parameter=…>` or GLM's `name <arg_key>…</arg_key><arg_value>…</arg_value>`.
    /// Calls of Granite, Phi-4, Command R7B and DeepSeek are parsed as well. If the names of the
    /// tools are known, calls of Gemma (Python in a block of `tool_code`) and of older Command R
    /// (`Action:` and a block of JSON) are also parsed.
    Hermes,
    /// Llama 3: the whole answer is `{"name": …, "parameters": …}`, optionally after
    /// `<|python_tag|>`.
    Llama3,
    /// Mistral: `[TOOL_CALLS][{"name": …, "arguments": …}]`, in later models
    /// `[TOOL_CALLS]name[ARGS]{…}`; `[THINK]…[/THINK]`.
    Mistral,
    /// gpt-oss: `<|channel|>analysis<|message|>…`, `<|channel|>commentary
    /// to=functions.name<|message|>{…}<|call|>`.
    Channels,
}

/// The format by a substring of the template. The first match is used.
const TEMPLATE_MARKERS: [(&str, Form); 4] = [
    ("<|channel|>", Form::Channels),
    ("[TOOL_CALLS]", Form::Mistral),
    ("<tool_call>", Form::Hermes),
    ("<|start_header_id|>", Form::Llama3),
];

impl Form {
    /// The format of a model with this chat template.
    pub fn of(template: &str) -> Form {
        TEMPLATE_MARKERS
            .iter()
            .find(|(mark, _)| template.contains(mark))
            .map_or(Form::Hermes, |(_, form)| *form)
    }

    /// Control tokens that [`super::ReplyParser`] needs in the text.
    pub fn markers(self) -> &'static [&'static str] {
        match self {
            Form::Hermes => &[
                "<think>",
                "</think>",
                "<tool_call>",
                "</tool_call>",
                "<|tool_call|>",
                "<|/tool_call|>",
                "<|START_ACTION|>",
                "<|END_ACTION|>",
                "<｜tool▁calls▁begin｜>",
                "<｜tool▁call▁begin｜>",
                "<｜tool▁sep｜>",
                "<｜tool▁call▁end｜>",
                "<｜tool▁calls▁end｜>",
            ],
            Form::Llama3 => &["<|python_tag|>", "<think>", "</think>"],
            Form::Mistral => &[
                "[TOOL_CALLS]",
                "[ARGS]",
                "[CALL_ID]",
                "[THINK]",
                "[/THINK]",
                "<think>",
                "</think>",
            ],
            Form::Channels => &[
                "<|channel|>",
                "<|message|>",
                "<|start|>",
                "<|end|>",
                "<|call|>",
                "<|return|>",
                "<|constrain|>",
            ],
        }
    }

    /// The marker that ends the reasoning, if a rendered prompt has started it.
    pub fn begun(self, prompt: &str) -> Option<&'static str> {
        let prompt = prompt.trim_end();
        self.reasoning().iter().find(|(open, _)| prompt.ends_with(open)).map(|(_, close)| *close)
    }

    /// The begin and end markers of reasoning.
    pub fn reasoning(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Form::Mistral => &[("[THINK]", "[/THINK]"), ("<think>", "</think>")],
            _ => &[("<think>", "</think>")],
        }
    }

    /// The begin marker of a call in grammars, and its end marker if it has one.
    pub fn call(self) -> (&'static str, Option<&'static str>) {
        self.calls().first().copied().unwrap_or(("<tool_call>", Some("</tool_call>")))
    }

    /// The begin and end markers of all calls that are parsed.
    pub(super) fn calls(self) -> &'static [(&'static str, Option<&'static str>)] {
        match self {
            Form::Llama3 => &[("<|python_tag|>", None)],
            Form::Mistral => &[("[TOOL_CALLS]", None)],
            _ => &[
                ("<tool_call>", Some("</tool_call>")),
                ("<|tool_call|>", Some("<|/tool_call|>")),
                ("<|START_ACTION|>", Some("<|END_ACTION|>")),
                ("<｜tool▁calls▁begin｜>", Some("<｜tool▁calls▁end｜>")),
                (TOOL_CODE, FENCE),
                ("Action: ```json", FENCE),
                ("Action:```json", FENCE),
            ],
        }
    }
}

/// Begin of Gemma's calls, which are Python.
pub(super) const TOOL_CODE: &str = "```tool_code";
/// End of calls in a block. Such blocks are calls only if the names are names of tools.
pub(super) const FENCE: Option<&str> = Some("```");
