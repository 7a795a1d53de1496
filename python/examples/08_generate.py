"""A language model: text piece by piece, a chat, and scores.

python3 08_generate.py MODEL.gguf|hf:ORG/REPO:Q4_K_M [DEVICE]
"""

import sys

import kjit

if len(sys.argv) < 2:
    sys.exit("name a GGUF file, or a model of the hub such as hf:ORG/REPO:Q4_K_M")
model = kjit.Model(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "cpu", context=512)
print(model)

with model.generate("Once upon a time", 16, stream=True, temperature=0) as answer:
    for piece in answer:
        print(piece, end="", flush=True)
print(f"\n{answer.reason}, {len(answer.ids)} tokens")

ids = model.tokenize("The capital of France is")
best = int(kjit.argmax(model.logits(ids)))
print("next:", repr(model.detokenize([best])))
assert model.generate(ids, 1, temperature=0) in ("", model.detokenize([best]))
