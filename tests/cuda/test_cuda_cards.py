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
from tahr.backends.api import AttentionSpec, Linear
from tahr.backends.cuda.layouts import presence
from tahr.errors import ConfigError, LoadError

needs_torch = pytest.mark.skipif(bool(presence.missing_packages()), reason="torch or Triton is missing")
needs_cuda = pytest.mark.skipif("cuda" not in backends_here.NAMES, reason="no GPU, or torch and Triton are missing")

ADA_BYTES, TURING_BYTES = 99 << 10, 64 << 10  # of shared memory
KERNELS = Path(presence.__file__).parents[1] / "kernels"


class Launches:
    """Takes the place of a kernel, and keeps what it is launched with."""

    def __init__(self) -> None:
        self.arguments: tuple[Any, ...] = ()
        self.options: dict[str, Any] = {}

    def __getitem__(self, grid: Any) -> Any:
        return self._launch

    def _launch(self, *arguments: Any, **options: Any) -> None:
        self.arguments, self.options = arguments, options


@needs_cuda
@pytest.mark.parametrize("n_bytes", [ADA_BYTES, TURING_BYTES])
@pytest.mark.parametrize("n_out", [256, 16384])
@pytest.mark.parametrize("rows", ["float32", "bfloat16"])
def test_tiles_of_few_rows_fit_smaller_cards(
    rows: str, n_out: int, n_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from tahr.backends.cuda.kernels import fp8_few, linear
    from tahr.backends.cuda.kernels.common import card
    from tahr.backends.cuda.layouts.fp8 import Fp8Matrix

    made = Launches()
    monkeypatch.setattr(card, "shared_bytes", lambda device: n_bytes)
    monkeypatch.setattr(linear, "linear_kernel", made)
    monkeypatch.setattr(fp8_few, "fp8_few_kernel", made)
    x, bf16 = torch.zeros((8, 512), dtype=getattr(torch, rows)), torch.bfloat16
    linear.tiled_linear(x, torch.zeros((n_out, 512), dtype=bf16), None, bf16)
    tile = linear.tile_for(8, n_out, bf16)
    used = (made.options["num_stages"] - 1) * tile.k * (tile.m * x.element_size() + 2 * tile.n)
    assert 0 < used <= n_bytes
    eighths = Fp8Matrix(torch.zeros((n_out, 512), dtype=torch.float8_e4m3fn), torch.ones((n_out, 1)))
    fp8_few.few_linear(x, eighths, None, bf16, "silu")
    tile = fp8_few.SMALL
    used = (made.options["num_stages"] - 1) * tile.k * (tile.m * x.element_size() + 2 * tile.n)
    assert 0 < used <= n_bytes


@needs_cuda
def test_wide_numbers_fit_smaller_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of f32 models: the first factors of adapters, and compressed keys."""
    import torch

    from tahr.backends.cuda.kernels import attention, latent, lora

    made = Launches()
    monkeypatch.setattr(latent, "latent_kernel", made)
    for module in (lora, latent):
        monkeypatch.setattr(module, "shared_bytes", lambda device: ADA_BYTES)
    cpu, numbers = torch.device("cpu"), torch.zeros(4, dtype=torch.int32)
    assert lora.splits(4096, torch.float32, cpu) == (512, 8)
    assert lora.splits(4096, torch.bfloat16, cpu) == (1024, 4)
    inputs = SimpleNamespace(query_start=numbers, positions=numbers, counts=numbers)
    for dtype, n_keys in ((torch.float32, 16), (torch.bfloat16, 32)):
        q, store = torch.zeros((1, 2 * 576), dtype=dtype), torch.zeros((1, 1, 1, 16, 576), dtype=dtype)
        call = attention.AttentionCall(q, store, numbers[None], inputs, AttentionSpec(1.0), dtype, numbers)
        latent.attend_latent(call, 512)
        assert made.arguments[-3:] == (n_keys, 64, 512)


@needs_torch
def test_models_that_load_at_once_share_no_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from tahr.backends.cuda import uploads

    class SlowChunk:
        """Memory that is filled and sent slowly."""

        memory = np.zeros(8, np.uint8)

        def send(self, data: Any, to: Any, pool: Any) -> None:
            self.memory[: len(data)] = data
            time.sleep(0.001)
            to.copy_(torch.from_numpy(self.memory[: len(data)]))

    monkeypatch.setattr(uploads, "PinnedChunk", SlowChunk)
    monkeypatch.setattr(uploads, "CHUNK", 8)
    shared, found = uploads.Uploads(), [torch.zeros(200, dtype=torch.uint8) for _ in range(4)]
    threads = [
        threading.Thread(target=shared.send, args=(np.full(200, value + 1, np.uint8), there))
        for value, there in enumerate(found)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [there.unique().tolist() for there in found] == [[1], [2], [3], [4]]


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


def returns_unwaited(statements: list[ast.stmt]) -> list[str]:
    """Under which conditions a kernel ends before it has waited; the last condition of several in each other."""
    found = []
    for statement in statements:
        if "wait_for_previous()" in ast.unparse(statement) and not isinstance(statement, ast.If):
            return found
        if isinstance(statement, ast.If):
            if isinstance(statement.body[-1], ast.Return):
                waits = "wait_for_previous()" in ast.unparse(statement)
                found += [] if waits else [ast.unparse(statement.test)]
            else:
                found += returns_unwaited(statement.body)
    return found


def test_every_kernel_that_starts_early_waits_in_one_program() -> None:
    """The kernel after it waits for it alone: without that, it might begin before an earlier one has finished."""
    kernels = [
        function
        for path in KERNELS.rglob("*.py")
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef) and ast.unparse(function).count("let_next_start()\n")
    ]
    assert len(kernels) > 20
    early = {kernel.name: conditions for kernel in kernels if (conditions := returns_unwaited(kernel.body))}
    first_goes_on = ["split >= n_live"]  # the first split is always alive
    assert early == {"decode_kernel": first_goes_on, "rope_decode_kernel": first_goes_on}


def test_older_packages_are_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"torch": "2.6.0+cu124", "triton": "3.2.0"}
    monkeypatch.setattr(importlib.metadata, "version", versions.__getitem__)
    monkeypatch.setattr(presence, "missing_packages", list)
    monkeypatch.setattr(presence, "n_gpus", lambda: 1)
    with pytest.raises(ConfigError, match=r"torch 2\.6\.0\+cu124 is older than 2\.9 and triton 3\.2\.0 is older"):
        open_backend("cuda")
    assert automatic(None) == "cpu"
    versions.update(torch="2.10.0", triton="3.11.0+git1")
    assert not presence.old_packages()


def test_the_least_versions_are_those_that_are_installed() -> None:
    extras = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert extras["cuda"] == [f"{name}>={'.'.join(map(str, least))}" for name, least in presence.LEAST.items()]


@needs_torch
def test_a_torch_without_cuda_is_a_problem_of_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(presence, "n_gpus", lambda: 1)
    monkeypatch.setattr(presence, "interprets", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "cannot use the GPU that is here" in presence.describe()["problem"]


@needs_cuda
def test_a_model_beyond_the_card_is_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    be = backends_here.backend("cuda")
    linear = Linear(be.weight(random_tensor("F32", (8, 16), np.random.default_rng(3))))
    monkeypatch.setattr("tahr.backends.cuda.memory.take", full)
    monkeypatch.setattr("tahr.backends.cuda.memory.join", full)
    with pytest.raises(LoadError, match="more memory than the GPU has free"):
        be.weight(random_tensor("F32", (8, 16), np.random.default_rng(3)))
    with pytest.raises(LoadError, match="more memory than the GPU has free"):
        be.join([linear])
