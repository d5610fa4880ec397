"""Kernels that are compiled before they are launched."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import backends_here
from tahr.backends.cuda.presence import capability, interprets

pytestmark = pytest.mark.skipif(
    "cuda" not in backends_here.NAMES or interprets(), reason="no GPU; the interpreter compiles nothing"
)


@pytest.fixture
def compilations() -> Iterator[dict[str, bool]]:
    """Whether each kernel that is asked for came from Triton's cache."""
    from triton import knobs

    found: dict[str, bool] = {}

    def note(src: Any, cache_hit: bool, **_: Any) -> None:
        found[src.name] = cache_hit

    knobs.compilation.listener = note
    yield found
    knobs.compilation.listener = None


def test_kernels_are_compiled_and_not_launched() -> None:
    import torch

    from some_kernels import ones_kernel
    from tahr.backends.cuda.compiling import compiling

    out, others = torch.zeros(4, device="cuda"), torch.zeros(4, device="cuda")
    with compiling() as mode:
        ones_kernel[(4,)](out)
        ones_kernel[(4,)](out)
        with ThreadPoolExecutor(1) as pool:  # another thread launches as always
            pool.submit(lambda: ones_kernel[(4,)](others)).result()
    assert mode.n_kernels == 1 and not out.any() and others.all()
    ones_kernel[(4,)](out)
    assert out.all()
    with compiling() as mode:
        ones_kernel[(4,)](out)
    assert mode.n_kernels == 0


def test_a_kernel_that_does_not_compile_fails_where_it_is_launched() -> None:
    import torch
    from triton import CompilationError

    from some_kernels import broken_kernel
    from tahr.backends.cuda.compiling import compiling

    out = torch.zeros(4, device="cuda")
    with compiling():
        broken_kernel[(1,)](out)
    with pytest.raises(CompilationError):
        broken_kernel[(1,)](out)


def test_an_interruption_leaves_launches_as_they_were() -> None:
    import torch

    from some_kernels import ones_kernel
    from tahr.backends.cuda.compiling import compiling

    out = torch.zeros(4, dtype=torch.float16, device="cuda")
    with pytest.raises(KeyboardInterrupt), compiling():
        ones_kernel[(4,)](out)
        raise KeyboardInterrupt
    ones_kernel[(4,)](out)
    assert out.all()
    with compiling() as mode:
        ones_kernel[(4,)](torch.zeros(4, dtype=torch.bfloat16, device="cuda"))
    assert mode.n_kernels == 1


def test_sampling_finds_the_kernels_that_were_compiled_ahead(
    compilations: dict[str, bool], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The keys of Triton's cache are those of a launch, though no tensor was there yet."""
    import torch

    from tahr.backends.cuda.ahead import Ahead
    from tahr.backends.cuda.sampling import CudaSampler

    assert capability() == 10 * torch.cuda.get_device_capability()[0] + torch.cuda.get_device_capability()[1]
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    ahead = Ahead(777_777, 777_792)  # no other test compiles kernels for so many
    ahead.wait()
    picks = torch.zeros(4, dtype=torch.int32, device="cuda")
    sampler = CudaSampler(picks.device, picks, picks)
    sampler.load_kernels(ahead)
    sampler.wait_for_kernels()
    assert compilations == {"scan_kernel": True, "choose_kernel": True}
