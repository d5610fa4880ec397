"""Attention over long caches on a CUDA device, kernel by kernel, beside the device's roofs.

usage: benchmarks/gpu_attention.py [decode] [prompts] [--old]

Decoding steps print us of a layer and GB/s of keys and values, prompts that go on behind a cache ms and TFLOP/s.
Layers take turns on two caches, as a graph of so many launches, so that nothing is found in the cache of the chip.
--old leaves prompts to the kernel for all cards.
"""

import sys
from types import SimpleNamespace
from typing import Any

import torch

from tahr.backends.api import AttentionSpec
from tahr.backends.cuda.kernels import attention, rope_attention
from tahr.backends.cuda.layouts import kv as cuda_kv

PAGE = 32
N_LAUNCHES = 16  # of a graph
# Decoding: sequences, tokens of each, query heads, key heads, the format of keys and values.
DECODES = [
    (1, 30_000, 32, 8, "bf16"), (1, 30_000, 40, 8, "bf16"), (1, 20_011, 32, 8, "bf16"), (1, 60_000, 32, 8, "bf16"),
    (1, 131_000, 32, 8, "bf16"), (1, 30_000, 32, 4, "bf16"), (1, 30_000, 32, 8, "fp8"), (1, 30_000, 32, 8, "q8_0"),
    (4, 30_000, 32, 8, "bf16"), (16, 16_000, 32, 8, "bf16"), (64, 2_000, 32, 8, "bf16"), (1, 300, 32, 8, "bf16"),
    (1, 300, 16, 8, "bf16"), (32, 300, 32, 8, "bf16"), (128, 300, 32, 8, "bf16"),
]  # fmt: skip
# Prompts: tokens computed before and now, of each sequence, query heads, key heads.
PROMPTS = [
    ([(0, 3900)], 32, 8), ([(26_000, 4096)], 32, 8), ([(56_000, 4096)], 32, 8), ([(26_000, 4096)], 40, 8),
    ([(8_000, 4096), (11_000, 4096)], 32, 8), ([(30_000, 300)], 32, 8), ([(0, 256)] * 16, 32, 8),
]  # fmt: skip


def call_of(
    spans: list[tuple[int, int]], n_q: int, n_kv: int, kv: str, dim: int = 128
) -> list[attention.AttentionCall]:
    """Calls of two layers of a step: random queries behind random caches, pages in any order."""
    lengths = [new for _, new in spans]
    n_pages = [-(-(old + new) // PAGE) for old, new in spans]
    starts = [sum(lengths[:s]) for s in range(len(spans) + 1)]
    tables = torch.zeros(len(spans), max(n_pages), dtype=torch.int32, device="cuda")
    order = torch.randperm(sum(n_pages), dtype=torch.int32, device="cuda")
    for s, n in enumerate(n_pages):
        tables[s, :n], order = order[:n], order[n:]
    positions = [at for old, new in spans for at in range(old, old + new)]
    numbers = {"query_start": starts, "positions": positions, "seq_lens": [old + new for old, new in spans],
               "counts": [starts[-1], len(spans), len(spans), 0], "order": range(len(spans))}  # fmt: skip
    there = {name: torch.tensor(list(given), dtype=torch.int32, device="cuda") for name, given in numbers.items()}
    q = torch.randn(starts[-1], n_q * dim, device="cuda").bfloat16()
    calls = []
    for _ in range(2):
        shape = SimpleNamespace(sides=lambda _: (0, 1), n_heads=n_kv, head_dim=dim)
        store = cuda_kv.make(shape, sum(n_pages), PAGE, kv, q.device)  # type: ignore[arg-type]
        if kv == "bf16":
            store.normal_()
        spec = AttentionSpec(dim**-0.5)
        dtype = attention.product_type(torch.bfloat16, store.dtype)
        calls.append(attention.AttentionCall(q, store, tables, SimpleNamespace(**there), spec, dtype))
    return calls


def seconds(run: Any, calls: list[attention.AttentionCall], n: int = N_LAUNCHES) -> float:
    """Device seconds of a layer, the least of several replays of a graph."""
    for call in calls:
        run(call)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(n):
            run(calls[i % 2])
    times = []
    for _ in range(5):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3 / n)
    return min(times[1:])


def decode_runner(call: attention.AttentionCall) -> Any:
    """The kernel that a decoding step of a model takes."""
    n_seqs, width = len(call.q), call.n_kv * call.dim
    fits = cuda_kv.block_of(call.store) == 0 and n_seqs * call.n_kv <= attention.N_FUSED
    if not fits:
        return attention.attend_decode
    kv = [torch.randn(n_seqs, width, device="cuda").bfloat16() for _ in range(2)]
    angles = torch.ones(n_seqs, call.dim, device="cuda")
    rotation = SimpleNamespace(
        cos_sin=SimpleNamespace(data=SimpleNamespace(values=angles)), norms=None, style="halves", key_mean=None
    )
    last = call.inputs.seq_lens - 1
    slots = (call.pages[torch.arange(n_seqs, device="cuda"), last // PAGE] * PAGE + last % PAGE).int()
    return lambda each: rope_attention.rope_decode(each, kv, rotation, slots, torch.bfloat16)  # type: ignore[arg-type]


def measure_decode(case: tuple[int, int, int, int, str]) -> float:
    n_seqs, depth, n_q, n_kv, kv = case
    calls = call_of([(depth - 1, 1)] * n_seqs, n_q, n_kv, kv)
    return seconds(decode_runner(calls[0]), calls)


def measure_prompts(case: tuple[list[tuple[int, int]], int, int]) -> float:
    spans, n_q, n_kv = case
    calls = call_of(spans, n_q, n_kv, "bf16")
    rows = [torch.randn(len(calls[0].q), n_kv * calls[0].dim, device="cuda").bfloat16() for _ in range(2)]
    new = attention.StepRows(*rows)
    return seconds(lambda call: attention.attend_mixed(call, len(spans), new), calls, 4)


def main() -> None:
    wanted = [name for name in sys.argv[1:] if not name.startswith("-")] or ["decode", "prompts"]
    if "--old" in sys.argv:
        attention.takes_prompts = lambda call, new: False  # type: ignore[assignment]
    for case in DECODES if "decode" in wanted else []:
        n_seqs, depth, n_q, n_kv, kv = case
        spent = measure_decode(case)
        n_bytes = 2 * n_seqs * depth * n_kv * {"bf16": 256, "fp8": 128, "q8_0": 136}[kv]
        name = f"{n_seqs:>3} x {depth:>7,} {n_q}/{n_kv} {kv}"
        print(f"decode {name:<26}{spent * 1e6:9.1f} us {n_bytes / spent / 1e9:8,.0f} GB/s", flush=True)
    for case in PROMPTS if "prompts" in wanted else []:
        spans, n_q, n_kv = case
        spent = measure_prompts(case)
        n_flop = sum(4 * 128 * n_q * (new * old + new * (new + 1) / 2) for old, new in spans)
        name = f"{len(spans)} x {spans[0][1]:,} behind {spans[0][0]:,}"
        print(
            f"prompts {name:<28} {n_q}/{n_kv} {spent * 1e3:9.3f} ms {n_flop / spent / 1e12:8,.0f} TFLOP/s", flush=True
        )


if __name__ == "__main__":
    main()
