"""Kernels that are compiled before they are launched."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import backends_here
from tahr.backends.cuda.layouts.presence import capability, interprets

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
    with compiling() as walk:
        ones_kernel[(4,)](out)
        ones_kernel[(4,)](out)
        with ThreadPoolExecutor(1) as pool:  # another thread launches as always
            pool.submit(lambda: ones_kernel[(4,)](others)).result()
    assert len(walk.kernels) == 1 and not out.any() and others.all()
    ones_kernel[(4,)](out)
    assert out.all()
    with compiling() as walk:
        ones_kernel[(4,)](out)
    assert not walk.kernels


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
    with compiling() as walk:
        ones_kernel[(4,)](torch.zeros(4, dtype=torch.bfloat16, device="cuda"))
    assert len(walk.kernels) == 1


def test_a_walk_does_not_wait() -> None:
    """Kernels become Triton's when someone asks for them; whoever launches one that is on its way waits for it."""
    import torch

    from some_kernels import ones_kernel
    from tahr.backends.cuda.compiling import Compiler

    compiler, out = Compiler(), torch.zeros(4, dtype=torch.int64, device="cuda")
    with compiler.walking() as walk:
        ones_kernel[(4,)](out)
    with compiler.walking() as again:
        ones_kernel[(4,)](out)
    assert len(walk.kernels) == 1 and again.kernels == walk.kernels and not out.any()
    compiler.wait(walk.kernels)
    assert compiler.settle(walk.kernels) and not compiler.is_full
    with compiler.walking() as walk:
        ones_kernel[(4,)](out)
    assert not walk.kernels and not out.any()
    ones_kernel[(4,)](out)
    assert out.all()


def test_products_are_left_out_where_they_are_large() -> None:
    import torch

    from tahr.backends.cuda.compiling import Compiler

    x, w = (torch.ones(n, 16, dtype=torch.bfloat16, device="cuda") for n in (3, 5))
    with Compiler().walking(multiplies=False):
        products = x @ w.T, torch.mm(x, w.T, out_dtype=torch.float32)
    for product, dtype in zip(products, (torch.bfloat16, torch.float32), strict=True):
        assert product.shape == (3, 5) and product.dtype == dtype and not product.any()
    with Compiler().walking():
        assert (x @ w.T == 16).all()


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
    sampler = CudaSampler(torch.zeros(4, dtype=torch.int32, device="cuda"))
    sampler.load_kernels(ahead)
    sampler.wait_for_kernels()
    assert compilations == {"scan_kernel": True, "choose_kernel": True}
