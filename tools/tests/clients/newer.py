"""The newer words of real clients: openai's responses and anthropic's messages, at a server that is given by its address."""
import json
import sys
import typing

import anthropic
import openai
import pydantic

address, key = sys.argv[1:3]
client = openai.OpenAI(base_url=f"{address}/v1", api_key=key, max_retries=0)
name = client.models.list().data[0].id

# Responses: complete, streamed, stored, with a schema, with functions.
ask = {"model": name, "temperature": 0, "max_output_tokens": 12}
whole = client.responses.create(input="Name a colour.", **ask)
assert whole.output_text and whole.status == "incomplete" and whole.usage.output_tokens == 12, whole
with client.responses.stream(input="Name a colour.", **ask) as stream:
    events = list(stream)
last = events[-1].response
assert last.output_text == whole.output_text and events[0].type == "response.created", events
assert client.responses.retrieve(whole.id).output_text == whole.output_text
on = client.responses.create(input="Another.", previous_response_id=whole.id, **ask)
assert on.usage.input_tokens > whole.usage.input_tokens, on
client.responses.delete(whole.id)


class Answer(pydantic.BaseModel):
    colour: typing.Literal["red", "green"]


ask["max_output_tokens"] = 60
parsed = client.responses.parse(input="A colour.", text_format=Answer, **ask)
assert parsed.output_parsed.colour in ("red", "green"), parsed
schema = Answer.model_json_schema() | {"additionalProperties": False}
tools = [{"type": "function", "name": "paint", "parameters": schema, "strict": True}]
called = client.responses.create(input="Paint it.", tools=tools, tool_choice="required", parallel_tool_calls=False, **ask)
call = called.output[0]
assert call.type == "function_call" and "colour" in json.loads(call.arguments), call
history = [{"role": "user", "content": "Paint it."}, *called.output, {"type": "function_call_output", "call_id": call.call_id, "output": "done"}]
assert client.responses.create(input=history, tools=tools, store=False, **ask).output_text

# Messages: complete, streamed, with tools.
other = anthropic.Anthropic(base_url=address, api_key=key, max_retries=0)
ask = {"model": name, "max_tokens": 12, "extra_body": {"temperature": 0}, "messages": [{"role": "user", "content": "Name a colour."}]}
message = other.messages.create(**ask)
assert message.content[0].text == whole.output_text and message.stop_reason == "max_tokens", message
with other.messages.stream(**ask) as stream:
    assert "".join(stream.text_stream) == whole.output_text
    final = stream.get_final_message()
assert final.usage.output_tokens == 12 and final.content[0].text == message.content[0].text, final
count = other.messages.count_tokens(model=name, messages=ask["messages"]).input_tokens
assert count == message.usage.input_tokens + message.usage.cache_read_input_tokens, (count, message.usage)
tools = [{"name": "paint", "description": "Paints.", "input_schema": schema, "cache_control": {"type": "ephemeral"}}]
ask |= {"tools": tools, "max_tokens": 60, "system": [{"type": "text", "text": "You paint."}]}
choice = {"type": "any", "disable_parallel_tool_use": True}
with other.messages.stream(tool_choice=choice, **ask) as stream:
    called = stream.get_final_message()
use = called.content[0]
assert called.stop_reason == "tool_use" and use.name == "paint" and use.input["colour"] in ("red", "green"), called
ask["messages"] += [
    {"role": "assistant", "content": called.content},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "done"}]},
]
assert other.messages.create(tool_choice={"type": "none"}, **ask).content
for wrong, kind in [
    (lambda: anthropic.Anthropic(base_url=address, api_key="wrong", max_retries=0).messages.create(**ask), anthropic.AuthenticationError),
    (lambda: other.messages.create(**ask | {"model": "claude"}), anthropic.NotFoundError),
    (lambda: other.messages.create(**ask | {"extra_body": {"temperature": 9}}), anthropic.BadRequestError),
]:
    try:
        wrong()
    except kind as error:
        assert error.body["error"]["message"], error.body
    else:
        raise AssertionError(f"no {kind.__name__}")
print(json.dumps({"anthropic": anthropic.__version__, "openai": openai.__version__}))
