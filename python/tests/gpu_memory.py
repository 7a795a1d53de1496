"""Memory of a GPU shared with torch and CuPy, and kept in pools: run by hand where they are.

python3 gpu_memory.py [cuda:0]
"""

import gc
import sys

import torch

import kjit

device = sys.argv[1] if len(sys.argv) > 1 else "cuda:0"
kjit.set_device(device)
x = kjit.arange(12, dtype=kjit.float32).reshape(3, 4).eval()

# Out: torch reads kjit's memory, as views, too.
for view in (x, x.T, x[::-1, ::2], x[1]):
    t = torch.from_dlpack(view)
    assert t.is_cuda and t.cpu().tolist() == view.tolist(), view
assert torch.from_dlpack(x).data_ptr() == x.__cuda_array_interface__["data"][0]
half = torch.from_dlpack(kjit.astype(x, kjit.bfloat16))
assert half.dtype == torch.bfloat16

# In: kjit reads torch's memory after torch's work in its stream.
stream = torch.cuda.Stream()
with torch.cuda.stream(stream):
    big = torch.randn(1 << 24, device="cuda")
    for _ in range(20):
        big = big.sin() + 1
    shared = kjit.from_dlpack(big, copy=False)
    total = kjit.sum(shared)
assert abs(total.item() - big.double().sum().item()) < 1, "kjit did not wait for torch"
assert shared.device == device
t = torch.arange(6.0, device="cuda").reshape(2, 3)
ours = kjit.from_dlpack(t.T, copy=False)
copied = kjit.from_dlpack(t.T)
t[0, 0] = 7.0
torch.cuda.synchronize()
assert ours[0, 0].item() == 7.0 and copied[0, 0].item() == 0.0
doubled = ours * 2
del ours, t
gc.collect()
assert doubled.tolist()[0][0] == 14.0

# torch uses kjit's stream.
external = torch.cuda.ExternalStream(kjit.current_stream().handle)
with torch.cuda.stream(external):
    assert torch.ones(3, device="cuda").sum().item() == 3

try:
    import cupy
except ImportError:
    print("no cupy here")
else:
    assert cupy.asarray(x).tolist() == x.tolist()
    assert kjit.from_dlpack(cupy.arange(5, dtype=cupy.float32)).tolist() == [0, 1, 2, 3, 4]

# Pools.
pool = kjit.get_memory_manager()
pool.warm_up(["64MB", "64MB"])
before = pool.statistics()
a = kjit.ones(16_000_000).eval()
b = (a + 1).eval()
assert pool.statistics()["misses"] == before["misses"]
del a, b
assert kjit.empty_cache() > 0
pinned = kjit.get_pinned_pool()
pinned.warmup(["64MB"])
host = kjit.rand(1 << 24, device="cpu").eval()
before = pinned.statistics()
assert kjit.all(host.to_device(device).to_device("cpu") == host)
after = pinned.statistics()
assert (after["hits"] - before["hits"], after["misses"]) == (2, before["misses"])
try:
    pool.warm_up([1 << 50])
except MemoryError as error:
    print("told:", error)
kjit.explain(kjit.softmax(x, 1))
print("gpu memory: as it should be")
