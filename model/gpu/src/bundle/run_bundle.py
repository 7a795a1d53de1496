#!/usr/bin/env python3
"""Runs a kjit proof bundle on your emulator of the machine code. It needs only Python's standard library, and check_bundle.py in the same
folder.

  run_bundle.py [--cases 0,4-9] [--match TEXT] [--wave N] [--seconds S] FOLDER RESULTS COMMAND [ARGUMENT…]

COMMAND is the front end of an emulator, a small program that you write. It is started once. For every case, the smallest first, it reads
one line from its standard input, the path of a launch.json, and writes one line to its standard output:

  done         the launch has ended, and the files of the buffers hold the contents of memory
  cannot WHY   the launch cannot run, for example because of an unknown instruction

It may write messages to its standard error. If COMMAND ends, writes another line or takes longer than --seconds (300), it is stopped, the
case counts as not run, and COMMAND is started again for the next case. A launch.json contains everything that a launch needs: README.txt
explains it under "With an emulator". Files are in RESULTS/N/, where N is the number of the case; RESULTS/results.txt has a line for every
case.

Exit code 0: at least one case ran, and all results are correct. 1: a result is wrong, or no case ran. 2: wrong usage."""

import argparse, json, math, os, selectors, shutil, struct, subprocess, sys, time
from pathlib import Path

sys.dont_write_bytecode = True  # no files may be added to the bundle
from check_bundle import Bundle

PAGE = 4096
FIRST, GAP = 0x1_0000_0000, 0x10_0000  # start of memory, and unmapped bytes between two regions


