"""lm-evaluation-harness, unmodified, with a server: its tokenizer, its log probabilities, 100 made items.

lm_eval_run.py HTTP REFERENCE.json: the reference has log probabilities of endings, computed in float64 by
scripts/reference.py.
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
assert len(found) == len(items) == 100 and all(len(found[i]) == 4 for i in range(100))


def best(scores):
    return max(range(4), key=scores.__getitem__)


def accuracies(scores):
    """The share of right answers: by log probability, and by log probability per character."""
    n = len(scores)
    normed = [[x / len(choice) for x, choice in zip(scores[i], items[i]["choices"])] for i in range(n)]
    return [sum(best(of[i]) == items[i]["gold"] for i in range(n)) / n for of in (scores, normed)]


kjit, exact = [found[i] for i in range(100)], wanted["logprobs"]
assert all(abs(a - b) < 1e-9 for a, b in zip(accuracies(kjit), (metrics["acc,none"], metrics["acc_norm,none"]))), metrics
n = len(exact)
differences = [abs(a - b) for i in range(n) for a, b in zip(kjit[i], exact[i])]
mean, largest = sum(differences) / len(differences), max(differences)
print("lm-eval: acc %.2f, acc_norm %.2f" % tuple(accuracies(kjit)))
print("the first %d items: acc %.2f, acc_norm %.2f" % (n, *accuracies(kjit[:n])))
print("in float64 by scripts/reference.py: acc %.2f, acc_norm %.2f" % tuple(accuracies(exact)))
print(f"log probabilities of {len(differences)} endings differ by {mean:.4f} on average, {largest:.4f} at most")
# An ending has about ten tokens, of log probabilities with errors of about 1e-3 each.
assert n >= 25 and mean < 0.02 and largest < 0.2, (n, mean, largest)
assert accuracies(kjit[:n]) == accuracies(exact)
