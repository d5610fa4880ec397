"""How far our next-token distributions are from llama.cpp's on the same file and text.

usage: benchmarks/kl_llama_cpp.py MODEL.gguf [N_TOKENS [TEXT_FILE]]      (needs llama-cpp-python beside tahr)
"""

import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

from make_llama_cpp_fixture import TEXT, llama_cpp_logits, log_softmax  # noqa: E402


def tahr_logits(path: str, ids: list[int]) -> np.ndarray:
    """Our logits after each of the ids, in one step."""
    from tahr.backends import open_backend
    from tahr.engine.probe import all_logits
    from tahr.models.loader import load, open_model

    backend = open_backend("auto")
    loaded = load(open_model([Path(path)]), backend)
    return all_logits(backend, loaded.decoder, ids).astype(np.float64)


def main() -> None:
    """Print mean KL, top-1 agreement and both perplexities."""
    path = sys.argv[1]
    n_tokens = int(sys.argv[2]) if len(sys.argv) > 2 else 500
    text_file = Path(sys.argv[3]) if len(sys.argv) > 3 else TEXT
    ids, theirs = llama_cpp_logits(path, text_file.read_text(), n_tokens)
    p, q = log_softmax(theirs), log_softmax(tahr_logits(path, ids))
    kl = (np.exp(p) * (p - q)).sum(axis=1)
    agree = (p.argmax(axis=1) == q.argmax(axis=1)).mean()
    text = np.arange(len(ids) - 1), np.array(ids[1:])
    print(f"{Path(path).name}: {len(ids)} tokens, mean KL {kl.mean():.5f}, worst {kl.max():.4f}, top-1 {agree:.1%}")
    print(f"perplexity: llama.cpp {np.exp(-p[text].mean()):.3f}, tahr {np.exp(-q[text].mean()):.3f}")


if __name__ == "__main__":
    main()
