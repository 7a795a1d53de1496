"""The package by its own standard library; with NumPy, if it is there, what is NumPy's too."""

import doctest
import importlib
import inspect
import io
import math
import pickle
import random
import threading
import unittest

import kjit

F = kjit.nn.functional


def numbers(n, range_=3.0):
    return [random.uniform(-range_, range_) for _ in range(n)]


class Namespace(unittest.TestCase):
    def test_required_names_exist(self):
        for name in """matmul batch_matmul transpose conv1d conv2d conv3d conv_transpose2d max_pool1d
            max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool2d batch_norm
            layer_norm group_norm rms_norm relu sigmoid tanh gelu silu softmax log_softmax add sub mul
            div pow max min neg abs sqrt exp log sin cos eq ne lt le gt ge where clamp sum mean prod
            mse_loss cross_entropy bce_loss nll_loss randn randint embedding
            scaled_dot_product_attention argmax gather scatter_add concat arange set_device get_device
            device_info device_count is_available synchronize RawKernel ElementwiseKernel
            ReductionKernel rocm_is_available rocm_device_count rocm_get_device_info
            is_cuda_available is_rocm_available get_device_type print_device_info to_device
            empty_cache get_memory_manager get_pinned_pool warmup_memory_pool current_stream explain
            Model AutoModel savez""".split():
            self.assertTrue(callable(getattr(kjit, name)), name)
        for vendor in (kjit.backend.rocm, kjit.backend.cuda):
            for name in """is_available device_count get_device_info synchronize get_memory_manager
                get_pinned_pool warmup_memory_pool""".split():
                self.assertTrue(callable(getattr(vendor, name)), f"{vendor.__name__}.{name}")
        for owner, names in (
            (kjit.MemoryManager, "warm_up clear_pool statistics"),
            (kjit.PinnedPool, "warmup clear statistics"),
            (kjit.Stream, "synchronize handle"),
            (kjit.Tensor, "numpy to_device eval tolist reshape __dlpack__ __cuda_array_interface__"),
        ):
            for name in names.split():
                self.assertTrue(hasattr(owner, name), f"{owner.__name__}.{name}")

    def test_every_function_has_a_docstring(self):
        for name in kjit.__all__:
            what = getattr(kjit, name)
            if inspect.isfunction(what):
                self.assertTrue(what.__doc__, name)

    def test_examples_in_docstrings_give_shown_results(self):
        names = ["_creation", "_elementwise", "_manipulation", "_statistics", "nn.functional"]
        ran = 0
        for name in names:
            module = importlib.import_module(f"kjit.{name}")
            result = doctest.testmod(module, extraglobs={"kjit": kjit})
            self.assertEqual(result.failed, 0, name)
            ran += result.attempted
        self.assertGreaterEqual(ran, 16)

    def test_dtypes_equal_only_themselves(self):
        self.assertEqual(kjit.float32, kjit.dtype("float32"))
        self.assertNotEqual(kjit.float32, kjit.float64)
        self.assertEqual(kjit.result_type(kjit.int8, kjit.uint8), kjit.int16)
        self.assertEqual(kjit.result_type(kjit.ones(1), 3), kjit.float32)
        self.assertTrue(kjit.isdtype(kjit.bfloat16, "real floating"))


