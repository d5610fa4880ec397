"""Whether a GPU can be used here, found out without importing torch where it cannot."""

import ctypes
import importlib.util
import os
import sys
from contextlib import suppress

from tahr.errors import install_extra

DRIVERS = {"win32": "nvcuda.dll"}
LEAST = {"torch": (2, 9), "triton": (3, 5)}  # versions
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
    driver = ctypes.CDLL(DRIVERS.get(sys.platform, "libcuda.so.1"))
    context = ctypes.c_void_p()
    driver.cuInit(0)
    driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)


def capability() -> int:
    """The compute capability of the first device: 90 for 9.0."""
    driver = ctypes.CDLL(DRIVERS.get(sys.platform, "libcuda.so.1"))
    parts = []
    driver.cuInit(0)
    for attribute in CAPABILITY:
        value = ctypes.c_int(0)
        driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, 0)
        parts.append(value.value)
    return 10 * parts[0] + parts[1]


def total_bytes() -> int:
    """The memory of the first device; 0 where there is none."""
    if not n_gpus():
        return 0
    driver = ctypes.CDLL(DRIVERS.get(sys.platform, "libcuda.so.1"))
    total = ctypes.c_size_t(0)
    device = ctypes.c_int(0)
    driver.cuDeviceGet(ctypes.byref(device), 0)
    driver.cuDeviceTotalMem_v2(ctypes.byref(total), device)
    return total.value


def missing_packages() -> list[str]:
    return [name for name in ("torch", "triton") if importlib.util.find_spec(name) is None]


def old_packages() -> list[str]:
    """Packages that are too old, with their versions; those that do not say theirs may be as new as any."""
    from importlib import metadata

    found = []
    for name, least in LEAST.items():
        with suppress(metadata.PackageNotFoundError, ValueError):
            version = metadata.version(name)
            if tuple(map(int, version.split(".")[:2])) < least:
                found.append(f"{name} {version} is older than {'.'.join(map(str, least))}")
    return found


def interprets() -> bool:
    """Whether Triton runs its kernels on the CPU: slow, for testing them without a GPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def problem() -> str:
    """Why the cuda backend cannot run here and what to do; empty where it can."""
    if missing := missing_packages():
        return f"{' and '.join(missing)} not installed; run {install_extra('cuda')}"
    if not interprets() and not n_gpus():
        return "the NVIDIA driver is missing or finds no GPU; check `nvidia-smi`, or use the cpu backend"
    old = old_packages()
    return f"{' and '.join(old)}; run {install_extra('cuda')}" if old else ""


def build_problem() -> str:
    """Why this build of torch cannot use the GPU; empty where it can. It takes an import of torch to know."""
    import torch

    if interprets() or torch.cuda.is_available():
        return ""
    build = "a build of torch for the driver's CUDA version"
    return f"torch {torch.__version__} cannot use the GPU that is here; install {build}, or use the cpu backend"


def describe() -> dict[str, str]:
    """Facts about the GPU for readers of `tahr devices`."""
    import torch
    import triton

    libraries = f"torch {torch.__version__}, Triton {triton.__version__}"
    if interprets():
        return {"model": "none: Triton interprets its kernels on the CPU", "software": libraries}
    if problem := build_problem():
        return {"problem": problem}
    card = torch.cuda.get_device_properties(0)
    return {"model": card.name, "memory": f"{card.total_memory / 1e9:.0f} GB", "software": libraries}
