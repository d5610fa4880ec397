"""Time to first token of a prompt whose beginning is known, beside the same prompt unknown.

usage: python benchmarks/prefix_cache.py [model] [--lengths 256 512 1024]
"""

import argparse
import random
import statistics

from tahr import LLM
from tahr.config import EngineConfig, SamplingParams
from tahr.engine.sequences.resolved import ResolvedRequest

ONE_TOKEN = SamplingParams(temperature=0.0, max_tokens=1)
SHARES = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)


class Bench:
    """Prompts of random tokens: only what is shared on purpose is shared."""

    def __init__(self, llm: LLM, seed: int = 0):
        self.llm = llm
        self.random = random.Random(seed)

    def tokens(self, n: int) -> list[int]:
        return [self.random.randrange(100, self.llm.engine.facts.n_vocab) for _ in range(n)]

    def first_token(self, prompt: list[int]) -> tuple[float, int]:
        """Seconds to the first token, and how many tokens were computed for it."""
        engine = self.llm.engine
        seq = engine.submit(ResolvedRequest(prompt, ONE_TOKEN, Silent))
        while not seq.done:
            engine.step()
        return seq.result.stats.first_token_s, seq.n_prompt - seq.result.stats.n_cached_tokens

    def shared(self, n: int, share: float) -> tuple[float, int]:
        """The second of two prompts of n tokens that begin alike."""
        begin = self.tokens(int(n * share))
        first = [*begin, *self.tokens(n - len(begin))]
        self.first_token(first)
        return self.first_token(first if share == 1 else [*begin, *self.tokens(n - len(begin))])


class Silent:
    """Nobody reads the text."""

    stopped = False
    forced: tuple[int, ...] = ()
    n_reasoning_tokens = 0
    matched_stop: str | None = None

    def push(self, token: int) -> str:
        return ""

    def flush(self) -> str:
        return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--lengths", nargs="+", type=int, default=[256, 512, 1024])
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    bench = Bench(LLM(args.model, config=EngineConfig(context_size=max(args.lengths) + 32)))
    bench.first_token(bench.tokens(64))  # records the plan
    print("tokens  shared       computed  first token      saved")
    for n in args.lengths:
        base = 0.0
        for share in SHARES:
            runs = [bench.shared(n, share) for _ in range(args.repeat)]
            seconds, n_computed = statistics.median(s for s, _ in runs), runs[0][1]
            base = base or seconds
            computed = f"{n_computed:6d} ({n_computed / n:4.0%})"
            print(f"{n:6d}  {share:5.0%}  {computed}  {seconds * 1e3:8.1f} ms  {1 - seconds / base:8.0%}", flush=True)


if __name__ == "__main__":
    main()
