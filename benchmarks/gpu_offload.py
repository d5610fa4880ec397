"""Layers in the host's memory that pass through a GPU: their bits beside those of resident ones, and their speed
beside what the bus allows.

usage: benchmarks/gpu_offload.py [bits] [speed] [--shape=8B] [--budget=8g] [--requests=128]

`bits` compares logits of decode steps and of prompts, from captured graphs, and greedy tokens of requests, on shapes of
Qwen3-0.6B and 8B with random weights. `speed` measures 1 request and many of them within a budget of device memory, the
rate of the copies alone, and the device memory that was taken at most. Without either both are done.
"""

import sys
import time
from dataclasses import replace

import numpy as np
import torch

from gpu_cells import GREEDY, N_VOCAB, SHAPES, RandomBackend, Times, make_source, serve
from silent import Silent
from tahr.backends.cuda.layer_ring import LayerRing
from tahr.collector import rare_collections
from tahr.config import EngineConfig
from tahr.engine.engine import Engine
from tahr.engine.sequences.resolved import ResolvedRequest
from tahr.executor.output import Output
from tahr.loading.budgets import within_gpu_budget
from tahr.loading.builder import build_engine
from tahr.loading.placement import Placement
from tahr.loading.sizing import plan_of, summary
from tahr.models.loader.load import load

SEED = 3
N_IN, N_OUT, N_ONE = 16, 48, 24
TOKEN_BYTES = {"0.6B": 114_688, "8B": 147_456}  # keys and values of a token in 16 bits
BUDGETS = {"0.6B": "1100m", "8B": "8g"}


def option(name: str, default: str) -> str:
    return next((arg.partition("=")[2] for arg in sys.argv if arg.startswith(f"--{name}=")), default)


def engine_of(shape: str, n_seqs: int, budget: str | None) -> tuple[Engine, RandomBackend, Placement | None]:
    """An engine around a model of random numbers, the same ones every time."""
    torch.manual_seed(SEED)
    backend = RandomBackend()
    config = EngineConfig(
        context_size=512,
        max_batch_size=n_seqs,
        max_prefill_batch=n_seqs,
        prefix_cache=False,
        kv_bytes=n_seqs * (N_IN + N_OUT) * TOKEN_BYTES[shape] + (64 << 20),
        admit_below=1.0,
        gpu_budget=budget,
    )
    config = within_gpu_budget(config, backend)
    source = make_source(SHAPES[shape])
    planned = plan_of(source, backend, config) if budget else None
    loaded = load(source, backend, homes=planned.elsewhere if planned else {})
    return build_engine(backend, loaded.decoder, config)[0], backend, planned


def ring_of(backend: RandomBackend) -> LayerRing:
    ring = backend.context.ring
    assert isinstance(ring, LayerRing)
    return ring


def greedy_tokens(engine: Engine, n: int, n_in: int, n_out: int) -> list[list[int]]:
    """The tokens of requests that are submitted at once."""
    rng = np.random.default_rng(n)
    found: dict[int, list[int]] = {}
    with rare_collections():
        for _ in range(n):
            prompt = rng.integers(0, N_VOCAB, n_in).tolist()
            engine.submit(ResolvedRequest(prompt, replace(GREEDY, max_tokens=n_out), Silent))
        while engine.busy:
            for sequence, _, tokens in engine.step():
                found.setdefault(id(sequence), []).extend(map(int, tokens))
    return list(found.values())


def graph_logits(engine: Engine, backend: RandomBackend, bucket: int) -> torch.Tensor:
    """Logits of the step whose inputs lie there, from a graph: a plan is captured when it runs for the second time."""
    model = engine.executor.executed[0]
    plan = model.plan(backend, (Output.LOGITS, bucket, 0, 0))
    for _ in range(3):
        plan.run()
    torch.cuda.synchronize()
    return plan.result.data.live().clone()


