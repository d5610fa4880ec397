"""What rounding keys and values costs: next-token distributions with each KV type against those with f32.

usage: benchmarks/kv_error.py MODEL.gguf [N_TOKENS [KV_TYPE ...]]      (a type: f16, q8_0, q8_0/f16 for keys/values)
"""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from perplexity import dense
from tahr.backends import open_backend
from tahr.backends.api import Floats
from tahr.models.loader.load import load, open_model
from tahr.text.tokens.tokenizer import Tokenizer
from tahr.tools.full_logits import FullLogits
from tahr.tools.perplexity import logprobs
from tahr.weights import open_gguf

FIXTURES = Path(__file__).resolve().parents[1] / "tests" / "fixtures"
TEXTS = ("articles.txt", "english.txt", "story.txt")


def distributions(path: Path, ids: list[int], kv_dtype: str) -> Floats:
    """Log-probabilities after each of the ids."""
    backend = open_backend("auto")
    source = open_model([path])  # with dense weights, or rounding activations to int8 would hide what is measured
    source = replace(source, tensors={name: dense(tensor) for name, tensor in source.tensors.items()})
    full = FullLogits(backend, load(source, backend).decoder, len(ids), kv_dtype)
    return np.concatenate([logprobs(rows).astype(np.float32) for rows in full.run(ids)])


def main() -> None:
    """Print mean KL and top-1 agreement of every type."""
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else sys.exit(__doc__)
    n_tokens = int(sys.argv[2]) if len(sys.argv) > 2 else 1024
    text = "\n\n".join((FIXTURES / name).read_text() for name in TEXTS)
    ids = Tokenizer.from_gguf(open_gguf(path).metadata).encode(text)[:n_tokens]
    exact = distributions(path, ids, "f32")
    print(f"{path.name}: {len(ids)} tokens, each KV type against f32")
    for kv_dtype in sys.argv[3:] or ("f16", "q8_0", "q8_0/f16", "f16/q8_0"):
        found = distributions(path, ids, kv_dtype)
        kl = (np.exp(exact) * (exact - found)).sum(axis=1)
        same = (exact.argmax(axis=1) == found.argmax(axis=1)).mean()
        print(f"  {kv_dtype:9}: mean KL {kl.mean():.6f}, worst {kl.max():.4f}, top-1 {same:.1%}", flush=True)


if __name__ == "__main__":
    main()
