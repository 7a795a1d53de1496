//! Tests of the reply parser.

use super::part::{Part, ToolCall};
use super::{Form, ReplyParser};
use Part::{Call, Content, Reasoning};

fn call(name: &str, arguments: &str) -> Part {
    Call(ToolCall { name: name.into(), arguments: arguments.into() })
}

fn content(text: &str) -> Part {
    Content(text.into())
}

fn reasoning(text: &str) -> Part {
    Reasoning(text.into())
}

/// Parses an answer in pieces and joins adjacent parts of one kind.
fn read(mut parser: ReplyParser, pieces: &[&str]) -> Vec<Part> {
    let mut parts = vec![];
    for piece in pieces {
        parser.push(piece, &mut parts);
    }
    parser.finish(&mut parts);
    let mut joined: Vec<Part> = vec![];
    for part in parts {
        match (joined.last_mut(), part) {
            (Some(Content(a)), Content(b)) | (Some(Reasoning(a)), Reasoning(b)) => a.push_str(&b),
            (_, part) => joined.push(part),
        }
    }
    joined
}

/// Whole answers of each format, as in the templates of the models, and their parts.
fn recorded() -> Vec<(&'static str, Form, &'static str, &'static str, Vec<Part>)> {
    use Form::{Channels, Hermes, Llama3, Mistral};
    let weather = r#"{"city": "Paris"}"#;
    vec![
        (
            "plain",
            Hermes,
            "",
            " Héllo < there, <tool> \n",
            vec![content(" Héllo < there, <tool> \n")],
        ),
        (
            "think",
            Hermes,
            "",
            "<think>\nHm, ü.\n</think>\n\nYes.",
            vec![reasoning("Hm, ü."), content("Yes.")],
        ),
        (
            "begun",
            Hermes,
            "user<think>\n",
            "Hm </thin.\n</think>\n\nYes.",
            vec![reasoning("Hm </thin."), content("Yes.")],
        ),
        ("no end", Hermes, "x<think>", "Hm, and so", vec![reasoning("Hm, and so")]),
        ("later it is text", Hermes, "", "Say <think> so", vec![content("Say <think> so")]),
        (
            "qwen",
            Hermes,
            "",
            "<think>\nTools.\n</think>\n\nLet me see.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}\n\
             </tool_call>\n<tool_call>\n{\"name\": \"time\", \"arguments\": {}}\n</tool_call>",
            vec![
                reasoning("Tools."),
                content("Let me see."),
                call("weather", weather),
                call("time", "{}"),
            ],
        ),
        (
            "cut off",
            Hermes,
            "",
            "<tool_call>\n{\"name\": \"weather\", \"argum",
            vec![content("<tool_call>\n{\"name\": \"weather\", \"argum")],
        ),
        (
            "its end is missing",
            Hermes,
            "",
            "<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}",
            vec![call("weather", weather)],
        ),
        (
            "no JSON",
            Hermes,
            "",
            "<tool_call>weather</tool_call> ok",
            vec![content("<tool_call>weather</tool_call>ok")],
        ),
        (
            "coder",
            Hermes,
            "",
            "<tool_call>\n<function=run>\n<parameter=code>\nprint(1)\n</parameter>\n<parameter=n>\n3\n</parameter>\n</function>\n</tool_call>",
            vec![call("run", r#"{"code":"print(1)","n":3}"#)],
        ),
        (
            "llama bare",
            Llama3,
            "",
            "{\"name\": \"weather\", \"parameters\": {\"city\": \"Paris\"}}",
            vec![call("weather", weather)],
        ),
        (
            "llama two",
            Llama3,
            "",
            "<|python_tag|>{\"name\": \"weather\", \"parameters\": {\"city\": \"Paris\"}}; \
             {\"name\": \"time\", \"parameters\": {}}",
            vec![call("weather", weather), call("time", "{}")],
        ),
        ("llama json", Llama3, "", "{\"a\": 1} is JSON", vec![content("{\"a\": 1} is JSON")]),
        (
            "mistral",
            Mistral,
            "",
            "[TOOL_CALLS][{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}, \
             {\"name\": \"time\", \"arguments\": {}}]",
            vec![call("weather", weather), call("time", "{}")],
        ),
        (
            "mistral later",
            Mistral,
            "",
            "[THINK]Hm[/THINK]I look.[TOOL_CALLS]weather[CALL_ID]abc123def[ARGS]{\"city\": \"Paris\"}[TOOL_CALLS]time[ARGS]{}",
            vec![reasoning("Hm"), content("I look."), call("weather", weather), call("time", "{}")],
        ),
        (
            "channels",
            Channels,
            "",
            "<|channel|>analysis<|message|>User \
             asks.<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>",
            vec![reasoning("User asks."), content("Yes.")],
        ),
        (
            "channels with a call",
            Channels,
            "",
            "<|channel|>analysis<|message|>Look.<|end|><|start|>assistant<|channel|>commentary<|message|>One moment.<|end|><|start|>\
             assistant<|channel|>commentary to=functions.weather \
             <|constrain|>json<|message|>{\"city\": \"Paris\"}<|call|>",
            vec![reasoning("Look."), content("One moment."), call("weather", weather)],
        ),
        (
            "recipient first, end is a token that is not written",
            Channels,
            "",
            "<|channel|>analysis<|message|>L<|end|><|start|>assistant \
             to=functions.weather<|channel|>commentary json<|message|>{\"city\": \"Paris\"}",
            vec![reasoning("L"), call("weather", weather)],
        ),
        (
            "marks in strings",
            Hermes,
            "",
            "<tool_call>\n{\"name\": \"say\", \"arguments\": {\"text\": \"a </tool_call> \\\"<tool_call>{\"}}\n</tool_call>\n\
             <tool_call>{\"name\": \"time\", \"arguments\": {}}</tool_call>",
            vec![call("say", r#"{"text": "a </tool_call> \"<tool_call>{"}"#), call("time", "{}")],
        ),
        (
            "a mark in a string, its end is missing",
            Hermes,
            "",
            "<tool_call>{\"name\": \"say\", \"arguments\": {\"text\": \"</tool_call>\"}}",
            vec![call("say", r#"{"text": "</tool_call>"}"#)],
        ),
        (
            "a string without end",
            Hermes,
            "",
            "<tool_call>{\"name\": \"say</tool_call> Hm <tool_call>{\"name\": \"time\", \"arguments\": {}}</tool_call>",
            vec![content("<tool_call>{\"name\": \"say</tool_call>Hm"), call("time", "{}")],
        ),
        (
            "a line's end in a string",
            Hermes,
            "",
            "<tool_call>{\"name\": \"say\n</tool_call> Hm",
            vec![content("<tool_call>{\"name\": \"say\n</tool_call>Hm")],
        ),
        (
            "a mark in a parameter",
            Hermes,
            "",
            "<tool_call><function=say><parameter=text></tool_call></parameter></function></tool_call>",
            vec![call("say", r#"{"text":"</tool_call>"}"#)],
        ),
        (
            "marks in Mistral's strings",
            Mistral,
            "",
            "[TOOL_CALLS]say[ARGS]{\"text\": \"[TOOL_CALLS]x[ARGS]{}\"}[TOOL_CALLS]time[CALL_ID]abc[ARGS]{}[TOOL_CALLS]now[ARGS]",
            vec![
                call("say", r#"{"text": "[TOOL_CALLS]x[ARGS]{}"}"#),
                call("time", "{}"),
                call("now", "{}"),
            ],
        ),
        (
            "marks in strings of Mistral's list",
            Mistral,
            "",
            "[TOOL_CALLS] [{\"name\": \"say\", \"arguments\": {\"text\": \"[ARGS]\"}}]",
            vec![call("say", r#"{"text": "[ARGS]"}"#)],
        ),
        (
            "marks in strings of a channel",
            Channels,
            "",
            "<|channel|>commentary to=functions.say<|message|>{\"text\": \"<|call|> <|end|>\"}<|call|><|start|>assistant<|channel|>final\
             <|message|>Yes.<|return|>",
            vec![call("say", r#"{"text": "<|call|> <|end|>"}"#), content("Yes.")],
        ),
        (
            "a channel's string without end",
            Channels,
            "",
            "<|channel|>commentary to=functions.say<|message|>{\"text<|call|><|start|>assistant<|channel|>final<|message|>Yes.",
            vec![content("<|channel|>commentary to=functions.say<|message|>{\"textYes.")],
        ),
        (
            "glm",
            Hermes,
            "",
            "<think>Hm</think>\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>n</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
            vec![reasoning("Hm"), call("weather", r#"{"city":"Paris","n":3}"#)],
        ),
        (
            "granite and phi",
            Hermes,
            "",
            "<|tool_call|>[{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}, \
             {\"name\": \"time\", \"arguments\": {}}]<|/tool_call|>",
            vec![call("weather", weather), call("time", "{}")],
        ),
        (
            "command r7b",
            Hermes,
            "",
            "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"weather\", \"parameters\": {\"city\": \"Paris\"}}\n]<|END_ACTION|>",
            vec![call("weather", weather)],
        ),
        (
            "deepseek v3",
            Hermes,
            "",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{\"city\": \"Paris\"}\n```<｜tool▁call▁end｜>\n\
             <｜tool▁call▁begin｜>function<｜tool▁sep｜>time\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            vec![call("weather", weather), call("time", "{}")],
        ),
        (
            "deepseek v3.1",
            Hermes,
            "",
            "I look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": \"Paris\"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            vec![content("I look."), call("weather", weather)],
        ),
        ("no channel", Channels, "", "Just text", vec![content("Just text")]),
    ]
}

#[test]
fn recorded_replies_parse_equally_at_any_split() {
    for (name, form, prompt, text, want) in recorded() {
        let parser = || ReplyParser::new(form, true, prompt);
        assert_eq!(read(parser(), &[text]), want, "{name}");
        for at in (0..=text.len()).filter(|&at| text.is_char_boundary(at)) {
            let (a, b) = text.split_at(at);
            assert_eq!(read(parser(), &[a, b]), want, "{name}, cut at {at}");
        }
        let letters: Vec<String> = text.chars().map(String::from).collect();
        let letters: Vec<&str> = letters.iter().map(String::as_str).collect();
        assert_eq!(read(parser(), &letters), want, "{name}, letter by letter");
    }
}

/// Whole answers of models that have seen the tools only in the prompt (the first answers are from
/// Qwen2.5-Coder).
fn bare() -> Vec<(&'static str, Form, &'static str, Vec<Part>)> {
    use Form::{Hermes, Llama3, Mistral};
    let weather = r#"{"city": "Paris"}"#;
    let one = || vec![call("weather", weather)];
    let python = || call("weather", r#"{"city":"Paris"}"#);
    vec![
        (
            "gemma",
            Hermes,
            "I look it up.\n```tool_code\nprint(default_api.weather(city=\"Paris\"))\n```\n",
            vec![content("I look it up."), python()],
        ),
        (
            "gemma, a list",
            Hermes,
            "```tool_code\n[weather(city='Paris'), time()]\n```",
            vec![python(), call("time", "{}")],
        ),
        (
            "gemma, other code",
            Hermes,
            "So:\n\n```tool_code\nprint(1)\n```\n\nIt is.",
            vec![content("So:\n\n```tool_code\nprint(1)\n```\n\nIt is.")],
        ),
        (
            "command r",
            Hermes,
            "Action: ```json\n[\n    {\n        \"tool_name\": \"weather\",\n        \"parameters\": \
             {\"city\": \"Paris\"}\n    }\n]\n```",
            one(),
        ),
        (
            "command r, no tool",
            Hermes,
            "Action: ```json\n[{\"tool_name\": \"directly-answer\", \"parameters\": {}}]\n```",
            vec![content(
                "Action: ```json\n[{\"tool_name\": \"directly-answer\", \"parameters\": {}}]\n```",
            )],
        ),
        ("bare", Hermes, "{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}", one()),
        (
            "on lines",
            Hermes,
            "{\n  \"name\": \"weather\",\n  \"arguments\": {\"city\": \"Paris\"}\n}\n",
            one(),
        ),
        (
            "fenced",
            Hermes,
            "```json\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}\n```",
            one(),
        ),
        (
            "fenced without a word",
            Hermes,
            "```\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}\n```\n",
            one(),
        ),
        (
            "a list",
            Hermes,
            "[{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}, {\"name\": \"time\"}]",
            vec![call("weather", weather), call("time", "{}")],
        ),
        (
            "two",
            Hermes,
            "{\"name\": \"time\", \"arguments\": {}}\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}",
            vec![call("time", "{}"), call("weather", weather)],
        ),
        (
            "parameters",
            Hermes,
            "{\"name\": \"weather\", \"parameters\": {\"city\": \"Paris\"}}",
            one(),
        ),
        (
            "as it is described",
            Hermes,
            "{\"type\": \"function\", \"function\": {\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}}",
            one(),
        ),
        (
            "by its function",
            Hermes,
            "{\"function\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}",
            one(),
        ),
        (
            "arguments first",
            Hermes,
            "{\"arguments\": {\"city\": \"Paris\"}, \"name\": \"weather\"}",
            one(),
        ),
        (
            "in the tools' tags",
            Hermes,
            "<tools>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tools>",
            one(),
        ),
        ("llama 3.1's own", Llama3, "<function=weather>{\"city\": \"Paris\"}</function>", one()),
        (
            "llama fenced",
            Llama3,
            "```json\n{\"name\": \"weather\", \"parameters\": {\"city\": \"Paris\"}}\n```",
            one(),
        ),
        (
            "mistral bare",
            Mistral,
            "[{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}]",
            one(),
        ),
        (
            "behind reasoning",
            Hermes,
            "<think>Hm</think>\n{\"name\": \"time\", \"arguments\": {}}",
            vec![reasoning("Hm"), call("time", "{}")],
        ),
        // Answers without calls.
        (
            "another name",
            Hermes,
            "{\"name\": \"Bob\", \"arguments\": {}}",
            vec![content("{\"name\": \"Bob\", \"arguments\": {}}")],
        ),
        ("other JSON", Hermes, "{\"city\": \"Paris\"}", vec![content("{\"city\": \"Paris\"}")]),
        ("a list of numbers", Hermes, "[1, 2]", vec![content("[1, 2]")]),
        ("code", Hermes, "```python\nprint(1)\n```", vec![content("```python\nprint(1)\n```")]),
        (
            "text behind it",
            Hermes,
            "{\"name\": \"time\", \"arguments\": {}} is how.",
            vec![content("{\"name\": \"time\", \"arguments\": {}} is how.")],
        ),
        ("an unknown tag", Hermes, "<tool>x", vec![content("<tool>x")]),
    ]
}

#[test]
fn bare_tool_call_is_parsed_at_any_split() {
    for (name, form, text, want) in bare() {
        let parser =
            || ReplyParser::new(form, true, "").knowing(vec!["weather".into(), "time".into()]);
        assert_eq!(read(parser(), &[text]), want, "{name}");
        for at in (0..=text.len()).filter(|&at| text.is_char_boundary(at)) {
            let (a, b) = text.split_at(at);
            assert_eq!(read(parser(), &[a, b]), want, "{name}, cut at {at}");
        }
    }
    // Text that cannot become a call is returned immediately.
    let mut parts = vec![];
    ReplyParser::new(Form::Hermes, true, "").knowing(vec!["f".into()]).push("{\"ci", &mut parts);
    assert_eq!(parts, [content("{\"ci")]);
}

/// A truncated answer shows no markers, wherever it was cut. Its calls are the complete calls and
/// the start of the next one.
#[test]
fn truncated_reply_shows_no_markers_and_keeps_started_call() {
    let known = || {
        vec![
            "weather".to_owned(),
            "time".to_owned(),
            "run".to_owned(),
            "say".to_owned(),
            "now".to_owned(),
        ]
    };
    let parser = |form, prompt| ReplyParser::new(form, true, prompt).knowing(known());
    let bare = bare().into_iter().map(|(name, form, text, want)| (name, form, "", text, want));
    for (name, form, prompt, text, want) in recorded().into_iter().chain(bare) {
        // Broken calls are text, including their markers.
        let broken = want
            .iter()
            .any(|part| matches!(part, Content(text) if text.contains("<tool_call>") || text.contains("<|")));
        // This is a call until the text after it arrives.
        if broken || name == "text behind it" || form == Form::Llama3 && name == "llama json" {
            continue;
        }
        let calls = |parts: &[Part]| -> Vec<ToolCall> {
            parts
                .iter()
                .filter_map(|part| if let Call(call) = part { Some(call.clone()) } else { None })
                .collect()
        };
        let whole = calls(&want);
        for at in (1..text.len()).filter(|&at| text.is_char_boundary(at)) {
            let (mut parser, mut parts) = (parser(form, prompt), vec![]);
            parser.push(&text[..at], &mut parts);
            let partial = parser.cut(&mut parts);
            for part in &parts {
                let (Content(said) | Reasoning(said)) = part else { continue };
                let marks = [
                    "<tool",
                    "</tool_",
                    "<think",
                    "</think",
                    "[TOOL",
                    "<|",
                    "[/TH",
                    "<function",
                    "<arg",
                    "｜",
                ];
                let shown = marks
                    .iter()
                    .find(|mark| said.contains(**mark) && !want.contains(&content(text)));
                let later =
                    text.contains("Say <think>") || name == "plain" || name == "text behind it";
                assert!(shown.is_none() || later, "{name}, cut at {at}: {part:?}");
            }
            let got = calls(&parts);
            for (i, call) in got.iter().enumerate() {
                let Some(known) = whole.get(i) else { panic!("{name}, cut at {at}: {call:?}") };
                let last = partial && i + 1 == got.len();
                let same = if last { known.name.starts_with(&call.name) } else { call == known };
                assert!(same, "{name}, cut at {at}: {call:?} of {known:?}");
            }
        }
    }
    let cut = |form, text: &str| {
        let (mut parser, mut parts) = (parser(form, ""), vec![]);
        parser.push(text, &mut parts);
        (parser.cut(&mut parts), parts)
    };
    for (form, text) in [
        (Form::Hermes, "<tool_call>\n{\"name\": \"run\", \"arguments\": {\"cmd\": \"012"),
        (Form::Hermes, "```json\n{\"name\": \"run\", \"arguments\": {\"cmd\": \"012"),
        (Form::Llama3, "{\"name\": \"run\", \"parameters\": {\"cmd\": \"012"),
        (Form::Mistral, "[TOOL_CALLS][{\"name\": \"run\", \"arguments\": {\"cmd\": \"012"),
        (Form::Mistral, "[TOOL_CALLS]run[ARGS]{\"cmd\": \"012"),
        (
            Form::Channels,
            "<|channel|>commentary to=functions.run <|constrain|>json<|message|>{\"cmd\": \"012",
        ),
        (
            Form::Hermes,
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>run<｜tool▁sep｜>{\"cmd\": \"012",
        ),
    ] {
        assert_eq!(cut(form, text), (true, vec![call("run", "{\"cmd\": \"012")]), "{text}");
    }
    assert_eq!(cut(Form::Hermes, "<tool_call>\n{\"name\": \"ru"), (false, vec![]));
    assert_eq!(cut(Form::Hermes, "Yes.\n<tool_ca"), (false, vec![content("Yes.")]));
    assert_eq!(cut(Form::Hermes, "1 <"), (false, vec![content("1"), content(" <")]));
}

#[test]
fn call_without_tools_is_text() {
    let text = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
    assert_eq!(read(ReplyParser::new(Form::Hermes, false, ""), &[text]), [content(text)]);
    let text = "{\"name\": \"f\", \"parameters\": {}}";
    assert_eq!(read(ReplyParser::new(Form::Llama3, false, ""), &[text]), [content(text)]);
}

#[test]
fn call_inside_schema_content_is_text() {
    let either = || ReplyParser::either(Form::Hermes, "");
    let json = "{\"a\": \"<tool_call>{\\\"name\\\": 1}</tool_call> <think>\"}";
    for cut in (0..=json.len()).filter(|cut| json.is_char_boundary(*cut)) {
        assert_eq!(read(either(), &[&json[..cut], &json[cut..]]), [content(json)], "{cut}");
    }
    let calls =
        "<think>Hm</think>\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
    assert_eq!(read(either(), &[calls]), [reasoning("Hm"), call("f", "{}")]);
}

#[test]
fn markers_in_json_strings_of_last_channel_are_text() {
    let json = "{\"a\": \"<|end|><|start|>assistant<|channel|>analysis<|message|>\"}";
    let text = format!(
        "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>final<|message|>{json}"
    );
    for cut in (0..=text.len()).filter(|cut| text.is_char_boundary(*cut)) {
        for parser in
            [ReplyParser::json(Form::Channels, ""), ReplyParser::either(Form::Channels, "")]
        {
            assert_eq!(
                read(parser, &[&text[..cut], &text[cut..]]),
                [reasoning("Hm"), content(json)],
                "{cut}"
            );
        }
    }
    // A bare string is also JSON. Content that is not constrained to JSON ends at the marker.
    let text = "<|channel|>final<|message|>\"a <|end|>\"";
    assert_eq!(read(ReplyParser::json(Form::Channels, ""), &[text]), [content("\"a <|end|>\"")]);
    assert_eq!(read(ReplyParser::new(Form::Channels, false, ""), &[text]), [content("\"a ")]);
}

#[test]
fn reply_form_is_detected_from_template() {
    for (template, form) in [
        ("… <|channel|> …", Form::Channels),
        ("[AVAILABLE_TOOLS] [TOOL_CALLS]", Form::Mistral),
        ("<|im_start|> <tool_call>", Form::Hermes),
        ("<|start_header_id|> ipython", Form::Llama3),
        ("<|im_start|>", Form::Hermes),
    ] {
        assert_eq!(Form::of(template), form, "{template}");
    }
}

proptest::proptest! {
    /// No text makes the parser fail. The result does not depend on the split into pieces.
    #[test]
    fn random_text_parses_equally_at_any_split(
        words in proptest::collection::vec(proptest::sample::select(vec![
            "<think>", "</think>", "<tool_call>", "</tool_call>", "{\"name\":\"f\"}", "{", "[TOOL_CALLS]", "[ARGS]", "<|channel|>",
            "analysis", "<|message|>", "<|start|>", "<|end|>", "<|call|>", " to=functions.f", "<|python_tag|>", " ", "\n", "ü", "x",
            "<function=f>", "```", "json\n", "\"arguments\"", "<tools>", "<|tool_call|>", "[THINK]", "[/THINK]", "<", "\"", "\\", "<parameter=a>", "</parameter>", "</function>",
        ]), 0..12),
        cuts in proptest::collection::vec(0usize..200, 0..6),
        form in proptest::sample::select(vec![Form::Hermes, Form::Llama3, Form::Mistral, Form::Channels]),
    ) {
        let text = words.concat();
        let mut cuts: Vec<usize> = cuts.into_iter().filter(|&c| c < text.len() && text.is_char_boundary(c)).collect();
        cuts.sort_unstable();
        let mut pieces = vec![];
        let mut from = 0;
        for cut in cuts {
            pieces.push(&text[from..cut]);
            from = cut;
        }
        pieces.push(&text[from..]);
        let parser = || ReplyParser::new(form, true, "").knowing(vec!["f".to_owned()]);
        proptest::prop_assert_eq!(read(parser(), &[text.as_str()]), read(parser(), &pieces));
    }
}