class Values(unittest.TestCase):
    def test_program_matches_python(self):
        random.seed(1)
        a, b = numbers(7 * 33), numbers(33)
        x, y = kjit.asarray(a, dtype=kjit.float64).reshape(7, 33), kjit.asarray(b, dtype=kjit.float64)
        got = kjit.sum(kjit.exp(x) * y + 1, axis=1).tolist()
        for row, got in enumerate(got):
            want = math.fsum(math.exp(v) * w + 1 for v, w in zip(a[row * 33 :], b))
            self.assertTrue(math.isclose(got, want, rel_tol=1e-12))

    def test_views_ignore_later_writes(self):
        x = kjit.zeros((2, 3))
        row = x[0]
        x[0, ::2] = 5
        x[:, 1] = kjit.asarray([7.0, 8.0])
        self.assertEqual(x.tolist(), [[5, 7, 5], [0, 8, 0]])
        self.assertEqual(row.tolist(), [0, 0, 0])
        x[x > 6] = 1
        self.assertEqual(x.tolist(), [[5, 1, 5], [0, 1, 0]])
        self.assertEqual(kjit.sum(x).item(), 12)

    def test_mismatch_error_is_one_line_with_both_operands(self):
        with self.assertRaisesRegex(ValueError, r"add: shapes \(2,\) and \(3,\)"):
            kjit.ones(2) + kjit.ones(3)
        with self.assertRaisesRegex(TypeError, "uint64 and int64"):
            kjit.ones(2, dtype=kjit.uint64) + kjit.ones(2, dtype=kjit.int64)
        with self.assertRaisesRegex(TypeError, "float cannot be combined with a tensor of int64"):
            kjit.arange(3) + 1.5
        with self.assertRaises(IndexError):
            kjit.ones(3)[3]
        with self.assertRaises(TypeError):
            bool(kjit.ones(2))
        with self.assertRaises(RuntimeError):
            kjit.set_device("cuda:1000")
        with self.assertRaisesRegex(ValueError, "cannot be compiled for the CPU"):
            kjit.ElementwiseKernel("T x", "T y", "y = x")(kjit.ones(2))
        self.assertEqual(kjit.get_device(), "cpu")

    def test_random_numbers_repeat_with_seed(self):
        kjit.manual_seed(3)
        first = kjit.randn(5, 7)
        self.assertEqual(first.tolist(), first.tolist())
        self.assertNotEqual(first.tolist(), kjit.randn(5, 7).tolist())
        kjit.manual_seed(3)
        self.assertEqual(first.tolist(), kjit.randn(5, 7).tolist())
        many = kjit.randint(-3, 4, (4096,))
        self.assertEqual((kjit.min(many).item(), kjit.max(many).item()), (-3, 3))

    def test_multilayer_perceptron_matches_loops(self):
        random.seed(2)
        sizes = [9, 5, 3]
        x = numbers(9)
        h = x
        layers = []
        for n, m in zip(sizes, sizes[1:]):
            w, b = [numbers(n) for _ in range(m)], numbers(m)
            layer = kjit.nn.Linear(n, m)
            layer.load_state_dict({"weight": kjit.asarray(w), "bias": kjit.asarray(b)})
            layers += [layer, kjit.nn.ReLU()]
            h = [max(0, sum(p * q for p, q in zip(r, h)) + c) for r, c in zip(w, b)]
        got = kjit.nn.Sequential(*layers)(kjit.asarray([x])).tolist()[0]
        for g, w in zip(got, h):
            self.assertTrue(math.isclose(g, w, rel_tol=1e-5, abs_tol=1e-5))


class Interchange(unittest.TestCase):
    def test_buffer_protocol_shares_and_copies(self):
        x = kjit.asarray([[1, 2, 3], [4, 5, 6]], dtype=kjit.int16)
        view = memoryview(x[:, ::-2])
        self.assertEqual(view.tolist(), [[3, 1], [6, 4]])
        self.assertTrue(view.readonly)
        again = kjit.asarray(view)
        self.assertEqual((again.dtype, again.tolist()), (kjit.int16, [[3, 1], [6, 4]]))
        self.assertEqual(kjit.asarray(b"ab").dtype, kjit.uint8)

    def test_dlpack_exports_and_imports(self):
        x = kjit.asarray([[1.5, 2.5], [3.5, 4.5]])
        for copy in (None, True, False):
            y = kjit.from_dlpack(x.T, copy=copy)
            del copy
            self.assertEqual(y.tolist(), [[1.5, 3.5], [2.5, 4.5]])
        del x
        self.assertEqual(y.tolist(), [[1.5, 3.5], [2.5, 4.5]])

    def test_files_and_pickles_round_trip(self):
        for name in ("bool", "int8", "uint64", "float16", "float32", "float64", "complex64"):
            x = kjit.astype(kjit.asarray([[0, 1, 2], [3, 4, 5]]), name)
            file = io.BytesIO()
            kjit.save(file, x)
            file.seek(0)
            for y in (kjit.load(file), pickle.loads(pickle.dumps(x))):
                self.assertEqual((y.dtype, y.shape, y.tolist()), (x.dtype, x.shape, x.tolist()))
        with self.assertRaises(ValueError):
            kjit.load(io.BytesIO(b"no such file"))

    def test_threads_share_a_tensor(self):
        x = kjit.exp(kjit.zeros((300, 300)))
        out = []
        work = lambda: out.append(kjit.sum(x).item())
        threads = [threading.Thread(target=work) for _ in range(4)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        self.assertEqual(out, [90000.0] * 4)

    def test_numpy_reads_and_writes(self):
        try:
            import numpy as np
        except ImportError:
            self.skipTest("no NumPy here")
        a = np.random.default_rng(1).standard_normal((5, 1, 7)).astype("f4")
        x = kjit.asarray(a[::-1, :, ::2])
        self.assertTrue((np.asarray(x) == a[::-1, :, ::2]).all())
        self.assertTrue((np.from_dlpack(x) == a[::-1, :, ::2]).all())
        self.assertEqual(x.numpy().dtype, np.float32)
        got = kjit.softmax(kjit.asarray(a), 2).numpy()
        want = np.exp(a.astype("f8"))
        want /= want.sum(2, keepdims=True)
        self.assertTrue(np.allclose(got, want, rtol=1e-5, atol=1e-6))
        with self.assertRaises(ValueError):
            np.asarray(x)[0] = 1


if __name__ == "__main__":
    unittest.main()
