"""Times a model the way serving runs it: the same plans, without scheduler, sampler and text."""

import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as ListOf
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tahr import hub
from tahr.backends import open_backend
from tahr.backends.api import Backend, MemoryLayout, StepLimits
from tahr.config import GREEDY, EngineConfig
from tahr.engine.builder import check_kv_dtype
from tahr.engine.runner import Runner
from tahr.engine.sequence import Sequence
from tahr.engine.work import WorkItem
from tahr.errors import ConfigError
from tahr.kv.pages import PagePool, pages_for
from tahr.kv.tables import PageTable
from tahr.models.decoder import Decoder
from tahr.models.loader import load, open_model

PAGE_SIZE = 32


@dataclass(frozen=True, slots=True)
class Shape:
    """Read `n_prompt` tokens, then generate `n_gen`, after `n_depth` tokens that do not count; `n_seqs` at once."""

    n_prompt: int = 0
    n_gen: int = 0
    n_depth: int = 0
    n_seqs: int = 1

    @property
    def n_tokens(self) -> int:
        """What is divided by the time."""
        return self.n_seqs * (self.n_prompt + self.n_gen)

    @property
    def label(self) -> str:
        """As in `pp512`, `tg64 x8`, `pp512+tg128 @ d4096`."""
        parts = [f"pp{self.n_prompt}"] * (self.n_prompt > 0) + [f"tg{self.n_gen}"] * (self.n_gen > 0)
        at_once = f" x{self.n_seqs}" if self.n_seqs > 1 else ""
        return "+".join(parts) + at_once + (f" @ d{self.n_depth}" if self.n_depth else "")


@dataclass(frozen=True, slots=True)
class Result:
    """A shape and the seconds of each repetition."""

    shape: Shape
    seconds: tuple[float, ...]

    @property
    def rates(self) -> list[float]:
        """Tokens per second of each repetition."""
        return [self.shape.n_tokens / s for s in self.seconds]

    @property
    def median(self) -> float:
        return statistics.median(self.rates)

    @property
    def spread(self) -> float:
        """How far the repetitions lie apart, as a share of the median."""
        return (max(self.rates) - min(self.rates)) / self.median

    def line(self) -> str:
        """For people: `pp512: 134.5 t/s (5 reps, 131.0-136.2, spread 3.9 %)`."""
        low, high = min(self.rates), max(self.rates)
        reps = f"{len(self.seconds)} reps, {low:.1f}-{high:.1f}, spread {100 * self.spread:.1f} %"
        return f"{self.shape.label}: {statistics.fmean(self.rates):.1f} t/s ({reps})"

    def record(self) -> dict[str, Any]:
        """For programs, in llama-bench's words."""
        nanoseconds = [round(s * 1e9) for s in self.seconds]
        return {
            "avg_ts": statistics.fmean(self.rates),
            "reps_ts": self.rates,
            "stddev_ts": statistics.pstdev(self.rates),
            "median_ts": self.median,
            "avg_ns": round(statistics.fmean(nanoseconds)),
            "stddev_ns": round(statistics.pstdev(nanoseconds)),
            "samples_ns": nanoseconds,
            "test": self.shape.label,
            **asdict(self.shape),
        }


