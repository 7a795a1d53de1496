"""Operations against torch's numbers, without torch: ``goldens.json`` by ``make_goldens.py``."""

import json
import math
import os
import unittest

import goldens
import kjit

HERE = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(HERE, "goldens.json")) as file:
    KEPT = json.load(file)

# Sums of products are float32 in an order of their own: an error of some float32 digits of the
# largest product, so the absolute tolerance is ten times that of the others.
SUMS = ("x @ y", "F.conv", "F.linear", "xp.tensordot", "F.scaled")

# Halves are rounded after each operation: four roundings of 2**-11 and 2**-8.
HALVES = {"float16": 4 * 2.0**-11, "bfloat16": 4 * 2.0**-8}


class Space:
    """kjit under the names that the expressions have."""

    amax, amin = staticmethod(kjit.max), staticmethod(kjit.min)
    argmax, argmin = staticmethod(kjit.argmax), staticmethod(kjit.argmin)
    tensordot = staticmethod(lambda x, y, axes: kjit.tensordot(x, y, axes=axes))
    cumsum = staticmethod(lambda x, axis: kjit.cumulative_sum(x, axis=axis))
    concat = staticmethod(lambda list_, axis: kjit.concat(list_, axis=axis))
    stack = staticmethod(lambda list_, axis: kjit.stack(list_, axis=axis))
    roll = staticmethod(lambda x, shift, axis: kjit.roll(x, shift, axis=axis))
    logsumexp = staticmethod(lambda x, axis: kjit.logsumexp(x, axis=axis))

    def __getattr__(self, name):
        return getattr(kjit, name)


FUNCTIONS = {
    "xp": Space(),
    "F": kjit.nn.functional,
    "gather": lambda x, axis, index: kjit.gather(x, axis, index),
    "scatter_add": lambda x, axis, index, values: kjit.scatter_add(x, axis, index, values),
}


def make(values, dtype, shape):
    return kjit.asarray(values, dtype=getattr(kjit, dtype)).reshape(shape)


def flip(x):
    return x[::-1] if x.ndim else x


def close(got, want, rtol, atol):
    want = float(want)
    if math.isnan(want):
        return math.isnan(got)
    return got == want or abs(got - want) <= rtol * abs(want) + atol


class Goldens(unittest.TestCase):
    def check(self, at, case):
        shape, kind, kept, total = KEPT["cases"][at]
        given = goldens.inputs_of(at, case, make, flip)
        y = eval(case[1], FUNCTIONS | given)
        self.assertEqual(list(y.shape), shape)
        rtol, atol = 1e-5, 1e-5 if case[1].startswith(SUMS) else 1e-6
        if kind == "float":
            dtype = next(
                (d for d in map(goldens.dtype_of, (i[0] for i in case[2])) if "float" in d), None
            )
            self.assertEqual(y.dtype.name, dtype)
            if dtype in HALVES:
                rtol = atol = HALVES[dtype]
        elif kind == "bool":
            self.assertEqual(y.dtype, kjit.bool)
        else:
            self.assertTrue(kjit.isdtype(y.dtype, "integral"), y.dtype)
        values = y.reshape(-1).tolist()
        places = goldens.samples(len(values))
        for place, want in zip(places, kept, strict=True):
            if kind == "float":
                self.assertTrue(
                    close(values[place], want, rtol, atol), f"{values[place]} for {want}"
                )
            else:
                self.assertEqual(values[place], want)
        # The sum shows an error at any place; each element may contribute its tolerance.
        size = sum(abs(v) for v in values)
        self.assertLessEqual(abs(sum(values) - total), rtol * size + atol * len(values) + 1e-9)

    def test_operations_match_torch(self):
        cases = goldens.cases()
        self.assertEqual(len(cases), len(KEPT["cases"]), "make_goldens.py was not run again")
        for at, case in enumerate(cases):
            with self.subTest(case=case[0], expression=case[1], inputs=case[2]):
                self.check(at, case)

    def test_views_are_read_with_their_strides(self):
        kinds = {way for _, _, inputs in goldens.cases() for _, _, way in inputs}
        self.assertGreaterEqual(kinds, {"transposed", "flipped", "stepped"})


if __name__ == "__main__":
    unittest.main()
