"""Whether a GPU can be used here, found out without importing torch where it cannot."""

import ctypes
import importlib.util
import os
import sys

DRIVERS = {"win32": "nvcuda.dll"}


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
