"""``kjit.Model`` with the test models, where they are (``KJIT_TEST_MODELS``)."""

import gc
import math
import os
import threading
import unittest

import kjit

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = os.environ.get("KJIT_TEST_MODELS", os.path.join(HERE, "../../.models"))
SMALL = os.path.join(FOLDER, "SmolLM2-135M-Instruct.Q4_1.gguf")
ENCODER = os.path.join(FOLDER, "archs", "bert.gguf")
open_model = None


def model():
    global open_model
    if not os.path.exists(SMALL):
        raise unittest.SkipTest(f"SKIPPED: {SMALL} is not there (scripts/fetch-test-models)")
    if open_model is None:
        open_model = kjit.Model(SMALL, "cpu", context=512)
    return open_model


class Text(unittest.TestCase):
    def test_tokenize_and_detokenize_are_inverse(self):
        ids = model().tokenize("Hello, world")
        self.assertEqual(model().detokenise(ids), "Hello, world")
        self.assertEqual(model().detokenize(kjit.asarray(ids)), "Hello, world")
        with self.assertRaisesRegex(ValueError, "outside"):
            model().detokenize([1 << 30])

    def test_stream_pieces_equal_whole_text(self):
        whole = model().generate("Once upon a time", 12, temperature=0)
        stream = model().generate("Once upon a time", 12, temperature=0, stream=True)
        pieces = list(stream)
        self.assertEqual("".join(pieces), whole)
        self.assertGreater(len(pieces), 3)
        self.assertEqual((stream.reason, len(stream.ids)), ("length", 12))
        self.assertEqual(list(stream), [])
        again = model().generate(model().tokenize("Once upon a time"), 12, temperature=0)
        self.assertEqual(again, whole)

    def test_greedy_token_has_highest_score(self):
        ids = model().tokenize("The capital of France is")
        rows = model().logits(ids, all=True)
        self.assertEqual(rows.shape, (len(ids), model().n_vocab))
        last = model().logits(ids)
        self.assertEqual(last.shape, (model().n_vocab,))
        for a, b in zip(rows[-1][::997].tolist(), last[::997].tolist()):
            self.assertTrue(math.isclose(a, b, rel_tol=2e-2, abs_tol=0.05))
        best = int(kjit.argmax(last))
        stream = model().generate(ids, 1, temperature=0, stream=True)
        self.assertEqual((list(stream), stream.ids), ([model().detokenize([best])], [best]))

    def test_chat_uses_the_template(self):
        messages = [{"role": "user", "content": "Name a colour."}]
        answer = model().chat(messages, 8, temperature=0)
        self.assertTrue(answer and "<|im" not in answer, answer)
        self.assertEqual(model().chat(messages, 8, temperature=0), answer)
        with self.assertRaises(TypeError):
            model().chat("Name a colour.")

    def test_close_stops_the_answer(self):
        stream = model().generate("Count: 1, 2, 3,", None, temperature=0, stream=True)
        next(stream)
        with self.assertRaisesRegex(kjit.ModelError, "close"):
            model().logits([1, 2])
        with self.assertRaisesRegex(kjit.ModelError, "close"):
            model().generate("a", 1)
        stream.close()
        self.assertEqual(list(stream), [])
        self.assertIsNone(stream.reason)
        for _ in model().generate("Count: 1, 2, 3,", None, temperature=0, stream=True):
            break
        gc.collect()
        self.assertEqual(model().logits([1, 2]).shape, (model().n_vocab,))

    def test_threads_are_serialised_without_holding_the_gil(self):
        want = model().generate("Once upon a time", 6, temperature=0)
        out = []
        work = lambda: out.append(model().generate("Once upon a time", 6, temperature=0))
        threads = [threading.Thread(target=work) for _ in range(3)]
        [t.start() for t in threads]
        turns = 0
        while any(t.is_alive() for t in threads):
            turns += 1
            threads[0].join(0.001)
        [t.join() for t in threads]
        self.assertEqual(out, [want] * 3)
        self.assertGreater(turns, 3)

    def test_stop_texts_and_seeds_apply(self):
        whole = model().generate("Once upon a time", 12, temperature=0)
        word = whole.split()[3]
        cut = model().generate("Once upon a time", 12, temperature=0, stop=word)
        self.assertEqual(cut, whole[: whole.index(word)])
        a, b = (model().generate("Once", 6, temperature=1.5, seed=7) for _ in range(2))
        self.assertEqual(a, b)

    def test_vectors_are_normalised_on_request(self):
        if not os.path.exists(ENCODER):
            self.skipTest(f"SKIPPED: {ENCODER} is not there")
        encoder = kjit.Model(ENCODER, "cpu")
        rows = encoder.embed(["a b", "c"], normalise=True)
        self.assertEqual(rows.shape[0], 2)
        for length in kjit.sum(rows * rows, axis=1).tolist():
            self.assertTrue(math.isclose(length, 1, rel_tol=1e-5))
        self.assertEqual(encoder.embed("c", normalise=True).tolist(), rows[1].tolist())
        with self.assertRaisesRegex(kjit.ModelError, "encoder"):
            encoder.generate([1], 1)
        own = model().embed(["a colour"], pooling="mean")
        self.assertEqual(own.shape[0], 1)


class Wrong(unittest.TestCase):
    def test_invalid_model_is_named(self):
        with self.assertRaisesRegex(FileNotFoundError, "nothing.gguf"):
            kjit.Model("nothing.gguf", "cpu")
        with self.assertRaisesRegex(ValueError, "banana"):
            kjit.Model("x.gguf", "banana")
        with self.assertRaisesRegex(kjit.ModelError, "test_model.py"):
            kjit.Model(__file__, "cpu")
        with self.assertRaisesRegex(ValueError, "not a size"):
            kjit.AutoModel.from_pretrained("x.gguf", "cpu", memory="lots")
        with self.assertRaises(ValueError):
            kjit.Model("hf:", "cpu")

    def test_options_out_of_range_are_named(self):
        for options, says in (
            ({"temperature": -1}, "temperature"),
            ({"temperature": math.nan}, "temperature"),
            ({"top_k": 1.5}, "top_k"),
            ({"top_p": 2}, "top_p"),
            ({"repeat_penalty": 0}, "repeat_penalty"),
            ({"stop": ""}, "stop string"),
            ({"max_tokens": -1}, "max_tokens"),
        ):
            with self.assertRaisesRegex(ValueError, says):
                model().generate("a", **options)
        with self.assertRaisesRegex(ValueError, "empty"):
            model().generate([], 1)
        with self.assertRaisesRegex(ValueError, "context of 512"):
            model().generate([1] * 600, 1)
        with self.assertRaisesRegex(ValueError, "outside the vocabulary"):
            model().generate([1 << 30], 1)


if __name__ == "__main__":
    unittest.main()
