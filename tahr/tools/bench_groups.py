"""Groups of measurements that engines of this kind publish, with texts and sampling: seconds of each case."""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tahr.config import EngineConfig, SamplingParams
from tahr.library.llm import LLM

PROMPTS = (
    "Explain in a few sentences why the sky is blue during the day and red in the evening.",
    "Write a short story about a lighthouse keeper who finds a letter in a bottle after a storm.",
    "List the steps to plan a vegetable garden, from choosing a place to the first harvest.",
    "Summarise how a computer stores text, numbers and pictures as zeros and ones.",
)
PROSE = " ".join(PROMPTS) * 32
N_SHARED = 192  # tokens of instructions that all questions follow
N_CHUNKED = 256  # tokens of the prompt that is cut into chunks
LENGTHS = (64, 128, 256, 512)  # tokens of a shared beginning
BATCHES = (1, 2, 4)
CHUNKS = (16, 32, 64)
ONE_CHUNK = 1024


def nothing() -> None:
    """Preparation of a case that needs none."""


@dataclass(frozen=True, slots=True)
class Case:
    """`run` is timed, after `prepare`, which is not."""

    name: str
    run: Callable[[], None]
    prepare: Callable[[], None] = nothing


@dataclass(frozen=True, slots=True)
class Timed:
    """A case of a group and the seconds of each sample."""

    group: str
    case: str
    seconds: tuple[float, ...]

    @property
    def median_s(self) -> float:
        return statistics.median(self.seconds)

    def line(self) -> str:
        """For people: name, median, spread."""
        spread = (max(self.seconds) - min(self.seconds)) / self.median_s
        return f"  {self.case:<28} {1e3 * self.median_s:10.1f} ms   spread {100 * spread:5.1f} %"

    def record(self) -> dict[str, Any]:
        """For programs."""
        return {"group": self.group, "case": self.case, "median_s": self.median_s, "samples_s": self.seconds}


class GroupBench:
    """A model under the configurations that groups compare; one of them is in memory at a time."""

    def __init__(self, model: str | None, config: EngineConfig, n_tokens: int):
        self.model = model
        self.config = config
        self.n_tokens = n_tokens
        self._loaded: LLM | None = None
        self._changes: dict[str, Any] = {}

    def engine(self, **changes: Any) -> LLM:
        """The model, with these settings changed."""
        if self._loaded is None or changes != self._changes:
            self.close()
            self._loaded = LLM(self.model, config=replace(self.config, **changes))
            self._changes = changes
        return self._loaded

    def close(self) -> None:
        if self._loaded:
            self._loaded.close()
        self._loaded = None

    def complete(self, prompts: list[str], n_tokens: int, **changes: Any) -> None:
        params = SamplingParams(temperature=0, max_tokens=n_tokens, ignore_eos=True)
        self.engine(**changes).generate(prompts, params, progress=False)

    def text(self, n_tokens: int) -> str:
        """Prose of that many tokens, or nearly."""
        tokenizer = (self._loaded or self.engine()).tokenizer
        return tokenizer.decode(tokenizer.encode(PROSE, add_special=False)[:n_tokens])

    def fits(self, text: str) -> bool:
        """Whether the context holds a text and a token more."""
        loaded = self._loaded or self.engine()
        return len(loaded.tokenizer.encode(text)) < loaded.context_size


# ---- groups -------------------------------------------------------------------------------------------------


def prefill(bench: GroupBench) -> Iterator[Case]:
    """Time to the first token of each prompt."""
    for i, prompt in enumerate(PROMPTS):
        yield Case(f"prompt {i + 1}", partial(bench.complete, [prompt], 1, prefix_cache=False))


def decode(bench: GroupBench) -> Iterator[Case]:
    """Tokens after a prompt that is computed already."""
    prompts = [PROMPTS[0]]
    yield Case(
        f"{bench.n_tokens} tokens",
        partial(bench.complete, prompts, bench.n_tokens),
        partial(bench.complete, prompts, 1),
    )


def full_pipeline(bench: GroupBench) -> Iterator[Case]:
    """Each prompt to its whole text, with nothing remembered."""
    for i, prompt in enumerate(PROMPTS):
        yield Case(f"prompt {i + 1}", partial(bench.complete, [prompt], bench.n_tokens, prefix_cache=False))


def prefix_cache(bench: GroupBench) -> Iterator[Case]:
    """Four questions after the same instructions."""
    prompts = [f"{bench.text(N_SHARED)} {prompt}" for prompt in PROMPTS]

    def one_by_one(cached: bool) -> None:
        for prompt in prompts:
            bench.complete([prompt], 1, prefix_cache=cached)

    for cached, name in CACHED:
        yield Case(name, partial(one_by_one, cached))


def prefix_cache_lengths(bench: GroupBench) -> Iterator[Case]:
    """One question after a beginning of each length that the context holds."""
    prompts = {n: f"{bench.text(n)} {PROMPTS[0]}" for n in LENGTHS}
    for cached, name in CACHED:
        for n, prompt in prompts.items():
            if bench.fits(prompt):
                yield Case(f"{n} tokens, {name}", partial(bench.complete, [prompt], 1, prefix_cache=cached))


def batch_prefill(bench: GroupBench) -> Iterator[Case]:
    """Several prompts at once."""
    for cached, name in CACHED:
        for n in BATCHES:
            prompts = list(PROMPTS[:n])
            yield Case(f"{n} prompts, {name}", partial(bench.complete, prompts, 1, prefix_cache=cached))


def chunked_prefill(bench: GroupBench) -> Iterator[Case]:
    """A long prompt in chunks of each size, and in one."""
    prompts = [bench.text(N_CHUNKED)]
    for chunk in (*CHUNKS, ONE_CHUNK):
        name = f"chunks of {chunk}" if chunk in CHUNKS else "one chunk"
        yield Case(name, partial(bench.complete, prompts, 1, prefill_chunk_size=chunk, prefix_cache=False))


CACHED = ((False, "cache off"), (True, "cache on"))
GROUPS = {
    group.__name__: group
    for group in (prefill, decode, full_pipeline, prefix_cache, prefix_cache_lengths, batch_prefill, chunked_prefill)
}


def time_case(group: str, case: Case, n_samples: int, tick: Callable[[], None]) -> Timed:
    """Time a case, after one run that does not count."""
    seconds = []
    for _ in range(n_samples + 1):
        tick()
        case.prepare()
        begin = time.perf_counter()
        case.run()
        seconds.append(time.perf_counter() - begin)
    return Timed(group, case.name, tuple(seconds[1:]))
