"""Constrained beside free requests on a device that only takes time: what the host adds to a step.

usage: benchmarks/grammar_host.py VOCAB.gguf [N] [--forward=MS] [--sample=MS] [--parts]

N requests at once (default 64) on a device that takes so long for a forward pass (default 1.5) and a sample (0.4).
--parts prints how long the parts of a step take on the host.
"""

import sys
import time
from pathlib import Path

import numpy as np

from engine_host import NullDecoder, NullPlan
from grammar import RECORDS, tokenizer_of
from silent import Silent
from step_parts import StepParts
from tahr.backends.api import MemoryLayout, Plan, StepLimits, Tensor
from tahr.backends.reference.backend import ReferenceBackend
from tahr.backends.sampling.sample_rows import SampledTokens, SampleRows
from tahr.config import SamplingParams
from tahr.engine.engine import Engine
from tahr.engine.scheduling.scheduler import Scheduler
from tahr.engine.scheduling.work import SchedulerLimits
from tahr.engine.sequences.resolved import ResolvedRequest
from tahr.executor.local import LocalExecutor
from tahr.grammar import Grammar
from tahr.grammar.compiler import GrammarCompiler
from tahr.kv.pages import PagePool
from told_texts import Path as TokenPath
from told_texts import following, parts_of_step, path_of, records

PAGE_SIZE, N_IN, N_OUT, N_ROUNDS = 32, 256, 128, 4


class TimedBackend(ReferenceBackend):
    """A device whose steps and samples take their time one after the other, and no time of the host."""

    overlaps = True

    def __init__(self, forward_s: float, sample_s: float):
        self._forward_s, self._sample_s = forward_s, sample_s
        self._ends = 0.0  # when everything enqueued so far is done
        self._result = NullPlan(1).result

    def take(self, seconds: float) -> float:
        """Enqueue work; when it will be done."""
        self._ends = max(self._ends, time.perf_counter()) + seconds
        return self._ends

    def record(self, step: object, inputs: object) -> Plan:
        return TimedPlan(self, self._forward_s, self._result)

    def sample(self, logits: object, rows: SampleRows) -> "TimedSamples":  # type: ignore[override]
        return TimedSamples(self.take(self._sample_s), len(rows))

    def host_samples(self, rows: SampleRows) -> list[int]:
        return []


class TimedPlan:
    """A step that takes its time."""

    def __init__(self, device: TimedBackend, seconds: float, result: Tensor):
        self._device, self._seconds, self.result = device, seconds, result

    def run(self) -> None:
        self._device.take(self._seconds)


class TimedSamples:
    """Samples that are there at a time. All of them are token 0."""

    def __init__(self, ends: float, n: int):
        self._ends, self._result = ends, SampledTokens(np.zeros(n, np.int32), np.ones(n))

    def collect(self) -> SampledTokens:
        time.sleep(max(0.0, self._ends - time.perf_counter()))
        return self._result


def timed_engine(n_seqs: int, n_vocab: int, eos_ids: frozenset[int], forward_s: float, sample_s: float) -> Engine:
    sizes = SchedulerLimits(n_seqs, n_seqs, n_seqs, prefill_chunk=4096, n_prefill_tokens=n_seqs * N_IN)
    n_pages_per_seq = -(-(N_IN + 2 * N_OUT) // PAGE_SIZE)
    limits = StepLimits(sizes.n_tokens, n_seqs, sizes.n_rows, n_pages_per_seq)
    backend = TimedBackend(forward_s, sample_s)
    pool = PagePool(n_seqs * n_pages_per_seq, PAGE_SIZE)
    kv = backend.kv_store(MemoryLayout((), (pool.n_pages,), PAGE_SIZE, "f32"))
    executor = LocalExecutor(backend, NullDecoder(), kv, limits, n_vocab)  # type: ignore[arg-type]
    return Engine(Scheduler([pool], sizes), executor, 4096, eos_ids)


def run(engine: Engine, params: SamplingParams, compiler: GrammarCompiler, paths: list[TokenPath],
        parts: StepParts | None) -> tuple[float, float]:  # fmt: skip
    """Tokens per second of requests submitted at once, and the CPU time of this thread per step, in seconds."""
    states = [compiler.state(params.grammar) if params.grammar else None for _ in paths]
    sequences = [engine.submit(ResolvedRequest([1] * N_IN, params, Silent), state) for state in states]
    told = {
        id(seq.reply.request.sampling): path for seq, path in zip(sequences, paths, strict=True) if seq.reply.request
    }
    engine.step()  # the prompts
    n_steps = engine.scheduler.n_steps
    with following(told if params.grammar else {}):
        began, cpu = time.perf_counter(), time.thread_time()
        while engine.busy:
            engine.step()
            if parts:
                parts.end_step()
        taken, cpu = time.perf_counter() - began, time.thread_time() - cpu
    for seq in sequences:
        if seq.result.error:
            raise seq.result.error
    return sum(seq.n_generated for seq in sequences) / taken, cpu / (engine.scheduler.n_steps - n_steps)


def main(vocabulary: str, n: int, forward_s: float, sample_s: float, shows_parts: bool) -> None:
    tokenizer = tokenizer_of(vocabulary)
    compiler, grammar = GrammarCompiler(tokenizer), Grammar("json_schema", RECORDS)
    paths = [path_of(compiler, tokenizer, grammar, records(i), 2 * N_OUT) for i in range(n)]
    engine = timed_engine(n, tokenizer.n_vocab, tokenizer.eos_ids, forward_s, sample_s)
    free = SamplingParams(temperature=0.0, max_tokens=N_OUT, ignore_eos=True)
    bound = SamplingParams(temperature=0.0, max_tokens=N_OUT, grammar=grammar)
    rates: dict[str, list[tuple[float, float]]] = {}
    for _ in range(N_ROUNDS):
        for name, params in {"free": free, "JSON records": bound}.items():
            rates.setdefault(name, []).append(run(engine, params, compiler, paths, None))
    best = max(rates["free"])[0]
    for name, found in rates.items():
        rate, cpu = max(found)[0], min(cpu for _, cpu in found)
        middle = sorted(found)[len(found) // 2][0]
        print(f"{n} requests, {name}: best {rate:.0f} tokens/s ({100 * rate / best:.1f} %), median {middle:.0f}, "
              f"{1e3 * cpu:.2f} ms of the engine's thread per step")  # fmt: skip
    if shows_parts:
        parts = StepParts()
        with parts.watching(parts_of_step()):
            run(engine, bound, compiler, paths, parts)
        print(parts.table())
    compiler.close()


if __name__ == "__main__":
    options = dict(each[2:].partition("=")[::2] for each in sys.argv[1:] if each.startswith("--"))
    given = [each for each in sys.argv[1:] if not each.startswith("--")]
    if not given or not Path(given[0]).exists() or options.keys() - {"forward", "sample", "parts"}:
        sys.exit(__doc__)
    main(given[0], int(given[1]) if given[1:] else 64, float(options.get("forward", 1.5)) / 1e3,
         float(options.get("sample", 0.4)) / 1e3, "parts" in options)  # fmt: skip
