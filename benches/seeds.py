#!/usr/bin/env python3
"""How often the same seeded chat gets another answer from a running server: with its prompt cached
instead of computed, and beside other chats instead of alone.

    kjit serve MODEL --max-sequences 32 -c 1024 &        # perhaps with --reproducible
    benches/seeds.py http://127.0.0.1:8080 --chats 100 --beside 32

Each chat has a seed of its own and the API's defaults (temperature 1, all tokens). It is asked for

  cold     one at a time, under a cache_salt of its own
  cached   again under that salt, so its prompt is cached
  alone    one at a time, under another salt
  beside   --beside of them at once, under a third salt; all prompts are cold

and prints one JSON document: for each pair how many answers differ, and tokens in 1,000 that differ
(an answer counts up to its first difference, since everything after follows from it). The exit
status is 1 if more than --most answers of a pair differ. Needs Python 3.8 and nothing else.
"""
import argparse
import concurrent.futures
import json
import sys
import time
import urllib.error
import urllib.request

WHAT = ["the sea", "a fox", "rain", "breakfast", "a city at night", "trains", "bees", "winter",
        "a lighthouse", "music"]
HOW = ["Tell me about {}.", "Write a short story about {}.", "Explain {} to a child.",
       "Give me three facts about {}.", "Write a poem about {}.", "Why do people like {}?",
       "Describe {} in one paragraph.", "Ask me a question about {}.",
       "Write a letter that mentions {}.", "What would the world be without {}?"]


def arguments():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("url")
    p.add_argument("--chats", type=int, default=100)
    p.add_argument("--beside", type=int, default=32, help="chats at once")
    p.add_argument("--tokens", type=int, default=100, help="tokens of an answer at most")
    p.add_argument("--most", type=int, help="answers of a pair that may differ")
    p.add_argument("--key", help="API key")
    p.add_argument("--timeout", type=float, default=600, help="seconds for one request")
    return p.parse_args()


def ask(args, chat, salt):
    """The text of a chat's answer, its tokens, and the tokens of its prompt that were cached."""
    what = HOW[chat // len(WHAT) % len(HOW)].format(WHAT[chat % len(WHAT)])
    body = {"messages": [{"role": "user", "content": what}], "max_tokens": args.tokens,
            "seed": chat, "cache_salt": salt}
    request = urllib.request.Request(args.url.rstrip("/") + "/v1/chat/completions",
                                     json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    if args.key:
        request.add_header("Authorization", f"Bearer {args.key}")
    try:
        with urllib.request.urlopen(request, timeout=args.timeout) as response:
            answer = json.load(response)
    except urllib.error.HTTPError as e:
        sys.exit(f"chat {chat}: {e.code} {e.read(500).decode(errors='replace')}")
    except OSError as e:
        sys.exit(f"chat {chat}: {args.url}: {e}; is a server running there?")
    usage = answer["usage"]
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    return answer["choices"][0]["message"]["content"], usage["completion_tokens"], cached


def difference(one, other):
    """Chats that differ, and tokens in 1,000, each chat up to its first difference."""
    differ, tokens = 0, 0.0
    for (a, n, _), (b, _, _) in zip(one, other):
        same = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
        differ += a != b
        tokens += n if a == b else n * (same + 1) / max(len(a), 1)
    return {"differ": differ, "tokens_in_1000": round(1000 * differ / max(tokens, 1), 2)}


def main():
    args = arguments()
    start, chats = time.time(), range(args.chats)
    salt = f"{start:.6f}"
    cold = [ask(args, i, f"{salt}-cold-{i}") for i in chats]
    cached = [ask(args, i, f"{salt}-cold-{i}") for i in chats]
    alone = [ask(args, i, f"{salt}-alone-{i}") for i in chats]
    with concurrent.futures.ThreadPoolExecutor(max(args.beside, 1)) as pool:
        beside = list(pool.map(lambda i: ask(args, i, f"{salt}-beside-{i}"), chats))
    pairs = {"cold_cached": difference(cold, cached), "alone_beside": difference(alone, beside),
             "again": difference(cold, alone)}
    print(json.dumps({
        "chats": args.chats, "tokens": sum(n for _, n, _ in alone), **pairs,
        "cached_tokens": {"cold": sum(c for _, _, c in cold), "cached": sum(c for _, _, c in cached),
                          "beside": sum(c for _, _, c in beside)},
        "seconds": round(time.time() - start, 1)}))
    if not any(c for _, _, c in cached):
        sys.exit("no prompt was cached the second time: this server keeps none")
    if args.most is not None and max(p["differ"] for p in pairs.values()) > args.most:
        sys.exit(1)


if __name__ == "__main__":
    main()
