"""Compiles the kernels of steps side by side, before these launch them one after the other."""

import os
import threading
from collections.abc import Callable, Iterator
from collections.abc import Sequence as ListOf
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from triton import AsyncCompileMode
from triton.runtime._async_compile import FutureKernel, active_mode
from triton.runtime.jit import JITFunction

N_THREADS = min(16, os.cpu_count() or 1)
PRODUCTS = (torch.Tensor.matmul, torch.mm)
EMPTY = (torch.empty, torch.empty_like, torch.Tensor.new_empty)


class CompileOnly(threading.local):
    """Whether this thread's kernels are compiled and not launched; other threads launch theirs as always."""

    active = False


COMPILE_ONLY = CompileOnly()
LAUNCH = JITFunction.run


def compile_or_launch(kernel: Any, *args: Any, warmup: bool, **options: Any) -> Any:
    """Takes the place of `JITFunction.run` while a thread compiles."""
    return LAUNCH(kernel, *args, warmup=warmup or COMPILE_ONLY.active, **options)


class Installation:
    """Puts `compile_or_launch` in its place while at least one thread compiles: a launch then costs a call more."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._n_users = 0

    def change(self, by: int) -> None:
        with self._lock:
            self._n_users += by
            JITFunction.run = compile_or_launch if self._n_users else LAUNCH


INSTALLATION = Installation()


class ZeroMemory(TorchFunctionMode):  # type: ignore[misc]
    """New memory holds zeros. What kernels would have written there may be used as indices, and zero is always one.

    Large products of the library need not be computed either.
    """

    def __init__(self, multiplies: bool = True) -> None:
        super().__init__()
        self._multiplies = multiplies

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in PRODUCTS and not self._multiplies and args[0].ndim == args[1].ndim == 2:
            dtype = (kwargs or {}).get("out_dtype", args[0].dtype)
            return torch.zeros((len(args[0]), args[1].shape[1]), dtype=dtype, device=args[0].device)
        result = func(*args, **(kwargs or {}))
        return result.zero_() if func in EMPTY else result


class Walk(AsyncCompileMode):  # type: ignore[misc]
    """Within, the kernels that a thread would launch begin to be compiled, and are loaded on the threads that compile
    them: the first launch would compile a launcher, and wait.
    """

    def __init__(self, pool: ThreadPoolExecutor, begun: dict[Any, FutureKernel]) -> None:
        super().__init__(pool)
        self.future_kernels = begun
        self.kernels: list[FutureKernel] = []  # kernels that are not compiled yet, each once

    def submit(self, key: Any, compile_kernel: Callable[[], Any], *callbacks: Any) -> Any:
        kernel = super().submit(key, lambda: loaded(compile_kernel()), *callbacks)
        if kernel not in self.kernels:
            self.kernels.append(kernel)
        return kernel

    def __exit__(self, *reason: Any) -> None:
        active_mode.set(None)


def loaded(kernel: Any) -> Any:
    """A compiled kernel, ready to be launched."""
    kernel.run  # noqa: B018
    return kernel


class Compiler:
    """Compiles kernels on several threads, which live as long as there is something to compile.

    A kernel that does not compile is left to its launch, which fails with the reason.
    """

    def __init__(self) -> None:
        self._begun: dict[Any, FutureKernel] = {}  # kernels that Triton has not got yet, by its keys
        self._pool: ThreadPoolExecutor | None = None

    @property
    def is_full(self) -> bool:
        """Whether all threads have something to do."""
        return sum(not kernel.future.done() for kernel in self._begun.values()) >= N_THREADS

    @contextmanager
    def walking(self, multiplies: bool = True) -> Iterator[Walk]:
        """Within, the kernels that this thread would launch begin to be compiled instead; an exception takes that back.

        Memory that they would have written holds zeros, or what it held before.
        """
        if self._pool is None:
            device = torch.cuda.current_device()
            self._pool = ThreadPoolExecutor(N_THREADS, "tahr-compile", torch.cuda.set_device, (device,))
        INSTALLATION.change(1)
        COMPILE_ONLY.active = True
        try:
            with ZeroMemory(multiplies), Walk(self._pool, self._begun) as walk:
                try:
                    yield walk
                except BaseException:
                    self.give_up(walk.kernels)
                    raise
        finally:
            COMPILE_ONLY.active = False
            INSTALLATION.change(-1)

    def settle(self, kernels: ListOf[FutureKernel]) -> bool:
        """Give Triton what is compiled; whether all of these are."""
        for key, kernel in list(self._begun.items()):
            if kernel.future.done():
                kernel.result(ignore_errors=True)
                del self._begun[key]
        if self._pool and not self._begun:
            self._pool.shutdown(wait=False)
            self._pool = None
        return all(kernel.future.done() for kernel in kernels)

    def wait(self, kernels: ListOf[FutureKernel]) -> None:
        """Return when these are compiled. An interrupt waits only for those that are being compiled."""
        try:
            wait([kernel.future for kernel in kernels])
        except BaseException:
            self.give_up(kernels)
            raise
        self.settle(kernels)

    def give_up(self, kernels: ListOf[FutureKernel]) -> None:
        """Compile those that have not been begun when they are launched."""
        for kernel in kernels:
            kernel.future.cancel()
        wait([kernel.future for kernel in kernels])
        self.settle(kernels)


@contextmanager
def compiling() -> Iterator[Walk]:
    """Within, the kernels that this thread would launch are compiled on several threads; the end waits for them."""
    compiler = Compiler()
    with compiler.walking() as walk:
        yield walk
    compiler.wait(walk.kernels)
