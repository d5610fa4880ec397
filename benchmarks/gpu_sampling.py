"""What sampling costs on a GPU: microseconds per call of `Backend.sample`, from launch to tokens on the host.

usage: benchmarks/gpu_sampling.py [--vocab N] [n_rows ...]
Beside the times stands one pass over the logits: reading them all and writing nothing.
"""

import argparse
from collections.abc import Callable
from statistics import median
from time import perf_counter

import numpy as np
import torch

from tahr.backends import open_backend
from tahr.backends.api import Backend, Tensor
from tahr.backends.sampling.sample_rows import Sampled
from tahr.config import SamplingParams
from tahr.engine.sampling.sampler import Sampler
from tahr.engine.sampling.sampling_state import SampleRequest, SamplingState
from tahr.executor.sampling import LocalSampling

ROWS = (1, 8, 32, 128, 256)
N_RUNS = 50
CASES = {
    "greedy": SamplingParams(temperature=0),
    "temperature": SamplingParams(temperature=0.8),
    "top-k 20, top-p 0.95": SamplingParams(temperature=0.8, top_k=20, top_p=0.95),
    "top-p 0.95": SamplingParams(temperature=0.8, top_p=0.95),
    "min-p 0.05": SamplingParams(temperature=0.8, min_p=0.05),
    "top-k 20, top-p 0.95, penalties": SamplingParams(
        temperature=0.8, top_k=20, top_p=0.95, repetition_penalty=1.1, frequency_penalty=0.2
    ),
    "200 allowed tokens": SamplingParams(temperature=0.8, allowed_tokens=tuple(range(100, 300))),
}


def logits_like_a_model(n: int, n_vocab: int, height: float) -> np.ndarray:
    """A broad bell of unlikely tokens, and fifty that may stand out."""
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((n, n_vocab), np.float32) * np.float32(2)
    for row in logits:
        row[rng.integers(0, n_vocab, 50)] += np.linspace(0, height, 50, dtype=np.float32)
    return logits


def device_us(work: Callable[[], object]) -> float:
    """Microseconds the device is busy with a call; launches are far ahead of it."""
    for _ in range(3):
        work()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    times = []
    for _ in range(N_RUNS):
        torch.cuda._sleep(1_000_000)  # long enough to launch everything behind it
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return median(times)


def host_us(work: Callable[[], object]) -> float:
    """Microseconds from the call to its result."""
    times = []
    for _ in range(N_RUNS):
        torch.cuda.synchronize()
        began = perf_counter()
        work()
        times.append((perf_counter() - began) * 1e6)
    return median(times)


def times(
    backend: Backend, sampler: Sampler, params: SamplingParams, logits: Tensor, n: int
) -> tuple[float, float, float]:
    """Microseconds on the device, of the launch on the host, and of launch and collect together."""
    text = np.random.default_rng(1).integers(0, 2000, 600).tolist()
    requests = [SampleRequest(SamplingState(params), list(text), 100) for _ in range(n)]
    source, pending = list(range(n)), []

    def begin() -> Sampled:
        return backend.sample(logits, sampler.finish(sampler.prepare(requests, source)).rows)

    def launch() -> None:
        pending.append(begin())

    on_device = device_us(launch)
    launching = host_us(launch)
    for each in pending:
        each.collect()
    return on_device, launching, host_us(lambda: begin().collect())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", type=int, default=list(ROWS))
    parser.add_argument("--vocab", type=int, default=151_936)
    args = parser.parse_args()
    backend = open_backend("cuda")
    sampler = Sampler(LocalSampling(backend), args.vocab)
    print(backend.summary)
    for title, height in {"peaked, as models are": 20.0, "flat: nothing stands out": 0.0}.items():
        print(f"{title}; us per call: device, launch on the host, launch and collect")
        for n in args.rows:
            values = logits_like_a_model(n, args.vocab, height)
            logits = backend.tensor(values)
            one_pass = device_us(lambda rows=logits.data.values: rows.sum())  # type: ignore[misc]
            print(f"  {n} rows of {args.vocab}; one pass {one_pass:.0f} us")
            for name, params in CASES.items():
                print(
                    f"    {name:36}" + "".join(f"{us:9.0f}" for us in times(backend, sampler, params, logits, n)),
                    flush=True,
                )


if __name__ == "__main__":
    main()