def logits_of_steps(engine: Engine, backend: RandomBackend) -> dict[str, torch.Tensor]:
    """Logits of decode steps of 1 and 8 sequences and of a prompt, after the same requests."""
    found = {}
    buckets = engine.executor.executed[0].buckets[0]
    for n, n_in in ((1, 32), (8, 32), (1, 300)):
        serve(engine, [(n_in, 3)] * n, GREEDY)
        decode = next(i for i, b in enumerate(buckets) if b.n_tokens_per_seq == 1 and b.n_seqs >= n)
        found[f"decode of {n} behind {n_in}"] = graph_logits(engine, backend, decode)
        serve(engine, [(n_in, 1)] * n, GREEDY)
        prompt = next(i for i, b in enumerate(buckets) if b.n_tokens_per_seq != 1 and b.n_tokens >= n * n_in)
        found[f"prompts of {n} x {n_in}"] = graph_logits(engine, backend, prompt)
    return found


def check_bits(shape: str) -> None:
    """Logits and tokens of a streamed model beside those of a resident one."""
    results = []
    for budget in (None, BUDGETS[shape]):
        engine, backend, planned = engine_of(shape, 32, budget)
        if planned:
            print(f"  {summary(planned)}", flush=True)
        results.append((logits_of_steps(engine, backend), greedy_tokens(engine, 32, 24, 24)))
        del engine, backend
        torch.cuda.empty_cache()
    (resident, tokens), (streamed, streamed_tokens) = results
    for name, logits in resident.items():
        same = torch.equal(logits.view(torch.int32), streamed[name].view(torch.int32))
        print(f"  {shape} {name}: logits {'the same bits' if same else 'DIFFER'} {tuple(logits.shape)}", flush=True)
    print(f"  {shape} 32 requests: tokens {'the same' if tokens == streamed_tokens else 'DIFFER'}", flush=True)


def copy_rate(ring: LayerRing, n: int = 3) -> float:
    """Bytes/s of the ring's copies with nothing else to do."""
    memory = torch.empty(max(each.n_bytes for each in ring.layers), dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(n):
        for each in ring.layers:
            each.host.send(memory)
    torch.cuda.synchronize()
    return n * ring.n_bytes / (time.perf_counter() - begin)


def measure(shape: str, budget: str, n: int) -> None:
    """Speed within a budget."""
    began = time.perf_counter()
    engine, backend, planned = engine_of(shape, n, budget)
    assert planned
    print(f"{shape} in {budget}, ready in {time.perf_counter() - began:.1f} s: {summary(planned)}", flush=True)
    ring = ring_of(backend)
    rate = copy_rate(ring)
    torch.cuda.reset_peak_memory_stats()
    bound = rate / ring.n_bytes
    print(
        f"  {len(ring.layers)} layers of {ring.n_bytes / 1e9:.2f} GB pass, pinned: {ring.is_pinned}; copies alone "
        f"{rate / 1e9:.1f} GB/s, so {bound:.2f} steps/s at most",
        flush=True,
    )
    serve(engine, [(N_IN, 4)], GREEDY)
    one = serve(engine, [(N_IN, N_ONE)], GREEDY)
    print(f"  1 request: {one.decode_rate:.2f} tok/s, {one.decode_rate / bound:.1%} of the bound", flush=True)
    for _ in range(2):
        serve(engine, [(N_IN, 4)] * n, GREEDY)
    many = serve(engine, [(N_IN, N_OUT)] * n, GREEDY)
    print(f"  {n} requests: {said(many)}, {many.decode_rate / n / bound:.1%} of the bound", flush=True)
    peak = torch.cuda.max_memory_allocated()
    reserved = torch.cuda.max_memory_reserved()
    print(f"  device memory: {peak / 2**30:.2f} GiB allocated at most, {reserved / 2**30:.2f} GiB reserved", flush=True)


def said(times: Times) -> str:
    """Rates of requests that were submitted at once."""
    return f"{times.n_tokens / times.all_s:.0f} tok/s in all, {times.decode_rate:.0f} behind the first token"


def main() -> None:
    """What was asked for, or both."""
    print(torch.cuda.get_device_name(), flush=True)
    asked = {"bits", "speed"} & set(sys.argv) or {"bits", "speed"}
    if "bits" in asked:
        for shape in BUDGETS:
            check_bits(shape)
    if "speed" in asked:
        shape = option("shape", "8B")
        measure(shape, option("budget", BUDGETS[shape]), int(option("requests", "128")))


if __name__ == "__main__":
    main()
