"""Where ops run: the table of backends, and what each finds on this machine."""

import os
from collections.abc import Callable
from typing import NamedTuple

from tahr.backends.api import Backend
from tahr.errors import ConfigError


class LogitWidth(NamedTuple):
    """Rows that are sampled from: `width` logits, the first `n_vocab` of them tokens."""

    n_vocab: int
    width: int


def open_cpu(n_threads: int | None, deterministic: bool, logits: LogitWidth | None) -> Backend:
    try:
        from tahr.backends.cpu.backend import CpuBackend
    except ImportError as error:
        raise ConfigError(
            f"The cpu backend's native code is not built ({error}). Run `make setup`, or install with `pip install .`."
        ) from error
    return CpuBackend(n_threads)


def open_reference(n_threads: int | None, deterministic: bool, logits: LogitWidth | None) -> Backend:
    from tahr.backends.reference.backend import ReferenceBackend

    if n_threads is not None:
        raise ConfigError("The reference backend has no threads to set; leave them out, or use the cpu backend.")
    return ReferenceBackend()


def open_cuda(n_threads: int | None, deterministic: bool, logits: LogitWidth | None) -> Backend:
    from tahr.backends.cuda.layouts import presence as cuda_presence

    if n_threads is not None:
        raise ConfigError("The cuda backend has no threads to set; leave them out, or use the cpu backend.")
    if problem := cuda_presence.problem():
        raise ConfigError(f"The cuda backend cannot run here: {problem}.")
    from tahr.backends.cuda.ahead import Ahead

    ahead = Ahead(*logits) if logits and not cuda_presence.interprets() else None
    from tahr.backends.cuda.backend import open_device  # imports torch, which takes seconds

    return open_device(deterministic, ahead)


def open_vulkan(n_threads: int | None, deterministic: bool, logits: LogitWidth | None, device: str = "") -> Backend:
    if n_threads is not None:
        raise ConfigError("The vulkan backend has no threads to set; leave them out, or use the cpu backend.")
    try:
        from tahr.backends.vulkan.backend import VulkanBackend
    except ImportError as error:
        raise ConfigError(
            f"The vulkan backend's native code is not built ({error}). Run `make setup`, or install with "
            "`pip install .`."
        ) from error
    return VulkanBackend(device, deterministic=deterministic)


# Name -> how to open the backend, given a number of threads, whether results must be deterministic, and what will be
# sampled from.
BACKENDS: dict[str, Callable[..., Backend]] = {
    "cpu": open_cpu,
    "cuda": open_cuda,
    "reference": open_reference,
    "vulkan": open_vulkan,
}

WITH_DEVICES = ("vulkan",)  # `vulkan:1` asks for a device by its number, `vulkan:radeon` by a part of its name


def cuda_memory(device: str) -> int:
    from tahr.backends.cuda.layouts import presence as cuda_presence

    return cuda_presence.total_bytes()


def vulkan_memory(device: str) -> int:
    from tahr.backends.vulkan import presence as vulkan_presence

    return vulkan_presence.own_bytes(device)


# Of backends with memory of their own, in bytes.
MEMORIES: dict[str, Callable[[str], int]] = {"cuda": cuda_memory, "vulkan": vulkan_memory}


# Variables that change how a backend runs: what they do, and of which backends.
SWITCHES = {
    "TAHR_PROFILE": ("times ops", ("cpu", "cuda")),
    "TAHR_NO_FLASH": ("selects the plain attention", ("cpu", "reference")),
}


def automatic(n_threads: int | None) -> str:
    """The GPU where there is one that can be used, unless threads are asked for, which only the CPU has."""
    from tahr.backends.cuda.layouts import presence as cuda_presence

    return "cuda" if n_threads is None and cuda_presence.n_gpus() and not cuda_presence.problem() else "cpu"


def open_backend(
    name: str = "auto", n_threads: int | None = None, deterministic: bool = False, logits: LogitWidth | None = None
) -> Backend:
    """The backend of that name; behind a colon the device that is meant, where a backend has several.

    `n_threads` None lets it choose, `deterministic` asks for `Backend.deterministic`. With `logits` a backend may begin
    to compile what samples from rows of them.
    """
    chosen, _, device = (automatic(n_threads) if name == "auto" else name).partition(":")
    if chosen not in BACKENDS:
        raise ConfigError(f"There is no backend {name!r} here. Use auto or one of: {', '.join(BACKENDS)}.")
    for switch, (what, backends) in SWITCHES.items():
        if os.environ.get(switch) == "1" and chosen not in backends:
            known = " and ".join(backends)
            raise ConfigError(f"{switch}=1 {what} of {known}, not of {chosen}: unset it, or use {backends[0]}.")
    if device and chosen not in WITH_DEVICES:
        raise ConfigError(f"The {chosen} backend has no devices to choose from: leave out {device!r}.")
    return BACKENDS[chosen](n_threads, deterministic, logits, *[device] * (chosen in WITH_DEVICES))


def own_memory(name: str = "auto", n_threads: int | None = None) -> int:
    """The bytes of the memory that a backend has for itself; 0 where it works in the host's, or is not here."""
    chosen, _, device = (automatic(n_threads) if name == "auto" else name).partition(":")
    return MEMORIES[chosen](device) if chosen in MEMORIES else 0


def describe_cpu() -> dict[str, str]:
    from tahr.backends.cpu.processor.info import read_cpu_info

    info = read_cpu_info()
    facts = {"model": info.model, "cores": f"{info.n_cores} ({info.n_threads} hardware threads)"}
    try:
        from tahr.backends.cpu.processor.isa import choose_threads, describe_isa
    except ImportError as error:
        return facts | {"problem": f"the native code is not built ({error}); run `make setup`"}
    return facts | {"threads": f"{choose_threads(None)}, one per core"} | describe_isa()


def describe_cuda() -> dict[str, str]:
    from tahr.backends.cuda.layouts import presence as cuda_presence

    if problem := cuda_presence.problem():
        return {"problem": problem}
    return cuda_presence.describe()


def describe_vulkan() -> dict[str, str]:
    try:
        from tahr.backends.vulkan import presence as vulkan_presence
    except ImportError as error:
        return {"problem": f"the native code is not built ({error}); run `make setup`"}
    return vulkan_presence.describe()


DESCRIPTIONS: dict[str, Callable[[], dict[str, str]]] = {
    "cpu": describe_cpu,
    "cuda": describe_cuda,
    "reference": lambda: {"use": "NumPy, slow on purpose: it says what the other backends must compute"},
    "vulkan": describe_vulkan,
}


def describe_devices() -> list[str]:
    """The lines of `tahr devices`: every backend and what it found."""
    lines = []
    default = automatic(None)
    for name, describe in DESCRIPTIONS.items():
        lines.append(f"{name} (default)" if name == default else name)
        lines += [f"  {key:<9} {value}" for key, value in describe().items()]
    return lines
