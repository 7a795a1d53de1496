//! The forms, and how a template tells which is its model's.

/// How a model writes reasoning and calls of tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Hermes and Qwen, and models without a form of their own: `<think>…</think>`,
    /// `<tool_call>{"name": …, "arguments": …}</tool_call>`, with Qwen3-Coder's
    /// `<function=…><parameter=…>` or GLM's `name <arg_key>…</arg_key><arg_value>…</arg_value>` in
    /// it. Calls of Granite, Phi-4, Command R7B and DeepSeek are read, too.
    Hermes,
    /// Llama 3: the whole answer is `{"name": …, "parameters": …}`, after `<|python_tag|>` or
    /// without it.
    Llama3,
    /// Mistral: `[TOOL_CALLS][{"name": …, "arguments": …}]`, later `[TOOL_CALLS]name[ARGS]{…}`;
    /// `[THINK]…[/THINK]`.
    Mistral,
    /// gpt-oss: `<|channel|>analysis<|message|>…`, `<|channel|>commentary
    /// to=functions.name<|message|>{…}<|call|>`.
    Channels,
}

/// By what is in a template, first that fits.
const TOLD_BY: [(&str, Form); 4] = [
    ("<|channel|>", Form::Channels),
    ("[TOOL_CALLS]", Form::Mistral),
    ("<tool_call>", Form::Hermes),
    ("<|start_header_id|>", Form::Llama3),
];

impl Form {
    /// The form of a model with this chat template.
    pub fn of(template: &str) -> Form {
        TOLD_BY
            .iter()
            .find(|(mark, _)| template.contains(mark))
            .map_or(Form::Hermes, |(_, form)| *form)
    }

    /// Control tokens by which an answer is read: they must be in the text that
    /// [`super::ReplyParser`] gets.
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

    /// The end of the reasoning that a rendered prompt has begun.
    pub fn begun(self, prompt: &str) -> Option<&'static str> {
        let prompt = prompt.trim_end();
        self.reasoning().iter().find(|(open, _)| prompt.ends_with(open)).map(|(_, close)| *close)
    }

    /// Begin and end of reasoning.
    pub fn reasoning(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Form::Mistral => &[("[THINK]", "[/THINK]"), ("<think>", "</think>")],
            _ => &[("<think>", "</think>")],
        }
    }

    /// Begin of a call, and its end, if there is one before the answer's: as calls are written by a
    /// grammar.
    pub fn call(self) -> (&'static str, Option<&'static str>) {
        self.calls().first().copied().unwrap_or(("<tool_call>", Some("</tool_call>")))
    }

    /// The same of all calls that are read.
    pub(super) fn calls(self) -> &'static [(&'static str, Option<&'static str>)] {
        match self {
            Form::Llama3 => &[("<|python_tag|>", None)],
            Form::Mistral => &[("[TOOL_CALLS]", None)],
            _ => &[
                ("<tool_call>", Some("</tool_call>")),
                ("<|tool_call|>", Some("<|/tool_call|>")),
                ("<|START_ACTION|>", Some("<|END_ACTION|>")),
                ("<｜tool▁calls▁begin｜>", Some("<｜tool▁calls▁end｜>")),
            ],
        }
    }
}
