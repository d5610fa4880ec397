"""What starting on a GPU takes long for and needs no torch: it is done while torch is imported.

Nothing here must succeed: the device's context is made by torch, and kernels are compiled at their launch, where this
has not been done.
"""

from contextlib import suppress
from threading import Thread
from typing import Any

from tahr.backends.cuda.presence import capability, make_context


class Ahead:
    """Threads that prepare the device, and the kernels that sample from a vocabulary, for whoever waits for them."""

    def __init__(self, n_vocab: int, width: int) -> None:
        """`width` is that of a row of logits, the first `n_vocab` of which are tokens."""
        self.n_vocab, self.width = n_vocab, width
        self._context = Thread(target=make_context, name="tahr-cuda-context")
        self._context.start()
        self._compilers = [Thread(target=self._compile, args=(i,), name="tahr-compile-ahead") for i in range(2)]
        for compiler in self._compilers:
            compiler.start()

    def wait(self) -> None:
        """Return when kernels are compiled, or have failed to."""
        for compiler in self._compilers:
            compiler.join()

    def _compile(self, index: int) -> None:
        # Triton's internals differ from version to version; the launch compiles what is missing, or says what is wrong.
        with suppress(Exception):
            from tahr.backends.cuda.kernels.sample import launches

            kernel, arguments = launches(self.n_vocab, self.width)[index]
            compile_kernel(kernel, capability(), arguments)


def compile_kernel(kernel: Any, arch: int, arguments: list[Any]) -> None:
    """Compile a kernel into Triton's cache as a launch with these arguments does; types stand for tensors."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler.compiler import make_backend
    from triton.runtime.jit import MockTensor, create_function_from_signature

    target, options = GPUTarget("cuda", arch, 32), {"num_warps": 8}
    backend = make_backend(target)
    bind = create_function_from_signature(kernel.signature, kernel.params, backend)
    given = [MockTensor(each) if isinstance(each, triton.language.dtype) else each for each in arguments]
    bound, specialised, _ = bind(*given, **options)
    parsed, signature, constants, attributes = kernel._pack_args(backend, options, bound, specialised, None)
    triton.compile(ASTSource(kernel, signature, constants, attributes), target=target, options=parsed.__dict__)
