"""What picking tokens costs per step, by how many rows and which samplers, beside the decode step it follows.

usage: benchmarks/sampling.py [MODEL] [--vocab N] [--numpy]
With a model, its decode step at 64 sequences is timed in the same run and the cost is shown as a share of it.
"""

import argparse
import time

import numpy as np
from numpy.typing import NDArray

from tahr.backends import open_backend
from tahr.config import EngineConfig, SamplingParams
from tahr.engine.sampling.sampler import Sampler
from tahr.engine.sampling.sampling_state import SampleRequest, SamplingState
from tahr.executor.sampling import LocalSampling
from tahr.tools.bench import Shape, open_bench

ROWS = (1, 8, 64)
RUNS = 9
CASES = {
    "greedy": SamplingParams(temperature=0),
    "greedy, penalties": SamplingParams(temperature=0, repetition_penalty=1.1, frequency_penalty=0.5),
    "temperature": SamplingParams(temperature=0.8),
    "top-p": SamplingParams(temperature=0.8, top_p=0.95),
    "min-p": SamplingParams(temperature=0.8, min_p=0.05),
    "top-k, top-p": SamplingParams(temperature=0.8, top_k=40, top_p=0.95),
    "typical-p": SamplingParams(temperature=0.8, typical_p=0.9),
    "xtc, min-p": SamplingParams(temperature=0.8, xtc_probability=0.5, min_p=0.02),
    "mirostat": SamplingParams(temperature=0.8, mirostat=2),
    "20 logprobs, greedy": SamplingParams(temperature=0, logprobs=20),
    "everything": SamplingParams(
        temperature=0.8, top_k=40, top_p=0.95, min_p=0.02, typical_p=0.95, top_n_sigma=2, top_a=0.1, eta_cutoff=1e-3,
        xtc_probability=0.5, dry_multiplier=0.8, dry_sequence_breakers=((198,),), repetition_penalty=1.1,
        presence_penalty=0.2, frequency_penalty=0.2, logit_bias={5: 1.0}, banned_tokens=(7,), min_tokens=5,
    ),
}  # fmt: skip


def logits_like_a_model(n: int, n_vocab: int, height: float) -> NDArray[np.float32]:
    """A broad bell of unlikely tokens, and fifty that may stand out."""
    random = np.random.default_rng(0)
    logits = random.standard_normal((n, n_vocab), np.float32) * np.float32(2)
    for row in logits:
        row[random.integers(0, n_vocab, 50)] += np.linspace(0, height, 50, dtype=np.float32)
    return logits


def step_ms(sampler: Sampler, params: SamplingParams, logits: NDArray[np.float32]) -> float:
    """Milliseconds of one step, the best of several: what it costs when nothing else runs."""
    tokens = np.random.default_rng(1).integers(0, 200, 1024).tolist()
    requests = [SampleRequest(SamplingState(params), tokens, 512) for _ in logits]
    seconds = []
    for _ in range(RUNS):
        begin = time.perf_counter()
        sampler.sample(requests, logits)
        seconds.append(time.perf_counter() - begin)
    return min(seconds) * 1e3


def decode_step_ms(model: str, n_seqs: int) -> float:
    """Milliseconds of a decode step of a model, without any sampling: the best of a few runs of 8."""
    shape = Shape(n_gen=8, n_seqs=n_seqs)
    return min(open_bench(model, EngineConfig(), [shape]).bench.measure(shape, 2).seconds) / shape.n_gen * 1e3


def main() -> None:
    """Print the tables: one for logits as models give them, one for the flattest thinkable choice."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--vocab", type=int, default=151936, help="the vocabulary of Qwen3, unless told otherwise")
    parser.add_argument("--numpy", action="store_true", help="NumPy's sampler instead of the native one")
    args = parser.parse_args()
    sampler = Sampler(LocalSampling(open_backend("reference" if args.numpy else "auto")), args.vocab)
    step = decode_step_ms(args.model, max(ROWS)) if args.model else None
    if step:
        print(f"a decode step of {max(ROWS)} sequences: {step:.1f} ms; a tenth of it: {step / 10:.1f} ms")
    for title, height in {"peaked, as models are": 20.0, "flat: nothing stands out": 0.0}.items():
        logits = logits_like_a_model(max(ROWS), args.vocab, height)
        print(f"{title}; ms per step, {args.vocab} tokens{'':12}" + "".join(f"{n:>5} rows" for n in ROWS))
        for name, params in CASES.items():
            times = [step_ms(sampler, params, logits[:n]) for n in ROWS]
            share = f"   {times[-1] / step:6.1%} of a step" if step else ""
            print(f"  {name:58}" + "".join(f"{ms:10.2f}" for ms in times) + share, flush=True)


if __name__ == "__main__":
    main()
