"""Writes pieces.json and models.json: what llama.cpp's pre-tokenizers and its t5, rwkv and plamo2 tokenizers make of texts.

    pip download --no-deps --no-binary llama-cpp-python llama-cpp-python==0.3.36   # its vendor/llama.cpp is the reference
    python3 tests/data/oracle/tokenizer/make_llama.py LLAMA_CPP_FOLDER [VOCABULARY.gguf of nomic-bert-moe]

Compiles only what reads vocabularies (some twenty files, with g++), in a temporary folder.
"""
import json
import pathlib
import random
import re
import struct
import subprocess
import sys
import tempfile

PIECES = r"""
#include "unicode.h"
#include <cstdio>
#include <iostream>
int main(int argc, char ** argv) {
    std::vector<std::string> expressions(argv + 1, argv + argc);
    std::string line;
    while (std::getline(std::cin, line)) {
        std::string text;
        for (size_t i = 0; i + 1 < line.size(); i += 2) text.push_back((char) std::stoi(line.substr(i, 2), nullptr, 16));
        for (auto & piece : unicode_regex_split(text, expressions, false)) printf("%zu ", piece.size());
        printf("\n");
    }
}
"""
TOKENS = r"""
#include "gguf.h"
#include "llama-arch.h"
#include "llama-model-loader.h"
#include "llama-vocab.h"
#include <cstdio>
#include <iostream>
extern "C" int llama_split_prefix(char *, size_t, const char *, int, int) { return 0; }
extern "C" int llama_split_path(char *, size_t, const char *, int, int) { return 0; }
int main(int, char ** argv) {
    std::vector<std::string> splits;
    gguf_context * file = gguf_init_from_file(argv[1], {true, nullptr});
    llama_model_loader loader(file, nullptr, nullptr, "", splits, nullptr, (llama_load_mode) 0, false, true, false, nullptr, nullptr);
    llama_vocab vocab;
    vocab.load(loader, LLM_KV(LLM_ARCH_LLAMA));
    std::string line;
    while (std::getline(std::cin, line)) {
        std::string text;
        for (size_t i = 0; i + 1 < line.size(); i += 2) text.push_back((char) std::stoi(line.substr(i, 2), nullptr, 16));
        for (bool special : {false, true}) {
            for (auto id : vocab.tokenize(text, special, special)) printf("%d ", id);
            printf("\t");
        }
        for (unsigned char c : vocab.detokenize(vocab.tokenize(text, false, false), true)) printf("%02x", c);
        printf("\n");
    }
}
"""
# Pre-tokenizer of ours, and the name of llama.cpp's rules for it.
RULES = {
    "minicpm5": "MINICPM5", "jais-2": "JAIS2", "bailingmoe": "BAILINGMOE", "seed-coder": "SEED_CODER", "ufakzeka": "UFAKZEKA",
    "laguna": "LAGUNA", "exaone-moe": "EXAONE_MOE", "kimi-k2": "KIMI_K2", "youtu": "YOUTU", "tiny_aya": "TINY_AYA",
    "superbpe": "SUPERBPE", "bloom": "BLOOM", "viking": "VIKING", "chameleon": "CHAMELEON", "spark2_5": "SPARK2_5",
    "afmoe": "AFMOE", "granite-embed-multi-97m": "GRANITE_EMB_MULTI", "sarvam-moe": "SARVAM_MOE", "whitespace": "WHITESPACE",
    "gpt-2": "GPT2", "llama-bpe": "LLAMA3", "qwen2": "QWEN2", "gpt-4o": "GPT4O", "tekken": "TEKKEN",
}
ALPHABET = (
    list("aAbZ09 1234\n\r\t.,!?/'\"<>|(_$+-") + ["  ", "    ", "'s", "'LL", "n't", "the", "WORLD", "12345", "IMGIMGABZ", "<sentinel:12>"]
    + list("éÉßñ日本語中文한국ㄱㄅかカกခ٣४½²。、，！…“”—€∑😀") + ["e\u0301", "\u0301", "\u3000", "\u00a0", "\u200b", "\u0085", "\u0378", "İ", "ǅ", "ﬁ"]
)


def texts(here):
    random.seed(7)
    strings = [bytes.fromhex(s["hex"]) for s in json.loads((here / "strings.json").read_text())["strings"]]
    made = ["".join(random.choice(ALPHABET) for _ in range(random.randrange(1, 18))).encode() for _ in range(400)]
    return [s for s in strings if 0 < len(s) <= 400] + made


def write_gguf(path, keys):
    def text(s):
        s = s if isinstance(s, bytes) else s.encode()
        return struct.pack("<Q", len(s)) + s

    out = b"GGUF" + struct.pack("<IQQ", 3, 0, len(keys))
    for key, (kind, value) in keys.items():
        out += text(key)
        if kind == "str":
            out += struct.pack("<I", 8) + text(value)
        elif kind == "u32":
            out += struct.pack("<II", 4, value)
        elif kind == "strs":
            out += struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))
        elif kind == "f32s":
            out += struct.pack("<IIQ", 9, 6, len(value)) + struct.pack(f"<{len(value)}f", *value)
        elif kind == "i32s":
            out += struct.pack("<IIQ", 9, 5, len(value)) + struct.pack(f"<{len(value)}i", *value)
    path.write_bytes(out)


