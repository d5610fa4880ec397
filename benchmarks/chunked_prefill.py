"""The gaps between the tokens of a running reply while a long prompt comes in, by chunk size.

usage: python benchmarks/chunked_prefill.py [model] [--prompt 4000]
"""

import argparse
import random
import statistics
from time import perf_counter

from prefix_cache import Silent
from tahr import LLM
from tahr.config import EngineConfig, SamplingParams
from tahr.engine.sequences.resolved import ResolvedRequest


def gaps_s(llm: LLM, n_prompt: int) -> tuple[list[float], list[float]]:
    """Seconds between tokens of a decoding sequence: alone, then until a long prompt has its first token."""
    engine, rng = llm.engine, random.Random(0)
    talker = engine.submit(
        ResolvedRequest([1, 2, 3], SamplingParams(temperature=0.0, max_tokens=4000, ignore_eos=True), Silent)
    )
    quiet, busy = [step_s(llm) for _ in range(20)][2:], []
    prompt = [rng.randrange(100, engine.facts.n_vocab) for _ in range(n_prompt)]
    reader = engine.submit(
        ResolvedRequest(prompt, SamplingParams(temperature=0.0, max_tokens=1, cache_prompt=False), Silent)
    )
    while not reader.done:
        n_before = talker.n_generated
        busy.append(step_s(llm))
        assert talker.n_generated == n_before + 1, "the running reply lost a turn"
    engine.abort(talker)
    return quiet, busy


def step_s(llm: LLM) -> float:
    began = perf_counter()
    llm.engine.step()
    return perf_counter() - began


def bound_s(llm: LLM, n_prompt: int, chunk: int) -> float:
    """Seconds of one chunk at the end of such a prompt, where it costs most, read with nobody else there."""
    engine, rng = llm.engine, random.Random(1)
    prompt = [rng.randrange(100, engine.facts.n_vocab) for _ in range(n_prompt)]
    reader = engine.submit(
        ResolvedRequest(prompt, SamplingParams(temperature=0.0, max_tokens=1, cache_prompt=False), Silent)
    )
    times = []
    while not reader.done:
        n_before = reader.computed
        times.append((step_s(llm), (reader.computed or n_prompt) - n_before))
    return max(seconds for seconds, n in times if n == min(chunk, n_prompt) or len(times) == 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--prompt", type=int, default=4000)
    parser.add_argument("--chunks", nargs="+", type=int, default=[64, 256, 0], help="0: the whole prompt at once")
    args = parser.parse_args()
    print("gaps between the tokens of a running reply while a prompt comes in, in milliseconds")
    print("chunk  tokens     p50     p90     p99     max   alone   one chunk + a token   prompt read in")
    for chunk in args.chunks:
        size = chunk or args.prompt
        llm = LLM(args.model, config=EngineConfig(context_size=args.prompt + 200, prefill_chunk_size=size))
        quiet, busy = gaps_s(llm, args.prompt)
        alone = statistics.median(quiet)
        bound = bound_s(llm, args.prompt, size) + alone
        spread = statistics.quantiles([*busy, busy[-1]], n=100, method="inclusive")
        row = [spread[49], spread[89], spread[98], max(busy), alone]
        print(
            f"{chunk or 'off':>5}  {len(busy):6d}"
            + "".join(f"  {1e3 * s:6.0f}" for s in row)
            + f"  {1e3 * bound:12.0f} {'held' if max(busy) <= 1.1 * bound else 'passed'}"
            + f"   {sum(busy):8.1f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
