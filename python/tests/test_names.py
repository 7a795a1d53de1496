"""Names that programs import, with the behaviour behind each, on the device that KJIT_TEST_DEVICE
names (``cpu``)."""

import contextlib
import io
import json
import math
import os
import tempfile
import threading
import unittest

import kjit
from kjit import backend, benchmark

DEVICE = os.environ.get("KJIT_TEST_DEVICE", "cpu")
GPU = DEVICE != "cpu"
KIND = DEVICE.split(":")[0]


def setUpModule():
    kjit.set_device(DEVICE)


class Devices(unittest.TestCase):
    def test_device_queries_agree(self):
        self.assertEqual(kjit.get_device_type(), KIND)
        self.assertEqual(kjit.is_rocm_available(), kjit.rocm_device_count() > 0)
        self.assertEqual(kjit.rocm_is_available(), kjit.is_available("rocm"))
        self.assertEqual(kjit.is_cuda_available(), kjit.device_count("cuda") > 0)
        self.assertTrue(kjit.is_available(KIND))
        info = kjit.device_info()
        self.assertGreater(info["total_memory"], 0)
        self.assertGreater(info["compute_units"], 0)
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            kjit.print_device_info()
        for value in info.values():
            self.assertIn(str(value), out.getvalue())
        if KIND == "rocm":
            self.assertEqual(kjit.rocm_get_device_info(0), kjit.device_info("rocm:0"))
        else:
            with self.assertRaises(RuntimeError):
                kjit.rocm_get_device_info(kjit.rocm_device_count())

    def test_to_device_copies_values(self):
        x = kjit.arange(7, dtype=kjit.float32)
        self.assertEqual(kjit.to_device(x, "cpu").tolist(), x.tolist())
        self.assertEqual(kjit.to_device(x, "cpu").device, "cpu")


class Memory(unittest.TestCase):
    def test_pools_warm_up_and_clear(self):
        manager, pinned = kjit.get_memory_manager(), kjit.get_pinned_pool()
        if not GPU:
            for call in (manager.statistics, manager.clear_pool, pinned.warmup):
                with self.assertRaisesRegex(ValueError, "the CPU has no memory pool"):
                    call()
            self.assertEqual(kjit.empty_cache(), 0)
            return
        manager.clear_pool()
        kjit.warmup_memory_pool(3, 300_000)
        held = manager.statistics()["held"]
        self.assertGreaterEqual(held, 900_000)
        misses = manager.statistics()["misses"]
        xs = [kjit.ones(75_000) + i for i in range(3)]
        [x.eval() for x in xs]
        self.assertEqual(manager.statistics()["misses"], misses)
        del xs
        self.assertGreaterEqual(manager.clear(), 900_000)
        before = pinned.statistics()["held"]
        pinned.warmup([100_000])
        self.assertGreater(pinned.statistics()["held"], before)
        self.assertGreater(pinned.clear(), 0)
        kjit.warmup_memory_pool(1, kjit.nn.Linear(64, 64))
        self.assertGreater(kjit.empty_cache(), 0)


