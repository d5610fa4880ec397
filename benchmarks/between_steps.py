"""What an engine does between two steps of a real model, when the kernels have just emptied the caches.

`engine_host.py` measures the same work with warm caches; here it takes several times as long. Prints the time of a step
without its kernels.

usage: benchmarks/between_steps.py MODEL [n_seqs ...]      (PYTHONPATH says of which checkout)
"""

import sys
from collections.abc import Callable
from statistics import median
from time import perf_counter

from tahr import LLM, SamplingParams

N_TOKENS = 200


def clocked(work: Callable[[], object], times: list[float]) -> Callable[[], object]:
    def run() -> object:
        began = perf_counter()
        result = work()
        times.append(perf_counter() - began)
        return result

    return run


def measure(llm: LLM, n_seqs: int) -> list[float]:
    """Seconds of every step but those of its kernels."""
    engine, steps, kernels = llm.engine, list[float](), list[float]()
    for plan in engine.executor.executed[0].plans.values():
        plan.run = clocked(type(plan).run.__get__(plan), kernels)  # type: ignore[method-assign]
    engine.step = clocked(type(engine).step.__get__(engine), steps)  # type: ignore[method-assign]
    params = SamplingParams(temperature=0, max_tokens=N_TOKENS, ignore_eos=True)
    llm.generate([f"Once upon {i} a time" for i in range(n_seqs)], params, progress=False)
    return [step - kernel for step, kernel in zip(steps, kernels, strict=True)]


def main() -> None:
    model, *counts = sys.argv[1:] or sys.exit(__doc__)
    llm = LLM(model)
    llm.generate("Warm", SamplingParams(max_tokens=4, ignore_eos=True))
    for n_seqs in map(int, counts or ("1", "8")):
        times = sorted(measure(llm, n_seqs))
        print(f"{n_seqs:5d} sequences: median {median(times) * 1e6:.0f} us, p10 {times[len(times) // 10] * 1e6:.0f} us")


if __name__ == "__main__":
    main()
