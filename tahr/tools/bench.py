"""Times a model the way serving runs it: the same engine and plans, without sampling and text."""

import statistics
import sys
import time
from collections.abc import Callable
from collections.abc import Sequence as ListOf
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tahr import hub
from tahr.backends import open_backend
from tahr.backends.api import Backend, Floats
from tahr.config import EngineConfig
from tahr.engine.sequences.sequence import Sequence
from tahr.errors import ConfigError
from tahr.library.feeder import Feeder
from tahr.loading.builder import build_engine
from tahr.loading.memory_plan import check_kv_dtype
from tahr.loading.unfit import unfit_for
from tahr.models.decoder import Decoder
from tahr.models.loader.load import load, open_model

PAGE_SIZE = 32
MIN_CONTEXT = 8


@dataclass(frozen=True, slots=True)
class Shape:
    """Prefill `n_prompt` tokens, then generate `n_gen`, after `n_depth` tokens that do not count; `n_seqs` at once."""

    n_prompt: int = 0
    n_gen: int = 0
    n_depth: int = 0
    n_seqs: int = 1

    @property
    def n_tokens(self) -> int:
        """Number of tokens that is divided by the time."""
        return self.n_seqs * (self.n_prompt + self.n_gen)

    @property
    def label(self) -> str:
        """Name of the test: `pp512`, `tg64 x8`, `pp512+tg128 @ d4096`."""
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
        low = min(self.rates)
        high = max(self.rates)
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
    """An engine with memory for the largest of some shapes; what is timed are its steps, without sampling and text."""

    def __init__(
        self, backend: Backend, decoder: Decoder, shapes: ListOf[Shape], chunk: int, kv_dtype: str | None = None
    ):
        n_tokens = max(shape.n_depth + shape.n_prompt + shape.n_gen for shape in shapes)
        n_seqs = max(shape.n_seqs for shape in shapes)
        check_context(n_tokens, decoder.config.max_context)
        config = EngineConfig(
            context_size=max(MIN_CONTEXT, n_tokens),
            prefill_chunk_size=chunk,
            max_batch_size=n_seqs,
            prefix_cache=False,
            kv_dtype=kv_dtype,
            page_size=PAGE_SIZE,
        )
        self.engine, _ = build_engine(backend, decoder, config, whole_texts=n_seqs)
        self._feeder = Feeder(self.engine)
        ids = np.random.default_rng(0).integers(0, decoder.config.n_vocab, (n_seqs, n_tokens)).tolist()
        self._texts = [Text(each) for each in ids]

    def measure(self, shape: Shape, n_reps: int, tick: Callable[[], None] = lambda: None) -> Result:
        """Time a shape after running it once in full, so that nothing is new to plans, caches and clocks."""
        self.time(shape)
        seconds = []
        for _ in range(n_reps):
            tick()
            seconds.append(self.time(shape))
        return Result(shape, tuple(seconds))

    def time(self, shape: Shape) -> float:
        """The seconds of one repetition; its depth is computed before the clock starts."""
        active = self._texts[: shape.n_seqs]
        for text in active:
            self._rewind(text, shape.n_depth)
        begin = time.perf_counter()
        for text in active:
            self._feed([text], shape.n_prompt)
        for _ in range(shape.n_gen):
            self._feed(active, 1)
        return time.perf_counter() - begin

    def _rewind(self, text: "Text", n_depth: int) -> None:
        """Go back to the first `n_depth` tokens. Texts never change, so computed pages are kept."""
        if text.sequence and n_depth:
            n = min(n_depth, text.n_fed)
            self._feeder.truncate(text.sequence, n)
            self._feed([text], n_depth - n)
        else:
            if text.sequence:
                self._feeder.close(text.sequence)
            text.sequence = None
            self._feed([text], n_depth)

    def _feed(self, texts: ListOf["Text"], n_tokens: int) -> None:
        if not n_tokens:
            return
        for text in texts:
            tokens = text.ids[text.n_fed : text.n_fed + n_tokens]
            if text.sequence:
                self._feeder.feed(text.sequence, tokens)
            else:
                text.sequence = self._feeder.open(tokens, ignore)
        self._feeder.run(*(text.sequence for text in texts if text.sequence))


@dataclass(slots=True)
class Text:
    """Random tokens, and the sequence that some of them have been fed to."""

    ids: list[int]
    sequence: Sequence | None = None

    @property
    def n_fed(self) -> int:
        return len(self.sequence.tokens) if self.sequence else 0


def ignore(rows: Floats) -> None:
    """Nobody looks at the logits of a benchmark."""


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
    unfit = unfit_for(config.backend, config.n_threads)
    files = hub.resolve(model or hub.DEFAULT_MODEL, progress=hub.Progress(sys.stderr), unfit=unfit)
    source = open_model(files.weights, files.directory)
    backend = open_backend(config.backend, config.n_threads, config.deterministic)
    loaded = load(source, backend, quantize=config.quantize)
    chunk = config.prefill_chunk_size or backend.step_defaults.prefill_chunk
    bench = Bench(backend, loaded.decoder, shapes, chunk, check_kv_dtype(config.kv_dtype, backend))
    facts = {
        "model_filename": str(files.path),
        "model_type": loaded.config.family,
        "model_size": loaded.n_weight_bytes,
        "model_n_params": sum(tensor.n_values for tensor in source.tensors.values()),
        "backends": backend.name,
        "n_threads": getattr(backend, "n_threads", config.n_threads),
    }
    return Opened(files.name, backend.summary, files, bench, facts)
