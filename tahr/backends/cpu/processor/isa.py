"""Which kernels and how many threads the CPU backend uses, and why."""

import os

from tahr import _native as native
from tahr.backends.cpu.processor.info import read_cpu_info
from tahr.errors import ConfigError

MAX_THREADS = 1024
ISA_VARIABLE = "TAHR_CPU_ISA"
PLAIN_VARIABLE = "TAHR_NO_FLASH"


def choose_isa() -> str:
    """The fastest instruction set, or the one the environment asks for."""
    requested = os.environ.get(ISA_VARIABLE)
    available = native.isas()
    if requested and requested not in available:
        raise ConfigError(f"{ISA_VARIABLE} is {requested!r}, but this processor offers only: {', '.join(available)}.")
    return requested or available[0]


def wants_plain_attention() -> bool:
    """Whether attention is computed as it is defined, slowly, to find out if a fault is in the fast kernel."""
    return os.environ.get(PLAIN_VARIABLE) == "1"


def describe_isa() -> dict[str, str]:
    """The instruction sets found and chosen, for people."""
    forced = os.environ.get(ISA_VARIABLE)
    reason = f"asked for by {ISA_VARIABLE}" if forced else f"the fastest of: {', '.join(native.isas())}"
    return {"features": " ".join(native.cpu_features()) or "none known", "kernels": f"{choose_isa()} ({reason})"}


def choose_threads(requested: int | None) -> int:
    """One thread per physical core unless told otherwise."""
    if requested is not None and not 1 <= requested <= MAX_THREADS:
        raise ConfigError(f"{requested} threads were asked for; give a number from 1 to {MAX_THREADS}.")
    return requested or read_cpu_info().n_cores
