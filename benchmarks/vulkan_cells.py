"""The Vulkan backend on a card: Qwen3 shapes with random weights, whole requests, and where the time of a step goes.

usage: benchmarks/vulkan_cells.py [0.6B] [8B] [8B:Q8_0] [8B:Q4_K] ...

A shape is measured in bf16, or in the format named after it. Shapes and requests are those of gpu_cells.py, which wants
torch. What an op takes is told by the device's clock, in a recording made for that: barriers are not among it.
"""

import sys
import time
from collections import Counter
from dataclasses import replace
from math import prod

import numpy as np

import gpu_cells
from gpu_cells import GREEDY, LONG, N_IN, N_OUT, SHAPES, Shape, make_decoder, serve
from tahr import _vulkan as native
from tahr.backends.api import Weight
from tahr.backends.vulkan import weights
from tahr.backends.vulkan.backend import VulkanBackend
from tahr.backends.vulkan.memory import Span
from tahr.backends.vulkan.queue import OpQueue
from tahr.config import EngineConfig
from tahr.engine.engine import Engine
from tahr.loading.builder import build_engine
from tahr.weights.tensor import HostTensor

PATTERN = 1 << 20  # bytes that fill a matrix again and again
CONTEXT = 4096
F16_SCALE = np.array([0.02 / 127], np.float16).view(np.uint16)[0]


def pattern(kind: str, rng: np.random.Generator) -> np.ndarray:
    """Random numbers of a kind of matrix, small enough that nothing overflows."""
    if kind == "bf16":
        return (rng.normal(0, 0.02, PATTERN // 2).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return rng.integers(0, 256, PATTERN, np.uint8)


class RandomVulkan(VulkanBackend):
    """Makes every matrix on the device: the bytes of its host tensor are never looked at."""

    def __init__(self, form: str):
        super().__init__()
        self._form = form
        self._names: dict[int, str] = {}

    def weight(self, tensor: HostTensor) -> Weight:
        n_rows, n_cols = tensor.shape
        kind = weights.KINDS["BF16" if "embed" in tensor.name else self._form]
        n_bytes = weights.plane_bytes(kind, n_rows, n_cols)
        codes = self._memory.take(n_bytes[0])
        self.fill(codes, pattern(kind, np.random.default_rng(prod(tensor.shape) % 1000)))
        scales = self._memory.take(n_bytes[1]) if n_bytes[1] else None
        if scales:
            word = int(F16_SCALE) | int(F16_SCALE) << 16 if kind in ("q8", "q4") else 0x01010101
            scales.buffer.fill(scales.offset, scales.n_bytes, word)
        matrix = weights.PlanedMatrix(kind, n_rows, n_cols, codes, scales)
        return Weight(tensor.name, self._form, f"random {kind}", n_rows, n_cols, sum(n_bytes), matrix)

    def fill(self, span: Span, values: np.ndarray) -> None:
        """The pattern, and copies of it."""
        raw = values.view(np.uint8)[: span.n_bytes]
        self._memory.write(span, raw)
        other = native.Buffer(self.device, len(raw), native.Home.DEVICE)
        other.copy(span.buffer, [(span.offset, 0, len(raw))])
        parts = [(0, span.offset + at, min(len(raw), span.n_bytes - at)) for at in range(0, span.n_bytes, len(raw))]
        span.buffer.copy(other, parts)


def name_ops() -> None:
    """From now on every queue notes the kernels of its ops."""
    plain = OpQueue.add

    def add(self, pipeline, groups, constants, reads, writes):  # type: ignore[no-untyped-def]
        made = self._running.kernels._made
        key = next(key for key, found in made.items() if found is pipeline)
        vars(self).setdefault("names", []).append(f"{key[0]} {key[1]} x {groups}")
        return plain(self, pipeline, groups, constants, reads, writes)

    OpQueue.add = add  # type: ignore[method-assign]


def show_times(engine: Engine) -> None:
    """Microseconds of the ops of a step of one sequence, by kernel and grid, and those of the whole."""
    backend = engine.executor.backend
    plan = engine.executor.executed[0].plan(backend, (0, 0, 0, 0))
    plan.run()
    backend._running.settle()
    begin = time.perf_counter()
    for _ in range(20):
        plan.run()
        backend._running.settle()
    whole_us = (time.perf_counter() - begin) / 20 * 1e6
    recording = plan._queue.tape.record(timed=True)
    recording.run()
    recording.run()
    times: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for name, ns in zip(plan._queue.names, recording.op_times, strict=True):
        times[name] += ns / 1e3
        counts[name] += 1
    print(f"  a step: {whole_us:.0f} us, {len(plan._queue.tape)} ops in {plan._queue.tape.n_runs} runs")
    for name, us in times.most_common(12):
        print(f"    {us:8.0f} us  {counts[name]:4d} x  {name}")


def cell(shape: Shape, name: str, form: str) -> None:
    begin = time.perf_counter()
    backend = RandomVulkan(form)
    decoder, n_bytes = make_decoder(shape, backend)
    config = EngineConfig(
        context_size=CONTEXT,
        max_batch_size=32,
        prefill_chunk_size=512,
        prefix_cache=False,
        kv_bytes=20 << 30,
        admit_below=1.0,
    )
    engine = build_engine(backend, decoder, config)[0]
    print(f"{name} {form}: {n_bytes / 1e9:.2f} GB a token, there after {time.perf_counter() - begin:.1f} s", flush=True)
    serve(engine, [(N_IN, 8)], GREEDY)
    one = serve(engine, [(N_IN, N_OUT)], GREEDY)
    rate = one.decode_rate
    print(f"  1 request, decode {rate:.1f} tok/s, {rate * n_bytes / 1e9:.0f} GB/s")
    print(f"  prompt of {N_IN}: {one.first_s * 1e3:.1f} ms")
    show_times(engine)
    serve(engine, [(N_IN, 8)] * 8, GREEDY)
    eight = serve(engine, [(N_IN, N_OUT)] * 8, GREEDY)
    print(f"  8 requests {eight.n_tokens / eight.all_s:.0f} tok/s", flush=True)
    if name == "0.6B":
        long = serve(engine, [(LONG, 2)], GREEDY)
        print(f"  prompt of {LONG}: {long.first_s * 1e3:.0f} ms", flush=True)


def main() -> None:
    """Measure the cells that are named."""
    name_ops()
    for word in sys.argv[1:] or ["0.6B", "8B", "8B:Q8_0"]:
        shape, _, form = word.partition(":")
        small = {**SHAPES, "tiny": replace(SHAPES["0.6B"], width=128, n_layers=2, n_heads=4, n_kv_heads=2, n_ffn=256)}
        cell(small[shape], shape, form or "BF16")


if __name__ == "__main__":
    if "tiny" in "".join(sys.argv):
        gpu_cells.N_VOCAB = 512
    main()
