"""lm-evaluation-harness, unmodified, with a server: its tokenizer, its log probabilities, 100 made items.

lm_eval_run.py HTTP REFERENCE.json: the reference has the log probability of each ending by llama.cpp's arithmetic.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import hellaswag_items

http, reference = sys.argv[1:]
folder = pathlib.Path(tempfile.mkdtemp())
hellaswag_items.write(folder)
arguments = f"model=m,base_url={http}/v1/completions,num_concurrent=4,max_length=512"
run = "import sys; from lm_eval.__main__ import cli_evaluate; cli_evaluate()"
command = [sys.executable, "-c", run, "run", "--model", "local-completions", "--model_args", arguments, "--tasks",
           "made_hellaswag", "--include_path", str(folder), "--output_path", str(folder / "out"), "--log_samples"]
environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder / "hf")}
done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
assert done.returncode == 0, done.stdout[-4000:]
(results,) = (folder / "out").rglob("results_*.json")
(samples,) = (folder / "out").rglob("samples_*.jsonl")
metrics = json.loads(results.read_text())["results"]["made_hellaswag"]
wanted = json.loads(pathlib.Path(reference).read_text())
items = hellaswag_items.items()
found = {}
for line in samples.read_text().splitlines():
    sample = json.loads(line)
    found[sample["doc_id"]] = [float(one[0][0]) for one in sample["resps"]]
assert len(found) == len(items) == len(wanted["logprobs"]) == 100
differences = [abs(a - b) for i in range(100) for a, b in zip(found[i], wanted["logprobs"][i])]
assert all(len(found[i]) == 4 for i in range(100))


def best(scores):
    return max(range(4), key=scores.__getitem__)


def normed(i, scores):
    return [score / len(choice) for score, choice in zip(scores, items[i]["choices"])]


accuracy = sum(best(found[i]) == items[i]["gold"] for i in range(100)) / 100
norm = sum(best(normed(i, found[i])) == items[i]["gold"] for i in range(100)) / 100
assert abs(metrics["acc,none"] - accuracy) < 1e-9 and abs(metrics["acc_norm,none"] - norm) < 1e-9, metrics
mean, largest = sum(differences) / len(differences), max(differences)
same = sum(best(found[i]) == best(wanted["logprobs"][i]) for i in range(100))
print(f"lm-eval: acc {accuracy:.2f} (reference {wanted['acc']:.2f}), acc_norm {norm:.2f} ({wanted['acc_norm']:.2f}); "
      f"log probabilities of 400 endings differ by {mean:.3f} on average, {largest:.3f} at most; {same} of 100 answers equal")
# An ending has about ten tokens. llama.cpp rounds activations to 8 bits: about 0.01 a token at random.
assert mean < 0.15 and largest < 1.0 and same >= 97, (mean, largest, same)
assert abs(accuracy - wanted["acc"]) <= 0.03 and abs(norm - wanted["acc_norm"]) <= 0.03
