"""The devices of this machine, and the memory that a GPU keeps.

python3 11_device_info.py
"""

import kjit

print(f"cuda: {kjit.device_count('cuda')}, rocm: {kjit.device_count('rocm')}")
for device in kjit.__array_namespace_info__().devices():
    kjit.print_device_info(device)
    if device != "cpu":
        memory = kjit.get_memory_manager(device)
        memory.warm_up(["16MB", "64MB"])
        print("pool:", memory.statistics())
        print(f"freed: {memory.clear_pool()} bytes")
