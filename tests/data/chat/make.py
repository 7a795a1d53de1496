"""Writes cases.json: what jinja2 makes of the templates here, set up as transformers' apply_chat_template sets it up.

    pip install jinja2==3.1.6 && python3 tests/data/chat/make.py
"""
import json
import pathlib

import jinja2
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.If(jinja2.nodes.Const(True), body, [], []).set_lineno(line)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


env = ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
env.filters["tojson"] = tojson
env.globals["raise_exception"] = raise_exception

SYSTEM = {"role": "system", "content": "  Be terse. "}
TALK = [
    {"role": "user", "content": "first <|x|> \"q\" 'q'\n"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\n answer é "},
    {"role": "user", "content": "second"},
]
CALL = [
    {"role": "user", "content": "weather?"},
    {"role": "assistant", "content": "", "tool_calls": [
        {"id": "abcdef123", "type": "function",
         "function": {"name": "get", "arguments": {"z": 1, "a": [True, None, 2.5], "town": "Zürich"}}}]},
    {"role": "tool", "content": "12 °C", "tool_call_id": "abcdef123"},
]
TOOLS = [{"type": "function", "function": {
    "name": "get", "description": "Gets it.",
    "parameters": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]}}}]
CONVERSATIONS = [
    (TALK, None), ([SYSTEM] + TALK, None), (TALK, TOOLS), (CALL, TOOLS), ([SYSTEM] + CALL, TOOLS), (TALK[1:], None),
    ([{"role": "user", "content": None}, {"role": "stop", "content": "x"}, TALK[0]], None),
]

here = pathlib.Path(__file__).parent
cases = []
for path in sorted(here.glob("*.jinja")):
    template = env.from_string(path.read_text())
    for messages, tools in CONVERSATIONS:
        for prompt in (True, False):
            # As text: readers of this file may not keep the order of keys.
            raw = lambda value: None if value is None else {"raw": json.dumps(value, ensure_ascii=False)}
            case = {"template": path.name, "messages": raw(messages), "tools": raw(tools)}
            case["add_generation_prompt"] = prompt
            try:
                case["rendered"] = template.render(
                    messages=messages, tools=tools, documents=None, add_generation_prompt=prompt,
                    bos_token="<s>", eos_token="</s>")
            except jinja2.exceptions.TemplateError as error:
                case["refused"] = str(error)
            except TypeError:
                case["failed"] = True
            cases.append(case)
(here / "cases.json").write_text(json.dumps(cases, ensure_ascii=False, indent=1) + "\n")
