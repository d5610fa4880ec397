"""Compiles the kernels of a step side by side, before the step launches them one after the other."""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from triton import AsyncCompileMode
from triton.runtime._async_compile import active_mode
from triton.runtime.jit import JITFunction

MAX_THREADS = 16
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
    """New memory holds zeros. What kernels would have written there may be used as indices, and zero is always one."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result.zero_() if func in EMPTY else result


class LoadingMode(AsyncCompileMode):  # type: ignore[misc]
    """Loads each kernel on the thread that compiled it: the first launch would compile its launcher, and wait.

    A kernel that does not compile is left to its launch, which fails with the reason.
    """

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        super().__init__(pool, ignore_errors=True)
        self.n_kernels = 0  # that were not compiled before

    def submit(self, key: Any, compile_kernel: Callable[[], Any], *callbacks: Any) -> Any:
        self.n_kernels += key not in self.future_kernels
        return super().submit(key, lambda: loaded(compile_kernel()), *callbacks)

    def __exit__(self, *reason: Any) -> None:
        if reason[0]:
            for future in self.raw_futures:
                future.cancel()
        try:
            super().__exit__(*reason)
        finally:
            active_mode.set(None)  # even if the waiting is interrupted


def loaded(kernel: Any) -> Any:
    """A compiled kernel, ready to be launched."""
    kernel.run  # noqa: B018
    return kernel


@contextmanager
def compiling() -> Iterator[LoadingMode]:
    """Within, the kernels that this thread would launch are compiled on several threads; the end waits for them.

    Memory that they would have written holds zeros, or what it held before. An exception waits only for those that
    are being compiled.
    """
    n_threads, device = min(MAX_THREADS, os.cpu_count() or 1), torch.cuda.current_device()
    pool = ThreadPoolExecutor(n_threads, "tahr-compile", torch.cuda.set_device, (device,))
    INSTALLATION.change(1)
    COMPILE_ONLY.active = True
    try:
        with ZeroMemory(), LoadingMode(pool) as mode:
            yield mode
    finally:
        COMPILE_ONLY.active = False
        INSTALLATION.change(-1)
        pool.shutdown()
