"""Recurrent layers on the CPU: microseconds per token of one layer, prefill and decode.

Usage: python benchmarks/recurrence.py [tokens of a prompt]
"""

import sys
import time

import numpy as np

from tahr.backends.api import Backend, DeltaNet, LayerMemory, MemoryLayout, StateShape, StateSpace, StepLimits, Tensor
from tahr.backends.cpu.backend import CpuBackend

N_RUNS = 5


def delta_net(be: Backend) -> tuple[DeltaNet, tuple[int, ...]]:
    """A layer of Qwen3-Next."""
    net = DeltaNet(
        *(16, 32, 128, 128, 4, False),
        conv=be.vector(np.full(4 * 8192, 0.25, np.float32)),
        decay=be.vector(np.full(32, -0.5, np.float32)),
        dt_bias=be.vector(np.zeros(32, np.float32)),
        gain=be.vector(np.ones(128, np.float32)),
        eps=1e-6,
    )
    return net, (net.channels, 4096, 32, 32)


def state_space(be: Backend) -> tuple[StateSpace, tuple[int, ...]]:
    """A layer of Granite 4 H Tiny."""
    net = StateSpace(
        *(48, 64, 1, 128, 4),
        conv=be.vector(np.full(4 * 3328, 0.25, np.float32)),
        conv_bias=None,
        decay=be.vector(np.full(48, -0.5, np.float32)),
        dt_bias=be.vector(np.zeros(48, np.float32)),
        skip=be.vector(np.ones(48, np.float32)),
        gain=be.vector(np.ones(3072, np.float32)),
        n_norm_groups=1,
        eps=1e-6,
    )
    return net, (3072, net.channels, 48)


def seconds(be: Backend, net: DeltaNet | StateSpace, widths: tuple[int, ...], n_tokens: int, position: int) -> float:
    """The fastest of some runs over one sequence."""
    kv = be.kv_store(MemoryLayout((StateShape((net.state_width,)),), (), 16, "f32", (), n_slots=2))
    step = be.step_inputs(StepLimits(n_tokens, 1, 1, 1))
    step.positions[:] = position + np.arange(n_tokens)
    step.query_start[1], step.state_slots[0], step.counts[:] = n_tokens, 1, (n_tokens, 1, 1)
    rng = np.random.default_rng(0)
    parts = [be.tensor(rng.standard_normal((n_tokens, width)).astype(np.float32)) for width in widths]
    return min(one_run(be, parts, net, LayerMemory(step, kv, 0)) for _ in range(N_RUNS))


def one_run(be: Backend, parts: list[Tensor], net: DeltaNet | StateSpace, memory: LayerMemory) -> float:
    begin = time.perf_counter()
    be.read(be.delta_net(parts, net, memory) if isinstance(net, DeltaNet) else be.state_space(parts, net, memory))
    return time.perf_counter() - begin


def main(n_tokens: int) -> None:
    be = CpuBackend()
    print(be.summary)
    for name, (net, widths) in (("delta net", delta_net(be)), ("state space", state_space(be))):
        prefill = seconds(be, net, widths, n_tokens, 0) / n_tokens
        decode = seconds(be, net, widths, 1, n_tokens)
        print(f"{name}: prefill of {n_tokens} tokens {prefill * 1e6:.0f} us per token, decode {decode * 1e6:.0f} us")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 512)
