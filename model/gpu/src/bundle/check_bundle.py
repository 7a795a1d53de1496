#!/usr/bin/env python3
"""Checks a kjit proof bundle, and the results of a run. It needs only Python's standard library, and no kjit.

  check_bundle.py FOLDER            checks the SHA-256 of every file, and compares manifest.json with the code objects
  check_bundle.py FOLDER RESULTS    also checks the results: RESULTS/N/B.bin is buffer B of case N after its launch (both counted from 0, in
                                    the order of manifest.json); RESULTS/N/NAME.bin, if only this buffer of the case has the name
  check_bundle.py FOLDER --case N   prints one case as a table: code object, launch, arguments, expected results

Exit code 0: all checks passed. 1: a check failed; each line describes a failure. The program is also an example of reading a code object's
metadata, building the argument block, and comparing results. The format is described in README.txt."""

import hashlib, json, math, struct, sys
from pathlib import Path

EM_AMDGPU, NT_AMDGPU_METADATA = 224, 32
MOST_LDS = 65536  # bytes per block, on all of these architectures


# ------------------------------------------------------------------------------------------------------------ MessagePack
def unpack(b, at=0):
    """Returns the value at `at` and the offset of the next value. Supports the part of MessagePack that LLVM writes."""
    t = b[at]
    at += 1
    def number(form):
        size = struct.calcsize(form)
        return struct.unpack_from(form, b, at)[0], at + size
    def text(size, at):
        return b[at:at + size].decode(), at + size
    def array(count, at):
        out = []
        for _ in range(count):
            value, at = unpack(b, at)
            out.append(value)
        return out, at
    def mapping(count, at):
        out = {}
        for _ in range(count):
            key, at = unpack(b, at)
            out[key], at = unpack(b, at)
        return out, at
    if t < 0x80: return t, at
    if t < 0x90: return mapping(t & 15, at)
    if t < 0xa0: return array(t & 15, at)
    if t < 0xc0: return text(t & 31, at)
    if t >= 0xe0: return t - 256, at
    if t in (0xc0, 0xc2, 0xc3): return {0xc0: None, 0xc2: False, 0xc3: True}[t], at
    numbers = {0xcc: ">B", 0xcd: ">H", 0xce: ">I", 0xcf: ">Q", 0xd0: ">b", 0xd1: ">h", 0xd2: ">i", 0xd3: ">q", 0xca: ">f", 0xcb: ">d"}
    if t in numbers: return number(numbers[t])
    sized = {0xd9: (">B", text), 0xda: (">H", text), 0xdb: (">I", text), 0xdc: (">H", array), 0xdd: (">I", array),
             0xde: (">H", mapping), 0xdf: (">I", mapping)}
    if t in sized:
        form, read = sized[t]
        count, at = number(form)
        return read(count, at)
    raise ValueError(f"MessagePack type {t:#x}")


