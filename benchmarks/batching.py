"""Tokens per second of several requests at once beside those of one, through the whole engine.

usage: python benchmarks/batching.py [model] [--requests 1 2 4 8] [--tokens 64] [--repeat 3]
"""

import argparse
import statistics
from time import perf_counter

from prefix_cache import Silent
from tahr import LLM
from tahr.config import EngineConfig, SamplingParams
from tahr.engine.sequences.resolved import ResolvedRequest

PROMPT = "Write a short story about a lighthouse keeper who finds a letter in a bottle after a storm."


def tokens_per_s(llm: LLM, n_requests: int, n_tokens: int) -> float:
    """Of all replies together, from the moment every one of them has its first token."""
    engine = llm.engine
    params = SamplingParams(temperature=0.0, max_tokens=n_tokens, ignore_eos=True, cache_prompt=False)
    prompt = llm.tokenizer.encode(PROMPT)
    sequences = [engine.submit(ResolvedRequest([*prompt, 100 + i], params, Silent)) for i in range(n_requests)]
    while not all(seq.n_generated for seq in sequences):
        engine.step()
    n_before, began = sum(seq.n_generated for seq in sequences), perf_counter()
    while engine.busy:
        engine.step()
    return (sum(seq.n_generated for seq in sequences) - n_before) / (perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--requests", nargs="+", type=int, default=[1, 2, 4, 8])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    counts = sorted({1, *args.requests})
    llm = LLM(args.model, config=EngineConfig(context_size=512, max_batch_size=max(counts), prefill_chunk_size=256))
    tokens_per_s(llm, max(counts), 4)  # records the plan
    runs = [{n: tokens_per_s(llm, n, args.tokens) for n in counts} for _ in range(args.repeat)]  # turn by turn
    print("requests  tokens/s  as many as one")
    for n in counts:
        speed = statistics.median(run[n] for run in runs)
        ratio = statistics.median(run[n] / run[1] for run in runs)
        print(f"{n:8d}  {speed:8.1f}  {ratio:13.2f}x")


if __name__ == "__main__":
    main()
