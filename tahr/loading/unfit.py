"""Whether the bf16 weights of a model are what this machine should run, known before anything of it is fetched."""

from functools import partial

from tahr.backends import own_memory
from tahr.hub import Unfit
from tahr.hub.progress import human_bytes

WEIGHTS_SHARE = 0.8  # share of a device's memory: pages and scratch need the rest


def unfit_for(backend: str = "auto", n_threads: int | None = None) -> Unfit:
    """The judgement of a backend's memory."""
    return partial(reason_against, backend, n_threads)


def reason_against(backend: str, n_threads: int | None, n_bytes: int) -> str:
    """Why the weights of so many bytes are not run by the backend; empty where they are."""
    memory_bytes = own_memory(backend, n_threads)
    if not memory_bytes:
        return "no GPU is here to run its bf16 weights"
    if n_bytes <= WEIGHTS_SHARE * memory_bytes:
        return ""
    return f"its bf16 weights of {human_bytes(n_bytes)} do not fit a GPU of {human_bytes(memory_bytes)}"