class Streams(unittest.TestCase):
    def test_work_of_a_block_runs_in_its_stream(self):
        own = kjit.current_stream()
        stream, urgent = kjit.Stream(), kjit.Stream(priority=-1)
        if GPU:
            self.assertEqual(len({own.handle, stream.handle, urgent.handle}), 3)
        x = kjit.arange(1000, dtype=kjit.float32)
        start, end = kjit.Event(timing=True), kjit.Event(timing=True)
        with stream as entered:
            self.assertEqual(entered, stream)
            self.assertEqual(kjit.current_stream(), stream)
            start.record()
            before = kjit.launches()
            y = x * 2 + 1
            with urgent:
                self.assertEqual(kjit.current_stream(), urgent)
                z = kjit.sum(y)
            end.record()
        self.assertEqual(kjit.current_stream(), own)
        if GPU:
            self.assertGreater(kjit.launches(), before)
            launched = kjit.launches()
            self.assertEqual(y.tolist(), [i * 2.0 + 1 for i in range(1000)])
            # The blocks' ends have computed both.
            self.assertEqual(float(z), 1e6)
            self.assertEqual(kjit.launches(), launched)
        stream.synchronize()
        self.assertTrue(stream.query() and urgent.query() in (True, False))
        end.synchronize()
        self.assertTrue(end.query())
        self.assertGreaterEqual(start.elapsed_time(end), 0.0)

    def test_streams_wait_for_each_other(self):
        a, b = kjit.Stream(), kjit.Stream()
        with a:
            x = kjit.randn(300, 300)
            y = x @ x
        event = a.record_event()
        b.wait_event(event)
        b.wait_stream(a)
        with b:
            z = kjit.sum(y * 0 + 1)
        self.assertEqual(float(z), 90000.0)
        event.wait()

    def test_tensors_cross_streams_in_loops_and_threads(self):
        streams = [kjit.Stream() for _ in range(3)]
        wrong = []

        def work(at):
            x = kjit.full((257,), float(at), dtype=kjit.float32)
            for i in range(12):
                with streams[(at + i) % 3]:
                    x = x + 1
                    total = kjit.sum(x)
                if float(total) != 257.0 * (at + i + 1):
                    wrong.append((at, i, float(total)))

        threads = [threading.Thread(target=work, args=(at,)) for at in range(4)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        self.assertEqual(wrong, [])

    def test_errors_leave_the_stream(self):
        stream = kjit.Stream()
        own = kjit.current_stream()
        with self.assertRaises(ZeroDivisionError), stream:
            x = kjit.ones(3) * 2
            1 / 0
        self.assertEqual(kjit.current_stream(), own)
        self.assertEqual(x.tolist(), [2.0, 2.0, 2.0])
        with self.assertRaisesRegex(ValueError, "has not entered"):
            stream.__exit__(None, None, None)
        plain = kjit.Event()
        plain.record()
        with self.assertRaisesRegex(ValueError, "timing=True"):
            plain.elapsed_time(plain)
        with self.assertRaisesRegex(ValueError, "recorded"):
            kjit.Event(timing=True).elapsed_time(kjit.Event(timing=True))


class Attention(unittest.TestCase):
    def test_windows_and_shared_heads_match_masks(self):
        f = kjit.nn.functional.scaled_dot_product_attention
        for dtype, places in ((kjit.float32, 5), (kjit.float16, 2)):
            q = kjit.astype(kjit.randn(2, 6, 9, 16), dtype)
            k, v = (kjit.astype(kjit.randn(2, 2, 9, 16), dtype) for _ in range(2))
            ks, vs = (kjit.repeat(x, 3, axis=1) for x in (k, v))
            row, key = kjit.arange(9)[:, None], kjit.arange(9)[None, :]
            seen = (key >= row - 3) & (key <= row)
            want = f(q, ks, vs, seen)
            for got in (
                f(q, ks, vs, is_causal=True, window=(3, None)),
                f(q, k, v, window=(3, 0), enable_gqa=True),
                f(q, k, v, seen, enable_gqa=True),
                f(q, k, v, kjit.broadcast_to(seen, (6, 9, 9)), enable_gqa=True),
            ):
                self.assertEqual(got.dtype, dtype)
                off = kjit.max(kjit.abs(kjit.astype(got, kjit.float32) - kjit.astype(want, kjit.float32)))
                self.assertAlmostEqual(float(off), 0.0, places)
        with self.assertRaisesRegex(ValueError, "6 heads of the query cannot share 4"):
            f(q, kjit.ones((2, 4, 9, 16)), kjit.ones((2, 4, 9, 16)), enable_gqa=True)
        with self.assertRaisesRegex(ValueError, "left is -1"):
            f(q, ks, vs, window=(-1, 0))


class Sharing(unittest.TestCase):
    def test_complex_tensors_are_shared(self):
        for shape in ((3, 5), (0, 2), (7,)):
            parts = kjit.reshape(kjit.arange(math.prod(shape), dtype=kjit.float32), shape)
            x = parts * 2 + 1j * (parts + 1)
            want = x.tolist()
            for x in (x, kjit.flip(x)):
                want = x.tolist()
                shared = kjit.from_dlpack(x, copy=False)
                got = (shared.dtype, shared.device, shared.tolist())
                self.assertEqual(got, (kjit.complex64, DEVICE, want))
                self.assertEqual((x * 2).tolist(), (shared + shared).tolist())
                # Shared twice, it has one memory.
                self.assertEqual(kjit.from_dlpack(x).tolist(), want)


class Tuning(unittest.TestCase):
    def test_verdicts_are_kept_in_cache_and_file(self):
        of = backend.rocm if KIND == "rocm" else kjit.tuning
        cache = of.get_tuning_cache()
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "verdicts.txt")
            self.assertEqual(cache.set_cache_file(path), 0)
            cache.enable_exhaustive_search()
            self.assertTrue(kjit.tuning.is_exhaustive())
            a, b = kjit.randn(65, 33), kjit.randn(33, 47)
            try:
                tuned = (a @ b).tolist()
            finally:
                kjit.tuning.exhaustive(False)
            own = kjit.device_info()["architecture"].split(":")[0]
            found = [v for v in cache.verdicts()
                     if "65 × 47 × 33" in v["subject"] and v["device"] == own]
            self.assertEqual(len(found), int(GPU))
            for v in found:
                self.assertEqual(v["choice"], min(v["microseconds"], key=v["microseconds"].get))
                self.assertGreaterEqual(len(v["microseconds"]), 2)
                self.assertEqual(v["refused"], {})
            if GPU:
                # The file alone has it, too, and what is measured is not measured again.
                self.assertEqual(cache.set_cache_file(path), 1)
                before = kjit.launches()
                again = kjit.matmul(a, b).tolist()
                self.assertLessEqual(kjit.launches() - before, 2)
                self.assertEqual(again, tuned)
            kjit.tuning.set_cache_file(None)
            with open(path, "w") as f:
                f.write("kjit tuning 1\nnonsense\n")
            with self.assertRaisesRegex(ValueError, "verdicts.txt: line 2"):
                cache.set_cache_file(path)


class Benchmark(unittest.TestCase):
    def test_benchmark_prints_each_case(self):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            benchmark.main(["--matmul", "--conv", "--iterations", "1", "--warmup", "1", "--small",
                            "--device", DEVICE, "--json"])
        rows = [json.loads(line) for line in out.getvalue().splitlines()]
        self.assertEqual(len(rows), 5)
        for row in rows:
            self.assertGreater(row["us"], 0)
            self.assertGreater(row["GFLOP/s"], 0)
        with contextlib.redirect_stderr(io.StringIO()) as said, self.assertRaises(SystemExit):
            benchmark.main(["--all", "--iterations", "0"])
        self.assertIn("0 is no number from 1", said.getvalue())


if __name__ == "__main__":
    unittest.main()
