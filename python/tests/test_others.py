"""Other libraries over tensors of kjit, if they are installed: einops, array-api-compat, torch."""

import unittest

import kjit


def library(name):
    try:
        return __import__(name, fromlist=["_"])
    except ImportError:
        raise unittest.SkipTest(f"SKIPPED: no {name} here") from None


class Others(unittest.TestCase):
    def test_einops_rearranges(self):
        einops = library("einops.array_api")
        x = kjit.arange(24, dtype=kjit.float32).reshape(2, 3, 4)
        y = einops.rearrange(x, "a (b c) d -> (b a) d c", b=3)
        self.assertEqual(y.shape, (6, 4, 1))
        self.assertEqual(y.tolist(), kjit.moveaxis(x, 1, 0).reshape(6, 4, 1).tolist())
        self.assertEqual(einops.reduce(x, "a b c -> b", "sum").tolist(), [60, 92, 124])
        self.assertEqual(einops.repeat(x[0, 0], "a -> a b", b=2).tolist()[1], [1, 1])

    def test_array_api_compat_accepts_tensors(self):
        compat = library("array_api_compat")
        x = kjit.ones((2, 3))
        self.assertIs(compat.array_namespace(x), kjit)
        self.assertTrue(compat.is_array_api_obj(x))
        self.assertEqual(compat.device(x), "cpu")
        self.assertEqual(compat.size(x), 6)
        self.assertEqual(compat.to_device(x, "cpu").tolist(), x.tolist())

    def test_torch_shares_memory(self):
        torch = library("torch")
        x = kjit.arange(6, dtype=kjit.float32).reshape(2, 3)
        theirs = torch.from_dlpack(x.T)
        self.assertEqual(theirs.tolist(), x.T.tolist())
        t = torch.arange(12.0).reshape(3, 4)
        ours = kjit.from_dlpack(t[:, ::2], copy=False)
        t[0, 0] = 7.0  # the memory is theirs
        self.assertEqual(ours.tolist(), t[:, ::2].tolist())
        net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)).eval()
        own = kjit.nn.Sequential(kjit.nn.Conv2d(3, 4, 3), kjit.nn.BatchNorm2d(4))
        own.load_state_dict(net.state_dict())
        a = torch.randn(2, 3, 9, 9)
        want = net(a).detach()
        got = torch.from_dlpack(own(kjit.from_dlpack(a)))
        self.assertTrue(torch.allclose(got, want, rtol=1e-5, atol=1e-6))


if __name__ == "__main__":
    unittest.main()
