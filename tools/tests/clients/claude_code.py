"""Claude Code's traffic, written after the published SDK (anthropic): the beta route with its headers, a system
prompt of several blocks with cache_control, 15 tools, adaptive thinking, calls and their results over several turns,
streams, count_tokens.

claude_code.py HTTP KEY
"""
import sys
import warnings

import anthropic

warnings.simplefilter("ignore", DeprecationWarning)

address, key = sys.argv[1:]
client = anthropic.Anthropic(base_url=address, api_key=key, max_retries=0)
BETAS = ["claude-code-20250219", "interleaved-thinking-2025-05-14", "fine-grained-tool-streaming-2025-05-14"]
EPHEMERAL = {"type": "ephemeral"}


def tool(name, fields):
    return {
        "name": name,
        "description": f"{name} of the agent. " + "It takes care. " * 2,
        "input_schema": {
            "$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "additionalProperties": False,
            "properties": {field: {"type": "string", "description": f"The {field}"} for field in fields},
            "required": fields[:1],
        },
    }


TOOLS = [tool(name, fields) for name, fields in [
    ("Bash", ["command", "description"]), ("Glob", ["pattern", "path"]), ("Grep", ["pattern", "path"]),
    ("Read", ["file_path"]), ("Edit", ["file_path", "old_string", "new_string"]), ("Write", ["file_path", "content"]),
    ("NotebookEdit", ["notebook_path", "new_source"]), ("WebFetch", ["url", "prompt"]), ("TodoWrite", ["todos"]),
    ("BashOutput", ["bash_id"]), ("KillShell", ["shell_id"]), ("SlashCommand", ["command"]), ("Skill", ["command"]),
    ("ExitPlanMode", ["plan"]), ("mcp__ide__getDiagnostics", ["uri"]),
]]
TOOLS[-1]["cache_control"] = EPHEMERAL
SYSTEM = [
    {"type": "text", "text": "You are Claude Code, Anthropic's official CLI for Claude.", "cache_control": EPHEMERAL},
    {"type": "text", "text": "You help with software. Be brief. " * 20, "cache_control": EPHEMERAL},
]
COMMON = {
    "model": "claude-sonnet-4-5", "max_tokens": 48, "system": SYSTEM, "tools": TOOLS, "betas": BETAS,
    "metadata": {"user_id": "user_0123_account__session_4567"},
}


def text(words):
    return {"type": "text", "text": words}


first = {"role": "user", "content": [
    text("<system-reminder>\nToday is Saturday.\n</system-reminder>\n"), {**text("List the files."), "cache_control": EPHEMERAL},
]}
counted = client.beta.messages.count_tokens(
    model=COMMON["model"], system=SYSTEM, tools=TOOLS, messages=[first], betas=BETAS)
assert counted.input_tokens > 1000, counted

# A turn in a stream, with the reasoning settings of a current model.
with client.beta.messages.stream(**COMMON, messages=[first], thinking={"type": "adaptive"}, extra_body={"temperature": 1},
                                 output_config={"effort": "medium"}, extra_headers={"x-app": "cli"}) as stream:
    kinds = [event.type for event in stream]
    answer = stream.get_final_message()
assert kinds[0] == "message_start" and kinds[-1] == "message_stop", kinds
total = answer.usage.input_tokens + answer.usage.cache_read_input_tokens
assert total == counted.input_tokens, (total, counted)
assert answer.stop_reason in ("end_turn", "max_tokens", "tool_use"), answer

# A call is forced, as a model that follows its prompt would make it; its arguments arrive in pieces.
with client.beta.messages.stream(**{**COMMON, "max_tokens": 200}, messages=[first],
                                 tool_choice={"type": "tool", "name": "Bash"}) as stream:
    pieces = [event.delta.partial_json for event in stream
              if event.type == "content_block_delta" and event.delta.type == "input_json_delta"]
    call = next(block for block in stream.get_final_message().content if block.type == "tool_use")
assert call.name == "Bash" and isinstance(call.input["command"], str) and pieces, call

# The conversation goes on with results of two parallel calls, one of them an error.
turns = [first, {"role": "assistant", "content": [
    text("I look."),
    {"type": "tool_use", "id": "toolu_01", "name": "Bash", "input": {"command": "ls"}},
    {"type": "tool_use", "id": "toolu_02", "name": "Read", "input": {"file_path": "/nowhere"}},
]}, {"role": "user", "content": [
    {"type": "tool_result", "tool_use_id": "toolu_01", "content": [text("a.txt\nb.txt")]},
    {"type": "tool_result", "tool_use_id": "toolu_02", "content": "no such file", "is_error": True,
     "cache_control": EPHEMERAL},
]}]
whole = client.beta.messages.create(**COMMON, messages=turns, context_management={"edits": []})
assert whole.usage.cache_read_input_tokens > 1000, "the prefix of the conversation is cached"
assert whole.usage.output_tokens <= 48 and whole.stop_reason, whole

# The small model that names a conversation: no tools, a format of the answer.
title = client.beta.messages.create(
    model="claude-haiku-4-5", max_tokens=60, betas=BETAS, system=[text("Name the topic.")],
    messages=[{"role": "user", "content": "List the files."}],
    output_config={"format": {"type": "json_schema", "schema": {
        "type": "object", "properties": {"title": {"type": "string", "maxLength": 20}},
        "required": ["title"], "additionalProperties": False}}})
assert title.content[0].text.startswith("{"), title
print("anthropic", anthropic.__version__, total, "tokens")
