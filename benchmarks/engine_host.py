"""What a step costs beside the kernels: everything an engine does around a model that does nothing.

usage: python benchmarks/engine_host.py [n_seqs ...]
"""

import statistics
import sys
from cProfile import Profile
from pathlib import Path
from time import thread_time
from types import SimpleNamespace

import numpy as np

from tahr.backends import open_backend
from tahr.backends.api import Floats, MemoryLayout, Plan, Rows, StepLimits, Tensor
from tahr.backends.reference.backend import ReferenceBackend
from tahr.backends.sampling.sample_rows import Sampled, SampleRows
from tahr.config import SamplingParams
from tahr.engine.engine import Engine
from tahr.engine.scheduling.scheduler import Scheduler
from tahr.engine.scheduling.work import SchedulerLimits
from tahr.engine.sequences.resolved import ResolvedRequest
from tahr.executor.local import LocalExecutor
from tahr.kv.pages import PagePool
from tahr.kv.prefix import PrefixCache

PAGE_SIZE, N_PROMPT, N_NEW, N_VOCAB = 32, 200, 400, 64


class NullPlan:
    """A step that is over at once."""

    def __init__(self, n_rows: int):
        rng = np.random.default_rng(0)
        self.result = Tensor(N_VOCAB, Rows.FIXED, rng.standard_normal((n_rows, N_VOCAB)).astype(np.float32))

    def run(self) -> None:
        pass


class NullBackend(ReferenceBackend):
    """Gives as many rows of the same logits as were asked for."""

    def __init__(self, limits: StepLimits):
        self.plan = NullPlan(limits.n_rows)
        self.sampler = open_backend("auto")
        self.inputs = self.step_inputs(limits)

    def record(self, step: object, inputs: object) -> Plan:
        return self.plan

    def step_inputs(self, limits: StepLimits) -> object:  # type: ignore[override]
        self.inputs = super().step_inputs(limits)
        return self.inputs

    def read(self, tensor: Tensor) -> np.ndarray:
        return tensor.data[: self.inputs.n_rows]

    def sample(self, logits: Tensor | Floats, rows: SampleRows) -> Sampled:
        return self.sampler.sample(self.host_rows(logits), rows)


class NullDecoder:
    """No model, and no files that may change."""

    encoding = None  # it generates
    text_head = None
    tower = None
    line_end = None
    has_axes = False
    config = SimpleNamespace(n_vocab=N_VOCAB, width=1, audio=None, speech=None)

    def __init__(self) -> None:
        self.files = self
        self.linears: dict[str, object] = {}
        self.forward = self.hidden = self.draw = lambda *_: None

    def check(self, stamp_of: object) -> None:
        pass

    def refuse_cut(self) -> None:
        pass


class NullWriter:
    """Text is not this benchmark's matter."""

    stopped = False
    forced: tuple[int, ...] = ()
    n_reasoning_tokens = 0
    matched_stop: str | None = None

    def push(self, token: int) -> tuple[str, ...]:
        return ()

    def flush(self) -> tuple[str, ...]:
        return ()


def null_engine(n_seqs: int) -> Engine:
    sizes = SchedulerLimits(n_seqs, n_seqs, n_seqs, prefill_chunk=4096, n_prefill_tokens=n_seqs * N_PROMPT)
    n_pages_per_seq = -(-(N_PROMPT + N_NEW) // PAGE_SIZE)
    limits = StepLimits(sizes.n_tokens, n_seqs, sizes.n_rows, n_pages_per_seq)
    backend = NullBackend(limits)
    pool = PagePool(n_seqs * n_pages_per_seq, PAGE_SIZE)
    kv = backend.kv_store(MemoryLayout((), (pool.n_pages,), PAGE_SIZE, "f32"))
    executor = LocalExecutor(backend, NullDecoder(), kv, limits, N_VOCAB)  # type: ignore[arg-type]
    return Engine(Scheduler([pool], sizes, PrefixCache([pool])), executor, 4096)


def filled(n_seqs: int, params: SamplingParams) -> Engine:
    engine = null_engine(n_seqs)
    rng = np.random.default_rng(1)
    for _ in range(n_seqs):
        engine.submit(ResolvedRequest(rng.integers(0, N_VOCAB, N_PROMPT).tolist(), params, NullWriter))
    engine.step()
    return engine


def step_times_s(engine: Engine) -> list[float]:
    times = []
    while engine.busy:
        began = thread_time()  # nothing here waits, so this is the work, whoever else uses the machine
        engine.step()
        times.append(thread_time() - began)
    return times[:-1]  # all end in the last step


def main() -> None:
    greedy = SamplingParams(temperature=0.0, max_tokens=N_NEW)
    if sys.argv[1:] == ["--profile"]:
        engine, profile = filled(64, greedy), Profile()
        profile.runcall(step_times_s, engine)
        profile.print_stats("tottime")
        return
    print(f"{Path(__file__).stem}: host work per step, {N_VOCAB} logits per row, greedy")
    for n_seqs in map(int, sys.argv[1:] or ["1", "8", "64"]):
        times = [t * 1e3 for _ in range(5) for t in step_times_s(filled(n_seqs, greedy))]
        spread = statistics.quantiles(times, n=100)
        print(f"  {n_seqs:3d} sequences: p10 {spread[9]:.3f} ms, median {spread[49]:.3f} ms, p99 {spread[98]:.3f} ms")


if __name__ == "__main__":
    main()
