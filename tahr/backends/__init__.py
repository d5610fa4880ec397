"""Where ops run: the table of backends, and what each finds on this machine."""

from collections.abc import Callable
from dataclasses import dataclass

from tahr.backends.api import Backend
from tahr.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Device:
    """One line of `tahr devices` and the facts below it; where it is not `usable` a fact says why."""

    name: str
    usable: bool
    facts: dict[str, str]


def open_cpu(n_threads: int | None) -> Backend:
    try:
        from tahr.backends.cpu import CpuBackend
    except ImportError as error:
        raise ConfigError(
            f"The cpu backend's native code is not built ({error}). Install the package with `pip install .` or run `make setup`."
        ) from error
    return CpuBackend(n_threads)


def open_reference(n_threads: int | None) -> Backend:
    from tahr.backends.reference import ReferenceBackend

    if n_threads is not None:
        raise ConfigError("The reference backend has no threads to set; leave the number of threads out or use the cpu backend.")
    return ReferenceBackend()


# The first is what "auto" takes.
BACKENDS: dict[str, Callable[[int | None], Backend]] = {"cpu": open_cpu, "reference": open_reference}


def open_backend(name: str = "auto", n_threads: int | None = None) -> Backend:
    """The backend of that name; `n_threads` None lets it choose."""
    chosen = next(iter(BACKENDS)) if name == "auto" else name
    if chosen not in BACKENDS:
        raise ConfigError(f"There is no backend {name!r} here. Use auto or one of: {', '.join(BACKENDS)}.")
    return BACKENDS[chosen](n_threads)


def describe_cpu() -> Device:
    from tahr.backends.cpu_info import read_cpu_info

    info = read_cpu_info()
    facts = {"model": info.model, "cores": f"{info.n_cores} ({info.n_threads} hardware threads)"}
    try:
        from tahr.backends.cpu import choose_threads, describe_isa
    except ImportError as error:
        return Device("cpu", False, facts | {"problem": f"the native code is not built ({error})"})
    return Device("cpu", True, facts | {"threads": f"{choose_threads(None)}, one per core"} | describe_isa())


def describe_devices() -> list[Device]:
    """What `tahr devices` prints, the default first."""
    slow = {"model": "NumPy", "use": "slow on purpose: it shows what the other backends must compute"}
    return [describe_cpu(), Device("reference", True, slow)]
