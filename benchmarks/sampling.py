"""What picking tokens costs per step, by how many rows and which samplers.

usage: benchmarks/sampling.py [N_VOCAB]      (default 151936, the vocabulary of Qwen3)
"""

import sys
import time

import numpy as np
from numpy.typing import NDArray

from tahr.config import SamplingParams
from tahr.engine.sampler import Picker, PickRequest, pick

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


def step_ms(params: SamplingParams, logits: NDArray[np.float32]) -> float:
    """Processor milliseconds of one step, the best of several: what it costs when nothing else runs."""
    tokens = np.random.default_rng(1).integers(0, 200, 1024).tolist()
    requests = [PickRequest(Picker(params), tokens, 512) for _ in logits]
    seconds = []
    for _ in range(RUNS):
        begin = time.thread_time()
        pick(requests, logits)
        seconds.append(time.thread_time() - begin)
    return min(seconds) * 1e3


def main() -> None:
    """Print the tables: one for logits as models give them, one for the flattest thinkable choice."""
    n_vocab = int(sys.argv[1]) if len(sys.argv) > 1 else 151936
    for title, height in {"peaked, as models are": 20.0, "flat: nothing stands out": 0.0}.items():
        logits = logits_like_a_model(max(ROWS), n_vocab, height)
        print(f"{title}; ms per step, {n_vocab} tokens{'':12}" + "".join(f"{n:>5} rows" for n in ROWS))
        for name, params in CASES.items():
            print(f"  {name:58}" + "".join(f"{step_ms(params, logits[:n]):10.2f}" for n in ROWS), flush=True)


if __name__ == "__main__":
    main()
