"""What other cards, threads and moments ask of the CUDA backend, checked without any of them."""

import ast
import importlib.metadata
import threading
import time
import tomllib
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import backends_here
from random_weights import random_tensor
from tahr.backends import automatic, open_backend
from tahr.backends.api import Linear
from tahr.backends.cuda import presence
from tahr.errors import ConfigError, LoadError

needs_torch = pytest.mark.skipif(bool(presence.missing_packages()), reason="torch or Triton is missing")
needs_cuda = pytest.mark.skipif("cuda" not in backends_here.NAMES, reason="no GPU, or torch and Triton are missing")

ADA_BYTES, TURING_BYTES = 99 << 10, 64 << 10  # of shared memory
KERNELS = Path(presence.__file__).parent / "kernels"


class Capture:
    """A graph that says whether its stream still captures."""

    capturing = False

    def capture_begin(self, **_: Any) -> None:
        assert not Capture.capturing, "the stream captures already"
        Capture.capturing = True

    def capture_end(self) -> None:
        Capture.capturing = False


@needs_torch
@pytest.mark.parametrize("error", [ArithmeticError, KeyboardInterrupt])
def test_an_interrupt_ends_a_capture(error: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from tahr.backends.cuda.steps import GraphMemory

    stream = SimpleNamespace(wait_stream=lambda other: None)
    for name, replacement in {
        "graph_pool_handle": object, "Stream": lambda: stream, "current_stream": lambda: stream, "CUDAGraph": Capture,
        "stream": nullcontext, "mem_get_info": lambda: (1 << 40, 1 << 40),
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, replacement)

    def broken() -> Any:
        raise error

    memory = GraphMemory()
    with pytest.raises(error):
        memory.capture(broken)
    assert not Capture.capturing
    assert memory.capture(lambda: "a result")[1] == "a result"  # type: ignore[arg-type, return-value, comparison-overlap]
