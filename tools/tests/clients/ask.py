"""Real clients ask a server that is given by its address; whatever is not as their users expect it is an AssertionError."""
import json
import sys
import time
import typing
import urllib.request

import ollama
import openai

address, key = sys.argv[1:3]
client = openai.OpenAI(base_url=f"{address}/v1", api_key=key, max_retries=0)
name = client.models.list().data[0].id
messages = [{"role": "user", "content": "Name a colour."}]

whole = client.chat.completions.create(model=name, messages=messages, temperature=0, max_tokens=12)
said = whole.choices[0].message.content
assert said and whole.choices[0].finish_reason == "length" and whole.usage.completion_tokens == 12, whole

pieces, usage = "", None
for chunk in client.chat.completions.create(model=name, messages=messages, temperature=0, max_tokens=12, stream=True, stream_options={"include_usage": True}):
    usage = chunk.usage or usage
    pieces += "".join(c.delta.content or "" for c in chunk.choices)
assert pieces == said and usage.completion_tokens == 12, (pieces, said)

scored = client.chat.completions.create(model=name, messages=messages, temperature=0, max_tokens=3, logprobs=True, top_logprobs=2)
assert [t.token == t.top_logprobs[0].token for t in scored.choices[0].logprobs.content] == [True] * 3, scored

tools = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]
history = messages + [
    {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": {"name": "weather", "arguments": "{\"city\": \"Paris\"}"}}]},
    {"role": "tool", "tool_call_id": "1", "content": "sunny"},
]
assert client.chat.completions.create(model=name, messages=history, tools=tools, max_tokens=3).choices

text = client.completions.create(model=name, prompt="The sky is", temperature=0, max_tokens=4)
assert text.choices[0].text and text.usage.prompt_tokens == 3, text

# A stream whose client disconnects.
stream = client.completions.create(model=name, prompt="Once upon a time", max_tokens=900, stream=True, extra_body={"ignore_eos": True})
next(iter(stream))
stream.close()

# Embeddings: openai's client requests base64, which must have the same numbers.
both = client.embeddings.create(model=name, input=["The cat sits on the mat.", "Interest rates rose."]).data
plain = client.embeddings.create(model=name, input="The cat sits on the mat.", encoding_format="float").data[0].embedding
assert len(both) == 2 and len(plain) == 576 and abs(sum(x * x for x in plain) - 1) < 1e-4, len(plain)
assert all(abs(a - b) < 1e-6 for a, b in zip(both[0].embedding, plain)) and both[1].embedding != both[0].embedding

# A schema, and a tool that must be called.
import pydantic


class Answer(pydantic.BaseModel):
    colour: typing.Literal["red", "green"]
    sure: bool


parsed = client.chat.completions.parse(model=name, messages=messages, response_format=Answer, max_tokens=60)
assert parsed.choices[0].message.parsed.colour in ("red", "green"), parsed
tools[0]["function"]["parameters"] |= {"required": ["city"], "additionalProperties": False}
tools[0]["function"]["parameters"]["properties"]["city"] |= {"maxLength": 9}
called = client.chat.completions.create(model=name, messages=messages, tools=tools, tool_choice="required", parallel_tool_calls=False, max_tokens=60)
assert list(json.loads(called.choices[0].message.tool_calls[0].function.arguments)) == ["city"], called

# The server stops computing for a client that closes its stream.
def status():
    asked = urllib.request.Request(f"{address}/status", headers={"Authorization": f"Bearer {key}"})
    return json.load(urllib.request.urlopen(asked))


cancelled = status()["requests"]["cancelled"]
stream = client.chat.completions.create(model=name, messages=messages, max_tokens=900, stream=True, extra_body={"ignore_eos": True})
next(iter(stream))
stream.close()
until = time.time() + 60
while status()["requests"]["cancelled"] == cancelled or status()["slots"]["running"]:
    assert time.time() < until, status()
    time.sleep(0.05)

for wrong, kind in [
    (lambda: openai.OpenAI(base_url=f"{address}/v1", api_key="wrong", max_retries=0).models.list(), openai.AuthenticationError),
    (lambda: client.chat.completions.create(model="gpt-4", messages=messages), openai.NotFoundError),
    (lambda: client.chat.completions.create(model=name, messages=messages, temperature=9), openai.BadRequestError),
    (lambda: client.embeddings.create(model=name, input="x", dimensions=3), openai.BadRequestError),
]:
    try:
        wrong()
    except kind as error:
        assert error.body is None or "message" in error.body, error.body
    else:
        raise AssertionError(f"no {kind.__name__}")

other = ollama.Client(host=address, headers={"Authorization": f"Bearer {key}"})
assert other.list().models[0].model == name
answer = other.chat(model=name, messages=messages, options={"temperature": 0, "num_predict": 12})
assert answer.message.content and answer.done and answer.eval_count == 12, answer
pieces = "".join(part.message.content for part in other.chat(model=name, messages=messages, options={"temperature": 0, "num_predict": 12}, stream=True))
assert pieces == answer.message.content, (pieces, answer)
assert other.embed(model=name, input="x").embeddings
assert other.generate(model=name, prompt="The sky is", raw=True, options={"num_predict": 3}).response
print(json.dumps({"openai": openai.__version__, "said": said}))
