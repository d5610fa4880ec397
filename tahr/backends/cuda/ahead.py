"""Slow parts of starting on a GPU that need no torch, done while torch is imported.

Kernels are compiled by processes of their own into Triton's cache: threads would share the interpreter with the import.
Nothing here must succeed: the device's context is made by torch, and kernels are compiled at their launch, where this
has not been done.

usage: python -m tahr.backends.cuda.ahead KERNEL N_VOCAB WIDTH ARCH
"""

import atexit
import hashlib
import os
import subprocess
import sys
import time
from contextlib import suppress
from importlib import metadata
from importlib.abc import MetaPathFinder
from pathlib import Path
from threading import Thread, main_thread
from typing import Any

from tahr.backends.cuda.layouts.presence import capability, make_context

N_KERNELS = 3  # sampling kernels: see `launches`
SOURCES = [Path(__file__).parent / "kernels" / name for name in ("sample.py", "search.py")]
MAX_SECONDS = 30.0
POLL_SECONDS = 0.01


class Ahead:
    """Prepares the device, and the kernels that sample from a vocabulary, for whoever waits for them."""

    def __init__(self, n_vocab: int, width: int) -> None:
        """`width` is that of a row of logits, the first `n_vocab` of which are tokens."""
        self.n_vocab = n_vocab
        self.width = width
        Thread(target=make_context, name="tahr-cuda-context").start()
        self._compilers: list[subprocess.Popen[bytes]] = []
        with suppress(Exception):  # a Python that cannot be started again, a Triton that is not a package
            wanted = [(kernel, n_vocab, width, capability()) for kernel in range(N_KERNELS)]
            self._compilers += [begin(each) for each in wanted if not note_of(*each).exists()]
        self._deadline = time.monotonic() + MAX_SECONDS
        atexit.register(self._end)

    def wait(self) -> None:
        """Return when kernels are compiled, have failed to, or take too long, or when the program ends."""
        while any(compiler.poll() is None for compiler in self._compilers):
            if time.monotonic() > self._deadline or not main_thread().is_alive():
                break
            time.sleep(POLL_SECONDS)
        self._end()

    def _end(self) -> None:
        for compiler in self._compilers:
            compiler.kill()
            compiler.wait()
        atexit.unregister(self._end)


def begin(arguments: tuple[int, ...]) -> "subprocess.Popen[bytes]":
    """A process that compiles one kernel; it finds the modules that this one does."""
    command = [sys.executable, "-P", "-m", "tahr.backends.cuda.ahead", *map(str, arguments)]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    nowhere = subprocess.DEVNULL
    return subprocess.Popen(command, env=environ, stdin=nowhere, stdout=nowhere, stderr=nowhere)


def note_of(*arguments: int) -> Path:
    """The file in Triton's cache that says that a kernel is there: finding its key would take an import of Triton."""
    home = Path(os.environ.get("TRITON_HOME") or Path.home())
    cache = Path(os.environ.get("TRITON_CACHE_DIR") or home / ".triton" / "cache")
    facts = [repr(arguments).encode(), metadata.version("triton").encode(), *(path.read_bytes() for path in SOURCES)]
    return cache / f"tahr-sampling-{hashlib.sha256(b'|'.join(facts)).hexdigest()[:32]}"


class TorchHidden(MetaPathFinder):
    """Lets no import find torch: Triton 3.6 imports it to recognise tensors, and there are none."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        if fullname == "torch":
            raise ModuleNotFoundError("torch takes seconds to import")


def compile_ahead(kernel: int, n_vocab: int, width: int, arch: int) -> None:
    """The body of the process."""
    from tahr.backends.cuda.kernels.sample import launches

    compile_kernel(*launches(n_vocab, width)[kernel], arch)
    note_of(kernel, n_vocab, width, arch).touch()


def compile_kernel(kernel: Any, arguments: list[Any], n_warps: int, arch: int) -> None:
    """Compile a kernel into Triton's cache as a launch with these arguments does; types stand for tensors."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler.compiler import make_backend
    from triton.runtime.jit import MockTensor, create_function_from_signature

    target = GPUTarget("cuda", arch, 32)
    options = {"num_warps": n_warps}
    backend = make_backend(target)
    bind = create_function_from_signature(kernel.signature, kernel.params, backend)
    given = [MockTensor(each) if isinstance(each, triton.language.dtype) else each for each in arguments]
    bound, specialised, _ = bind(*given, **options)
    parsed, signature, constants, attributes = kernel._pack_args(backend, options, bound, specialised, None)
    source = ASTSource(kernel, signature, constants, attributes)
    build_modules(triton.compile(source, target=target, options=parsed.__dict__))


def build_modules(compiled: Any) -> None:
    """Build what loads and launches a kernel, C modules in the same cache: the first step would wait for them."""
    from triton.backends.nvidia.driver import CudaLauncher, CudaUtils

    with suppress(Exception):  # kernels are built without a device but cannot be loaded
        CudaUtils()
    with suppress(Exception):
        CudaLauncher(compiled.src, compiled.metadata)


if __name__ == "__main__":
    sys.meta_path.insert(0, TorchHidden())
    compile_ahead(*map(int, sys.argv[1:]))
