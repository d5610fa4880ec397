"""How far our next-token distributions are from llama.cpp's on the same file and text.

usage: benchmarks/kl_llama_cpp.py MODEL.gguf [N_TOKENS [TEXT_FILE [exact]]]      (needs llama-cpp-python beside tahr)
"""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

from make_llama_cpp_fixture import TEXT, llama_cpp_logits, log_softmax  # noqa: E402
from tahr.backends import open_backend  # noqa: E402
from tahr.backends.api import Backend, Weight  # noqa: E402
from tahr.backends.reference.backend import DenseMatrix, ReferenceBackend  # noqa: E402
from tahr.models.loader.load import load, open_model  # noqa: E402
from tahr.tools.full_logits import all_logits  # noqa: E402
from tahr.weights.tensor import HostTensor  # noqa: E402


class Exact(ReferenceBackend):
    """The same weights without rounding activations to int8: how far either engine is from plain arithmetic."""

    def weight(self, tensor: HostTensor) -> Weight:
        weight = super().weight(tensor)
        return replace(weight, data=DenseMatrix(weight.data.values, int8=False))


def logprobs(backend: Backend, path: str, ids: list[int]) -> np.ndarray:
    """Log-probabilities after each of the ids."""
    loaded = load(open_model([Path(path)]), backend)
    return log_softmax(all_logits(backend, loaded.decoder, ids).astype(np.float64))


def compare(label: str, p: np.ndarray, q: np.ndarray) -> None:
    kl = (np.exp(p) * (p - q)).sum(axis=1)
    agree = (p.argmax(axis=1) == q.argmax(axis=1)).mean()
    print(f"{label}: mean KL {kl.mean():.5f}, worst {kl.max():.4f}, top-1 {agree:.1%}")


def main() -> None:
    """Print mean KL, top-1 agreement and both perplexities."""
    path = sys.argv[1]
    n_tokens = int(sys.argv[2]) if len(sys.argv) > 2 else 500
    text_file = Path(sys.argv[3]) if len(sys.argv) > 3 else TEXT
    ids, theirs = llama_cpp_logits(path, text_file.read_text(), n_tokens)
    p, q = log_softmax(theirs), logprobs(open_backend("auto"), path, ids)
    text = np.arange(len(ids) - 1), np.array(ids[1:])
    compare(f"{Path(path).name}: {len(ids)} tokens, llama.cpp against tahr", p, q)
    if len(sys.argv) > 4:
        exact = logprobs(Exact(), path, ids)
        compare("exact against llama.cpp", exact, p)
        compare("exact against tahr", exact, q)
    print(f"perplexity: llama.cpp {np.exp(-p[text].mean()):.3f}, tahr {np.exp(-q[text].mean()):.3f}")


if __name__ == "__main__":
    main()
