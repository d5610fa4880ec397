"""The groups of measurements that engines of this kind publish, on one model: seconds, median and spread of each case.

usage: benchmarks/groups.py [MODEL] [--group NAME ...] [--samples N] [--tokens N] [--json FILE] [--backend NAME]
groups: prefill, decode, full_pipeline, prefix_cache, prefix_cache_lengths, batch_prefill, chunked_prefill
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from tahr import LLM, EngineConfig, SamplingParams
from tahr.tools.environment import environment, line

PROMPTS = (
    "Explain in a few sentences why the sky is blue during the day and red in the evening.",
    "Write a short story about a lighthouse keeper who finds a letter in a bottle after a storm.",
    "List the steps to plan a vegetable garden, from choosing a place to the first harvest.",
    "Summarise how a computer stores text, numbers and pictures as zeros and ones.",
)
N_SHARED = 192  # tokens of instructions that all questions follow
LENGTHS = (64, 128, 256, 512)  # tokens of a shared beginning
BATCHES = (1, 2, 4)
CHUNKS = (16, 32, 64)
TIMED_TEXT = " ".join(PROMPTS) * 8


class Case(NamedTuple):
    """`run` is timed, after `prepare`, which is not."""

    name: str
    run: Callable[[], Any]
    prepare: Callable[[], Any] = lambda: None


class Bench:
    """Engines by configuration, loaded when a case first needs them, and texts of any number of tokens."""

    def __init__(self, model: str | None, config: EngineConfig, n_tokens: int):
        self.model, self.config, self.n_tokens = model, config, n_tokens
        self._loaded: dict[EngineConfig, LLM] = {}

    def engine(self, **changes: Any) -> LLM:
        config = replace(self.config, **changes)
        if config not in self._loaded:
            self._loaded.clear()  # one at a time: memory is for the model that is timed
            self._loaded[config] = LLM(self.model, config=config)
        return self._loaded[config]

    def params(self, n_tokens: int) -> SamplingParams:
        return SamplingParams(temperature=0, max_tokens=n_tokens, ignore_eos=True)

    def complete(self, prompts: list[str], n_tokens: int, **changes: Any) -> None:
        self.engine(**changes).generate(prompts, self.params(n_tokens), progress=False)

    def text(self, n_tokens: int) -> str:
        """That many tokens of prose, or as good as."""
        llm = next(iter(self._loaded.values()), None) or self.engine()
        return llm.tokenizer.decode((llm.tokenizer.encode(TIMED_TEXT, add_special=False) * 4)[:n_tokens])

    def fits(self, text: str) -> bool:
        """Whether the model's context holds a text and a token more."""
        llm = next(iter(self._loaded.values()), None) or self.engine()
        return len(llm.tokenizer.encode(text)) < llm.context_size


def prefill(bench: Bench) -> Iterator[Case]:
    """Time to the first token of each prompt."""
    for i, prompt in enumerate(PROMPTS):
        yield Case(f"prompt {i + 1}", lambda p=prompt: bench.complete([p], 1, prefix_cache=False))  # type: ignore[misc]


def decode(bench: Bench) -> Iterator[Case]:
    """Tokens after the first, of a prompt that is read already."""
    yield Case(
        f"{bench.n_tokens} tokens",
        lambda: bench.complete([PROMPTS[0]], bench.n_tokens),
        lambda: bench.complete([PROMPTS[0]], 1),
    )


def full_pipeline(bench: Bench) -> Iterator[Case]:
    """Prompt to text, with nothing remembered."""
    for i, prompt in enumerate(PROMPTS):
        yield Case(f"prompt {i + 1}", lambda p=prompt: bench.complete([p], bench.n_tokens, prefix_cache=False))  # type: ignore[misc]


def prefix_cache(bench: Bench) -> Iterator[Case]:
    """Four questions after the same instructions, remembered and not."""
    prompts = [f"{bench.text(N_SHARED)} {prompt}" for prompt in PROMPTS]
    for cached in (False, True):

        def ask(cached: bool = cached) -> None:
            for prompt in prompts:
                bench.complete([prompt], 1, prefix_cache=cached)

        yield Case(f"cache {'on' if cached else 'off'}", ask)


def prefix_cache_lengths(bench: Bench) -> Iterator[Case]:
    """One question after a remembered beginning of each length."""
    prompts = {n: f"{bench.text(n)} {PROMPTS[0]}" for n in LENGTHS}
    for cached in (False, True):
        for n, prompt in prompts.items():
            if not bench.fits(prompt):
                print(f"  {n} tokens: left out, because the model's context is shorter")
                continue

            def ask(prompt: str = prompt, cached: bool = cached) -> None:
                bench.complete([prompt], 1, prefix_cache=cached)

            yield Case(f"{n} tokens, cache {'on' if cached else 'off'}", ask)


def batch_prefill(bench: Bench) -> Iterator[Case]:
    """Several prompts at once."""
    for cached in (False, True):
        for n in BATCHES:

            def read(n: int = n, cached: bool = cached) -> None:
                bench.complete(list(PROMPTS[:n]), 1, prefix_cache=cached)

            yield Case(f"{n} prompts, cache {'on' if cached else 'off'}", read)


def chunked_prefill(bench: Bench) -> Iterator[Case]:
    """A long prompt in chunks of each size, and in one."""
    prompt = bench.text(256)
    for chunk in (*CHUNKS, 1024):

        def read(chunk: int = chunk) -> None:
            bench.complete([prompt], 1, prefill_chunk_size=chunk, prefix_cache=False)

        yield Case(f"chunks of {chunk}" if chunk in CHUNKS else "one chunk", read)


GROUPS: dict[str, Callable[[Bench], Iterator[Case]]] = {
    group.__name__: group
    for group in (prefill, decode, full_pipeline, prefix_cache, prefix_cache_lengths, batch_prefill, chunked_prefill)
}


def timed(case: Case, n_samples: int, say: Callable[[str], None]) -> list[float]:
    """Seconds of each sample, after one that does not count."""
    seconds = []
    for i in range(n_samples + 1):
        say(f"{case.name}: {i} of {n_samples}")
        case.prepare()
        begin = time.perf_counter()
        case.run()
        seconds.append(time.perf_counter() - begin)
    return seconds[1:]


def say(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{text}\x1b[K", end="", file=sys.stderr, flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--group", action="append", choices=list(GROUPS))
    parser.add_argument("--samples", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--backend", default="auto")
    return parser.parse_args()


def main() -> None:
    args, facts = arguments(), environment()
    print(line(facts))
    bench = Bench(args.model, EngineConfig(backend=args.backend), args.tokens)
    results: list[dict[str, Any]] = []
    for name in args.group or GROUPS:
        print(f"\n{name}: {GROUPS[name].__doc__}")
        for case in GROUPS[name](bench):
            seconds = timed(case, args.samples, say)
            middle = statistics.median(seconds)
            say("")
            spread = 100 * (max(seconds) - min(seconds)) / middle
            print(f"  {case.name:<28} {1e3 * middle:10.1f} ms   spread {spread:5.1f} %", flush=True)
            results.append({"group": name, "case": case.name, "median_s": middle, "samples_s": seconds})
    if args.json:
        args.json.write_text(json.dumps({"environment": facts, "results": results}, indent=1))


if __name__ == "__main__":
    main()