def vocabularies():
    """Small vocabularies of our own."""
    random.seed(3)
    words = ["a", "b", "ab", "abc", "the", " the", "he", "e", "\n", "\n\n", " ", "  ", "é", "日", "日本", "本語", "12", "123", "<|x|>", "x"]
    rwkv = ["<unused>"] + [f"\\x{b:02x}" for b in range(256)] + [w.replace("\n", "\\n") for w in words if len(w.encode()) > 1]
    yield {"name": "rwkv", "tokens": rwkv, "types": [3] + [1] * (len(rwkv) - 1), "scores": None}
    plamo = ["<|plamo:unk|>", "<|plamo:bos|>", "<|plamo:eos|>", "<|plamo:pad|>"] + [f"<0x{b:02X}>" for b in range(256)] + words
    scores = [0.0] * 260 + [round(-random.random() * 12, 3) for _ in words]
    yield {"name": "plamo2", "tokens": plamo, "types": [2, 3, 3, 3] + [6] * 256 + [1] * len(words), "scores": scores}
    t5 = ["<pad>", "</s>", "<unk>", "▁", "▁the", "▁a", "a", "b", "ab", "abc", "he", "e", "t", "h", "é", "日本", "日", "1", "2", "12", "<tool>", "."]
    scores = [0.0, 0.0, 0.0] + [round(-random.random() * 12, 3) for _ in t5[3:]]
    yield {"name": "t5", "tokens": t5, "types": [3, 3, 2] + [1] * 17 + [4, 1], "scores": scores}


def main():
    here, llama = pathlib.Path(__file__).parent, pathlib.Path(sys.argv[1])
    source = (llama / "src/llama-vocab.cpp").read_text()
    inputs = texts(here)
    lines = "\n".join(t.hex() for t in inputs) + "\n"
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "ggml-version.h").write_text('#define GGML_VERSION "x"\n#define GGML_COMMIT "x"\n')
        include = [f"-I{llama}/{d}" for d in ("include", "ggml/include", "src", "ggml/src")] + [f"-I{folder}"]
        (folder / "pieces.cpp").write_text(PIECES)
        (folder / "tokens.cpp").write_text(TOKENS)
        names = ["unicode", "unicode-data", "llama-vocab", "llama-impl", "llama-arch", "llama-model-loader", "llama-mmap", "llama-hparams"]
        ggml = ["gguf.cpp", "ggml-backend.cpp", "ggml-backend-reg.cpp", "ggml-backend-meta.cpp", "ggml-backend-dl.cpp",
                "ggml-threading.cpp", "ggml.cpp", "ggml.c", "ggml-alloc.c", "ggml-quants.c"]
        objects = []
        for path in [llama / f"src/{n}.cpp" for n in names] + [llama / f"ggml/src/{n}" for n in ggml]:
            objects.append(folder / (path.name + ".o"))
            compiler = ["g++", "-std=c++17"] if path.suffix == ".cpp" else ["gcc", "-D_GNU_SOURCE"]
            flags = ['-DGGML_VERSION="x"', '-DGGML_COMMIT="x"'] if path.name == "ggml.c" else []
            subprocess.run([*compiler, "-O1", *include, *flags, "-c", path, "-o", objects[-1]], check=True)
        for name in ("pieces", "tokens"):
            needed = objects[:2] if name == "pieces" else objects
            program = [folder / f"{name}.cpp", *needed, "-o", folder / name, "-ldl", "-lpthread"]
            subprocess.run(["g++", "-std=c++17", "-O1", *include, *program], check=True)
        write(here, folder / "pieces", folder / "tokens", source, inputs, lines, folder)


def write(here, pieces, tokens, source, inputs, lines, folder):
    out = {"texts": [t.hex() for t in inputs], "lengths": {}}
    for name, rule in RULES.items():
        block = source[source.index(f"case LLAMA_VOCAB_PRE_TYPE_{rule}:"):]
        block = block[block.index("regex_exprs = {"):block.index("};")]
        block = re.sub(r"^\s*//.*$", "", block, flags=re.M)
        rules = [json.loads(f'"{e}"') for e in re.findall(r'"((?:[^"\\]|\\.)*)"', block)]
        result = subprocess.run([pieces, *rules], input=lines, capture_output=True, text=True, check=True).stdout
        out["lengths"][name] = [[int(n) for n in line.split() if n != "0"] for line in result.splitlines()]
    (here / "pieces.json").write_text(json.dumps(out, separators=(",", ":")) + "\n")
    models = {"texts": out["texts"], "models": []}
    for v in vocabularies():
        path = folder / "v.gguf"
        keys = {"general.architecture": ("str", "llama"), "tokenizer.ggml.model": ("str", v["name"]),
                "tokenizer.ggml.tokens": ("strs", v["tokens"]), "tokenizer.ggml.token_type": ("i32s", v["types"])}
        if v["scores"]:
            keys["tokenizer.ggml.scores"] = ("f32s", v["scores"])
        write_gguf(path, keys)
        models["models"].append({**v, **run(tokens, path, lines)})
    if len(sys.argv) > 2:
        models["nomic_bert_moe"] = run(tokens, pathlib.Path(sys.argv[2]), lines)
    (here / "models.json").write_text(json.dumps(models, separators=(",", ":"), ensure_ascii=False) + "\n")


def run(tokens, path, lines):
    result = subprocess.run([tokens, path], input=lines.encode(), stdout=-1, stderr=-3, check=True).stdout.decode()
    rows = [line.split("\t") for line in result.splitlines()]
    numbers = lambda text: [int(n) for n in text.split()]
    return {"plain": [numbers(r[0]) for r in rows], "special": [numbers(r[1]) for r in rows], "decoded": [r[2] for r in rows]}


if __name__ == "__main__":
    main()