def places(sizes):
    """Returns an address for each region. It is aligned to 256 bytes, and the region ends as near to the end of a page as the alignment allows.
    So an emulator that maps only these pages faults if a kernel reads past a buffer."""
    at, out = FIRST, []
    for size in sizes:
        whole = (size + 255) // 256 * 256
        pages = max(1, -(-whole // PAGE))
        out.append(at + pages * PAGE - whole)
        at += pages * PAGE + GAP
        at += -at % GAP
    return out


def block_id_registers(arch, start):
    """The registers with a block's number along x, y, z: the registers after the user registers, or fixed ones from gfx12 on."""
    if arch.startswith("gfx12"):
        return {"x": "ttmp9", "y": "ttmp7, bits 15:0", "z": "ttmp7, bits 31:16"}
    return {axis: f"s{start['user_registers'] + i}" for i, axis in enumerate(start["block_ids"])}


def lay_out(bundle, n, folder):
    """Writes the files of case `n` and returns the path of its launch.json."""
    case = bundle.manifest["cases"][n]
    code, arch = bundle.code[case["code"]], bundle.manifest["arch"]
    start = code.descriptor(code.kernels[case["symbol"]])
    image, buffers = code.image(), case["buffers"]
    # The image begins at a page: instructions address constants relative to the program counter.
    base = FIRST - GAP - (len(image) + PAGE - 1) // PAGE * PAGE
    *at, arguments_at = places([b["bytes"] for b in buffers] + [case["kernarg_bytes"]])
    arguments = bytearray(bytes.fromhex(case["arguments"]["hex"]).ljust(case["kernarg_bytes"], b"\0"))
    for slot in case["arguments"]["slots"]:
        if slot["kind"] == "buffer":
            struct.pack_into("<Q", arguments, slot["offset"], at[slot["buffer"]])
    regions = [{"what": "code", "file": "code.bin", "address": base, "bytes": len(image), "writable": False},
               {"what": "arguments", "file": "arguments.bin", "address": arguments_at, "bytes": len(arguments), "writable": False}]
    contents = [image, bytes(arguments)]
    for i, b in enumerate(buffers):
        regions.append({"what": f"buffer {i} ({b['name']})", "file": f"{i}.bin", "address": at[i], "bytes": b["bytes"], "writable": True})
        contents.append(bundle.content(b["before"], b["bytes"]))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for region, content in zip(regions, contents):
        region["file"] = str(folder / region["file"])
        Path(region["file"]).write_bytes(content)
    pointer = start["argument_pointer"]
    launch = {
        "case": n, "name": case["name"], "arch": arch, "wave": case["wave"],
        "code_object": str((bundle.folder / bundle.manifest["code"][case["code"]]["file"]).resolve()), "symbol": case["symbol"],
        "grid_blocks": case["grid"], "block_threads": case["block"], "cooperative": case["cooperative"],
        "lds_bytes": case["static_lds"] + case["dynamic_lds"],
        "memory": regions,
        "entry": base + start["entry"], "descriptor": base + start["address"],
        "argument_pointer": {"registers": f"s[{pointer}:{pointer + 1}]", "value": arguments_at},
        "block_ids": block_id_registers(arch, start),
        "thread_ids": {"x": "v0, bits 9:0", "y": "v0, bits 19:10", "z": "v0, bits 29:20"},
        "round": start["round"], "denormals": start["denormals"],
    }
    path = folder / "launch.json"
    path.write_text(json.dumps(launch, indent=1))
    return path


class Command:
    """The front end of the emulator. It is started with the first case."""
    def __init__(self, words):
        self.words, self.process = words, None

    def stop(self):
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process.stdin.close()
            self.process.stdout.close()
        self.process = None

    def ask(self, path, seconds):
        """Returns its answer to a launch, or the reason why there is none."""
        if self.process is None:
            # It inherits the standard error of this process.
            self.process = subprocess.Popen(self.words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            self.process.stdin.write(f"{path}\n".encode())
            self.process.stdin.flush()
            answer, end = b"", time.monotonic() + seconds
            with selectors.DefaultSelector() as watch:
                watch.register(self.process.stdout, selectors.EVENT_READ)
                while not answer.endswith(b"\n"):
                    if not watch.select(max(0, end - time.monotonic())):
                        self.stop()
                        return f"took longer than {seconds:g} s"
                    piece = os.read(self.process.stdout.fileno(), 65536)
                    if not piece:
                        code = self.process.wait()
                        self.stop()
                        return f"the command ended ({'signal' if code < 0 else 'exit code'} {abs(code)})"
                    answer += piece
        except BrokenPipeError:
            self.stop()
            return "the command ended"
        answer = answer.decode(errors="replace").strip()
        if answer != "done" and not answer.startswith("cannot"):
            self.stop()
            return f"the command said {answer[:80]!r}, not 'done' or 'cannot WHY'"
        return None if answer == "done" else answer[6:].strip() or "no reason given"


def numbers(text):
    out = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        out.update(range(int(first), int(last or first) + 1))
    return out


def verdict(bundle, n, folder):
    """The error in the files of the buffers, or None."""
    buffers = bundle.manifest["cases"][n]["buffers"]
    bad = ((b["name"], bundle.result(bundle.manifest["cases"][n], b, (folder / f"{i}.bin").read_bytes())) for i, b in enumerate(buffers))
    return "; ".join(f"buffer {name}: {why}" for name, why in bad if why)


def main():
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("folder")
    words.add_argument("results")
    words.add_argument("--cases", type=numbers)
    words.add_argument("--match", default="")
    words.add_argument("--wave", type=int)
    words.add_argument("--seconds", type=float, default=300)
    words.add_argument("command", nargs=argparse.REMAINDER)
    asked = words.parse_args()
    if not asked.command or not shutil.which(asked.command[0]):
        words.error(f"no command {' '.join(asked.command[:1])}".rstrip() + " to run (options come before FOLDER)")
    bundle = Bundle(asked.folder)
    bundle.check()
    if bundle.wrong:
        print("\n".join(f"wrong: {line}" for line in bundle.wrong))
        return 1
    if bundle.manifest["arch"].startswith("sm_"):
        words.error(f"{asked.folder} is for {bundle.manifest['arch']}: this is for AMD's machine code")
    cases = bundle.manifest["cases"]
    chosen = [n for n, c in enumerate(cases) if asked.match in c["name"] and (asked.cases is None or n in asked.cases)
              and asked.wave in (None, c["wave"])]
    chosen.sort(key=lambda n: math.prod(cases[n]["grid"]) * math.prod(cases[n]["block"]))
    command, counts = Command(asked.command), {"right": 0, "wrong": 0, "not run": 0}
    results = Path(asked.results).resolve()
    results.mkdir(parents=True, exist_ok=True)
    with open(results / "results.txt", "w") as log:
        for n in chosen:
            folder, began = results / str(n), time.monotonic()
            why = command.ask(lay_out(bundle, n, folder), asked.seconds)
            word = "not run" if why else "right"
            if not why and (why := verdict(bundle, n, folder)):
                word = "wrong"
            counts[word] += 1
            line = f"{word:7} {n:4} {time.monotonic() - began:7.2f} s  {cases[n]['name']}{': ' + why if why else ''}"
            print(line, file=log, flush=True)
            print(line, flush=True)
    command.stop()
    print(f"{bundle.manifest['arch']}: {counts['right']} right, {counts['wrong']} wrong, {counts['not run']} not run, "
          f"{len(cases) - len(chosen)} not asked for")
    return 0 if counts["right"] and not counts["wrong"] else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