class Bench:
    """A model with memory for the largest of some shapes."""

    def __init__(
        self, backend: Backend, decoder: Decoder, shapes: ListOf[Shape], chunk: int, kv_dtype: str | None = None
    ):
        n_tokens = max(shape.n_depth + shape.n_prompt + shape.n_gen for shape in shapes)
        n_seqs = max(shape.n_seqs for shape in shapes)
        check_context(n_tokens, decoder.config.max_context)
        n_pages = pages_for(n_tokens, PAGE_SIZE)
        pool = PagePool(n_pages * n_seqs, PAGE_SIZE)
        kv = backend.kv_store(
            MemoryLayout(decoder.memory, (pool.n_pages,), PAGE_SIZE, kv_dtype or backend.kv_dtypes[0])
        )
        self.chunk = chunk
        self.runner = Runner(backend, decoder, kv, StepLimits(max(chunk, n_seqs), n_seqs, n_seqs, n_pages))
        ids = np.random.default_rng(0).integers(0, decoder.config.n_vocab, (n_seqs, n_tokens)).tolist()
        self._n_stored: Counter[int] = Counter()
        self.sequences = [self._open(ids[i], PageTable(pool)) for i in range(n_seqs)]

    def _open(self, ids: list[int], table: PageTable) -> Sequence:
        table.take(0, len(ids))
        return Sequence(ids, GREEDY, len(ids), tables=[table])

    def measure(self, shape: Shape, n_reps: int, tick: Callable[[], None] = lambda: None) -> Result:
        """Time a shape after running it once in full, so that nothing is new to plans, caches and clocks."""
        self.time(shape)
        seconds = []
        for _ in range(n_reps):
            tick()
            seconds.append(self.time(shape))
        return Result(shape, tuple(seconds))

    def time(self, shape: Shape) -> float:
        """The seconds of one repetition; its depth is read before the clock starts."""
        active = self.sequences[: shape.n_seqs]
        for sequence in active:
            self._rewind(sequence, shape.n_depth)
        begin = time.perf_counter()
        for sequence in active:
            self._read(sequence, shape.n_prompt)
        for _ in range(shape.n_gen):
            self._step(active, 1, n_rows=1)
        return time.perf_counter() - begin

    def _rewind(self, sequence: Sequence, n_depth: int) -> None:
        """As if just the first tokens had been read. Texts never change, so what was read once is there already."""
        sequence.computed = min(n_depth, self._n_stored[sequence.id])
        self._read(sequence, n_depth - sequence.computed)

    def _read(self, sequence: Sequence, n_tokens: int) -> None:
        for done in range(0, n_tokens, self.chunk):
            n = min(self.chunk, n_tokens - done)
            self._step([sequence], n, n_rows=int(done + n == n_tokens))

    def _step(self, active: list[Sequence], n_tokens: int, n_rows: int) -> None:
        self.runner.run([WorkItem(seq, seq.computed, n_tokens, n_rows > 0, n_rows) for seq in active])
        for sequence in active:
            sequence.computed += n_tokens
            self._n_stored[sequence.id] = max(self._n_stored[sequence.id], sequence.computed)


def check_context(n_tokens: int, most: int) -> None:
    if n_tokens > most:
        raise ConfigError(f"A test has {n_tokens} tokens, but the model was trained for {most}: ask for fewer.")


@dataclass(frozen=True, slots=True)
class Opened:
    """A model ready to be timed, and what a record of it should say."""

    name: str
    backend_summary: str
    files: hub.ModelFiles
    bench: Bench
    facts: dict[str, Any]


def open_bench(model: str | None, config: EngineConfig, shapes: ListOf[Shape]) -> Opened:
    """Load a model with memory for these shapes; its tokenizer stays on the disk."""
    files = hub.resolve(model or hub.DEFAULT_MODEL, progress=hub.Progress(sys.stderr))
    source = open_model(files.weights, files.directory)
    backend = open_backend(config.backend, config.n_threads, config.deterministic)
    loaded = load(source, backend, quantize=config.quantize)
    bench = Bench(backend, loaded.decoder, shapes, config.prefill_chunk_size, check_kv_dtype(config.kv_dtype, backend))
    facts = {
        "model_filename": str(files.path),
        "model_type": loaded.config.family,
        "model_size": loaded.n_weight_bytes,
        "model_n_params": sum(tensor.n_values for tensor in source.tensors.values()),
        "backends": backend.name,
        "n_threads": getattr(backend, "n_threads", config.n_threads),
    }
    return Opened(files.name, backend.summary, files, bench, facts)
