"""Follows the KV events of a server as vLLM's examples do: pyzmq, and msgspec with vLLM's types.

kv_events.py HTTP PUBLISH REPLAY: the server has one sequence, a context of 1024, and no key.
"""
import json
import sys
import urllib.request
from typing import Any, Optional, Union

import msgspec
import zmq

http, publish, replay = sys.argv[1:]
TOPIC = "kv@pod@model"


class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    ts: float
    events: list[Any]


class KVCacheEvent(msgspec.Struct, array_like=True, omit_defaults=True, gc=False, tag=True):
    pass


class BlockStored(KVCacheEvent):
    block_hashes: list[Union[bytes, int]]
    parent_block_hash: Optional[Union[bytes, int]]
    token_ids: list[int]
    block_size: int
    lora_id: Optional[int]
    medium: Optional[str]


class BlockRemoved(KVCacheEvent):
    block_hashes: list[Union[bytes, int]]
    medium: Optional[str]


class AllBlocksCleared(KVCacheEvent):
    pass


class KVEventBatch(EventBatch):
    events: list[Union[BlockStored, BlockRemoved, AllBlocksCleared]]


decoder = msgspec.msgpack.Decoder(type=KVEventBatch)
context = zmq.Context()
subscriber = context.socket(zmq.SUB)
subscriber.setsockopt(zmq.RCVTIMEO, 20_000)
subscriber.connect(publish)
subscriber.setsockopt_string(zmq.SUBSCRIBE, "kv@")
batches = []
blocks = {}


def ask(ids):
    body = json.dumps({"prompt": ids, "max_tokens": 2, "temperature": 0}).encode()
    request = urllib.request.Request(f"{http}/v1/completions", body)
    return json.load(urllib.request.urlopen(request))


def follow():
    topic, number, payload = subscriber.recv_multipart()
    assert topic.decode() == TOPIC, topic
    batches.append((int.from_bytes(number, "big"), payload))
    for event in decoder.decode(payload).events:
        if isinstance(event, BlockStored):
            assert event.block_size == 128 and event.lora_id is None and event.medium == "CPU"
            parent, size = event.parent_block_hash, event.block_size
            assert parent is None or parent in blocks, "unknown parent"
            for i, block in enumerate(event.block_hashes):
                assert block not in blocks, "stored twice"
                blocks[block] = (parent, event.token_ids[i * size:(i + 1) * size])
                parent = block
        elif isinstance(event, BlockRemoved):
            for block in event.block_hashes:
                # Blocks that were stored before the subscription are not known.
                blocks.pop(block, None)
        else:
            blocks.clear()


def texts():
    """The cached text up to each block."""
    def text(block):
        parent, ids = blocks[block]
        return (text(parent) if parent is not None else []) + ids
    return sorted(text(block) for block in blocks)


one = [i % 400 + 300 for i in range(300)]
two = [i % 390 + 800 for i in range(300)]
# The subscription reaches the server some time after connect: until then nothing is published.
subscriber.setsockopt(zmq.RCVTIMEO, 300)
for attempt in range(100):
    ask([1000 + attempt] * 140)
    try:
        follow()
        break
    except zmq.Again:
        pass
subscriber.setsockopt(zmq.RCVTIMEO, 20_000)
ask(one)
while one[:256] not in texts():
    follow()
stored = len(batches)
assert one[:128] in texts()
# The cached prefix is not stored again, and a longer text goes on from it.
longer = one + two[:100]
ask(longer)
while longer[:384] not in texts():
    follow()
# One sequence: another text takes its place.
ask(two)
while two[:256] not in texts() or one[:128] in texts():
    follow()
assert texts() == [two[:128], two[:256]], [len(text) for text in texts()]
numbers = [number for number, _ in batches]
assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), numbers

# Missed batches are repeated by number.
asker = context.socket(zmq.DEALER)
asker.setsockopt(zmq.RCVTIMEO, 20_000)
asker.connect(replay)
asker.send_multipart([b"", batches[stored - 1][0].to_bytes(8, "big")])
again = []
while True:
    empty, number, payload = asker.recv_multipart()
    if number == b"\xff" * 8:
        assert empty == b"" and payload == b""
        break
    again.append((int.from_bytes(number, "big"), payload))
assert again == batches[stored - 1:], (len(again), len(batches), stored)
one_answer = context.socket(zmq.REQ)
one_answer.setsockopt(zmq.RCVTIMEO, 20_000)
one_answer.connect(replay)
one_answer.send(numbers[-1].to_bytes(8, "big"))
number, payload = one_answer.recv_multipart()
assert (int.from_bytes(number, "big"), payload) == batches[-1]
context.destroy(linger=0)
print("pyzmq", zmq.__version__, "msgspec", msgspec.__version__, len(batches), "batches")
