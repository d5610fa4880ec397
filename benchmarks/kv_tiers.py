"""Time to the first token of prompts that are computed, and of those whose pages come from the host or from a disk.

    python benchmarks/kv_tiers.py [MODEL] [--lengths 50,100,250,500,1000,2000] [--repeats 3] [--directory DIR]
    python benchmarks/kv_tiers.py [MODEL] --overload

Every engine first answers something else. `disk` is a new engine on the directory of one that has ended, `cold` the
same after the system was asked to drop the files from its memory. Replies and log-probabilities are compared.

`--overload` is eight requests of 250 tokens in and out, in pages for four: those that lose their pages compute them
again, or load them from the host.
"""

import argparse
import os
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from tahr import LLM, SamplingParams
from tahr.generation.outputs import Completion

WAYS = ("computed", "host", "disk", "cold")
PARAMS = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, logprobs=2)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?", default="smollm2:135m")
    parser.add_argument("--lengths", default="50,100,250,500,1000,2000")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--overload", action="store_true")
    args = parser.parse_args()
    if args.overload:
        overload(args.model, args.backend)
    else:
        by_length(args)


def by_length(args: argparse.Namespace) -> None:
    lengths = [int(each) for each in args.lengths.split(",")]
    heads = [f"{way + ' %':>7}" for way in WAYS[1:]]
    print(f"{'tokens':>7}", *(f"{way + ' ms':>12}" for way in WAYS), *heads, " of computing")
    with tempfile.TemporaryDirectory(dir=args.directory) as folder:
        for length in lengths:
            options = {"context_size": max(lengths) + 64, "backend": args.backend}
            row = measured(args.model, length, args.repeats, Path(folder) / f"kv{length}", options)
            shares = [f"{100 * row[way] / row['computed']:>7.1f}" for way in WAYS[1:]]
            print(f"{length:>7}", *(f"{1e3 * row[way]:>12.1f}" for way in WAYS), *shares, flush=True)


def measured(model: str, length: int, repeats: int, folder: Path, options: dict[str, Any]) -> dict[str, float]:
    """Seconds to the first token, by way."""
    random.seed(length)
    prompts = [[random.randrange(1000, 20000) for _ in range(length)] for _ in range(repeats)]
    with warm(model, **options) as llm:
        computed = [timed(llm, prompt) for prompt in prompts]
    with warm(model, kv_host_size="1g", **options) as llm:
        first = [timed(llm, prompt) for prompt in prompts]
        forget(llm)
        host = [timed(llm, prompt) for prompt in prompts]
    with warm(model, kv_disk=str(folder), **options) as llm:
        for prompt in prompts:
            timed(llm, prompt)
    with warm(model, kv_disk=str(folder), **options) as llm:
        disk = [timed(llm, prompt) for prompt in prompts]
    drop(folder)
    with warm(model, kv_disk=str(folder), **options) as llm:
        cold = [timed(llm, prompt) for prompt in prompts]
    for others in (first, host, disk, cold):
        for (_, one), (_, other) in zip(computed, others, strict=True):
            assert (one.token_ids, one.logprobs) == (other.token_ids, other.logprobs), "a reply changed"
    ways = zip(WAYS, (computed, host, disk, cold), strict=True)
    return {way: median(seconds for seconds, _ in found) for way, found in ways}


def overload(model: str, backend: str) -> None:
    random.seed(1)
    prompts = [[random.randrange(1000, 20000) for _ in range(250)] for _ in range(8)]
    params = SamplingParams(temperature=0.0, max_tokens=250, ignore_eos=True)
    with LLM(model, context_size=512, backend=backend) as llm:
        pool = llm.engine.scheduler.pools[0]
        kv_bytes = 4 * -(-500 // pool.page_size) * pool.page_bytes
    replies = []
    for size in (None, "1g", None, "1g"):
        options = {"kv_host_size": size, "kv_bytes": kv_bytes, "context_size": 512, "admit_below": 1.0}
        with warm(model, backend=backend, **options) as llm:
            began = time.perf_counter()
            replies.append([found.token_ids for found in llm.generate(prompts, params, progress=False)])
            seconds = time.perf_counter() - began
            stats = llm.stats()
        place = "computed again" if size is None else "loaded from the host"
        counts = f"{stats.preemptions} preemptions, {stats.tokens_prefilled} tokens of prompts"
        print(f"{place:>20}: {seconds:6.1f} s, {counts}", flush=True)
    assert all(each == replies[0] for each in replies), "a reply changed"


@contextmanager
def warm(model: str, **options: Any) -> Iterator[LLM]:
    with LLM(model, **options) as llm:
        llm.generate([[7, 8, 9] * 40], PARAMS, progress=False)
        yield llm


def timed(llm: LLM, prompt: list[int]) -> tuple[float, Completion]:
    found = llm.generate([prompt], PARAMS, progress=False)[0]
    return found.stats.first_token_s, found


def forget(llm: LLM) -> None:
    """Empty the pools, as other texts would."""
    for pool in llm.engine.scheduler.pools:
        while pool.evict():
            pass


def drop(folder: Path) -> None:
    """Ask the system to keep no file of a directory in memory."""
    os.sync()
    for path in folder.rglob("*.kv"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


if __name__ == "__main__":
    main()
