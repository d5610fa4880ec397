"""Compiles the kernels of a step side by side, before the step launches them one after the other."""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
from triton import AsyncCompileMode
from triton.runtime.jit import JITFunction

MAX_THREADS = 16


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


class LoadingMode(AsyncCompileMode):  # type: ignore[misc]
    """Loads each kernel on the thread that compiled it: the first launch would compile its launcher, and wait."""

    n_kernels = 0  # that were not compiled before

    def submit(self, key: Any, compile_kernel: Callable[[], Any], *callbacks: Any) -> Any:
        self.n_kernels += 1
        return super().submit(key, lambda: loaded(compile_kernel()), *callbacks)


def loaded(kernel: Any) -> Any:
    """A compiled kernel, ready to be launched."""
    kernel.run  # noqa: B018
    return kernel


@contextmanager
def compiling() -> Iterator[LoadingMode]:
    """Within, the kernels that this thread would launch are compiled on several threads; the end waits for them.

    What they would have computed is left as it is. So indices must not come from them, or not be used on the host.
    """
    n_threads, device = min(MAX_THREADS, os.cpu_count() or 1), torch.cuda.current_device()
    INSTALLATION.change(1)
    COMPILE_ONLY.active = True
    try:
        with ThreadPoolExecutor(n_threads, "tahr-compile", torch.cuda.set_device, (device,)) as pool:
            mode = LoadingMode(pool)
            with mode:
                yield mode
    finally:
        COMPILE_ONLY.active = False
        INSTALLATION.change(-1)
