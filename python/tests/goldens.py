"""Operations in expressions that torch and kjit both understand, with their inputs.

``make_goldens.py`` evaluates them by torch, ``test_goldens.py`` by kjit. Inputs come from Python's
own generator, so no file holds them. A case is a name, an expression over ``xp`` (the main
namespace), ``F`` (``nn.functional``) and its inputs, and a line for each input: kind, shape, view.
"""

import math
import random

SHAPES = [(1,), (31,), (33, 65), (2, 3, 7), (0, 5), (65, 1), (1, 33), (13, 31), (5, 1, 17)]
VIEWS = ["", "transposed", "flipped", "stepped", "broadcast"]


def numbers(kind, count, seed):
    """``count`` numbers of a kind, equal in every run."""
    draw = random.Random(seed)
    if kind == "integers":
        return [draw.randrange(-50, 50) for _ in range(count)]
    if kind.startswith("below "):
        return [draw.randrange(int(kind[6:])) for _ in range(count)]
    if kind == "bool":
        return [draw.random() < 0.5 for _ in range(count)]
    low, high = {"positive": (0.1, 4), "unit": (0.02, 0.98)}.get(kind, (-3, 3))
    return [draw.uniform(low, high) for _ in range(count)]


def view(x, way, flip):
    """An input as a view: its transpose, backwards, every second row, broadcast."""
    if way == "transposed":
        return x.T if x.ndim == 2 else x
    if way == "flipped":
        return flip(x)
    if way == "stepped":
        return x[::2] if x.ndim > 0 and x.shape[0] > 1 else x
    return x


def dtype_of(kind):
    """The dtype's name of a kind of numbers."""
    if kind == "integers" or kind.startswith("below "):
        return "int64"
    other = {"bool": "bool", "half": "float16", "bfloat": "bfloat16", "double": "float64"}
    return other.get(kind, "float32")