# -------------------------------------------------------------------------------------------------------------------- ELF
class CodeObject:
    """The metadata of an AMD code object."""
    def __init__(self, b):
        if b[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<H", b, 18)[0] != EM_AMDGPU:
            raise ValueError("not a little-endian 64-bit AMDGPU ELF file")
        self.version = b[8] + 2  # EI_ABIVERSION: 1 is code-object version 3
        shoff, = struct.unpack_from("<Q", b, 40)
        size, count, names = struct.unpack_from("<HHH", b, 58)
        fields = "name type flags addr offset size link info align entsize".split()
        sections = [dict(zip(fields, struct.unpack_from("<IIQQQQIIQQ", b, shoff + i * size))) for i in range(count)]
        self.metadata, self.symbols, self.addresses = None, {}, {}
        for s in sections:
            if s["type"] == 7:  # notes
                at, end = s["offset"], s["offset"] + s["size"]
                while at + 12 <= end:
                    n, d, kind = struct.unpack_from("<III", b, at)
                    name = b[at + 12:at + 12 + n].rstrip(b"\0")
                    start = at + 12 + (n + 3) // 4 * 4
                    if name == b"AMDGPU" and kind == NT_AMDGPU_METADATA:
                        self.metadata = unpack(b[start:start + d])[0]
                    at = start + (d + 3) // 4 * 4
            if s["type"] in (2, 11):  # symbols
                strings = sections[s["link"]]["offset"]
                for i in range(s["size"] // 24):
                    name, _, _, index, value, length = struct.unpack_from("<IBBHQQ", b, s["offset"] + i * 24)
                    text = b[strings + name:b.index(b"\0", strings + name)].decode()
                    if 0 < index < len(sections):
                        home = sections[index]
                        self.addresses[text] = value
                        self.symbols[text] = (home["offset"] + value - home["addr"], length)
        if self.metadata is None:
            raise ValueError("AMDGPU metadata is missing")
        self.bytes = b
        self.kernels = {k[".name"]: k for k in self.metadata.get("amdhsa.kernels", [])}

    def image(self):
        """The bytes that a loader puts into memory, from the code object's address 0 on."""
        offset, = struct.unpack_from("<Q", self.bytes, 32)
        size, count = struct.unpack_from("<HH", self.bytes, 54)
        image = bytearray()
        for i in range(count):
            kind, _, at, address, _, length, whole, _ = struct.unpack_from("<IIQQQQQQ", self.bytes, offset + i * size)
            if kind == 1:  # a loaded segment
                image.extend(bytes(max(0, address + whole - len(image))))
                image[address:address + length] = self.bytes[at:at + length]
        return bytes(image)

    def descriptor(self, kernel):
        """The kernel descriptor, and the state of a wave at its start: the source of each register's value."""
        at, length = self.symbols[kernel[".symbol"]]
        if length != 64:
            raise ValueError(f"a descriptor of {length} bytes")
        lds, scratch, arguments = struct.unpack_from("<III", self.bytes, at)
        entry, = struct.unpack_from("<q", self.bytes, at + 16)
        rsrc1, rsrc2, properties, preload = struct.unpack_from("<IIHH", self.bytes, at + 48)
        # Scalar registers that are set before the first instruction, in this order, if their bit of `properties` is set.
        users = [("private segment buffer", 4), ("dispatch pointer", 2), ("queue pointer", 2), ("argument pointer", 2), ("dispatch id", 2),
                 ("flat scratch", 2), ("private segment size", 1)]
        place, pointer, others = 0, None, []
        for bit, (name, size) in enumerate(users):
            if properties >> bit & 1:
                pointer = place if name == "argument pointer" else pointer
                others += [] if name == "argument pointer" else [name]
                place += size
        return {"lds": lds, "scratch": scratch, "arguments": arguments, "wave": 32 if properties >> 10 & 1 else 64,
                "address": self.addresses[kernel[".symbol"]], "entry": self.addresses[kernel[".symbol"]] + entry,
                "argument_pointer": pointer, "other_user_registers": others, "user_registers": rsrc2 >> 1 & 31, "preload": preload,
                "block_ids": [axis for i, axis in enumerate("xyz") if rsrc2 >> 7 + i & 1], "thread_ids": (rsrc2 >> 11 & 3) + 1,
                "uses_scratch": bool(rsrc2 & 1), "round": rsrc1 >> 12 & 15, "denormals": rsrc1 >> 16 & 15}


# ------------------------------------------------------------------------------------------------------------------ checks
class Bundle:
    def __init__(self, folder):
        self.folder, self.wrong = Path(folder), []
        self.manifest = json.loads((self.folder / "manifest.json").read_text())
        self.data = (self.folder / "data.bin").read_bytes()
        self.code = {}

    def say(self, where, what):
        self.wrong.append(f"{where}: {what}")

    def sums(self):
        listed = {}
        for line in (self.folder / "SHA256SUMS").read_text().splitlines():
            digest, name = line.split("  ", 1)
            listed[name] = digest
            if hashlib.sha256((self.folder / name).read_bytes()).hexdigest() != digest:
                self.say(name, "is not what SHA256SUMS says")
        there = {str(p.relative_to(self.folder)) for p in self.folder.rglob("*") if p.is_file()} - {"SHA256SUMS"}
        for name in sorted(there ^ set(listed)):
            self.say(name, "is in SHA256SUMS or in the folder, not in both")

    def content(self, content, size):
        if "fill" in content:
            return bytes([content["fill"]]) * size
        at = content["at"]
        if at + size > len(self.data):
            raise ValueError(f"bytes {at} to {at + size} of {len(self.data)} in data.bin")
        return self.data[at:at + size]

    def codes(self):
        for i, entry in enumerate(self.manifest["code"]):
            where, b = entry["file"], (self.folder / entry["file"]).read_bytes()
            if hashlib.sha256(b).hexdigest() != entry["sha256"]:
                self.say(where, "its SHA-256 differs")
            if self.manifest["arch"].startswith("sm_"):
                continue  # a cubin has less metadata, and the manifest makes no claims about it
            try:
                code = self.code[i] = CodeObject(b)
            except (ValueError, IndexError, struct.error) as e:
                self.say(where, e)
                continue
            if code.version != entry["code_object_version"]:
                self.say(where, f"code-object version {code.version}, {entry['code_object_version']} claimed")
            target = code.metadata["amdhsa.target"]
            if target != "amdgcn-amd-amdhsa--" + entry["compiled_for"]:
                self.say(where, f"is for {target}")

    def case(self, case):
        where, block, slots = case["name"], bytes.fromhex(case["arguments"]["hex"]), case["arguments"]["slots"]
        used = [s["buffer"] for s in slots if s["kind"] == "buffer"]
        if sorted(used) != list(range(len(case["buffers"]))):
            self.say(where, f"its arguments name the buffers {used} of {len(case['buffers'])}")
        for s in slots:
            part = block[s["offset"]:s["offset"] + s["size"]]
            if len(part) != {"buffer": 8, "null": 8, "u64": 8, "u32": 4, "f32": 4}[s["kind"]]:
                self.say(where, f"slot {s} is not in the argument block")
            if s["kind"] in ("buffer", "null") and any(part):
                self.say(where, f"slot {s} is not zero")
        for b in case["buffers"]:
            try:
                self.content(b["before"], b["bytes"])
                after = b["after"]
                if after["must_be"] == "exactly":
                    self.content(after["content"], b["bytes"])
                if after["must_be"] == "near":
                    width = {"f32": 4, "f16": 2}[after["storage"]]
                    wanted = self.content({"at": after["at"]}, 8 * after["values"])
                    if after["values"] * width != b["bytes"]:
                        self.say(where, f"buffer {b['name']}: {after['values']} values in {b['bytes']} bytes")
                    values = struct.unpack(f"<{after['values']}d", wanted)
                    if any(map(math.isinf, values)) or all(map(math.isnan, values)):
                        self.say(where, f"buffer {b['name']}: infinities, or nothing, are wanted")
                    if not (0 < after["norm"] < 0.02 and 0 < after["each"] < 0.2):
                        self.say(where, f"buffer {b['name']}: the tolerance {after['norm']}, {after['each']} shows little")
            except (ValueError, KeyError) as e:
                self.say(where, f"buffer {b['name']}: {e}")
        code = self.code.get(case["code"])
        if code is None:
            if not self.manifest["arch"].startswith("sm_"):
                self.say(where, "its code object cannot be read")
            return
        kernel = code.kernels.get(case["symbol"])
        if kernel is None:
            return self.say(where, f"no kernel {case['symbol']} in {list(code.kernels)}")
        start = code.descriptor(kernel)
        explicit = [a for a in kernel[".args"] if not a[".value_kind"].startswith("hidden_")]
        of = [(a[".offset"], a[".size"], a[".value_kind"] == "global_buffer") for a in explicit]
        claimed = [(s["offset"], s["size"], s["kind"] in ("buffer", "null")) for s in slots]
        threads = math.prod(case["block"])
        for what, found, said in [
            ("arguments (offset, size, is a pointer)", of, claimed),
            ("bytes of all arguments, metadata", kernel[".kernarg_segment_size"], case["kernarg_bytes"]),
            ("bytes of all arguments, descriptor", start["arguments"], case["kernarg_bytes"]),
            ("static LDS, metadata", kernel[".group_segment_fixed_size"], case["static_lds"]),
            ("static LDS, descriptor", start["lds"], case["static_lds"]),
            ("most LDS", max(start["lds"] + case["dynamic_lds"], MOST_LDS), MOST_LDS),
            ("wave", kernel[".wavefront_size"], case["wave"]),
            ("wave, descriptor", start["wave"], case["wave"]),
            ("most threads of a block", max(threads, kernel[".max_flat_workgroup_size"]), kernel[".max_flat_workgroup_size"]),
            ("scratch, metadata and descriptor", (kernel[".private_segment_fixed_size"], start["scratch"], start["uses_scratch"]), (0, 0, False)),
            ("has an argument pointer", start["argument_pointer"] is not None, True),
            ("arguments in registers", start["preload"], 0),
            ("threads along y and z", case["block"][1:], [1, 1]),
            ("rounding and denormals (0: nearest; 15: kept)", (start["round"], start["denormals"]), (0, 15)),
            ("spills", kernel.get(".vgpr_spill_count", 0) + kernel.get(".sgpr_spill_count", 0), 0),
            ("dynamic stack", kernel.get(".uses_dynamic_stack", False), False),
            ("whole waves", threads % case["wave"], 0),
        ]:
            if found != said:
                self.say(where, f"{what}: {found} in the code object, {said} in the manifest")
        if len(block) > case["kernarg_bytes"]:
            self.say(where, f"{len(block)} bytes of arguments, {case['kernarg_bytes']} fit")

    def check(self):
        self.sums()
        self.codes()
        for case in self.manifest["cases"]:
            self.case(case)

    # ------------------------------------------------------------------------------------------------------------ results
    def result(self, case, buffer, got):
        """The error in a buffer after the launch, or None."""
        before, after = self.content(buffer["before"], buffer["bytes"]), buffer["after"]
        if len(got) != buffer["bytes"]:
            return f"{len(got)} bytes of {buffer['bytes']}"
        if after["must_be"] == "anything":
            return None
        if after["must_be"] in ("unchanged", "exactly"):
            want = before if after["must_be"] == "unchanged" else self.content(after["content"], buffer["bytes"])
            at = next((i for i, (w, g) in enumerate(zip(want, got)) if w != g), None)
            return None if at is None else f"byte {at} is {got[at]:#04x}, not {want[at]:#04x}"
        n = after["values"]
        want = struct.unpack(f"<{n}d", self.content({"at": after["at"]}, 8 * n))
        values = struct.unpack(f"<{n}{'f' if after['storage'] == 'f32' else 'e'}", got)
        wanted = [w for w in want if not math.isnan(w)]
        squares = sum(w * w for w in wanted)
        rms = math.sqrt(squares / max(len(wanted), 1))
        off = 0.0
        for i, (w, g) in enumerate(zip(want, values)):
            if math.isnan(w):
                if not math.isnan(g):
                    return f"element {i} is {g}, but it must not be written"
            elif not abs(g - w) <= after["each"] * rms:
                return f"element {i} is {g}, not {w} (root mean square {rms:.3e})"
            else:
                off += (g - w) ** 2
        norm = math.sqrt(off) / max(math.sqrt(squares), sys.float_info.min)
        return None if norm <= after["norm"] else f"off by {norm:.2e} of its norm, {after['norm']:.0e} allowed"

    def results(self, folder):
        """The number of cases with results, and of cases with correct results."""
        ran = right = 0
        for n, case in enumerate(self.manifest["cases"]):
            files = []
            for i, b in enumerate(case["buffers"]):
                names = [f"{i}.bin"] + [f"{b['name']}.bin"] * (sum(o["name"] == b["name"] for o in case["buffers"]) == 1)
                files.append(next((p for p in (Path(folder) / str(n) / name for name in names) if p.exists()), None))
            if not any(files):
                continue
            ran += 1
            bad = []
            for b, path in zip(case["buffers"], files):
                why = "is not there" if path is None else self.result(case, b, path.read_bytes())
                if why and not (path is None and b["after"]["must_be"] in ("unchanged", "anything")):
                    bad.append(f"case {n} ({case['name']}): buffer {b['name']}: {why}")
            right += not bad
            self.wrong += bad
        return ran, right

    def show(self, n):
        case = self.manifest["cases"][n]
        code = self.manifest["code"][case["code"]]
        print(f"case {n}: {case['name']}")
        print(f"load    {code['file']} ({code['compiled_for']}, code-object version {code['code_object_version']}, {code['compiler']})")
        print(f"kernel  {case['symbol']}, descriptor {case['symbol']}.kd, wave {case['wave']}")
        print(f"launch  grid {case['grid']} blocks of {case['block']} threads, LDS {case['static_lds']} static + {case['dynamic_lds']} dynamic")
        print(f"pass    {case['kernarg_bytes']} bytes, of which {len(case['arguments']['hex']) // 2} explicit")
        block = bytes.fromhex(case["arguments"]["hex"])
        for s in case["arguments"]["slots"]:
            part = block[s["offset"]:s["offset"] + s["size"]]
            value = {"u32": "<I", "u64": "<Q", "f32": "<f"}.get(s["kind"])
            shown = struct.unpack(value, part)[0] if value else ""
            if s["kind"] == "buffer":
                b = case["buffers"][s["buffer"]]
                shown = f"{s['buffer']} ({b['name']}, {b['bytes']} bytes, before {b['before']}, after {b['after']})"
            print(f"  at {s['offset']:3}  {s['kind']} {shown}")


def main():
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(__doc__)
        return 0 if len(sys.argv) > 1 else 2
    bundle = Bundle(sys.argv[1])
    if sys.argv[2:3] == ["--case"]:
        bundle.show(int(sys.argv[3]))
        return 0
    bundle.check()
    m = bundle.manifest
    print(f"{m['arch']}: {len(m['cases'])} cases, {len(m['code'])} code objects, "
          f"{sum(p.stat().st_size for p in bundle.folder.rglob('*') if p.is_file()) / 1e6:.2f} MB, {len(m['left_out'])} left out: "
          f"{'all claims hold' if not bundle.wrong else f'{len(bundle.wrong)} wrong'}")
    if len(sys.argv) > 2:
        ran, right = bundle.results(sys.argv[2])
        print(f"{right} of {ran} cases with results are right, {len(m['cases']) - ran} have none")
    for line in bundle.wrong:
        print("wrong:", line)
    return 1 if bundle.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
