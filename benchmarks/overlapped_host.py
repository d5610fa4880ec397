"""What a step costs on the host where steps overlap, on a device that takes no time.

usage: benchmarks/overlapped_host.py [n_seqs ...] [--collect-every N]      (PYTHONPATH says of which checkout)

CPU time of the engine's thread. "Alike": all requests begin together, so that decode steps have the same sequences,
and many of these fill a page in the same step. "Mixed": lengths differ and each request that ends is followed by a new
one, so that nearly every step has other sequences and some prompts. Python's collector runs every N new objects
(default 10,000, as while any engine works: `tahr/collector.py`, which older checkouts do not have).
"""

import argparse
import gc
import random
from collections.abc import Callable
from time import thread_time

import numpy as np

from engine_host import NullDecoder, NullWriter
from served_share import CONTEXT, N_IN, N_OUT, N_VOCAB, PAGE_SIZE, Device
from tahr.backends.api import MemoryLayout, StepLimits
from tahr.config import SamplingParams
from tahr.engine.engine import Engine
from tahr.engine.scheduling.scheduler import Scheduler
from tahr.engine.scheduling.work import SchedulerLimits
from tahr.engine.sequences.resolved import ResolvedRequest
from tahr.executor.local import LocalExecutor
from tahr.kv.pages import PagePool
from tahr.kv.prefix import PrefixCache

N_PAGES_PER_SEQ, N_ROUNDS, N_MIXED = 16, 8, 1000
SPREAD = 28  # tokens by which the lengths of replies differ from N_OUT


class Load:
    """Requests for an engine on a device that takes no time."""

    def __init__(self, n_seqs: int):
        sizes = SchedulerLimits(n_seqs, n_seqs, n_seqs, prefill_chunk=4096, n_prefill_tokens=8192)
        limits = StepLimits(sizes.n_tokens, n_seqs, sizes.n_rows, CONTEXT // PAGE_SIZE)
        backend, pool = Device(0.0), PagePool(n_seqs * N_PAGES_PER_SEQ, PAGE_SIZE)
        kv = backend.kv_store(MemoryLayout((), (pool.n_pages,), PAGE_SIZE, "f32"))
        executor = LocalExecutor(backend, NullDecoder(), kv, limits, N_VOCAB)  # type: ignore[arg-type]
        self.engine = Engine(Scheduler([pool], sizes, PrefixCache([pool])), executor, CONTEXT)
        self.n_seqs = n_seqs
        self._prompts, self._lengths = np.random.default_rng(1), random.Random(3)

    def submit(self, least: int = N_OUT, most: int = N_OUT) -> None:
        n_out, prompt = self._lengths.randint(least, most), self._prompts.integers(0, N_VOCAB, N_IN).tolist()
        sampling = SamplingParams(temperature=0.6, top_k=20, top_p=0.95, max_tokens=n_out, ignore_eos=True)
        self.engine.submit(ResolvedRequest(prompt, sampling, NullWriter))  # type: ignore[arg-type]

    def step(self) -> tuple[float, int]:
        """Milliseconds of a step, and how many sequences ended in it."""
        began = thread_time()
        events = self.engine.step()
        return (thread_time() - began) * 1e3, sum(event[0].done for event in events)


def alike(load: Load) -> list[float]:
    """Steps in which every sequence decodes."""
    found = []
    for _ in range(N_ROUNDS):
        for _ in range(load.n_seqs):
            load.submit()
        while load.engine.busy:
            taken, _ = load.step()
            if load.engine.steps.inputs.n_tokens == load.engine.steps.inputs.n_rows == load.n_seqs:
                found.append(taken)
    return found


def mixed(load: Load) -> list[float]:
    """All steps, once the sequences are at different places."""
    found: list[float] = []
    for _ in range(load.n_seqs):
        load.submit(1, N_OUT + SPREAD)
    while len(found) < N_OUT + N_MIXED:
        taken, n_ended = load.step()
        found.append(taken)
        for _ in range(n_ended):
            load.submit(N_OUT - SPREAD, N_OUT + SPREAD)
    return found[N_OUT:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("n_seqs", type=int, nargs="*", default=[256])
    parser.add_argument("--collect-every", type=int, default=10_000)
    args = parser.parse_args()
    gc.set_threshold(args.collect_every)
    loads: dict[str, Callable[[Load], list[float]]] = {"alike": alike, "mixed": mixed}
    for n_seqs in args.n_seqs:
        for name, run in loads.items():
            times = run(Load(n_seqs))
            low, median, high = np.quantile(times, (0.1, 0.5, 0.9))
            print(f"{n_seqs} sequences, {name}: mean {np.mean(times):.3f} ms, p10 {low:.3f}, median {median:.3f}, "
                  f"p90 {high:.3f}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
