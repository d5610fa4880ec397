"""Random traffic for a while: memory must stay flat, no page may leak, and an idle engine must not use the processor.

usage: benchmarks/soak.py MODEL [--minutes 30] [--kv-mb 1]      (the first tenth is warm-up)
The pool is meant to be too small for all that run at once, so that some lose their pages; exits with 1 if anything it
looks for is wrong.
"""

import argparse
import asyncio
import os
import random
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from tahr import AsyncLLM, EngineConfig, SamplingParams
from tahr.errors import TahrError

N_CLIENTS = 12
WORDS = [
    *("the", "a", "small", "old", "blue", "river", "mountain", "goat"),
    *("clock", "bread", "slowly", "finds", "under", "because", "never", "seven"),
]
IDLE_S = 10.0
MOST_GROWTH, MOST_IDLE = 0.03, 0.01  # of resident memory from the first third to the last; of one core


@dataclass
class Tally:
    """What happened."""

    finished: int = 0
    cancelled: int = 0
    refused: int = 0
    tokens: int = 0
    resident: list[tuple[float, int]] = field(default_factory=list)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def random_params(rng: random.Random) -> SamplingParams:
    """Any mix a client may send; some are wrong, and must be refused without harm."""
    choices: dict[str, list[object]] = {
        "temperature": [0, 0.7, 1.0, 1.5],
        "top_k": [None, 1, 40],
        "top_p": [None, 0.5, 0.95],
        "min_p": [None, 0.05],
        "repetition_penalty": [None, 1.1],
        "n": [1, 1, 1, 3],
        "logprobs": [None, None, 3],
        "stop": [(), (), (" the",)],
        "seed": [None, 7],
        "cache_prompt": [True, True, False],
    }
    picked = {name: rng.choice(values) for name, values in choices.items()}
    return SamplingParams(max_tokens=rng.randint(1, 200), **picked)  # type: ignore[arg-type]


async def client(llm: AsyncLLM, rng: random.Random, until_s: float, tally: Tally) -> None:
    """One request after the other; every fifth is left in the middle."""
    system = " ".join(rng.choices(WORDS, k=60))
    while time.monotonic() < until_s:
        prompt = (system if rng.random() < 0.5 else "") + " ".join(rng.choices(WORDS, k=rng.randint(1, 150)))
        leave_after = rng.randint(1, 20) if rng.random() < 0.2 else None
        try:
            stream = await llm.submit(prompt, random_params(rng))
            n = 0
            async for chunk in stream:
                n += 1
                tally.tokens += len(chunk.token_ids)
                if leave_after is not None and n >= leave_after:
                    stream.close()
                    tally.cancelled += 1
                    break
            else:
                tally.finished += 1
        except TahrError:
            tally.refused += 1
        await asyncio.sleep(rng.choice([0, 0, 0, 0.05]))


async def watch(llm: AsyncLLM, until_s: float, tally: Tally) -> None:
    """Sample resident memory and report."""
    begin = time.monotonic()
    while (now := time.monotonic()) < until_s:
        tally.resident.append((now - begin, resident_bytes()))
        print(
            f"\r{now - begin:6.0f} s  {tally.finished} finished, {tally.cancelled} cancelled, {tally.refused} refused,"
            f" {tally.tokens} tokens, {tally.resident[-1][1] / 1e6:.1f} MB resident ",
            end="",
            file=sys.stderr,
            flush=True,
        )
        await asyncio.sleep(5)
    print(file=sys.stderr)


async def soak(model: str, minutes: float, kv_mb: float) -> list[str]:
    """Drive, watch, then check what is left; what is wrong."""
    config = EngineConfig(context_size=512, max_batch_size=8, kv_bytes=int(kv_mb * 2**20))
    async with AsyncLLM(model, config=config) as llm:
        tally, until_s = Tally(), time.monotonic() + minutes * 60
        clients = [client(llm, random.Random(i), until_s, tally) for i in range(N_CLIENTS)]
        await asyncio.gather(watch(llm, until_s, tally), *clients)
        await asyncio.sleep(1)
        growth = report(llm, tally)
        began, busy = time.monotonic(), time.process_time()
        await asyncio.sleep(IDLE_S)
        idle = (time.process_time() - busy) / (time.monotonic() - began)
        print(f"idle: {idle:.2%} of one core")
        wrong = {
            "memory has grown": growth > MOST_GROWTH,
            "nobody was preempted: give it a smaller pool": not llm.llm.engine.scheduler.n_preempted,
            "it is busy when idle": idle > MOST_IDLE,
        }
        return [what for what, is_so in wrong.items() if is_so]


def report(llm: AsyncLLM, tally: Tally) -> float:
    """Print growth after warm-up and the pages; how much of the memory has been added from first third to last."""
    settled = tally.resident[len(tally.resident) // 10 :]
    thirds = [settled[i * len(settled) // 3 : (i + 1) * len(settled) // 3] for i in range(3)]
    means = [sum(n for _, n in part) / len(part) / 1e6 for part in thirds if part]
    scheduler = llm.llm.engine.scheduler
    for pool in scheduler.pools:
        pool.check([])
    print(f"{tally.finished} finished, {tally.cancelled} cancelled, {tally.refused} refused, {tally.tokens} tokens")
    print(f"resident memory, thirds after warm-up: {', '.join(f'{m:.1f} MB' for m in means)}")
    n_pages = sum(pool.n_pages for pool in scheduler.pools)
    print(f"pages held by nobody: all {n_pages}; preemptions {scheduler.n_preempted}", flush=True)
    return means[-1] / means[0] - 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--kv-mb", type=float, default=1)
    args = parser.parse_args()
    wrong = asyncio.run(soak(args.model, args.minutes, args.kv_mb))
    sys.exit("; ".join(wrong) or 0)


if __name__ == "__main__":
    main()