def cases():
    """(name, expression, [(kind, shape, view)]) of every operation."""
    out = []

    def add(name, expression, *inputs):
        out.append((name, expression, [(*i, "")[:3] for i in inputs]))

    one = "abs exp expm1 sin cos tan tanh sinh cosh atan asinh floor ceil trunc round sign square"
    for i, name in enumerate(
        f"{one} neg sqrt log log1p log2 log10 reciprocal asin acos atanh".split()
    ):
        kind = "normal"
        if name in ("sqrt", "log", "log1p", "log2", "log10", "reciprocal"):
            kind = "positive"
        if name in ("asin", "acos", "atanh"):
            kind = "unit"
        for j in range(3):
            shape = SHAPES[(i + 4 * j) % len(SHAPES)]
            add(name, f"xp.{name}(x)", (kind, shape, VIEWS[(i + j) % 4]))
    for i, name in enumerate("relu sigmoid tanh silu gelu leaky_relu elu softplus".split()):
        for j in range(3):
            shape = SHAPES[(i + 3 * j) % len(SHAPES)]
            add(name, f"F.{name}(x)", ("normal", shape, VIEWS[(i + j) % 4]))
    add("gelu tanh", 'F.gelu(x, approximate="tanh")', ("normal", (33, 65)))

    pairs = [
        ((33, 65), (33, 65)),
        ((33, 65), (65,)),
        ((31, 1), (1, 17)),
        ((2, 3, 7), ()),
        ((0, 5), (5,)),
        ((5, 1, 17), (1, 13, 1)),
    ]
    two = "add sub mul div maximum minimum atan2 hypot copysign fmod_free eq ne lt le gt ge"
    for i, name in enumerate(two.split()):
        if name == "fmod_free":
            continue
        for j in range(3):
            a, b = pairs[(i + 2 * j) % len(pairs)]
            kind = "integers" if name in ("eq", "ne", "lt", "le", "gt", "ge") and j else "normal"
            way = VIEWS[(i + j) % 3] if len(set(a)) == len(a) and a == b else ""
            add(name, f"xp.{name}(x, y)", (kind, a, way), (kind, b, way))
    add("pow", "xp.pow(x, y)", ("positive", (31, 33)), ("normal", (33,)))
    add("pow number", "xp.pow(x, 3.0)", ("normal", (13, 31), "flipped"))
    add("integers", "x * y + x - y", ("integers", (31, 33)), ("integers", (33,)))
    add("integers floor", "x // 7 + x % 7", ("integers", (65, 31), "stepped"))
    add("where", "xp.where(c, x, y)", ("normal", (31, 33)), ("normal", (33,)), ("bool", (31, 1)))
    add("clamp", "xp.clamp(x, min=-0.5, max=0.7)", ("normal", (33, 65), "transposed"))
    add("chain", "xp.exp(-x * x) * 2 + xp.sin(y) / 3", ("normal", (65, 31)), ("normal", (31,)))

    for i, name in enumerate("sum mean amax amin prod".split()):
        for j, axis in enumerate(["None", "0", "1", "(0, 1)", "-1"]):
            shape = [(33, 65), (31, 17), (7, 13)][(i + j) % 3]
            kind = "unit" if name == "prod" else "normal"
            given = "x" if axis == "None" else f"x, axis={axis}, keepdims={bool(j % 2)}"
            if name == "prod" and (axis == "None" or "(" in axis):
                given = "x[0, :9]"
            if axis == "None" and name in ("amax", "amin", "mean", "sum"):
                given = "x"
            add(name, f"xp.{name}({given})", (kind, shape, VIEWS[(i + j) % 4]))
    for name in ("argmax", "argmin"):
        for axis in (0, 1):
            add(name, f"xp.{name}(x, axis={axis})", ("normal", (31, 65), VIEWS[axis]))
    add("var", "xp.var(x, axis=1, correction=1)", ("normal", (33, 65)))
    add("std", "xp.std(x, axis=0, correction=0)", ("normal", (33, 65)))
    add("logsumexp", "xp.logsumexp(x, 1)", ("normal", (33, 65)))
    add("any", "xp.any(x, axis=0)", ("bool", (3, 65)))
    add("all", "xp.all(x, axis=1)", ("bool", (65, 2)))
    add("cumsum", "xp.cumsum(x, 1)", ("normal", (13, 65)))
    add("sort", "xp.sort(x)", ("normal", (13, 65), "flipped"))
    add("argsort", "xp.argsort(x)", ("normal", (13, 65)))
    add("softmax", "F.softmax(x, dim=-1)", ("normal", (33, 65)))
    add("softmax 0", "F.softmax(x, dim=0)", ("normal", (31, 33), "transposed"))
    add("log_softmax", "F.log_softmax(x, dim=1)", ("normal", (2, 31, 7)))

    for m, k, n in [(1, 1, 1), (31, 33, 65), (65, 31, 1), (17, 64, 13), (2, 0, 3)]:
        add("matmul", "x @ y", ("normal", (m, k)), ("normal", (k, n)))
    add(
        "matmul views", "x @ y", ("normal", (33, 31), "transposed"), ("normal", (33, 13), "flipped")
    )
    add("matmul batch", "x @ y", ("normal", (5, 1, 7, 13)), ("normal", (3, 13, 11)))
    add("matmul vector", "x @ y", ("normal", (31, 33)), ("normal", (33,)))
    add("linear", "F.linear(x, w, b)", ("normal", (7, 33)), ("normal", (31, 33)), ("normal", (31,)))
    add("tensordot", "xp.tensordot(x, y, 2)", ("normal", (3, 7, 13)), ("normal", (7, 13, 5)))
    add("embedding", "F.embedding(x, y)", ("below 31", (5, 7)), ("normal", (31, 13)))
    add("gather", "gather(x, 1, y)", ("normal", (13, 31)), ("below 31", (13, 7)))
    add(
        "scatter_add",
        "scatter_add(x, 1, y, z)",
        ("normal", (13, 31)),
        ("below 31", (13, 7)),
        ("normal", (13, 7)),
    )
    add("concat", "xp.concat([x, y], 1)", ("normal", (13, 5)), ("normal", (13, 17)))
    add("stack", "xp.stack([x, y], 1)", ("normal", (13, 5)), ("normal", (13, 5), "flipped"))
    add("tril", "xp.tril(x)", ("normal", (13, 17)))
    add("roll", "xp.roll(x, 3, 1)", ("normal", (13, 17)))

    for groups, stride, padding, dilation in [
        (1, 1, 0, 1),
        (1, 2, 1, 1),
        (2, 1, 1, 2),
        (4, 2, 0, 1),
    ]:
        how = f"stride={stride}, padding={padding}, dilation={dilation}, groups={groups}"
        for n in (1, 2, 3):
            size, kernel = {1: (33,), 2: (13, 11), 3: (7, 5, 6)}[n], (3, 2, 3)[:n]
            inputs = [
                ("normal", (2, 4, *size)),
                ("normal", (8, 4 // groups, *kernel)),
                ("normal", (8,)),
            ]
            add(f"conv{n}d", f"F.conv{n}d(x, w, b, {how})", *inputs)
            if n < 3:
                inputs[1] = ("normal", (4, 8 // groups, *kernel))
                how_t = f"{how}, output_padding={stride - 1}"
                add(f"conv_transpose{n}d", f"F.conv_transpose{n}d(x, w, b, {how_t})", *inputs)
    add(
        "conv2d same",
        'F.conv2d(x, w, padding="same")',
        ("normal", (3, 3, 9, 9)),
        ("normal", (5, 3, 3, 2)),
    )
    for n, size in ((1, (33,)), (2, (13, 11)), (3, (7, 8, 9))):
        inputs = ("normal", (2, 3, *size))
        add(f"max_pool{n}d", f"F.max_pool{n}d(x, 3, stride=2, padding=1)", inputs)
        add(f"avg_pool{n}d", f"F.avg_pool{n}d(x, 3, stride=2, padding=1)", inputs)
        add(f"avg_pool{n}d", f"F.avg_pool{n}d(x, 2, count_include_pad=False)", inputs)
    add("adaptive", "F.adaptive_avg_pool2d(x, (5, 3))", ("normal", (2, 3, 13, 11)))

    add(
        "layer_norm",
        "F.layer_norm(x, (65,), w, b)",
        ("normal", (33, 65)),
        ("normal", (65,)),
        ("normal", (65,)),
    )
    add("layer_norm 2", "F.layer_norm(x, (7, 13))", ("normal", (3, 7, 13)))
    add("rms_norm", "F.rms_norm(x, (65,), w, 1e-5)", ("normal", (33, 65)), ("normal", (65,)))
    add(
        "group_norm",
        "F.group_norm(x, 4, w, b)",
        ("normal", (3, 8, 31)),
        ("normal", (8,)),
        ("normal", (8,)),
    )
    add(
        "batch_norm",
        "F.batch_norm(x, y, z, w, b)",
        ("normal", (3, 7, 5, 6)),
        ("normal", (7,)),
        ("positive", (7,)),
        ("normal", (7,)),
        ("normal", (7,)),
    )
    qkv = [("normal", (2, 3, 31, 16)), ("normal", (2, 3, 33, 16)), ("normal", (2, 3, 33, 8))]
    add("attention", "F.scaled_dot_product_attention(x, y, z)", *qkv)
    add("attention mask", "F.scaled_dot_product_attention(x, y, z, c)", *qkv, ("normal", (31, 33)))
    add(
        "attention causal",
        "F.scaled_dot_product_attention(x, y, y, is_causal=True)",
        qkv[0],
        qkv[0],
    )
    for kind in ("half", "bfloat", "double"):
        add(f"{kind} chain", "xp.exp(-x * x) + y", (kind, (31, 33)), (kind, (33,)))
        add(f"{kind} sum", "xp.sum(x, axis=1)", (kind, (33, 65), "flipped"))
        add(f"{kind} softmax", "F.softmax(x, dim=-1)", (kind, (31, 65)))
        add(f"{kind} matmul", "x @ y", (kind, (31, 33), "transposed"), (kind, (31, 13)))
        add(f"{kind} norm", "F.layer_norm(x, (65,))", (kind, (31, 65)))
        add(f"{kind} gelu", "F.gelu(x)", (kind, (65,)))
    for reduction in ("mean", "sum", "none"):
        how = f'reduction="{reduction}"'
        add("mse_loss", f"F.mse_loss(x, y, {how})", ("normal", (13, 31)), ("normal", (13, 31)))
        add("bce", f"F.binary_cross_entropy(x, y, {how})", ("unit", (13, 31)), ("unit", (13, 31)))
        add(
            "cross_entropy",
            f"F.cross_entropy(x, y, {how})",
            ("normal", (31, 13)),
            ("below 13", (31,)),
        )
        add(
            "cross_entropy 2",
            f"F.cross_entropy(x, y, w, {how})",
            ("normal", (3, 5, 7)),
            ("below 5", (3, 7)),
            ("positive", (5,)),
        )
        add(
            "nll_loss",
            f"F.nll_loss(F.log_softmax(x, 1), y, {how})",
            ("normal", (31, 13)),
            ("below 13", (31,)),
        )
    return out


LETTERS = {1: "x", 2: "xy", 3: "xyz", 4: "xyzc", 5: "xyzwb"}


def names_of(expression, count):
    """The names that an expression has for its inputs, in order."""
    known = {
        "F.linear": "xwb",
        "F.conv": "xwb",
        "F.layer_norm": "xwb",
        "F.rms_norm": "xwb",
        "F.group_norm": "xwb",
        "xp.where": "xyc",
    }
    for begin, letters in known.items():
        if expression.startswith(begin):
            return letters[:count]
    if expression.startswith("F.cross_entropy"):
        return "xyw"[:count]
    return LETTERS[count]


def inputs_of(at, case, make, flip):
    """The inputs of a case by name; ``make(values, dtype, shape)`` makes a tensor."""
    _, expression, inputs = case
    found = {}
    letters = names_of(expression, len(inputs))
    for i, (kind, shape, way) in enumerate(inputs):
        values = numbers(kind, math.prod(shape), 1000 * at + i)
        found[letters[i]] = view(make(values, dtype_of(kind), shape), way, flip)
    return found


def samples(count):
    """Positions of the elements that a golden keeps."""
    draw = random.Random(count)
    return sorted({draw.randrange(count) for _ in range(12)}) if count else []
