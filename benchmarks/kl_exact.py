"""How far the CPU's logits are from exact ones, and the memory both take.

usage: benchmarks/kl_exact.py MODEL.gguf [--tokens 48] [--text FILE]

Exact are the reference's with weights widened to f32 and rows that are not rounded. Each runs in a process of its own.
Prints the divergence (mean and most, in nats), how often both choose one token, perplexities, and peaks of memory.
"""

import argparse
import multiprocessing
import resource
from dataclasses import replace
from pathlib import Path

import numpy as np

from tahr.backends import open_backend
from tahr.backends.api import Backend, Weight
from tahr.backends.reference.arithmetic import DenseMatrix
from tahr.backends.reference.backend import ReferenceBackend
from tahr.models.loader import load, open_model
from tahr.text.tokens.tokenizer import Tokenizer
from tahr.tools.full_logits import all_logits
from tahr.weights import open_gguf
from tahr.weights.tensor import HostTensor

TEXT = Path(__file__).resolve().parents[1] / "docs" / "memory.md"


class Exact(ReferenceBackend):
    """The reference without rounding of rows."""

    def weight(self, tensor: HostTensor) -> Weight:
        made = super().weight(tensor)
        return replace(made, data=DenseMatrix(made.data.values, int8=False))


def log_probabilities(options: argparse.Namespace, is_exact: bool) -> tuple[np.ndarray, list[int], float]:
    """For every token of the text, and the peak of this process in MB."""
    backend: Backend = Exact() if is_exact else open_backend("cpu")
    path = Path(options.model)
    tokenizer = Tokenizer.from_gguf(open_gguf(path).metadata)
    ids = list(tokenizer.encode(options.text.read_text(encoding="utf-8")))[: options.tokens]
    logits = all_logits(backend, load(open_model([path]), backend).decoder, ids).astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return logits, ids, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


def perplexity(logits: np.ndarray, ids: list[int]) -> float:
    return float(np.exp(-logits[np.arange(len(ids) - 1), ids[1:]].mean()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--text", type=Path, default=TEXT)
    options = parser.parse_args()
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        cpu, ids, cpu_mb = pool.apply(log_probabilities, (options, False))
        exact, _, exact_mb = pool.apply(log_probabilities, (options, True))
    divergence = (np.exp(exact) * (exact - cpu)).sum(axis=1)
    agree = (exact.argmax(axis=1) == cpu.argmax(axis=1)).mean()
    print(
        f"{len(ids)} tokens: divergence {divergence.mean():.5f}, at most {divergence.max():.5f}; one choice {agree:.1%}"
    )
    print(f"perplexity {perplexity(cpu, ids):.2f}, exact {perplexity(exact, ids):.2f}")
    print(f"peak {cpu_mb:.0f} MB, exact {exact_mb:.0f} MB")


if __name__ == "__main__":
    main()
