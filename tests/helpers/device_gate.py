"""A gate on the stream of steps: what is enqueued behind it runs once the host has opened it."""

import torch
import triton
import triton.language as tl

N_LOOKS = 10_000_000  # some ten seconds: a test that fails while the gate is closed does not hang


@triton.jit
def wait_kernel(opened, n_looks):
    """Look until there is another number than zero."""
    n = 0
    while (tl.load(opened, volatile=True) == 0) & (n < n_looks):
        n += 1


class Gate:
    """Closed once and opened once by the host, so that what a device has not done yet is no matter of time.

    While it is closed nothing may allocate or lock memory, or load a kernel: each may wait for the device.
    """

    def __init__(self) -> None:
        self._opened = torch.ones(1, dtype=torch.int32, pin_memory=True)
        self._passed = torch.cuda.Event()
        self.close()  # its kernel is compiled and loaded now
        torch.cuda.synchronize()
        self._opened.zero_()

    def close(self) -> None:
        wait_kernel[(1,)](self._opened, N_LOOKS)
        self._passed.record()

    def has_ended(self) -> bool:
        """Whether the stream is past it."""
        return bool(self._passed.query())

    def open(self) -> None:
        self._opened.fill_(1)
