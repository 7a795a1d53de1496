"""100 made items in the form of HellaSwag: an activity, a context, four endings, one of them right.

hellaswag_items.py FOLDER writes items.jsonl and made_hellaswag.yaml, a task of lm-evaluation-harness.
"""
import json
import pathlib
import random
import sys

# Activity, what a person does in order, and how it ends.
ACTIVITIES = [
    ("Making tea", "boils water in a kettle and puts a tea bag in a cup.", "pours the hot water into the cup and waits."),
    ("Washing a car", "rinses the car with a hose and fills a bucket with soap.", "rubs the car with a sponge and rinses the soap off."),
    ("Brushing teeth", "puts toothpaste on a toothbrush.", "brushes the teeth and rinses the mouth with water."),
    ("Baking bread", "mixes flour, water and yeast into a dough.", "lets the dough rise and puts it in the oven."),
    ("Planting a tree", "digs a hole in the garden with a shovel.", "sets the young tree into the hole and covers the roots with soil."),
    ("Painting a wall", "opens a can of paint and stirs it with a stick.", "dips the roller into the paint and rolls it over the wall."),
    ("Playing tennis", "throws the ball into the air and swings the racket.", "hits the ball over the net to the other player."),
    ("Riding a horse", "puts a saddle on the horse.", "climbs onto the horse and rides across the field."),
    ("Shaving", "spreads shaving cream over the cheeks and chin.", "moves the razor carefully down the face."),
    ("Fishing", "sits in a boat and puts bait on the hook.", "throws the line into the lake and waits for a fish."),
    ("Cutting hair", "combs the wet hair of the customer.", "cuts the hair shorter with a pair of scissors."),
    ("Ironing clothes", "lays a shirt on the ironing board and heats the iron.", "slides the hot iron over the shirt until it is smooth."),
    ("Making a salad", "washes lettuce and tomatoes in the sink.", "cuts the vegetables and mixes them in a bowl with oil."),
    ("Skiing", "stands at the top of a snowy hill with two poles.", "skis down the hill between the trees."),
    ("Fixing a bicycle", "turns the bicycle over and takes off the flat tire.", "patches the hole and pumps air into the tire."),
    ("Writing a letter", "takes a sheet of paper and a pen.", "writes a few lines, folds the paper and puts it in an envelope."),
    ("Swimming", "puts on goggles and stands at the edge of the pool.", "jumps into the water and swims to the other side."),
    ("Mowing the lawn", "pulls the cord and starts the mower.", "pushes the mower over the grass in straight lines."),
    ("Playing the piano", "sits down on the bench and opens the sheet music.", "places both hands on the keys and plays a song."),
    ("Doing laundry", "puts dirty clothes into the washing machine and adds soap.", "closes the door and starts the machine."),
]
WHO = ["A man", "A woman", "A boy", "A girl", "An old man"]


def items():
    chance, all_items = random.Random(5), []
    for who in WHO:
        for i, (label, context, ending) in enumerate(ACTIVITIES):
            wrong = chance.sample([j for j in range(len(ACTIVITIES)) if j != i], 3)
            endings = [ACTIVITIES[j][2] for j in wrong]
            right = chance.randrange(4)
            endings.insert(right, ending)
            all_items.append({
                "query": f"{label}: {who} {context} Then {who.split(' ', 1)[0].lower()} {who.split(' ', 1)[1]}",
                "choices": endings,
                "gold": right,
            })
    return all_items


TASK = """task: made_hellaswag
dataset_path: json
dataset_kwargs:
  data_files:
    validation: {items}
output_type: multiple_choice
validation_split: validation
doc_to_text: "{{{{query}}}}"
doc_to_target: "{{{{gold}}}}"
doc_to_choice: "choices"
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
  - metric: acc_norm
    aggregation: mean
    higher_is_better: true
metadata:
  version: 1.0
"""


def write(folder):
    folder = pathlib.Path(folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(item) + "\n" for item in items())
    (folder / "items.jsonl").write_text(lines)
    (folder / "made_hellaswag.yaml").write_text(TASK.format(items=folder / "items.jsonl"))


if __name__ == "__main__":
    write(sys.argv[1])
