"""Whether a GPU can be used here, found out without importing torch where it cannot."""

import ctypes
import importlib.util
import os
import sys

DRIVERS = {"win32": "nvcuda.dll"}
CAPABILITY = (75, 76)  # the driver's numbers for the major and the minor part of a device's capability


def n_gpus() -> int:
    """The GPUs the driver counts; 0 where there is no driver."""
    try:
        driver = ctypes.CDLL(DRIVERS.get(sys.platform, "libcuda.so.1"))
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def make_context() -> None:
    """Make the context of the first device, which torch will use: it takes a good part of a second, beside others."""
    driver, context = ctypes.CDLL(DRIVERS.get(sys.platform, "libcuda.so.1")), ctypes.c_void_p()
    driver.cuInit(0)
    driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)


def capability() -> int:
    """The compute capability of the first device: 90 for 9.0."""
    driver, parts = ctypes.CDLL(DRIVERS.get(sys.platform, "libcuda.so.1")), []
    driver.cuInit(0)
    for attribute in CAPABILITY:
        value = ctypes.c_int(0)
        driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, 0)
        parts.append(value.value)
    return 10 * parts[0] + parts[1]


def missing_packages() -> list[str]:
    return [name for name in ("torch", "triton") if importlib.util.find_spec(name) is None]


def interprets() -> bool:
    """Whether Triton runs its kernels on the CPU: slow, for testing them without a GPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def problem() -> str:
    """Why the cuda backend cannot run here and what to do; empty where it can."""
    if missing := missing_packages():
        return f"{' and '.join(missing)} not installed; run `pip install '.[cuda]'` in Tahr's directory"
    if interprets() or n_gpus():
        return ""
    return "the NVIDIA driver is missing or finds no GPU; check `nvidia-smi`, or use the cpu backend"


def describe() -> dict[str, str]:
    """What a reader of `tahr devices` wants to know of the GPU."""
    import torch
    import triton

    libraries = f"torch {torch.__version__}, Triton {triton.__version__}"
    if interprets():
        return {"model": "none: Triton interprets its kernels on the CPU", "software": libraries}
    card = torch.cuda.get_device_properties(0)
    return {"model": card.name, "memory": f"{card.total_memory / 1e9:.0f} GB", "software": libraries}
