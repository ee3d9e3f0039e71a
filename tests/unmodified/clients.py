#!/usr/bin/env python3
"""Programs that use the driver: clients.py CLIENT TOTAL. Each expects to be told TOTAL bytes of device memory, gets
memory within it and an error beyond it, and goes on after the error."""

import os
import sys


def bindings(total):
    from cuda.bindings import driver

    def call(answer):
        assert answer[0] == driver.CUresult.CUDA_SUCCESS, answer
        return answer[1] if len(answer) == 2 else answer[1:]

    call(driver.cuInit(0))
    device = call(driver.cuDeviceGet(0))
    assert call(driver.cuDeviceTotalMem(device)) == total
    context = call(driver.cuDevicePrimaryCtxRetain(device))
    call(driver.cuCtxSetCurrent(context))
    free, told = call(driver.cuMemGetInfo())
    assert told == total and free <= total, (free, told)
    half = call(driver.cuMemAlloc(total // 2))
    assert free - call(driver.cuMemGetInfo())[0] >= total // 2
    assert driver.cuMemAlloc(total // 2 + (64 << 20))[0] == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY
    call(driver.cuMemsetD8(half, 7, 4096))
    seen = bytearray(4096)
    call(driver.cuMemcpyDtoH(seen, half, 4096))
    assert seen == b"\7" * 4096
    call(driver.cuMemFree(half))
    assert call(driver.cuMemGetInfo())[0] == free
    call(driver.cuMemFree(call(driver.cuMemAlloc(total // 2))))


def tinygrad(total):
    os.environ["DEV"] = "CUDA"
    from tinygrad import Device, Tensor

    memory = Device["CUDA"].allocator
    half = memory.alloc(total // 2)
    try:
        memory.alloc(total // 2 + (64 << 20))
    except MemoryError as error:
        assert "out of memory" in f"{error} {error.__context__}", error.__context__
    else:
        raise AssertionError("more than there is was given")
    assert Tensor([1.0, 2.0, 3.0]).numpy().tolist() == [1, 2, 3]
    memory.free(half, total // 2)


def nvml(total):
    import pynvml

    pynvml.nvmlInit()
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    same = pynvml.nvmlDeviceGetHandleByUUID(pynvml.nvmlDeviceGetUUID(device))
    assert pynvml.nvmlDeviceGetIndex(same) == 0
    assert pynvml.nvmlDeviceGetMemoryInfo(device).total == total
    before = pynvml.nvmlDeviceGetMemoryInfo(device, version=pynvml.nvmlMemory_v2)
    assert before.total == total
    bindings(total)
    mine = [each for each in pynvml.nvmlDeviceGetComputeRunningProcesses(device) if each.pid == os.getpid()]
    assert len(mine) == 1 and mine[0].usedGpuMemory > 0, mine


if __name__ == "__main__":
    {"bindings": bindings, "tinygrad": tinygrad, "nvml": nvml}[sys.argv[1]](int(sys.argv[2]))
    print(sys.argv[1], "ok")
