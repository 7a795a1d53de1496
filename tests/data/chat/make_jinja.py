"""Writes jinja.json: what jinja2 makes of one line for each filter, test, method and construct, in the sandbox that
transformers' apply_chat_template sets up.

    pip install jinja2==3.1.6 && python3 tests/data/chat/make_jinja.py
"""
import datetime
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


def strftime_now(form):
    return datetime.datetime(2026, 3, 4, 15, 6, 7).strftime(form)


env = ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
env.filters["tojson"] = tojson
env.globals["raise_exception"] = raise_exception
env.globals["strftime_now"] = strftime_now

VARIABLES = {
    "n": 42, "f": 3.14159, "t": "some <b>bold</b> text", "s": "Hello, World", "empty": [], "yes": True,
    "users": [
        {"name": "bob", "age": 31, "role": "b", "a": {"x": 1}}, {"name": "Ann", "age": 25, "role": "a", "a": {"x": 3}},
        {"name": "cy", "age": 40, "role": "B", "a": {"x": 2}}, {"name": "dee", "role": "a"}],
    "d": {"b": 2, "a": 1, "C": 3}, "schema": {"type": "object", "items": {"type": "x"}},
    "nested": {"list": [1, 2.5, None, True, "é\"'\n"], "dict": {}, "tuple": []}, "u": "ünï ß ΑΣ 漢字 😀",
}

here = pathlib.Path(__file__).parent
cases, part = [], ""
for line in (here / "jinja.txt").read_text().split("\n"):
    if line.startswith("# "):
        part = line[2:]
    elif line:
        # A line is a template; `\n` in it, outside of expressions, is written `⏎`.
        template = line.replace("⏎", "\n")
        case = {"part": part, "template": template}
        try:
            case["rendered"] = env.from_string(template).render(**VARIABLES)
        except Exception as error:
            case["fails"] = f"{type(error).__name__}: {error}"[:160]
        if " at 0x" in case.get("rendered", ""):
            raise SystemExit(f"an address is written: {template}")
        cases.append(case)

public = lambda kind: [name for name in dir(kind) if not name.startswith("_")]
names = {
    "filters": sorted(env.filters), "tests": sorted(env.tests), "globals": sorted(env.globals),
    "str": public(str), "list": public(list), "tuple": public(tuple), "dict": public(dict),
}
table = {"variables": json.dumps(VARIABLES, ensure_ascii=False), "names": names, "cases": cases}
(here / "jinja.json").write_text(json.dumps(table, ensure_ascii=False, indent=1) + "\n")
